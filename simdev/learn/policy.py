"""Policies: distributions over placements, a device for each group, stage after stage.

``training`` samples from a policy and differentiates it; the learners of this folder derive their
networks from it.
"""

from __future__ import annotations

from abc import abstractmethod
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from ..nouns.taskgraph import Bools

BARRED = -1e9  # logit of a device on which a group may not run; finite, so that 0 x it is not NaN
TIE = 1e-9  # logits this near are equal, since machines round sums differently


class Policy(nn.Module):
    """A distribution over placements of G groups on D devices.

    ``allowed`` [G, D]: whether a group may run on a device. Placements are device indices by group.
    A sample has the choice of each of S = ``choices`` stages: by default it is the placement
    itself, a device for each group. A policy with other choices turns them into placements
    (``placements``).
    """

    allowed: Tensor

    def __init__(self, allowed: Bools, choices: int | None = None) -> None:
        super().__init__()
        self.hold(allowed=allowed.copy())
        self.groups, self.devices = allowed.shape
        self.choices = self.groups if choices is None else choices

    def hold(self, **tables: Any) -> None:
        """Keep arrays of the graph as tensors beside the weights; they are not saved with them."""
        for name, table in tables.items():
            self.register_buffer(name, torch.from_numpy(table), persistent=False)

    def forward(self, placements: Tensor) -> Tensor:
        """Log-probabilities [n, G, D] of each stage, given the devices that ``placements`` [n, G]
        chose in the stages before it; about -1e9 where a group may not run. Only for policies whose
        samples are placements.
        """
        raise NotImplementedError

    def judge(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities [n, S] of the choices in ``samples`` [n, S], and the entropies of the
        stages [n, any], of which the mean counts.
        """
        log_chances = self(samples)
        return chosen(log_chances, samples), entropies(log_chances)

    def placements(self, samples: Tensor) -> Tensor:
        """The placements [n, G] of samples [n, S]."""
        return samples

    def imitating(self, placement: Tensor) -> tuple[Tensor, Tensor]:
        """A sample [S] that leads to this placement [G], and the number of groups that move where a
        choice is made otherwise [S].
        """
        return placement, torch.ones(self.choices)

    def sample(self, uniforms: Tensor) -> Tensor:
        """Samples [n, S], stage after stage, by the inverse distribution function at ``uniforms``
        [n, S] (float64, in [0, 1)). No gradient.
        """
        with torch.inference_mode():
            drawn = self._sampled(uniforms)
        return drawn.clone()  # inference_mode's own tensors can take part in no gradient

    def decode(self) -> Tensor:
        """The placement [G] of the likeliest choice at each stage (on a tie the first), computed in
        float64 so that it is the same on every machine.
        """
        exact = deepcopy(self).double()
        with torch.inference_mode():
            likeliest_row = self.placements(exact._decoded()[None])[0]
        return likeliest_row.clone()

    @abstractmethod
    def _sampled(self, uniforms: Tensor) -> Tensor:
        """The samples of ``sample``."""

    @abstractmethod
    def _decoded(self) -> Tensor:
        """The sample of ``decode``, in the policy's current precision."""


def inverse(chances: Tensor, uniforms: Tensor) -> Tensor:
    """The devices [...] at ``uniforms`` [...] of distributions [..., D] (their sums need not be
    1).
    """
    ends = chances.double().cumsum(-1)
    return (uniforms.unsqueeze(-1) * ends[..., -1:] >= ends).sum(-1)


def likeliest(logits: Tensor) -> Tensor:
    """The first device [...] whose logit [..., D] is the largest up to rounding."""
    return (logits >= logits.amax(-1, keepdim=True) - TIE).to(torch.int8).argmax(-1)


def chosen(log_chances: Tensor, placements: Tensor) -> Tensor:
    """Log-probabilities [n, G] of the chosen devices, from the log-probabilities [n, G, D] of all
    devices.
    """
    return log_chances.gather(-1, placements.unsqueeze(-1)).squeeze(-1)


def entropies(log_chances: Tensor) -> Tensor:
    """The entropy [n, G] of each stage, in nats."""
    return -(log_chances.exp() * log_chances).sum(-1)
