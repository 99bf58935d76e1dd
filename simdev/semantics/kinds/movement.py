"""Ops that move or re-read elements without computing.

Views touch no byte; concat, stack and pad copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from ..description import Access, Call, Description, Entry, Output, Shape
from ..index import Axis, Box
from ..registry import register
from ..reshaping import reshaped, reshaped_axes
from ..traits import Traits
from .common import broadcast_read, dimension, each, numbered, sized


def concat(call: Call) -> Description:
    """Operand i fills the output from the sum of the extents before it."""
    points = numbered(call.outputs[0])
    along = dimension(int(call.attrs.get("dim", 0)), len(points))
    starts = _starts(call.inputs, along, points[along])
    reads = tuple(Access(_shifted(points, along, -start)) for start in starts[:-1])
    return Description((Output(points),), reads)


def stack(call: Call) -> Description:
    """Operand i is the slice i along a new dimension."""
    points = numbered(call.outputs[0])
    along = dimension(int(call.attrs.get("dim", 0)), len(points))
    others = tuple(axis for i, axis in enumerate(points) if i != along)
    parts = tuple(Access(others, when=points[along] - i) for i in range(len(call.inputs)))
    return Description((Output(points),), parts)


def split(call: Call) -> Description:
    """Output i holds the elements of x from the sum of the extents before it."""
    points = numbered(call.inputs[0])
    along = dimension(int(call.attrs.get("dim", 0)), len(points))
    starts = _starts(call.outputs, along, points[along])
    outputs = tuple(Output(_shifted(points, along, -start)) for start in starts[:-1])
    return Description(outputs, (Access(points),), moves=False)


def _starts(parts: Sequence[Shape], along: int, whole: Axis) -> tuple[int, ...]:
    starts = (0, *accumulate(shape[along] for shape in parts))
    if starts[-1] != whole.size:
        raise ValueError(
            f"the parts have {starts[-1]} along dimension {along}, the whole has {whole.size}"
        )
    return starts


def _shifted(points: Sequence[Axis], along: int, by: int) -> tuple[Entry, ...]:
    """``by`` is added along one dimension, whose extent is another one than the axis's size."""
    return tuple(axis + by if i == along else axis for i, axis in enumerate(points))


def slices(call: Call) -> Description:
    """y[.., i, ..] = x[.., start + i * step, ..] along ``dim``."""
    x = call.inputs[0]
    points = numbered(call.outputs[0])
    along = dimension(int(call.attrs.get("dim", 0)), len(x))
    start, step = int(call.attrs.get("start") or 0), int(call.attrs.get("step", 1))
    first = max(0, start + x[along] if start < 0 else start)
    index = tuple(axis * step + first if i == along else axis for i, axis in enumerate(points))

    def local(attrs: Mapping[str, Any], box: Box) -> Mapping[str, Any]:
        # The shard gets the part that it reads and nothing else.
        part = box.get(points[along].name)
        return (
            attrs
            if part is None
            else {**attrs, "start": 0, "end": (part[1] - part[0] - 1) * step + 1}
        )

    return Description((Output(points),), (Access(index),), moves=False, local=local)


def select(call: Call) -> Description:
    """The part of x at ``index`` along ``dim``, which goes away."""
    x = call.inputs[0]
    along = dimension(int(call.attrs.get("dim", 0)), len(x))
    place = int(call.attrs["index"])
    points = numbered(call.outputs[0])
    index: tuple[Entry, ...] = (
        *points[:along],
        place + x[along] if place < 0 else place,
        *points[along:],
    )
    return Description((Output(points),), (Access(index),), moves=False)


def select_backward(call: Call) -> Description:
    """Zeros, and dy at ``index`` along ``dim``."""
    points = numbered(call.outputs[0])
    along = dimension(int(call.attrs.get("dim", 0)), len(points))
    place = int(call.attrs["index"])
    others = tuple(axis for i, axis in enumerate(points) if i != along)
    read = Access(others, when=points[along] - (place % points[along].size))
    return Description((Output(points),), (read,), local=sized(input_sizes=points))


def slice_backward(call: Call) -> Description:
    """Zeros, and dy at start + i * step along ``dim``."""
    points = numbered(call.outputs[0])
    along = dimension(int(call.attrs.get("dim", 0)), len(points))
    start, step = int(call.attrs.get("start") or 0), int(call.attrs.get("step", 1))
    first = max(0, start + points[along].size if start < 0 else start)
    index = tuple(
        (axis - first).exact_div(step) if i == along else axis for i, axis in enumerate(points)
    )
    return Description((Output(points),), (Access(index),), local=sized(input_sizes=points))


