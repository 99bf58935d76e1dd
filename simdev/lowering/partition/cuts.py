"""Even cuts of an op, described axis by axis instead of shard by shard: 64 shards of 8 by 8 have 8
intervals along each axis, and mostly run the same kernel.

Only ``oracle.splits`` calls it, for changes of single ops. The regions that a shard reads and makes
follow from its places along the axes; ``geometry.parts`` computes them shard by shard, for any op,
and both must agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod

from ...nouns.graph import Op
from ...nouns.semantics import (
    Along,
    ByExtents,
    Interval,
    Region,
    along,
    effects_of,
    parts_of,
)
from ...nouns.semantics.description import same_attributes
from ...nouns.semantics.regions import NONE
from .geometry import Part, Reading, numbered, part
from .layout import Addends, Copy, Place, ShardDraft

_CACHED = 65_536


# Compared by identity, so that it serves as a key.
@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """All shards of an op, numbered in row-major order of the axes that are cut.

    ``names``, ``counts`` and ``intervals`` are by axis that is cut. ``reads`` are the dimensions of
    each operand, ``makes`` those of each output; ``effects`` is the effect of cutting each axis on
    each output. ``runs`` has a representative of each set of shards that run the same (without its
    numbers among partial results and copies), ``same`` the number of each shard's set.
    """

    names: tuple[str, ...]
    counts: tuple[int, ...]
    intervals: tuple[tuple[Interval, ...], ...]
    reads: tuple[tuple[Along, ...], ...]
    makes: tuple[tuple[Along, ...], ...]
    effects: tuple[tuple[str, ...], ...]
    runs: tuple[Part, ...]
    same: tuple[int, ...]

    def addends(self, output: int) -> int:
        """The number of partial results of each region of an output."""
        pairs = zip(self.counts, self.effects[output], strict=True)
        return prod([count for count, effect in pairs if effect == "reduce"])


@lru_cache(_CACHED)
def cut_of(op: Reading, degrees: tuple[tuple[str, int], ...]) -> Cut | None:
    """The cut into ``degrees`` parts along each axis, which must divide it. None where nothing is
    cut, or where regions must be computed shard by shard.
    """
    semantics, degree_of = op.semantics, dict(degrees)
    if semantics is None or not _is_regular(op):
        return None
    cut = {
        axis.name: parts_of(axis.size, degree_of[axis.name])
        for axis in semantics.axes
        if degree_of.get(axis.name, 1) > 1
    }
    read = [along(semantics, "read", i, cut) for i in range(len(semantics.inputs))]
    made = [along(semantics, "made", k, cut) for k in range(len(semantics.outputs))]
    reads, makes = _all_of(read), _all_of(made)
    if not cut or reads is None or makes is None or not all(map(_is_grid, makes)):
        return None
    effects = tuple(zip(*(effects_of(semantics, name) for name in cut), strict=True))
    same, places = _sorts(list(cut.values()), (*reads, *makes))
    boxes = (
        tuple((name, parts[at]) for (name, parts), at in zip(cut.items(), place, strict=True))
        for place in places
    )
    runs = tuple(part(op, box) for box in boxes)
    counts = tuple(map(len, cut.values()))
    return Cut(tuple(cut), counts, tuple(cut.values()), reads, makes, effects, runs, same)


def _is_regular(op: Reading) -> bool:
    """Whether every shard reads operands as they are stored, and attributes depend on extents
    alone.
    """
    assert op.semantics is not None
    description = op.semantics.description
    local = description.local
    return (
        all(map(op.as_stored, range(len(op.stored))))
        and all(access.when is None for access in description.inputs)
        and (local is same_attributes or isinstance(local, ByExtents))
    )


def _all_of(tensors: Sequence[tuple[Along, ...] | None]) -> tuple[tuple[Along, ...], ...] | None:
    known = tuple(dims for dims in tensors if dims is not None)
    return known if len(known) == len(tensors) else None


def _is_grid(dims: Sequence[Along]) -> bool:
    """Whether the regions of an output fill a grid: each axis cuts one dimension, in order."""
    axes = [dim.axis for dim in dims if dim.axis != NONE]
    ordered = all(
        before[0] < after[0] and before[1] <= after[0]
        for dim in dims
        for before, after in zip(dim.intervals, dim.intervals[1:], strict=False)
    )
    return ordered and len(set(axes)) == len(axes)


def _sorts(
    intervals: Sequence[Sequence[Interval]], tensors: Sequence[Sequence[Along]]
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """The sort of each shard, where shards of a sort have equal extents along all dimensions; and
    the place of the first shard of each sort.
    """
    numbers: list[tuple[int, ...]] = [()]
    for axis, parts in enumerate(intervals):
        columns = [dim.extents for dims in tensors for dim in dims if dim.axis == axis]
        columns.append(tuple([stop - start for start, stop in parts]))
        kinds: dict[tuple[int, ...], int] = {}
        sorts = [kinds.setdefault(row, len(kinds)) for row in zip(*columns, strict=True)]
        numbers = [(*before, sort) for before in numbers for sort in sorts]
    first: dict[tuple[int, ...], int] = {}
    same = tuple([first.setdefault(number, len(first)) for number in numbers])
    if len(first) == 1:
        return same, [(0,) * len(intervals)]
    places = list(product(*(range(len(parts)) for parts in intervals)))
    return same, [places[same.index(sort)] for sort in range(len(first))]


def regions_read(cut: Cut, operand: int) -> tuple[tuple[Region, ...], tuple[int, ...]]:
    """The different regions of an operand that shards read, and the number of each shard's."""
    return _regions(cut.counts, cut.reads[operand])


