"""Simulated annealing: the common parts of annealers (temperatures, rounds, chains), moves of
single groups, and adaptive annealing (ours), whose moves a policy learns while it searches.

methods.py names ``annealing`` and ``adaptive``. Clusters of groups grow in ``kernels/clusters.py``.
FlexFlow (``soap/flexflow.py``) walks over splits by a rule of its own and shares only the chains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol

import numpy as np
from numpy.random import Generator

from ..nouns.taskgraph import Floats, Ints
from ..oracle import Oracle
from .chains import Chain, run_chains
from .features import neighbours
from .kernels import Columns
from .kernels.clusters import Growth, grow
from .space import energy, rank_of
from .trial import Trial, Walk, best_start

PROBES = 64  # moves from the start that set the first temperature
COOLING = 0.01  # last temperature over the first
COLDEST = 1e-6
STAGES = (1, 2, 4)  # lengths of the rounds of chains, each of which begins hot again; ours
BLOCK = 64  # moves drawn at a time, under one temperature


class Moves(Protocol):
    """Moves of one walk at a time, and the ``memory`` that they keep from walk to walk."""

    memory: Any

    def begin(self, walk: Walk) -> None:
        """Move this walk from now on."""

    def block(self, temperature: float) -> None:
        """Make some moves under one temperature. Raises SpentError."""


Kind = Callable[[Trial, Ints, Any], Moves]
"""Makes Moves of some groups, with the ``memory`` of earlier Moves of the kind (None: none yet)."""


def movable_groups(trial: Trial) -> Ints:
    """The groups with a choice of devices."""
    choices = enumerate(trial.problem.choices)
    return np.array([group for group, able in choices if len(able) > 1], np.int64)


def mean_change(trial: Trial, walk: Walk, movable: Ints) -> float:
    """The mean relative change of the energy by random moves that change it, at least COLDEST.

    Improvements count too: around a bad start almost no move is a worsening, and with worsenings
    alone the walk would begin too cold to climb.
    """
    oracle, random = trial.problem.oracle, trial.budget.random
    base, changes = energy(oracle, walk.cost), []
    for group in random.choice(movable, PROBES).tolist():
        others = [d for d in trial.problem.choices[group].tolist() if d != walk.where[group]]
        moved = energy(oracle, walk.propose(group, int(random.choice(others))))
        if moved != base > 0 and moved < inf:
            changes.append(abs(moved / base - 1.0))
    return max(float(np.mean(changes)) if changes else 0.0, COLDEST)


def cool(trial: Trial, moves: Moves, placement: Ints, hot: float, begin: float, end: float) -> None:
    """A walk from a placement, cooled down over a part of the budget (shares ``begin`` to
    ``end``).
    """
    budget = trial.budget
    moves.begin(trial.walk(placement))
    while budget.share < end or end == 1.0:
        cooled = min(max((budget.share - begin) / (end - begin), 0.0), 1.0)
        moves.block(hot * COOLING**cooled)


@dataclass(frozen=True, slots=True)
class Cooling:
    """Annealing in chains (a Walker)."""

    kind: Kind
    movable: Ints
    hot: float

    def advance(self, trial: Trial, chain: Chain) -> None:
        """Cool down over the whole budget of a round."""
        moves = self.kind(trial, self.movable, chain.memory)
        walk = trial.walk(chain.where, known=True)
        moves.begin(walk)
        try:
            while True:
                moves.block(self.hot * COOLING**trial.budget.share)
        finally:
            chain.where, chain.memory = np.array(walk.where, np.int64), moves.memory
            chain.rank = rank_of(trial.problem.oracle, walk.cost)


def accepted(
    oracle: Oracle, walk: Walk, groups: int | Ints, device: int, current: float, luck: float
) -> float | None:
    """Propose a move, and make it where it worsens the ``current`` energy by at most the share
    ``luck``. Returns the new energy, or None where the move is rejected.
    """
    most = current * (1.0 + luck)
    cost = walk.propose_within(groups, device, most / 1e12)
    if cost is None or (moved := energy(oracle, cost)) > most:
        return None
    walk.accept()
    return moved


def anneal(trial: Trial, kind: Kind, races: int, racing: float, rounds: int) -> None:
    """Anneal by one kind of moves: ``races`` short walks from the best start share the first part
    ``racing`` of the budget; then come ``rounds``, each hot again at the best placement so far.
    With several chains these rounds run in chains instead. Raises SpentError.
    """
    start, movable = best_start(trial), movable_groups(trial)
    if start is None or not len(movable):
        return
    hot = mean_change(trial, trial.walk(start), movable)
    if trial.chaining.count > 1:
        shares = [length / sum(STAGES) for length in STAGES]
        run_chains(trial, Cooling(kind, movable, hot), [start], trial.best.base_rank, shares)
        return
    moves, part = kind(trial, movable, None), (1.0 - racing) / rounds
    for number in range(races):
        cool(trial, moves, start, hot, racing * number / races, racing * (number + 1) / races)
    for number in range(rounds):
        assert trial.best.base is not None  # there is a start
        first = racing + part * number
        last = 1.0 if number == rounds - 1 else first + part
        cool(trial, moves, trial.best.base[0], hot, first, last)


# Moves of single groups.

NEAR = 0.5  # share of moves that bring a group to a device of a neighbour


def annealing(trial: Trial) -> None:
    """Simulated annealing (Kirkpatrick, Gelatt, Vecchi, 1983): a group moves, often to the device
    of a neighbour.

    A worsening by a factor 1 + x is accepted with probability exp(-x / temperature). The first
    temperature is the mean change by moves from the start, better or worse, so it needs no scale as
    a setting; it falls geometrically with the share of the budget, in three rounds. A placement
    that does not fit counts as slower by the factor 1 + its relative excess.
    """
    anneal(trial, Singles, races=0, racing=0.0, rounds=3)


class Singles:
    """Moves of one group, often to the device of a neighbour."""

    def __init__(self, trial: Trial, movable: Ints, memory: None) -> None:
        self.memory = memory
        self._trial, self._movable = trial, movable
        self._near = neighbours(trial.problem.oracle).lists()
        self._able = [devices.tolist() for devices in trial.problem.choices]

    def begin(self, walk: Walk) -> None:
        """Move this walk from now on."""
        self._walk = walk

    def block(self, temperature: float) -> None:
        """Make some moves under one temperature. Raises SpentError."""
        walk, oracle, random = self._walk, self._trial.problem.oracle, self._trial.budget.random
        current, where = energy(oracle, walk.cost), walk.where
        lucks = random.exponential(temperature, BLOCK).tolist()
        places, groups = random.random(BLOCK).tolist(), random.choice(self._movable, BLOCK).tolist()
        for group, luck, place in zip(groups, lucks, places, strict=True):
            device = draw_device(place, self._near[group], where, self._able[group])
            if device == where[group]:
                continue
            moved = accepted(oracle, walk, group, device, current, luck)
            current = current if moved is None else moved


def draw_device(
    luck: float, near: Sequence[int], where: Sequence[int], allowed: Sequence[int]
) -> int:
    """The device of a random neighbour, or any allowed device; ``luck`` is uniform in [0, 1)."""
    if luck < NEAR and near:
        device = where[near[int(luck / NEAR * len(near))]]
        if device in allowed:
            return device
    # The rest of ``luck`` is uniform again, so that one draw per move is enough.
    share = luck / NEAR if luck < NEAR else (luck - NEAR) / (1 - NEAR)
    return allowed[int(share * len(allowed))]


# Moves of clusters, which are connected groups on one device.

RATE = 0.03  # how far the logits of kinds of moves go in an update
UNIFORM = 0.4  # share of proposals whose kind is drawn evenly, since the best kind changes
MEMORY = 0.98  # weight of the gains of earlier updates, per update
MOST = 6.0  # how far a logit may be below the largest
PARTS = 4  # a cluster has at most a fourth of the groups


def adaptive(trial: Trial) -> None:
    """Simulated annealing over moves of connected clusters (ours). A policy learns which sizes to
    draw, and whether to try a neighbour's device or any.

    Clusters need no scale as a setting: sizes are powers of two up to a fourth of the groups.
    Several short walks from the best start choose the basin, since their ends differ by more than a
    longer walk would gain; the best of all is then refined.
    """
    anneal(trial, Clustered, races=4, racing=1 / 3, rounds=2)


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
        """A cluster of at most ``size`` groups around ``group``, and the devices of neighbours on
        other devices, each as often as it was met; ``where`` is each group's device.

        As in Wolff's cluster updates (1989) it grows along edges between equals; the next edge is
        drawn at random, so that clusters differ.
        """
        columns, edges = self._columns, int(self._near.ptr[group + 1] - self._near.ptr[group])
        count = grow(columns.handle, where, group, size, random.random(2 * size + edges))
        met = int(columns.array("met")[0])
        return columns.array("cluster")[:count].copy(), columns.array("elsewhere")[:met]


class Mixture:
    """A policy over ``count`` kinds of moves: a softmax that climbs the mean gain of a proposal
    (REINFORCE, Williams 1992), with the mean of all kinds as its baseline.

    Earlier gains fade, but are remembered, since one update sees only a handful of each kind.
    """

    def __init__(self, count: int) -> None:
        self._logits = np.zeros(count)
        self._gains, self._counts = np.zeros(count), np.zeros(count)

    @property
    def chances(self) -> Floats:
        """The probability of each kind."""
        weights = np.exp(self._logits - self._logits.max())
        chances: Floats = (1.0 - UNIFORM) * weights / weights.sum() + UNIFORM / len(weights)
        return chances

    def draw(self, random: Generator, count: int) -> list[int]:
        """The kinds of the next ``count`` moves."""
        kinds: list[int] = random.choice(len(self._logits), count, p=self.chances).tolist()
        return kinds

    def learn(self, gained: Sequence[tuple[int, float]]) -> None:
        """Learn from proposals: pairs of a kind and its gain (of any scale)."""
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


class Clustered:
    """Moves of clusters; their ``memory`` is the policy."""

    def __init__(self, trial: Trial, movable: Ints, memory: Mixture | None) -> None:
        self._trial, self._movable = trial, movable
        self._clusters, self._allowed = Clusters(trial.problem.oracle), trial.problem.allowed
        self._anywhere = bool(self._allowed.all())
        sizes = [1]
        while 2 * PARTS * sizes[-1] <= len(movable):
            sizes.append(2 * sizes[-1])
        self._kinds = [(size, near) for size in sizes for near in (True, False)]
        self.memory = Mixture(len(self._kinds)) if memory is None else memory

    def begin(self, walk: Walk) -> None:
        """Move this walk from now on."""
        self._walk, self._where = walk, np.array(walk.where, np.int64)

    def block(self, temperature: float) -> None:
        """Make some moves under one temperature, from which the policy learns.

        A move's gain is the relative fall of the step in temperatures, negative where it rose: a
        kind that rises as often as it falls gains nothing. A rejected move gains nothing.
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
            gain, moved = 0.0, accepted(oracle, walk, cluster, device, current, luck)
            if moved is not None:
                gain = (1.0 - moved / current) / temperature if current > 0 else 0.0
                where[cluster], current = device, moved
            gains.append((kind, gain))
        self.memory.learn(gains)

    def _drawn(self, where: Ints, group: int, size: int, near: bool) -> tuple[Ints, int]:
        """A cluster around a group, and a device: of a neighbour elsewhere, where ``near`` and
        there is such a neighbour, else any.
        """
        random = self._trial.budget.random
        cluster, elsewhere = self._clusters.around(group, size, where, random)
        devices = elsewhere if near and len(elsewhere) else self._trial.problem.choices[group]
        return cluster, int(devices[int(random.random() * len(devices))])
