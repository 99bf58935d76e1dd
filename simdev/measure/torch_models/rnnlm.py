"""A language model of LSTM layers (Zaremba et al., "Recurrent neural network regularization",
2014), unrolled.

The default sizes are those of the papers on parallelization (2 layers of 2048, 40 steps); Zaremba's
large model has 1500 units and 35 steps.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from .lstm import Cell


class LanguageModel(nn.Module):
    """Embedding, LSTM layers with dropout between them, classifier."""

    def __init__(self, vocabulary: int, hidden: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.dropout = nn.Dropout(dropout)
        for i in range(layers):
            self.add_module(f"layer_{i}", Cell(hidden, hidden))
        self.classifier = nn.Linear(hidden, vocabulary)
        self.layers = layers

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Words (T, N) to logits (T, N, vocabulary)."""
        steps = list(self.dropout(self.embedding(words)).unbind(0))
        for i in range(self.layers):
            cell = self.get_submodule(f"layer_{i}")
            assert isinstance(cell, Cell)
            steps = [self.dropout(state) for state in cell.run(steps)]
        logits: torch.Tensor = self.classifier(torch.stack(steps))
        return logits


def rnnlm(
    batch: int = 64,
    length: int = 40,
    hidden: int = 2048,
    layers: int = 2,
    vocabulary: int = 10000,
    dropout: float = 0.65,
) -> tuple[nn.Module, tuple[torch.Tensor, ...], Callable[..., torch.Tensor]]:
    """Predicts each next word of ``batch`` texts of ``length`` words."""

    def loss(module: nn.Module, words: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(module(words).flatten(0, 1), following.flatten())

    words = torch.randint(vocabulary, (length, batch)), torch.randint(vocabulary, (length, batch))
    return LanguageModel(vocabulary, hidden, layers, dropout), words, loss
