"""How a stage of the decoder looks at what the encoder has read of all groups."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

CHUNK = 1 << 24  # the most numbers of an additive attention that are kept at a time


class Dot(nn.Module):
    """Scores are products of the decoder's state and what the encoder read (Luong, Pham, Manning,
    EMNLP 2015, section 3.1, "dot"), over the root of their length.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self._scale = 1.0 / sqrt(hidden)

    def keys(self, memory: Tensor) -> Tensor:
        """What states are compared with [..., G, H], of the encoder's outputs [..., G, H]."""
        return memory * self._scale

    def forward(self, states: Tensor, keys: Tensor) -> Tensor:
        """Scores [..., n, G] of states [..., n, H]."""
        return states @ keys.mT


class Additive(nn.Module):
    """Scores are v tanh(W memory + U state) (Bahdanau, Cho, Bengio, ICLR 2015, appendix A.1.2)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.memory = nn.Linear(hidden, hidden, bias=False)
        self.state = nn.Linear(hidden, hidden, bias=False)
        self.score = nn.Linear(hidden, 1, bias=False)

    def keys(self, memory: Tensor) -> Tensor:
        """What states are compared with [..., G, H], of the encoder's outputs [..., G, H]."""
        keys: Tensor = self.memory(memory)
        return keys

    def forward(self, states: Tensor, keys: Tensor) -> Tensor:
        """Scores [..., n, G] of states [..., n, H]."""
        parts = states.split(max(CHUNK // keys.numel(), 1), -2)
        if torch.is_grad_enabled() and len(parts) > 1:
            # What is within the tanh is computed again for the gradient: it would take gigabytes.
            scores = [checkpoint(self._scores, part, keys, use_reentrant=False) for part in parts]
        else:
            scores = [self._scores(part, keys) for part in parts]
        return torch.cat(scores, -2)

    def _scores(self, states: Tensor, keys: Tensor) -> Tensor:
        scores: Tensor = self.score(
            torch.tanh(keys.unsqueeze(-3) + self.state(states).unsqueeze(-2))
        )
        return scores.squeeze(-1)


ATTENTIONS: Mapping[str, type[Dot] | type[Additive]] = {"dot": Dot, "additive": Additive}
