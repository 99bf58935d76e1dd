"""The plan of a strategy that changes: who runs what, redone only where a change of configurations
reaches.

The rules are those of ``lowering.partition``, whose code this runs op by op; what it gives is
remembered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any, TypeVar

from ...lowering.partition.demand import Demand
from ...lowering.partition.geometry import part
from ...lowering.partition.layout import Grid, Local, ShardDraft
from ...lowering.partition.problem import Placed, SplitProblem, configured_parts
from ...lowering.partition.sharding import Sharding
from ...lowering.partition.sums import summed
from ...strategy import NOWHERE, Resolved
from ...structure import TensorOf

K = TypeVar("K")
V = TypeVar("V")
Log = list[tuple[dict[Any, Any], Any, Any]]
_ABSENT = object()


class NotCoveredError(Exception):
    """The strategy is one for the long way."""


class Logged(dict[K, V]):
    """A dict whose changes can be taken back: ``log`` tells what stood there before."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self.log = log

    def __setitem__(self, key: K, value: V) -> None:
        before = self.get(key, _ABSENT)
        if before is not value:
            self.log.append((self, key, before))
            super().__setitem__(key, value)

    def forget(self, key: K) -> None:
        """Drop an entry, where there is one."""
        if key in self:
            self.log.append((self, key, self[key]))
            super().__delitem__(key)


def take_back(log: Log) -> None:
    """Undo all changes of a log, the last one first."""
    for found, key, before in reversed(log):
        if before is _ABSENT:
            dict.pop(found, key, None)
        else:
            dict.__setitem__(found, key, before)
    log.clear()


@dataclass(eq=False, slots=True)
class State:
    """The parts of one op on their devices, with how its outputs lie: made once, however often they
    come back.

    ``words`` is where the columns hold its geometry and its devices (blocks.py).
    """

    op: int
    placed: list[Placed]
    divided: str | None
    drafts: list[ShardDraft] = field(default_factory=list)
    layouts: list[Grid | Local] = field(default_factory=list)
    words: tuple[int, int] | None = None


@dataclass(eq=False, slots=True)
class Sums:
    """How the values of a tensor that lies in partial results are made, cut along a dimension; as
    ``State``.
    """

    made: State
    output: int
    cut: int | None
    grid: Grid
    words: tuple[int, int] | None = None


class _Copies(Demand):
    """Copies of what is there on demand, remembered by the parts of their readers."""

    def __init__(self, problem: SplitProblem, parts: Mapping[int, list[Placed]], log: Log) -> None:
        super().__init__(problem, parts)
        self.copies = Logged(log)
        self.unread: set[int] = set()
        self._known: dict[Any, tuple[list[Placed], Any]] = {}

    def of(self, i: int) -> list[Placed]:
        """The copies of one op."""
        if i in self.copies:
            return self.copies[i]
        if i in self.problem.updates:
            lists = [self.of(self.problem.updates[i][1])]
        else:
            readers = dict.fromkeys(reader for reader, _ in self.readers.get(i, ()))
            own = (
                reader for reader in readers if self.problem.updates.get(reader, (-1, -1))[1] != i
            )
            lists = [
                self.parts[reader] if reader in self.parts else self.of(reader) for reader in own
            ]
            if not lists:
                self.unread.add(i)
                return super().of(i)
        key = i, tuple(map(id, lists))
        if key not in self._known:
            self._known[key] = super().of(i), lists  # what is known by its id must live
        self.copies[i] = self._known[key][0]
        return self.copies[i]


