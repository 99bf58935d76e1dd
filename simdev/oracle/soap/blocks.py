"""What the kernels know of states and sums: flat blocks of integers, written once for each and
found again.

A block is told by its offset in one arena. What computes the same (op class) shares its geometry,
its costs and sizes.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from ...graph import Graph, Op, Tensor
from ...lowering import Prepared
from ...lowering.collective import is_collective
from ...lowering.partition.emit import Shares
from ...lowering.partition.layout import Copy, Grid, Local, ShardDraft, part_of
from ...lowering.partition.problem import Placed
from ...semantics import Region, statistics_of
from ...structure import TensorOf, owns_outputs
from ...units import picoseconds
from .plan import NotCoveredError, Plan, State, Sums
from .rules import MOST_PS

GRID, LOCAL = 0, 1
COMPUTE, COLLECTIVE = 0, 1
OF_SUMS = 1 << 20
"""In a grid: the row is one of the sums of the tensor, not of its op."""
MOST_PARTS, MOST_BASES = 1 << 20, 1 << 10
# A block of geometry: parts, and where to find (in the arena) boxes and addends by part, needs by
# operand, layouts and sizes by output.
PARTS, BOXES, ADDENDS, NEEDS, LAYOUTS, SIZES, STRIDE, GEOMETRY = range(8)
# A layout: grid or local, rank, bytes of an element (0: they do not come out even), bytes,
# elements, cells (or regions by part), then for each dimension how many intervals, where their
# starts and stops are, and the stride.
KIND, RANK, UNIT, BYTES, ELEMENTS, CELLS, ADDENDS_OF, DIMS = range(8)
# Sums: rows, the grid, and where each row is: what it is, its ps, how many bases, inputs, queues,
# sizes; then devices.
ROWS, SUM_GRID, ROW = range(3)
WHAT, LENGTH, BASES, INPUTS, QUEUES, SUM_SIZES, DEVICES = range(7)
LIMIT = 1 << 62


class Arena:
    """Integers that only grow; an offset stays what it is, the array may move."""

    def __init__(self, size: int = 1 << 16) -> None:
        self.data, self.used = np.zeros(size, np.int64), 1

    def reserve(self, size: int) -> None:
        """Make room."""
        if self.used + size > len(self.data):
            grown = np.zeros(2 * (self.used + size), np.int64)
            grown[: self.used] = self.data[: self.used]
            self.data = grown

    def put(self, words: Sequence[int]) -> int:
        """Append integers; returns where they begin."""
        self.reserve(len(words))
        begin, self.used = self.used, self.used + len(words)
        self.data[begin : self.used] = words
        return begin


class Blocks:
    """Writes states and sums of a plan into an arena."""

    def __init__(self, prepared: Prepared) -> None:
        self.prepared, self.arena = prepared, Arena()
        self.lock = threading.Lock()
        self.device_kinds = [device.kind for device in prepared.cluster.devices]
        self._classes: dict[Any, int] = {}
        self._class_of: dict[int, int] = {}
        self._kept: list[Any] = []  # what is known by its id must live
        self._ops: dict[Any, tuple[Op, dict[str, int]]] = {}
        self._geometries: dict[Any, int] = {}
        self._boxes: dict[Any, int] = {}

    # What computes the same

    def _class(self, plan: Plan, i: int) -> int:
        """The number of the op's class."""
        if i not in self._class_of:
            op, read = plan.graph.ops[i], plan.problem.readings[i]
            operands = plan.graph.operands[i]
            key = (
                op.kind,
                op.phase,
                repr(sorted(op.attrs.items())),
                repr(op.time),
                op.outputs,
                read,
                operands,
            )
            sizes = op.param_bytes, op.grad_bytes, op.state_bytes, op.workspace_bytes
            self._class_of[i] = self._classes.setdefault((*key, sizes), len(self._classes))
        return self._class_of[i]

    def _op(self, plan: Plan, state: State, number: int) -> tuple[Op, dict[str, int]]:
        """One part as an op, with its training state, and its durations in ps as they are asked
        for.
        """
        one, i = state.placed[number], state.op
        key = self._class(plan, i), id(one.part), state.divided
        if key not in self._ops:
            self._kept.append(one.part)
            fields = Shares(plan, i, self.prepared.costs).fields(one)
            op = Op(
                "op", plan.graph.ops[i].kind, outputs=tuple(state.drafts[number].tensors), **fields
            )
            self._ops[key] = replace(self.prepared, graph=Graph("part", (op,))).graph.ops[0], {}
        return self._ops[key]

    def _ps(self, graph: Graph, position: int, kind: str) -> int:
        cost = self.prepared.costs.cost(graph, position, kind)
        ps = MOST_PS if cost is None else picoseconds(cost.seconds)
        if ps >= MOST_PS:
            raise NotCoveredError
        return ps

    # States

    def state(self, plan: Plan, state: State) -> tuple[int, int]:
        """Where geometry and devices of a state are; the latter as devices, then ps, by part."""
        if state.words is None:
            if len(state.placed) >= MOST_PARTS:
                raise NotCoveredError
            devices, lengths = [one.device for one in state.placed], []
            for number, device in enumerate(devices):
                op, known = self._op(plan, state, number)
                kind = self.device_kinds[device]
                if kind not in known:
                    known[kind] = self._ps(Graph("part", (op,)), 0, kind)
                lengths.append(known[kind])
            state.words = self._geometry(plan, state), self.arena.put(devices + lengths)
        return state.words

    def _geometry(self, plan: Plan, state: State) -> int:
        local = any(isinstance(one, Local) for one in state.layouts)
        # Which copy of a leaf is found first does not depend on devices, but a grid of parts on one
        # device may.
        parts = tuple((id(one.part), one.addend) for one in state.placed)
        key = self._class(plan, state.op), state.divided, local, parts
        if key not in self._geometries:
            self._kept += [one.part for one in state.placed]
            self._geometries[key] = self._write(plan, state)
        return self._geometries[key]

    def _write(self, plan: Plan, state: State) -> int:
        arena, placed, op = self.arena, state.placed, plan.graph.ops[state.op]
        boxes = [self._boxes.setdefault(one.part.box, len(self._boxes)) for one in placed]
        addends = [-1 if one.addend is None else one.addend for one in placed]
        needs = [self._needs(placed, operand) for operand in range(len(op.inputs))]
        layouts = []
        for k, layout in enumerate(state.layouts):
            rows = {id(draft): number for number, draft in enumerate(state.drafts)}
            layouts.append(self._layout(layout, op.outputs[k], rows, k, state.drafts))
        stride, sizes = self._sizes(plan, state)
        return arena.put(
            [
                len(placed),
                arena.put(boxes),
                arena.put(addends),
                arena.put(needs),
                arena.put(layouts),
                arena.put(sizes),
                stride,
            ]
        )

    def _needs(self, placed: Sequence[Placed], operand: int) -> int:
        """The rank, then by part whether it reads anything, and the intervals."""
        regions = [one.part.needs[operand] for one in placed]
        rank = max((len(region) for region in regions if region is not None), default=0)
        words = [rank]
        for region in regions:
            words.append(int(region is not None))
            words += [x for interval in region or ((0, 0),) * rank for x in interval]
        return self.arena.put(words)

    def _sizes(self, plan: Plan, state: State) -> tuple[int, list[int]]:
        """By part: bytes throughout, bytes while it runs, then those of each output that it
        makes.
        """
        rounded = self.prepared.memory.rounded
        most = max((len(draft.regions) for draft in state.drafts), default=0)
        words: list[int] = []
        for number, draft in enumerate(state.drafts):
            op, _ = self._op(plan, state, number)
            if len(draft.regions) >= MOST_BASES:
                raise NotCoveredError
            words += [rounded(op.param_bytes) + rounded(op.grad_bytes) + rounded(op.state_bytes)]
            words += [rounded(op.workspace_bytes)]
            shared = owns_outputs(op)
            made = [0 if shared else rounded(tensor.bytes) for tensor in op.made]
            words += made + [0] * (most - len(made))
        return 2 + most, words

    def _layout(
        self,
        layout: Grid | Local,
        tensor: Tensor,
        rows: Mapping[int, int],
        output: int,
        drafts: Sequence[ShardDraft] = (),
    ) -> int:
        if isinstance(layout, Local):
            return self._local(tensor, output, drafts)
        dims: list[int] = []
        stride = prod(map(len, layout.dims))
        places = stride
        for intervals in layout.dims:
            stride = stride // len(intervals) if intervals else 0
            starts, stops = (
                self.arena.put([a for a, _ in intervals]),
                self.arena.put([b for _, b in intervals]),
            )
            dims += [len(intervals), starts, stops, stride]
        cells = [-1] * places
        for place, cell in layout.cells.items():
            at = sum(one * dims[4 * d + 3] for d, one in enumerate(place))
            cells[at] = self.arena.put(
                [len(cell), *(self.arena.put(_copies(copies, rows)) for copies in cell)]
            )
        head = [GRID, len(layout.dims), *self._units(tensor), self.arena.put(cells), layout.addends]
        return self.arena.put(head + dims)

    def _local(self, tensor: Tensor, output: int, drafts: Sequence[ShardDraft]) -> int:
        regions: list[tuple[int, Region]] = []
        for draft in drafts:
            found = [
                (base, region) for base, (k, region) in enumerate(draft.regions) if k == output
            ]
            regions.append(found[0] if found else (-1, ()))
        rank = max((len(region) for _, region in regions), default=0)
        words: list[int] = []
        for base, region in regions:
            words += [base, *(x for interval in region or ((0, 0),) * rank for x in interval)]
        return self.arena.put([LOCAL, rank, *self._units(tensor), self.arena.put(words), 1])

    def _units(self, tensor: Tensor) -> tuple[int, int, int]:
        count = prod(tensor.shape or ())
        if count and tensor.bytes % count and tensor.bytes * count >= LIMIT:
            raise NotCoveredError
        return (
            tensor.bytes // count if count and tensor.bytes % count == 0 else 0,
            tensor.bytes,
            count,
        )

    # Sums

    def sums(self, plan: Plan, sums: Sums) -> tuple[int, int]:
        """Where the sums of a tensor are, and how many there may be."""
        if sums.words is None:
            own = {id(draft): number for number, draft in enumerate(sums.made.drafts)}
            made: dict[int, ShardDraft] = {}
            for cell in sums.grid.cells.values():
                for copy in (copy for copies in cell for copy in copies):
                    self._find(copy.draft, own, made)
            inputs = {key: self._filled(draft) for key, draft in made.items()}
            for found in list(inputs.values()):
                for copy, _ in found:
                    if id(copy.draft) not in own and id(copy.draft) not in made:
                        made[id(copy.draft)] = copy.draft
                        inputs[id(copy.draft)] = self._filled(copy.draft)
            rows = own | {key: OF_SUMS + row for row, key in enumerate(made)}
            if len(made) >= MOST_PARTS or any(
                c.draft.role == "stored" for one in inputs.values() for c, _ in one
            ):
                raise NotCoveredError
            tensor = plan.tensor((sums.made.op, sums.output))
            words = [self._sum(draft, inputs[key], rows, tensor) for key, draft in made.items()]
            grid = self._layout(sums.grid, tensor, rows, sums.output)
            self._kept += [*made.values(), sums]
            sums.words = self.arena.put([len(made), grid, *words]), len(made)
        return sums.words

    @staticmethod
    def _find(draft: ShardDraft, own: Mapping[int, int], made: dict[int, ShardDraft]) -> None:
        if id(draft) not in own:
            made[id(draft)] = draft

    @staticmethod
    def _filled(draft: ShardDraft) -> list[tuple[Copy, Region]]:
        assert draft.pieces is not None
        return [(copy, region) for copy, _, region in draft.pieces()]

    def _sum(
        self,
        draft: ShardDraft,
        inputs: Sequence[tuple[Copy, Region]],
        rows: Mapping[int, int],
        tensor: Tensor,
    ) -> int:
        words = [len(inputs), max((len(region) for _, region in inputs), default=0)]
        for copy, region in inputs:
            base = int(region == copy.draft.regions[copy.base][1])
            words += [
                rows[id(copy.draft)],
                copy.base,
                base,
                *(x for interval in region for x in interval),
            ]
        read = tuple(part_of(tensor, region) for _, region in inputs)
        names = tuple(f"read:{at}" for at in range(len(read)))
        op = Op("sum", draft.kind, inputs=names, outputs=tuple(draft.tensors), **draft.fields)
        prepared = replace(
            self.prepared, graph=Graph("sum", (Op("read", "parameter", outputs=read), op))
        )
        sizes = self.arena.put([self.prepared.memory.rounded(one.bytes) for one in draft.tensors])
        where = self.arena.put(words)
        if not is_collective(op):
            length = self._ps(prepared.graph, 1, self.device_kinds[draft.device])
            devices = [draft.device] * len(draft.regions)
            return self.arena.put([COMPUTE, length, len(devices), where, 0, sizes, *devices])
        ring = prepared.rings[1]
        if ring.expanded or ring.duration_ps >= MOST_PS:
            raise NotCoveredError
        queues = self.arena.put([len(ring.resources), *ring.resources])
        devices = list(ring.outputs_on[: len(draft.regions)])
        return self.arena.put(
            [COLLECTIVE, ring.duration_ps, len(devices), where, queues, sizes, *devices]
        )


def _copies(copies: Sequence[Copy], rows: Mapping[int, int]) -> list[int]:
    return [len(copies), *(x for copy in copies for x in (rows[id(copy.draft)], copy.base))]


def goes_on(plan: Plan, reader: int, tensor: TensorOf) -> bool:
    """Whether an op takes the statistics of its own part from a tensor."""
    return statistics_of(plan.graph.ops[reader].kind) == plan.graph.ops[tensor[0]].kind
