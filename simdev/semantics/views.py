"""From an operand as it is executed back to the tensor that is stored, where a view between them was folded away."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from .description import Shape
from .index import Axis, clipped_interval
from .regions import Region
from .reshaping import reshaped


def stored_region(region: Region, seen: Shape, stored: Shape, strides: Sequence[int] | None = None) -> Region:
    """The smallest known box of the stored tensor that holds a region of the operand seen through a view.

    Equal element counts are read as a reshape, unless the dimensions could have been exchanged; else dimensions are
    aligned at the end: equal extents are the same, a stored extent of 1 is repeated, of another one nothing is known
    and all of it is taken. ``strides`` of the operand (elements): not descending means exchanged dimensions.
    Never too small, as long as the view keeps the order of its dimensions; without strides, two exchanged dimensions of
    equal extents cannot be told.
    """
    whole = tuple((0, extent) for extent in stored)
    if strides is not None and _exchanged(seen, strides):
        return whole
    if seen == stored:
        return region
    if prod(seen) == prod(stored):
        return whole if _same_but_ones(seen, stored) is False else _through_reshape(region, seen, stored)
    if len(seen) < len(stored):
        return whole
    found = []
    for interval, extent, here in zip(
        region[len(seen) - len(stored) :], seen[len(seen) - len(stored) :], stored, strict=True
    ):
        found.append(interval if extent == here else (0, here))
    return tuple(found)


def _exchanged(seen: Shape, strides: Sequence[int]) -> bool:
    wide = [step for step, extent in zip(strides, seen, strict=True) if step and extent > 1]
    return any(after > before for before, after in pairwise(wide))


def _same_but_ones(seen: Shape, stored: Shape) -> bool | None:
    """Whether both have the same extents in the same order, ones aside; None where the extents themselves differ."""
    first, second = ([extent for extent in shape if extent != 1] for shape in (seen, stored))
    return None if sorted(first) != sorted(second) else first == second


def _through_reshape(region: Region, seen: Shape, stored: Shape) -> Region:
    points = tuple(Axis(f"d{i}", extent) for i, extent in enumerate(seen))
    box = {axis.name: interval for axis, interval in zip(points, region, strict=True)}
    found = []
    for entry, extent in zip(reshaped(stored, points), stored, strict=True):
        if entry is None:
            found.append((0, extent))
        else:
            found.append((0, 1) if isinstance(entry, int) else clipped_interval(entry.as_index(), extent, box))
    return tuple(found)
