"""Multi-head attention of the Transformer (Vaswani et al., "Attention is all you need", 2017),
written out.

Products, softmax and dropout are operators of their own, as the papers have them: a fused kernel
has another name on every kind of device, and a graph that is to be placed needs one that all of
them know.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    heads: int,
    mask: torch.Tensor | None,
    dropout: float,
) -> torch.Tensor:
    """Query (N, T, width) over key and value (N, S, width) to (N, T, width).

    ``mask`` (T, S) is true where a query must not look.
    """
    q, k, v = (tensor.unflatten(2, (heads, -1)).transpose(1, 2) for tensor in (query, key, value))
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(2, 3)
    if mask is not None:
        scores = scores.masked_fill(mask, float("-inf"))
    weights = F.dropout(torch.softmax(scores, -1), dropout)
    seen: torch.Tensor = (weights @ v).transpose(1, 2).flatten(2)
    return seen


def future(length: int, like: torch.Tensor) -> torch.Tensor:
    """The mask (length, length) that hides what comes after a word."""
    return torch.ones(length, length, dtype=torch.bool, device=like.device).triu(1)


class Attention(nn.Module):
    """Projections of query, key and value, attention, projection of the result."""

    def __init__(self, width: int, heads: int, dropout: float, bias: bool = True) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias)
        self.key = nn.Linear(width, width, bias)
        self.value = nn.Linear(width, width, bias)
        self.out = nn.Linear(width, width, bias)
        self.heads = heads
        self.dropout = dropout

    def forward(
        self, x: torch.Tensor, memory: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(N, T, width) over (N, S, width) to (N, T, width)."""
        seen = attend(
            self.query(x), self.key(memory), self.value(memory), self.heads, mask, self.dropout
        )
        out: torch.Tensor = self.out(seen)
        return out
