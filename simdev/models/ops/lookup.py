"""Embeddings."""

from __future__ import annotations

from ..backward import Gradients, gradient
from ..step import Call, Value, record


def embedding(words: Value, count: int, width: int, name: str = "embedding") -> Value:
    """Whole numbers (..) to rows (.., width) of a table of its own; ``name`` is its scope."""
    return embedding_by(words, table(words, count, width, name), name)


def table(words: Value, count: int, width: int, name: str = "embedding") -> Value:
    """A table (count, width) for ``embedding_by``, where several read it."""
    with words.step.scope(name):
        return words.step.parameter("weight", count, width)


def embedding_by(words: Value, weight: Value, name: str = "embedding") -> Value:
    """Whole numbers (..) to rows (.., width) of the table."""
    with words.step.scope(name):
        return record("embedding", (weight, words), (*words.shape, weight.shape[1]))


@gradient("embedding")
def _embedding(call: Call, dy: Value) -> Gradients:
    weight, words = call.inputs
    attrs = {"num_weights": weight.shape[0], "padding_idx": -1}
    yield weight, record("embedding_backward", (dy, words), weight.shape, attrs)
