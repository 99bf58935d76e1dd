"""A ``Trial`` is one search under way: its problem, its budget, and the best answer so far. Methods
of search are functions of a trial.

``search/run.py`` makes the trial of a search, ``search/chains.py`` one for each chain of a round
(several walks side by side in processes), and ``simdev/learn/pretraining.py`` one for each graph.
All methods of ``simdev/search`` and ``simdev/learn`` call the oracle through it, so this module
alone decides what counts as an evaluation. Answers are compared by ``rank_of``
(``search/space.py``).

A new field of ``Best`` belongs into ``_keep`` of ``search/chains.py``, too, which takes over the
``Best`` of a chain; a new field of ``Point`` into ``search/comparison/runs.py``, which writes
points to journals field by field. Guarded by ``tests/search/test_search.py``, and there
``test_methods.py`` (over all methods), ``test_search_chains.py`` and ``test_search_starts.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from hashlib import blake2b
from math import inf
from typing import Any, Self

import numpy as np

from ..ground.errors import DeadlockError, InputError
from ..nouns.strategy import Strategy, resolve_placement
from ..nouns.taskgraph import Bools, Ints
from ..oracle import Cost, Oracle
from .instance import Instance
from .policy import Learned, SavedPolicy
from .prepare import Grouped
from .space import IMPOSSIBLE, WORST, Rank, allowed, alone, choices, mean_ps, rank_of


class SpentError(Exception):
    """The budget is used up. Methods do not catch it: it ends them, and ``search`` takes the best
    so far.
    """


@dataclass(frozen=True, slots=True)
class Chaining:
    """The number of walks that go on side by side (chains.py), and of the processes that work on
    them.
    """

    count: int = 1
    n_jobs: int | None = 1


ALONE = Chaining()


class Budget:
    """The limits of a search (evaluations and seconds; None: no limit), how much of them is used,
    and the random numbers.

    The clock starts when the budget is made. ``progress`` is called with the evaluations so far.
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
        self._whole: Self | None = None  # the budget that this one is a part of
        self._progress, self._elsewhere = progress, 0.0
        self._began = time.perf_counter(), time.process_time()

    def part(self, share: float, most: int | None = None) -> Self:
        """The budget of a search within this one: a share of both limits, at most ``most``
        evaluations, and random numbers that begin anew from the same seed.

        Its evaluations count here too, and it ends where this budget is used up.
        """
        limits = [most] if most is not None else []
        limits += [int(share * self.limit)] if self.limit is not None else []
        seconds = None if self.seconds is None else share * self.seconds
        limit = max(min(limits), 1) if limits else None
        part = type(self)(limit, seconds, self.seed, lambda _: self.count())
        part._whole = self
        return part

    @property
    def wall_seconds(self) -> float:
        """Seconds since the search began."""
        return time.perf_counter() - self._began[0]

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds since the search began, with those of its worker processes."""
        return time.process_time() - self._began[1] + self._elsewhere

    def add_cpu_seconds(self, seconds: float) -> None:
        """Count CPU seconds that another process used for this search."""
        self._elsewhere += seconds

    @property
    def share(self) -> float:
        """The share of the budget used so far, from 0 to 1 (0 where there is no limit)."""
        evaluated = 0.0 if self.limit is None else self.evaluations / self.limit
        # A round of chains may be given no time at all, where the one before took it.
        passed = self.wall_seconds / self.seconds if self.seconds else float(self.seconds == 0)
        return min(max(evaluated, passed), 1.0)

    @property
    def seconds_left(self) -> float:
        """Seconds until the limit in time, 0 where it is over; inf where there is none."""
        return inf if self.seconds is None else max(self.seconds - self.wall_seconds, 0.0)

    def require_time(self) -> None:
        """Raises SpentError where the time is over. Placers call it between the steps of a plan."""
        if not self.seconds_left:
            raise SpentError

    def require(self) -> None:
        """Raises SpentError where no evaluation is left; the first one is always allowed."""
        if self._is_used_up or (self._whole is not None and self._whole._is_used_up):
            raise SpentError
        if self.evaluations:
            self.require_time()

    @property
    def _is_used_up(self) -> bool:
        """Whether the limit of evaluations, at least 1, is reached."""
        return self.limit is not None and self.evaluations >= max(self.limit, 1)

    def count(self, evaluations: int = 1) -> None:
        """Count further evaluations."""
        self.evaluations += evaluations
        if self._progress is not None:
            self._progress(self.evaluations)


REFUSED = (InputError, DeadlockError)  # raised by the oracle for an impossible placement
TRIES = 64  # random placements that are tried as a start, where no other one is possible; ours
NAMED = 3  # ops that a message names
PATIENCE = 20  # rounds in a row without a new placement, after which sampling ends; ours


@dataclass(frozen=True, eq=False)
class SearchProblem:
    """The problem of a method: the choice of a device for each *group* of ops.

    Ops of a group are placed together: ``search/prepare.py`` gathers groups; without it, they are
    the graph's colocation groups.

    ``oracle`` evaluates placements of these groups. ``whole`` is the oracle of the graph as it was
    given, whose groups may be smaller. ``grouped`` is the graph that list placers read. ``given``
    is the strategy of the question: the order, the synchronisation, perhaps a placement or splits.
    """

    oracle: Oracle
    grouped: Grouped
    whole: Oracle
    given: Strategy

    @cached_property
    def choices(self) -> tuple[Ints, ...]:
        """The devices that each group may go to. Raises InputError where a group has none."""
        return choices(self.oracle)

    @cached_property
    def allowed(self) -> Bools:
        """``choices`` as a table of booleans [G, D]."""
        return allowed(self.oracle)

    @cached_property
    def instance(self) -> Instance:
        """The grouped graph on the cluster, for list placers."""
        return Instance(self.oracle.prepared, self.grouped)

    @cached_property
    def start(self) -> Ints | None:
        """The placement of the given strategy (devices by op); None where it splits ops or is
        incomplete.
        """
        whole, given = self.whole, self.given
        if given.splits:
            return None
        try:
            return np.array(
                resolve_placement(whole.graph, whole.cluster, given.placement), np.int64
            )
        except InputError:  # it leaves ops without a device, as a pipeline does
            return None

    def by_group(self, column: Ints) -> tuple[Ints, bool]:
        """A placement by op turned into devices by group, and whether it has ops of one group on
        several devices.

        Such a group goes to the allowed device on which most of its time is spent, on a tie to the
        first. The time of an op is here its mean over all devices on which it is known.
        """
        times, split = mean_ps(self.oracle.prepared.duration), False
        row = np.empty(len(self.choices), np.int64)
        for group, (members, able) in enumerate(zip(self.oracle.groups, self.choices, strict=True)):
            here = column[list(members)]
            row[group] = here[0]
            if (here != here[0]).any():
                split = True
                spent = [times[list(members)][here == device].sum() for device in able]
                row[group] = able[int(np.argmax(spent))]
        return row, split


@dataclass(frozen=True, slots=True)
class Point:
    """An improvement: the step time and the bytes over capacity of a new best answer, and the
    evaluations and CPU seconds that were used by then.
    """

    evaluation: int
    cpu_seconds: float
    step_ps: int
    memory_excess: int


@dataclass(slots=True)
class Best:
    """The best answer so far, and further figures of the method.

    - ``placement`` (devices by op), or ``strategy`` from methods that split ops: the best answer
      with its cost, and ``rank`` of the better of the two.
    - ``base``: the best placement that walks may begin at, with its cost, and ``base_rank``. It
      differs from ``placement`` where that splits a group of the preparation (``score_start``).
    - ``points``: the improvements.
    - ``refusals``: the number of impossible placements, and ``refused`` the last error.
    - ``objectives`` (name to number) and ``details``: figures of the method.
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


