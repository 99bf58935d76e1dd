"""The learner: REINFORCE over a sequence-to-sequence policy (section 3)."""

from __future__ import annotations

from ...search.features import features_of
from ...search.trial import Trial
from .settings import Settings


def colocrl(trial: Trial) -> None:
    """ColocRL (ICML 2017): a network places the groups after each other and learns from the steps.

    As in the paper its policy can place no other graph. Raises SpentError.
    """
    from ..networks.keeping import keep
    from ..networks.rules import Reinforce
    from ..networks.seq2seq import Seq2Seq, inputs_of
    from ..networks.training import train

    problem, settings = trial.problem, trial.learning.settings
    assert isinstance(settings, Settings)
    inputs = inputs_of(features_of(problem.oracle).groups)
    policy = Seq2Seq(inputs, problem.allowed, settings.network, trial.budget.seed)
    keep("colocrl", trial, policy)
    rule = Reinforce(settings.decay, settings.entropy, settings.failing_updates)
    train(trial, policy, rule, settings.training)
