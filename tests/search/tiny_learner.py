"""A learner without a network: a table of chances by group and device, moved towards the best
placements.

``register`` registers it for a test. It uses every feature for learners: settings, a warm start, a
saved policy, workers, and placements that are scored once.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Literal, Self

import numpy as np
import pytest

from simdev.learn.rules import use
from simdev.nouns.taskgraph import Floats, Ints
from simdev.search import METHODS, SavedPolicy
from simdev.search.methods import Method
from simdev.search.policy import tied_to
from simdev.search.sampling import likeliest, sampled, uniform
from simdev.search.space import rank_of
from simdev.search.trial import Trial
from simdev.search.workers import Workers


@dataclass(frozen=True)
class Settings:
    batch: int = 4
    rate: float = 0.5
    noise: float = field(default=0.1, metadata={"least": 0})
    rule: Literal["count", "none"] = "count"
    label: str = "tiny"
    shuffled: bool = False

    @classmethod
    def published(cls) -> Self:
        return cls(batch=8, rate=0.25)


class Sampler:
    """The object that workers get: the distribution to mix in."""

    def __init__(self, even: Floats) -> None:
        self.even = even

    def sample(self, chance: Floats, noise: float, lucks: Floats) -> Ints:
        return sampled((1 - noise) * chance + noise * self.even, lucks)


class Table:
    """The policy: chances by group and device."""

    def __init__(self, trial: Trial, chance: Floats) -> None:
        self.trial, self.chance = trial, chance

    def saved(self) -> SavedPolicy:
        groups, devices = self.chance.shape
        settings = vars(self.trial.learning.settings)
        graph = tied_to(self.trial.problem.oracle)
        return SavedPolicy("tiny", 0, devices, groups, graph, settings, {"chance": self.chance})


def tiny(trial: Trial) -> None:
    """Moves its chances towards the best of each batch."""
    learning, oracle = trial.learning, trial.problem.oracle
    even = uniform(trial.problem.allowed)
    chance = even if learning.policy is None else learning.policy.weights["chance"].copy()
    if learning.warm is not None:
        chance = 0.5 * even
        chance[np.arange(len(chance)), learning.warm] += 0.5
    trial.policy = table = Table(trial, chance)
    workers = Workers(Sampler(even), learning.n_jobs, trial.budget)
    settings = learning.settings

    def sample() -> list[Ints]:
        lucks = trial.budget.random.random((settings.batch, len(even)))
        return workers.run("sample", [(table.chance, settings.noise, row) for row in lucks])

    def play() -> None:
        for row in sample():
            trial.score_once(row)

    use(trial, lambda: trial.score_once(likeliest(chance)), play)
    if not learning.train:
        return
    for _ in range(50):
        rows = sample()
        costs = [trial.score_once(row) for row in rows]
        best = rows[min(range(len(rows)), key=lambda i: rank_of(oracle, costs[i]))]
        if settings.rule == "count":
            table.chance = (1 - settings.rate) * table.chance
            table.chance[np.arange(len(best)), best] += settings.rate


def register(monkeypatch: pytest.MonkeyPatch, *prepare: str) -> None:
    """Registers the method "tiny" with these preparations, until the test ends."""
    monkeypatch.setitem(sys.modules, "simdev.search.tiny", sys.modules[__name__])
    method = Method("search.tiny:tiny", prepare, 40, learner="search.tiny:Settings")
    monkeypatch.setitem(METHODS, "tiny", method)
