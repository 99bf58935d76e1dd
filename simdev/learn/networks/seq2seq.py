"""Seq2Seq: the policy of a placer that reads groups in topological order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ...nouns.taskgraph import Floats, Ints
from ...search.features import Nodes
from .placer import Placer, begin
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
    """The policy of ColocRL (Mirhoseini and others, ICML 2017, section 3.2): a row for each group,
    the same for all placements.
    """

    stages: Tensor
    kinds: Tensor
    rest: Tensor

    def __init__(
        self, inputs: Inputs, allowed: NDArray[np.bool_], network: Network, seed: int
    ) -> None:
        super().__init__(allowed)
        for name in ("stages", "kinds", "rest"):
            rows = torch.from_numpy(getattr(inputs, name))
            self.register_buffer(name, rows, persistent=False)
        # Layers draw their first weights from the caller's random numbers, which stay as they were.
        with torch.random.fork_rng(devices=[]):
            self.kind = nn.Linear(self.kinds.shape[1], network.embedding, bias=False)
            width = network.embedding + self.rest.shape[1]
            self.placer = Placer(width, self.devices, network)
        begin(self, network.forget, torch.Generator().manual_seed(seed))

    def rows(self) -> Tensor:
        """What the encoder reads [1, G, width], by stage."""
        return torch.cat([self.kind(self.kinds), self.rest], 1).unsqueeze(0)

    def forward(self, placements: Tensor) -> Tensor:
        """Log-probabilities [n, G, D], with the devices before known."""
        memory = self.placer.read(self.rows())
        logits = self.placer.logits(memory, placements[None, :, self.stages])[0]
        by_group = logits[:, self.stages.argsort()]
        return by_group.masked_fill(~self.allowed, BARRED).log_softmax(-1)

    def _sampled(self, uniforms: Tensor) -> Tensor:
        by_stage = uniforms[:, self.stages].T.contiguous()

        def choose(stage: int, logits: Tensor) -> Tensor:
            return inverse(self._masked(stage, logits).softmax(-1), by_stage[stage])

        return self._walk(len(uniforms), choose)

    def _decoded(self) -> Tensor:
        return self._walk(1, lambda stage, logits: likeliest(self._masked(stage, logits)))[0]

    def _masked(self, stage: int, logits: Tensor) -> Tensor:
        """Logits [n, D] of a stage, low where its group may not stand."""
        allowed = self.allowed.index_select(0, self.stages[stage : stage + 1])
        return logits.masked_fill(~allowed, BARRED)

    def _walk(self, count: int, choose: Callable[[int, Tensor], Tensor]) -> Tensor:
        """Placements [n, G] of a number of walks."""
        devices = self.placer.walk(self.placer.read(self.rows()), count, choose)[0]
        return devices[:, self.stages.argsort()]
