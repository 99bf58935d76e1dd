"""The learner: REINFORCE over a grouper and a placer."""

from __future__ import annotations

from math import nan

from ...ground.errors import InputError
from ...search.features import features_of
from ...search.trial import Trial
from .ops import ops_of
from .settings import Settings


def hdp(trial: Trial) -> None:
    """HDP (ICLR 2018): a network groups the ops, another places the groups; both learn together.

    Only ops that have a choice are placed; those that must stand together count as one.
    ``details`` tell how many groups the likeliest grouping has in the end. Raises SpentError, and
    InputError for settings that do not fit.
    """
    from ..networks.keeping import keep
    from ..networks.rules import Reinforce
    from ..networks.signals import FAILING
    from ..networks.training import train
    from .policy import Hierarchical

    problem, settings = trial.problem, trial.learning.settings
    assert isinstance(settings, Settings)
    if settings.hidden % 2:
        raise InputError(f"settings: hidden must be even (it is halved), got {settings.hidden}")
    ops = ops_of(problem.oracle, features_of(problem.oracle).groups, settings.rows == "scaled")
    if not len(ops):
        trial.score_once(problem.allowed.argmax(axis=1))
        return
    policy = Hierarchical(ops, problem.allowed, settings, trial.budget.seed)
    keep("hdp", trial, policy)
    policy.require_homes()
    if trial.learning.warm is not None:
        policy.settle(trial.learning.warm, settings.differing)
    first = FAILING if settings.baseline == "failing" else nan
    rule = Reinforce(settings.decay, settings.entropy, settings.failing_updates, first)
    try:
        train(trial, policy, rule, settings.training)
    finally:
        trial.best.details["groups"] = {"most": policy.most, "in_use": policy.groups_in_use()}
