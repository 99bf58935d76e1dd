"""Models of LSTM cells unrolled over time (time-major tensors): a language model, a translator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from .batches import TrainingStep, next_word_step, numbered, translation_step

CellState = tuple[Tensor, Tensor]
"""Output and memory of an LSTM cell, each (N, hidden)."""


class Cell(nn.Module):
    """One time step of an LSTM (Hochreiter and Schmidhuber 1997, with forget gate)."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.from_input = nn.Linear(features, 4 * hidden)
        self.from_state = nn.Linear(hidden, 4 * hidden, bias=False)

    def forward(self, x: Tensor, state: CellState) -> CellState:
        """Input (N, features) and the state before to the state after."""
        # Not nn.LSTMCell, which is one fused operator on a GPU and several on a CPU.
        gates = self.from_input(x) + self.from_state(state[0])
        keep, write, show, content = gates.chunk(4, dim=1)
        memory = torch.sigmoid(keep) * state[1] + torch.sigmoid(write) * torch.tanh(content)
        return torch.sigmoid(show) * torch.tanh(memory), memory

    def run(self, steps: Iterable[Tensor]) -> list[Tensor]:
        """The outputs of all steps in their order, from a state of zeros."""
        outputs: list[Tensor] = []
        state: CellState | None = None
        for x in steps:
            if state is None:
                state = (x.new_zeros(x.shape[0], self.hidden),) * 2
            state = self(x, state)
            outputs.append(state[0])
        return outputs


class LanguageModel(nn.Module):
    """Embedding, LSTM layers with dropout between them, classifier."""

    def __init__(self, vocabulary: int, hidden: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.dropout = nn.Dropout(dropout)
        self.layers = numbered(self, "layer", [Cell(hidden, hidden) for _ in range(layers)])
        self.classifier = nn.Linear(hidden, vocabulary)

    def forward(self, words: Tensor) -> Tensor:
        """Tokens (T, N) to logits (T, N, vocabulary)."""
        steps = list(self.dropout(self.embedding(words)).unbind(0))
        for cell in self.layers:
            steps = [self.dropout(output) for output in cell.run(steps)]
        return self.classifier(torch.stack(steps))


def rnnlm(
    batch: int = 64,
    length: int = 40,
    hidden: int = 2048,
    layers: int = 2,
    vocabulary: int = 10000,
    dropout: float = 0.65,
) -> TrainingStep:
    """Predicts each next token of ``batch`` texts of ``length`` tokens.

    After Zaremba et al., "Recurrent neural network regularization", 2014. The default sizes are
    those of the papers on parallelization (2 layers of 2048, 40 steps); Zaremba's large model has
    1500 units and 35 steps.
    """
    module = LanguageModel(vocabulary, hidden, layers, dropout)
    return next_word_step(module, vocabulary, (length, batch))


class Bidirectional(nn.Module):
    """The encoder's first layer: an LSTM in both directions, with concatenated outputs."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.left_to_right = Cell(features, hidden)
        self.right_to_left = Cell(features, hidden)

    def forward(self, steps: Sequence[Tensor]) -> list[Tensor]:
        """T tensors (N, features) to T tensors (N, 2 hidden)."""
        forth = self.left_to_right.run(steps)
        back = self.right_to_left.run(reversed(steps))[::-1]
        return [torch.cat(pair, 1) for pair in zip(forth, back, strict=True)]


class Layer(nn.Module):
    """A further layer of the encoder."""

    def __init__(self, features: int, hidden: int, residual: bool) -> None:
        super().__init__()
        self.cell = Cell(features, hidden)
        self.residual = residual

    def forward(self, steps: Sequence[Tensor]) -> list[Tensor]:
        """T tensors (N, features) to T tensors (N, hidden)."""
        outputs = self.cell.run(steps)
        return [h + x for h, x in zip(outputs, steps, strict=True)] if self.residual else outputs


class Encoder(nn.Module):
    """The encoder: source tokens to one vector for each token."""

    def __init__(self, vocabulary: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        # The second layer reads both directions of the first; residuals start at the third.
        further = [Layer(hidden if i > 1 else 2 * hidden, hidden, i > 1) for i in range(1, layers)]
        self.layers = numbered(self, "layer", [Bidirectional(hidden, hidden), *further])

    def forward(self, words: Tensor) -> Tensor:
        """(T, N) token numbers to (T, N, hidden)."""
        steps = list(self.embedding(words).unbind(0))
        for layer in self.layers:
            steps = layer(steps)
        return torch.stack(steps)


class AdditiveAttention(nn.Module):
    """Additive attention (Bahdanau et al. 2015): score = v . tanh(W q + U k)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.score = nn.Linear(hidden, 1, bias=False)

    def forward(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Query (N, hidden) over keys and values (S, N, hidden) to the context (N, hidden)."""
        weights = torch.softmax(self.score(torch.tanh(keys + self.query(query))), 0)
        return (weights * values).sum(0)


class DecoderLayer(nn.Module):
    """A layer of the decoder for one step, over the layer below and the context."""

    def __init__(self, hidden: int, residual: bool) -> None:
        super().__init__()
        self.cell = Cell(2 * hidden, hidden)
        self.residual = residual

    def forward(self, x: Tensor, context: Tensor, state: CellState) -> tuple[Tensor, CellState]:
        """Input and context (N, hidden) and the state before to (N, hidden) and the state after."""
        state = self.cell(torch.cat([x, context], 1), state)
        return (state[0] + x if self.residual else state[0]), state


class Decoder(nn.Module):
    """The decoder, teacher forced: each step reads the true previous token."""

    def __init__(self, vocabulary: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.keys = nn.Linear(hidden, hidden)
        self.attention = AdditiveAttention(hidden)
        self.layers = numbered(self, "layer", [DecoderLayer(hidden, i > 1) for i in range(layers)])
        self.hidden = hidden

    def forward(self, words: Tensor, memory: Tensor) -> Tensor:
        """Tokens (T, N) and the encoder's output (S, N, hidden) to (T, N, hidden)."""
        keys = self.keys(memory)
        context = memory.new_zeros(words.shape[1], self.hidden)
        states = [(context, context)] * len(self.layers)
        outputs = []
        for x in self.embedding(words).unbind(0):
            for i, layer in enumerate(self.layers):
                x, states[i] = layer(x, context, states[i])
                if i == 0:
                    context = self.attention(x, keys, memory)
            outputs.append(x)
        return torch.stack(outputs)


class Translator(nn.Module):
    """Encoder, decoder and classifier over the target vocabulary."""

    def __init__(self, vocabulary: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.encoder = Encoder(vocabulary, hidden, layers)
        self.decoder = Decoder(vocabulary, hidden, layers)
        self.classifier = nn.Linear(hidden, vocabulary)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Source (S, N) and target (T, N) token numbers to logits (T, N, vocabulary)."""
        return self.classifier(self.decoder(target, self.encoder(source)))


def gnmt(
    batch: int = 64, length: int = 20, hidden: int = 512, layers: int = 4, vocabulary: int = 16384
) -> TrainingStep:
    """Translates ``batch`` sentences of ``length`` tokens, source and target alike.

    After GNMT (Wu et al., "Google's Neural Machine Translation System", 2016). Encoder: a
    bidirectional first layer, then layers with residual connections from the third on. Decoder:
    additive attention queried by the first layer, whose context every layer reads; residual
    connections from the third on. Left out: dropout, word pieces, the beam search.
    """
    module = Translator(vocabulary, hidden, layers)
    return translation_step(module, vocabulary, (length, batch))
