"""Ops added between the producer and the readers of a tensor: sums of partial results, and tensors
stored in another layout than they are made in.

Activations, and gradients with sync "sharded": every holder of a partial result adds up its chunk
(reduce-scatter), and readers fetch the chunks (all-gather), by direct messages. Gradients with
"parameter-server": one sum, where the first partial result is. With "all-reduce": one collective op
over all holders, which leaves the sum on each; with "bucketed" one for several gradients, in
buckets filled in the order in which gradients are made, as PyTorch's DDP does. A bucket is closed
once it holds its limit, the first a smaller one, so that sending begins early (Li et al., "PyTorch
Distributed", VLDB 2020, section 3.2.3; the sizes are those of DistributedDataParallel).

Tofu stores a tensor in a partition of its choice, and adds up where the stored parts lie (Wang et
al., EuroSys 2019, section 3.1: output reduction).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

from ...ground.errors import InputError, refuse
from ...ground.units import is_count
from ...nouns.graph import Tensor
from ...nouns.semantics import Region, adder_of, extents, parts_of, volume
from ...nouns.strategy.sync import BUCKET, FIRST_BUCKET, gathered
from ...nouns.structure import TensorOf
from ..collective import ALL_REDUCE
from .layout import Addends, Copy, Grid, Local, Piece, Place, ShardDraft, nearest, part_of
from .problem import SplitProblem


class ShardWriter:
    """Drafts and layouts of one problem.

    ``drafts`` are by op the drafts of its parts; ``stored`` are by op the drafts that store its
    outputs in another layout. ``buckets`` are the copies of the sums of gradients that are reduced
    together (None: not made yet). ``written`` is the sharded graph so far.
    """

    def __init__(self, problem: SplitProblem) -> None:
        self.problem, self.graph = problem, problem.graph
        self.layouts: dict[TensorOf, Grid | Local] = {}
        self.drafts: dict[int, list[ShardDraft]] = {}
        self.stored: dict[int, list[ShardDraft]] = {}
        self.buckets: dict[tuple[TensorOf, Place], list[Copy]] | None = None
        self.written: list[ShardDraft] = []
        self._numbers: Counter[tuple[int, str]] = Counter()

    def tensor(self, tensor: TensorOf) -> Tensor:
        """A tensor of the graph."""
        return self.graph.ops[tensor[0]].outputs[tensor[1]]

    def added(
        self,
        tensor: TensorOf,
        role: str,
        device: int,
        kind: str,
        regions: Sequence[Region],
        pieces: Callable[[], Iterable[Piece]],
        **fields: Any,
    ) -> ShardDraft:
        """The draft of an op that lowering adds between a tensor and its readers: it makes
        ``regions`` of the tensor, and reads ``pieces``, which are computed when it is written.
        """
        i, k = tensor
        number = self._numbers[i, role]
        self._numbers[i, role] += 1
        tensors = [part_of(self.tensor(tensor), region) for region in regions]
        made = [(k, region) for region in regions]
        op = self.graph.ops[i]
        name, addend = f"{op.name}#{role}{number}", [(0, 1)] * len(tensors)
        draft = ShardDraft(name, i, role, number, device, kind, tensors, made, addend)
        draft.fields, draft.pieces = {"phase": op.phase, **fields}, pieces
        return draft

    def hand_out(self, copy: Copy, tensor: TensorOf, region: Region) -> str:
        """The text of an input that reads a region of a copy; the copy's draft is written first."""
        self.write(copy.draft)
        return copy.draft.output(copy.base, region, self.tensor(tensor))

    def write(self, draft: ShardDraft) -> None:
        """Put an added op into the graph, unless it is there already."""
        if draft.pieces is not None:
            pieces, draft.pieces = draft.pieces, None
            # Its producers are written first, so that the graph stays in program order.
            draft.inputs = [self.hand_out(*piece) for piece in pieces()]
            self.written.append(draft)


def summed(writer: ShardWriter, tensor: TensorOf, grid: Grid, cut: int | None) -> Grid:
    """The grid of the values of a tensor in partial results; sums are written when they are first
    read.

    Chunks are cut along the dimension ``cut``, along which the first reader is cut, if that can be
    done evenly.
    """
    sync = writer.problem.strategy.sync
    if tensor not in writer.problem.weights.gradients or sync == "sharded":
        return _in_chunks(writer, tensor, grid, cut)
    if sync == "bucketed" and writer.buckets is None:
        writer.buckets = _buckets(writer)
    buckets = writer.buckets if sync == "bucketed" and writer.buckets else {}
    make = _on_server if sync == "parameter-server" else _all_reduced
    cells = {
        # A gradient with readers other than updates cannot wait for others, and has no bucket.
        place: [buckets.get((tensor, place)) or make(writer, tensor, grid, place)]
        for place in sorted(grid.cells)
    }
    return Grid(grid.dims, cells, grid.reducer)