AUTO, RANDOM = "auto", "random"
SHARE = 0.2  # of the budget that a warm start may use; ours


@dataclass(frozen=True, slots=True, eq=False)
class Learning:
    """The checked options of a learner, and the placement that it begins with.

    - ``settings``: an instance of its class of settings.
    - ``policy``: the saved policy to begin with. ``train``: whether it learns, or is evaluated
      only.
    - ``n_jobs``: the number of processes that may work (workers.py).
    - ``start``: the name of the start that the caller wants (AUTO, RANDOM, or a method), and the
      ``share`` of the budget that it may use.
    - ``warm``: the placement to imitate first (devices by group of the problem's oracle; already
      scored), None to begin at random or with a policy; ``beginning``: its name.
    """

    settings: Any = None
    policy: SavedPolicy | None = None
    train: bool = True
    n_jobs: int | None = 1
    start: str = RANDOM
    share: float = SHARE
    warm: Ints | None = None
    beginning: str = RANDOM

    def provenance(self) -> dict[str, Any]:
        """The options as the provenance of a result has them."""
        warm = self.start if self.policy is None else "policy"
        return {"settings": asdict(self.settings), "warm": warm, "train": self.train}


class Trial:
    """A search under way, as a method receives it. The method evaluates by ``score``,
    ``score_once``, ``walk`` or ``try_strategy``, which count, keep the best, and raise SpentError
    where the budget is used up.

    Placements are devices by group of the problem's oracle, or by op. An impossible one costs
    IMPOSSIBLE. ``outer`` is the trial that this one is a part of: the best of this trial is kept
    there too. A learner reads ``learning``, and sets ``policy`` once it has begun.
    """

    def __init__(self, problem: SearchProblem, budget: Budget, outer: Trial | None = None) -> None:
        self.problem, self.budget, self.best, self._outer = problem, budget, Best(), outer
        self.learning, self.chaining = Learning(), ALONE
        self.policy: Learned | None = None
        self._known: dict[bytes, Cost] = {}

    def score(self, placement: Ints) -> Cost:
        """The cost of a placement; IMPOSSIBLE where the oracle refuses it.

        Raises SpentError before it evaluates, and InputError for a malformed placement: of a wrong
        length, with unknown devices, or with groups split.
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

    def score_once(self, placement: Ints) -> Cost:
        """The cost of a placement; a placement that was scored before is remembered and not counted
        again.

        Raises SpentError where the budget is used up, even for a remembered placement: there is
        nothing left to find.
        """
        self.budget.require()
        column = self.problem.oracle.placement(placement)
        name = _digest(column)
        if name not in self._known:
            self._known[name] = self.score(column)
        return self._known[name]

    def score_batch(self, placements: Ints, n_jobs: int = 1) -> list[Cost]:
        """``score_once`` of each of ``placements`` [n, group] in turn, with the new ones evaluated
        by ``n_jobs`` threads (-1: one per core). The answers do not depend on ``n_jobs``.

        Raises SpentError where the budget does not allow all of them; the allowed ones are kept.
        """
        oracle, budget = self.problem.oracle, self.budget
        columns = {_digest(column): column for column in map(oracle.placement, placements)}
        left = len(columns) if budget.limit is None else max(budget.limit - budget.evaluations, 0)
        new = [name for name in columns if name not in self._known][:left]
        try:
            costs = oracle.batch([columns[name] for name in new], n_jobs) if n_jobs != 1 else []
        except REFUSED:  # some are impossible; score_once below finds out which
            costs = []
        for name, cost in zip(new, costs, strict=False):
            budget.require()
            self._known[name] = cost
            self.note(cost, partial(columns.__getitem__, name))
        return [self.score_once(placement) for placement in placements]

    @property
    def distinct(self) -> int:
        """The number of different placements that ``score_once`` has seen."""
        return len(self._known)

    def adopt(self, column: Ints, cost: Cost) -> None:
        """Take over a placement (devices by op, no group split) that was already evaluated and
        counted (by an inner trial, by ``score``), as if ``score_once`` had scored it.
        """
        self._known[_digest(column)] = cost
        rank = rank_of(self.problem.oracle, cost)
        if rank < self.best.base_rank:
            self.best.base, self.best.base_rank = (column.copy(), cost), rank

    def score_start(self) -> None:
        """Score the given placement, where there is one.

        It may split a group of the preparation over several devices. It is scored and kept even
        then, but walks cannot begin there, and ``details`` says so. Raises SpentError.
        """
        start, whole = self.problem.start, self.problem.whole
        if start is None:
            return
        split = self._split_group(start)
        if not split:
            self.score_once(start)
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
        """The ops of the first group that a placement by op splits; empty where it splits none."""
        groups = self.problem.oracle.groups
        return next((ops for ops in groups if len(set(column[list(ops)].tolist())) > 1), ())

    def refuse(self, error: InputError | DeadlockError) -> Cost:
        """Count an impossible placement."""
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

    def useful(self, limit: float | None, rank: Rank | None = None) -> float | None:
        """The seconds beyond which an evaluation need not be simulated to its end: the placement
        would neither be accepted by a walk (up to ``limit``) nor be the best so far.

        ``rank`` is the rank of the best so far (None: of the best placement). Returns None where
        every step time matters: where ``limit`` is None, or the best so far does not fit, so that a
        slower answer that fits would be better.
        """
        excess, over, step_ps = rank or self.best.base_rank
        return None if limit is None or excess or over else max(limit, step_ps / 1e12)

    def try_strategy(self, strategy: Strategy) -> Cost:
        """The cost of a strategy that splits ops. Raises SpentError, and InputError for a malformed
        strategy.
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
        """Keep an answer where it is the best so far, here and in the outer trial."""
        if self._outer is not None:
            self._outer._keep(rank, cost, answer)
        best, budget = self.best, self.budget
        if rank >= best.rank:
            return
        if isinstance(answer, Strategy):
            best.strategy = answer, cost
        else:
            best.placement = answer, cost
        # The point is added last, so that after an interrupt every point has its answer.
        best.rank = rank
        point = Point(budget.evaluations, budget.cpu_seconds, cost.step_ps, cost.memory_excess)
        best.points.append(point)

    def walk(self, placement: Ints, oracle: Oracle | None = None, known: bool = False) -> Walk:
        """A local search from a possible placement, over the groups of ``oracle`` (``whole``, or
        the problem's).

        Its start is counted, unless it was evaluated before (``known``, or the best so far). Raises
        SpentError, and InputError or DeadlockError for an impossible placement.
        """
        return Walk(self, placement, oracle or self.problem.oracle, known)


