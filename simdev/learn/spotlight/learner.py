"""The learner: a Markov decision process with a stage for each group, solved by PPO."""

from __future__ import annotations

from ...search.features import features_of
from ...search.trial import Trial
from .settings import Settings


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
    from .rule import ByStage

    problem, settings = trial.problem, trial.learning.settings
    assert isinstance(settings, Settings)
    inputs = inputs_of(features_of(problem.oracle).groups)
    policy = Seq2Seq(inputs, problem.allowed, settings.network, trial.budget.seed)
    keep("spotlight", trial, policy)
    train(trial, policy, ByStage(settings), settings.training)
