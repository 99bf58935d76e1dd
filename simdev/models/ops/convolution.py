"""Convolution and pooling of images (n, c, h, w)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import InputError
from ..backward import Gradients, gradient
from ..step import Call, Shape, Value, record, record_like

Size = int | tuple[int, int]
"""One number for both dimensions, or (height, width)."""


def conv2d(
    x: Value,
    channels: int,
    kernel: Size,
    stride: int = 1,
    padding: Size = 0,
    groups: int = 1,
    bias: bool = False,
    name: str = "conv",
) -> Value:
    """A convolution to so many channels by a weight of its own; ``name`` is its scope."""
    with x.step.scope(name):
        windows = _pair(kernel)
        weight = x.step.parameter("weight", channels, x.shape[1] // groups, *windows)
        operands = (x, weight, x.step.parameter("bias", channels)) if bias else (x, weight)
        attrs: dict[str, Any] = {
            "stride": [stride, stride],
            "padding": _pair(padding),
            "dilation": [1, 1],
        }
        attrs |= {"groups": groups} if groups > 1 else {}
        spatial = _windows(x, windows, stride, _pair(padding))
        return record("conv2d", operands, (x.shape[0], channels, *spatial), attrs)


def max_pool2d(x: Value, kernel: int, stride: int, padding: int = 0) -> Value:
    """The maximum of every window; its place is kept for the backward."""
    spatial = _windows(x, [kernel, kernel], stride, [padding, padding])
    shape: Shape = (*x.shape[:2], *spatial)
    outputs = [(shape, x.dtype), (shape, "int64")]
    return x.step.record("max_pool2d", (x,), outputs, _pool(kernel, stride, padding))[0]


def avg_pool2d(x: Value, kernel: int, stride: int, padding: int = 0) -> Value:
    """The mean of every window."""
    spatial = _windows(x, [kernel, kernel], stride, [padding, padding])
    return record("avg_pool2d", (x,), (*x.shape[:2], *spatial), _pool(kernel, stride, padding))


def global_avg_pool(x: Value) -> Value:
    """(n, c, h, w) to (n, c, 1, 1)."""
    return record("mean", (x,), (*x.shape[:2], 1, 1), {"dim": [-1, -2], "keepdim": True})


def pad(x: Value, left: int, right: int, top: int, bottom: int) -> Value:
    """Zeros around each image, or with negative numbers pixels cut off."""
    n, c, h, w = x.shape
    around = [left, right, top, bottom]
    return record(
        "constant_pad_nd", (x,), (n, c, h + top + bottom, w + left + right), {"pad": around}
    )


def _pair(size: Size) -> list[int]:
    return [size, size] if isinstance(size, int) else list(size)


def _pool(kernel: int, stride: int, padding: int) -> dict[str, list[int]]:
    attrs = {"kernel_size": [kernel, kernel], "stride": [stride, stride]}
    return attrs | ({"padding": [padding, padding]} if padding else {})


def _windows(x: Value, kernel: Sequence[int], stride: int, padding: Sequence[int]) -> Shape:
    """Windows a spatial dimension. Raises InputError where none fits."""
    spatial = zip(x.shape[2:], kernel, padding, strict=True)
    found = tuple((extent + 2 * before - size) // stride + 1 for extent, size, before in spatial)
    if min(found) < 1:
        where = x.step.path
        raise InputError(
            f'size: too small: at "{where}" no window of {list(kernel)} fits {list(x.shape[2:])}'
        )
    return found


@gradient("conv2d")
def _conv2d(call: Call, dy: Value) -> Gradients:
    x, weight, *bias = call.inputs
    if x.trained:
        yield x, record("conv2d_backward_input", (dy, weight), x.shape, call.attrs)
    trained = weight, *bias
    yield from zip(
        trained, record_like("conv2d_backward_weight", (dy, x), trained, call.attrs), strict=True
    )


@gradient("max_pool2d")
def _max_pool2d(call: Call, dy: Value) -> Gradients:
    (x,), (_, place) = call.inputs, call.outputs
    attrs = {"padding": [0, 0], **call.attrs, "dilation": [1, 1]}
    yield x, record("max_pool2d_backward", (dy, x, place), x.shape, attrs)


@gradient("avg_pool2d")
def _avg_pool2d(call: Call, dy: Value) -> Gradients:
    (x,) = call.inputs
    attrs = {"padding": [0, 0], **call.attrs, "count_include_pad": True}
    yield x, record("avg_pool2d_backward", (dy, x), x.shape, attrs)


@gradient("mean")
def _mean(call: Call, dy: Value) -> Gradients:
    (x,) = call.inputs
    yield x, record("div", (dy,), x.shape, {"other": x.shape[-1] * x.shape[-2]})


@gradient("constant_pad_nd")
def _pad(call: Call, dy: Value) -> Gradients:
    (x,) = call.inputs
    yield (
        x,
        record(
            "constant_pad_nd", (dy,), x.shape, {"pad": [-extent for extent in call.attrs["pad"]]}
        ),
    )
