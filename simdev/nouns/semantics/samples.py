"""Where the samples of a batch lie in a tensor, and views of it that merge or slice them.

Sequence first, a batch is merged as L x B: its samples are no interval of the merged dimension. The
points of such a dimension are numbered samples first, whatever lies outside of them in the memory,
so that parts of the batch are intervals again.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from .description import Shape
from .index import Interval, Region
from .views import row_strides, stored_region


class Samples(NamedTuple):
    """``number`` samples along a dimension that merges outer x number x inner points."""

    dimension: int
    outer: int
    number: int
    inner: int


class BatchView(NamedTuple):
    """How an op sees an operand with samples: where these lie as it is ``seen``, and as it is
    ``held``.

    ``sliced``: only some of the samples are seen, and parts see those of their own part of the
    batch, as every worker of data parallelism slices its own. ``order``: the dimensions as they lie
    in the memory where that is not row by row.
    """

    seen: Samples | None
    held: Samples
    sliced: bool = False
    order: tuple[int, ...] = ()


def samples_seen(
    held: Samples, seen: Shape, stored: Shape, strides: Sequence[int] | None, order: Sequence[int]
) -> Samples | None:
    """Where an operand that is seen through a view has its samples; None where they are not seen
    apart from others.
    """
    lies = order or range(len(stored))
    behind = prod(stored[d] for d in lies[list(lies).index(held.dimension) + 1 :])
    step = held.inner * behind
    dims = list(zip(strides or row_strides(seen), seen, strict=True))
    # Samples that are parted over several dimensions are none of one alone.
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

    Of a sample that is cut all is taken.
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
    """The interval of a merged dimension, samples first, that holds these of its parts."""
    size = held.outer * held.inner
    start, stop = samples[0] * size, samples[1] * size
    # Inside of one sample the points of a batch that lies outermost are an interval too.
    if held.outer == 1 and samples[1] - samples[0] == 1:
        return start + inner[0], start + inner[1]
    return start, stop
