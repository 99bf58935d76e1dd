"""Verbs that move elements: joined, parted, chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..backward import Gradients, Made, gradient, gradient_of_all
from ..step import Call, Shape, Value, record


def concat(parts: Sequence[Value], dim: int) -> Value:
    """Tensors side by side along a dimension."""
    first = parts[0].shape
    whole = sum(part.shape[dim] for part in parts)
    return record("concat", parts, _with(first, dim, whole), {"dim": dim})


def split(x: Value, parts: int, dim: int) -> tuple[Value, ...]:
    """So many equal parts along a dimension."""
    return _split(x, [x.shape[dim] // parts] * parts, dim)


def select(x: Value, dim: int, index: int) -> Value:
    """One slice along a dimension, which goes away."""
    return record("select", (x,), x.shape[:dim] + x.shape[dim + 1 :], {"dim": dim, "index": index})


def gather(x: Value, index: Value, dim: int) -> Value:
    """Elements looked up along a dimension by an index of the result's shape."""
    return record("gather", (x, index), index.shape, {"dim": dim})


def zeros(x: Value, *shape: int) -> Value:
    """A state before the first step: zeros of the dtype of x."""
    return x.step.record("zeros", (), [(shape, x.dtype)], {"size": list(shape)})[0]


def _split(x: Value, extents: Sequence[int], dim: int) -> tuple[Value, ...]:
    outputs = [(_with(x.shape, dim, extent), x.dtype) for extent in extents]
    return x.step.record("split", (x,), outputs, {"dim": dim})


def _with(shape: Shape, dim: int, extent: int) -> Shape:
    return (*shape[:dim], extent, *shape[dim + 1 :])


@gradient("concat")
def _concat(call: Call, dy: Value) -> Gradients:
    dim = call.attrs["dim"]
    yield from zip(
        call.inputs, _split(dy, [part.shape[dim] for part in call.inputs], dim), strict=True
    )


@gradient_of_all("split")
def _split_backward(call: Call, made: Made) -> Gradients:
    known = next(dy for dy in made if dy is not None)
    parts = [
        dy if dy is not None else record("zeros_like", (known,), part.shape)
        for dy, part in zip(made, call.outputs, strict=True)
    ]
    yield call.inputs[0], concat(parts, call.attrs["dim"])


@gradient("select", "gather")
def _chosen(call: Call, dy: Value) -> Gradients:
    x, *index = call.inputs
    attrs: dict[str, Any] = dict(call.attrs)
    if not index:
        attrs |= {"input_sizes": list(x.shape)}
    yield x, record(f"{call.kind}_backward", (dy, *index), x.shape, attrs)
