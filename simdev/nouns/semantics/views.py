"""Regions of stored tensors from regions of operands, where a view between the two was folded away;
and the places of a batch's samples in a tensor.

With the sequence first, a batch is merged as L x B, so that a sample is no interval of the merged
dimension. The points of such a dimension are numbered samples first, in another order than in
memory, so that parts of the batch are intervals again.

Partitioning (``simdev/lowering/partition/problem.py`` and ``geometry.py``) and Tofu's search call
it; ``kinds/movement.py`` describes reshapes by ``reshaped``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod
from typing import NamedTuple

from .description import Axis, Entry, Index, Interval, Region, Shape, indexed


def stored_region(
    region: Region, seen: Shape, stored: Shape, strides: Sequence[int] | None = None
) -> Region:
    """The smallest known box of the stored tensor that holds a region of an operand, which is a
    view of the tensor.

    A view with as many elements is taken as a reshape, unless dimensions may have been exchanged. A
    part of the stored tensor (a slice, a chunk, one of several) is followed dimension by dimension
    by its ``strides``, in elements. Without strides dimensions are aligned at the end: equal
    extents are the same dimension, a stored extent of 1 is repeated, and any other stored dimension
    is taken whole. Strides that do not descend mean exchanged dimensions: the tensor is stored row
    by row or, where the shapes are equal, with these strides.

    The box is never too small as long as the view keeps the order of its dimensions and cuts these
    or parts of them, but no merged dimension. Without strides, an exchange of two dimensions of
    equal extents goes unseen.
    """
    if strides is not None and (len(strides) != len(seen) or not _are_whole(strides)):
        strides = None
    if strides is not None and _exchanged(seen, strides):
        return _through_exchange(region, seen, stored, strides)
    # Without strides an exchange of equal extents is invisible, so the region is taken unchanged.
    if seen == stored:
        return region
    if prod(seen) == prod(stored):
        exchanged = _same_but_ones(seen, stored) is False
        return _whole(stored) if exchanged else _through_reshape(region, seen, stored)
    if strides is not None:
        return _by_strides(region, seen, stored, strides)
    if len(seen) < len(stored):
        return _whole(stored)
    ahead = len(seen) - len(stored)
    aligned = zip(region[ahead:], seen[ahead:], stored, strict=True)
    return tuple(interval if extent == here else (0, here) for interval, extent, here in aligned)


def _whole(shape: Shape) -> Region:
    return tuple((0, extent) for extent in shape)


def sliced_strides(
    strides: Sequence[int] | None, shape: Shape, part: Shape
) -> tuple[int, ...] | None:
    """Strides of a part of an operand that gets memory of its own, with dimensions in the order of
    the operand's memory.

    A dimension of stride 0 stays repeated. A gap between two rows stays in proportion where it is a
    whole multiple. None where the part lies row by row, or the strides are unknown.
    """
    if strides is None or len(strides) != len(shape) or not _are_whole(strides):
        return None
    part_strides = list(strides)
    # From the innermost dimension out: a stride counts the elements of all dimensions inside of it.
    before = after = 1
    for d in sorted(range(len(shape)), key=lambda d: (strides[d], -d)):
        if strides[d]:
            count, rest = divmod(strides[d], before)
            part_strides[d] = strides[d] if rest else count * after
            before, after = strides[d] * shape[d], part_strides[d] * part[d]
    rows = zip(part_strides, row_strides(part), part, strict=True)
    plain = all(step == row for step, row, extent in rows if extent > 1)
    return None if plain else tuple(part_strides)


def _are_whole(strides: Sequence[object]) -> bool:
    return all(isinstance(step, int) for step in strides)


def _exchanged(seen: Shape, strides: Sequence[int]) -> bool:
    """Whether the dimensions have another order than in memory."""
    wide = [step for step, extent in zip(strides, seen, strict=True) if step and extent > 1]
    return any(after > before for before, after in pairwise(wide))


def _through_exchange(region: Region, seen: Shape, stored: Shape, strides: Sequence[int]) -> Region:
    """The region with its dimensions in the order of memory; dimensions that are repeated or
    missing there are taken whole.
    """
    order = sorted((d for d, extent in enumerate(seen) if extent > 1), key=lambda d: -strides[d])
    shape = tuple(seen[d] for d in order)
    if seen == stored:
        return _whole(stored) if shape == tuple(extent for extent in seen if extent > 1) else region
    nested = all(strides[a] >= strides[b] * seen[b] > 0 for a, b in pairwise(order))
    if nested and prod(shape) == prod(stored):
        return stored_region(tuple(region[d] for d in order), shape, stored)
    return _by_strides(region, seen, stored, strides)


def _by_strides(region: Region, seen: Shape, stored: Shape, strides: Sequence[int]) -> Region:
    """The region of a tensor stored row by row, from a region of a view that may begin at any
    element.

    Some dimensions of the view step through all of a stored dimension, perhaps with inner ones.
    Such a dimension begins where the stored one begins, so its interval gives the stored one. All
    others are taken whole.
    """
    steps, box = row_strides(stored), list(_whole(stored))
    # A dimension of the tensor is recognised by the number of elements at which it ends.
    ends = {steps[at] * extent: at for at, extent in enumerate(stored) if extent > 1}
    wide = sorted(
        (d for d, extent in enumerate(seen) if extent > 1 and strides[d] > 0),
        key=lambda d: -strides[d],
    )
    if any(strides[a] < strides[b] * seen[b] for a, b in pairwise(wide)):
        # Windows overlap: an element lies in several, and no box of one dimension holds them.
        return tuple(box)
    for d in wide:
        at = ends.get(strides[d] * seen[d])
        if at is not None:
            start, stop = region[d]
            box[at] = start * strides[d] // steps[at], -(-stop * strides[d] // steps[at])
    return tuple(box)


def row_strides(shape: Shape) -> tuple[int, ...]:
    """Strides of a tensor that is stored row by row, in elements."""
    return tuple(prod(shape[d + 1 :]) for d in range(len(shape)))


def parted_strides(seen: Shape, strides: Sequence[int], stored: Shape) -> tuple[int, ...] | None:
    """The strides of a tensor's own dimensions, from a view that shows some of them merged; None
    for other views.
    """
    if prod(seen) != prod(stored) or 0 in stored:
        return None
    parted: list[int] = []
    for merged, shown in _groups(stored, seen):
        wide = [d for d in shown if seen[d] > 1]
        if len(wide) > 1:
            return None
        step = strides[wide[0]] if wide else 1
        parted += [step * prod(stored[k] for k in merged if k > d) for d in merged]
    return tuple(parted)


def _same_but_ones(seen: Shape, stored: Shape) -> bool | None:
    """Whether both shapes have the same extents in the same order, without ones; None where the
    extents differ.
    """
    first, second = ([extent for extent in shape if extent != 1] for shape in (seen, stored))
    return None if sorted(first) != sorted(second) else first == second


def _through_reshape(region: Region, seen: Shape, stored: Shape) -> Region:
    points = tuple(Axis(f"d{i}", extent) for i, extent in enumerate(seen))
    box = {axis.name: interval for axis, interval in zip(points, region, strict=True)}
    entries = zip(reshaped(stored, points), stored, strict=True)
    return tuple(indexed(entry, extent, box) for entry, extent in entries)


def reshaped_axes(x: Shape, y: Shape) -> tuple[Axis, ...]:
    """Axes d0, d1, .. of the new shape; of merged dimensions only the outermost can be split into
    boxes of x.

    Raises ValueError where the element counts differ.
    """
    inner = set()
    for _, made in _groups(x, y):
        wide = [j for j in made if y[j] > 1]
        inner.update(wide[1:])
    return tuple(Axis(f"d{j}", extent, j not in inner) for j, extent in enumerate(y))


def reshaped(x: Shape, points: Sequence[Axis]) -> tuple[Entry, ...]:
    """The index of a tensor of shape x at a point of its new shape.

    Raises ValueError where the element counts differ.
    """
    index: list[Entry] = []
    for read, made in _groups(x, tuple(axis.size for axis in points)):
        index += _group([x[i] for i in read], [points[j] for j in made])
    return tuple(index)


def _groups(x: Shape, y: Shape) -> Iterator[tuple[range, range]]:
    """The shortest runs of dimensions of x and of y with equal counts of elements."""
    if prod(x) != prod(y):
        raise ValueError(f"{list(x)} has {prod(x)} elements, {list(y)} has {prod(y)}")
    # Empty tensors have no positions that would tell dimensions apart.
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
    # A reshape adds and drops extents of 1; the remaining dimension is the axis itself, which is
    # faster than a quotient and can be split.
    if len(wide) == 1 and wide[0].size in x:
        return [wide[0] if extent > 1 else 0 for extent in x]
    position = Index(())
    for k, axis in enumerate(wide):
        position = position + axis * prod(later.size for later in wide[k + 1 :])
    return [_part(position, x, k) for k in range(len(x))]


def _part(position: Index, x: Sequence[int], k: int) -> Entry:
    """The index of dimension k at a position of the group."""
    if x[k] == 1:
        return 0
    below = prod(x[k + 1 :])
    quotient = position // below if below > 1 else position
    return quotient if x[k] * below == prod(x) else quotient % x[k]


class Samples(NamedTuple):
    """``number`` samples along a dimension that merges outer x number x inner points."""

    dimension: int
    outer: int
    number: int
    inner: int


class BatchView(NamedTuple):
    """The places of an operand's samples: as the op sees it (``seen``), and in the tensor
    (``held``).

    ``sliced``: only some of the samples are seen, and each part sees samples of its own part of the
    batch, as every worker of data parallelism slices its own batch. ``order``: the dimensions in
    the order of memory where that is not row by row.
    """

    seen: Samples | None
    held: Samples
    sliced: bool = False
    order: tuple[int, ...] = ()


def samples_seen(
    held: Samples, seen: Shape, stored: Shape, strides: Sequence[int] | None, order: Sequence[int]
) -> Samples | None:
    """The places of the samples in an operand that is a view; None where the view does not keep
    samples apart.
    """
    lies = order or range(len(stored))
    behind = prod(stored[d] for d in lies[list(lies).index(held.dimension) + 1 :])
    step = held.inner * behind
    dims = list(zip(strides or row_strides(seen), seen, strict=True))
    # Samples spread over several dimensions are not in any single one.
    if any(extent > 1 and step < stride < step * held.number for stride, extent in dims):
        return None
    for d, (stride, extent) in enumerate(dims):
        if extent > 1 and 0 < stride <= step < stride * extent:
            inner = step // stride
            count = min(held.number, extent // inner)
            outer, rest = divmod(extent, inner * count)
            whole = not rest and not step % stride and (outer == 1 or count == held.number)
            return Samples(d, outer, count, inner) if whole and count > 1 else None
    return None


def batch_region(
    region: Region, seen: Shape, stored: Shape, strides: Sequence[int] | None, view: BatchView
) -> Region:
    """The smallest known box of the stored tensor that holds a region of an operand, samples first
    in both.

    A sample that is cut is taken whole.
    """
    held, of_view = view.held, view.seen
    if of_view is not None and (of_view.outer > 1 or view.sliced):
        d, size = of_view.dimension, of_view.outer * of_view.inner
        start, stop = region[d][0] // size, -(-region[d][1] // size)
        count = of_view.number
        if view.sliced:
            start, stop = start * held.number // count, -(-stop * held.number // count)
            count = held.number
        apart = (0, of_view.outer), (start, stop), (0, of_view.inner)
        region = (*region[:d], *apart, *region[d + 1 :])
        if strides is not None:
            steps = strides[d] * of_view.inner * count, strides[d] * of_view.inner, strides[d]
            strides = (*strides[:d], *steps, *strides[d + 1 :])
        seen = (*seen[:d], of_view.outer, count, of_view.inner, *seen[d + 1 :])
    lies = view.order or tuple(range(len(stored)))
    at = lies.index(held.dimension)
    memory = tuple(stored[d] for d in lies)
    memory = (*memory[:at], held.outer, held.number, held.inner, *memory[at + 1 :])
    box = stored_region(region, seen, memory, strides)
    fused = (*box[:at], _samples_first(held, *box[at : at + 3]), *box[at + 3 :])
    return tuple(fused[lies.index(d)] for d in range(len(stored)))


def _samples_first(held: Samples, outer: Interval, samples: Interval, inner: Interval) -> Interval:
    """The interval of a merged dimension, numbered samples first, that holds these intervals."""
    size = held.outer * held.inner
    start, stop = samples[0] * size, samples[1] * size
    # Within one sample of an outermost batch, points are an interval, too.
    if held.outer == 1 and samples[1] - samples[0] == 1:
        return start + inner[0], start + inner[1]
    return start, stop
