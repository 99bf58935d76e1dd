"""Recurrent models of one text: a language model and a classifier, LSTM layers unrolled over time.

RNNLM: Zaremba et al., "Recurrent neural network regularization", 2014; the papers on
parallelization take 2 layers of 2048 and 40 steps, Zaremba's large model has 1500 units and 35
steps. RNNTC: FlexFlow's text classifier, 4 layers of 1024 and 40 steps (Jia et al., MLSys 2019,
table 3); its vocabulary is not published.
"""

from __future__ import annotations

from ..graph import Graph
from .checking import model
from .ops import cell, dropout, embedding, linear, lstm
from .sequences import predicted, unrolled, words, words_predicted
from .step import Step, Value


@model
def rnnlm(
    batch: int = 64,
    length: int = 40,
    hidden: int = 2048,
    layers: int = 2,
    vocabulary: int = 10_000,
    dropout: bool = True,
    dtype: str = "float32",
    optimizer: str = "momentum",
) -> Graph:
    """Predicts each next word of ``batch`` texts of ``length`` words. Raises InputError."""
    step = Step(f"rnnlm-{layers}-{hidden}-b{batch}", dtype, optimizer)
    outputs = _layers(words(step, "words", batch, length), hidden, layers, vocabulary, dropout)
    return words_predicted(outputs, vocabulary)


@model
def rnntc(
    batch: int = 64,
    length: int = 40,
    hidden: int = 1024,
    layers: int = 4,
    vocabulary: int = 20_000,
    classes: int = 2,
    dropout: bool = True,
    dtype: str = "float32",
    optimizer: str = "momentum",
) -> Graph:
    """Classifies ``batch`` texts of ``length`` words by the output of the last step.

    Raises InputError.
    """
    step = Step(f"rnntc-{layers}-{hidden}-b{batch}", dtype, optimizer)
    outputs = _layers(words(step, "words", batch, length), hidden, layers, vocabulary, dropout)
    return predicted(linear(outputs[-1], classes, "classifier"))


def _layers(text: Value, hidden: int, layers: int, vocabulary: int, drop: bool) -> list[Value]:
    """Words (n, t) to t outputs (n, hidden), with dropout before and behind every layer."""
    step = text.step
    x = embedding(text, vocabulary, hidden)
    with step.scope("embedding"):
        xs = unrolled(dropout(x, drop))
    for i in range(layers):
        made = lstm(cell(step, f"layer_{i}", hidden, hidden), enumerate(xs))
        xs = []
        for time, x in made.items():
            with step.scope(f"layer_{i}@{time}"):
                xs.append(dropout(x, drop))
    return xs
