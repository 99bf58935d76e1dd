"""Split ops and sums as flat blocks of integers, which kernels read; each is written once.

A block is identified by its offset in an arena. Ops that compute the same form a class, and share
their geometry, costs and sizes. ``evaluator.py`` calls ``Blocks``; ``columns.py`` names the words,
and ``pieces.py`` and ``run.py`` read them. A new field of an op that changes its time or its bytes
must be part of its class (``Blocks._class``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import chain, product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ...ground.units import picoseconds
from ...lowering import Prepared
from ...lowering.collective import is_collective
from ...lowering.partition.cuts import Cut
from ...lowering.partition.emit import Shares
from ...lowering.partition.geometry import Part
from ...lowering.partition.layout import Copy, Grid, Local, Piece, ShardDraft, part_of
from ...lowering.partition.problem import Placed
from ...nouns.graph import Graph, Op, Tensor
from ...nouns.memory import with_training_state
from ...nouns.semantics import Interval, Region, extents
from ...nouns.structure import hands_out_parameters
from ...nouns.taskgraph import Ints
from ..heap import NONE
from .columns import (
    BASES,
    COLLECTIVE,
    COMPUTE,
    DEVICES,
    GRID,
    LOCAL,
    MOST_BASES,
    MOST_PARTS,
    MOST_PS,
    OF_SUMS,
    ROW,
    SUM_GRID,
    WHAT,
    Arena,
    NotCoveredError,
)
from .program import SplitOp, SplitProgram, Sums

# Sums that differ from written ones in their devices alone are copied, with other devices.


class _Template(NamedTuple):
    """A block of sums to copy: its rows come first; offsets of rows count from the first row."""

    words: Ints
    sums: int
    places: Ints  # places of devices in ``words``
    ranks: Ints  # the number of each of these devices, in the order of their first parts


def ranks_of(devices: Sequence[int]) -> tuple[int, ...]:
    """The number of each part's device, where devices are numbered in the order of their first
    parts.
    """
    ranks: dict[int, int] = {}
    return tuple([ranks.setdefault(device, len(ranks)) for device in devices])


class MovedSums:
    """Templates of the sums of an arena, by a key that is equal for sums that differ only in their
    devices.
    """

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self._known: dict[Any, _Template | None] = {}

    def words(self, key: Any, devices: Sequence[int]) -> tuple[int, int] | None:
        """Write sums for these devices by the template of ``key``; their offset and number. None
        where there is no template.
        """
        known = None if key is None else self._known.get(key)
        if known is None:
            return None
        words, count = known.words.copy(), known.sums
        words[known.places] = np.array(list(dict.fromkeys(devices)), np.int64)[known.ranks]
        words[-count:] += self.arena.used
        return self.arena.put(words) + len(words) - count - ROW, count

    def keep(self, key: Any, where: tuple[int, int], devices: Sequence[int]) -> None:
        """Make a template of sums that were written for these devices."""
        if key is not None and key not in self._known:
            self._known[key] = self._template(*where, devices)

    def _template(self, block: int, count: int, devices: Sequence[int]) -> _Template | None:
        """A template, or None where any sum is a collective, whose queues depend on the devices."""
        data, words, begins, places = self.arena.data, list[int](), list[int](), list[int]()
        for row in data[block + ROW : block + ROW + count].tolist():
            if data[row + WHAT] != COMPUTE:
                return None
            begins.append(len(words))
            size = DEVICES + int(data[row + BASES])
            places += range(len(words) + DEVICES, len(words) + size)
            words += data[row : row + size].tolist()
        rank_of = {device: rank for rank, device in enumerate(dict.fromkeys(devices))}
        ranks = [rank_of[words[place]] for place in places]
        words += (count, int(data[block + SUM_GRID]), *begins)
        return _Template(_ints(words), count, _ints(places), _ints(ranks))


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, np.int64)


class RegularBlocks:
    """Writes the needs and layouts of ops that are cut axis by axis; ops with equal cuts share
    them. Parts are numbered in row-major order of the axes.

    ``boxes`` numbers the boxes of parts over all ops.
    """

    def __init__(self, arena: Arena, boxes: dict[Any, int]) -> None:
        self.arena, self._boxes = arena, boxes
        self._written: dict[Any, int] = {}

    def _once(self, key: Any, write: Callable[[], Sequence[int] | Ints]) -> int:
        """The offset of the words of a key, written at the first call."""
        if key not in self._written:
            self._written[key] = self.arena.put(write())
        return self._written[key]

    def addends(self, cut: Cut) -> int:
        """The offset of the partial result that each part computes with: none."""
        parts = len(cut.same)
        return self._once(("addends", parts), lambda: [NONE] * parts)

    def boxes(self, cut: Cut) -> int:
        """The offset of the numbers of the parts' boxes."""

        def words() -> list[int]:
            every = (tuple(zip(cut.names, box, strict=True)) for box in product(*cut.intervals))
            number = self._boxes.setdefault
            return [number(box, len(self._boxes)) for box in every]

        return self._once(("boxes", cut.names, cut.intervals), words)

    def needs(self, cut: Cut, operand: int) -> int:
        """The offset of the regions of an operand that parts read, as ``Blocks._needs``."""
        counts, dims = cut.counts, cut.reads[operand]

        def words() -> Ints:
            rows = np.ones((len(cut.same), 1 + 2 * len(dims)), np.int64)
            for d, dim in enumerate(dims):
                along = _along(counts, dim.axis) if dim.axis != NONE else 0
                rows[:, 1 + 2 * d : 3 + 2 * d] = np.array(dim.intervals, np.int64)[along]
            return np.concatenate(([len(dims)], rows.ravel()))

        return self._once(("needs", counts, dims), words)

    def layout(self, cut: Cut, output: int, units: tuple[int, int]) -> int:
        """The offset of an output's layout; ``units``: bytes of an element, as a ratio."""
        dims, effects, addends = cut.makes[output], cut.effects[output], cut.addends(output)

        def words() -> list[int]:
            shape, stride_of = list[int](), dict[int, int]()
            stride = places = prod([len(dim.intervals) for dim in dims])
            for dim in dims:
                stride //= len(dim.intervals)
                stride_of[dim.axis] = stride
                shape += (len(dim.intervals), *self._column(dim.intervals), stride)
            cells = self._cells(cut, output, places, stride_of)
            return [GRID, len(dims), *units, cells, addends, *shape]

        return self._once(("layout", cut.counts, dims, effects, output, units), words)

    def _cells(self, cut: Cut, output: int, places: int, stride_of: Mapping[int, int]) -> int:
        """Write the copies at each place of an output's grid; the offset of the cells.

        For each place there is a row of copies (a part and a base each) for each partial result,
        then the cell: the number of partial results, and the offset of each of these rows.
        """
        # The place, partial result and copy of each part, from its places along the axes.
        place, addend, copy = np.zeros((3, len(cut.same)), np.int64)
        for axis, count in enumerate(cut.counts):
            along = _along(cut.counts, axis)
            if cut.effects[output][axis] != "replicate" and axis in stride_of:
                place += along * stride_of[axis]
                continue
            number = copy if cut.effects[output][axis] == "replicate" else addend
            number *= count
            number += along
        part, addends = np.arange(len(place)), cut.addends(output)
        row = 1 + 2 * (len(part) // (places * addends))
        words = np.full((places, addends * row + 1 + addends), addends, np.int64)
        words[:, : addends * row : row] = row // 2
        words[place, addend * row + 1 + 2 * copy] = part
        words[place, addend * row + 2 + 2 * copy] = output
        first = self.arena.used + np.arange(places)[:, None] * words.shape[1]
        words[:, addends * row + 1 :] = first + np.arange(addends) * row
        self.arena.put(words.ravel())
        return self.arena.put(first[:, 0] + addends * row)

    def _column(self, intervals: tuple[Interval, ...]) -> tuple[int, int]:
        """The offsets of the starts and of the stops of intervals."""
        words = [*(start for start, _ in intervals), *(stop for _, stop in intervals)]
        begin = self._once(("column", intervals), lambda: words)
        return begin, begin + len(intervals)


def _along(counts: Sequence[int], axis: int) -> Ints:
    """The place of each part along an axis; ``counts`` are the numbers of places by axis."""
    after, before = prod(counts[axis + 1 :]), prod(counts[:axis])
    return np.tile(np.repeat(np.arange(counts[axis], dtype=np.int64), after), before)


LIMIT = 1 << 62
SumTakes = tuple[int, int, Sequence[int], int, int, Sequence[int]]
"""COMPUTE or COLLECTIVE, ps, the device of each output (empty: the sum's device), the offsets of
queues and sizes, dispatches.
"""


class Blocks:
    """Writes the ops and sums of a program into an arena."""

    def __init__(self, prepared: Prepared) -> None:
        self.prepared, self.arena = prepared, Arena()
        self.lock = threading.Lock()
        self.device_kinds = [device.kind for device in prepared.cluster.devices]
        self._classes: dict[Any, int] = {}
        self._class_of: dict[int, int] = {}
        self._kept: list[Any] = []  # objects whose ids are keys, and so must stay alive
        self._ops: dict[Any, tuple[Graph, dict[str, tuple[int, ...]]]] = {}
        self._sums: dict[Any, SumTakes] = {}
        self._geometries: dict[Any, int] = {}
        self._boxes: dict[Any, int] = {}
        self._regular = RegularBlocks(self.arena, self._boxes)
        self._moved = MovedSums(self.arena)

    # Classes of ops that compute the same

    def _class(self, program: SplitProgram, i: int) -> int:
        """The number of an op's class."""
        if i not in self._class_of:
            op, graph = program.graph.ops[i], program.graph
            attrs = repr(sorted(op.attrs.items()))
            key = op.kind, op.phase, attrs, repr(op.time), op.outputs, graph.operands[i]
            sizes = op.param_bytes, op.grad_bytes, op.state_bytes, op.workspace_bytes
            host = repr(op.host_time), op.launches, op.blocks_host
            whole = *key, *host, *sizes, program.problem.readings[i]
            self._class_of[i] = self._classes.setdefault(whole, len(self._classes))
        return self._class_of[i]

    def _part(
        self, program: SplitProgram, split: SplitOp, part: Part
    ) -> tuple[Graph, dict[str, tuple[int, ...]]]:
        """A part as a graph of a single op, with its training state, and the known results of
        ``_takes`` by device kind; parts that run the same share them.
        """
        i, runs = split.op, part.kernel or part
        key = self._class(program, i), id(runs), split.divided
        if key not in self._ops:
            self._kept.append(runs)
            fields = Shares(program.sharding, i, self.prepared.costs).fields(Placed(part, 0))
            made = zip(program.graph.ops[i].outputs, part.makes, strict=True)
            outputs = tuple([part_of(each, region) for each, region in made if region is not None])
            op = Op("op", program.graph.ops[i].kind, outputs=outputs, **fields)
            graph = Graph.trusted("part", (op,))
            self._ops[key] = with_training_state(graph, self.prepared.memory), {}
        return self._ops[key]

    def _ps(self, graph: Graph, position: int, kind: str) -> int:
        cost = self.prepared.costs.cost(graph, position, kind)
        ps = MOST_PS if cost is None else picoseconds(cost.seconds)
        if ps >= MOST_PS:
            raise NotCoveredError
        return ps

    def _takes(self, graph: Graph, kind: str) -> tuple[int, ...]:
        """The ps of a part on a kind of device; where the cluster has hosts, also the ps of its
        dispatch, and its launches.
        """
        costs = self.prepared.costs
        ps = self._ps(graph, 0, kind)
        if not self.prepared.cluster.hosted:
            return (ps,)
        host = costs.host_cost(graph, 0, kind)
        dispatch = 0 if host is None else picoseconds(host.seconds)
        if dispatch >= MOST_PS:
            raise NotCoveredError
        return ps, dispatch, costs.launches(graph, 0, kind)

    # Ops

    def op(self, program: SplitProgram, split: SplitOp) -> tuple[int, int]:
        """The offsets of the geometry and of the devices of a split op. The latter are columns by
        part: the device, then the results of ``_takes``.
        """
        if split.words is None:
            if len(split.devices) >= MOST_PARTS:
                raise NotCoveredError
            devices, takes = list(split.devices), []
            runs, same = _runs(split)
            parts = [self._part(program, split, part) for part in runs]
            for device, at in zip(devices, same, strict=True):
                (graph, known), kind = parts[at], self.device_kinds[device]
                if kind not in known:
                    known[kind] = self._takes(graph, kind)
                takes.append(known[kind])
            columns = [*devices, *chain.from_iterable(zip(*takes, strict=True))]
            split.words = self._geometry(program, split), self.arena.put(columns)
        return split.words

    def _geometry(self, program: SplitProgram, split: SplitOp) -> int:
        if split.cut is not None:
            whole = self._class(program, split.op), split.divided, split.cut
            if whole not in self._geometries:
                self._geometries[whole] = self._write_cut(program, split, split.cut)
            return self._geometries[whole]
        assert split.layouts is not None
        local = any(isinstance(layout, Local) for layout in split.layouts)
        # The order of a leaf's copies does not depend on devices; grids may, where parts share one.
        parts = tuple((id(placed.part), placed.addend) for placed in split.placed)
        key = self._class(program, split.op), split.divided, local, parts
        if key not in self._geometries:
            self._kept += [placed.part for placed in split.placed]
            self._geometries[key] = self._write(program, split)
        return self._geometries[key]

    def _write(self, program: SplitProgram, split: SplitOp) -> int:
        put, placed, op = self.arena.put, split.placed, program.graph.ops[split.op]
        assert split.layouts is not None
        local = any(isinstance(layout, Local) for layout in split.layouts)
        drafts = [] if local else split.drafts(program.sharding)
        boxes = [self._boxes.setdefault(each.part.box, len(self._boxes)) for each in placed]
        addends = [-1 if each.addend is None else each.addend for each in placed]
        needs = [self._needs(placed, operand) for operand in range(len(op.inputs))]
        rows = {id(draft): number for number, draft in enumerate(drafts)}
        layouts = [
            self._local(op.outputs[k], k, placed)
            if isinstance(layout, Local)
            else self._layout(layout, op.outputs[k], rows)
            for k, layout in enumerate(split.layouts)
        ]
        stride, sizes = self._sizes(program, split)
        columns = map(put, (boxes, addends, needs, layouts, sizes))
        return put([len(placed), *columns, stride])

    def _needs(self, placed: Sequence[Placed], operand: int) -> int:
        """Write the regions of an operand: the rank, then for each part whether it reads any, and
        its intervals. Returns the offset.
        """
        regions = [each.part.needs[operand] for each in placed]
        rank = max((len(region) for region in regions if region is not None), default=0)
        words = [rank]
        for region in regions:
            words.append(int(region is not None))
            words += _flat(region, rank)
        return self.arena.put(words)

    def _sizes(self, program: SplitProgram, split: SplitOp) -> tuple[int, list[int]]:
        """The number of words for each part, and the words: the part's persistent bytes, its bytes
        while it runs, then those of each output that it makes.
        """
        rounded = self.prepared.memory.rounded
        rows, (runs, same) = list[list[int]](), _runs(split)
        most = max((sum(made is not None for made in part.makes) for part in runs), default=0)
        if most >= MOST_BASES:
            raise NotCoveredError
        for part in runs:
            op = self._part(program, split, part)[0].ops[0]
            shared = hands_out_parameters(op)
            made = [0 if shared else rounded(tensor.bytes) for tensor in op.made]
            lasting = sum(map(rounded, (op.param_bytes, op.grad_bytes, op.state_bytes)))
            running = rounded(op.workspace_bytes)
            rows.append([lasting, running, *made, *[0] * (most - len(made))])
        return 2 + most, [word for at in same for word in rows[at]]

    def _layout(self, layout: Grid, tensor: Tensor, rows: Mapping[int, int]) -> int:
        put, dims = self.arena.put, list[int]()
        stride = places = prod(map(len, layout.dims))
        for intervals in layout.dims:
            stride = stride // len(intervals) if intervals else 0
            starts, stops = put([a for a, _ in intervals]), put([b for _, b in intervals])
            dims += [len(intervals), starts, stops, stride]
        cells, words, begin = [-1] * places, list[int](), self.arena.used
        for place, cell in layout.cells.items():
            at, copied = sum(index * dims[4 * d + 3] for d, index in enumerate(place)), []
            for copies in cell:
                copied.append(begin + len(words))
                words += _copies(copies, rows)
            cells[at] = begin + len(words)
            words += [len(cell), *copied]
        put(words)
        head = GRID, len(layout.dims), *self._units(tensor), put(cells), layout.addends
        return put([*head, *dims])

    def _local(self, tensor: Tensor, output: int, placed: Sequence[Placed]) -> int:
        regions = [each.part.makes[output] for each in placed]
        rank, words = max((len(region or ()) for region in regions), default=0), list[int]()
        for each, region in zip(placed, regions, strict=True):
            base = sum(made is not None for made in each.part.makes[:output])
            words += (-1 if region is None else base, *_flat(region, rank))
        return self.arena.put([LOCAL, rank, *self._units(tensor), self.arena.put(words), 1])

    def _units(self, tensor: Tensor) -> tuple[int, int]:
        """Bytes of an element, as numerator and denominator (it need not be a whole number)."""
        count = prod(tensor.shape or ()) or 1
        ratio = Fraction(tensor.bytes, count)
        if ratio.numerator * count >= LIMIT:  # the kernels multiply them
            raise NotCoveredError
        return ratio.numerator, ratio.denominator

    def _write_cut(self, program: SplitProgram, split: SplitOp, cut: Cut) -> int:
        put, outputs = self.arena.put, program.graph.ops[split.op].outputs
        needs = [self._regular.needs(cut, operand) for operand in range(len(cut.reads))]
        layouts = [
            self._regular.layout(cut, k, self._units(outputs[k])) for k in range(len(cut.makes))
        ]
        stride, sizes = self._sizes(program, split)
        columns = self._regular.boxes(cut), self._regular.addends(cut), put(needs), put(layouts)
        return put([len(cut.same), *columns, put(sizes), stride])

    # Sums

    def sums(self, program: SplitProgram, sums: Sums) -> tuple[int, int]:
        """The offset of the sums of a tensor, and their number."""
        if sums.words is None:
            sums.words = self._moved.words(key := self._alike(program, sums), sums.made.devices)
            if sums.words is None:
                sums.words = self._write_sums(program, sums)
                self._moved.keep(key, sums.words, sums.made.devices)
        return sums.words

    def _alike(self, program: SplitProgram, sums: Sums) -> Any:
        """A key that is equal for sums that differ only in their devices; None where a difference
        of devices may change more.
        """
        made, problem = sums.made, program.problem
        kinds = {self.device_kinds[device] for device in made.devices}
        if made.cut is None or self.prepared.cluster.hosted or len(kinds) > 1:
            return None
        is_gradient = (made.op, sums.output) in problem.weights.gradients
        which = made.cut, sums.output, sums.cut, is_gradient, problem.strategy.sync
        return self._class(program, made.op), which, kinds.pop(), ranks_of(made.devices)

    def _write_sums(self, program: SplitProgram, sums: Sums) -> tuple[int, int]:
        """Write the sums of a tensor; their offset and number."""
        made = sums.made.drafts(program.sharding)
        parts = {id(draft): number for number, draft in enumerate(made)}
        drafts: dict[int, ShardDraft] = {}
        inputs: dict[int, Sequence[Piece]] = {}
        cells = sums.grid.cells.values()
        waiting = [copy.draft for cell in cells for copies in cell for copy in copies]
        for draft in waiting:  # grows where sums read other sums
            if id(draft) not in parts and id(draft) not in drafts:
                assert draft.pieces is not None
                drafts[id(draft)], inputs[id(draft)] = draft, list(draft.pieces())
                waiting += [copy.draft for copy, _, _ in inputs[id(draft)]]
        rows = parts | {key: OF_SUMS + row for row, key in enumerate(drafts)}
        if len(drafts) >= MOST_PARTS or any(draft.role == "stored" for draft in drafts.values()):
            raise NotCoveredError
        tensor = program.sharding.tensor((sums.made.op, sums.output))
        whose = self._class(program, sums.made.op), sums.output
        words = [
            self._sum(whose, draft, inputs[key], rows, tensor) for key, draft in drafts.items()
        ]
        grid = self._layout(sums.grid, tensor, rows)
        self._kept += [*drafts.values(), sums]
        return self.arena.put([len(drafts), grid, *words]), len(drafts)

    def _sum(
        self,
        whose: tuple[int, int],
        draft: ShardDraft,
        inputs: Sequence[Piece],
        rows: Mapping[int, int],
        tensor: Tensor,
    ) -> int:
        """Write a sum: its inputs, then its row. Returns the offset of the row."""
        words = [len(inputs), max((len(region) for _, _, region in inputs), default=0)]
        for copy, _, region in inputs:
            is_base = int(region == copy.draft.regions[copy.base][1])
            words += [rows[id(copy.draft)], copy.base, is_base, *_flat(region, 0)]
        made = [extents(region) for _, region in draft.regions]
        read = [extents(region) for *_, region in inputs]
        ranks = draft.fields["attrs"].get("ranks", ())
        # Without hosts, equal sums on devices of a kind take equally long.
        hosted = self.prepared.cluster.hosted
        where = draft.device if hosted else self.device_kinds[draft.device]
        key = *whose, draft.kind, where, len(inputs), *made, -1, *read, -1, *ranks
        if key not in self._sums:
            self._sums[key] = self._sum_takes(draft, inputs, tensor)
        what, length, on, queues, sizes, dispatches = self._sums[key]
        on = on or [draft.device] * len(made)
        head = what, length, len(on), self.arena.used, queues, sizes, *on, *dispatches
        return self.arena.put([*words, *head]) + len(words)

    def _sum_takes(self, draft: ShardDraft, inputs: Sequence[Piece], tensor: Tensor) -> SumTakes:
        """The time and devices of a sum; equal for all sums of a size on a device."""
        put, rounded = self.arena.put, self.prepared.memory.rounded
        sizes = put([rounded(made.bytes) for made in draft.tensors])
        shaped = draft.fields["attrs"].get("in") is not None and not self.prepared.cluster.hosted
        read = () if shaped else tuple(part_of(tensor, region) for _, _, region in inputs)
        names = tuple(f"read:{at}" for at in range(len(read)))
        op = Op("sum", draft.kind, inputs=names, outputs=tuple(draft.tensors), **draft.fields)
        if shaped:  # its cost depends only on the shapes in its attributes, not on its inputs
            graph = Graph.trusted("sum", (op,))
            return COMPUTE, self._ps(graph, 0, self.device_kinds[draft.device]), (), 0, sizes, ()
        graph = Graph("sum", (Op("read", "parameter", outputs=read), op))
        prepared = self.prepared.of(graph, self.prepared.collectives)
        if not is_collective(op):
            length = self._ps(prepared.graph, 1, self.device_kinds[draft.device])
            return COMPUTE, length, (), 0, sizes, _dispatches(prepared, [draft.device])
        ring = prepared.rings[1]
        if ring.expanded or ring.duration_ps >= MOST_PS:
            raise NotCoveredError
        queues = put([len(ring.resources), *ring.resources])
        on = ring.outputs_on[: len(draft.regions)]
        dispatches = _dispatches(prepared, ring.ranks)
        return COLLECTIVE, ring.duration_ps, on, queues, sizes, dispatches


def _dispatches(prepared: Prepared, devices: Sequence[int]) -> list[int]:
    """The number of dispatches of a sum (the second op) on these devices, then the device, ps and
    launches of each; empty where no device has a host.
    """
    hosted = [d for d in sorted(set(devices)) if prepared.cluster.host_of(d) is not None]
    if not prepared.cluster.hosted:
        return []
    lengths, launches = prepared.host_ps[1].tolist(), prepared.launches[1].tolist()
    if max(lengths) >= MOST_PS:
        raise NotCoveredError
    return [len(hosted), *(word for d in hosted for word in (d, lengths[d], launches[d]))]


def _runs(split: SplitOp) -> tuple[Sequence[Part], Sequence[int]]:
    """A representative of each set of parts that run the same, and the set's number by part."""
    if split.cut is not None:
        return split.cut.runs, split.cut.same
    first: dict[int, int] = {}
    runs, same = list[Part](), list[int]()
    for placed in split.placed:
        at = first.setdefault(id(placed.part.kernel or placed.part), len(runs))
        if at == len(runs):
            runs.append(placed.part)
        same.append(at)
    return runs, same


def _flat(region: Region | None, rank: int) -> list[int]:
    """The starts and stops of a region; zeros for ``rank`` dimensions where there is none."""
    return [0] * (2 * rank) if region is None else list(chain.from_iterable(region))


def _copies(copies: Sequence[Copy], rows: Mapping[int, int]) -> list[int]:
    return [len(copies), *(word for copy in copies for word in (rows[id(copy.draft)], copy.base))]
