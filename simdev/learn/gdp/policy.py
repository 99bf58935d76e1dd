"""The policy: the network on one graph."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...search.trial import Trial
from ..networks.policy import BARRED, Policy, entropies, inverse, likeliest
from .inputs import Inputs, inputs_of
from .network import Network
from .settings import Settings


class OnGraph(Policy):
    """The distribution of GDP over the placements of a graph: given the graph, nodes are
    independent, so a batch of placements takes one pass. Several may have one ``network``.
    """

    rows: Tensor
    source: Tensor
    target: Tensor
    row_of: Tensor

    def __init__(self, network: Network, inputs: Inputs, allowed: NDArray[np.bool_]) -> None:
        super().__init__(allowed)
        self.network = network
        arrays = (inputs.rows, inputs.source, inputs.target, np.argsort(inputs.nodes))
        for name, array in zip(("rows", "source", "target", "row_of"), arrays, strict=True):
            self.register_buffer(name, torch.from_numpy(array), persistent=False)

    def logits(self) -> Tensor:
        """By node and device [n, D], BARRED where it may not stand."""
        logits: Tensor = self.network(self.rows, self.source, self.target)[self.row_of]
        return logits.masked_fill(~self.allowed, BARRED)

    def forward(self, placements: Tensor) -> Tensor:
        """Log-probabilities [n, G, D], the same for all n placements."""
        return self.logits().log_softmax(-1).expand(len(placements), -1, -1)

    def judge(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities [n, G] of the devices chosen, and the entropies [1, G]."""
        log_chances = self.logits().log_softmax(-1)
        return log_chances.gather(1, samples.T).T, entropies(log_chances)[None]

    def _sampled(self, uniforms: Tensor) -> Tensor:
        return inverse(self.logits().softmax(-1).expand(len(uniforms), -1, -1), uniforms)

    def _decoded(self) -> Tensor:
        return likeliest(self.logits())


def on_graph(trial: Trial, network: Network | None = None) -> OnGraph:
    """The policy on a trial's graph: with a network of its own, or with one that it shares."""
    problem, settings = trial.problem, trial.learning.settings
    assert isinstance(settings, Settings)
    inputs = inputs_of(problem.oracle, settings.harmonics)
    if network is None:
        columns, devices = inputs.rows.shape[1], problem.allowed.shape[1]
        network = Network(columns, devices, settings, trial.budget.seed)
    return OnGraph(network, inputs, problem.allowed)
