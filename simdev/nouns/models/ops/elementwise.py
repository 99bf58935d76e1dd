"""Pointwise verbs: activations, dropout, scaling; sums and products are written with + and *."""

from __future__ import annotations

from typing import Any

from ..backward import Gradients, gradient
from ..builder import Call, Shape, Value, record


def relu(x: Value) -> Value:
    """The positive part."""
    return record("relu", x)


def tanh(x: Value) -> Value:
    """The hyperbolic tangent."""
    return record("tanh", x)


def sigmoid(x: Value) -> Value:
    """The logistic function."""
    return record("sigmoid", x)


def gelu(x: Value, approximate: bool = False) -> Value:
    """Gaussian error linear unit; ``approximate`` by a tanh, as GPT-2 has it."""
    attrs: dict[str, Any] = {"approximate": "tanh"} if approximate else {}
    return record("gelu", x, **attrs)


def silu(x: Value) -> Value:
    """The sigmoid times its argument."""
    return record("silu", x)


def scale(x: Value) -> Value:
    """The product with a number."""
    return record("mul", x)


def dropout(x: Value, on: bool = True) -> Value:
    """Some elements set to zero by a mask that the backward needs; ``on`` False returns x."""
    if not on:
        return x
    return x.step.record("dropout", [x], [x.shape_dtype, (x.shape, "bool")], train=True)[0]


@gradient("relu", "sigmoid", "tanh")
def _by_output(call: Call, dy: Value) -> Gradients:
    yield call.inputs[0], record(f"{call.kind}_backward", dy, call.outputs[0])


@gradient("gelu", "silu")
def _by_input(call: Call, dy: Value) -> Gradients:
    (x,) = call.inputs
    yield x, record(f"{call.kind}_backward", dy, x, **call.attrs)


@gradient("dropout")
def _dropout(call: Call, dy: Value) -> Gradients:
    yield call.inputs[0], record("dropout_backward", dy, call.outputs[1])


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
    # Broadcasting aligns shapes at their ends.
    aligned = (1,) * (len(dy.shape) - len(shape)) + shape
    dims = [i for i, extent in enumerate(dy.shape) if aligned[i] != extent]
    return (total(dy, dims) if dims else dy).view(*shape)


def total(x: Value, dims: list[int]) -> Value:
    """The sum over some dimensions, which stay with the extent 1."""
    kept = tuple(1 if i in dims else extent for i, extent in enumerate(x.shape))
    return record("sum", x, shape=kept, dim=dims, keepdim=True)
