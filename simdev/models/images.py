"""What the classifiers of images share: a batch in, and the loss of its scores."""

from __future__ import annotations

from ..graph import Graph
from .backward import training_graph
from .ops import cross_entropy
from .step import Step, Value


def images(step: Step, batch: int, size: int, channels: int = 3) -> Value:
    """A batch of images (n, channels, size, size)."""
    return step.input("images", batch, channels, size, size)


def classified(scores: Value) -> Graph:
    """The step that minimises the cross entropy of scores (n, classes)."""
    labels = scores.step.input("labels", scores.shape[0], dtype="int64")
    return training_graph(cross_entropy(scores, labels))
