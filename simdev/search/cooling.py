"""Cooling: what annealers have in common, whatever their moves: temperatures, rounds, chains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol

import numpy as np

from ..nouns.taskgraph import Ints
from .chains import Chain, Round, begun, run_chains
from .space import energy, rank_of
from .trial import Trial, Walk

PROBES = 64  # moves from the start that tell the first temperature
COOLING = 0.01  # last temperature over the first
COLDEST = 1e-6
STAGES = (1, 2, 4)  # lengths of the rounds of chains, each of which begins hot again; ours


class Moves(Protocol):
    """Moves of one walk at a time, and what is remembered of them from walk to walk."""

    memory: Any

    def begin(self, walk: Walk) -> None:
        """The walk that moves from here on."""

    def block(self, temperature: float) -> None:
        """Some moves under one temperature. Raises SpentError."""


Kind = Callable[[Trial, Ints, Any], Moves]
"""Makes moves of some groups, with what others of the kind remembered (None: nothing yet)."""


def movable_groups(trial: Trial) -> Ints:
    """The groups that have a choice."""
    choices = enumerate(trial.problem.choices)
    return np.array([group for group, able in choices if len(able) > 1], np.int64)


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


def cool(trial: Trial, moves: Moves, placement: Ints, hot: float, begin: float, end: float) -> None:
    """One walk from a placement, from hot to cold over a part of the budget (shares of it)."""
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

    def advance(self, trial: Trial, chain: Chain, phase: Any) -> None:
        """From hot to cold over the whole budget of a round."""
        moves = self.kind(trial, self.movable, chain.memory)
        walk = trial.walk(chain.where, known=True)
        moves.begin(walk)
        try:
            while True:
                moves.block(self.hot * COOLING**trial.budget.share)
        finally:
            chain.where, chain.memory = np.array(walk.where, np.int64), moves.memory
            chain.rank = rank_of(trial.problem.oracle, walk.cost)


def cool_chains(trial: Trial, cooling: Cooling, start: Ints) -> None:
    """Chains from one start, each in stages. Raises SpentError."""
    chains = begun(trial, [start], trial.best.base_rank)
    run_chains(trial, cooling, chains, [Round(length / sum(STAGES)) for length in STAGES])
