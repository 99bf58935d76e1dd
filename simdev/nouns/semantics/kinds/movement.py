"""Ops that move, re-read or look up elements.

Views touch no byte; concat, stack and pad copy. The elements that an index looks up are known only
at run time, so its dimension is taken whole. An embedding is a product with a one-hot matrix: a
split along its rows is a reduction, with one row hit for each point.

The trait ``view`` marks views; where a view was folded away, ``simdev/nouns/semantics/views.py``
follows it back to the stored tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import accumulate
from typing import Any

from ..description import (
    Access,
    Axis,
    Box,
    ByExtents,
    Call,
    Description,
    Entry,
    Output,
    Shape,
    axes,
    per,
)
from ..registry import Traits, register
from ..views import reshaped, reshaped_axes
from . import (
    broadcast,
    dim_of,
    dimension,
    each,
    extent,
    made,
    numbered,
    register_each,
    sized,
)


def concat(call: Call) -> Description:
    """Operand i fills the output from the sum of the extents before it."""
    points = numbered(call.outputs[0])
    shifted = _shifted(points, dim_of(call, len(points)), call.inputs)
    return made(points, shifted)


def stack(call: Call) -> Description:
    """Operand i is the slice i along a new dimension."""
    points = numbered(call.outputs[0])
    dim = dim_of(call, len(points))
    others = _without(points, dim)
    parts = tuple(Access(others, when=points[dim] - i) for i in range(len(call.inputs)))
    return made(points, parts)


def split(call: Call) -> Description:
    """Output i holds the elements of x from the sum of the extents before it."""
    points = numbered(call.inputs[0])
    shifted = _shifted(points, dim_of(call, len(points)), call.outputs)
    return Description(tuple(map(Output, shifted)), (Access(points),), moves=False)


def _shifted(points: Sequence[Axis], dim: int, parts: Sequence[Shape]) -> list[tuple[Entry, ...]]:
    """The indices of parts that lie side by side along a dimension, by the points of the whole."""
    # Shifted by its start, each part clips the points of the whole to its own extent.
    starts = [0, *accumulate(shape[dim] for shape in parts)]
    if starts[-1] != points[dim].size:
        raise ValueError(
            f"the parts have {starts[-1]} along dimension {dim}, the whole has {points[dim].size}"
        )
    return [_with(points, dim, points[dim] - start) for start in starts[:-1]]


def _with(points: Sequence[Axis], dim: int, entry: Entry) -> tuple[Entry, ...]:
    """The points with another entry along one dimension."""
    return (*points[:dim], entry, *points[dim + 1 :])


def _without(points: Sequence[Axis], dim: int) -> tuple[Axis, ...]:
    return (*points[:dim], *points[dim + 1 :])


def _slice_of(call: Call, extent: int) -> tuple[int, int]:
    """The first element and the step of a slice along a dimension of this extent."""
    start, step = int(call.attrs.get("start") or 0), int(call.attrs.get("step", 1))
    return max(0, start + extent if start < 0 else start), step


def slices(call: Call) -> Description:
    """y[.., i, ..] = x[.., start + i * step, ..] along ``dim``."""
    x = call.inputs[0]
    points = numbered(call.outputs[0])
    dim = dim_of(call, len(x))
    first, step = _slice_of(call, x[dim])

    def local(attrs: Mapping[str, Any], box: Box) -> Mapping[str, Any]:
        # The shard's operand is just the part that it reads.
        part = box.get(points[dim].name)
        if part is None:
            return attrs
        return {**attrs, "start": 0, "end": (part[1] - part[0] - 1) * step + 1}

    index = _with(points, dim, points[dim] * step + first)
    return made(points, [index], moves=False, local=ByExtents(local))


def slice_backward(call: Call) -> Description:
    """Zeros, and dy at start + i * step along ``dim``."""
    points = numbered(call.outputs[0])
    dim = dim_of(call, len(points))
    first, step = _slice_of(call, points[dim].size)
    index = _with(points, dim, (points[dim] - first).exact_div(step))
    resized, size = sized(input_sizes=points), points[dim].size

    def local(attrs: Mapping[str, Any], box: Box) -> Mapping[str, Any]:
        # Each part of the batch has its part of every slice of the batch.
        ends = {name: attrs[name] for name in ("start", "end") if attrs.get(name) is not None}
        parts = {
            name: min(at, size) * extent(points[dim], box) // size for name, at in ends.items()
        }
        return {**resized(attrs, box), **parts}

    return made(points, [index], local=ByExtents(local))


def select(call: Call) -> Description:
    """The part of x at ``index`` along ``dim``; the dimension is dropped."""
    x, place = call.inputs[0], int(call.attrs["index"])
    dim = dim_of(call, len(x))
    points = numbered(call.outputs[0])
    place += x[dim] if place < 0 else 0
    index: tuple[Entry, ...] = (*points[:dim], place, *points[dim:])
    return made(points, [index], moves=False)


def select_backward(call: Call) -> Description:
    """Zeros, and dy at ``index`` along ``dim``."""
    points = numbered(call.outputs[0])
    dim = dim_of(call, len(points))
    place = int(call.attrs["index"]) % points[dim].size
    read = Access(_without(points, dim), when=points[dim] - place)
    return made(points, [read], local=sized(input_sizes=points))


def _permuted(order: Sequence[int], call: Call) -> Description:
    """Dimension i of y is x's dimension order[i]."""
    points = numbered(call.outputs[0])
    index = tuple(points[order.index(i)] for i in range(len(points)))
    return made(points, [index], moves=False)


