"""Trial: one search under way, what it may still use, and the best it has found."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from ..errors import DeadlockError, InputError
from ..oracle import Cost, Oracle
from ..strategy import Strategy
from ..taskgraph import Ints
from .instance import Instance
from .prepare import Grouped
from .space import IMPOSSIBLE, WORST, Key, choices, key

REFUSED = (InputError, DeadlockError)  # what the oracle raises for a placement that cannot be
TRIES = 64  # random placements to begin with, where no other start can be
NAMED = 3  # ops that a message names


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
    """What a method is handed: an oracle to ask through ``score`` or ``walk``, and a random
    generator.

    Placements are devices by group (``oracle.groups``) or by op. ``grouped`` is the graph that list
    placers read; the oracle's groups are its own, those of ``asked`` the question's, which may be
    smaller. ``start`` is the placement (by op) that the question holds, if any, ``given`` its
    strategy: the order, synchronisation, and perhaps splits. ``best`` is the best so far; ``base``
    the best that keeps the oracle's groups together: walks may begin there. Methods that split ops
    ask through ``try_strategy``; of these ``best_strategy`` is kept in place of ``best``. A
    placement that cannot be costs IMPOSSIBLE; ``refused`` is why the last of them was, ``refusals``
    their number. Methods may leave further ``objectives`` (name to number) and ``details``.
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
        self.given = oracle.under if given is None else given
        self.evaluations, self.refusals = 0, 0
        self.refused: InputError | DeadlockError | None = None
        self.best: tuple[Ints, Cost] | None = None
        self.base: tuple[Ints, Cost] | None = None
        self._best, self._base = WORST, WORST  # their keys
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
        return min(
            max(evaluated, 0.0 if self.seconds is None else self.wall_seconds / self.seconds), 1.0
        )

    @property
    def seconds_left(self) -> float:
        """Seconds until the limit in time, 0 where it is over; inf where there is none."""
        return inf if self.seconds is None else max(self.seconds - self.wall_seconds, 0.0)

    def require_time(self) -> None:
        """Raises SpentError where the time is over: what plans call between their steps."""
        if not self.seconds_left:
            raise SpentError

    def score(self, placement: Ints) -> Cost:
        """The cost of a placement, IMPOSSIBLE where it cannot be.

        Raises SpentError where the budget is used up, before it asks, and InputError for what is no
        placement: of a wrong length, on devices that are not there, or with groups split.
        """
        self.require_budget()
        try:
            cost = self.oracle(placement)
        except REFUSED as error:
            if not self._is_placement(placement):
                raise
            return self.refuse(error)
        self.note(cost, lambda: self.oracle.placement(placement))
        return cost

    def score_own(self) -> None:
        """Ask for the question's own placement, where it has one; also where it splits groups of
        the preparation.

        Then it is kept, but walks cannot begin there, and ``details`` says so. Raises SpentError.
        """
        if self.start is None:
            return
        split = self._split(self.start)
        if not split:
            self.score(self.start)
            return
        self.require_budget()
        try:
            cost = self.asked(self.start)
        except REFUSED as error:
            self.refuse(error)
            return
        self._count()
        self._keep(self.start, cost, key(self.asked, cost))
        names = [f'"{self.asked.graph.ops[i].name}"' for i in split[:NAMED]] + ["others"] * (
            len(split) > NAMED
        )
        self.details["own_placement"] = (
            f"keeps {', '.join(names)} apart, which are prepared as one: no move begins there"
        )

    def _split(self, column: Ints) -> tuple[int, ...]:
        """The first group that a placement by op does not keep together, if any."""
        return next(
            (one for one in self.oracle.groups if len(set(column[list(one)].tolist())) > 1), ()
        )

    def _is_placement(self, placement: Ints) -> bool:
        """Whether it is one at all: on devices that are there, groups together.

        Raises InputError.
        """
        column = self.oracle.placement(placement)
        there = (column >= 0) & (column < len(self.oracle.cluster.devices))
        return bool(there.all()) and not self._split(column)

    def refuse(self, error: InputError | DeadlockError) -> Cost:
        """Count a placement that cannot be."""
        self._count()
        self.refused, self.refusals = error, self.refusals + 1
        return IMPOSSIBLE

    def require_budget(self) -> None:
        """Raises SpentError where nothing may be asked any more; one answer is always given."""
        if not self.evaluations:
            return
        if self.budget is not None and self.evaluations >= self.budget:
            raise SpentError
        if self.seconds is not None and self.wall_seconds >= self.seconds:
            raise SpentError

    def note(self, cost: Cost, placement: Callable[[], Ints]) -> None:
        """Count an answer, and keep it where it is the best so far."""
        self._count()
        found = key(self.oracle, cost)
        if found < self._base:
            self.base = placement().copy(), cost
            self._base = found
            self._keep(*self.base, found)

    def _keep(self, placement: Ints, cost: Cost, found: Key) -> None:
        """Keep an answer where it is the best of all."""
        if found < self._best:
            self.best = placement, cost
            self._mark(cost, found)

    def try_strategy(self, strategy: Strategy) -> Cost:
        """The cost of a strategy that splits ops.

        Raises SpentError, and InputError for one that is malformed.
        """
        self.require_budget()
        cost = self.asked(strategy)
        self.note_strategy(cost, lambda: strategy)
        return cost

    def note_strategy(self, cost: Cost, strategy: Callable[[], Strategy]) -> None:
        """Count an answer to a strategy that splits ops, and keep it where it is the best so
        far.
        """
        self._count()
        found = key(self.asked, cost)
        if found < self._best:
            self.best_strategy = strategy(), cost
            self._mark(cost, found)

    def _count(self) -> None:
        self.evaluations += 1
        if self._progress is not None:
            self._progress(self.evaluations)

    def _mark(self, cost: Cost, found: Key) -> None:
        """A point of the curve; set after what it tells of, so that an interrupt never leaves a
        point alone.
        """
        self._best = found
        self.points.append(
            Point(self.evaluations, self.cpu_seconds, cost.step_ps, cost.memory_excess)
        )

    def walk(self, placement: Ints, oracle: Oracle | None = None) -> Walk:
        """Local search from a placement that can be, over the groups of ``oracle`` (``asked``, or
        the trial's own).

        It is counted, unless it is the best so far, which was asked before.
        """
        return Walk(self, placement, oracle or self.oracle)


