"""What the models of text share: words in, tensors a step of time, the loss of their scores."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import InputError
from ..graph import Graph
from .backward import training_graph
from .ops import concat, cross_entropy, linear, split
from .step import Step, Value


def words(step: Step, name: str, batch: int, length: int) -> Value:
    """A batch of word numbers (n, t)."""
    return step.input(name, batch, length, dtype="int64")


def unrolled(x: Value) -> list[Value]:
    """(n, t, features) to t tensors (n, features)."""
    batch, length, features = x.shape
    return [part.view(batch, features) for part in split(x, length, 1)]


def rolled(steps: Sequence[Value]) -> Value:
    """Tensors (n, features), one a step of time, to (n, t, features)."""
    batch, features = steps[0].shape
    return concat([x.view(batch, 1, features) for x in steps], 1)


def predicted(scores: Value) -> Graph:
    """The step that minimises the cross entropy of scores (.., classes)."""
    labels = scores.step.input("labels", *scores.shape[:-1], dtype="int64")
    return training_graph(cross_entropy(scores, labels))


def words_predicted(steps: Sequence[Value], vocabulary: int) -> Graph:
    """The step that predicts a word from each of the outputs (n, features), one a step of time."""
    with steps[0].step.scope("classifier"):
        joined = rolled(steps)
    return predicted(linear(joined, vocabulary, "classifier"))


def require_context(length: int, context: int) -> None:
    """Raises InputError where a text is longer than the table of its positions."""
    if length > context:
        raise InputError(f"length: {length} words, but the model knows {context} positions")