def _digest(column: Ints) -> bytes:
    """The key under which a placement is remembered: short, where the placement may be long."""
    return blake2b(column.tobytes(), digest_size=16).digest()


class Walk:
    """A current placement, and proposals to move one group, or several groups from one device to
    another. The trial counts all proposals.
    """

    def __init__(self, trial: Trial, placement: Ints, oracle: Oracle, known: bool) -> None:
        column = oracle.placement(placement)
        bests = (trial.best.base, trial.best.placement)
        known |= any(kept is not None and np.array_equal(kept[0], column) for kept in bests)
        if not known:
            trial.budget.require()
        self._trial, self._oracle, self._session = trial, oracle, oracle.session(column)
        self.where = [int(column[members[0]]) for members in oracle.groups]
        self._proposed: tuple[list[int], int] = [], 0
        self.cost = self._session.cost
        if not known:
            trial.note(self.cost, lambda: self._session.placement)

    def propose(self, groups: int | Ints, device: int) -> Cost:
        """The cost with one group (or several of one device) moved to another device; IMPOSSIBLE
        where they cannot go there. Raises SpentError.
        """
        cost = self.propose_within(groups, device, None)
        assert cost is not None  # nothing exceeds no limit
        return cost

    def propose_within(self, groups: int | Ints, device: int, limit: float | None) -> Cost | None:
        """``propose`` for a caller that does not accept a step of more than ``limit`` seconds.
        Returns None where the step takes longer and is not the best so far either: it was then not
        simulated to its end, but counts as an evaluation. Raises SpentError.
        """
        self._trial.budget.require()
        try:
            cost = self._session.propose(groups, device, self._trial.useful(limit))
        except REFUSED as error:
            return self._trial.refuse(error)
        if cost is None:
            self._trial.budget.count()
            return None
        self._proposed = [groups] if isinstance(groups, int) else groups.tolist(), device
        self._trial.note(cost, self._moved)
        return cost

    def _moved(self) -> Ints:
        column, (groups, device) = self._session.placement, self._proposed
        for group in groups:
            column[list(self._oracle.groups[group])] = device
        return column

    def accept(self) -> None:
        """Make the proposal the current placement."""
        groups, device = self._proposed
        self.cost = self._session.accept()
        for group in groups:
            self.where[group] = device

    def improve(self, group: int, device: int) -> bool:
        """Move a group where that is strictly better; returns whether it was moved. Raises
        SpentError.
        """
        before = rank_of(self._oracle, self.cost)
        cost = self.propose_within(group, device, self.cost.seconds if self.cost.feasible else None)
        better = cost is not None and rank_of(self._oracle, cost) < before
        if better:
            self.accept()
        return better


def best_start(trial: Trial) -> Ints | None:
    """The best placement for walks to begin with, as devices by op; None where none is possible.
    All candidates are evaluated.

    Candidates: the given placement, and all groups on each device that can run them all. Where none
    is possible, each group on the first device that it may go to; then random placements until one
    is possible.
    """
    devices, random = trial.problem.choices, trial.budget.random
    trial.score_start()
    for placement in alone(trial.problem.oracle, devices):
        trial.score_once(placement)
    if trial.best.base is None:
        trial.score(np.array([able[0] for able in devices], np.int64))
    for _ in range(TRIES):
        if trial.best.base is not None:
            break
        trial.score(np.array([random.choice(able) for able in devices], np.int64))
    return None if trial.best.base is None else trial.best.base[0]


def rounds(*trials: Trial) -> Iterator[None]:
    """Rounds of samples, until PATIENCE rounds in a row have brought no new placement."""
    idle = 0
    while idle < PATIENCE:
        before = sum(trial.distinct for trial in trials)
        yield
        idle = 0 if sum(trial.distinct for trial in trials) > before else idle + 1
