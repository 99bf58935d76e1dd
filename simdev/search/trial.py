"""Trial: one search under way: its problem, what it may still use, and the best so far."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Any

import numpy as np

from ..errors import DeadlockError, InputError
from ..oracle import Cost, Oracle
from ..strategy import Strategy, resolve_placement
from ..taskgraph import Ints
from .instance import Instance
from .prepare import Grouped
from .space import IMPOSSIBLE, WORST, Rank, choices, rank_of

REFUSED = (InputError, DeadlockError)  # what the oracle raises for a placement that cannot be
TRIES = 64  # random placements to begin with, where no other start can be
NAMED = 3  # ops that a message names


class SpentError(Exception):
    """The budget is spent: methods let it pass, and ``search`` ends."""


class Budget:
    """What a search may use: so many evaluations and seconds (None: any number), and random
    numbers.

    Its clock starts when it is made. ``progress`` is called with the evaluations so far.
    """

    def __init__(
        self,
        limit: int | None = None,
        seconds: float | None = None,
        seed: int = 0,
        progress: Callable[[int], object] | None = None,
    ) -> None:
        self.limit = None if limit is None else int(limit)  # a NumPy number is no JSON
        self.seconds, self.seed, self.evaluations = seconds, int(seed), 0
        self.random = np.random.default_rng(self.seed)
        self._progress = progress
        self._began = time.perf_counter(), time.process_time()

    @property
    def wall_seconds(self) -> float:
        """Seconds since the search began."""
        return time.perf_counter() - self._began[0]

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds since the search began."""
        return time.process_time() - self._began[1]

    @property
    def share(self) -> float:
        """The share of the budget used so far, from 0 to 1 (0 where there is no limit)."""
        evaluated = 0.0 if self.limit is None else self.evaluations / self.limit
        passed = 0.0 if self.seconds is None else self.wall_seconds / self.seconds
        return min(max(evaluated, passed), 1.0)

    @property
    def seconds_left(self) -> float:
        """Seconds until the limit in time, 0 where it is over; inf where there is none."""
        return inf if self.seconds is None else max(self.seconds - self.wall_seconds, 0.0)

    def require_time(self) -> None:
        """Raises SpentError where the time is over: what plans call between their steps."""
        if not self.seconds_left:
            raise SpentError

    def require(self) -> None:
        """Raises SpentError where nothing may be evaluated any more; the first always may."""
        if self.evaluations:
            if self.limit is not None and self.evaluations >= self.limit:
                raise SpentError
            self.require_time()

    def count(self) -> None:
        """One more evaluation."""
        self.evaluations += 1
        if self._progress is not None:
            self._progress(self.evaluations)


@dataclass(frozen=True, eq=False)
class SearchProblem:
    """What is searched: where the groups of ``oracle`` stand, on the graph as it was prepared.

    ``whole`` is the oracle of the graph as it was given, whose groups may be smaller; ``grouped``
    the graph that list placers read; ``given`` the strategy that came with it: the order, the
    synchronisation, and perhaps a placement or splits.
    """

    oracle: Oracle
    grouped: Grouped
    whole: Oracle
    given: Strategy

    @cached_property
    def choices(self) -> tuple[Ints, ...]:
        """The devices on which each group may stand. Raises InputError where there is none."""
        return choices(self.oracle)

    @cached_property
    def instance(self) -> Instance:
        """The grouped graph on the cluster, for list placers."""
        return Instance(self.oracle.prepared, self.grouped)

    @cached_property
    def start(self) -> Ints | None:
        """The placement that the given strategy holds (by op), where it splits nothing."""
        whole, given = self.whole, self.given
        if given.splits:
            return None
        try:
            return np.array(
                resolve_placement(whole.graph, whole.cluster, given.placement), np.int64
            )
        except InputError:  # it leaves ops without a device, as a pipeline does
            return None


