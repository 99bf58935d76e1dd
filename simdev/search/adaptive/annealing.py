"""Adaptive annealing: groups move one at a time or as clusters, and a policy learns which pays."""

from __future__ import annotations

import numpy as np

from ...taskgraph import Ints
from ..blackbox import BLOCK, COOLING, mean_change
from ..space import energy
from ..trial import Trial, Walk, best_start
from .clusters import Clusters
from .mixture import Mixture

PARTS = 4  # a cluster has at most a fourth of the groups
RACES, RACING = 4, 1 / 3  # short chains from the start, and their share of the budget
ROUNDS = 2  # afterwards, each hot again at the best placement so far


def adaptive(trial: Trial) -> None:
    """Simulated annealing over moves of connected clusters, of which a policy learns the sizes and
    whether a neighbour's device is tried, or any.

    What a cluster is has no scale to set: sizes are powers of two up to a fourth of the groups.
    Several short chains from the best start choose the basin, for what they end in differs more
    than what is left to gain there; the best of all is then refined.
    """
    start, choices = best_start(trial), trial.problem.choices
    movable = np.array([group for group, able in enumerate(choices) if len(able) > 1], np.int64)
    if start is None or not len(movable):
        return
    chains = _Chains(trial, movable, mean_change(trial, trial.walk(start), movable))
    for number in range(RACES):
        chains.cool(start, RACING * number / RACES, RACING * (number + 1) / RACES)
    refining = (1.0 - RACING) / ROUNDS
    for number in range(ROUNDS):
        assert trial.best.base is not None  # there is a start
        first = RACING + refining * number
        last = 1.0 if number == ROUNDS - 1 else first + refining
        chains.cool(trial.best.base[0], first, last)


class _Chains:
    """Chains of one search, which share what the policy learned."""

    def __init__(self, trial: Trial, movable: Ints, hot: float) -> None:
        self._trial, self._movable, self._hot = trial, movable, hot
        self._clusters, self._allowed = Clusters(trial.problem.oracle), trial.problem.allowed
        self._anywhere = bool(self._allowed.all())
        sizes = [1]
        while 2 * PARTS * sizes[-1] <= len(movable):
            sizes.append(2 * sizes[-1])
        self._kinds = [(size, near) for size in sizes for near in (True, False)]
        self._mixture = Mixture(len(self._kinds))

    def cool(self, placement: Ints, begin: float, end: float) -> None:
        """One chain from a placement, from hot to cold over a part of the budget (shares of it)."""
        trial, budget = self._trial, self._trial.budget
        walk = trial.walk(placement)
        where = np.array(walk.where, np.int64)
        while budget.share < end or end == 1.0:
            cooled = min(max((budget.share - begin) / (end - begin), 0.0), 1.0)
            self._block(walk, where, self._hot * COOLING**cooled)

    def _block(self, walk: Walk, where: Ints, temperature: float) -> None:
        """Some moves under one temperature, from which the policy learns; ``where`` is kept up to
        date.

        A move's gain is how far the step fell, in temperatures, and negative where it rose: of a
        kind that goes up as often as down nothing is left. A rejected one gains nothing.
        """
        random, oracle = self._trial.budget.random, self._trial.problem.oracle
        kinds = self._mixture.draw(random, BLOCK)
        lucks = random.exponential(temperature, BLOCK).tolist()
        groups = random.choice(self._movable, BLOCK).tolist()
        current, gains = energy(oracle, walk.cost), list[tuple[int, float]]()
        for kind, luck, group in zip(kinds, lucks, groups, strict=True):
            cluster, device = self._drawn(where, group, *self._kinds[kind])
            allowed = self._anywhere or self._allowed[cluster, device].all()
            if device == where[group] or not allowed:
                continue
            most, gain = current * (1.0 + luck), 0.0
            cost = walk.propose_within(cluster, device, most / 1e12)
            if cost is not None and (moved := energy(oracle, cost)) <= most:
                walk.accept()
                gain = (1.0 - moved / current) / temperature if current > 0 else 0.0
                where[cluster], current = device, moved
            gains.append((kind, gain))
        self._mixture.learn(gains)

    def _drawn(self, where: Ints, group: int, size: int, near: bool) -> tuple[Ints, int]:
        """A cluster around a group, and a device: of a neighbour elsewhere, where it should be near
        and there is one, else any.
        """
        random = self._trial.budget.random
        cluster, elsewhere = self._clusters.around(group, size, where, random)
        devices = elsewhere if near and len(elsewhere) else self._trial.problem.choices[group]
        return cluster, int(devices[int(random.random() * len(devices))])
