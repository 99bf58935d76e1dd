"""How a tensor is read under another shape.

Dimensions that keep to themselves are read one by one. Where several are merged or parted, the
position inside of the group is a sum of multiples of the new ones, and an old dimension is its
quotient and rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from .description import Entry, Shape
from .index import Axis, Index


def reshaped_axes(x: Shape, y: Shape) -> tuple[Axis, ...]:
    """Axes d0, d1, .. of the new shape; of those merged with others only the outermost can be split
    into boxes of x.

    Raises ValueError where the element counts differ.
    """
    inner = set()
    for _, made in _groups(x, y):
        wide = [j for j in made if y[j] > 1]
        inner.update(wide[1:])
    return tuple(Axis(f"d{j}", extent, j not in inner) for j, extent in enumerate(y))


def reshaped(x: Shape, points: Sequence[Axis]) -> tuple[Entry, ...]:
    """How a tensor of shape x is read at a point of its new form.

    Raises ValueError where the element counts differ.
    """
    index: list[Entry] = []
    for read, made in _groups(x, tuple(axis.size for axis in points)):
        index += _group([x[i] for i in read], [points[j] for j in made])
    return tuple(index)


def _groups(x: Shape, y: Shape) -> Iterator[tuple[range, range]]:
    """Shortest runs of dimensions of x and of y with equal counts of elements."""
    if prod(x) != prod(y):
        raise ValueError(f"{list(x)} has {prod(x)} elements, {list(y)} has {prod(y)}")
    if 0 in x:
        yield range(len(x)), range(len(y))
        return
    i = j = 0
    while i < len(x) or j < len(y):
        first, other = i, j
        inside = outside = 1
        while (i, j) == (first, other) or inside != outside:
            if i < len(x) and (inside <= outside or j == len(y)):
                inside *= x[i]
                i += 1
            else:
                outside *= y[j]
                j += 1
        yield range(first, i), range(other, j)


def _group(x: Sequence[int], points: Sequence[Axis]) -> list[Entry]:
    if 0 in x:
        return [None] * len(x)
    wide = [axis for axis in points if axis.size > 1]
    if len(wide) == 1 and wide[0].size in x:
        return [wide[0] if extent > 1 else 0 for extent in x]
    position = Index(())
    for k, axis in enumerate(wide):
        position = position + axis * prod(later.size for later in wide[k + 1 :])
    return [_part(position, x, k) for k in range(len(x))]


def _part(position: Index, x: Sequence[int], k: int) -> Entry:
    """Index of dimension k at a position of the group."""
    if x[k] == 1:
        return 0
    below = prod(x[k + 1 :])
    quotient = position // below if below > 1 else position
    return quotient if x[k] * below == prod(x) else quotient % x[k]