@dataclass(frozen=True, slots=True)
class Point:
    """When the best so far got better: evaluations and CPU seconds used by then."""

    evaluation: int
    cpu_seconds: float
    step_ps: int
    memory_excess: int


@dataclass(slots=True)
class Best:
    """The best so far, and what else a method has to say.

    ``placement`` (devices by op) or, from methods that split ops, ``strategy``, with its cost;
    ``base`` is the best placement that was scored or walked to, which walks may begin at (a walk
    over ``whole`` may split groups of the problem). ``points``: the improvements. ``refusals``: how
    many placements could not be, and ``refused`` why the last of them. ``objectives`` (name to
    number) and ``details`` are a method's.
    """

    placement: tuple[Ints, Cost] | None = None
    strategy: tuple[Strategy, Cost] | None = None
    base: tuple[Ints, Cost] | None = None
    rank: Rank = WORST
    base_rank: Rank = WORST
    points: list[Point] = field(default_factory=list)
    refused: InputError | DeadlockError | None = None
    refusals: int = 0
    objectives: dict[str, float] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)


class Trial:
    """What a method is handed. It evaluates by ``score``, ``walk`` or ``try_strategy``, which
    count, keep the best, and raise SpentError where the budget is used up.

    Placements are devices by group of the problem's oracle, or by op. One that cannot be costs
    IMPOSSIBLE.
    """

    def __init__(self, problem: SearchProblem, budget: Budget) -> None:
        self.problem, self.budget, self.best = problem, budget, Best()

    def score(self, placement: Ints) -> Cost:
        """The cost of a placement, IMPOSSIBLE where it cannot be.

        Raises SpentError before it evaluates, and InputError for what is no placement: of a wrong
        length, on devices that are not there, or with groups split.
        """
        self.budget.require()
        oracle = self.problem.oracle
        try:
            cost = oracle(placement)
        except REFUSED as error:
            column = oracle.placement(placement)
            there = (column >= 0) & (column < len(oracle.cluster.devices))
            if not there.all() or self._split_group(column):
                raise
            return self.refuse(error)
        self.note(cost, lambda: oracle.placement(placement))
        return cost

    def score_start(self) -> None:
        """Score the given placement, where there is one; also where it splits groups of the
        preparation.

        Then it is kept, but walks cannot begin there, and ``details`` says so. Raises SpentError.
        """
        start, whole = self.problem.start, self.problem.whole
        if start is None:
            return
        split = self._split_group(start)
        if not split:
            self.score(start)
            return
        self.budget.require()
        try:
            cost = whole(start)
        except REFUSED as error:
            self.refuse(error)
            return
        self.budget.count()
        self._keep(rank_of(whole, cost), cost, start)
        names = [f'"{whole.graph.ops[i].name}"' for i in split[:NAMED]]
        names += ["others"] * (len(split) > NAMED)
        self.best.details["own_placement"] = (
            f"keeps {', '.join(names)} apart, which are prepared as one: no move begins there"
        )

    def _split_group(self, column: Ints) -> tuple[int, ...]:
        """The first group that a placement by op does not keep together, if any."""
        groups = self.problem.oracle.groups
        return next((ops for ops in groups if len(set(column[list(ops)].tolist())) > 1), ())

    def refuse(self, error: InputError | DeadlockError) -> Cost:
        """Count a placement that cannot be."""
        self.budget.count()
        self.best.refused, self.best.refusals = error, self.best.refusals + 1
        return IMPOSSIBLE

    def note(self, cost: Cost, placement: Callable[[], Ints]) -> None:
        """Count an evaluation, and keep its placement where it is the best so far."""
        self.budget.count()
        rank = rank_of(self.problem.oracle, cost)
        if rank < self.best.base_rank:
            self.best.base = placement().copy(), cost
            self.best.base_rank = rank
            self._keep(rank, cost, self.best.base[0])

    def try_strategy(self, strategy: Strategy) -> Cost:
        """The cost of a strategy that splits ops. Raises SpentError, and InputError for one that is
        malformed.
        """
        self.budget.require()
        cost = self.problem.whole(strategy)
        self.note_strategy(cost, lambda: strategy)
        return cost

    def note_strategy(self, cost: Cost, strategy: Callable[[], Strategy]) -> None:
        """Count an evaluation, and keep its strategy where it is the best so far."""
        self.budget.count()
        rank = rank_of(self.problem.whole, cost)
        if rank < self.best.rank:
            self._keep(rank, cost, strategy())

    def _keep(self, rank: Rank, cost: Cost, answer: Ints | Strategy) -> None:
        """Keep an answer where it is the best of all."""
        best, budget = self.best, self.budget
        if rank >= best.rank:
            return
        if isinstance(answer, Strategy):
            best.strategy = answer, cost
        else:
            best.placement = answer, cost
        # The point of the curve comes last: after an interrupt none is without its answer.
        best.rank = rank
        point = Point(budget.evaluations, budget.cpu_seconds, cost.step_ps, cost.memory_excess)
        best.points.append(point)

    def walk(self, placement: Ints, oracle: Oracle | None = None) -> Walk:
        """Local search from a placement that can be, over the groups of ``oracle`` (``whole``, or
        the problem's).

        Its start is counted, unless it is the best so far, which was evaluated before. Raises
        SpentError, and InputError or DeadlockError for a placement that cannot be.
        """
        return Walk(self, placement, oracle or self.problem.oracle)


