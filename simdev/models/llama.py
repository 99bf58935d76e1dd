"""Llama (Touvron et al., "LLaMA: Open and efficient foundation language models", 2023), by default
Llama-2 7B.

RMS norm before each part, rotary positions, a gated feed-forward part (SwiGLU), no biases, no
dropout; with fewer heads of keys than of queries (``kv_heads``) in Llama-2 70B and Llama-3.
6,738,415,616 parameters (7B), 13,015,864,320 (13B), 68,976,648,192 (70B).
"""

from __future__ import annotations

from ..errors import InputError
from ..graph import Graph
from .checking import model
from .ops import embedding, linear, rms_norm, silu
from .sequences import predicted, words
from .step import Step, Value
from .sublayers import Attention


@model
def llama(
    batch: int = 1,
    length: int = 4096,
    layers: int = 32,
    width: int = 4096,
    inner: int = 11_008,
    heads: int = 32,
    kv_heads: int | None = None,
    vocabulary: int = 32_000,
    fused: bool = True,
    dtype: str = "bfloat16",
    optimizer: str = "mixed-adam",
) -> Graph:
    """Predicts each next word of ``batch`` texts of ``length`` words.

    ``kv_heads`` None: as many as ``heads``; ``fused``: attention is one op. Raises InputError.
    """
    if kv_heads is not None and heads % kv_heads:
        raise InputError(f"kv_heads: {kv_heads} do not divide the {heads} heads")
    step = Step(f"llama-{layers}-{width}-b{batch}", dtype, optimizer)
    attend = Attention(heads, kv_heads, fused=fused, bias=False, turned=True)
    x = embedding(words(step, "words", batch, length), vocabulary, width)
    for i in range(layers):
        with step.scope(f"layer_{i}"):
            y = rms_norm(x, "norm_1")
            x = x + attend(y, y, causal=True)
            x = x + _gated(rms_norm(x, "norm_2"), inner)
    with step.scope("classifier"):
        scores = linear(rms_norm(x), vocabulary, "out", bias=False)
    return predicted(scores)


def _gated(x: Value, inner: int) -> Value:
    """SwiGLU (Shazeer, "GLU variants improve Transformer", 2020)."""
    with x.step.scope("mlp"):
        gate = silu(linear(x, inner, "gate", bias=False))
        return linear(gate * linear(x, inner, "up", bias=False), x.shape[2], "down", bias=False)
