"""Rules: how the signals of sampled placements become a loss. A signal is better where it is
smaller.
"""

from __future__ import annotations

from math import nan
from typing import Protocol

import numpy as np
from torch import Tensor

from ...nouns.taskgraph import Floats
from .signals import FAILING


class Rule(Protocol):
    """What the training loop asks. ``advantages`` is called once for each batch, and may remember;
    ``loss`` is called ``epochs`` times for each part of it, perhaps in other processes.
    """

    epochs: int

    def advantages(self, signals: Floats) -> Floats:
        """How much better each of n placements is than was to be expected (> 0: better)."""

    def loss(
        self, log_chosen: Tensor, old_log_chosen: Tensor, entropies: Tensor, advantages: Tensor
    ) -> Tensor:
        """What to minimise, a mean over placements: log-probabilities of what was chosen [n, S],
        those when it was sampled, entropies [n, any] in nats, advantages [n].
        """


class Reinforce:
    """REINFORCE (Williams, 1992) with a moving average of the signals as baseline, as ColocRL has
    it (ICML 2017, section 3.1; recalled, not verified).

    The gradient is that of the mean over placements of (signal - baseline) x log-probability. After
    ``failing_updates`` updates only placements that succeed train and move the baseline, which then
    begins anew (ours: else it would fall from FAILING for dozens of updates, all of which would
    praise whatever succeeds). ``entropy`` is the weight of the mean entropy of a stage, in units of
    the root mean square of the advantages, so that it means the same where all placements are
    nearly as good as where they differ (ours). ``baseline`` is what it begins with; NaN: the mean
    of the first batch.
    """

    epochs = 1

    def __init__(
        self, decay: float, entropy: float, failing_updates: int, baseline: float = nan
    ) -> None:
        self._decay, self._entropy, self._failing_updates = decay, entropy, failing_updates
        self._updates, self._baseline = 0, baseline

    def advantages(self, signals: Floats) -> Floats:
        """The baseline minus each signal [n]; 0 for failing ones once these train no more."""
        if self._updates == self._failing_updates:
            self._baseline = float("nan")
        trains = (signals < FAILING) | (self._updates < self._failing_updates)
        self._updates += 1
        if not trains.any():
            return np.zeros(len(signals))
        mean = float(signals[trains].mean())
        before = mean if np.isnan(self._baseline) else self._baseline
        self._baseline = self._decay * before + (1.0 - self._decay) * mean
        advantages: Floats = np.where(trains, before - signals, 0.0)
        return advantages

    def loss(
        self, log_chosen: Tensor, old_log_chosen: Tensor, entropies: Tensor, advantages: Tensor
    ) -> Tensor:
        """Minus the advantages x log-probabilities of whole placements, minus the entropies."""
        gained = (advantages * log_chosen.sum(1)).mean()
        weight = self._entropy * advantages.square().mean().sqrt()
        return -gained - weight * entropies.mean()
