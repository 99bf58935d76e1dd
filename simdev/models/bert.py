"""BERT pre-training (Devlin et al., "BERT: Pre-training of deep bidirectional transformers", 2018),
by default large.

Both tasks of the paper: words that were masked, and whether the second sentence follows the first.
The classifier of words shares the embedding's matrix. 110,106,428 (base) and 336,226,108 (large)
parameters, both heads included.
"""

from __future__ import annotations

from ..graph import Graph
from .backward import training_graph
from .checking import model
from .ops import (
    cross_entropy,
    dropout,
    embedding_by,
    gather,
    gelu,
    layer_norm,
    linear,
    linear_by,
    select,
    table,
    tanh,
)
from .sequences import require_context, words
from .step import Step, Value
from .sublayers import Attention, feed_forward


@model
def bert(
    batch: int = 32,
    length: int = 128,
    layers: int = 24,
    width: int = 1024,
    inner: int = 4096,
    heads: int = 16,
    vocabulary: int = 30_522,
    context: int = 512,
    dropout: bool = True,
    fused: bool = True,
    dtype: str = "float32",
    optimizer: str = "adam",
) -> Graph:
    """Pre-trains on ``batch`` pairs of sentences of ``length`` words together, 15 % of them masked.

    ``context``: positions that the model knows; ``fused``: attention is one op. Raises InputError.
    """
    require_context(length, context)
    step = Step(f"bert-{layers}-{width}-b{batch}", dtype, optimizer)
    attend = Attention(heads, fused=fused, drop=dropout)
    text = words(step, "words", batch, length)
    both = table(text, vocabulary, width, "embeddings/words")
    x = _embedded(text, both, context, dropout)
    for i in range(layers):
        with step.scope(f"layer_{i}"):
            x = _joined(x, attend(x, x), "norm_1", dropout)
            x = _joined(x, feed_forward(x, inner), "norm_2", dropout)
    losses = _masked_words(x, both), _next_sentence(x)
    with step.scope("loss"):
        return training_graph(losses[0] + losses[1])


def _embedded(text: Value, both: Value, context: int, drop: bool) -> Value:
    """Words (n, t) to (n, t, width), with their sentences and places."""
    step, (batch, length), width = text.step, text.shape, both.shape[1]
    which, places = (
        words(step, "sentences", batch, length),
        step.constant("positions", 1, length, dtype="int64"),
    )
    with step.scope("embeddings"):
        x = embedding_by(text, both, "words") + embedding_by(
            which, table(which, 2, width, "sentences"), "sentences"
        )
        x = x + embedding_by(places, table(places, context, width, "places"), "places")
        return dropout(layer_norm(x), drop)


def _joined(x: Value, made: Value, norm: str, drop: bool) -> Value:
    """A sublayer's result with dropout, added to what went in, normalised."""
    return layer_norm(x + dropout(made, drop), norm)


def _masked_words(x: Value, both: Value) -> Value:
    """The loss of the masked words, looked up in their texts."""
    step, (batch, length, width) = x.step, x.shape
    count = max(1, length * 15 // 100)
    masked = step.input("masked", batch, count, 1, dtype="int64")
    labels = words(step, "labels", batch, count)
    with step.scope("words"):
        chosen = gather(x, masked.expand(batch, count, width), 1)
        chosen = layer_norm(gelu(linear(chosen, width, "transform")))
        scores = linear_by(chosen, both, step.parameter("bias", both.shape[0]))
        return cross_entropy(scores, labels)


def _next_sentence(x: Value) -> Value:
    """The loss of whether the second sentence follows, from the first word's vector."""
    step, (batch, _, width) = x.step, x.shape
    follows = step.input("follows", batch, dtype="int64")
    with step.scope("follows"):
        pooled = tanh(linear(select(x, 1, 0), width, "pooler"))
        return cross_entropy(linear(pooled, 2, "classifier"), follows)
