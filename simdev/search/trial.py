"""Trial: one search under way, what it may still use, and the best it has found."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..oracle import Cost, Oracle
from ..strategy import Strategy
from ..taskgraph import Ints
from .instance import Instance
from .prepare import Grouped
from .space import choices, over


class SpentError(Exception):
    """The budget is spent: methods let it pass, and ``search`` ends."""


class Clock:
    """When a search began, in wall and CPU seconds."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    @property
    def seconds(self) -> float:
        """Seconds since then."""
        return time.perf_counter() - self._wall

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds since then."""
        return time.process_time() - self._cpu


@dataclass(frozen=True, slots=True)
class Point:
    """When the best so far got better: evaluations and CPU seconds used by then."""

    evaluation: int
    cpu_seconds: float
    step_ps: int
    memory_excess: int


class Trial:
    """What a method is handed: an oracle to ask through ``score`` or ``walk``, and a random generator.

    Placements are devices by group (``oracle.groups``) or by op. ``grouped`` is the graph that list placers read; the
    oracle's groups are its own, those of ``asked`` the question's, which may be smaller. ``start`` is a placement to
    begin with, where the question holds one, ``given`` its strategy: the order, synchronisation, and perhaps splits.
    Methods that split ops ask through ``try_strategy``; of these ``best_strategy`` is kept in place of ``best``.
    Methods may leave further ``objectives`` (name to number) and ``details``.
    """

    def __init__(
        self,
        oracle: Oracle,
        grouped: Grouped,
        budget: int | None = None,
        seconds: float | None = None,
        seed: int = 0,
        start: Ints | None = None,
        progress: Callable[[int], object] | None = None,
        asked: Oracle | None = None,
        began: Clock | None = None,
        given: Strategy | None = None,
    ) -> None:
        self.oracle, self.grouped, self.start, self.asked = oracle, grouped, start, asked or oracle
        self.random = np.random.default_rng(seed)
        self.choices = choices(oracle)
        self.budget, self.seconds, self._progress = budget, seconds, progress
        self.given = Strategy(order=oracle.order) if given is None else given
        self.evaluations = 0
        self.best: tuple[Ints, Cost] | None = None
        self.best_strategy: tuple[Strategy, Cost] | None = None
        self.points: list[Point] = []
        self.objectives: dict[str, float] = {}
        self.details: dict[str, Any] = {}
        self._clock = began or Clock()

    @property
    def instance(self) -> Instance:
        """The grouped graph on the cluster, for list placers."""
        return Instance(self.oracle.prepared, self.grouped)

    @property
    def wall_seconds(self) -> float:
        """Seconds since the search began."""
        return self._clock.seconds

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds since the search began."""
        return self._clock.cpu_seconds

    @property
    def share(self) -> float:
        """The share of the budget used so far, from 0 to 1 (0 where there is no limit)."""
        evaluated = 0.0 if self.budget is None else self.evaluations / self.budget
        return min(max(evaluated, 0.0 if self.seconds is None else self.wall_seconds / self.seconds), 1.0)

    def score(self, placement: Ints) -> Cost:
        """The cost of a placement. Raises SpentError where the budget is used up, before it asks."""
        self.require_budget()
        cost = self.oracle(placement)
        self.note(cost, lambda: self.oracle.placement(placement))
        return cost

    def require_budget(self) -> None:
        """Raises SpentError where nothing may be asked any more; one answer is always given."""
        if not self.points:
            return
        if self.budget is not None and self.evaluations >= self.budget:
            raise SpentError
        if self.seconds is not None and self.wall_seconds >= self.seconds:
            raise SpentError

    def note(self, cost: Cost, placement: Callable[[], Ints]) -> None:
        """Count an answer, and keep it where it is the best so far."""
        if self._is_best(cost):
            self.best = placement().copy(), cost
            self._mark(cost)

    def try_strategy(self, strategy: Strategy) -> Cost:
        """The cost of a strategy that splits ops. Raises SpentError, and InputError for one that is malformed."""
        self.require_budget()
        cost = self.asked(strategy)
        self.note_strategy(cost, lambda: strategy)
        return cost

    def note_strategy(self, cost: Cost, strategy: Callable[[], Strategy]) -> None:
        """Count an answer to a strategy that splits ops, and keep it where it is the best so far."""
        if self._is_best(cost):
            self.best_strategy = strategy(), cost
            self._mark(cost)

    def _is_best(self, cost: Cost) -> bool:
        """Count an answer; whether it is the best so far."""
        self.evaluations += 1
        if self._progress is not None:
            self._progress(self.evaluations)
        last = self.points[-1] if self.points else None
        return last is None or (cost.memory_excess, cost.step_ps) < (last.memory_excess, last.step_ps)

    def _mark(self, cost: Cost) -> None:
        """A point of the curve; set after what it tells of, so that an interrupt never leaves a point alone."""
        self.points.append(Point(self.evaluations, self.cpu_seconds, cost.step_ps, cost.memory_excess))

    def walk(self, placement: Ints, oracle: Oracle | None = None) -> Walk:
        """Local search from a placement, over the groups of ``oracle`` (``asked``, or the trial's own)."""
        return Walk(self, placement, oracle or self.oracle)


