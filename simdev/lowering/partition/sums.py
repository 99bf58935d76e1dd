"""Adding up partial results, where somebody needs the values.

Activations, and gradients with sync "sharded": every holder of a partial result adds up its own
chunk (reduce-scatter), and readers fetch the chunks (all-gather), by direct messages. Gradients
with "parameter-server": one sum, where the first partial result is. With "all-reduce": one
collective op over all holders, which leaves the sum on each; with "bucketed" one for several
gradients (``buckets.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...semantics import Interval, Region, adder_of, extents, parts_of
from ..collective import ALL_REDUCE
from .layout import Addends, Copy, Draft, Grid, Place, nearest

if TYPE_CHECKING:
    from ...structure import TensorOf
    from .sharding import Sharding


def summed(sharding: Sharding, tensor: TensorOf, grid: Grid, cut: int | None) -> Grid:
    """The grid of the values of a tensor that lies in partial results; sums are made when they are
    first read.

    Chunks are cut along the dimension ``cut`` if that can be done evenly: along which the first
    reader is cut.
    """
    sync = sharding.question.strategy.sync
    if tensor not in sharding.question.weights.gradients or sync == "sharded":
        return _in_chunks(sharding, tensor, grid, cut)
    if sync == "bucketed":
        return _bucketed(sharding, tensor, grid)
    make = _all_reduced if sync == "all-reduce" else _on_server
    cells = {place: [make(sharding, tensor, grid, place)] for place in sorted(grid.cells)}
    return Grid(grid.dims, cells, grid.reducer)


def region_at(grid: Grid, place: Place) -> Region:
    """The region that stands at a place."""
    return tuple(intervals[at] for intervals, at in zip(grid.dims, place, strict=True))


def adder(
    sharding: Sharding,
    tensor: TensorOf,
    grid: Grid,
    which: Sequence[int],
    region: Region,
    device: int,
    role: str,
) -> Copy:
    """An op that adds up a region of some of the partial results on one device."""

    def fill(draft: Draft) -> None:
        pieces = list(grid.overlapping(region))
        pairs = ((cell[addend], piece) for addend in which for piece, cell in pieces)
        draft.inputs = [
            sharding.hand_out(nearest(copies, device), tensor, piece) for copies, piece in pairs
        ]

    attrs = {}
    if sharding.tensor(tensor).shape is not None:
        attrs = {
            "in": [list(extents(region))] * len(which),
            "dt": [sharding.tensor(tensor).dtype] * len(which),
        }
    draft = sharding.draft(tensor, role, device, adder_of(grid.reducer), [region], attrs=attrs)
    draft.fill = fill
    return Copy(draft, 0, device)


def _in_chunks(sharding: Sharding, tensor: TensorOf, grid: Grid, cut: int | None) -> Grid:
    """Every region cut into as many chunks as it has partial results, each added up where one of
    these is.
    """
    dimension, count = _cut(grid, cut)
    cells: dict[Place, Addends] = {}
    dims = list(grid.dims)
    if dimension is not None:
        dims[dimension] = tuple(
            chunk for interval in dims[dimension] for chunk in _chunks(interval, count)
        )
    for place in sorted(grid.cells):
        addends = grid.cells[place]
        for chunk in range(count):
            at, region = place, list(region_at(grid, place))
            if dimension is not None:
                row = place[dimension] * count + chunk
                at = (*place[:dimension], row, *place[dimension + 1 :])
                region[dimension] = dims[dimension][row]
            device, every = addends[chunk][0].device, range(len(addends))
            cells[at] = [[adder(sharding, tensor, grid, every, tuple(region), device, "sum")]]
    return Grid(tuple(dims), cells, grid.reducer)


def _cut(grid: Grid, wanted: int | None) -> tuple[int | None, int]:
    """The dimension along which chunks are cut, and into how many.

    The one that is wanted, else the first, of those that cut evenly; else the longest.
    """
    longest: tuple[int, int | None] = (1, None)
    for dimension, intervals in sorted(enumerate(grid.dims), key=lambda item: item[0] != wanted):
        lengths = [stop - start for start, stop in intervals]
        if lengths and all(length and length % grid.addends == 0 for length in lengths):
            return dimension, grid.addends
        if lengths and min(lengths) > longest[0]:
            longest = min(lengths), dimension
    return longest[1], min(grid.addends, longest[0])


def _chunks(interval: Interval, count: int) -> list[Interval]:
    start, stop = interval
    return [(start + first, start + last) for first, last in parts_of(stop - start, count)]


def _on_server(sharding: Sharding, tensor: TensorOf, grid: Grid, place: Place) -> list[Copy]:
    """One sum on the device of the first partial result, whose own backward it waits for."""
    addends = grid.cells[place]
    device, every = addends[0][0].device, range(len(addends))
    return [adder(sharding, tensor, grid, every, region_at(grid, place), device, "sync")]


def _bucketed(sharding: Sharding, tensor: TensorOf, grid: Grid) -> Grid:
    """In buckets where updates alone read it; else by a collective of its own, which cannot wait
    for others.
    """
    known = sharding.buckets
    cells = {
        place: [known.get((tensor, place)) or _all_reduced(sharding, tensor, grid, place)]
        for place in sorted(grid.cells)
    }
    return Grid(grid.dims, cells, grid.reducer)


def holders(sharding: Sharding, tensor: TensorOf, grid: Grid, place: Place) -> list[Copy]:
    """The partial results of a region, one a device: those of one device are added up there
    before.
    """
    region, cell, by_device = region_at(grid, place), grid.cells[place], dict[int, list[int]]()
    for addend, copies in enumerate(cell):
        by_device.setdefault(copies[0].device, []).append(addend)
    return [
        cell[which[0]][0]
        if len(which) == 1
        else adder(sharding, tensor, grid, which, region, device, "sum")
        for device, which in by_device.items()
    ]


def _all_reduced(sharding: Sharding, tensor: TensorOf, grid: Grid, place: Place) -> list[Copy]:
    """A collective over the devices that hold partial results."""
    region, own = region_at(grid, place), holders(sharding, tensor, grid, place)
    if len(own) == 1:
        return own
    names = [sharding.question.cluster.devices[copy.device].name for copy in own]

    def fill(draft: Draft) -> None:
        draft.inputs = [sharding.hand_out(copy, tensor, region) for copy in own]

    draft = sharding.draft(
        tensor, "sync", own[0].device, ALL_REDUCE, [region] * len(own), attrs={"ranks": names}
    )
    draft.fill = fill
    return [Copy(draft, rank, copy.device) for rank, copy in enumerate(own)]
