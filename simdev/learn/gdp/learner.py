"""The learner: one network that places all nodes of a graph, of any graph on as many devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...search.trial import Trial
from .settings import Settings

if TYPE_CHECKING:
    from .batch import Together


def gdp(trial: Trial) -> None:
    """GDP (2019): a graph network and attention place all single ops in one pass, learning by
    proximal policy optimisation.

    Nodes are the groups of the problem's oracle: single ops, but for those that must stand
    together. Raises SpentError.
    """
    from ..networks.keeping import keep
    from ..networks.training import train
    from .policy import on_graph
    from .rule import Proximal

    settings = trial.learning.settings
    assert isinstance(settings, Settings)
    policy = on_graph(trial)
    keep("gdp", trial, policy, any_graph=True)
    train(trial, policy, Proximal(settings), settings.training)


def general(trial: Trial) -> Together:
    """The learner of any number of graphs, of the first of their trials."""
    from .batch import Together

    return Together(trial)
