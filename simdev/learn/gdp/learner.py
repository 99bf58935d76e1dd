"""The learner: one network that places all nodes of a graph, of any graph on as many devices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from ...search.policy import SavedPolicy
from ...search.trial import Trial
from ..networks.controllers import one_thread
from ..networks.keeping import keep
from ..networks.signals import reference_ps, signal
from .policy import OnGraph, on_graph
from .rule import Proximal
from .settings import Settings

# Batch training: one policy learns from several graphs at once (section 3.3).


class Task:
    """What is kept of a graph: the policy on it, its unit of time, and its baseline."""

    def __init__(self, trial: Trial, policy: OnGraph) -> None:
        self.policy, self._trial = policy, trial
        self._rule, self._reference = Proximal(trial.learning.settings), reference_ps(trial)

    def sampled(self, count: int) -> Batch:
        """Placements, evaluated. Raises SpentError."""
        trial = self._trial
        oracle, shape = trial.problem.oracle, (count, self.policy.groups)
        samples = self.policy.sample(torch.from_numpy(trial.budget.random.random(shape)))
        costs = [trial.score_once(row) for row in samples.numpy()]
        signals = [signal(oracle, cost, self._reference) for cost in costs]
        advantages = torch.from_numpy(self._rule.advantages(np.array(signals))).float()
        with torch.no_grad():
            log_chosen, _ = self.policy.judge(samples)
        return Batch(self, samples, log_chosen, advantages)

    def loss(self, batch: Batch, left: float) -> Tensor:
        """The rule's, where entropies are weighed ``left`` times as much."""
        log_chosen, spread = self.policy.judge(batch.samples)
        return self._rule.loss(log_chosen, batch.log_chosen, left * spread, batch.advantages)


class Batch:
    """Placements of a graph [n, G], their log-probabilities [n, G] when they were sampled, and
    their advantages [n].
    """

    def __init__(self, task: Task, samples: Tensor, log_chosen: Tensor, advantages: Tensor) -> None:
        self.task, self.samples, self.log_chosen = task, samples, log_chosen
        self.advantages = advantages


class Together:
    """A policy under way that learns from several graphs (``learning.general``): an update follows
    the mean of their losses, each with its own baseline.
    """

    def __init__(self, trial: Trial) -> None:
        settings = trial.learning.settings
        assert isinstance(settings, Settings)
        self._trial, self._settings, self.graphs = trial, settings, settings.graphs
        self._policy = on_graph(trial)
        keep("gdp", trial, self._policy, any_graph=True)
        # One tensor after another: the compiled variants may add in another order.
        parameters = self._policy.parameters()
        self._adam = torch.optim.Adam(parameters, lr=settings.rate, foreach=False)
        self._tasks = dict[Trial, Task]()

    def saved(self) -> SavedPolicy:
        """The policy as it is now."""
        assert self._trial.policy is not None
        return self._trial.policy.saved()

    def update(self, trials: Sequence[Trial]) -> None:
        """Evaluate placements of these graphs, and learn from all of them. Raises SpentError."""
        settings, left = self._settings, 1.0 - self._trial.budget.share
        with one_thread():
            batches = [self._task(trial).sampled(settings.samples) for trial in trials]
            for _ in range(settings.epochs):
                self._trial.budget.require_time()
                self._adam.zero_grad()
                for batch in batches:
                    (batch.task.loss(batch, left) / len(batches)).backward()
                nn.utils.clip_grad_norm_(self._policy.parameters(), settings.norm)
                self._adam.step()

    def _task(self, trial: Trial) -> Task:
        """What is kept of a graph; the first time its single devices are evaluated."""
        if trial not in self._tasks:
            self._tasks[trial] = Task(trial, on_graph(trial, self._policy.network))
        return self._tasks[trial]


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
    return Together(trial)
