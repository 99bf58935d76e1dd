"""Lstm: one layer, with PyTorch's biases or with a single number for all forget gates."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Lstm(nn.LSTM):
    """A layer that reads rows [stages, n, inputs]; gates in the order of ``nn.LSTM``.

    With ``biases`` every gate has its own. Without, one trained number is added to all forget gates
    of all directions, as in HDP's released code. ``both_ways``: another layer of as many hidden
    numbers reads the rows from the last to the first, and its outputs are appended.
    """

    def __init__(
        self, inputs: int, hidden: int, biases: bool = True, both_ways: bool = False
    ) -> None:
        super().__init__(inputs, hidden, bias=biases, bidirectional=both_ways)
        if not biases:
            self.forget = nn.Parameter(torch.zeros(()))

    def begin(self, forget: float) -> None:
        """Give forget gates their first bias; nothing else changes."""
        size = self.hidden_size
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if name == "forget":
                    parameter.fill_(forget)
                elif name.startswith("bias_ih"):
                    parameter[size : 2 * size] = forget

    @property
    def gate_biases(self) -> Tensor:
        """What the gates of the first direction have added [4 H]."""
        if self.bias:
            return self.get_parameter("bias_ih_l0") + self.get_parameter("bias_hh_l0")
        return self._shared()

    def _shared(self) -> Tensor:
        """The biases that a single number makes [4 H]."""
        gates = self.forget.new_zeros(4)
        gates = torch.cat([gates[:1], self.forget.reshape(1), gates[2:]])
        return gates.repeat_interleave(self.hidden_size)

    def forward(  # type: ignore[override]  # no packed sequences
        self, rows: Tensor, state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Outputs [stages, n, H x directions], and the last hidden and cell states [directions, n,
        H], from a first ``state`` of that shape (None: zeros).
        """
        if self.bias:
            outputs, last = super().forward(rows, state)
            return outputs, last
        directions = 2 if self.bidirectional else 1
        if state is None:
            zeros = rows.new_zeros(directions, rows.shape[1], self.hidden_size)
            state = zeros, zeros
        shared, weights = self._shared(), list[Tensor]()
        for suffix in ("", "_reverse")[:directions]:
            inputs, turn = (self.get_parameter(f"weight_{of}_l0{suffix}") for of in ("ih", "hh"))
            weights += [inputs, turn, shared, torch.zeros_like(shared)]
        outputs, hidden, cell = torch.lstm(
            rows, state, weights, True, 1, 0.0, False, self.bidirectional, False
        )
        return outputs, (hidden, cell)
