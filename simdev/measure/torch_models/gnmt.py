"""A translator after GNMT (Wu et al., "Google's Neural Machine Translation System", 2016), unrolled
over time.

Encoder: a bidirectional first layer, then layers with residual connections from the third on.
Decoder: additive attention queried by the first layer, whose context every layer reads; residual
connections from the third on. Tensors are time-major. Left out: dropout, word pieces, the beam
search.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn import functional as F

from .lstm import Cell, State


class Bidirectional(nn.Module):
    """The encoder's first layer: both directions, joined by features."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.left_to_right = Cell(features, hidden)
        self.right_to_left = Cell(features, hidden)

    def forward(self, steps: Sequence[torch.Tensor]) -> list[torch.Tensor]:
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

    def forward(self, steps: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """T tensors (N, features) to T tensors (N, hidden)."""
        outputs = self.cell.run(steps)
        return [h + x for h, x in zip(outputs, steps, strict=True)] if self.residual else outputs


class Encoder(nn.Module):
    """Source words to one vector a word."""

    def __init__(self, vocabulary: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.layer_0 = Bidirectional(hidden, hidden)
        for i in range(1, layers):
            self.add_module(
                f"layer_{i}", Layer(2 * hidden if i == 1 else hidden, hidden, residual=i >= 2)
            )
        self.layers = layers

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """(T, N) word numbers to (T, N, hidden)."""
        steps = list(self.embedding(words).unbind(0))
        for i in range(self.layers):
            steps = self.get_submodule(f"layer_{i}")(steps)
        return torch.stack(steps)


class Attention(nn.Module):
    """Additive attention (Bahdanau et al. 2015): score = v . tanh(W q + U k)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.score = nn.Linear(hidden, 1, bias=False)

    def forward(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """Query (N, hidden) over keys and values (S, N, hidden) to the context (N, hidden)."""
        weights = torch.softmax(self.score(torch.tanh(keys + self.query(query))), 0)
        return (weights * values).sum(0)


class DecoderLayer(nn.Module):
    """A layer of the decoder for one step: the layer below and the context in, its own output
    out.
    """

    def __init__(self, hidden: int, residual: bool) -> None:
        super().__init__()
        self.cell = Cell(2 * hidden, hidden)
        self.residual = residual

    def forward(
        self, x: torch.Tensor, context: torch.Tensor, state: State
    ) -> tuple[torch.Tensor, State]:
        """(N, hidden) twice and the state before to (N, hidden) and the state after."""
        state = self.cell(torch.cat([x, context], 1), state)
        return (state[0] + x if self.residual else state[0]), state


class Decoder(nn.Module):
    """Target words to logits, teacher forced: each step reads the true word before."""

    def __init__(self, vocabulary: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.keys = nn.Linear(hidden, hidden)
        self.attention = Attention(hidden)
        for i in range(layers):
            self.add_module(f"layer_{i}", DecoderLayer(hidden, residual=i >= 2))
        self.layers = layers
        self.hidden = hidden

    def forward(self, words: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        """Words (T, N) and the encoder's output (S, N, hidden) to (T, N, hidden)."""
        keys = self.keys(memory)
        context = memory.new_zeros(words.shape[1], self.hidden)
        states = [(context, context)] * self.layers
        outputs = []
        for x in self.embedding(words).unbind(0):
            for i in range(self.layers):
                x, states[i] = self.get_submodule(f"layer_{i}")(x, context, states[i])
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

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Source (S, N) and target (T, N) word numbers to logits (T, N, vocabulary)."""
        logits: torch.Tensor = self.classifier(self.decoder(target, self.encoder(source)))
        return logits


def gnmt(
    batch: int = 64, length: int = 20, hidden: int = 512, layers: int = 4, vocabulary: int = 16384
) -> tuple[nn.Module, tuple[torch.Tensor, ...], Callable[..., torch.Tensor]]:
    """Translates ``batch`` sentences of ``length`` words, source and target alike."""

    def loss(
        module: nn.Module, source: torch.Tensor, target: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        return F.cross_entropy(module(source, target).flatten(0, 1), labels.flatten())

    words = tuple(torch.randint(vocabulary, (length, batch)) for _ in range(3))
    return Translator(vocabulary, hidden, layers), words, loss