@lru_cache(_CACHED)
def _regions(
    counts: tuple[int, ...], dims: tuple[Along, ...]
) -> tuple[tuple[Region, ...], tuple[int, ...]]:
    """The different regions of a tensor, and the number of each shard's."""
    axes = sorted({dim.axis for dim in dims} - {NONE})
    numbers = numbered(counts, [axis in axes for axis in range(len(counts))])
    regions = []
    for point in product(*(range(counts[axis]) for axis in axes)):
        at = dict(zip(axes, point, strict=True))
        regions.append(tuple([dim.intervals[at.get(dim.axis, 0)] for dim in dims]))
    return tuple(regions), tuple(numbers)


def drafts_of(cut: Cut, op: Op, i: int, devices: Sequence[int]) -> list[ShardDraft]:
    """Drafts of all shards of op ``i``, without their tensors."""
    columns = []
    for output, dims in enumerate(cut.makes):
        regions, numbers = _regions(cut.counts, dims)
        columns.append([(output, regions[number]) for number in numbers])
    boxes = (tuple(zip(cut.names, box, strict=True)) for box in product(*cut.intervals))
    made = list(zip(*columns, strict=True)) if columns else [()] * len(devices)
    return [
        ShardDraft(f"{op.name}#{n}", i, "shard", n, device, op.kind, [], list(made[n]), [], box)
        for n, (device, box) in enumerate(zip(devices, boxes, strict=True))
    ]


def cells_of(cut: Cut, output: int, drafts: Sequence[ShardDraft]) -> dict[Place, Addends]:
    """The copies that hold each region of an output, by its place in the grid."""
    effects, addends = cut.effects[output], cut.addends(output)
    axes, cells = [dim.axis for dim in cut.makes[output]], dict[Place, Addends]()
    for draft, digits in zip(drafts, product(*map(range, cut.counts)), strict=True):
        place = tuple([0 if axis == NONE else digits[axis] for axis in axes])
        addend = 0
        for count, effect, digit in zip(cut.counts, effects, digits, strict=True):
            if effect == "reduce":
                addend = addend * count + digit
        if place not in cells:
            cells[place] = [[] for _ in range(addends)]
        # Row-major: copies come in their order.
        cells[place][addend].append(Copy(draft, output, draft.device))
    return cells
