"""Attention over heads that stay where the projections leave them: (b, s, heads, d).

Fused it is one op (FlashAttention) that keeps a number a row of scores; written out it is two
products with a softmax between them, and the scores are kept, as the papers before it have them.
"""

from __future__ import annotations

from ..backward import Gradients, gradient
from ..step import Call, Value, record, record_like
from .elementwise import dropout
from .product import einsum


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
        rows = (batch, count, length), "float32"
        attrs = {"is_causal": True} if causal else {}
        return q.step.record("flash_attention", (q, k, v), [(q.shape, q.dtype), rows], attrs)[0]
    scores = einsum("bsgjd,btgd->bgjst", q.view(batch, length, groups, count // groups, size), k)
    weights = dropout(softmax(scores, -1), drop)
    return einsum("bgjst,btgd->bsgjd", weights, v).view(*q.shape)


def softmax(x: Value, dim: int) -> Value:
    """Weights that sum to 1 along a dimension."""
    return record("softmax", (x,), x.shape, {"dim": dim})


def rotary(x: Value) -> Value:
    """Each head turned by its position (Su et al., "RoFormer", 2021)."""
    return record("rotary_embedding", (x,), x.shape)


@gradient("flash_attention")
def _attention(call: Call, dy: Value) -> Gradients:
    operands = (dy, *call.inputs, *call.outputs)
    yield from zip(
        call.inputs,
        record_like("flash_attention_backward", operands, call.inputs, call.attrs),
        strict=True,
    )


@gradient("softmax", "log_softmax")
def _softmax(call: Call, dy: Value) -> Gradients:
    (x,), (y,) = call.inputs, call.outputs
    yield (
        x,
        record(f"{call.kind}_backward", (dy, y), x.shape, {**call.attrs, "input_dtype": x.dtype}),
    )


@gradient("rotary_embedding")
def _rotary(call: Call, dy: Value) -> Gradients:
    yield call.inputs[0], rotary(dy)
