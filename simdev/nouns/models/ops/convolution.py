"""Convolution and pooling of images (n, c, h, w)."""

from __future__ import annotations

from collections.abc import Sequence

from ....ground.errors import InputError
from ..backward import Gradients, gradient, gradients_of
from ..builder import Call, Shape, Value, record

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
        windows, edges = _pair(kernel), _pair(padding)
        weight = x.step.parameter("weight", channels, x.shape[1] // groups, *windows)
        operands = [x, weight, *([x.step.parameter("bias", channels)] if bias else [])]
        # Attributes and their order are those of captured graphs: profiles are looked up by them.
        attrs = {"stride": [stride, stride], "padding": edges, "dilation": [1, 1]}
        return record(
            "conv2d",
            *operands,
            shape=_windows(x, channels, windows, stride, edges),
            **attrs,
            **({"groups": groups} if groups > 1 else {}),
        )


def max_pool2d(x: Value, kernel: int, stride: int, padding: int = 0) -> Value:
    """The maximum of every window; its place is kept for the backward."""
    shape, attrs = _pool(x, kernel, stride, padding)
    return x.step.record("max_pool2d", [x], [(shape, x.dtype), (shape, "int64")], **attrs)[0]


def avg_pool2d(x: Value, kernel: int, stride: int, padding: int = 0) -> Value:
    """The mean of every window."""
    shape, attrs = _pool(x, kernel, stride, padding)
    return record("avg_pool2d", x, shape=shape, **attrs)


def global_avg_pool(x: Value) -> Value:
    """(n, c, h, w) to (n, c, 1, 1)."""
    return record("mean", x, shape=(*x.shape[:2], 1, 1), dim=[-1, -2], keepdim=True)


def pad(x: Value, left: int, right: int, top: int, bottom: int) -> Value:
    """Zeros around each image, or with negative numbers pixels cut off."""
    n, c, h, w = x.shape
    shape = n, c, h + top + bottom, w + left + right
    return record("constant_pad_nd", x, shape=shape, pad=[left, right, top, bottom])


def _pair(size: Size) -> list[int]:
    return [size, size] if isinstance(size, int) else list(size)


def _pool(x: Value, kernel: int, stride: int, padding: int) -> tuple[Shape, dict[str, list[int]]]:
    """Shape and attributes of a pooling; captured graphs leave a padding of 0 out."""
    attrs = {"kernel_size": _pair(kernel), "stride": _pair(stride)}
    attrs |= {"padding": _pair(padding)} if padding else {}
    return _windows(x, x.shape[1], _pair(kernel), stride, _pair(padding)), attrs


def _windows(
    x: Value, channels: int, kernel: Sequence[int], stride: int, padding: Sequence[int]
) -> Shape:
    """(n, channels, windows down, windows across). Raises InputError where no window fits."""
    spatial = zip(x.shape[2:], kernel, padding, strict=True)
    counts = [(extent + 2 * edge - size) // stride + 1 for extent, size, edge in spatial]
    if min(counts) < 1:
        where = x.step.path
        raise InputError(
            f'size: too small: at "{where}" no window of {list(kernel)} fits {list(x.shape[2:])}'
        )
    return x.shape[0], channels, *counts


@gradient("conv2d")
def _conv2d(call: Call, dy: Value) -> Gradients:
    x, weight, *bias = call.inputs
    if x.trained:
        yield (x, record("conv2d_backward_input", dy, weight, shape=x.shape, **call.attrs))
    yield from gradients_of([weight, *bias], "conv2d_backward_weight", [dy, x], **call.attrs)


@gradient("max_pool2d")
def _max_pool2d(call: Call, dy: Value) -> Gradients:
    (x,), (_, place) = call.inputs, call.outputs
    # Unlike the forward, the backward op of PyTorch writes its defaults out.
    attrs = {"padding": [0, 0], **call.attrs, "dilation": [1, 1]}
    yield x, record("max_pool2d_backward", dy, x, place, shape=x.shape, **attrs)


@gradient("avg_pool2d")
def _avg_pool2d(call: Call, dy: Value) -> Gradients:
    (x,) = call.inputs
    attrs = {"padding": [0, 0], **call.attrs, "count_include_pad": True}
    yield x, record("avg_pool2d_backward", dy, x, shape=x.shape, **attrs)


@gradient("mean")
def _mean(call: Call, dy: Value) -> Gradients:
    (x,) = call.inputs
    yield x, record("div", dy, shape=x.shape, other=x.shape[-1] * x.shape[-2])


@gradient("constant_pad_nd")
def _pad(call: Call, dy: Value) -> Gradients:
    (x,) = call.inputs
    yield x, pad(dy, *(-extent for extent in call.attrs["pad"]))