class Walk:
    """A current placement and proposals to move one group, all counted by the trial."""

    def __init__(self, trial: Trial, placement: Ints, oracle: Oracle) -> None:
        trial.require_budget()
        self._trial, self._oracle, self._session = trial, oracle, oracle.session(placement)
        column = self._session.placement
        self.where = [int(column[members[0]]) for members in oracle.groups]
        self._proposed = (0, 0)
        self.cost = self._session.cost
        trial.note(self.cost, lambda: self._session.placement)

    @property
    def key(self) -> tuple[int, int]:
        """How good the current placement is: bytes over all capacities, then ps; smaller is better."""
        return self.key_of(self.cost)

    def key_of(self, cost: Cost) -> tuple[int, int]:
        """The same for any cost."""
        return over(self._oracle, cost), cost.step_ps

    def propose(self, group: int, device: int) -> Cost:
        """The cost with one group on another device. Raises SpentError."""
        self._trial.require_budget()
        cost = self._session.propose(group, device)
        self._proposed = group, device
        self._trial.note(cost, self._moved)
        return cost

    def _moved(self) -> Ints:
        column, (group, device) = self._session.placement, self._proposed
        column[list(self._oracle.groups[group])] = device
        return column

    def accept(self) -> None:
        """Make the proposal the current placement."""
        group, device = self._proposed
        self.cost, self.where[group] = self._session.accept(), device


def starts(trial: Trial) -> list[Ints]:
    """Placements to begin with: the question's own, and everything on each device that can run everything.

    Where there is none, each group on the first device on which it may stand.
    """
    common = set(trial.choices[0].tolist()) if trial.choices else set()
    for one in trial.choices:
        common &= set(one.tolist())
    found = [np.full(len(trial.choices), device, np.int64) for device in sorted(common)]
    if trial.start is not None:
        found.append(trial.start)
    return found or [np.array([one[0] for one in trial.choices], np.int64)]


def best_start(trial: Trial) -> Ints:
    """The best of ``starts``, as devices by op. Alike devices are tried once."""
    seen: dict[Mapping[int, int] | bytes, Ints] = {}
    for placement in starts(trial):
        column = trial.oracle.placement(placement)
        same = np.unique(column)
        key = _alike(trial, int(same[0])) if len(same) == 1 else column.tobytes()
        seen.setdefault(key, column)
    for column in seen.values():
        trial.score(column)
    assert trial.best is not None  # there is a start
    return trial.best[0]


def _alike(trial: Trial, device: int) -> bytes:
    """What tells a device from others where everything stands on it."""
    one = trial.oracle.cluster.devices[device]
    return repr((one.kind, one.memory, one.gap)).encode()
