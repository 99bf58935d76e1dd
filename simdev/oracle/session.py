"""Sessions of local search: a current strategy with its cost, and proposals to change it.

``Oracle.session`` makes them, for ``search.trial`` (placements), ``search.soap.flexflow`` (splits)
and the server. ``PlacementSession`` decides when snapshots of a placement pay;
``placements/moves.py`` has their contents. ``splits/program.py`` finds all that a change affects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import numpy as np

from ..ground.errors import InputError
from ..lowering import Prepared, without_short, written_out
from ..nouns.cluster import Cluster
from ..nouns.graph import Graph
from ..nouns.strategy import Configuration, Resolved, Resolver, Strategy
from ..nouns.structure import unit_of, units
from ..nouns.taskgraph import Ints
from .cost import EXCEEDING, WORSE, Cost, check_limit, limit_ps_of, limits_of

if TYPE_CHECKING:  # importing them imports numba
    from .placements.evaluator import PlacementEvaluator
    from .splits.evaluator import SplitStrategy

P = TypeVar("P")


class Session(Generic[P]):
    """The current point of a search, whose cost is ``cost``, with at most one proposal (type P)."""

    cost: Cost
    _proposed: P | None = None

    def reject(self) -> None:
        """Forget the last proposal. Raises InputError where there is none."""
        self._last()
        self._drop()

    def _drop(self) -> None:
        """Forget the last proposal, if there is one."""
        self._proposed = None

    def _last(self) -> P:
        if self._proposed is None:
            raise InputError("session: nothing is proposed")
        return self._proposed


# Placements.

Units = str | int | np.integer[Any] | Ints | Sequence[str | int]
"""One or several ops or groups, each as a name or a row of ``PlacementSession.groups``."""
MEMORY = 32  # proposals over which the share of accepted ones is averaged
# Snapshots of a placement pay where several moves are proposed from it: the session stops making
# them where the share of accepted proposals exceeds SEVERAL, and starts again below FEW.
FEW, SEVERAL = 0.12, 0.2


class PlacementSession(Session[tuple[Ints, int, Cost]]):
    """A current placement, and proposals to move one op or group; not for several threads at once.

    ``cost`` is that of the current placement. Costs of proposals are exact. An ``evaluator``
    computes step times, by re-simulating only what a move can change (moves.py) or from the start;
    without one, ``evaluate`` computes the cost from device indices by op. The evaluator ignores
    memory: where no device has a capacity, every placement fits, and ``peaks`` is empty. Where some
    device has one (``limited``), the evaluator only rejects moves that exceed a limit, and
    ``evaluate`` computes the other costs. Raises InputError for a graph without ops.
    """

    def __init__(
        self,
        graph: Graph,
        cluster: Cluster,
        placement: Ints,
        evaluate: Callable[[Ints, float | None], Cost | None],
        evaluator: PlacementEvaluator | None,
        limited: bool = False,
    ) -> None:
        if not graph.ops:
            raise InputError("graph: there is nothing to place")
        self.cluster, self.groups = cluster, units(graph)
        self._placement, self._evaluate, self._evaluator = placement.copy(), evaluate, evaluator
        self._limited, self._moves = limited, None if evaluator is None else evaluator.moves()
        self._has_base = self._replayed = self._in_haste = False
        self._accepted = 0.0  # the share of late proposals that were accepted
        rows = unit_of(graph)
        self._rows = {op.name: row for op, row in zip(graph.ops, rows, strict=True)}
        self._rows |= {name: rows[members[0]] for name, members in graph.groups.items()}
        self._members = [np.array(members, np.int64) for members in self.groups]
        cost = None if limited else self._rebase()
        cost = cost or self._whole(None)
        assert cost is not None  # nothing exceeds no limit
        self.cost = cost

    @property
    def placement(self) -> Ints:
        """Device indices by op of the current placement (a copy)."""
        return self._placement.copy()

    @overload
    def propose(self, units: Units, device: str | int, limit: None = None) -> Cost: ...

    @overload
    def propose(self, units: Units, device: str | int, limit: float | None) -> Cost | None: ...

    def propose(self, units: Units, device: str | int, limit: float | None = None) -> Cost | None:
        """The cost with one op or group (a name, or a row of ``groups``) on another device; None,
        often found long before the end of the simulation, where ``cost.seconds`` would exceed
        ``limit``. Several units may be moved together where they are on one device.

        An op in a colocation group takes its group along. A move that exceeds the limit cannot be
        accepted. Raises InputError for unknown units or devices, and for invalid placements.
        """
        if limit is not None:
            check_limit(limit)
        members, index = self._members_of(units), self._device(device)
        step_ps, self._proposed = self._step_ps(members, index, limit), None
        if step_ps == WORSE:
            return None
        cost = None if step_ps is None else Cost.fitting(step_ps)
        if cost is None or (self._limited and not cost.exceeds(limit)):
            cost = self._in_full(members, index, limit)
        if cost is None or cost.exceeds(limit):
            return None
        self._proposed = (members, index, cost)
        return cost

    def _step_ps(self, members: Ints, device: int, limit: float | None) -> int | None:
        """The step time of a move from snapshots, or WORSE; None where there are none."""
        self._replayed = False
        self._accepted -= self._accepted / MEMORY
        if self._moves is None or (self._limited and limit is None):
            return None
        self._in_haste = self._accepted > (FEW if self._in_haste else SEVERAL)
        if self._in_haste:
            return None
        if not self._has_base and self._rebase() is None:
            return None
        step_ps = self._moves.step_ps(self._placement, members, device, limit_ps_of(limit))
        self._replayed = step_ps is not None
        return step_ps

    def _members_of(self, units: Units) -> Ints:
        """The ops of the units, each once. Raises InputError where they are on several devices."""
        if isinstance(units, (str, int, np.integer)):
            return self._members[self._row(units)]
        if isinstance(units, np.ndarray):
            if units.ndim != 1 or units.dtype.kind not in "iu":
                raise InputError(
                    f"session: units must be one row of whole numbers, got {units.dtype} of shape "
                    f"{units.shape}"
                )
            rows = list(dict.fromkeys(units.tolist()))
            for extreme in {min(rows, default=0), max(rows, default=0)}:  # checks all rows
                self._row(extreme)
        else:
            rows = list(dict.fromkeys(map(self._row, units)))
        if not rows:
            raise InputError("session: no op or group is proposed")
        if len(rows) == 1:
            return self._members[rows[0]]
        members = np.concatenate([self._members[row] for row in rows])
        # After a replay all of them return to a single device.
        if (self._placement[members] != self._placement[members[0]]).any():
            raise InputError("session: only what stands on one device can be moved together")
        return members

    def _in_full(self, members: Ints, device: int, limit: float | None) -> Cost | None:
        before = int(self._placement[members[0]])
        self._placement[members] = device
        try:
            return self._whole(limit)
        finally:
            self._placement[members] = before

    def _whole(self, limit: float | None) -> Cost | None:
        """The cost of ``_placement``, simulated from the start; None where it was seen to exceed
        the limit.
        """
        evaluator = None if self._limited else self._evaluator
        step_ps = None if evaluator is None else evaluator.step_ps(self._placement)
        return self._evaluate(self._placement, limit) if step_ps is None else Cost.fitting(step_ps)

    def accept(self) -> Cost:
        """Make the last proposal the current placement. Raises InputError where there is none."""
        members, device, cost = self._last()
        before = int(self._placement[members[0]])
        self._placement[members] = device
        self._accepted += 1 / MEMORY
        if self._replayed:
            self._rebase(members, before)
        else:
            self._has_base = False
        self._proposed, self.cost = None, cost
        return cost

    def _rebase(self, members: Ints | None = None, before: int = 0) -> Cost | None:
        """Make the current placement the base of moves; its cost. ``members`` were just moved to
        their device from ``before`` (None: any change). Where this is not possible, None: then no
        more snapshots are made.
        """
        moves = self._moves
        step_ps = None if moves is None else moves.rebase(self._placement, members, before)
        self._has_base = step_ps is not None
        if step_ps is None:
            self._moves = None
            return None
        return Cost.fitting(step_ps)

    def _row(self, unit: str | int | np.integer[Any]) -> int:
        if isinstance(unit, str):
            if unit not in self._rows:
                raise InputError(f'session: no op or group named "{unit}"')
            return self._rows[unit]
        return _index("group", unit, len(self._members))

    def _device(self, device: str | int) -> int:
        if isinstance(device, str):
            if device not in self.cluster.index:
                raise InputError(f'session: no device named "{device}"')
            return self.cluster.index[device]
        return _index("device", device, len(self.cluster.devices))


def _index(label: str, number: int | np.integer[Any], count: int) -> int:
    if isinstance(number, bool) or not 0 <= number < count:
        raise InputError(f"session: {label} {number} is not in 0..{count - 1}")
    return int(number)


# Strategies that split ops.

Changes = Mapping[str, Configuration | None]


class SplitSession(Session[tuple[Changes, Cost]]):
    """A current strategy, and proposals to configure ops in another way; not for several threads at
    once.

    ``cost`` is that of the current strategy. Every cost equals that of a full rebuild. ``start``
    puts a strategy on the compiled path, which rebuilds only what a change affects; where it gives
    None, ``simulate`` rebuilds everything. Memory is computed for each proposal where some device
    has a capacity; elsewhere every strategy fits, and ``peaks`` is empty.
    """

    def __init__(
        self,
        prepared: Prepared,
        strategy: Strategy,
        start: Callable[[Strategy], SplitStrategy | None],
        simulate: Callable[[Strategy, float | None], Cost],
    ) -> None:
        graph, cluster, costs = prepared.graph, prepared.cluster, prepared.costs
        self._prepared, self._start, self._simulate = prepared, start, simulate
        self._strategy = without_short(graph, cluster, strategy, costs)
        self._limited = bool(limits_of(cluster))
        self._resolver = Resolver(graph, cluster, {})
        self._known: dict[Any, Resolved] = {}
        named = *self._strategy.partition, *self._strategy.placement
        self._has_patterns = any(name not in graph.index or name in graph.groups for name in named)
        # Accepted changes that ``_strategy`` does not have yet.
        self._accepted: dict[str, Configuration | None] = {}
        self._pending: SplitStrategy | None = None  # the strategy of the last proposal
        self.cost = self._rebuilt(self._strategy)
        self._split: SplitStrategy | None = self._pending
        self._pending = None

    @property
    def strategy(self) -> Strategy:
        """The current strategy, a short form written out."""
        if self._accepted:
            self._strategy, self._accepted = changed(self._strategy, self._accepted), {}
        return self._strategy

    @property
    def tasks(self) -> int | None:
        """The number of tasks in the last evaluation; None where the compiled path did not run."""
        split = self._pending or self._split
        return None if split is None else split.tasks

    def pinned(self, *phases: str) -> SplitSession:
        """A session with the current strategy in which no op of these phases (none given: forward)
        follows another.

        Each of these ops gets an explicit configuration, so that a change of one op leaves the
        others as they are: a move in FlexFlow. The cost is unchanged. Raises InputError.
        """
        graph, cluster, costs = self._prepared.graph, self._prepared.cluster, self._prepared.costs
        strategy = written_out(graph, cluster, self.strategy, costs, phases or ("forward",))
        return SplitSession(self._prepared, strategy, self._start, self._simulate)

    @overload
    def propose(
        self,
        op: str | Changes,
        configuration: Configuration | None = None,
        limit: None = None,
    ) -> Cost: ...

    @overload
    def propose(
        self, op: str | Changes, configuration: Configuration | None = None, *, limit: float | None
    ) -> Cost | None: ...

    def propose(
        self,
        op: str | Changes,
        configuration: Configuration | None = None,
        limit: float | None = None,
    ) -> Cost | None:
        """The cost with one op, or several in a mapping, in another configuration (None: the op
        follows its producers). The result is None, often found long before the end of the
        simulation, where ``cost.seconds`` would exceed ``limit``; such a change cannot be accepted.

        The configuration replaces the op's entry in ``partition`` or ``placement``, if it has one.
        Raises InputError.
        """
        check_limit(limit)
        changes: Changes = {op: configuration} if isinstance(op, str) else dict(op)
        self._drop()
        unknown = [name for name in changes if name not in self._prepared.graph.index]
        if unknown:
            raise InputError([f'session: no op named "{name}"' for name in unknown])
        cost = self._changed(changes, limit)
        if cost is None:
            cost = self._rebuilt(changed(self.strategy, changes), limit)
        if cost.exceeds(limit):
            self._drop()
            return None
        self._proposed = changes, cost
        return cost

    def _changed(self, changes: Changes, limit: float | None) -> Cost | None:
        """The cost of a change by the compiled path; None where this path does not cover it,
        EXCEEDING where the step is seen to exceed the limit.
        """
        split, graph = self._split, self._prepared.graph
        if split is None or not changes.keys().isdisjoint(graph.groups):
            return None
        if None in changes.values() and (
            self._has_patterns or not changed(self.strategy, changes).splits
        ):
            return None
        try:
            resolved = {graph.index[name]: self._resolved(name, changes[name]) for name in changes}
        except InputError:
            return None  # lowering reports the error
        try:
            cost = self._answer(split, limit) if split.change(resolved) else None
            self._pending = None if cost is None else split
        finally:
            if self._pending is None:
                split.back()
        return cost

    def _resolved(self, name: str, configuration: Configuration | None) -> Resolved | None:
        if configuration is None:
            return None
        # 2.0 and True are invalid degrees but equal valid ones, so the key has their text.
        key = name, repr(configuration.split), configuration.devices, configuration.time
        if key not in self._known:
            i = self._prepared.graph.index[name]
            self._known[key] = self._resolver.resolved(i, configuration)
        return self._known[key]

    def _rebuilt(self, strategy: Strategy, limit: float | None = None) -> Cost:
        """The cost of a strategy, built from the start; EXCEEDING where it exceeds the limit."""
        split = self._start(strategy)
        cost = None if split is None else self._answer(split, limit)
        if cost is not None:
            self._pending = split
            return cost
        cost = self._simulate(strategy, limit)
        return cost if self._limited or cost is EXCEEDING else Cost.of(cost.step_ps)

    def simulate(self, strategy: Strategy) -> Cost:
        """The cost of a strategy by lowering and an engine."""
        return self._simulate(strategy, None)

    def _answer(self, split: SplitStrategy, limit: float | None = None) -> Cost | None:
        if self._limited:
            return split.cost(limit_ps_of(limit))
        step_ps = split.step_ps(limit_ps_of(limit))
        if step_ps == WORSE:
            return EXCEEDING
        return None if step_ps is None else Cost.of(step_ps)

    def accept(self) -> Cost:
        """Make the last proposal the current strategy. Raises InputError where there is none."""
        changes, self.cost = self._last()
        self._accepted.update(changes)
        self._split, self._pending, self._proposed = self._pending, None, None
        if self._split is not None:
            self._split.keep()
        return self.cost

    def _drop(self) -> None:
        if self._split is not None and self._pending is self._split:
            self._split.back()
        self._pending, self._proposed = None, None


def changed(strategy: Strategy, changes: Changes) -> Strategy:
    """The strategy with other configurations by op name (None: the op's entry is removed)."""
    placement = {name: device for name, device in strategy.placement.items() if name not in changes}
    partition = {name: entry for name, entry in strategy.partition.items() if name not in changes}
    partition |= {name: entry for name, entry in changes.items() if entry is not None}
    return replace(strategy, placement=placement, partition=partition)
