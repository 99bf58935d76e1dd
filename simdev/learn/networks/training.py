"""The loop that trains a policy: sample, evaluate, follow the gradient of a rule."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from ...nouns.taskgraph import Floats, Ints
from ...search.budget import Budget
from ...search.learning.needs import require_device
from ...search.learning.settings import require_finite
from ...search.learning.workers import Workers
from ...search.sampling import PATIENCE
from ...search.trial import Trial
from .controllers import Controller, Weights, one_thread, set_gradient, weights_of
from .evaluation import use
from .policy import Policy
from .rules import Rule
from .signals import reference_ps, signal
from .sizes import Training

IMITATIONS = 500  # updates of an imitation at most; ours
CLIP = 1.0  # norm of its gradient; ours


def train(trial: Trial, policy: Policy, rule: Rule, training: Training) -> None:
    """Train a policy until the budget is used up, or no new placement was sampled for PATIENCE
    updates. Begins with the use of a saved policy, its likeliest placement first, or with the
    imitation of the trial's warm start. Raises SpentError.
    """
    with one_thread():
        use(
            trial,
            lambda: trial.score_once(policy.decode().numpy()),
            lambda: _play(trial, policy, training),
        )
        if not trial.learning.train:
            return
        loop = Loop(trial, policy, rule, training)
        if trial.learning.warm is not None:
            imitated = imitate(trial.budget, policy, trial.learning.warm, training)
            trial.best.details["imitation"] = {"updates": imitated[0], "differing": imitated[1]}
        idle = 0
        while idle < PATIENCE:
            before = trial.distinct
            loop.update()
            idle = 0 if trial.distinct > before else idle + 1


def _play(trial: Trial, policy: Policy, training: Training) -> None:
    """Evaluate a batch of samples."""
    uniforms = trial.budget.random.random((training.samples, policy.choices))
    for row in policy.placements(policy.sample(torch.from_numpy(uniforms))).numpy():
        trial.score_once(row)


def imitate(
    budget: Budget, policy: Policy, placement: Ints, training: Training
) -> tuple[int, float]:
    """Raise the probability of a placement until a sample is expected to differ from it in few
    groups. How many updates that took, and how many groups are expected to differ.

    That number is the sum over the stages of the chance of any other choice, given that the stages
    before chose as the placement does, times the groups that it moves. Raises SpentError where the
    time is over.
    """
    adam = _adam(policy, training.rate)
    sample, moved = policy.imitating(torch.from_numpy(placement))
    for update in range(IMITATIONS):
        budget.require_time()
        log_chosen, _ = policy.judge(sample[None])
        differing = float(((1.0 - log_chosen.detach().exp()) * moved).sum())
        if differing <= training.differing:
            return update, differing
        adam.zero_grad()
        (-log_chosen.sum()).backward()
        nn.utils.clip_grad_norm_(policy.parameters(), CLIP)
        adam.step()
    return IMITATIONS, differing


def _adam(policy: Policy, rate: float) -> torch.optim.Adam:
    # One tensor after another: the compiled variants may add in another order.
    return torch.optim.Adam(policy.parameters(), lr=rate, foreach=False)


class Loop:
    """A training under way: a policy, its optimiser, and the controllers that work for it."""

    def __init__(self, trial: Trial, policy: Policy, rule: Rule, training: Training) -> None:
        self._trial, self._policy, self._rule, self._training = trial, policy, rule, training
        require_device(training.device)
        controller = Controller(policy, rule, training.device)
        self._workers = Workers(controller, trial.learning.n_jobs, trial.budget)
        self._adam = _adam(policy, training.rate)
        self._reference, self._updates = reference_ps(trial), 0
        self._shares = np.array_split(
            # None is without a sample: it would have no mean.
            np.arange(training.samples),
            min(training.controllers, training.samples),
        )

    def update(self) -> None:
        """Sample a batch, evaluate it, and follow the rule's gradient. Raises SpentError."""
        trial, shape = self._trial, (self._training.samples, self._policy.choices)
        uniforms, weights = trial.budget.random.random(shape), weights_of(self._policy)
        calls = [(weights, uniforms[share]) for share in self._shares]
        parts: list[Ints] = self._workers.run("sample", calls)
        self._follow(parts, self._rule.advantages(self._signals(parts)))
        self._updates += 1
        if self._updates % self._training.decodes == 0:
            trial.score_once(self._policy.decode().numpy())

    def _signals(self, parts: Sequence[Ints]) -> Floats:
        """The signals of all samples, evaluated."""
        trial, fails = self._trial, self._training.overflow_fails
        placements = self._policy.placements(torch.from_numpy(np.concatenate(parts))).numpy()
        costs = [trial.score_once(row) for row in placements]
        oracle = trial.problem.oracle
        return np.array([signal(oracle, cost, self._reference, fails) for cost in costs])

    def _follow(self, parts: Sequence[Ints], advantages: Floats) -> None:
        """The epochs of the rule on a batch. What entropies weigh falls linearly to 0 by the end of
        the budget (ours: a policy explores first, and is sure of what it learned in the end).
        """
        left = 1.0 - self._trial.budget.share
        old: Sequence[Weights | None] = [None] * len(parts)
        sizes = [len(part) / len(advantages) for part in parts]
        for _ in range(self._rule.epochs):
            weights = weights_of(self._policy)
            rows = zip(parts, old, self._shares, strict=True)
            calls = [
                (weights, part, before, advantages[share], left) for part, before, share in rows
            ]
            answers = self._workers.run("gradient", calls)
            old = [before for _, before in answers]
            gradient = np.zeros_like(weights)
            for (part, _), size in zip(answers, sizes, strict=True):
                gradient += part * np.float32(size)
            require_finite(gradient)
            set_gradient(self._policy, gradient)
            nn.utils.clip_grad_norm_(self._policy.parameters(), self._training.clip)
            self._adam.step()
