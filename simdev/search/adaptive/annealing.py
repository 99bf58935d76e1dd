"""Adaptive annealing: groups move one at a time or as clusters, and a policy learns which pays."""

from __future__ import annotations

import numpy as np

from ...nouns.taskgraph import Ints
from ..cooling import Cooling, cool, cool_chains, mean_change, movable_groups
from ..space import energy
from ..trial import Trial, Walk, best_start
from .clusters import Clusters
from .mixture import Mixture

BLOCK = 64  # moves drawn at a time, under one temperature
PARTS = 4  # a cluster has at most a fourth of the groups
RACES, RACING = 4, 1 / 3  # short chains from the start, and their share of the budget
ROUNDS = 2  # afterwards, each hot again at the best placement so far


def adaptive(trial: Trial) -> None:
    """Simulated annealing over moves of connected clusters (ours), of which a policy learns the
    sizes, and whether a neighbour's device is tried or any.

    What a cluster is has no scale to set: sizes are powers of two up to a fourth of the groups.
    Several short chains from the best start choose the basin, for what they end in differs more
    than what is left to gain there; the best of all is then refined.
    """
    start, movable = best_start(trial), movable_groups(trial)
    if start is None or not len(movable):
        return
    hot = mean_change(trial, trial.walk(start), movable)
    if trial.chaining.count > 1:
        cool_chains(trial, Cooling(Clustered, movable, hot), start)
        return
    moves = Clustered(trial, movable)
    for number in range(RACES):
        cool(trial, moves, start, hot, RACING * number / RACES, RACING * (number + 1) / RACES)
    refining = (1.0 - RACING) / ROUNDS
    for number in range(ROUNDS):
        assert trial.best.base is not None  # there is a start
        first = RACING + refining * number
        last = 1.0 if number == ROUNDS - 1 else first + refining
        cool(trial, moves, trial.best.base[0], hot, first, last)


class Clustered:
    """Moves of clusters; what walk after walk remembers is what the policy learned."""

    def __init__(self, trial: Trial, movable: Ints, memory: Mixture | None = None) -> None:
        self._trial, self._movable = trial, movable
        self._clusters, self._allowed = Clusters(trial.problem.oracle), trial.problem.allowed
        self._anywhere = bool(self._allowed.all())
        sizes = [1]
        while 2 * PARTS * sizes[-1] <= len(movable):
            sizes.append(2 * sizes[-1])
        self._kinds = [(size, near) for size in sizes for near in (True, False)]
        self.memory = Mixture(len(self._kinds)) if memory is None else memory

    def begin(self, walk: Walk) -> None:
        """The walk that moves from here on."""
        self._walk, self._where = walk, np.array(walk.where, np.int64)

    def block(self, temperature: float) -> None:
        """Some moves under one temperature, from which the policy learns.

        A move's gain is how far the step fell, in temperatures, and negative where it rose: of a
        kind that goes up as often as down nothing is left. A rejected one gains nothing.
        """
        random, oracle = self._trial.budget.random, self._trial.problem.oracle
        walk, where = self._walk, self._where
        kinds = self.memory.draw(random, BLOCK)
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
        self.memory.learn(gains)

    def _drawn(self, where: Ints, group: int, size: int, near: bool) -> tuple[Ints, int]:
        """A cluster around a group, and a device: of a neighbour elsewhere, where it should be near
        and there is one, else any.
        """
        random = self._trial.budget.random
        cluster, elsewhere = self._clusters.around(group, size, where, random)
        devices = elsewhere if near and len(elsewhere) else self._trial.problem.choices[group]
        return cluster, int(devices[int(random.random() * len(devices))])