class Walk:
    """A current placement and proposals to move one group, all counted by the trial."""

    def __init__(self, trial: Trial, placement: Ints, oracle: Oracle) -> None:
        column = oracle.placement(placement)
        known = any(
            one is not None and np.array_equal(one[0], column) for one in (trial.base, trial.best)
        )
        if not known:
            trial.require_budget()
        self._trial, self._oracle, self._session = trial, oracle, oracle.session(column)
        self.where = [int(column[members[0]]) for members in oracle.groups]
        self._proposed = (0, 0)
        self.cost = self._session.cost
        if not known:
            trial.note(self.cost, lambda: self._session.placement)

    @property
    def key(self) -> Key:
        """How good the current placement is; smaller is better."""
        return self.key_of(self.cost)

    def key_of(self, cost: Cost) -> Key:
        """The same for any cost."""
        return key(self._oracle, cost)

    def propose(self, group: int, device: int) -> Cost:
        """The cost with one group on another device, IMPOSSIBLE where it cannot be there.

        Raises SpentError.
        """
        self._trial.require_budget()
        try:
            cost = self._session.propose(group, device)
        except REFUSED as error:
            return self._trial.refuse(error)
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


def alone(trial: Trial) -> list[Ints]:
    """Everything on each device that can run everything (by group); of devices alike, on the
    first.
    """
    common = set(trial.choices[0].tolist()) if trial.choices else set()
    for one in trial.choices:
        common &= set(one.tolist())
    devices = trial.oracle.cluster.devices
    unlike = {
        repr((devices[d].kind, devices[d].memory, devices[d].gap)): d
        for d in sorted(common, reverse=True)
    }
    return [np.full(len(trial.choices), device, np.int64) for device in sorted(unlike.values())]


def best_start(trial: Trial) -> Ints | None:
    """The best placement for walks to begin with, as devices by op, all of them asked; None where
    none was found.

    The question's own, and everything on each device that can run everything. Where there is no
    such device, each group on the first on which it may stand; where nothing of these can be,
    random placements until one can.
    """
    trial.score_own()
    for placement in alone(trial):
        trial.score(placement)
    if trial.base is None:
        trial.score(np.array([one[0] for one in trial.choices], np.int64))
    for _ in range(TRIES):
        if trial.base is not None:
            break
        trial.score(np.array([trial.random.choice(one) for one in trial.choices], np.int64))
    return None if trial.base is None else trial.base[0]
