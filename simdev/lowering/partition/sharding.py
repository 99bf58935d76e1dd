"""The split of every op under a strategy: the parts and their devices, the layout of every tensor,
and the pieces that each part reads.

``sharding_of`` applies the rules to all ops for ``partition``, short forms and the symmetry of
replicas. ``oracle.splits.program`` runs the same ``Sharding`` op by op and logs its changes; the
pieces that are read (``read``) are also computed by the kernels of ``oracle.splits.pieces``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from ...ground.errors import InputError, refuse
from ...nouns.graph import Tensor
from ...nouns.semantics import Region, is_linear, statistics_of, traits_of
from ...nouns.structure import TensorOf
from .geometry import Box, Part, made_part, part, updated_part
from .layout import Copy, Grid, Local, ShardDraft, grid_of, inside, nearest, part_of
from .problem import (
    Placed,
    SplitProblem,
    alike,
    configured_parts,
    followed_axes,
    followed_parts,
    partial_parts,
)
from .sums import ShardWriter, stored_grid, summed

AddUp = Callable[[TensorOf, Grid, int | None], Grid]


class Sharding(ShardWriter):
    """The rules of splitting, op by op, with their results for a problem (``sharding_of`` applies
    them to all ops).

    ``parts`` are those of every op; ``divided`` is by op how its parts are timed
    (``Configuration.time``: None or "divided"); ``sums`` are the layouts of the summed values of
    tensors in partial results. A caller that logs and undoes changes (``oracle.splits``) passes its
    own ``layouts`` and ``divided``. ``add_up`` makes the layout of the values of a tensor in
    partial results, cut along a dimension: by default ``summed``, once for each tensor.
    """

    def __init__(
        self,
        problem: SplitProblem,
        layouts: dict[TensorOf, Grid | Local] | None = None,
        divided: dict[int, str | None] | None = None,
        add_up: AddUp | None = None,
    ) -> None:
        super().__init__(problem)
        self.parts: dict[int, list[Placed]] = {}
        self.layouts = self.layouts if layouts is None else layouts
        self.divided = {} if divided is None else divided
        self.sums: dict[TensorOf, Grid] = {}
        self._add_up = add_up or self._add_up_once

    # Parts

    def parts_of(self, i: int) -> list[Placed] | None:
        """The parts of an op that is configured, placed, or follows an operand; None where it has
        no operand to follow.
        """
        problem, op = self.problem, self.problem.readings[i]
        if i in problem.configured:
            self.divided[i] = problem.configured[i].time
            return configured_parts(op, problem.configured[i])
        if not problem.free[i]:
            return [Placed(part(op, ()), problem.placed[i])]
        return self.following(i)

    def following(self, i: int) -> list[Placed] | None:
        """The parts of an op that follows the first operand that is split; None where it has no
        operand to follow.

        The backward op of a layer without weights tries its forward tensors first, so that it runs
        where the forward op did.
        """
        problem, op, read = self.problem, self.problem.readings[i], self.problem.read[i]
        grids = {
            operand: layout
            for operand, tensor in enumerate(read)
            if tensor in problem.touched[i] and isinstance(layout := self.layouts.get(tensor), Grid)
        }
        if not grids:
            return None
        linear = self._linear_operand(i, grids)
        if linear is not None:
            parts = partial_parts(op, linear, grids[linear])
            if parts is not None:
                self.divided[i] = self.divided.get(read[linear][0])
                return parts
        operands = list(grids)
        if problem.goes_back[i]:
            ops = self.graph.ops
            operands.sort(key=lambda operand: ops[read[operand][0]].phase != "forward")
        chosen = next((j for j in operands if followed_axes(op, j, grids[j])), None)
        if chosen is None:
            # There may be an axis along the chunks in which partial results are added up.
            grids = {j: self.whole(read[j]) for j in operands}
            chosen = next((j for j in operands if followed_axes(op, j, grids[j])), operands[0])
        self.divided[i] = self.divided.get(read[chosen][0])
        return followed_parts(op, chosen, grids[chosen])

    def _linear_operand(self, i: int, grids: Mapping[int, Grid]) -> int | None:
        """The operand whose partial results an op can compute with, so that they are added up
        later; None where there is none.
        """
        op = self.graph.ops[i]
        linear_in = traits_of(op.kind).linear_in
        operand = linear_in or 0
        partial = {j for j, grid in grids.items() if grid.addends > 1}
        if operand not in partial:
            return None
        if linear_in is not None:
            goes_on = partial == {operand} and (i, 0) in self.problem.weights.gradients
        else:
            together = all(alike(grids[operand], other) for other in grids.values())
            goes_on = is_linear(op) and len(grids) == len(op.inputs) and together
        return operand if goes_on else None

    def sum_up(self, i: int) -> None:
        """Add up the tensors whose values the parts of an op need, cut as they read them if
        possible.
        """
        for tensor, cut in self.needed_sums(i, self.parts[i]):
            self.whole(tensor, cut)

    def needed_sums(self, i: int, parts: Sequence[Placed]) -> Iterator[tuple[TensorOf, int | None]]:
        """The operands in partial results whose values the parts of an op need, with the dimension
        along which the parts read different intervals (None: no dimension).
        """
        if parts[0].addend is not None:
            return
        for operand, tensor in enumerate(self.problem.read[i]):
            layout, alone = self.layouts.get(tensor), self.problem.readings[i].shape_only(operand)
            if alone or not isinstance(layout, Grid) or layout.addends == 1:
                continue
            needs = (placed.part.needs[operand] for placed in parts)
            regions = [region for region in needs if region is not None]
            statistics = (self.own_statistics(i, tensor, placed) for placed in parts)
            if regions and None in statistics:
                axes = zip(*regions, strict=True)
                cuts = (d for d, intervals in enumerate(axes) if len(set(intervals)) > 1)
                yield tensor, next(cuts, None)

    def whole(self, tensor: TensorOf, cut: int | None = None) -> Grid:
        """The layout of a tensor's values, with partial results added up, in chunks along the
        dimension ``cut`` if given. Makes the sums if they do not exist yet.
        """
        layout = self.layouts[tensor]
        assert isinstance(layout, Grid)
        return layout if layout.addends == 1 else self._add_up(tensor, layout, cut)

    def _add_up_once(self, tensor: TensorOf, layout: Grid, cut: int | None) -> Grid:
        if tensor not in self.sums:
            self.sums[tensor] = summed(self, tensor, layout, cut)
        return self.sums[tensor]

    # Layouts

    def lay(self, i: int) -> None:
        """Make the drafts of an op's parts, and the layouts of its outputs."""
        op, stored = self.graph.ops[i], self.problem.strategy.tensors
        self.drafts[i] = self.drafts_of(i, self.parts[i])
        for k in range(len(op.outputs)):
            self.layouts[i, k] = self.grid(i, k, self.drafts[i], self.parts[i])
            degrees = stored.get(f"{op.name}:{k}") or (stored.get(op.name) if k == 0 else None)
            if degrees:
                self.layouts[i, k] = stored_grid(self, (i, k), degrees)

    def drafts_of(self, i: int, parts: Sequence[Placed]) -> list[ShardDraft]:
        """Drafts of parts of an op, with their numbers among partial results."""
        drafts = self._drafts(i, parts, "shard")
        addends = 1 + max((placed.addend or 0 for placed in parts), default=0)
        most = [1 + max(column) for column in zip(*(p.part.addends for p in parts), strict=True)]
        for draft, placed in zip(drafts, parts, strict=True):
            # Row-major: the op's own partial results, then those of the operand it computes with.
            draft.addend = [
                (placed.part.addends[k] * addends + (placed.addend or 0), most[k] * addends)
                for k, _ in draft.regions
            ]
        return drafts

    def grid(self, i: int, k: int, drafts: Sequence[ShardDraft], parts: Sequence[Placed]) -> Grid:
        """The layout of an output of an op with these parts. Raises InputError."""
        made, semantics = [], self.problem.readings[i].semantics
        for draft, placed in zip(drafts, parts, strict=True):
            for base, (output, region) in enumerate(draft.regions):
                if output == k:
                    where = Copy(draft, base, draft.device)
                    made.append((region, draft.addend[base][0], placed.part.copies[k], where))
        reducer = "sum" if semantics is None else semantics.description.outputs[k].reducer
        try:
            return grid_of(made, reducer)
        except ValueError as error:
            name = self.graph.ops[i].name
            raise InputError(
                f'partition["{name}"]: output {k} of op "{name}" falls into {error}'
            ) from None

    def _drafts(self, i: int, parts: Sequence[Placed], role: str) -> list[ShardDraft]:
        """A draft for each part of an op; a single part keeps the name."""
        op, drafts, many = self.graph.ops[i], list[ShardDraft](), len(parts) > 1
        numbers = self.problem.numbers
        tensors_of: dict[int, list[Tensor]] = {}  # parts that run the same make the same shapes
        for number, placed in enumerate(parts):
            called = numbers[number] if numbers else number
            name = f"{op.name}#{called}" if many else op.name
            made = [(k, region) for k, region in enumerate(placed.part.makes) if region is not None]
            runs = id(placed.part.kernel or placed.part)
            if runs not in tensors_of:
                tensors_of[runs] = [part_of(op.outputs[k], region) for k, region in made]
            tensors = list(tensors_of[runs])
            if len(op.made) < len(op.outputs):
                # An op with views is never split, so its outputs are unchanged.
                tensors = list(op.outputs)
            addend, box = [(0, 1)] * len(made), placed.part.box
            drafts.append(
                ShardDraft(
                    name, i, role, number, placed.device, op.kind, tensors, made, addend, box
                )
            )
        return drafts

    def lay_copies(self, i: int) -> None:
        """Make the drafts of the copies of an op on demand, and the layouts of its outputs."""
        self.drafts[i] = self._drafts(i, self.parts[i], "copy")
        for k in range(len(self.graph.ops[i].outputs)):
            by_device: dict[int, list[tuple[Region, Copy]]] = {}
            for draft in self.drafts[i]:
                for base, (output, region) in enumerate(draft.regions):
                    if output == k:
                        copy = Copy(draft, base, draft.device)
                        by_device.setdefault(draft.device, []).append((region, copy))
            self.layouts[i, k] = Local(by_device)

    # Pieces that are read

    def read(self, i: int, operand: int, placed: Placed) -> list[str]:
        """The inputs of a part of an op for one of its operands.

        May write sums, and add views to the drafts of producers.
        """
        tensor, region = self.problem.read[i][operand], placed.part.needs[operand]
        return [
            self.hand_out(copy, tensor, piece)
            for piece, copy in (() if region is None else self._pieces(i, operand, placed, region))
        ]

    def _pieces(
        self, i: int, operand: int, placed: Placed, region: Region
    ) -> list[tuple[Region, Copy]]:
        """The pieces of a region of an operand, each with the copy from which a part of the op
        reads it.

        For the shape alone, any partial result will do; where any part of the tensor serves, the
        nearest piece.
        """
        op, tensor, device = self.problem.readings[i], self.problem.read[i][operand], placed.device
        layout = self.layouts[tensor]
        if isinstance(layout, Local):
            return [layout.find(None if op.any_part(operand) else region, device)]
        cells = layout.overlapping(region)
        if op.shape_only(operand):
            pieces = [(piece, nearest(list(chain(*cell)), device)) for piece, cell in cells]
            here = [at for at in pieces if at[1].device == device]
            return (here or pieces)[:1] if op.any_part(operand) else pieces
        addend = placed.addend
        if addend is None:
            addend = self.own_statistics(i, tensor, placed)
        if addend is None or layout.addends == 1:
            cells, addend = self.whole(tensor).overlapping(region), 0
        return [(piece, nearest(cell[addend], device)) for piece, cell in cells]

    def own_statistics(self, i: int, tensor: TensorOf, placed: Placed) -> int | None:
        """The number of the partial result of a statistic that belongs to a part of the backward
        op; None where the tensor is not a statistic of its forward op, or is not in partial
        results.
        """
        layout, kind = self.layouts[tensor], statistics_of(self.graph.ops[i].kind)
        if kind != self.graph.ops[tensor[0]].kind or isinstance(layout, Local):
            return None
        # Among those on the part's device, the one of the same box, else the first.
        here = [
            (copies[0].draft.box != placed.part.box, addend)
            for cell in layout.cells.values()
            for addend, copies in enumerate(cell)
            if copies[0].device == placed.device
        ]
        return min(here)[1] if here and layout.addends > 1 else None


