"""BERT pre-training (Devlin et al., "BERT: Pre-training of deep bidirectional transformers", 2018),
by default large.

Both tasks of the paper: words that were masked, and whether the second sentence follows the first.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from .attention import Attention

EPS = 1e-12
POSITIONS = 512


class Embeddings(nn.Module):
    """Words, places and sentences."""

    def __init__(self, vocabulary: int, width: int, dropout: float) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(POSITIONS, width)
        self.sentences = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, EPS)
        self.dropout = nn.Dropout(dropout)

    def forward(self, words: torch.Tensor, sentences: torch.Tensor) -> torch.Tensor:
        """(N, T) twice to (N, T, width)."""
        places = torch.arange(words.shape[1], device=words.device)
        x = self.words(words) + self.sentences(sentences) + self.places(places)
        out: torch.Tensor = self.dropout(self.norm(x))
        return out


class Layer(nn.Module):
    """Attention, then two linear layers with a GELU between them, each with a residual and a layer
    norm.
    """

    def __init__(self, width: int, inner: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(width, heads, dropout)
        self.norm_1 = nn.LayerNorm(width, EPS)
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)
        self.norm_2 = nn.LayerNorm(width, EPS)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, T, width) to the same."""
        x = self.norm_1(x + self.dropout(self.attention(x, x)))
        out: torch.Tensor = self.norm_2(x + self.dropout(self.down(F.gelu(self.up(x)))))
        return out


class Bert(nn.Module):
    """Embeddings, layers, and the two heads; the classifier of words shares the embedding's
    matrix.
    """

    def __init__(
        self, vocabulary: int, width: int, inner: int, heads: int, layers: int, dropout: float
    ) -> None:
        super().__init__()
        self.embeddings = Embeddings(vocabulary, width, dropout)
        for i in range(layers):
            self.add_module(f"layer_{i}", Layer(width, inner, heads, dropout))
        self.pooler = nn.Linear(width, width)
        self.follows = nn.Linear(width, 2)
        self.transform = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, EPS)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.layers = layers

    def forward(
        self, words: torch.Tensor, sentences: torch.Tensor, masked: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Words and sentences (N, T), places of the masked ones in the batch (M), to logits (M,
        vocabulary), (N, 2).
        """
        x = self.embeddings(words, sentences)
        for i in range(self.layers):
            x = self.get_submodule(f"layer_{i}")(x)
        chosen = x.flatten(0, 1).index_select(0, masked)
        chosen = self.norm(F.gelu(self.transform(chosen)))
        pooled = torch.tanh(self.pooler(x[:, 0]))
        return F.linear(chosen, self.embeddings.words.weight, self.bias), self.follows(pooled)


def bert(
    batch: int = 32,
    length: int = 128,
    layers: int = 24,
    width: int = 1024,
    heads: int = 16,
    vocabulary: int = 30522,
    dropout: float = 0.1,
) -> tuple[nn.Module, tuple[torch.Tensor, ...], Callable[..., torch.Tensor]]:
    """Pre-trains on ``batch`` pairs of sentences of ``length`` words together, 15 % of them
    masked.
    """

    def loss(
        module: nn.Module,
        words: torch.Tensor,
        sentences: torch.Tensor,
        masked: torch.Tensor,
        labels: torch.Tensor,
        follows: torch.Tensor,
    ) -> torch.Tensor:
        scores, pairs = module(words, sentences, masked)
        return F.cross_entropy(scores, labels) + F.cross_entropy(pairs, follows)

    shape, count = (batch, length), max(1, batch * length * 15 // 100)
    words, sentences = torch.randint(vocabulary, shape), torch.randint(2, shape)
    masked, labels = torch.randint(batch * length, (count,)), torch.randint(vocabulary, (count,))
    inputs = (words, sentences, masked, labels, torch.randint(2, (batch,)))
    return Bert(vocabulary, width, 4 * width, heads, layers, dropout), inputs, loss
