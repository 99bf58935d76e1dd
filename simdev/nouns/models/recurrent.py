"""LSTM layers unrolled over time: RNNLM, RNNTC, NMT and GNMT.

RNNLM: Zaremba et al., "Recurrent neural network regularization", 2014; the papers on
parallelization take 2 layers of 2048 and 40 steps, Zaremba's large model has 1500 units and 35
steps. RNNTC: FlexFlow's text classifier, 4 layers of 1024 and 40 steps (Jia et al., MLSys 2019,
table 3); its vocabulary is not published. NMT: the translator of the papers on placement and
parallelization, with attention on top of the last layer (Luong et al., "Effective approaches to
attention-based neural machine translation", 2015); FlexFlow takes 2 + 2 layers of 1024 and 40
steps. Its vocabulary is not published; with 32,000 tokens the gradients of 64 replicas are 67.5 GB
a step in a ring, against 65.8 GB that it reports for data parallelism. GNMT: Wu et al., "Google's
Neural Machine Translation System", 2016; its published form has 8 layers of 1024.

``models.MODELS`` names these builders. The same networks for PyTorch are in
``simdev/measure/torch_models/recurrent.py``; ``simdev/learn/families.py`` samples cells of
ACTIVATIONS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ...ground.errors import InputError
from .backward import model
from .builder import StepBuilder, Value
from .ops import (
    State,
    cell,
    concat,
    dropout,
    einsum,
    embedding,
    linear,
    linear_by,
    lstm,
    lstm_cell,
    prediction_loss,
    relu,
    scale,
    sigmoid,
    softmax,
    split,
    tanh,
    tokens,
    zeros,
)

# Counted from 0: "from the third layer on" (section 3.1).
RESIDUAL_FROM = 2
ACTIVATIONS: Mapping[str, Callable[[Value], Value]] = {
    **{verb.__name__: verb for verb in (tanh, relu, sigmoid)},
    "identity": lambda x: x,
}
"""The activations of ENAS's recurrent cells (section 2.1)."""


@model("rnnlm-{layers}-{hidden}-b{batch}", "momentum")
def rnnlm(
    step: StepBuilder,
    batch: int = 64,
    length: int = 40,
    hidden: int = 2048,
    layers: int = 2,
    vocabulary: int = 10_000,
    dropout: bool = True,
) -> Value:
    """Predicts each next token of ``batch`` texts of ``length`` tokens."""
    text = tokens(step, "words", batch, length)
    return _words_loss(_text_layers(text, hidden, layers, vocabulary, dropout), vocabulary)


@model("rnntc-{layers}-{hidden}-b{batch}", "momentum")
def rnntc(
    step: StepBuilder,
    batch: int = 64,
    length: int = 40,
    hidden: int = 1024,
    layers: int = 4,
    vocabulary: int = 20_000,
    classes: int = 2,
    dropout: bool = True,
) -> Value:
    """Classifies ``batch`` texts of ``length`` tokens by the output of the last step of time."""
    text = tokens(step, "words", batch, length)
    outputs = _text_layers(text, hidden, layers, vocabulary, dropout)
    return prediction_loss(linear(outputs[-1], classes, "classifier"))


@model("nmt-{layers}-{hidden}-b{batch}", "momentum")
def nmt(
    step: StepBuilder,
    batch: int = 64,
    length: int = 40,
    hidden: int = 1024,
    layers: int = 2,
    vocabulary: int = 32_000,
) -> Value:
    """Translates ``batch`` sentences of ``length`` tokens, source and target of equal length."""
    source, target = (tokens(step, "source", batch, length), tokens(step, "target", batch, length))
    with step.scope("encoder"):
        xs, states = _layers(unrolled(embedding(source, vocabulary, hidden)), [None] * layers)
        memory = rolled(xs)
    with step.scope("decoder"):
        xs, _ = _layers(unrolled(embedding(target, vocabulary, hidden)), states)
        xs = _attended(xs, memory)
    return _words_loss(xs, vocabulary)


@model("gnmt-{layers}-{hidden}-b{batch}", "adam")
def gnmt(
    step: StepBuilder,
    batch: int = 64,
    length: int = 20,
    hidden: int = 512,
    layers: int = 4,
    vocabulary: int = 16_384,
) -> Value:
    """Translates ``batch`` sentences of ``length`` tokens, source and target of equal length.

    Encoder: a bidirectional first layer, then layers with residual connections from the third on.
    Decoder: additive attention queried by the first layer, whose context every layer reads;
    residual connections from the third on. Left out: dropout, word pieces, the beam search.
    """
    source, target = (tokens(step, "source", batch, length), tokens(step, "target", batch, length))
    with step.scope("encoder"):
        memory = rolled(_encoded(unrolled(embedding(source, vocabulary, hidden)), layers))
    with step.scope("decoder"):
        outputs = _decoded(unrolled(embedding(target, vocabulary, hidden)), memory, layers)
    return _words_loss(outputs, vocabulary)


