"""The translator of the papers on placement and parallelization, unrolled over time (NMT).

LSTM layers encode, LSTM layers decode, attention on top of the last one (Luong et al., "Effective
approaches to attention-based neural machine translation", 2015), softmax. FlexFlow takes 2 + 2
layers of 1024 and 40 steps (Jia et al., MLSys 2019, table 3). The vocabulary is not published; with
32,000 words the gradients of 64 replicas are 67.5 GB a step in a ring, against 65.8 GB that it
reports for data parallelism.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..graph import Graph
from .checking import model
from .ops import State, cell, concat, einsum, embedding, linear_by, lstm_cell, softmax, tanh
from .sequences import rolled, unrolled, words, words_predicted
from .step import Step, Value


@model
def nmt(
    batch: int = 64,
    length: int = 40,
    hidden: int = 1024,
    layers: int = 2,
    vocabulary: int = 32_000,
    dtype: str = "float32",
    optimizer: str = "momentum",
) -> Graph:
    """Translates ``batch`` sentences of ``length`` words, source and target alike.

    Raises InputError.
    """
    step = Step(f"nmt-{layers}-{hidden}-b{batch}", dtype, optimizer)
    source, target = words(step, "source", batch, length), words(step, "target", batch, length)
    with step.scope("encoder"):
        xs, states = _layers(unrolled(embedding(source, vocabulary, hidden)), [None] * layers)
        memory = rolled(xs)
    with step.scope("decoder"):
        xs, _ = _layers(unrolled(embedding(target, vocabulary, hidden)), states)
        xs = _attended(xs, memory)
    return words_predicted(xs, vocabulary)


def _layers(
    xs: Sequence[Value], states: Sequence[State | None]
) -> tuple[list[Value], list[State | None]]:
    """LSTM layers from the given states (None: zeros); returns the outputs of the last one and all
    final states.
    """
    step, hidden = xs[0].step, xs[0].shape[1]
    final: list[State | None] = []
    for i, state in enumerate(states):
        layer, made = cell(step, f"layer_{i}", hidden, hidden), []
        for time, x in enumerate(xs):
            state = lstm_cell(layer, x, state, time)
            made.append(state[0])
        final.append(state)
        xs = made
    return list(xs), final


def _attended(xs: Sequence[Value], memory: Value) -> list[Value]:
    """Each output (n, hidden) with what it sees in the encoder's outputs (n, s, hidden)."""
    step, hidden = memory.step, memory.shape[2]
    with step.scope("attention"):
        weight = step.parameter("weight", hidden, 2 * hidden)
    found = []
    for time, x in enumerate(xs):
        with step.scope(f"attention@{time}"):
            seen = softmax(einsum("bd,bsd->bs", x, memory), 1)
            context = einsum("bs,bsd->bd", seen, memory)
            found.append(tanh(linear_by(concat([context, x], 1), weight)))
    return found
