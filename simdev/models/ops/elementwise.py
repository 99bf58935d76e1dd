"""Pointwise verbs: activations, dropout, scaling; sums and products are written with + and *."""

from __future__ import annotations

from ..backward import Gradients, gradient
from ..step import Call, Shape, Value, record


def relu(x: Value) -> Value:
    """The positive part."""
    return record("relu", (x,), x.shape)


def sigmoid(x: Value) -> Value:
    """The logistic function."""
    return record("sigmoid", (x,), x.shape)


def tanh(x: Value) -> Value:
    """The hyperbolic tangent."""
    return record("tanh", (x,), x.shape)


def gelu(x: Value, approximate: bool = False) -> Value:
    """Gaussian error linear unit; ``approximate`` by a tanh, as GPT-2 has it."""
    return record("gelu", (x,), x.shape, {"approximate": "tanh"} if approximate else {})


def silu(x: Value) -> Value:
    """The sigmoid times its argument."""
    return record("silu", (x,), x.shape)


def scale(x: Value) -> Value:
    """The product with a number."""
    return record("mul", (x,), x.shape)


def dropout(x: Value, on: bool = True) -> Value:
    """Some elements set to zero by a mask that the backward needs; ``on`` False hands x through."""
    if not on:
        return x
    return x.step.record("dropout", (x,), [(x.shape, x.dtype), (x.shape, "bool")], {"train": True})[
        0
    ]


@gradient("relu", "sigmoid", "tanh")
def _by_output(call: Call, dy: Value) -> Gradients:
    (x,), (y,) = call.inputs, call.outputs
    yield x, record(f"{call.kind}_backward", (dy, y), x.shape)


@gradient("gelu", "silu")
def _by_input(call: Call, dy: Value) -> Gradients:
    (x,) = call.inputs
    yield x, record(f"{call.kind}_backward", (dy, x), x.shape, call.attrs)


@gradient("dropout")
def _dropout(call: Call, dy: Value) -> Gradients:
    (x,), (_, mask) = call.inputs, call.outputs
    yield x, record("dropout_backward", (dy, mask), x.shape)


@gradient("add")
def _add(call: Call, dy: Value) -> Gradients:
    for x in call.inputs:
        if x.trained:
            yield x, _summed(dy, x.shape)


@gradient("mul")
def _mul(call: Call, dy: Value) -> Gradients:
    if len(call.inputs) == 1:
        yield call.inputs[0], scale(dy)
        return
    for x, other in zip(call.inputs, call.inputs[::-1], strict=True):
        if x.trained:
            yield x, _summed(dy * other, x.shape)


def _summed(dy: Value, shape: Shape) -> Value:
    """A gradient summed over the dimensions along which the operand of this shape was repeated."""
    missing = len(dy.shape) - len(shape)
    aligned = (1,) * missing + shape
    dims = [i for i, extent in enumerate(dy.shape) if aligned[i] != extent]
    return total(dy, dims).view(*shape) if dims else dy.view(*shape)


def total(x: Value, dims: list[int]) -> Value:
    """The sum over some dimensions, which stay with the extent 1."""
    kept = tuple(1 if i in dims else extent for i, extent in enumerate(x.shape))
    return record("sum", (x,), kept, {"dim": dims, "keepdim": True})
