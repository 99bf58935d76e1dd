"""Regions of tensors in the layouts that blocks.py writes: the places of a grid that they touch."""

from __future__ import annotations

from ...ground.jit import jitable
from .arena import BYTES, CELLS, DIMS, ELEMENTS, LAYOUTS, RANK, UNIT
from .columns import Columns, FanWork


@jitable
def layout_of(t: Columns, op: int, output: int) -> int:
    """Where the layout of an output begins."""
    return t.arena[t.arena[t.block[op] + LAYOUTS] + output]


@jitable
def size_of(t: Columns, layout: int, volume: int) -> int:
    """Bytes of a part of a tensor, rounded up."""
    if t.arena[layout + UNIT] > 0:
        return t.arena[layout + UNIT] * volume
    count = t.arena[layout + ELEMENTS]
    return (t.arena[layout + BYTES] * volume + count - 1) // count if count > 0 else 0


@jitable
def first_above(t: Columns, column: int, low: int, high: int, value: int) -> int:
    """The first place in [low, high) of a sorted column whose entry is above a value, or high."""
    while low < high:
        middle = (low + high) >> 1
        if t.arena[column + middle] > value:
            high = middle
        else:
            low = middle + 1
    return low


@jitable
def touch(t: Columns, w: FanWork, layout: int, need: int) -> bool:
    """Set the places of a grid that share a point with a region, by dimension; whether there are
    any.
    """
    arena = t.arena
    for d in range(arena[layout + RANK]):
        dim = layout + DIMS + 4 * d
        n, starts, stops = arena[dim], arena[dim + 1], arena[dim + 2]
        begin, end = arena[need + 2 * d], arena[need + 2 * d + 1]
        low = first_above(t, stops, 0, n, begin)
        high = first_above(t, starts, low, n, end - 1)
        if begin == end:
            # A tensor without elements is read and sent all the same.
            at = first_above(t, stops, 0, n, begin - 1)
            if at < n and arena[starts + at] == begin and arena[stops + at] == end:
                low, high = at, at + 1
        w.low[d], w.at[d], w.high[d] = low, low, high
        if low >= high:
            return False
    return True


@jitable
def next_place(w: FanWork, rank: int) -> bool:
    """Go to the next of the places that are touched, the last dimension fastest; whether there is
    one.
    """
    d = rank - 1
    while d >= 0:
        w.at[d] += 1
        if w.at[d] < w.high[d]:
            return True
        w.at[d] = w.low[d]
        d -= 1
    return False


@jitable
def cut(t: Columns, w: FanWork, layout: int, need: int) -> bool:
    """Take the piece of a region at the place in hand; whether it is all that stands there."""
    arena = t.arena
    is_all = True
    for d in range(arena[layout + RANK]):
        dim, k = layout + DIMS + 4 * d, w.at[d]
        begin, end = arena[arena[dim + 1] + k], arena[arena[dim + 2] + k]
        w.piece[2 * d] = max(begin, arena[need + 2 * d])
        w.piece[2 * d + 1] = min(end, arena[need + 2 * d + 1])
        is_all = is_all and w.piece[2 * d] == begin and w.piece[2 * d + 1] == end
    return is_all


@jitable
def cell_at(t: Columns, w: FanWork, layout: int) -> int:
    """What holds the place in hand, or NONE."""
    cell = t.arena[layout + CELLS]
    for d in range(t.arena[layout + RANK]):
        cell += w.at[d] * t.arena[layout + DIMS + 4 * d + 3]
    return t.arena[cell]


@jitable
def is_inside(t: Columns, need: int, region: int, rank: int) -> bool:
    """Whether one region is a part of another one."""
    for d in range(rank):
        if (
            t.arena[need + 2 * d] < t.arena[region + 2 * d]
            or t.arena[need + 2 * d + 1] > t.arena[region + 2 * d + 1]
        ):
            return False
    return True