def permuted(order: Sequence[int], call: Call) -> Description:
    """Dimension i of y is x's dimension order[i]."""
    points = numbered(call.outputs[0])
    index = tuple(points[order.index(i)] for i in range(len(points)))
    return Description((Output(points),), (Access(index),), moves=False)


def permute(call: Call) -> Description:
    """The dimensions of x in the order of ``dims``."""
    rank = len(call.inputs[0])
    order = [dimension(int(item), rank) for item in call.attrs["dims"]]
    if sorted(order) != list(range(rank)):
        raise ValueError(f"dims: {order} is no order of {rank} dimensions")
    return permuted(order, call)


def transpose(call: Call) -> Description:
    """Two dimensions of x exchanged (``dim0``, ``dim1``; the last two where left out)."""
    rank = len(call.inputs[0])
    first, second = (
        dimension(int(call.attrs.get(name, other)), rank)
        for name, other in (("dim0", -2), ("dim1", -1))
    )
    order = list(range(rank))
    order[first], order[second] = order[second], order[first]
    return permuted(order, call)


def reshape(call: Call) -> Description:
    """The same elements, in order, under another shape."""
    points = reshaped_axes(call.inputs[0], call.outputs[0])
    read = Access(reshaped(call.inputs[0], points))
    return Description(
        (Output(points),), (read,), moves=False, local=sized(shape=points, size=points)
    )


def expand(call: Call) -> Description:
    """Dimensions of extent 1 are repeated."""
    points = numbered(call.outputs[0])
    read = broadcast_read(call.inputs[0], points)
    return Description((Output(points),), (read,), moves=False, local=sized(size=points))


def pad(call: Call) -> Description:
    """Constants around x; ``pad`` tells before and after, last dimension first."""
    points = numbered(call.outputs[0])
    told = each(call.attrs, "pad", len(call.attrs["pad"]), (), None)
    before = [told[2 * k] if 2 * k < len(told) else 0 for k in range(len(points))][::-1]
    return Description(
        (Output(points),),
        (Access(tuple(axis - b for axis, b in zip(points, before, strict=True))),),
    )


def repeat(call: Call) -> Description:
    """Copies of x side by side: y[i] = x[i % extent]."""
    points = numbered(call.outputs[0])
    x = call.inputs[0]
    aligned = points[len(points) - len(x) :]
    index = tuple(
        axis if axis.size == extent else axis % extent
        for axis, extent in zip(aligned, x, strict=True)
    )
    return Description((Output(points),), (Access(index),))


_VIEWS = {
    "reshape": (reshape, "shape or size"),
    "view": (reshape, "size"),
    "flatten": (reshape, ""),
    "unflatten": (reshape, ""),
    "squeeze": (reshape, ""),
    "unsqueeze": (reshape, ""),
    "transpose": (transpose, "dim0, dim1 (default: the last two)"),
    "t": (transpose, ""),
    "permute": (permute, "dims"),
    "expand": (expand, "size"),
    "slice": (slices, "dim, start, end, step"),
    "select": (select, "dim, index"),
}
for _name, (_describe, _attributes) in _VIEWS.items():
    register(
        _name,
        _describe,
        "data_movement",
        traits=Traits(view=True),
        operands="x",
        outputs="y (a view)",
        attributes=_attributes,
    )
for _name in ("split", "chunk", "split_with_sizes"):
    register(
        _name,
        split,
        "data_movement",
        traits=Traits(view=True),
        operands="x",
        outputs="y0, y1, .. (views)",
        attributes="dim",
    )
for _name, _describe in (("concat", concat), ("stack", stack)):
    register(
        _name, _describe, "data_movement", operands="x0, x1, ..", outputs="y", attributes="dim"
    )
register("pad", pad, "data_movement", operands="x", outputs="y", attributes="pad")
register("constant_pad_nd", pad, "data_movement", operands="x", outputs="y", attributes="pad")
register("repeat", repeat, "data_movement", operands="x", outputs="y", attributes="repeats")
register(
    "select_backward",
    select_backward,
    "data_movement",
    operands="dy",
    outputs="dx",
    attributes="input_sizes, dim, index",
)
register(
    "slice_backward",
    slice_backward,
    "data_movement",
    operands="dy",
    outputs="dx",
    attributes="input_sizes, dim, start, end, step",
)
