"""GPT-2 (Radford et al., "Language models are unsupervised multitask learners", 2019), by default
the small one.

The layer norm stands before each part; the classifier shares the embedding's matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from .attention import attend, future

CONTEXT = 1024


class Block(nn.Module):
    """Causal attention and two linear layers with a GELU between them, each behind a layer norm,
    with a residual.
    """

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)
        self.heads = heads

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """(N, T, width) to the same."""
        q, k, v = self.qkv(self.norm_1(x)).chunk(3, 2)
        x = x + self.dropout(self.out(attend(q, k, v, self.heads, mask, self.dropout.p)))
        out: torch.Tensor = x + self.dropout(
            self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))
        )
        return out


class Gpt2(nn.Module):
    """Embeddings of words and places, blocks, layer norm, classifier."""

    def __init__(
        self, vocabulary: int, width: int, heads: int, layers: int, dropout: float
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(CONTEXT, width)
        self.dropout = nn.Dropout(dropout)
        for i in range(layers):
            self.add_module(f"block_{i}", Block(width, heads, dropout))
        self.norm = nn.LayerNorm(width)
        self.layers = layers

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Words (N, T) to logits (N, T, vocabulary)."""
        length = words.shape[1]
        x = self.dropout(self.words(words) + self.places(torch.arange(length, device=words.device)))
        mask = future(length, words)
        for i in range(self.layers):
            x = self.get_submodule(f"block_{i}")(x, mask)
        return F.linear(self.norm(x), self.words.weight)


def gpt2(
    batch: int = 8,
    length: int = CONTEXT,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    vocabulary: int = 50257,
    dropout: float = 0.1,
) -> tuple[nn.Module, tuple[torch.Tensor, ...], Callable[..., torch.Tensor]]:
    """Predicts each next word of ``batch`` texts of ``length`` words."""

    def loss(module: nn.Module, words: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(module(words).flatten(0, 1), following.flatten())

    words = torch.randint(vocabulary, (batch, length)), torch.randint(vocabulary, (batch, length))
    return Gpt2(vocabulary, width, heads, layers, dropout), words, loss


gpt2_medium = partial(gpt2, layers=24, width=1024, heads=16)
