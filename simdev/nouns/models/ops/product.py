"""Products: with weights, with each other, as attention; and rows looked up in a table.

Attention takes heads where the projections leave them, (b, s, heads, d). Fused it is one op
(FlashAttention) that keeps a number a row of scores; written out it is two products with a softmax
between them, and the scores are kept, as the papers before FlashAttention have them.
"""

from __future__ import annotations

from math import prod

from ....ground.errors import InputError
from ..backward import Gradients, gradient, gradients_of
from ..builder import Call, Value, record
from .elementwise import dropout, total
from .reduction import softmax


def linear(x: Value, features: int, name: str, bias: bool = True) -> Value:
    """(.., k) to (.., features) by a weight of its own; ``name`` is its scope."""
    with x.step.scope(name):
        weight = x.step.parameter("weight", features, x.shape[-1])
        return linear_by(x, weight, x.step.parameter("bias", features) if bias else None)


def linear_by(x: Value, weight: Value, bias: Value | None = None) -> Value:
    """(.., k) to (.., n) by a weight (n, k) and perhaps a bias (n); without, it is a ``matmul``."""
    *lead, inner = x.shape
    rows, features = prod(lead), weight.shape[0]
    kind, biases = ("matmul", ()) if bias is None else ("linear", (bias,))
    operands = x.view(rows, inner), weight, *biases
    return record(kind, *operands, shape=(rows, features), transpose_b=True).view(*lead, features)


def einsum(equation: str, a: Value, b: Value) -> Value:
    """The product of two tensors named by letters, as "bshd,bthd->bhst"."""
    first, second, product = _letters(equation)
    sizes = dict(zip(first + second, a.shape + b.shape, strict=True))
    return record("einsum", a, b, shape=tuple(map(sizes.__getitem__, product)), equation=equation)


def _letters(equation: str) -> list[str]:
    return equation.replace("->", ",").split(",")


def split_heads(x: Value, count: int) -> Value:
    """(b, s, width) as (b, s, count, width / count). Raises InputError where that is no integer."""
    *lead, width = x.shape
    if width % count:
        raise InputError(f"heads: {count} do not divide the width {width}")
    return x.view(*lead, count, width // count)


def flat(x: Value) -> Value:
    """(n, ..) seen as (n, product of the rest)."""
    return x.view(x.shape[0], prod(x.shape[1:]))


def attend(
    q: Value, k: Value, v: Value, causal: bool = False, fused: bool = True, drop: bool = False
) -> Value:
    """Queries (b, s, h, d) over keys and values (b, t, g, d), g a divisor of h, to (b, s, h, d).

    ``drop``: dropout of the weights (a fused kernel keeps only its seed). Written out, scaling and
    the causal mask belong to the softmax, as its fused kernels have it (Megatron-LM), and save no
    work.
    """
    (batch, length, count, size), groups = q.shape, k.shape[2]
    if fused:
        outputs = [q.shape_dtype, ((batch, count, length), "float32")]
        attrs = {"is_causal": True} if causal else {}
        return q.step.record("flash_attention", (q, k, v), outputs, **attrs)[0]
    scores = einsum("bsgjd,btgd->bgjst", q.view(batch, length, groups, count // groups, size), k)
    weights = dropout(softmax(scores, -1), drop)
    return einsum("bgjst,btgd->bsgjd", weights, v).view(*q.shape)


def rotary(x: Value) -> Value:
    """Each head rotated by its position (Su et al., "RoFormer", 2021)."""
    return record("rotary_embedding", x)


def embedding(tokens: Value, count: int, width: int, name: str = "embedding") -> Value:
    """Whole numbers (..) to rows (.., width) of a table of its own; ``name`` is its scope."""
    return embedding_by(tokens, table(tokens, count, width, name), name)


def table(tokens: Value, count: int, width: int, name: str = "embedding") -> Value:
    """A table (count, width) for ``embedding_by``, where several ops read it."""
    with tokens.step.scope(name):
        return tokens.step.parameter("weight", count, width)


def embedding_by(tokens: Value, weight: Value, name: str = "embedding") -> Value:
    """Whole numbers (..) to rows (.., width) of the table."""
    with tokens.step.scope(name):
        return record("embedding", weight, tokens, shape=(*tokens.shape, weight.shape[1]))


@gradient("linear", "matmul")
def _linear(call: Call, dy: Value) -> Gradients:
    x, weight, *bias = call.inputs
    if x.trained:
        yield x, record("matmul", dy, weight, shape=x.shape)
    yield weight, record("matmul", dy, x, shape=weight.shape, transpose_a=True)
    # A product makes no sums: the gradient of the bias is an op of its own.
    for b in bias:
        yield b, total(dy, [0]).view(*b.shape)


@gradient("einsum")
def _einsum(call: Call, dy: Value) -> Gradients:
    a, b = call.inputs
    first, second, product = _letters(call.attrs["equation"])
    yield a, einsum(f"{product},{second}->{first}", dy, b)
    yield b, einsum(f"{product},{first}->{second}", dy, a)


@gradient("flash_attention")
def _attention(call: Call, dy: Value) -> Gradients:
    operands = dy, *call.inputs, *call.outputs
    return gradients_of(call.inputs, "flash_attention_backward", operands, **call.attrs)


@gradient("rotary_embedding")
def _rotary(call: Call, dy: Value) -> Gradients:
    # The transpose of a rotation is a rotation: its backward costs as much.
    yield call.inputs[0], rotary(dy)


@gradient("embedding")
def _embedding(call: Call, dy: Value) -> Gradients:
    weight, tokens = call.inputs
    # Dense, as PyTorch's default: rows that no token named get zeros, which are written, too.
    attrs = {"num_weights": weight.shape[0], "padding_idx": -1}
    yield weight, record("embedding_backward", dy, tokens, shape=weight.shape, **attrs)
