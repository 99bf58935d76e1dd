"""Searches that ask nothing of a graph but the oracle's answers: single devices, round robin,
random placements, greedy moves, simulated annealing and the cross-entropy method.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

import numpy as np

from ..ground.errors import InputError
from ..nouns.taskgraph import Ints
from .chains import Chain, Round, begun, run_chains
from .cooling import Cooling, cool, cool_chains, mean_change, movable_groups
from .features import neighbours
from .fitting import repair
from .sampling import EXPLORE, PATIENCE, best_of, frequencies, mixed, sampled, uniform
from .space import alone, energy, rank_of
from .trial import Trial, Walk, best_start

ROUNDS = 3  # each begins hot again, at the best placement so far
BLOCK = 64  # moves drawn at a time, under one temperature
NEAR = 0.5  # share of moves that bring a group to a device of a neighbour

SAMPLES = 50


def single(trial: Trial) -> None:
    """Everything on one device, the best of those that can run everything.

    Raises InputError where none can, and what the oracle says where that cannot be in the order
    that is given.
    """
    placements = alone(trial.problem.oracle, trial.problem.choices)
    if not placements:
        raise InputError("single: no device can run every op of the graph")
    for placement in placements:
        trial.score(placement)
    if trial.best.placement is None and trial.best.refused is not None:
        raise trial.best.refused


def round_robin(trial: Trial) -> None:
    """The groups in turn on the devices on which they may stand; moved where that does not fit."""
    choices = enumerate(trial.problem.choices)
    trial.score(np.array([devices[i % len(devices)] for i, devices in choices], np.int64))
    repair(trial)


def random(trial: Trial) -> None:
    """Every group on any of its devices, each time anew."""
    counts = np.array([len(devices) for devices in trial.problem.choices], np.int64)
    table = np.zeros((len(counts), int(counts.max(initial=1))), np.int64)
    for group, devices in enumerate(trial.problem.choices):
        table[group, : len(devices)] = devices
    while True:  # until the budget is spent
        trial.score(table[np.arange(len(counts)), trial.budget.random.integers(counts)])


def greedy(trial: Trial) -> None:
    """From the best start, each group in random order to each other device; what is strictly better
    stays.

    Sweeps go on until one changes nothing: then no single move is better.
    """
    start = best_start(trial)
    if start is None:
        return
    if trial.chaining.count > 1:
        chains = begun(trial, [start], trial.best.base_rank)
        run_chains(trial, Sweeping(), chains, repeat(Round()))
        return
    walk = trial.walk(start)
    while _sweep(trial, walk):
        pass


def _sweep(trial: Trial, walk: Walk) -> bool:
    """Every move once; whether any was better. Raises SpentError."""
    choices, changed = trial.problem.choices, False
    for group in trial.budget.random.permutation(len(choices)).tolist():
        for device in choices[group].tolist():
            if device != walk.where[group]:
                changed |= walk.improve(group, device)
    return changed


class Sweeping:
    """Greedy search in chains (a Walker): each sweeps in an order of its own."""

    def advance(self, trial: Trial, chain: Chain, phase: object) -> None:
        """One sweep."""
        walk = trial.walk(chain.where, known=True)
        try:
            chain.ended = not _sweep(trial, walk)
        finally:
            chain.where = np.array(walk.where, np.int64)
            chain.rank = rank_of(trial.problem.oracle, walk.cost)


def annealing(trial: Trial) -> None:
    """Simulated annealing (Kirkpatrick, Gelatt, Vecchi, 1983): a group moves, often to where a
    neighbour stands.

    A worsening by a factor 1 + x is accepted with probability exp(-x / temperature). The first
    temperature is the mean change by moves from the start, for the better or the worse, so it has
    no scale to set; it falls geometrically with the share of the budget, in three rounds. What does
    not fit counts as slower by the factor 1 + its relative excess.
    """
    start, movable = best_start(trial), movable_groups(trial)
    if start is None or not len(movable):
        return
    hot = mean_change(trial, trial.walk(start), movable)
    if trial.chaining.count > 1:
        cool_chains(trial, Cooling(Singles, movable, hot), start)
        return
    moves = Singles(trial, movable)
    for number in range(ROUNDS):
        assert trial.best.base is not None  # there is a start
        end = 1.0 if number == ROUNDS - 1 else (number + 1) / ROUNDS
        cool(trial, moves, trial.best.base[0], hot, number / ROUNDS, end)


class Singles:
    """Moves of one group, often to where a neighbour stands."""

    def __init__(self, trial: Trial, movable: Ints, memory: None = None) -> None:
        self.memory = memory
        self._trial, self._movable = trial, movable
        self._near = neighbours(trial.problem.oracle).lists()
        self._able = [devices.tolist() for devices in trial.problem.choices]

    def begin(self, walk: Walk) -> None:
        """The walk that moves from here on."""
        self._walk = walk

    def block(self, temperature: float) -> None:
        """Some moves under one temperature. Raises SpentError."""
        walk, oracle, random = self._walk, self._trial.problem.oracle, self._trial.budget.random
        current, where = energy(oracle, walk.cost), walk.where
        lucks = random.exponential(temperature, BLOCK).tolist()
        places, groups = random.random(BLOCK).tolist(), random.choice(self._movable, BLOCK).tolist()
        for group, luck, place in zip(groups, lucks, places, strict=True):
            device = draw_device(place, self._near[group], where, self._able[group])
            if device == where[group]:
                continue
            most = current * (1.0 + luck)
            cost = walk.propose_within(group, device, most / 1e12)
            if cost is not None and (moved := energy(oracle, cost)) <= most:
                walk.accept()
                current = moved


def draw_device(
    luck: float, near: Sequence[int], where: Sequence[int], allowed: Sequence[int]
) -> int:
    """A device: that of a random neighbour, or any; ``luck`` is uniform in [0, 1)."""
    if luck < NEAR and near:
        device = where[near[int(luck / NEAR * len(near))]]
        if device in allowed:
            return device
    # What is left of the number is uniform again, so that one draw a move is enough.
    share = luck / NEAR if luck < NEAR else (luck - NEAR) / (1 - NEAR)
    return allowed[int(share * len(allowed))]


def cross_entropy(trial: Trial) -> None:
    """Rubinstein's method over independent choices of each group (Gao, Chen, Li, NeurIPS 2018;
    their settings are recalled, not verified).

    Each round samples placements and ranks them (what does not fit comes last). The frequencies
    among the best tenth replace the probabilities, as in the paper's closed form; then a share of
    the uniform distribution is mixed in. Samples seen before are not evaluated again; stops where
    all are. The starts of local search are asked first, and kept; the samples know nothing of them.
    """
    best_start(trial)
    even = uniform(trial.problem.allowed)
    chance, idle = even, 0
    while idle < PATIENCE:
        before = trial.distinct
        rows = sampled(chance, trial.budget.random.random((SAMPLES, len(even))))
        ranks = [rank_of(trial.problem.oracle, trial.score_once(row)) for row in rows]
        explore = EXPLORE * (1.0 - trial.budget.share)
        chance = mixed(frequencies(best_of(rows, ranks), even.shape[1]), even, explore)
        idle = 0 if trial.distinct > before else idle + 1
