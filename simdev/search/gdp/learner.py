"""The learner: one network that places all nodes of a graph, of any graph on as many devices."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ...taskgraph import Ints
from ..learning.signals import reference_ps
from ..space import rank_of
from ..trial import Trial
from .settings import Settings

if TYPE_CHECKING:
    from .batch import Together
    from .policy import OnGraph


def gdp(trial: Trial) -> None:
    """Train a policy on one graph. Its nodes are the groups of the problem's oracle, which are
    single ops but for those that must stand together. Raises SpentError.
    """
    from ..learning.keeping import keep
    from ..learning.training import train
    from .policy import on_graph
    from .rule import Proximal

    settings = trial.learning.settings
    assert isinstance(settings, Settings)
    policy = on_graph(trial)
    keep("gdp", trial, policy, any_graph=True)
    learning, training = trial.learning, settings.training
    if settings.first and learning.train and learning.warm is None and learning.policy is None:
        trial.learning = replace(learning, warm=_best_of_first(trial, policy, settings.first))
        training = replace(training, differing=settings.around)
    train(trial, policy, Proximal(settings), training)


def _best_of_first(trial: Trial, policy: OnGraph, count: int) -> Ints:
    """The best of the first placements that a policy samples (devices by node), evaluated."""
    import torch

    reference_ps(trial)  # single devices come first, as wherever a learner trains
    uniforms = trial.budget.random.random((count, policy.groups))
    rows: Ints = policy.sample(torch.from_numpy(uniforms)).numpy()
    ranks = [rank_of(trial.problem.oracle, trial.score_once(row)) for row in rows]
    best: Ints = rows[ranks.index(min(ranks))]
    return best


def general(trial: Trial) -> Together:
    """The learner of any number of graphs, of the first of their trials."""
    from .batch import Together

    return Together(trial)