class Plan(Sharding):
    """The parts of every op of a strategy, and what they become where some configurations change.

    ``log`` takes changes back; ``before`` and ``sums_before`` tell what they changed.
    """

    def __init__(self, problem: SplitProblem) -> None:
        self._start(problem)
        self.log: Log = []
        self.planned: Logged[int, list[Placed]] = Logged(self.log)
        self.states: Logged[int, State] = Logged(self.log)
        self.summed: Logged[TensorOf, Sums] = Logged(self.log)
        self.divided, self.layouts = Logged(self.log), Logged(self.log)
        self.configured: Logged[int, Resolved] = Logged(self.log)
        self.configured.update(problem.configured)
        self.before: dict[int, State] = {}
        self._asking = -1
        self._replanned: dict[int, None] = {}  # by the last change
        self._wholes: Logged[int, bool] = Logged(self.log)  # followers that looked at sums
        self._known: dict[Any, State] = {}
        self._by_list: dict[int, State] = {}
        self._known_sums: dict[Any, Sums] = {}
        self._known_configured: dict[tuple[int, int], tuple[State, Resolved]] = {}
        self._known_following: dict[Any, State] = {}
        self._position = {op: at for at, op in enumerate(problem.order)}
        self._own = [
            i for i in problem.order if i not in problem.on_demand and i not in problem.updates
        ]
        self._plan_readers: dict[int, list[int]] = {}
        for i in self._own:
            for producer in dict.fromkeys(producer for producer, _ in problem.read[i]):
                self._plan_readers.setdefault(producer, []).append(i)
        self._leaves = [
            list(dict.fromkeys(producer for producer, _ in read if producer in problem.on_demand))
            for read in problem.read
        ]
        self._updates_of: dict[int, list[int]] = {}
        for update, (_, parameter) in problem.updates.items():
            self._updates_of.setdefault(parameter, []).append(update)
        self.demand = _Copies(problem, self.planned, self.log)
        self._plan()
        for i in self.demand.run():
            self._lay_copies(i)
        self.log.clear()
        self.before.clear()

    # The rules of Sharding, with what they give remembered

    def _parts(self, i: int) -> list[Placed] | None:
        found = self.configured.get(i)
        self._wholes.forget(i)
        if found is None:
            return self._free_parts(i)
        self.divided[i] = found.time
        known = self._known_configured.get((i, id(found)))
        if known is None:
            state = self._state(i, configured_parts(self.problem.readings[i], found))
            # what is known by its id must live
            known = self._known_configured[i, id(found)] = state, found
        return known[0].placed

    def _free_parts(self, i: int) -> list[Placed] | None:
        """The parts of an op that is placed, or follows: known by how lie what it reads and the
        sums of that.
        """
        problem, read = self.problem, self.problem.read[i]
        if problem.placed[i] != NOWHERE:
            return self._state(i, [Placed(part(problem.readings[i], ()), problem.placed[i])]).placed
        key = (
            i,
            *(
                id(self.states[producer])
                for producer, _ in read
                if producer not in problem.on_demand
            ),
        )
        known = self._known_following.get(key)
        if known is not None:
            self.divided[i] = known.divided
            return known.placed
        placed = self._following(i)
        if placed is None:
            return None
        state = self._state(i, placed)
        if i not in self._wholes:
            self._known_following[key] = state
        return state.placed

    def _following(self, i: int) -> list[Placed] | None:
        self._asking = i
        try:
            return super()._following(i)
        finally:
            self._asking = -1

    def _state(self, i: int, placed: list[Placed]) -> State:
        """The one state of these parts."""
        divided = self.divided.get(i)
        known = self._by_list.get(id(placed))
        if known is not None and known.placed is placed and known.divided == divided:
            return known
        key = i, divided, tuple((id(one.part), one.device, one.addend) for one in placed)
        if key not in self._known:
            self._known[key] = State(i, placed, divided)
            self._by_list[id(placed)] = self._known[key]
        return self._known[key]

    def _lay(self, i: int) -> None:
        self.planned[i] = self.parts[i]
        self._lay_once(i, super()._lay)

    def _lay_copies(self, i: int) -> None:
        self.parts[i] = self.demand.copies[i]
        self._lay_once(i, super()._lay_copies)

    def _lay_once(self, i: int, lay: Any) -> None:
        state = self._state(i, self.parts[i])
        if not state.drafts:
            lay(i)
            state.drafts = self.drafts[i]
            state.layouts = [self.layouts[i, k] for k in range(len(self.graph.ops[i].outputs))]
        if self.states.get(i) is state:
            return
        if i in self.states:
            self.before.setdefault(i, self.states[i])
        self.states[i] = state
        for k, layout in enumerate(state.layouts):
            self.layouts[i, k] = layout

    def whole(self, tensor: TensorOf, cut: int | None = None) -> Grid:
        """How the values of a tensor lie, as Sharding tells it."""
        layout = self.layouts[tensor]
        assert isinstance(layout, Grid)
        if layout.addends == 1:
            return layout
        if self._asking >= 0:
            self._wholes[self._asking] = True
        if tensor not in self.summed:
            self.summed[tensor] = self.sums_of(tensor, cut)
        return self.summed[tensor].grid

    def sums_of(self, tensor: TensorOf, cut: int | None) -> Sums:
        """How the values of a tensor are added up: one answer for each way in which its op is
        split.
        """
        state, grid = self.states[tensor[0]], self.layouts[tensor]
        assert isinstance(grid, Grid)
        key = id(state), tensor[1], cut
        if key not in self._known_sums:
            self._known_sums[key] = Sums(state, tensor[1], cut, summed(self, tensor, grid, cut))
        return self._known_sums[key]

    # What changes

    def takes(self, i: int, resolved: Resolved | None) -> bool:
        """Whether an op may be configured so by ``change``: not where that makes others be there on
        demand, or not.
        """
        problem = self.problem
        if resolved is not None:
            return i not in problem.on_demand and i not in problem.updates
        producers = {producer for producer, _ in problem.touched[i]}
        follows = problem.placed[i] == NOWHERE and problem.graph.ops[i].phase != "update"
        return follows and not producers <= problem.on_demand

    def change(self, changes: Mapping[int, Resolved | None]) -> None:
        """Other configurations of ops that are in the plan (None: they follow).

        Raises NotCoveredError, InputError.
        """
        for i, one in changes.items():
            if one is None:
                self.configured.forget(i)
            else:
                self.configured[i] = one
        self._replanned.clear()
        self._replan(changes)
        stale = [t for t in self._operands(self._replanned) if self._is_stale(t)]
        if any(
            self._wholes.get(reader) for t in stale for reader in self._plan_readers.get(t[0], ())
        ):
            for tensor in list(self.summed):
                self.summed.forget(tensor)
            self._replan(self._own)
        else:
            for tensor in stale:
                self.summed[tensor] = self.sums_of(tensor, self._first_cut(tensor))
        self._redo_copies()

    def _operands(self, ops: Iterable[int]) -> dict[TensorOf, None]:
        """The tensors in partial results that these ops read."""
        read = (tensor for i in ops for tensor in self.problem.read[i])
        return dict.fromkeys(
            t for t in read if isinstance(one := self.layouts.get(t), Grid) and one.addends > 1
        )

    def _replan(self, dirty: Iterable[int]) -> None:
        problem = self.problem
        order, waiting = problem.order, [self._position[i] for i in dirty]
        heapify(waiting)
        done = -1
        while waiting:
            at = heappop(waiting)
            if at == done:
                continue
            i, done = order[at], at
            self._replanned[i] = None
            found = self._parts(i)
            if found is None:
                raise NotCoveredError
            self.parts[i] = found
            self._sum_up(i)
            before = self.states[i]
            self._lay(i)
            if self.states[i] is before:
                continue
            pairs = enumerate(zip(before.layouts, self.states[i].layouts, strict=True))
            partial = [k for k, layouts in pairs if _partial(*layouts)]
            for k in partial:
                self.summed.forget((i, k))
            for reader in self._plan_readers.get(i, ()):
                if partial or (reader not in self.configured and problem.placed[reader] == NOWHERE):
                    heappush(waiting, self._position[reader])

    def _first_cut(self, tensor: TensorOf) -> int | None:
        """Along which dimension the first op of the plan that needs the values of a tensor wants
        them cut.
        """
        for reader in self._plan_readers.get(tensor[0], ()):
            if self._wholes.get(reader) and tensor in self.problem.touched[reader]:
                return None  # it looked for something to follow, before it could want any cut
            for operand, other in enumerate(self.problem.read[reader]):
                placed = self.states[reader].placed
                if other == tensor and placed[0].addend is None:
                    regions = [
                        region for one in placed if (region := one.part.needs[operand]) is not None
                    ]
                    own = all(
                        self.own_statistics(reader, tensor, one) is not None for one in placed
                    )
                    if regions and not own:
                        cut = (
                            d
                            for d in range(len(regions[0]))
                            if len({region[d] for region in regions}) > 1
                        )
                        return next(cut, None)
        return None

    def _is_stale(self, tensor: TensorOf) -> bool:
        return tensor in self.summed and self.summed[tensor].cut != self._first_cut(tensor)

    def _redo_copies(self) -> None:
        """The copies of leaves that changed ops read, and what follows from these."""
        closure = dict.fromkeys(self.demand.unread)
        waiting = list(self.before)
        while waiting:
            i = waiting.pop()
            for other in (*self._leaves[i], *self._updates_of.get(i, ())):
                if other not in closure:
                    closure[other] = None
                    waiting.append(other)
        for i in closure:
            self.demand.copies.forget(i)  # type: ignore[attr-defined]
        for i in closure:
            self.demand.of(i)
            self._lay_copies(i)


def _partial(*layouts: Grid | Local) -> bool:
    return any(isinstance(one, Grid) and one.addends > 1 for one in layouts)
