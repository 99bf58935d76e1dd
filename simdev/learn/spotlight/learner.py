"""The learner: a Markov decision process with a stage for each group, solved by PPO."""

from __future__ import annotations

import numpy as np

from ...nouns.taskgraph import Floats
from ...search.features import features_of
from ...search.trial import Trial
from ..networks.ppo import Epochs
from ..networks.signals import spread
from .settings import Settings

# The rule: PPO by stage, with the reward of the whole placement at each of its stages.


class ByStage(Epochs):
    """Proximal policy optimisation over the stages of placements, several epochs a batch.

    The only reward comes after the last stage, and nothing is discounted: all stages have the
    advantage of their placement, (baseline - signal) / standard deviation of the batch. All numbers
    are ours (settings.py).
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings.epochs, settings.clip, settings.entropy, settings.divergence)
        self._settings = settings
        self._baseline = float("nan")

    def advantages(self, signals: Floats) -> Floats:
        """How much better each of n placements is than the baseline [n], which is the moving
        average of the batches before; of the first batch its mean.

        All count: failing ones too. Where all are alike there is nothing to divide by, and nothing
        to tell one from another: 0.
        """
        mean, deviation = float(signals.mean()), spread(signals)
        before = mean if np.isnan(self._baseline) else self._baseline
        decay = self._settings.decay
        self._baseline = decay * before + (1.0 - decay) * mean
        if not self._settings.normalised:
            return before - signals
        return (before - signals) / deviation if deviation else np.zeros(len(signals))


def spotlight(trial: Trial) -> None:
    """Spotlight (ICML 2018): a network like ColocRL's, learning by proximal policy optimisation
    with a ratio for each group.

    A stage places the next group in topological order; what it knows of the groups before is what
    the decoder's LSTM keeps of their devices.
    Raises SpentError.
    """
    from ..networks.keeping import keep
    from ..networks.seq2seq import Seq2Seq, inputs_of
    from ..networks.training import train

    problem, settings = trial.problem, trial.learning.settings
    assert isinstance(settings, Settings)
    inputs = inputs_of(features_of(problem.oracle).groups)
    policy = Seq2Seq(inputs, problem.allowed, settings.network, trial.budget.seed)
    keep("spotlight", trial, policy)
    train(trial, policy, ByStage(settings), settings.training)
