"""The Transformer that translates (Vaswani et al., "Attention is all you need", 2017), by default
the big one.

One matrix serves as source and target embedding and as classifier. The layer norm follows the sum,
as in the paper.
"""

from __future__ import annotations

from ..graph import Graph
from .checking import model
from .ops import dropout, embedding_by, layer_norm, linear_by, scale, table
from .sequences import predicted, words
from .step import Step, Value
from .sublayers import Attention, feed_forward


@model
def transformer(
    batch: int = 64,
    length: int = 64,
    layers: int = 6,
    width: int = 1024,
    inner: int = 4096,
    heads: int = 16,
    vocabulary: int = 37_000,
    dropout: bool = True,
    fused: bool = True,
    dtype: str = "float32",
    optimizer: str = "adam",
) -> Graph:
    """Translates ``batch`` sentences of ``length`` words, source and target alike, with ``layers``
    on either side.

    ``fused``: attention is one op (see ``ops.attention``). Raises InputError.
    """
    step = Step(f"transformer-{layers}-{width}-b{batch}", dtype, optimizer)
    source, target = words(step, "source", batch, length), words(step, "target", batch, length)
    attend = Attention(heads, fused=fused, drop=dropout, bias=False)
    both = table(source, vocabulary, width)
    with step.scope("encoder"):
        memory = _embedded(source, both, dropout)
        for i in range(layers):
            with step.scope(f"layer_{i}"):
                memory = _joined(memory, attend(memory, memory), "norm_1", dropout)
                memory = _joined(memory, feed_forward(memory, inner, "relu"), "norm_2", dropout)
    with step.scope("decoder"):
        x = _embedded(target, both, dropout)
        for i in range(layers):
            with step.scope(f"layer_{i}"):
                x = _joined(x, attend(x, x, causal=True), "norm_1", dropout)
                x = _joined(x, attend(x, memory, name="cross"), "norm_2", dropout)
                x = _joined(x, feed_forward(x, inner, "relu"), "norm_3", dropout)
    with step.scope("classifier"):
        scores = linear_by(x, both)
    return predicted(scores)


def _embedded(text: Value, both: Value, drop: bool) -> Value:
    """Words (n, t) to (n, t, width), with their places (the sinusoids of section 3.5)."""
    x = scale(embedding_by(text, both))
    return dropout(x + x.step.constant("positions", 1, *x.shape[1:]), drop)


def _joined(x: Value, made: Value, norm: str, drop: bool) -> Value:
    """A sublayer's result with dropout, added to what went in, normalised."""
    return layer_norm(x + dropout(made, drop), norm)
