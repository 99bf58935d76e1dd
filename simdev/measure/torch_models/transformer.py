"""The Transformer that translates (Vaswani et al., "Attention is all you need", 2017), by default
the big one.

One matrix serves as source and target embedding and as classifier. The layer norm follows the sum,
as in the paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from .attention import Attention, future


def positions(length: int, width: int, like: torch.Tensor) -> torch.Tensor:
    """The sinusoids of the paper's section 3.5, (length, width)."""
    angles = torch.arange(length, device=like.device)[:, None] / 10000 ** (
        torch.arange(0, width, 2, device=like.device) / width
    )
    return torch.cat([angles.sin(), angles.cos()], 1)


class FeedForward(nn.Module):
    """Two linear layers with a ReLU between them."""

    def __init__(self, width: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, T, width) to the same."""
        out: torch.Tensor = self.dropout(self.down(F.relu(self.up(x))))
        return out


class EncoderLayer(nn.Module):
    """Attention over the source, then the feed-forward part."""

    def __init__(self, width: int, inner: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(width, heads, dropout, bias=False)
        self.norm_1 = nn.LayerNorm(width)
        self.feed_forward = FeedForward(width, inner, dropout)
        self.norm_2 = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, S, width) to the same."""
        x = self.norm_1(x + self.dropout(self.attention(x, x)))
        out: torch.Tensor = self.norm_2(x + self.feed_forward(x))
        return out


class DecoderLayer(nn.Module):
    """Attention over the words so far, attention over the source, then the feed-forward part."""

    def __init__(self, width: int, inner: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(width, heads, dropout, bias=False)
        self.norm_1 = nn.LayerNorm(width)
        self.cross = Attention(width, heads, dropout, bias=False)
        self.norm_2 = nn.LayerNorm(width)
        self.feed_forward = FeedForward(width, inner, dropout)
        self.norm_3 = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, memory: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """(N, T, width) over the encoder's (N, S, width) to (N, T, width)."""
        x = self.norm_1(x + self.dropout(self.attention(x, x, mask)))
        x = self.norm_2(x + self.dropout(self.cross(x, memory)))
        out: torch.Tensor = self.norm_3(x + self.feed_forward(x))
        return out


class Transformer(nn.Module):
    """Encoder and decoder of ``layers`` each."""

    def __init__(
        self, vocabulary: int, width: int, inner: int, heads: int, layers: int, dropout: float
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.dropout = nn.Dropout(dropout)
        for i in range(layers):
            self.add_module(f"encoder_{i}", EncoderLayer(width, inner, heads, dropout))
        for i in range(layers):
            self.add_module(f"decoder_{i}", DecoderLayer(width, inner, heads, dropout))
        self.layers = layers
        self.width = width

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Source (N, S) and target (N, T) word numbers to logits (N, T, vocabulary)."""
        memory, x = self.embed(source), self.embed(target)
        for i in range(self.layers):
            memory = self.get_submodule(f"encoder_{i}")(memory)
        mask = future(target.shape[1], target)
        for i in range(self.layers):
            x = self.get_submodule(f"decoder_{i}")(x, memory, mask)
        return F.linear(x, self.embedding.weight)

    def embed(self, words: torch.Tensor) -> torch.Tensor:
        """Words (N, T) to (N, T, width), with their places."""
        x = self.embedding(words) * math.sqrt(self.width)
        found: torch.Tensor = self.dropout(x + positions(words.shape[1], self.width, words))
        return found


def transformer(
    batch: int = 64,
    length: int = 64,
    layers: int = 6,
    width: int = 1024,
    inner: int = 4096,
    heads: int = 16,
    vocabulary: int = 37000,
    dropout: float = 0.3,
) -> tuple[nn.Module, tuple[torch.Tensor, ...], Callable[..., torch.Tensor]]:
    """Translates ``batch`` sentences of ``length`` words, source and target alike."""

    def loss(
        module: nn.Module, source: torch.Tensor, target: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        return F.cross_entropy(
            module(source, target).flatten(0, 1), labels.flatten(), label_smoothing=0.1
        )

    words = tuple(torch.randint(vocabulary, (batch, length)) for _ in range(3))
    return Transformer(vocabulary, width, inner, heads, layers, dropout), words, loss
