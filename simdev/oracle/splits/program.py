"""The parts of every op of a changing strategy, recomputed only for the ops that a change affects.

The rules of ``lowering.partition`` are run op by op over a ``Sharding`` whose tables log their
changes. Results are remembered, so that an op split as before costs a dictionary look-up.
``evaluator.py`` holds a ``SplitProgram``. If a rule comes to read more than an op's configuration
and the parts of its producers, the keys of results (``_free``) and the ops to replan (``_reached``)
have to grow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from heapq import heapify, heappop, heappush
from typing import Any, TypeVar

from ...lowering.partition.cuts import Cut, cells_of, cut_of, drafts_of, regions_read
from ...lowering.partition.geometry import Part, made_part, part
from ...lowering.partition.layout import Addends, Cells, Grid, Local, Place, ShardDraft
from ...lowering.partition.problem import Placed, SplitProblem, configured_parts
from ...lowering.partition.sharding import Demand, Sharding
from ...lowering.partition.sums import summed
from ...nouns.semantics import Along, statistics_of
from ...nouns.strategy import NOWHERE, Resolved
from ...nouns.structure import TensorOf
from .columns import NotCoveredError

K = TypeVar("K")
V = TypeVar("V")
Log = list[tuple[dict[Any, Any], Any, Any]]
_ABSENT = object()


class Logged(dict[K, V]):
    """A dict whose changes can be undone: ``log`` keeps the values before each change."""

    def __init__(self, log: Log) -> None:
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
    for table, key, before in reversed(log):
        if before is _ABSENT:
            dict.pop(table, key, None)
        else:
            dict.__setitem__(table, key, before)
    log.clear()


@dataclass(eq=False)
class SplitOp:
    """The parts of an op on their devices, with the layouts of its outputs: one object for each way
    of splitting the op, used again whenever the way returns.

    Where ``cut`` describes all parts axis by axis, they and their drafts are only made when a rule
    needs them, which few do. ``addend`` is the partial result that the first part computes with,
    ``partial`` are the outputs in partial results, ``words`` are the arena offsets of its geometry
    and its devices (blocks.py).
    """

    op: int
    divided: str | None
    devices: Sequence[int]
    parts: Callable[[], list[Placed]]
    cut: Cut | None = None
    addend: int | None = None
    layouts: list[Grid | Local] | None = None
    partial: frozenset[int] = frozenset()
    words: tuple[int, int] | None = None
    _drafts: list[ShardDraft] | None = None

    @cached_property
    def placed(self) -> list[Placed]:
        """The parts."""
        return self.parts()

    def drafts(self, sharding: Sharding) -> list[ShardDraft]:
        """The drafts of the parts."""
        if self._drafts is None:
            self._drafts = (
                sharding.drafts_of(self.op, self.placed)
                if self.cut is None
                else drafts_of(self.cut, sharding.graph.ops[self.op], self.op, self.devices)
            )
        return self._drafts


@dataclass(eq=False)
class Sums:
    """The sums that make the values of a tensor in partial results, cut along a dimension (None:
    not cut). ``make`` computes their grid when it is first needed.

    ``words``: the arena offset of their block, and the number of sums.
    """

    made: SplitOp
    output: int
    cut: int | None
    make: Callable[[], Grid]
    words: tuple[int, int] | None = None

    @cached_property
    def grid(self) -> Grid:
        """The layout of the summed values."""
        return self.make()


# Ops available on demand (leaves and their updates) under a changing strategy.


class Copies(Demand):
    """The copies of ops that are available on demand, remembered by the parts of their readers."""

    def __init__(self, problem: SplitProblem, planned: Mapping[int, SplitOp], log: Log) -> None:
        super().__init__(problem, {})
        self.planned = planned
        self.copies: Logged[int, list[Placed]] = Logged(log)
        self.unread: set[int] = set()
        self._readers: dict[int, list[int]] = {}
        self._known: dict[Any, tuple[list[Placed], Any]] = {}

    def of(self, i: int) -> list[Placed]:
        """The copies of one op."""
        if i in self.copies:
            return self.copies[i]
        planned, updates = self.planned, self.problem.updates
        if i in updates:
            lists: list[Any] = [self.of(updates[i][1])]
        else:
            lists = [planned.get(reader) or self.of(reader) for reader in self._calling(i)]
            if not lists:
                self.unread.add(i)
                return super().of(i)
        key = i, tuple(map(id, lists))
        if key not in self._known:
            self._known[key] = super().of(i), lists  # keys are ids, so the lists must stay alive
        self.copies[i] = self._known[key][0]
        return self.copies[i]

    def _calling(self, i: int) -> list[int]:
        """The readers that need copies of an op: all but its update, which follows the copies."""
        if i not in self._readers:
            readers = dict.fromkeys(reader for reader, _ in self.readers.get(i, ()))
            updates = self.problem.updates
            self._readers[i] = [r for r in readers if updates.get(r, (-1, -1))[1] != i]
        return self._readers[i]

    def wanted(self, reader: int, operand: int) -> Iterable[tuple[Part, int]]:
        """For each part of a reader, the copy of an operand that it needs, and its device."""
        split = self.planned.get(reader)
        if split is not None and split.cut is not None:
            producer, output = self.problem.read[reader][operand]
            regions, numbers = regions_read(split.cut, operand)
            op = self.problem.readings[producer]
            copies = [made_part(op, output, region) for region in regions]
            return zip([copies[number] for number in numbers], split.devices, strict=True)
        return super().wanted(reader, operand)

    def placed_of(self, i: int) -> list[Placed]:
        """The parts of an op, or its copies."""
        return self.planned[i].placed if i in self.planned else self.of(i)

    def used(self) -> Iterable[int]:
        """The devices of the parts of all planned ops, which are not on demand."""
        return (device for split in self.planned.values() for device in split.devices)


class SplitProgram:
    """The parts of every op of a strategy, updated when configurations change.

    ``ops`` by op and ``sums`` by tensor are the current ones; ``log`` serves to undo changes;
    ``before`` has the SplitOps that were replaced since it was last cleared.

    Raises NotCoveredError, InputError.
    """

    def __init__(self, problem: SplitProblem) -> None:
        self.problem, self.graph = problem, problem.graph
        self.log: Log = []
        self.ops: Logged[int, SplitOp] = Logged(self.log)
        self.sums: Logged[TensorOf, Sums] = Logged(self.log)
        self.configured: Logged[int, Resolved] = Logged(self.log)
        self.configured.update(problem.configured)
        self.before: dict[int, SplitOp] = {}
        self.sharding = Sharding(problem, Logged(self.log), Logged(self.log), self._add_up)
        self._asking = -1
        self._replanned: dict[int, None] = {}  # ops replanned by the last change
        self._wholes: Logged[int, bool] = Logged(self.log)  # following ops that looked at sums
        self._known: dict[Any, SplitOp] = {}
        self._by_list: dict[int, SplitOp] = {}
        self._known_sums: dict[Any, Sums] = {}
        self._known_configured: dict[tuple[int, int], tuple[SplitOp, Resolved]] = {}
        self._known_following: dict[Any, SplitOp] = {}
        self._read_columns()
        self._planned: Logged[int, SplitOp] = Logged(self.log)
        self._copies = Copies(problem, self._planned, self.log)
        self._replan(self._in_plan)
        for i in self._copies.run():
            self._lay(i, self._op(i, self._copies.copies[i]), Local({}))

    def _read_columns(self) -> None:
        """Make the tables of readers: among ops in the plan, of leaves, and of parameters."""
        problem = self.problem
        self._position = {op: at for at, op in enumerate(problem.order)}
        self._in_plan = [
            i for i in problem.order if i not in problem.on_demand and i not in problem.updates
        ]
        self._plan_readers: dict[int, list[int]] = {}
        for i in self._in_plan:
            for producer in dict.fromkeys(producer for producer, _ in problem.read[i]):
                self._plan_readers.setdefault(producer, []).append(i)
        self._leaves = [
            list(dict.fromkeys(producer for producer, _ in read if producer in problem.on_demand))
            for read in problem.read
        ]
        self._updates_of: dict[int, list[int]] = {}
        for update, (_, parameter) in problem.updates.items():
            self._updates_of.setdefault(parameter, []).append(update)

    # The rules of Sharding, with remembered results

    def _split(self, i: int) -> SplitOp | None:
        resolved = self.configured.get(i)
        self._wholes.forget(i)
        if resolved is None:
            return self._free(i)
        self.sharding.divided[i] = resolved.time
        known = self._known_configured.get((i, id(resolved)))
        if known is None:
            # The key is an id, so ``resolved`` must stay alive.
            known = self._configured(i, resolved), resolved
            self._known_configured[i, id(resolved)] = known
        return known[0]

    def _configured(self, i: int, resolved: Resolved) -> SplitOp:
        reading, degrees = self.problem.readings[i], tuple(resolved.degrees.items())
        parts = partial(configured_parts, reading, resolved)
        cut = cut_of(reading, degrees)
        if cut is None:
            return self._op(i, parts())
        key = i, resolved.time, cut, resolved.devices
        if key not in self._known:
            self._known[key] = SplitOp(i, resolved.time, resolved.devices, parts, cut)
        return self._known[key]

    def _free(self, i: int) -> SplitOp | None:
        """The parts of an op without a configuration, which is placed or follows its producers;
        remembered by the SplitOps of its producers.
        """
        problem = self.problem
        if problem.placed[i] != NOWHERE:
            whole = Placed(part(problem.readings[i], ()), problem.placed[i])
            return self._op(i, [whole])
        producers = (producer for producer, _ in problem.read[i])
        key = i, *(id(self.ops[p]) for p in producers if p not in problem.on_demand)
        known = self._known_following.get(key)
        if known is not None:
            self.sharding.divided[i] = known.divided
            return known
        self._asking = i
        try:
            placed = self.sharding.following(i)
        finally:
            self._asking = -1
        if placed is None:
            return None
        op = self._op(i, placed)
        if i not in self._wholes:
            self._known_following[key] = op
        return op

    def _op(self, i: int, placed: list[Placed]) -> SplitOp:
        """The SplitOp of these parts; equal parts share an object."""
        divided = self.sharding.divided.get(i)
        known = self._by_list.get(id(placed))
        if known is not None and known.placed is placed and known.divided == divided:
            return known
        key = i, divided, tuple((id(each.part), each.device, each.addend) for each in placed)
        if key not in self._known:
            devices = [each.device for each in placed]
            op = SplitOp(i, divided, devices, lambda: placed, addend=placed[0].addend)
            self._known[key] = self._by_list[id(placed)] = op
        return self._known[key]

    def _lay(self, i: int, op: SplitOp, local: Local | None = None) -> None:
        """Make ``op`` the current parts of op ``i``; ``local`` is the layout of its outputs, if the
        op is available on demand.
        """
        if op.layouts is None:
            made = range(len(self.graph.ops[i].outputs))
            op.layouts = [local or self._grid(op, k) for k in made]
            op.partial = frozenset(k for k, how in enumerate(op.layouts) if _is_partial(how))
        if self.ops.get(i) is op:
            return
        if i in self.ops:
            self.before.setdefault(i, self.ops[i])
        self.ops[i] = op
        for k, layout in enumerate(op.layouts):
            self.sharding.layouts[i, k] = layout

    def _grid(self, op: SplitOp, k: int) -> Grid:
        """The layout of an output; if the op is cut axis by axis, its cells are only made when a
        rule needs them.
        """
        sharding, cut = self.sharding, op.cut
        semantics = self.problem.readings[op.op].semantics
        if cut is None or semantics is None:
            return sharding.grid(op.op, k, op.drafts(sharding), op.placed)

        def cells() -> Mapping[Place, Addends]:
            return cells_of(cut, k, op.drafts(sharding))

        dims = tuple([dim.intervals for dim in cut.makes[k]])
        reducer = semantics.description.outputs[k].reducer
        return Grid(dims, Cells(cells), reducer, cut.addends(k))

    def _add_up(self, tensor: TensorOf, layout: Grid, cut: int | None) -> Grid:
        """The layout of the summed values of a tensor, for Sharding."""
        if self._asking >= 0:
            self._wholes[self._asking] = True
        if tensor not in self.sums:
            self.sums[tensor] = self.sums_of(tensor, cut)
        return self.sums[tensor].grid

    def sums_of(self, tensor: TensorOf, cut: int | None) -> Sums:
        """The sums of a tensor; one object for each way in which its op is split."""
        op, grid = self.ops[tensor[0]], self.sharding.layouts[tensor]
        assert isinstance(grid, Grid)
        key = id(op), tensor[1], cut
        if key not in self._known_sums:
            sums = partial(summed, self.sharding, tensor, grid, cut)
            self._known_sums[key] = Sums(op, tensor[1], cut, sums)
        return self._known_sums[key]

    # Changes

    def takes(self, i: int, resolved: Resolved | None) -> bool:
        """Whether ``change`` may give an op this configuration: not where it would change which ops
        are available on demand.
        """
        problem = self.problem
        if resolved is not None:
            return i not in problem.on_demand and i not in problem.updates
        producers = {producer for producer, _ in problem.touched[i]}
        follows = problem.placed[i] == NOWHERE and self.graph.ops[i].phase != "update"
        return follows and not producers <= problem.on_demand

    def change(self, changes: Mapping[int, Resolved | None]) -> None:
        """Give ops of the plan other configurations (None: they follow their producers).

        Raises NotCoveredError, InputError.
        """
        for i, resolved in changes.items():
            if resolved is None:
                self.configured.forget(i)
            else:
                self.configured[i] = resolved
        self._replanned.clear()
        self._replan(changes)
        stale = self._stale_sums()
        readers = (reader for t in stale for reader in self._plan_readers.get(t[0], ()))
        if any(map(self._wholes.get, readers)):
            # An op followed the old sums, so all ops that follow others are planned again.
            for tensor in list(self.sums):
                self.sums.forget(tensor)
            self._replan(self._in_plan)
        else:
            for tensor, cut in stale.items():
                self.sums[tensor] = self.sums_of(tensor, cut)
        self._redo_copies()

    def _stale_sums(self) -> dict[TensorOf, int | None]:
        """The sums that replanned ops read and now need with another cut, and this cut."""
        read = (tensor for i in self._replanned for tensor in self.problem.read[i])
        cuts = {t: self._first_cut(t) for t in dict.fromkeys(read) if t in self.sums}
        layouts = self.sharding.layouts
        return {
            t: cut
            for t, cut in cuts.items()
            if _is_partial(layouts.get(t)) and self.sums[t].cut != cut
        }

    def _replan(self, dirty: Iterable[int]) -> None:
        """Compute the parts and layouts of ops and of all ops that they affect, producers first."""
        order, waiting = self.problem.order, [self._position[i] for i in dirty]
        heapify(waiting)
        done = -1
        while waiting:
            at = heappop(waiting)
            if at == done:
                continue
            i, done = order[at], at
            self._replanned[i] = None
            op = self._split(i)
            if op is None:
                raise NotCoveredError
            for tensor, cut in self._needed_sums(i, op):
                if tensor not in self.sums:
                    self.sums[tensor] = self.sums_of(tensor, cut)
            before, self._planned[i] = self.ops.get(i), op
            self._lay(i, op)
            if before is not None and self.ops[i] is not before:
                for reader in self._reached(i, before):
                    heappush(waiting, self._position[reader])

    def _needed_sums(self, i: int, op: SplitOp) -> Iterable[tuple[TensorOf, int | None]]:
        """The operands in partial results whose values an op needs, with the cut (``Sharding``)."""
        layouts, cut, read = self.sharding.layouts, op.cut, self.problem.read[i]
        if op.addend is not None or not any(_is_partial(layouts.get(t)) for t in read):
            return ()
        if cut is None or statistics_of(self.graph.ops[i].kind):
            return self.sharding.needed_sums(i, op.placed)
        reading = self.problem.readings[i]
        return [
            (tensor, _first_cut_dim(cut.reads[operand]))
            for operand, tensor in enumerate(read)
            if _is_partial(layouts.get(tensor)) and not reading.shape_only(operand)
        ]

    def _reached(self, i: int, before: SplitOp) -> list[int]:
        """The readers whose parts may change after the parts of an op have changed."""
        partial, readers = before.partial | self.ops[i].partial, self._plan_readers.get(i, [])
        for k in partial:
            self.sums.forget((i, k))
        if partial:
            return readers
        configured, placed = self.configured, self.problem.placed
        return [r for r in readers if r not in configured and placed[r] == NOWHERE]

    def _first_cut(self, tensor: TensorOf) -> int | None:
        """The dimension along which the values of a tensor are cut: as the first op of the plan
        that needs them reads them; None for no cut.
        """
        for reader in self._plan_readers.get(tensor[0], ()):
            if self._wholes.get(reader) and tensor in self.problem.touched[reader]:
                return None  # the reader looked at the sums before its parts, and so a cut, existed
            for needed, cut in self._needed_sums(reader, self.ops[reader]):
                if needed == tensor:
                    return cut
        return None

    def _redo_copies(self) -> None:
        """Recompute the copies of leaves that changed ops read, and of the ops that follow them."""
        closure = dict.fromkeys(self._copies.unread)
        waiting = list(self.before)
        while waiting:
            i = waiting.pop()
            for other in (*self._leaves[i], *self._updates_of.get(i, ())):
                if other not in closure:
                    closure[other] = None
                    waiting.append(other)
        for i in closure:
            self._copies.copies.forget(i)
        for i in closure:
            self._lay(i, self._op(i, self._copies.of(i)), Local({}))


def _first_cut_dim(dims: Sequence[Along]) -> int | None:
    """The first dimension of an operand along which parts read different intervals."""
    return next((d for d, dim in enumerate(dims) if len(set(dim.intervals)) > 1), None)


def _is_partial(layout: Grid | Local | None) -> bool:
    return isinstance(layout, Grid) and layout.addends > 1
