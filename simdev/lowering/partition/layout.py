"""The layout of a tensor whose op is split: a grid of regions, each with partial results and
copies.

A region that a shard reads is cut at the borders of the grid, found by bisection in each dimension.
sharding.py makes layouts and gives readers their regions, sums.py adds partial results up. The
kernels of ``oracle.splits.pieces`` cut regions in the same order.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise, product
from math import prod
from operator import itemgetter
from typing import Any, NamedTuple

from ...nouns.graph import Tensor
from ...nouns.semantics import Interval, Region, extents, volume
from ...nouns.structure import TensorOf
from .geometry import Box

Place = tuple[int, ...]
"""The place of a region in a grid: an index along each dimension."""


def part_of(tensor: Tensor, region: Region) -> Tensor:
    """A region of a tensor as a tensor by itself, its bytes in proportion, rounded up."""
    if tensor.shape is None:
        return Tensor(tensor.bytes, None, tensor.dtype)
    count = prod(tensor.shape)
    # Rounded up: an element of sub-byte dtypes and of padded tensors has no whole number of bytes.
    size = -(-tensor.bytes * volume(region) // count) if count else 0
    return Tensor(size, extents(region), tensor.dtype)


@dataclass(eq=False, slots=True)
class ShardDraft:
    """An op of the sharded graph while it is written.

    ``tensors`` are its outputs: first those that it makes (``regions``: output of the op, region),
    then views of them that readers need. ``pieces`` returns the operands of an op that is only
    added to the graph once another op reads it (None: the op is added anyway, or is there already).
    ``fields`` are those of the Op; ``addend`` is by output its number among the partial results,
    and their number.
    """

    name: str
    op: int
    role: str
    number: int
    device: int
    kind: str
    tensors: list[Tensor]
    regions: list[tuple[int, Region]]
    addend: list[tuple[int, int]]
    box: Box = ()
    fields: dict[str, Any] = field(default_factory=dict)
    pieces: Callable[[], Iterable[Piece]] | None = None
    inputs: list[str] = field(default_factory=list)
    control_inputs: list[str] = field(default_factory=list)
    views: dict[tuple[int, Region], int] = field(default_factory=dict)

    def output(self, base: int, region: Region, tensor: Tensor) -> str:
        """The text of an input that reads a region of ``tensor``, which is inside the region of
        output ``base``: the output itself or a view of it.
        """
        if region == self.regions[base][1]:
            return f"{self.name}:{base}"
        if (base, region) not in self.views:
            self.views[base, region] = len(self.tensors)
            part, base_of_base = part_of(tensor, region), self.tensors[base].view_of
            # A view of a view would not be freed with its buffer, so views name the first base.
            viewed = base if base_of_base is None else base_of_base
            self.tensors.append(Tensor(part.bytes, part.shape, part.dtype, viewed))
        return f"{self.name}:{self.views[base, region]}"


class Copy(NamedTuple):
    """A holder of a region: an output of a draft, on a device."""

    draft: ShardDraft
    base: int
    device: int


Piece = tuple[Copy, TensorOf, Region]
"""A region of a tensor that a reader reads from a copy."""
Addends = list[list[Copy]]
"""The partial results of a region, each with its copies; a single entry means the values."""


class Cells(Mapping[Place, Addends]):
    """Cells of a grid that are made at their first reading."""

    def __init__(self, make: Callable[[], Mapping[Place, Addends]]) -> None:
        self._make = make

    @cached_property
    def _made(self) -> Mapping[Place, Addends]:
        return self._make()

    def __getitem__(self, place: Place) -> Addends:
        return self._made[place]

    def __iter__(self) -> Iterator[Place]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)


@dataclass(frozen=True, slots=True)
class Grid:
    """The layout of a tensor in regions: the intervals along each dimension, and the copies of the
    region at each place.

    A place without copies has no cell. ``addends`` is the number of partial results of a region, 1
    for values (0: take it from the cells).
    """

    dims: tuple[tuple[Interval, ...], ...]
    cells: Mapping[Place, Addends]
    reducer: str = "sum"
    addends: int = 0

    def __post_init__(self) -> None:
        if not self.addends:
            object.__setattr__(self, "addends", max(map(len, self.cells.values()), default=1))

    def device(self, place: Place) -> int:
        """The device of the first copy of a region; if it has no copy, that of the first cell."""
        cell = self.cells.get(place)
        return (cell or next(iter(self.cells.values())))[0][0].device

    def region(self, place: Place) -> Region:
        """The region at a place."""
        return tuple(intervals[at] for intervals, at in zip(self.dims, place, strict=True))

    def overlapping(self, region: Region) -> Iterator[tuple[Region, Addends]]:
        """The parts into which the grid cuts a region, each with its copies, in order."""
        ranges = map(_touched, self.dims, region)
        for place in product(*ranges):
            cell = self.cells.get(place)
            if cell is not None:
                cuts = zip(region, self.dims, place, strict=True)
                yield tuple((max(r[0], i[at][0]), min(r[1], i[at][1])) for r, i, at in cuts), cell


def _touched(intervals: Sequence[Interval], interval: Interval) -> range:
    """The positions of those sorted, disjoint intervals that share a point with ``interval``. An
    empty interval touches only an equal one: tensors without elements are read and sent too.
    """
    if interval[0] == interval[1] and interval in intervals:
        at = intervals.index(interval)
        return range(at, at + 1)
    first = bisect_right(intervals, interval[0], key=itemgetter(1))
    return range(first, max(first, bisect_left(intervals, interval[1], key=itemgetter(0))))


def grid_of(made: Sequence[tuple[Region, int, int, Copy]], reducer: str) -> Grid:
    """The grid of regions made by the parts of an op: (region, addend, copy number, copy).

    Raises ValueError where intervals of one dimension overlap; places may stay empty.
    """
    rank = len(made[0][0]) if made else 0
    dims = tuple(tuple(sorted({region[d] for region, *_ in made})) for d in range(rank))
    if any(after[0] < before[1] for intervals in dims for before, after in pairwise(intervals)):
        raise ValueError("parts that overlap")
    positions = [{interval: at for at, interval in enumerate(intervals)} for intervals in dims]
    numbered: dict[Place, dict[int, dict[int, Copy]]] = {}
    for region, addend, copy, where in made:
        place = tuple(at[interval] for at, interval in zip(positions, region, strict=True))
        numbered.setdefault(place, {}).setdefault(addend, {})[copy] = where
    cells = {
        place: [[copies[c] for c in sorted(copies)] for _, copies in sorted(by_addend.items())]
        for place, by_addend in numbered.items()
    }
    return Grid(dims, cells, reducer)


@dataclass(frozen=True, slots=True)
class Local:
    """The layout of a tensor with regions on each device that reads them; they may overlap."""

    held: Mapping[int, Sequence[tuple[Region, Copy]]]

    def find(self, region: Region | None, device: int) -> tuple[Region, Copy]:
        """A copy that contains a region (None: any copy), on this device if there is one, and the
        region. Raises LookupError.
        """
        for _, copies in sorted(self.held.items(), key=lambda item: item[0] != device):
            for held, copy in copies:
                if region is None or inside(region, held):
                    return region or held, copy
        raise LookupError(f"nobody holds {region}")


def inside(region: Region, other: Region) -> bool:
    """Whether ``region`` is inside ``other``."""
    return all(b[0] <= a[0] and a[1] <= b[1] for a, b in zip(region, other, strict=True))


def nearest(copies: Sequence[Copy], device: int) -> Copy:
    """The copy on this device if there is one, else the first."""
    return next((copy for copy in copies if copy.device == device), copies[0])
