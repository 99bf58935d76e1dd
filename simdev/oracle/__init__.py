"""The cost oracle: a graph on a cluster, prepared once and scored for many strategies.

There are four ways, which give the same integers. The kernels of ``placements`` score a placement,
as a column of device indices. A strategy with many equal replicas is scored by simulating a few of
them. The kernels of ``splits`` score other strategies that split ops. All else is lowered and
simulated.

Searches, learners, the server and the package's top level call the oracle. A rule of timing that
the kernels apply has a second implementation here, beside ``lowering`` and the engines: transfers
and hosts in ``heap.py`` and ``cluster.py``, the rest in ``placements`` and ``splits``. Questions
with a rule that the kernels lack must be refused and are then lowered: ``cluster.is_covered``
refuses a cluster, ``_runs_once`` or ``splits.evaluator.require_covered`` a strategy.
``tests/oracle`` compares the ways.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from importlib.util import find_spec
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeGuard, overload

import numpy as np
from numpy.typing import NDArray

from ..costs import CostModel
from ..execution.period import STEPS, follow_one_another, simulate_strategy
from ..execution.scenario import Scenario, graph_of
from ..ground.errors import InputError
from ..ground.units import Number
from ..lowering import Prepared, expanded, rows_of
from ..lowering.symmetry.quotient import Quotient, quotient_of
from ..nouns.cluster import Cluster
from ..nouns.graph import Graph
from ..nouns.memory import MemoryModel
from ..nouns.scale import LIMIT, parse_limit, scale_of
from ..nouns.strategy import (
    SHORT_FORMS,
    Collectives,
    Order,
    Strategy,
    Sync,
    default_sync,
    resolve_placement,
)
from ..nouns.structure import unit_of, units
from ..nouns.taskgraph import Ints
from ..nouns.trace import Trace
from .cost import (
    EXCEEDING,
    Answers,
    Cost,
    Members,
    Meter,
    Starts,
    check_limit,
    cost_of,
    limit_ps_of,
    limits_of,
)
from .session import PlacementSession, SplitSession

if TYPE_CHECKING:
    from .placements.evaluator import PlacementEvaluator
    from .splits.evaluator import SplitEvaluator, SplitStrategy

INT64 = np.dtype(np.int64)
Placement = Mapping[str, str] | NDArray[np.integer[Any]] | Sequence[int]

SHARDS = 200_000
"""Number of parts below which lowering takes seconds, whatever the strategy."""


def _engine() -> str:
    """The engine for lowered strategies: a search simulates often, so compiling pays."""
    return "simpy" if find_spec("numba") is None else "compiled"


def _key(column: Ints, order: Order) -> bytes:
    """The key of a placement in the cache."""
    return order.policy.encode() + column.tobytes()


CACHE_BYTES = 2**28  # most bytes of remembered answers


class Oracle:
    """Scores strategies of one graph on one cluster. Picklable; safe to call from several threads.

    A strategy is a Strategy, the name of a short form, a placement by name, or device indices: one
    for each op, or one for each group (see ``groups``). ``order``, ``sync``, ``collectives`` and
    ``accumulate`` apply to all of these but a Strategy, which has its own (``under``). ``cache`` is
    the number of answers to remember (fewer where these would take more than CACHE_BYTES);
    ``memory`` is how memory is counted; ``steps`` is "once", or "repeated": steps follow one
    another, and their period is the step time; ``symmetry``: whether a few of many equal replicas
    are simulated in place of all; ``longest``: a strategy that splits ops and whose estimated run
    time is longer is refused (simdev.nouns.scale). An infeasible strategy has a Cost; a malformed
    one raises InputError (MissingCostError, DeadlockError).
    """

    def __init__(
        self,
        graph: Graph,
        cluster: Cluster,
        costs: CostModel = CostModel(),
        order: Order = Order(),
        cache: int = 10_000,
        memory: MemoryModel = MemoryModel(),
        sync: str | Sync = "",
        collectives: Collectives = Collectives(),
        accumulate: int = 1,
        steps: str = STEPS[0],
        symmetry: bool = True,
        longest: Number = LIMIT,
    ) -> None:
        self.graph, self.cluster, self.costs, self.memory = graph, cluster, costs, memory
        self.under = Strategy(
            order=order, sync=sync, collectives=collectives, accumulate=accumulate
        )
        self.steps, self._sync, self.symmetry, self.longest = steps, sync, symmetry, longest
        # Bytes of an answer: the placement (kept twice until the peaks are read), the peaks, and
        # the rest.
        answer_bytes = 9 * len(graph.ops) + 40 * len(cluster.devices) + 700
        self._cache_size = max(min(cache, CACHE_BYTES // answer_bytes), 0)
        self.__setstate__({"_counted": (0, 0.0)})

    def on(self, graph: Graph, cache: int = 10_000) -> Oracle:
        """An oracle of another graph with the options of this one and an empty cache."""
        under = self.under
        nouns = graph, self.cluster, self.costs, under.order, cache, self.memory, self._sync
        return Oracle(
            *nouns, under.collectives, under.accumulate, self.steps, self.symmetry, self.longest
        )

    def __getstate__(self) -> dict[str, Any]:
        # Comparisons identify a question by a hash of these (``search.comparison.runs``).
        names = "graph", "cluster", "costs", "memory", "under", "steps", "symmetry", "_sync"
        counted = {"_counted": (self.evaluations, self.cpu_seconds)}
        return {name: getattr(self, name) for name in (*names, "longest", "_cache_size")} | counted

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._meter = Meter(*state.pop("_counted"))
        vars(self).update(state)
        self.prepared = Prepared(self.graph, self.cluster, self.costs, self.memory)
        self._cache = Answers(self._cache_size)
        self._evaluators: dict[str, PlacementEvaluator | None] = {}
        self._longest = parse_limit(self.longest)
        # The last strategy that splits ops, with its cost by a few replicas.
        self._replicated: tuple[Strategy, Cost | None] | None = None

    @property
    def evaluations(self) -> int:
        """The number of strategies scored."""
        return self._meter.evaluations

    @property
    def cpu_seconds(self) -> float:
        """The estimated CPU seconds of all evaluations, not all of which are clocked."""
        return self._meter.cpu_seconds

    @property
    def order(self) -> Order:
        """The order of queues for placements and short forms."""
        return self.under.order

    @cached_property
    def _plain(self) -> bool:
        """Whether the kernels of placements know the oracle's own options (``under``)."""
        return self._runs_plainly(self.under)

    def _runs_plainly(self, strategy: Strategy) -> bool:
        """Whether the kernels of placements know a strategy: a single step of one microbatch, whose
        collectives are the prepared ones.
        """
        collectives = self.prepared.running(strategy.collectives)
        return collectives is self.prepared and self._runs_once(strategy)

    def _runs_once(self, strategy: Strategy) -> bool:
        """Whether a strategy is a single step of one microbatch: compiled paths know no other."""
        single = strategy.accumulate == 1 and strategy.pipeline is None and strategy.loader is None
        return single and not follow_one_another(strategy, self.steps)

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The units of placement, ordered by their first op: the op positions of each colocation
        group, and of each op without a group.
        """
        return units(self.graph)

    @cached_property
    def _members(self) -> Members:
        return Members(self.groups)

    @cached_property
    def _group_of(self) -> Ints:
        return np.array(unit_of(self.graph), np.int64)

    def evaluator(self, policy: str) -> PlacementEvaluator | None:
        """The compiled path of placements under an order's policy, where it applies and numba is
        installed.
        """
        if policy not in self._evaluators:
            compiled = None
            if find_spec("numba") is not None:
                from .placements.evaluator import evaluator_of

                compiled = evaluator_of(
                    self.prepared, policy, lambda column: self._by_lowering(column, Order(policy))
                )
            self._evaluators[policy] = compiled
        return self._evaluators[policy]

    @cached_property
    def _splits(self) -> SplitEvaluator | None:
        """The compiled path of strategies that split ops, where numba is installed."""
        if find_spec("numba") is None:
            return None
        from .splits.evaluator import SplitEvaluator

        return SplitEvaluator(self.prepared)

    def _start_of(self, strategy: Strategy) -> SplitStrategy | None:
        """A strategy (no short form) on the compiled path of splits; None where this path does not
        cover it, or it splits no op.
        """
        splits = self._splits if strategy.splits and self._runs_once(strategy) else None
        return None if splits is None else splits.start(strategy)

    def placement(self, placement: Placement) -> Ints:
        """The device index of each op, from a placement by name, by op or by group.

        Raises InputError for wrong lengths; for a placement by name also for unknown devices and
        for groups on several devices.
        """
        if self._is_column(placement):  # searches pass these
            return placement
        if isinstance(placement, Mapping):
            return self._named_column(placement)
        try:
            column = np.asarray(placement)
        except ValueError:  # rows of different lengths
            raise InputError("placement: must be one row of whole numbers") from None
        if column.ndim != 1 or (column.size and column.dtype.kind not in "iu"):
            raise InputError(
                f"placement: must be one row of whole numbers, got {column.dtype} of shape "
                f"{column.shape}"
            )
        ops, groups = len(self.graph.ops), len(self.groups)
        if len(column) not in (ops, groups):
            raise InputError(f"placement: must have {ops} devices (ops) or {groups} (groups)")
        # Kernels are compiled for this kind of array alone.
        column = np.require(column, np.int64, ("C", "A", "W"))
        return column if len(column) == ops else column[self._group_of]

    def _is_column(self, placement: Strategy | Placement | str) -> TypeGuard[Ints]:
        """Whether kernels can read a placement without conversion."""
        return (
            type(placement) is np.ndarray
            and placement.dtype is INT64  # types that are only equal are converted first
            and placement.shape == (len(self.graph.ops),)
            and placement.flags.carray
        )

    def _named_column(self, placement: Mapping[str, str]) -> Ints:
        for name, device in placement.items():
            if not isinstance(name, str) or not isinstance(device, str):
                raise InputError(f"placement[{name!r}]: must map a name to a name, got {device!r}")
        return np.array(resolve_placement(self.graph, self.cluster, placement), np.int64)

    @overload
    def __call__(self, strategy: Strategy | Placement | str, limit: None = None) -> Cost: ...

    @overload
    def __call__(
        self, strategy: Strategy | Placement | str, limit: float | None
    ) -> Cost | None: ...

    def __call__(
        self, strategy: Strategy | Placement | str, limit: float | None = None
    ) -> Cost | None:
        """The cost of a strategy; a text is the name of a short form. None where its ``seconds``
        would exceed ``limit``: the kernels of placements then stop early, while a Strategy is
        always simulated to its end.
        """
        if limit is not None:
            check_limit(limit)
        begun = self._meter.begin()
        if isinstance(strategy, (str, Strategy)) or not self._plain:
            cost = self._of_strategy(self.strategy(strategy))
        else:
            cost = self._of_placement(self.placement(strategy), self.under.order, limit)
        self._meter.end(begun)
        return None if limit is not None and cost.exceeds(limit) else cost

    def step_ps(self, placement: Placement) -> int:
        """The step time in ps, without memory, which is faster. Not counted, not cached."""
        column = self.placement(placement)
        compiled = self.evaluator(self.under.order.policy) if self._plain else None
        step_ps = None if compiled is None else compiled.step_ps(column)
        return self.in_full(self.strategy(column)).step_ps if step_ps is None else step_ps

    def starts(self, placement: Placement) -> Starts:
        """The cost of a placement with the start of every op and group; counted as an evaluation.

        Kernels record starts anyway, so this takes as long as ``__call__`` for a new placement.
        Where no kernel applies (priorities and fixed sequences, steps that are repeated or
        synchronised by a policy, microbatches, collectives, shared links, memory that is not
        counted in full, a step too long for the kernels, no Numba) the starts are read from
        ``trace``, which takes hundreds of times longer. Costs are remembered, starts are not: every
        call evaluates. Raises as ``__call__`` does.
        """
        begun, column, order = self._meter.begin(), self.placement(placement), self.under.order
        compiled = self.evaluator(order.policy) if self._plain else None
        answer = None if compiled is None else compiled.cost_with_starts(column)
        cost, op_ps = answer or self._traced_starts(self.strategy(column))
        if self._plain:
            self._cache.keep(_key(column, order), cost)
        self._meter.end(begun)
        return Starts(cost, op_ps, self._members.least(op_ps))

    def _traced_starts(self, strategy: Strategy) -> tuple[Cost, Ints]:
        trace = self.trace(strategy)
        rows = rows_of(self.prepared, strategy)
        return cost_of(trace), np.minimum.reduceat(trace.start[rows.ids], rows.ptr[:-1])

    def _of_replicas(self, strategy: Strategy) -> Cost | None:
        """The cost of a strategy, equal to that of the full simulation, from a few of its replicas;
        None where replicas are few or differ.

        Raises InputError (where there are no such replicas and the estimated run time exceeds
        ``longest``), MissingCostError.
        """
        quotient = quotient_of(self.prepared, strategy) if self.symmetry else None
        if isinstance(quotient, Quotient):
            there = quotient.prepared, quotient.strategy
            few = cost_of(simulate_strategy(*there, _engine(), self.steps)[0])
            return replace(few, peaks=tuple(np.take(few.peaks, quotient.symmetry.stands).tolist()))
        # Counting the parts takes too long for small strategies; ops x devices is an upper bound.
        if len(self.graph.ops) * len(self.cluster.devices) >= SHARDS:
            scale = scale_of(self.graph, self.cluster, strategy, self.steps == "repeated")
            scale.require(self._longest)
        return None

    def _of_strategy(self, strategy: Strategy) -> Cost:
        cost = None
        if strategy.splits:
            last = self._replicated  # read once: another thread may replace it
            if last is None or last[0] != strategy:
                last = self._replicated = strategy, self._of_replicas(strategy)
            cost = last[1]
        if cost is not None or not self._runs_once(strategy):
            pass
        elif strategy.splits:
            if self._splits is not None and strategy.collectives.slowdown == 1:
                cost = self._splits.cost(expanded(self.graph, self.cluster, strategy, self.costs))
        elif strategy.order.policy in ("fifo", "program") and self._runs_plainly(strategy):
            cost = self._of_placement(self.placement(strategy.placement), strategy.order)
        return self.in_full(strategy) if cost is None else cost

    def in_full(self, strategy: Strategy, limit: float | None = None) -> Cost:
        """The cost by lowering and an engine, even where a compiled path applies; EXCEEDING where
        the step takes more than ``limit`` seconds.

        Not counted, not cached.
        """
        return cost_of(self.trace(strategy), limit)

    def _of_placement(self, column: Ints, order: Order, limit: float | None = None) -> Cost:
        """The cost of a placement (device indices by op); EXCEEDING where it was seen to exceed the
        limit. ``order`` is fifo, program or the oracle's order: the cache's keys hold no other.
        """
        key = _key(column, order) if self._cache.most else b""
        cost = self._cache.known(key) if key else None
        if cost is None:
            compiled = self.evaluator(order.policy)
            cost = None if compiled is None else compiled.cost(column, limit_ps_of(limit))
            cost = cost or self._by_lowering(column, order)
            if key and cost is not EXCEEDING:
                self._cache.keep(key, cost)
        return cost

    def _by_lowering(self, column: Ints, order: Order) -> Cost:
        return self.in_full(Strategy(self.named(column), order))

    def strategy(self, strategy: Strategy | Placement | str) -> Strategy:
        """Convert anything that can be scored to a Strategy; placements and short forms get the
        oracle's order, synchronisation and collectives. Raises InputError.
        """
        if isinstance(strategy, Strategy):
            return strategy
        if not isinstance(strategy, str):
            return replace(self.under, placement=self.named(strategy))
        if strategy not in SHORT_FORMS:
            forms = ", ".join(SHORT_FORMS)
            raise InputError(
                f"placement: must be whole numbers, names, or a short form ({forms}), got "
                f'"{strategy[:40]}"'
            )
        return replace(self.under, short=strategy, sync=self._sync)

    def named(self, placement: Placement) -> dict[str, str]:
        """The placement as device names by op name. Raises InputError for an unknown device."""
        column = self.placement(placement).tolist()
        ops, names = self.graph.ops, [device.name for device in self.cluster.devices]
        problems = [
            f'placement[{i}]: device {device} of "{ops[i].name}" is not in 0..{len(names) - 1}'
            for i, device in enumerate(column)
            if not 0 <= device < len(names)
        ]
        if problems:
            raise InputError(problems)
        return {op.name: names[device] for op, device in zip(ops, column, strict=True)}

    def trace(self, strategy: Strategy | Placement | str) -> Trace:
        """The trace of a strategy: every start and finish, and memory over time. Where steps follow
        one another it has several, as many as it takes until they repeat.
        """
        there = self.prepared, self.strategy(strategy)
        return simulate_strategy(*there, _engine(), self.steps)[0]

    def batch(
        self, strategies: Iterable[Strategy | Placement | str], n_jobs: int = -1
    ) -> list[Cost]:
        """The costs of many strategies, on ``n_jobs`` threads (-1: as many as cores).

        Kernels run without the GIL, several placements in a call.
        """
        jobs = (os.cpu_count() or 1) if n_jobs < 0 else max(n_jobs, 1)
        strategies = list(strategies)
        if jobs == 1 or len(strategies) < 2:
            return self._each(strategies)
        # Four parts for each thread: cheap, and no thread waits long for the slowest part.
        size = -(-len(strategies) // (4 * jobs))
        parts = [strategies[at : at + size] for at in range(0, len(strategies), size)]
        with ThreadPoolExecutor(jobs) as pool:
            return list(chain.from_iterable(pool.map(self._each, parts)))

    def _each(self, strategies: Sequence[Strategy | Placement | str]) -> list[Cost]:
        """The costs of some strategies on this thread; placements share calls of a kernel."""
        compiled = self.evaluator(self.order.policy) if self._plain else None
        columns = [row for row in strategies if self._is_column(row)]
        if compiled is None or len(columns) < len(strategies):
            return list(map(self, strategies))
        begun, order = time.thread_time(), self.order
        known: list[Cost | None] = [None] * len(columns)
        if self._cache.most:
            keys = [_key(column, order) for column in columns]
            known = list(map(self._cache.known, keys))
        new = [column for column, cost in zip(columns, known, strict=True) if cost is None]
        answers = (
            cost or self._by_lowering(column, order)
            for column, cost in zip(new, compiled.costs(new), strict=True)
        )
        costs = [next(answers) if cost is None else cost for cost in known]
        if self._cache.most:
            for key, cost in zip(keys, costs, strict=True):
                self._cache.keep(key, cost)
        self._meter.end_several(begun, len(columns))
        return costs

    @overload
    def session(self, start: Strategy | str) -> SplitSession: ...

    @overload
    def session(self, start: Placement) -> PlacementSession: ...

    def session(self, start: Strategy | Placement | str) -> SplitSession | PlacementSession:
        """A session of local search: from a placement, moving ops between devices; from a
        strategy, changing how ops are split.
        """
        if isinstance(start, (str, Strategy)):
            start = self.strategy(start)
            return SplitSession(self.prepared, start, self._start_of, self.in_full)
        policy, limited = self.order.policy, bool(limits_of(self.cluster))
        simple = self._plain and (policy == "fifo" or (bool(self.cluster.hosted) and not limited))
        compiled = self.evaluator(policy) if simple else None
        column = self.placement(start)
        return PlacementSession(self.graph, self.cluster, column, self, compiled, limited)

    def __repr__(self) -> str:
        return f"Oracle({self.graph!r}, {self.cluster!r}, {self.evaluations} evaluations)"


def oracle_of(scenario: Scenario, cache: int = 10_000) -> Oracle:
    """The oracle of a scenario.

    Placements and short forms get the order, the synchronisation, the collectives and the number of
    microbatches (also a pipeline's) of the scenario's strategy; only where ops run is theirs.
    Disturbances are left out. Raises InputError for a large model, which has no ops.
    """
    strategy, pipeline = scenario.strategy, scenario.strategy.pipeline
    return Oracle(
        graph_of(scenario),
        scenario.cluster,
        scenario.costs,
        strategy.order,
        cache,
        scenario.memory,
        "" if strategy.sync == default_sync(strategy.short) else strategy.sync,
        strategy.collectives,
        strategy.accumulate if pipeline is None else pipeline.microbatches,
        scenario.steps,
        scenario.symmetry,
        scenario.limit,
    )


__all__ = ["Cost", "Oracle", "Placement", "Starts", "cost_of", "oracle_of"]
