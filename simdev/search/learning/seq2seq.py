"""Seq2Seq: an LSTM reads the groups in topological order, another with attention places them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ...taskgraph import Floats, Ints
from ..features import Nodes
from .attention import ATTENTIONS
from .policy import BARRED, Policy, inverse, likeliest
from .sizes import Network


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """What the encoder reads, a row for each stage (G stages, one for each group).

    ``stages`` [G] are the groups in the order in which they are placed; ``kinds`` [G, K] the shares
    of their ops, ``rest`` [G, R] all that needs no embedding.
    """

    stages: Ints
    kinds: NDArray[np.float32]
    rest: NDArray[np.float32]


def inputs_of(groups: Nodes) -> Inputs:
    """ColocRL's description of groups (ICML 2017, section 3.2; recalled, not verified): kinds of
    ops, output shapes, and which other groups are adjacent, as 0 or 1 in the order of the stages.

    Ours: of a group, the mean over its ops' kinds; the logarithms of its summed extents and of its
    output bytes (graphs may say no shapes), divided by their maxima.
    """
    stages = np.argsort(groups.order).astype(np.int64)
    kinds = groups.kind / np.maximum(groups.kind.sum(axis=1, keepdims=True), 1.0)
    sizes = np.log1p(np.column_stack([groups.shape, groups.output_bytes]))
    sizes /= np.maximum(sizes.max(axis=0, initial=0.0), 1.0)
    adjacent: Floats = np.zeros((len(stages), len(stages)))
    adjacent[groups.order[groups.source], groups.order[groups.target]] = 1.0
    rest = np.hstack([sizes[stages], np.maximum(adjacent, adjacent.T)])
    return Inputs(stages, kinds[stages].astype(np.float32), rest.astype(np.float32))


class Seq2Seq(Policy):
    """The policy of ColocRL (Mirhoseini and others, ICML 2017, section 3.2).

    The encoder reads a row for each group. The decoder begins with the encoder's last state and has
    a stage for each group; its input is the embedding of the device just chosen, its output a
    linear function of its state and of what attention reads of the encoder's outputs.
    """

    stages: Tensor
    kinds: Tensor
    rest: Tensor

    def __init__(
        self, inputs: Inputs, allowed: NDArray[np.bool_], network: Network, seed: int
    ) -> None:
        super().__init__(allowed)
        self.network, hidden, width = network, network.hidden, network.embedding
        for name in ("stages", "kinds", "rest"):
            rows = torch.from_numpy(getattr(inputs, name))
            self.register_buffer(name, rows, persistent=False)
        # Layers draw their first weights from the caller's random numbers, which stay as they were.
        with torch.random.fork_rng(devices=[]):
            self.kind = nn.Linear(self.kinds.shape[1], width, bias=False)
            self.encoder = nn.LSTM(width + self.rest.shape[1], hidden)
            self.device = nn.Embedding(self.devices + 1, width)  # the last: nothing is chosen yet
            self.decoder = nn.LSTM(width, hidden)
            self.attention = ATTENTIONS[network.attention](hidden)
            self.from_state = nn.Linear(hidden, self.devices)
            self.from_context = nn.Linear(hidden, self.devices, bias=False)
        self.aligned = nn.Parameter(torch.tensor(network.aligned))
        _begin(self, network.forget, torch.Generator().manual_seed(seed))

    def _encoded(self) -> tuple[Tensor, Tensor, Tensor]:
        """The encoder's outputs [G, H], and its last hidden and cell states [1, H]."""
        rows = torch.cat([self.kind(self.kinds), self.rest], 1)
        outputs, (hidden, cell) = self.encoder(rows)
        return outputs, hidden, cell

    def forward(self, placements: Tensor) -> Tensor:
        """Log-probabilities [n, G, D], with the devices before known: all stages at once."""
        memory, hidden, cell = self._encoded()
        shape = 1, len(placements), self.network.hidden
        devices = placements[:, self.stages].T  # [G, n]
        first = devices.new_full(shape[1:2], self.devices)
        before = self.device(torch.cat([first.unsqueeze(0), devices[:-1]]))
        begin = hidden.expand(shape).contiguous(), cell.expand(shape).contiguous()
        states, _ = self.decoder(before, begin)
        scores = self.attention(states, self.attention.keys(memory))  # [G, n, G]
        scores.diagonal(dim1=0, dim2=2).add_(self.aligned)
        # The softmax over groups comes last: D numbers a group are fewer than H.
        logits = self.from_state(states) + scores.softmax(-1) @ self.from_context(memory)
        by_group = self._bounded(logits).transpose(0, 1)[:, self.stages.argsort()]
        return by_group.masked_fill(~self.allowed, BARRED).log_softmax(-1)

    def _bounded(self, logits: Tensor) -> Tensor:
        return self.network.bound * torch.tanh(logits / self.network.temperature)

    def _sampled(self, uniforms: Tensor) -> Tensor:
        by_stage = uniforms[:, self.stages].T.contiguous()

        def choose(stage: int, logits: Tensor) -> Tensor:
            return inverse(logits.softmax(-1), by_stage[stage])

        return self._walk(len(uniforms), choose)

    def _decoded(self) -> Tensor:
        return self._walk(1, lambda _, logits: likeliest(logits))[0]

    def _walk(self, count: int, choose: Callable[[int, Tensor], Tensor]) -> Tensor:
        """Placements [n, G], a stage after the other: ``choose`` maps the number of the stage and
        its logits [n, D] to devices [n].

        This is ``forward`` written out by stages, for there are hundreds of them and all are small:
        what does not hang on the choices is computed before.
        """
        memory, hidden, cell = self._encoded()
        state, cell = hidden.expand(count, -1), cell.expand(count, -1).clone()
        inputs, turn = self._gates()
        keys, values = self.attention.keys(memory), self.from_context(memory)
        aligned, free = float(self.aligned), bool(self.allowed.all())
        chosen = torch.full((count,), self.devices)
        placements = torch.empty((self.groups, count), dtype=torch.int64)
        for stage in range(self.groups):
            gates = torch.addmm(inputs.index_select(0, chosen), state, turn)
            enter, keep, candidate, leave = gates.chunk(4, 1)  # the order of nn.LSTM
            cell.mul_(keep.sigmoid_()).addcmul_(enter.sigmoid_(), candidate.tanh_())
            state = cell.tanh().mul_(leave.sigmoid_())
            scores = self.attention(state, keys)
            scores[:, stage] += aligned
            logits = self.from_state(state).addmm_(scores.softmax(-1), values)
            logits = self._bounded(logits)
            if not free:
                logits.masked_fill_(~self.allowed[self.stages[stage]], BARRED)
            placements[stage] = chosen = choose(stage, logits)
        return placements[self.stages.argsort()].T

    def _gates(self) -> tuple[Tensor, Tensor]:
        """What the gates of the decoder add up for each device just chosen [D + 1, 4 H], and by
        what they multiply the state [H, 4 H].
        """
        weights = self.decoder.get_parameter
        inputs = self.device.weight @ weights("weight_ih_l0").T
        return inputs + weights("bias_ih_l0") + weights("bias_hh_l0"), weights("weight_hh_l0").T


def _begin(module: nn.Module, forget: float, generator: torch.Generator) -> None:
    """First weights by Glorot and Bengio (2010), biases 0 but for those of forget gates."""
    for parameter in module.parameters():
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter, generator=generator)
        elif parameter.dim() == 1:
            nn.init.zeros_(parameter)
    for layer in module.modules():
        if isinstance(layer, nn.LSTM):
            bias, size = layer.get_parameter("bias_ih_l0"), layer.hidden_size
            nn.init.constant_(bias[size : 2 * size], forget)
