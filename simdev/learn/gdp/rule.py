"""The rule: PPO with the mean of earlier rewards as baseline (section 3.4; recalled)."""

from __future__ import annotations

import numpy as np

from ...nouns.taskgraph import Floats
from ..networks.ppo import Epochs
from ..networks.signals import spread
from .settings import Settings


class Proximal(Epochs):
    """Proximal policy optimisation: a ratio for each node (ours; of hundreds of factors a product
    would leave every bound after one step), several epochs a batch.

    The reward is minus the signal (the root of the step over that of the best single device; 10 for
    what cannot be or does not fit), the baseline the mean of all rewards of the same graph before
    this batch, or of this batch alone ("batch", ours).
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings.epochs, settings.clip, settings.entropy, settings.divergence)
        self._settings = settings
        self._sum, self._count = 0.0, 0

    def advantages(self, signals: Floats) -> Floats:
        """How much better each of n placements is than the baseline [n], in standard deviations of
        the batch (ours); 0 where all are alike.
        """
        earlier = self._settings.baseline == "earlier" and self._count > 0
        baseline = self._sum / self._count if earlier else float(signals.mean())
        self._sum, self._count = self._sum + float(signals.sum()), self._count + len(signals)
        deviation = spread(signals)
        return (baseline - signals) / deviation if deviation else np.zeros(len(signals))