class Walk:
    """A current placement and proposals to move one group, all counted by the trial."""

    def __init__(self, trial: Trial, placement: Ints, oracle: Oracle) -> None:
        column = oracle.placement(placement)
        bests = (trial.best.base, trial.best.placement)
        known = any(kept is not None and np.array_equal(kept[0], column) for kept in bests)
        if not known:
            trial.budget.require()
        self._trial, self._oracle, self._session = trial, oracle, oracle.session(column)
        self.where = [int(column[members[0]]) for members in oracle.groups]
        self._proposed = (0, 0)
        self.cost = self._session.cost
        if not known:
            trial.note(self.cost, lambda: self._session.placement)

    def propose(self, group: int, device: int) -> Cost:
        """The cost with one group on another device, IMPOSSIBLE where it cannot be there. Raises
        SpentError.
        """
        self._trial.budget.require()
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

    def improve(self, group: int, device: int) -> bool:
        """Move a group where that is strictly better; whether it was. Raises SpentError."""
        before = rank_of(self._oracle, self.cost)
        better = rank_of(self._oracle, self.propose(group, device)) < before
        if better:
            self.accept()
        return better


def alone(problem: SearchProblem) -> list[Ints]:
    """Everything on each device that can run everything (by group); of devices alike, on the
    first.
    """
    common = set.intersection(*(set(devices.tolist()) for devices in problem.choices))
    cluster, first = problem.oracle.cluster.devices, dict[str, int]()
    for d in sorted(common):
        first.setdefault(repr((cluster[d].kind, cluster[d].memory, cluster[d].gap)), d)
    return [np.full(len(problem.choices), device, np.int64) for device in first.values()]


def best_start(trial: Trial) -> Ints | None:
    """The best placement for walks to begin with, as devices by op, all of them evaluated; None
    where none can be.

    The given one, and everything on each device that can run everything. Where there is no such
    device, each group on the first on which it may stand; where nothing of these can be, random
    placements until one can.
    """
    devices, random = trial.problem.choices, trial.budget.random
    trial.score_start()
    for placement in alone(trial.problem):
        trial.score(placement)
    if trial.best.base is None:
        trial.score(np.array([able[0] for able in devices], np.int64))
    for _ in range(TRIES):
        if trial.best.base is not None:
            break
        trial.score(np.array([random.choice(able) for able in devices], np.int64))
    return None if trial.best.base is None else trial.best.base[0]
