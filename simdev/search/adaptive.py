"""Adaptive annealing (ours): local search whose moves a policy learns while it searches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator

from ..nouns.taskgraph import Floats, Ints
from ..oracle import Oracle
from .cooling import Cooling, cool, cool_chains, mean_change, movable_groups
from .features import neighbours
from .kernels.clusters import Growth, grow
from .kernels.compiling import Columns
from .space import energy
from .trial import Trial, Walk, best_start

# Clusters: connected groups on one device, which move together.


class Clusters:
    """Grows clusters of the groups of an oracle."""

    def __init__(self, oracle: Oracle) -> None:
        groups, near = len(oracle.groups), neighbours(oracle)
        edges, none = len(near.ids), np.zeros(groups, np.int64)
        rooms = np.zeros(groups, np.int64), np.zeros(edges, np.int64), np.zeros(edges, np.int64)
        cells = np.zeros(1, np.int64), np.zeros(1, np.int64)
        self._near, self._columns = near, Columns(Growth(near.ptr, near.ids, *rooms, none, *cells))

    def around(
        self, group: int, size: int, where: Ints, random: np.random.Generator
    ) -> tuple[Ints, Ints]:
        """A cluster of at most ``size`` groups around one, and the devices of neighbours that stand
        elsewhere, each as often as it was met; ``where`` is each group's device.

        As in Wolff's cluster updates (1989) it grows along edges between equals; which edge is next
        is drawn, so that clusters differ.
        """
        columns, edges = self._columns, int(self._near.ptr[group + 1] - self._near.ptr[group])
        count = grow(columns.handle, where, group, size, random.random(2 * size + edges))
        met = int(columns.array("met")[0])
        return columns.array("cluster")[:count].copy(), columns.array("elsewhere")[:met]


# Mixture: which kinds of moves are proposed, learned from what they gain.

RATE = 0.03  # how far the logits go in an update
UNIFORM = 0.4  # share of proposals of a kind that is drawn evenly: what pays changes on the way
MEMORY = 0.98  # of the gains of earlier updates
MOST = 6.0  # how far a logit may be below the largest


class Mixture:
    """A policy over ``count`` kinds of moves: a softmax that climbs what a proposal gains in the
    mean (REINFORCE, Williams 1992), with the mean of all kinds as its baseline.

    Gains are remembered with less and less weight, since one update sees a handful of each kind.
    """

    def __init__(self, count: int) -> None:
        self._logits = np.zeros(count)
        self._gains, self._counts = np.zeros(count), np.zeros(count)

    @property
    def chances(self) -> Floats:
        """The chance of each kind."""
        weights = np.exp(self._logits - self._logits.max())
        chances: Floats = (1.0 - UNIFORM) * weights / weights.sum() + UNIFORM / len(weights)
        return chances

    def draw(self, random: Generator, count: int) -> list[int]:
        """Kinds of so many moves."""
        kinds: list[int] = random.choice(len(self._logits), count, p=self.chances).tolist()
        return kinds

    def learn(self, gained: Sequence[tuple[int, float]]) -> None:
        """Learn from proposals, each a kind and what it gained (of any scale)."""
        kinds, gains = [kind for kind, _ in gained], [gain for _, gain in gained]
        counts = np.bincount(np.array(kinds, np.int64), minlength=len(self._logits))
        self._counts = MEMORY * self._counts + counts
        self._gains = MEMORY * self._gains + np.bincount(
            np.array(kinds, np.int64), gains, len(self._logits)
        )
        mean = self._gains / np.maximum(self._counts, 1.0)
        baseline = self._gains.sum() / max(self._counts.sum(), 1.0)
        climb = (mean - baseline) * counts
        norm = float(np.sqrt(np.square(climb).sum()))
        if norm > 0:
            logits = self._logits + RATE * climb / norm
            self._logits = np.maximum(logits - logits.max(), -MOST)


# Adaptive annealing: groups move one at a time or as clusters, and a policy learns which pays.

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


"""Adaptive annealing (ours): local search whose moves a policy learns while it searches."""