class Demand:
    """The copies of ops on demand: leaves, and ops computed from them alone, are on each device in
    the regions that its shards read.
    """

    def __init__(self, problem: SplitProblem, parts: Mapping[int, list[Placed]]) -> None:
        self.problem, self.parts = problem, parts
        self.readers: dict[int, list[tuple[int, int]]] = {}  # op -> (reader, operand)
        # All readers count, also ops on demand: a leaf that only a leaf reads is copied with it.
        for reader, (op, read) in enumerate(zip(problem.readings, problem.read, strict=True)):
            for operand, (producer, _) in enumerate(read):
                # A reader that any part serves needs no copy of its own.
                if not op.any_part(operand):
                    self.readers.setdefault(producer, []).append((reader, operand))
        self.copies: dict[int, list[Placed]] = {}

    def run(self) -> dict[int, list[Placed]]:
        """The copies of every op on demand, and the parts of the updates, which follow their
        parameters.
        """
        for i in self.problem.order:
            if i in self.problem.on_demand or i in self.problem.updates:
                self.of(i)
        return self.copies

    def of(self, i: int) -> list[Placed]:
        """The copies of one op."""
        if i not in self.copies:
            if i in self.problem.updates:
                self.copies[i] = self._updates(i)
            else:
                self.copies[i] = self._read_copies(i) or [self._unread(i)]
        return self.copies[i]

    def _updates(self, i: int) -> list[Placed]:
        """The parts of an update, one for each copy of its parameter."""
        operand, parameter = self.problem.updates[i]
        output, op = self.problem.read[i][operand][1], self.problem.readings[i]
        regions = ((copy.part.makes[output], copy.device) for copy in self.of(parameter))
        return [
            Placed(updated_part(op, operand, region), device)
            for region, device in regions
            if region is not None
        ]

    def _read_copies(self, i: int) -> list[Placed]:
        """The copies of an op, one for each region read on a device; a region inside another is
        dropped.
        """
        wanted: defaultdict[int, dict[Box, Part]] = defaultdict(dict)
        for reader, operand in self.readers.get(i, ()):
            # The update of a parameter follows its copies, so it needs none itself.
            if self.problem.updates.get(reader, (-1, -1))[1] == i:
                continue
            for copy, device in self.wanted(reader, operand):
                wanted[device][copy.box] = copy
        return [
            Placed(copy, device)
            for device in sorted(wanted)
            for copy in _largest(list(wanted[device].values()))
        ]

    def wanted(self, reader: int, operand: int) -> Iterable[tuple[Part, int]]:
        """For each part of a reader, the copy of an operand that it needs, and its device."""
        producer, output = self.problem.read[reader][operand]
        op = self.problem.readings[producer]
        for placed in self.placed_of(reader):
            region = placed.part.needs[operand]
            if region is not None:
                yield made_part(op, output, region), placed.device

    def placed_of(self, i: int) -> list[Placed]:
        """The parts of an op, or its copies."""
        return self.parts.get(i) or self.of(i)

    def _unread(self, i: int) -> Placed:
        """The copy of an op that nothing reads: whole, on the first device in use."""
        return Placed(part(self.problem.readings[i], ()), min(self.used(), default=0))

    def used(self) -> Iterable[int]:
        """The devices of all parts of ops that are not on demand."""
        return (placed.device for parts in self.parts.values() for placed in parts)