def permute(call: Call) -> Description:
    """The dimensions of x in the order of ``dims``."""
    rank = len(call.inputs[0])
    order = [dimension(int(item), rank) for item in call.attrs["dims"]]
    if sorted(order) != list(range(rank)):
        raise ValueError(f"dims: {order} is no order of {rank} dimensions")
    return _permuted(order, call)


def transpose(call: Call) -> Description:
    """Two dimensions of x exchanged (``dim0``, ``dim1``; the last two where left out)."""
    rank = len(call.inputs[0])
    first = dimension(int(call.attrs.get("dim0", -2)), rank)
    second = dimension(int(call.attrs.get("dim1", -1)), rank)
    order = list(range(rank))
    order[first], order[second] = order[second], order[first]
    return _permuted(order, call)


def reshape(call: Call) -> Description:
    """The elements of x, in order, with another shape."""
    points = reshaped_axes(call.inputs[0], call.outputs[0])
    index = reshaped(call.inputs[0], points)
    return made(points, [index], moves=False, local=sized(shape=points, size=points))


def expand(call: Call) -> Description:
    """Repeats dimensions of extent 1."""
    points = numbered(call.outputs[0])
    index = broadcast(call.inputs[0], points)
    return made(points, [index], moves=False, local=sized(size=points))


def pad(call: Call) -> Description:
    """Constants around x; ``pad`` gives before and after, last dimension first."""
    points = numbered(call.outputs[0])
    sides = each(call.attrs, "pad", len(call.attrs["pad"]), (), None)
    before = [*sides[::2], *[0] * len(points)][: len(points)][::-1]
    index = tuple(axis - width for axis, width in zip(points, before, strict=True))
    return made(points, [index])


def repeat(call: Call) -> Description:
    """Copies of x side by side: y[i] = x[i % extent]."""
    points, x = numbered(call.outputs[0]), call.inputs[0]
    index = tuple(
        axis if axis.size == extent else axis % extent
        for axis, extent in zip(points[len(points) - len(x) :], x, strict=True)
    )
    return made(points, [index])


def embedding(call: Call) -> Description:
    """y[.., d] = weight[index[..], d]: a sum over the rows v, of which one is hit."""
    weight, index = call.inputs
    points = numbered(index)
    v, d = axes("v d", weight)
    return Description(
        outputs=(Output((*points, d), over=(v,)),),
        # Rows that are hit twice count once; at most all looked-up elements can be read.
        inputs=(Access((v, d), at_most=(*points, d)), Access(points)),
        parameters=(0,),
    )


def embedding_backward(call: Call) -> Description:
    """dweight[v, d] = Sum over .. of dy[.., d] where index[..] is v: one addition each."""
    gradient, index = call.inputs
    points = numbered(index)
    v, d = axes("v d", call.outputs[0])
    return Description(
        outputs=(Output((v, d), over=points),),
        inputs=(Access((*points, Axis("d", gradient[-1]))), Access(points)),
        flops=(per(Fraction(1, max(1, v.size)), *points, v, d),),
        gradients=(0,),
        local=sized(num_weights=(v,)),
    )


