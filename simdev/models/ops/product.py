"""Products with weights and with each other."""

from __future__ import annotations

from math import prod

from ...errors import InputError
from ..backward import Gradients, gradient
from ..step import Call, Shape, Value, record
from .elementwise import total


def linear(x: Value, features: int, name: str, bias: bool = True) -> Value:
    """(.., k) to (.., features) by a weight of its own; ``name`` is its scope."""
    with x.step.scope(name):
        weight = x.step.parameter("weight", features, x.shape[-1])
        return linear_by(x, weight, x.step.parameter("bias", features) if bias else None)


def linear_by(x: Value, weight: Value, bias: Value | None = None) -> Value:
    """(.., k) to (.., n) by a weight (n, k) and, where given, a bias (n); without one the op is a
    ``matmul``.
    """
    *lead, inner = x.shape
    rows, features = x.view(prod(lead), inner), weight.shape[0]
    kind, operands = (
        ("matmul", (rows, weight)) if bias is None else ("linear", (rows, weight, bias))
    )
    return record(kind, operands, (prod(lead), features), {"transpose_b": True}).view(
        *lead, features
    )


def einsum(equation: str, a: Value, b: Value) -> Value:
    """The product of two tensors told by letters, as "bshd,bthd->bhst"."""
    first, second, made = _letters(equation)
    sizes = dict(zip(first + second, a.shape + b.shape, strict=True))
    return record("einsum", (a, b), tuple(sizes[letter] for letter in made), {"equation": equation})


def _letters(equation: str) -> tuple[str, str, str]:
    operands, _, made = equation.partition("->")
    first, _, second = operands.partition(",")
    return first, second, made


@gradient("linear", "matmul")
def _linear(call: Call, dy: Value) -> Gradients:
    x, weight, *bias = call.inputs
    if x.trained:
        yield x, record("matmul", (dy, weight), x.shape)
    yield weight, record("matmul", (dy, x), weight.shape, {"transpose_a": True})
    for b in bias:
        yield b, total(dy, [0]).view(*b.shape)


@gradient("einsum")
def _einsum(call: Call, dy: Value) -> Gradients:
    a, b = call.inputs
    first, second, out = _letters(call.attrs["equation"])
    yield a, einsum(f"{out},{second}->{first}", dy, b)
    yield b, einsum(f"{out},{first}->{second}", dy, a)


def split_heads(x: Value, count: int) -> Value:
    """(b, s, width) seen as (b, s, count, width / count).

    Raises InputError where the width does not divide.
    """
    batch, length, width = x.shape
    if width % count:
        raise InputError(f"heads: {count} do not divide the width {width}")
    return x.view(batch, length, count, width // count)


def flat(x: Value) -> Value:
    """(n, ..) seen as (n, product of the rest)."""
    shape: Shape = x.shape
    return x.view(shape[0], prod(shape[1:]))
