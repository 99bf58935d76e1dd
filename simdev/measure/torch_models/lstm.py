"""The cell of a long short-term memory (Hochreiter and Schmidhuber 1997, with forget gate), one
time step of it.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

State = tuple[torch.Tensor, torch.Tensor]


class Cell(nn.Module):
    """One time step of an LSTM: (N, features) and the state before to the state after, each (N,
    hidden).
    """

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.from_input = nn.Linear(features, 4 * hidden)
        self.from_state = nn.Linear(hidden, 4 * hidden, bias=False)

    def forward(self, x: torch.Tensor, state: State) -> State:
        """The four gates in one product each of input and state."""
        gates = self.from_input(x) + self.from_state(state[0])
        keep, write, show, content = gates.chunk(4, dim=1)
        memory = torch.sigmoid(keep) * state[1] + torch.sigmoid(write) * torch.tanh(content)
        return torch.sigmoid(show) * torch.tanh(memory), memory

    def start(self, like: torch.Tensor) -> State:
        """The state before the first step: zeros."""
        zeros = like.new_zeros(like.shape[0], self.hidden)
        return zeros, zeros

    def run(self, steps: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Outputs of all steps in turn."""
        outputs: list[torch.Tensor] = []
        state: State | None = None
        for x in steps:
            state = self(x, state if state is not None else self.start(x))
            outputs.append(state[0])
        return outputs