def _largest(parts: Sequence[Part]) -> list[Part]:
    """The parts that are not inside another one, in the order of their regions."""
    if len(parts) == 1:
        return [*parts]
    ordered = sorted(parts, key=lambda each: [region or () for region in each.makes])
    return [
        each
        for at, each in enumerate(ordered)
        if not any(
            # If two cover each other, the first stays.
            _covers(other, each) and (not _covers(each, other) or k < at)
            for k, other in enumerate(ordered)
            if k != at
        )
    ]


def _covers(outer: Part, inner: Part) -> bool:
    return all(
        region is None or (around is not None and inside(region, around))
        for around, region in zip(outer.makes, inner.makes, strict=True)
    )


def sharding_of(problem: SplitProblem) -> Sharding:
    """The parts, drafts and layouts of every op: first of planned ops, producers first; then of ops
    on demand, on the devices that read them, and of the updates of these copies. Raises InputError.
    """
    sharding, problems = Sharding(problem), list[str]()
    for i in problem.order:
        if i in problem.on_demand or i in problem.updates:
            continue
        parts = sharding.parts_of(i)
        if parts is None:
            problems.append(
                f'placement: op "{problem.graph.ops[i].name}" has no device, is not split, and '
                "reads nothing to follow"
            )
            # The op is placed on some device, so that all problems are reported at once.
            parts = [Placed(part(problem.readings[i], ()), 0)]
        sharding.parts[i] = parts
        sharding.sum_up(i)
        sharding.lay(i)
    refuse(problems)
    for i, copies in Demand(problem, sharding.parts).run().items():
        sharding.parts[i] = copies
        sharding.lay_copies(i)
    return sharding