def _adder(
    writer: ShardWriter,
    tensor: TensorOf,
    grid: Grid,
    addends: Sequence[int],
    region: Region,
    device: int,
    role: str,
) -> Copy:
    """A copy made by a new op that adds up a region of the partial results ``addends``."""

    def pieces() -> Iterator[Piece]:
        cells = list(grid.overlapping(region))
        for addend in addends:
            for piece, cell in cells:
                yield nearest(cell[addend], device), tensor, piece

    attrs, whole = {}, writer.tensor(tensor)
    if whole.shape is not None:
        shapes = (extents(region),) * len(addends)
        attrs = {"in": shapes, "dt": (whole.dtype,) * len(addends)}
    kind = adder_of(grid.reducer)
    draft = writer.added(tensor, role, device, kind, [region], pieces, attrs=attrs)
    return Copy(draft, 0, device)


# Chunks: a reduce-scatter by direct messages


def _in_chunks(writer: ShardWriter, tensor: TensorOf, grid: Grid, cut: int | None) -> Grid:
    """The grid in which every region is cut into as many chunks as it has partial results, each
    chunk added up on the device of one of them.
    """
    dimension, count = _cut(grid, cut)
    cells: dict[Place, Addends] = {}
    dims = list(grid.dims)
    if dimension is not None:
        dims[dimension] = tuple(
            (start + first, start + last)
            for start, stop in dims[dimension]
            for first, last in parts_of(stop - start, count)
        )
    for place, addends in sorted(grid.cells.items()):
        for chunk in range(count):
            at, region = place, list(grid.region(place))
            if dimension is not None:
                row = place[dimension] * count + chunk
                at = (*place[:dimension], row, *place[dimension + 1 :])
                region[dimension] = dims[dimension][row]
            device, every = addends[chunk][0].device, range(len(addends))
            cells[at] = [[_adder(writer, tensor, grid, every, tuple(region), device, "sum")]]
    return Grid(tuple(dims), cells, grid.reducer)


def _cut(grid: Grid, wanted: int | None) -> tuple[int | None, int]:
    """The dimension along which chunks are cut, and their number.

    It is the wanted dimension if that can be cut evenly, else the first that can, else the longest.
    """
    longest: tuple[int, int | None] = (1, None)
    for dimension, intervals in sorted(enumerate(grid.dims), key=lambda item: item[0] != wanted):
        lengths = [stop - start for start, stop in intervals]
        if lengths and all(length and length % grid.addends == 0 for length in lengths):
            return dimension, grid.addends
        if lengths and min(lengths) > longest[0]:
            longest = min(lengths), dimension
    return longest[1], min(grid.addends, longest[0])


# One sum, on a server or on every holder


def _on_server(writer: ShardWriter, tensor: TensorOf, grid: Grid, place: Place) -> list[Copy]:
    """A single sum, on the device of the first partial result, for whose backward it must wait."""
    addends = grid.cells[place]
    device, every = addends[0][0].device, range(len(addends))
    return [_adder(writer, tensor, grid, every, grid.region(place), device, "sync")]


def _all_reduced(writer: ShardWriter, tensor: TensorOf, grid: Grid, place: Place) -> list[Copy]:
    """A collective over the devices that hold partial results."""
    region, held = grid.region(place), _holders(writer, tensor, grid, place)
    if len(held) == 1:
        return held
    pieces = [(copy, tensor, region) for copy in held]
    draft = _all_reduce(writer, tensor, held, [region] * len(held), pieces)
    return [Copy(draft, rank, copy.device) for rank, copy in enumerate(held)]


def _all_reduce(
    writer: ShardWriter,
    tensor: TensorOf,
    held: Sequence[Copy],
    regions: Sequence[Region],
    pieces: Iterable[Piece],
) -> ShardDraft:
    """A collective of the devices of these partial results, named after a gradient."""
    names = [writer.problem.cluster.devices[copy.device].name for copy in held]
    attrs = {"ranks": names}
    return writer.added(
        tensor, "sync", held[0].device, ALL_REDUCE, regions, lambda: pieces, attrs=attrs
    )


def _holders(writer: ShardWriter, tensor: TensorOf, grid: Grid, place: Place) -> list[Copy]:
    """The partial results of a region, one for each device: several on a device are added up there
    first.
    """
    region, cell, by_device = grid.region(place), grid.cells[place], dict[int, list[int]]()
    for addend, copies in enumerate(cell):
        by_device.setdefault(copies[0].device, []).append(addend)
    return [
        cell[addends[0]][0]
        if len(addends) == 1
        else _adder(writer, tensor, grid, addends, region, device, "sum")
        for device, addends in by_device.items()
    ]


# Buckets of gradients


class _Gradient(NamedTuple):
    """A region of a gradient in partial results, one for each device, and its tensor."""

    tensor: TensorOf
    place: Place
    region: Region
    partial: list[Copy]
    part: Tensor


_Sums = dict[tuple[TensorOf, Place], list[Copy]]


