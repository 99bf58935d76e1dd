"""Searches that use nothing but the oracle's answers: single devices, round robin, random
placements, greedy moves and the cross-entropy method.

methods.py names them. ``single`` also gives the references of a comparison.
"""

from __future__ import annotations

from itertools import repeat

import numpy as np

from ..ground.errors import InputError
from .chains import Chain, run_chains
from .fitting import repair
from .sampling import EXPLORE, best_of, explored, frequencies, mixed, sampled, uniform
from .space import alone, rank_of
from .trial import Trial, Walk, best_start, rounds

SAMPLES = 50


def single(trial: Trial) -> None:
    """Everything on one device: the best of the devices that can run everything.

    Raises InputError where no device can, and the oracle's error where all such placements are
    impossible in the given order.
    """
    placements = alone(trial.problem.oracle, trial.problem.choices)
    if not placements:
        raise InputError("single: no device can run every op of the graph")
    for placement in placements:
        trial.score(placement)
    if trial.best.placement is None and trial.best.refused is not None:
        raise trial.best.refused


def round_robin(trial: Trial) -> None:
    """The groups in turn on the devices that may run them; repaired where that does not fit."""
    choices = enumerate(trial.problem.choices)
    trial.score(np.array([devices[i % len(devices)] for i, devices in choices], np.int64))
    repair(trial)


def random(trial: Trial) -> None:
    """Every group on a random device of its choices, again and again."""
    counts = np.array([len(devices) for devices in trial.problem.choices], np.int64)
    table = np.zeros((len(counts), int(counts.max(initial=1))), np.int64)
    for group, devices in enumerate(trial.problem.choices):
        table[group, : len(devices)] = devices
    while True:  # until the budget is spent
        trial.score(table[np.arange(len(counts)), trial.budget.random.integers(counts)])


def greedy(trial: Trial) -> None:
    """From the best start, move each group in random order to each other device; strictly better
    moves stay.

    Sweeps go on until one changes nothing: then no single move is better.
    """
    start = best_start(trial)
    if start is None:
        return
    if trial.chaining.count > 1:
        run_chains(trial, Sweeping(), [start], trial.best.base_rank, repeat(1.0))
        return
    walk = trial.walk(start)
    while _sweep(trial, walk):
        pass


def _sweep(trial: Trial, walk: Walk) -> bool:
    """Try every move once; returns whether any was better. Raises SpentError."""
    choices, changed = trial.problem.choices, False
    for group in trial.budget.random.permutation(len(choices)).tolist():
        for device in choices[group].tolist():
            if device != walk.where[group]:
                changed |= walk.improve(group, device)
    return changed


class Sweeping:
    """Greedy search in chains (a Walker); each chain sweeps in a random order of its own."""

    def advance(self, trial: Trial, chain: Chain) -> None:
        """One sweep."""
        walk = trial.walk(chain.where, known=True)
        try:
            chain.ended = not _sweep(trial, walk)
        finally:
            chain.where = np.array(walk.where, np.int64)
            chain.rank = rank_of(trial.problem.oracle, walk.cost)


def cross_entropy(trial: Trial) -> None:
    """Rubinstein's method over independent choices of each group (Gao, Chen, Li, NeurIPS 2018;
    their settings are recalled, not verified).

    Each round samples placements and ranks them (those that do not fit come last). The frequencies
    among the best tenth replace the probabilities, as in the paper's closed form; then a share of
    the uniform distribution is mixed in. Placements seen before are not evaluated again; the search
    ends when no new ones appear. The starts of local search are scored first, and kept, but do not
    influence the samples.
    """
    best_start(trial)
    even = uniform(trial.problem.allowed)
    chance = even
    for _ in rounds(trial):
        rows = sampled(chance, trial.budget.random.random((SAMPLES, len(even))))
        ranks = [rank_of(trial.problem.oracle, trial.score_once(row)) for row in rows]
        explore = explored(EXPLORE, trial.budget.share)
        chance = mixed(frequencies(best_of(rows, ranks), even.shape[1]), even, explore)
