"""Proximal policy optimisation by stage: a ratio for each group of a placement, not one for all.

Clipped surrogate of Schulman et al. 2017 (arXiv 1707.06347), eq. 7, in the sum over stages of
Spotlight (Gao, Chen, Li, ICML 2018). Shapes: n placements, G stages; ``log_chosen`` [n, G] are the
log-probabilities (natural) of the devices that were chosen, each given those before it.
"""

from __future__ import annotations

from torch import Tensor


def ratios(log_chosen: Tensor, old_log_chosen: Tensor) -> Tensor:
    """How much likelier each choice [n, G] has become since it was sampled.

    ``old_log_chosen`` are those of the policy that sampled: they stay as they are in all epochs of
    a batch, and no gradient runs through them.
    """
    return (log_chosen - old_log_chosen.detach()).exp()


def surrogate(
    log_chosen: Tensor, old_log_chosen: Tensor, advantages: Tensor, clip: float
) -> Tensor:
    """What an update climbs: the sum over stages of min(r A, clip(r) A), its mean over placements.

    ``advantages`` [n], one for a placement: its reward comes after the last stage. ``clip`` bounds
    each ratio r to 1 - clip..1 + clip where going further would only gain. The product of the
    ratios of all stages would leave these bounds after one step.
    """
    ratio, advantage = ratios(log_chosen, old_log_chosen), advantages[:, None]
    clipped = ratio.clamp(1.0 - clip, 1.0 + clip)
    return (ratio * advantage).minimum(clipped * advantage).sum(1).mean()


def divergence(log_chosen: Tensor, old_log_chosen: Tensor) -> Tensor:
    """An estimate of KL(old || new) from the choices: the mean over placements of the sum over
    stages of r - 1 - log r.

    Each term is at least 0, and its mean over the old policy's choices is the KL divergence of the
    stage.
    """
    change = log_chosen - old_log_chosen.detach()
    return (change.exp() - 1.0 - change).sum(1).mean()


def loss(
    log_chosen: Tensor,
    old_log_chosen: Tensor,
    entropies: Tensor,
    advantages: Tensor,
    clip: float,
    entropy: float = 0.0,
    penalty: float = 0.0,
) -> Tensor:
    """What an optimiser makes small: minus the surrogate, minus ``entropy`` times the mean entropy
    of a stage (``entropies`` [n, G], nats), plus ``penalty`` times the divergence.

    Ours: the entropies' mean, not their sum, so that one weight does for any number of stages: each
    of many has only a small part in the advantage of its placement.
    """
    gain = surrogate(log_chosen, old_log_chosen, advantages, clip)
    gain = gain + entropy * entropies.mean()
    return penalty * divergence(log_chosen, old_log_chosen) - gain


class Epochs:
    """The part of a rule (rules.py) that climbs a batch for several epochs; baselines are left to
    the learners.
    """

    def __init__(self, epochs: int, clip: float, entropy: float, divergence: float) -> None:
        self.epochs, self._weights = epochs, (clip, entropy, divergence)

    def loss(
        self, log_chosen: Tensor, old_log_chosen: Tensor, entropies: Tensor, advantages: Tensor
    ) -> Tensor:
        """What each epoch makes smaller: the log-probabilities of the batch's own policy stay as
        they are.
        """
        return loss(log_chosen, old_log_chosen, entropies, advantages, *self._weights)
