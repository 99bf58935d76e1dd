"""GPT-2 and GPT-3, by default the small GPT-2.

Radford et al., "Language models are unsupervised multitask learners", 2019; Brown et al., "Language
models are few-shot learners", 2020. The layer norm stands before each part; the classifier shares
the embedding's matrix. 124,439,808 parameters (small), 354,823,168 (medium), 774,030,080 (large),
1,557,611,200 (xl), about 175 billion (GPT-3).
"""

from __future__ import annotations

from ..graph import Graph
from .checking import model
from .ops import dropout, embedding_by, layer_norm, linear_by, table
from .sequences import predicted, require_context, words
from .step import Step, Value
from .sublayers import Attention, feed_forward


@model
def gpt(
    batch: int = 8,
    length: int = 1024,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    vocabulary: int = 50_257,
    context: int = 1024,
    dropout: bool = True,
    fused: bool = True,
    dtype: str = "float32",
    optimizer: str = "adam",
) -> Graph:
    """Predicts each next word of ``batch`` texts of ``length`` words.

    ``context``: positions that the model knows; ``fused``: attention is one op. Raises InputError.
    """
    require_context(length, context)
    step = Step(f"gpt-{layers}-{width}-b{batch}", dtype, optimizer)
    attend = Attention(heads, fused=fused, drop=dropout)
    text = words(step, "words", batch, length)
    both = table(text, vocabulary, width)
    with step.scope("embedding"):
        x = _embedded(text, both, context, dropout)
    for i in range(layers):
        with step.scope(f"layer_{i}"):
            y = layer_norm(x, "norm_1")
            x = _added(x, attend(y, y, causal=True), dropout)
            x = _added(x, feed_forward(layer_norm(x, "norm_2"), 4 * width, "gelu-tanh"), dropout)
    with step.scope("classifier"):
        scores = linear_by(layer_norm(x), both)
    return predicted(scores)


def _embedded(text: Value, both: Value, context: int, drop: bool) -> Value:
    """Words (n, t) to (n, t, width), with their places."""
    places = text.step.constant("positions", 1, text.shape[1], dtype="int64")
    found = embedding_by(text, both, "words")
    return dropout(
        found + embedding_by(places, table(places, context, both.shape[1], "places"), "places"),
        drop,
    )


def _added(x: Value, made: Value, drop: bool) -> Value:
    return x + dropout(made, drop)