@model("enas-words-{hidden}-{length}-b{batch}", "momentum")
def enas_words(
    step: StepBuilder,
    batch: int = 64,
    cell: str = "tanh, 0 relu, 1 relu, 1 tanh",
    length: int = 35,
    hidden: int = 1000,
    vocabulary: int = 10_000,
) -> Value:
    """Predicts each next token of ``batch`` texts of ``length`` tokens (Penn Treebank's) by a
    recurrent cell like those that ENAS samples (Pham et al., "Efficient neural architecture search
    via parameter sharing", ICML 2018, section 2.1).

    ``cell`` has a node for each comma: the earlier node that it reads (the first node reads the
    token and the state) and its activation (tanh, relu, sigmoid or identity). Each node mixes its
    activation with its input by a gate (highway connections, appendix A); the mean of the nodes
    that no node reads is the next state.
    """
    nodes, text = _nodes(cell), tokens(step, "words", batch, length)
    widths = [2 * hidden, *[hidden] * (len(nodes) - 1)]
    with step.scope("cell"):
        xs = unrolled(embedding(text, vocabulary, hidden))
        weights = [
            step.parameter(f"node_{i}/weight", 2 * hidden, width) for i, width in enumerate(widths)
        ]
        state, outputs = zeros(xs[0], batch, hidden), []
    for time, x in enumerate(xs):
        with step.scope(f"cell@{time}"):
            state = _highways(x, state, nodes, weights)
        outputs.append(state)
    return _words_loss(outputs, vocabulary)


def unrolled(x: Value) -> list[Value]:
    """(n, t, features) to t tensors (n, features)."""
    batch, length, features = x.shape
    return [part.view(batch, features) for part in split(x, length, 1)]


def rolled(steps: Sequence[Value]) -> Value:
    """Tensors (n, features), one for each step of time, to (n, t, features)."""
    batch, features = steps[0].shape
    return concat([x.view(batch, 1, features) for x in steps], 1)


def _nodes(text: str) -> list[tuple[int, str]]:
    """The nodes of a written cell: the earlier node that each reads (-1: none), and its activation.
    Raises InputError.
    """
    nodes = list[tuple[int, str]]()
    for part in text.split(","):
        before, _, name = part.strip().rpartition(" ")
        allowed = map(str, range(len(nodes))) if nodes else ("",)
        if before not in allowed or name not in ACTIVATIONS:
            raise InputError(
                'cell: must be an activation, then nodes like "0 tanh" that read a node before, of '
                f'{", ".join(ACTIVATIONS)}; got "{part.strip()}"'
            )
        nodes.append((int(before or -1), name))
    return nodes


def _highways(
    x: Value, state: Value, nodes: Sequence[tuple[int, str]], weights: Sequence[Value]
) -> Value:
    """The next state (n, hidden), from a token and the state before."""
    values = list[Value]()
    for i, ((before, name), weight) in enumerate(zip(nodes, weights, strict=True)):
        read = state if before < 0 else values[before]
        with x.step.scope(f"node_{i}"):
            joined = concat([x, state], 1) if before < 0 else read
            gate, y = split(linear_by(joined, weight), 2, 1)
            # 1 - sigmoid(g) is sigmoid(-g).
            passed = sigmoid(scale(gate)) * read
            values.append(sigmoid(gate) * ACTIVATIONS[name](y) + passed)
    ends = [value for i, value in enumerate(values) if all(i != before for before, _ in nodes)]
    whole = ends[0]
    for value in ends[1:]:
        whole = whole + value
    return whole if len(ends) == 1 else scale(whole)


def _words_loss(steps: Sequence[Value], vocabulary: int) -> Value:
    """The loss of a token predicted from each output (n, features), one for each step of time."""
    with steps[0].step.scope("classifier"):
        # One product over all steps of time is faster than many small products.
        joined = rolled(steps)
    return prediction_loss(linear(joined, vocabulary, "classifier"))


def _text_layers(text: Value, hidden: int, layers: int, vocabulary: int, drop: bool) -> list[Value]:
    """Tokens (n, t) to t outputs (n, hidden), with dropout before and after every layer."""
    step = text.step
    x = embedding(text, vocabulary, hidden)
    with step.scope("embedding"):
        xs = unrolled(dropout(x, drop))
    return _layers(xs, [None] * layers, drop)[0]