def gather(call: Call) -> Description:
    """y[.., i, ..] = x[.., index[.., i, ..], ..]: looked up along ``dim``, where x stays whole, as
    along dimensions where x is longer than the index.
    """
    points, x = numbered(call.outputs[0]), call.inputs[0]
    dim, pairs = dim_of(call, len(x)), enumerate(zip(points, x, strict=True))
    index = tuple(None if d == dim or i.size < extent else i for d, (i, extent) in pairs)
    return made(points, [Access(index, at_most=points), points])


def gather_backward(call: Call) -> Description:
    """Zeros, and dy[.., i, ..] added at index[.., i, ..] along ``dim``, which stays whole."""
    dim = dim_of(call, len(call.outputs[0]))
    points = numbered(call.outputs[0], [dim])
    read = _with(points, dim, None)
    share = Fraction(call.inputs[0][dim], max(1, points[dim].size))
    return made(points, [read, read], share)


def index_select(call: Call) -> Description:
    """y[.., i, ..] = x[.., index[i], ..]: slices of x along ``dim`` where it stays whole."""
    points = numbered(call.outputs[0])
    dim = dim_of(call, len(call.inputs[0]))
    read = Access(_with(points, dim, None), at_most=points)
    # A single index may have no dimension.
    return made(points, [read, (points[dim],)[: len(call.inputs[1])]])


def index_add(call: Call) -> Description:
    """y[.., v, ..] = x[.., v, ..] + Sum over i of source[.., i, ..] where index[i] is v."""
    points = numbered(call.outputs[0])
    dim = dim_of(call, len(points))
    i = Axis("i", call.inputs[1][0])
    # Every (place, addend) pair is a point; for each addend one place is an addition.
    share = Fraction(1, max(1, points[dim].size))
    return Description(
        outputs=(Output(points, over=(i,)),),
        inputs=(Access(points), Access((i,)), Access(_with(points, dim, i))),
        flops=(per(share, *points, i),),
    )


# PyTorch runs these without a kernel; only their readers may have to copy.
VIEW = Traits(view=True)
for _names, _describe, _attributes in (
    ("reshape", reshape, "shape or size"),
    ("view", reshape, "size"),
    ("flatten unflatten squeeze unsqueeze", reshape, ""),
    ("transpose", transpose, "dim0, dim1 (default: the last two)"),
    ("t", transpose, ""),
    ("permute", permute, "dims"),
    ("expand", expand, "size"),
    ("slice", slices, "dim, start, end, step"),
    ("select", select, "dim, index"),
):
    register_each(_names, _describe, "data_movement", "x", "y (a view)", _attributes, VIEW)
_PARTS = "x", "y0, y1, .. (views)", "dim"
register_each("split chunk split_with_sizes", split, "data_movement", *_PARTS, VIEW)
for _names, _describe, _operands, _outputs, _attributes in (
    ("concat", concat, "x0, x1, ..", "y", "dim"),
    ("stack", stack, "x0, x1, ..", "y", "dim"),
    ("pad constant_pad_nd", pad, "x", "y", "pad"),
    ("repeat", repeat, "x", "y", "repeats"),
    ("select_backward", select_backward, "dy", "dx", "input_sizes, dim, index"),
    ("slice_backward", slice_backward, "dy", "dx", "input_sizes, dim, start, end, step"),
    ("gather", gather, "x, index", "y", "dim"),
    ("index_select", index_select, "x, index[i]", "y", "dim"),
):
    register_each(_names, _describe, "data_movement", _operands, _outputs, _attributes)
register("embedding", embedding, "embedding", "weight[v, d], index[..]", "y[.., d]")
register(
    "embedding_backward",
    embedding_backward,
    "embedding",
    "dy[.., d], index[..]",
    "dweight[v, d]",
    "num_weights, padding_idx",
    Traits(linear_in=0),
)
register("index_add", index_add, "embedding", "x, index[i], source", "y", "dim")
register("gather_backward", gather_backward, "embedding", "dy, index", "dx", "dim")
