"""GNMT (Wu et al., "Google's Neural Machine Translation System", 2016), unrolled over time.

Encoder: a bidirectional first layer, then layers with residual connections from the third on.
Decoder: additive attention queried by the first layer, whose context every layer reads; residual
connections from the third on. Left out: dropout, word pieces, the beam search. The paper's own has
8 layers of 1024.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..graph import Graph
from .checking import model
from .ops import (
    State,
    cell,
    concat,
    einsum,
    embedding,
    linear,
    linear_by,
    lstm,
    lstm_cell,
    softmax,
    tanh,
    zeros,
)
from .sequences import rolled, unrolled, words, words_predicted
from .step import Step, Value

RESIDUAL_FROM = 2


@model
def gnmt(
    batch: int = 64,
    length: int = 20,
    hidden: int = 512,
    layers: int = 4,
    vocabulary: int = 16_384,
    dtype: str = "float32",
    optimizer: str = "adam",
) -> Graph:
    """Translates ``batch`` sentences of ``length`` words, source and target alike.

    Raises InputError.
    """
    step = Step(f"gnmt-{layers}-{hidden}-b{batch}", dtype, optimizer)
    source, target = words(step, "source", batch, length), words(step, "target", batch, length)
    with step.scope("encoder"):
        memory = rolled(_encoded(unrolled(embedding(source, vocabulary, hidden)), layers))
    with step.scope("decoder"):
        outputs = _decoded(unrolled(embedding(target, vocabulary, hidden)), memory, layers)
    return words_predicted(outputs, vocabulary)


def _encoded(xs: Sequence[Value], layers: int) -> list[Value]:
    """Source words to one vector (n, hidden) a word."""
    step, hidden, times = xs[0].step, xs[0].shape[1], range(len(xs))
    forth = lstm(cell(step, "layer_0/left_to_right", hidden, hidden), enumerate(xs))
    back = lstm(
        cell(step, "layer_0/right_to_left", hidden, hidden),
        [(time, xs[time]) for time in reversed(times)],
    )
    found = []
    for time in times:
        with step.scope(f"layer_0@{time}"):
            found.append(concat([forth[time], back[time]], 1))
    for i in range(1, layers):
        made = lstm(cell(step, f"layer_{i}", found[0].shape[1], hidden), enumerate(found))
        found = [_residual(made[time], found[time], i, time) for time in times]
    return found


def _decoded(xs: Sequence[Value], memory: Value, layers: int) -> list[Value]:
    """Target words and the encoder's output (n, s, hidden) to one vector (n, hidden) a word,
    teacher forced.
    """
    step, (batch, _, hidden) = memory.step, memory.shape
    attention = _attention(memory)
    cells = [cell(step, f"layer_{i}", 2 * hidden, hidden) for i in range(layers)]
    states: list[State | None] = [None] * layers
    context, found = zeros(memory, batch, hidden), []
    for time, x in enumerate(xs):
        for i, of in enumerate(cells):
            with step.scope(f"layer_{i}@{time}"):
                joined = concat([x, context], 1)
            states[i] = after = lstm_cell(of, joined, states[i], time)
            x = _residual(after[0], x, i, time)
            if i == 0:
                context = _seen(attention, x, memory, time)
        found.append(x)
    return found


def _residual(made: Value, x: Value, layer: int, time: int) -> Value:
    with made.step.scope(f"layer_{layer}@{time}"):
        return made + x if layer >= RESIDUAL_FROM else made


@dataclass(frozen=True, slots=True)
class _Attention:
    """Additive attention (Bahdanau et al., 2015): score = v . tanh(W query + U key), the keys made
    once.
    """

    keys: Value
    query: Value
    score: Value


def _attention(memory: Value) -> _Attention:
    step, hidden = memory.step, memory.shape[2]
    with step.scope("attention"):
        query, score = (
            step.parameter("query/weight", hidden, hidden),
            step.parameter("score/weight", 1, hidden),
        )
        return _Attention(linear(memory, hidden, "keys"), query, score)


def _seen(of: _Attention, x: Value, memory: Value, time: int) -> Value:
    """What a query (n, hidden) sees in the encoder's output (n, s, hidden): the context (n,
    hidden).
    """
    batch, length, hidden = memory.shape
    with x.step.scope(f"attention@{time}"):
        query = linear_by(x, of.query).view(batch, 1, hidden)
        scores = linear_by(tanh(of.keys + query), of.score).view(batch, length)
        return einsum("bs,bsd->bd", softmax(scores, 1), memory)