def _layers(
    xs: list[Value], states: Sequence[State | None], drop: bool = False
) -> tuple[list[Value], list[State | None]]:
    """LSTM layers from these states (None: zeros), with dropout after each where ``drop``; returns
    the outputs of the last layer and all final states.
    """
    step, hidden, final = xs[0].step, xs[0].shape[1], list[State | None]()
    for i, state in enumerate(states):
        outputs, state = lstm(cell(step, f"layer_{i}", hidden, hidden), enumerate(xs), state)
        xs = [_at(f"layer_{i}@{time}", x, drop) for time, x in outputs.items()]
        final.append(state)
    return xs, final


def _at(scope: str, x: Value, drop: bool) -> Value:
    with x.step.scope(scope):
        return dropout(x, drop)


def _attended(xs: Sequence[Value], memory: Value) -> list[Value]:
    """Each output (n, hidden) joined with its context in the encoder's outputs (n, s, hidden)."""
    step, hidden = memory.step, memory.shape[2]
    with step.scope("attention"):
        weight = step.parameter("weight", hidden, 2 * hidden)
    outputs = []
    for time, x in enumerate(xs):
        with step.scope(f"attention@{time}"):
            weights = softmax(einsum("bd,bsd->bs", x, memory), 1)
            context = einsum("bs,bsd->bd", weights, memory)
            outputs.append(tanh(linear_by(concat([context, x], 1), weight)))
    return outputs


def _encoded(xs: Sequence[Value], layers: int) -> list[Value]:
    """Source tokens to one vector (n, hidden) for each token."""
    step, hidden, times = xs[0].step, xs[0].shape[1], range(len(xs))
    # Both directions read the tokens themselves, so neither waits for the other.
    forth, _ = lstm(cell(step, "layer_0/left_to_right", hidden, hidden), enumerate(xs))
    back, _ = lstm(
        cell(step, "layer_0/right_to_left", hidden, hidden),
        [(time, xs[time]) for time in reversed(times)],
    )
    outputs = []
    for time in times:
        with step.scope(f"layer_0@{time}"):
            outputs.append(concat([forth[time], back[time]], 1))
    for i in range(1, layers):
        of = cell(step, f"layer_{i}", outputs[0].shape[1], hidden)
        y, _ = lstm(of, enumerate(outputs))
        outputs = [_residual(y[time], outputs[time], i, time) for time in times]
    return outputs


def _decoded(xs: Sequence[Value], memory: Value, layers: int) -> list[Value]:
    """Target tokens and the encoder's output (n, s, hidden) to a vector (n, hidden) for each token.

    Teacher forced: each step of time reads the target's previous token, not the predicted one.
    """
    step, (batch, _, hidden) = memory.step, memory.shape
    attention = _attention(memory)
    cells = [cell(step, f"layer_{i}", 2 * hidden, hidden) for i in range(layers)]
    states: list[State | None] = [None] * layers
    # At the first token the context is zero.
    context, outputs = zeros(memory, batch, hidden), []
    for time, x in enumerate(xs):
        for i, of in enumerate(cells):
            with step.scope(f"layer_{i}@{time}"):
                joined = concat([x, context], 1)
            states[i] = after = lstm_cell(of, joined, states[i], time)
            x = _residual(after[0], x, i, time)
            if i == 0:
                context = _context(attention, x, memory, time)
        outputs.append(x)
    return outputs


def _residual(y: Value, x: Value, layer: int, time: int) -> Value:
    with y.step.scope(f"layer_{layer}@{time}"):
        return y + x if layer >= RESIDUAL_FROM else y


@dataclass(frozen=True, slots=True)
class _Attention:
    """Additive attention (Bahdanau et al., 2015): score = v . tanh(W query + U key).

    The keys are computed once, for all steps of time.
    """

    keys: Value
    query: Value
    score: Value


def _attention(memory: Value) -> _Attention:
    step, hidden = memory.step, memory.shape[2]
    with step.scope("attention"):
        query = step.parameter("query/weight", hidden, hidden)
        score = step.parameter("score/weight", 1, hidden)
        return _Attention(linear(memory, hidden, "keys"), query, score)


def _context(of: _Attention, x: Value, memory: Value, time: int) -> Value:
    """The context (n, hidden) of a query (n, hidden) in the encoder's output (n, s, hidden)."""
    batch, length, hidden = memory.shape
    with x.step.scope(f"attention@{time}"):
        query = linear_by(x, of.query).view(batch, 1, hidden)
        scores = linear_by(tanh(of.keys + query), of.score).view(batch, length)
        return einsum("bs,bsd->bd", softmax(scores, 1), memory)