def _buckets(writer: ShardWriter) -> _Sums:
    """The copies of the sums of gradients that only updates read, on each device with a partial
    result.

    A bucket has gradients of one dtype on the same devices.
    """
    sums, groups = _Sums(), dict[object, list[_Gradient]]()
    for gradient in _gradients(writer):
        devices = tuple(copy.device for copy in gradient.partial)
        if len(devices) == 1:
            sums[gradient.tensor, gradient.place] = gradient.partial
        else:
            groups.setdefault((devices, gradient.part.dtype), []).append(gradient)
    for members in groups.values():
        sizes = [member.part.bytes for member in members]
        for rows in gathered(sizes, FIRST_BUCKET, BUCKET):
            sums |= _bucket(writer, [members[row] for row in rows])
    return sums


def _gradients(writer: ShardWriter) -> Iterator[_Gradient]:
    """The gradients in partial results that only updates read, in program order, in which they are
    made.
    """
    problem = writer.problem
    others = {t for i, read in enumerate(problem.read) if i not in problem.updates for t in read}
    for tensor in sorted(problem.weights.gradients - others):
        grid = writer.layouts.get(tensor)
        if isinstance(grid, Grid) and grid.addends > 1:
            for place in sorted(grid.cells):
                region, held = grid.region(place), _holders(writer, tensor, grid, place)
                part = part_of(writer.tensor(tensor), region)
                yield _Gradient(tensor, place, region, held, part)


def _bucket(writer: ShardWriter, members: Sequence[_Gradient]) -> _Sums:
    """The sums of a bucket: views of the buffers that its collective leaves, one on each rank."""
    held, last = members[0].partial, members[-1]
    pieces = [
        (member.partial[rank], member.tensor, member.region)
        for rank in range(len(held))
        for member in members
    ]
    # Named after the gradient that it waits for last.
    draft = _all_reduce(writer, last.tensor, held, [], pieces)
    whole = Tensor(sum(member.part.bytes for member in members), None, last.part.dtype)
    draft.tensors = [whole] * len(held)
    elements = sum(volume(member.region) for member in members)
    draft.regions = [(last.tensor[1], ((0, elements),))] * len(held)
    sums = _Sums()
    for rank, holder in enumerate(held):
        for member in members:
            copies = sums.setdefault((member.tensor, member.place), [])
            copies.append(Copy(draft, len(draft.tensors), holder.device))
            part = member.part
            draft.tensors.append(Tensor(part.bytes, part.shape, part.dtype, rank))
            draft.regions.append((member.tensor[1], member.region))
    draft.addend = [(0, 1)] * len(draft.tensors)
    return sums


# Tensors stored in another layout than they are made in


def stored_grid(writer: ShardWriter, tensor: TensorOf, degrees: Mapping[int, int]) -> Grid:
    """The grid in which a tensor is stored, on the devices of its op. Raises InputError."""
    made, shape = writer.layouts[tensor], writer.tensor(tensor).shape
    assert isinstance(made, Grid)
    name = writer.graph.ops[tensor[0]].name
    refuse(_degree_problems(f'tensors["{name}:{tensor[1]}"]: op "{name}":', shape, degrees))
    dims = tuple(parts_of(extent, degrees.get(d, 1)) for d, extent in enumerate(shape or ()))
    devices = list(dict.fromkeys(draft.device for draft in writer.drafts[tensor[0]]))
    count = prod(map(len, dims))
    if count % len(devices) and len(devices) % count:
        raise InputError(
            f'tensors["{name}:{tensor[1]}"]: {count} parts on the {len(devices)} devices of op '
            f'"{name}": one number must divide the other'
        )
    cells: dict[Place, Addends] = {}
    for number, place in enumerate(product(*(range(len(intervals)) for intervals in dims))):
        region = tuple(intervals[at] for intervals, at in zip(dims, place, strict=True))
        device = devices[number * len(devices) // count]
        cells[place] = [[_stored_part(writer, tensor, made, region, device)]]
    return Grid(dims, cells, made.reducer)


def _stored_part(
    writer: ShardWriter, tensor: TensorOf, made: Grid, region: Region, device: int
) -> Copy:
    """The copy of a stored region: the part that makes just this region on the device, if there is
    one, else an op that takes no time and collects the region there.
    """
    if made.addends > 1:
        copy = _adder(writer, tensor, made, range(made.addends), region, device, "stored")
    else:
        cells = list(made.overlapping(region))
        for maker in [nearest(cells[0][1][0], device)] if len(cells) == 1 else []:
            if maker.device == device and maker.draft.regions[maker.base][1] == region:
                return maker
        pieces = [(nearest(cell[0], device), tensor, piece) for piece, cell in cells]
        draft = writer.added(tensor, "stored", device, "identity", [region], lambda: pieces, time=0)
        copy = Copy(draft, 0, device)
    writer.stored.setdefault(tensor[0], []).append(copy.draft)
    return copy


def _degree_problems(
    where: str, shape: tuple[int, ...] | None, degrees: Mapping[int, int]
) -> Iterator[str]:
    """Problems of dimensions that the tensor lacks, and of degrees that do not divide."""
    for dimension, degree in degrees.items():
        if shape is None or not 0 <= dimension < len(shape):
            yield f"{where} the tensor has no dimension {dimension}"
        elif not is_count(degree) or not degree or shape[dimension] % degree:
            extent = shape[dimension]
            yield f"{where} dimension {dimension}: degree {degree} does not divide {extent}"
