"""Searches that ask nothing of a graph but the oracle's answers: single devices, round robin,
random placements, greedy moves, simulated annealing and the cross-entropy method.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from ..errors import InputError
from ..taskgraph import Ints
from .features import neighbours
from .fitting import repair
from .sampling import EXPLORE, PATIENCE, best_of, frequencies, mixed, sampled, uniform
from .space import alone, energy, rank_of
from .trial import Trial, Walk, best_start

PROBES = 64  # moves from the start that tell the first temperature
COOLING = 0.01  # last temperature over the first
ROUNDS = 3  # each begins hot again, at the best placement so far
BLOCK = 64  # moves drawn at a time, under one temperature
NEAR = 0.5  # share of moves that bring a group to a device of a neighbour
COLDEST = 1e-6

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
    start, choices = best_start(trial), trial.problem.choices
    if start is None:
        return
    walk, changed = trial.walk(start), True
    while changed:
        changed = False
        for group in trial.budget.random.permutation(len(choices)).tolist():
            for device in choices[group].tolist():
                if device != walk.where[group]:
                    changed |= walk.improve(group, device)


def annealing(trial: Trial) -> None:
    """Simulated annealing (Kirkpatrick, Gelatt, Vecchi, 1983): a group moves, often to where a
    neighbour stands.

    A worsening by a factor 1 + x is accepted with probability exp(-x / temperature). The first
    temperature is the mean change by moves from the start, for the better or the worse, so it has
    no scale to set; it falls geometrically with the share of the budget, in three rounds. What does
    not fit counts as slower by the factor 1 + its relative excess.
    """
    start, choices = best_start(trial), trial.problem.choices
    movable = np.array([group for group, able in enumerate(choices) if len(able) > 1], np.int64)
    if start is None or not len(movable):
        return
    near = neighbours(trial.problem.oracle).lists()
    hot = mean_change(trial, trial.walk(start), movable)
    for number in range(ROUNDS):
        assert trial.best.base is not None  # there is a start
        _cool(trial, trial.walk(trial.best.base[0]), movable, near, hot, number)


def mean_change(trial: Trial, walk: Walk, movable: Ints) -> float:
    """The mean relative change by random moves that change anything, at least COLDEST.

    Worsenings alone would say nothing of a bad start, and the search would never climb.
    """
    oracle, random = trial.problem.oracle, trial.budget.random
    base, changes = energy(oracle, walk.cost), []
    for group in random.choice(movable, PROBES).tolist():
        others = [d for d in trial.problem.choices[group].tolist() if d != walk.where[group]]
        moved = energy(oracle, walk.propose(group, int(random.choice(others))))
        if moved != base > 0 and moved < inf:
            changes.append(abs(moved / base - 1.0))
    return max(float(np.mean(changes)) if changes else 0.0, COLDEST)


def _cool(
    trial: Trial, walk: Walk, movable: Ints, near: Sequence[Sequence[int]], hot: float, number: int
) -> None:
    """One round: from hot to cold over its part of the budget."""
    oracle, choices, budget = trial.problem.oracle, trial.problem.choices, trial.budget
    random, current, where = budget.random, energy(oracle, walk.cost), walk.where
    able = [devices.tolist() for devices in choices]
    while budget.share < (number + 1) / ROUNDS or number == ROUNDS - 1:
        temperature = hot * COOLING ** min(max(budget.share * ROUNDS - number, 0.0), 1.0)
        lucks = random.exponential(temperature, BLOCK).tolist()
        places, groups = random.random(BLOCK).tolist(), random.choice(movable, BLOCK).tolist()
        for group, luck, place in zip(groups, lucks, places, strict=True):
            device = draw_device(place, near[group], where, able[group])
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
