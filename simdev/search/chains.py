"""Chains: several walks of one search, in rounds; between rounds the worse half of the chains takes
over the places of the better half.

Rounds are counted in evaluations, each chain draws its own random numbers, and the results of the
chains are merged in their order: so the answer depends on the number of chains, but not on the
number of processes, or where they run.

Greedy search, annealing and FlexFlow walk in chains; methods.py marks them by ``chains``. Each has
a class with ``advance``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from ..ground.jobs import working
from .space import Rank
from .trial import Best, Budget, Point, SearchProblem, SpentError, Trial
from .workers import Workers

ROUNDING = 1e-9  # of shares that are added up


@dataclass(slots=True)
class Chain:
    """One walk between two rounds.

    ``where`` is the place at which its method goes on, ``rank`` the rank of this place, ``memory``
    further state that the method keeps of the walk. ``ended``: the walk cannot go on.
    """

    random: np.random.Generator
    where: Any
    rank: Rank
    memory: Any = None
    ended: bool = False


class Walker(Protocol):
    """A method that walks in chains. It is pickled once, with everything that does not change."""

    def advance(self, trial: Trial, chain: Chain) -> None:
        """Walk on until the budget of ``trial`` is spent (SpentError may pass) or the round is
        over, and leave the state in ``chain``. Draws random numbers from the chain's generator.
        """


@dataclass(slots=True)
class _Advanced:
    """A chain after a round, and the results of the round."""

    chain: Chain
    best: Best = field(default_factory=Best)
    evaluations: int = 0
    cpu_seconds: float = 0.0
    interrupted: bool = False


class _Task:
    """The task that is sent to workers."""

    def __init__(self, problem: SearchProblem, walker: Walker) -> None:
        self._problem, self._walker, self._interrupted = problem, walker, False

    def advance(
        self, chain: Chain, limit: int | None, seconds: float | None, rank: Rank
    ) -> _Advanced:
        """A chain's part of a round; ``rank`` is the best rank of the search before it."""
        advanced = _Advanced(chain)
        if chain.ended or limit == 0 or self._interrupted:
            return advanced
        budget = Budget(limit, seconds)
        budget.random = chain.random
        trial = Trial(self._problem, budget)
        trial.best.rank = trial.best.base_rank = rank
        try:
            with suppress(SpentError):
                self._walker.advance(trial, chain)
        except KeyboardInterrupt:  # results so far are kept, those of earlier chains too
            advanced.interrupted = self._interrupted = True
        advanced.best, advanced.evaluations = trial.best, budget.evaluations
        advanced.cpu_seconds = budget.cpu_seconds
        return advanced


def _begun(trial: Trial, places: Sequence[Any], rank: Rank) -> list[Chain]:
    """The chains of a trial, each with random numbers of its own; they begin at
    ``places`` in turn.
    """
    count = trial.chaining.count
    seeds = np.random.SeedSequence(trial.budget.seed, spawn_key=(count,)).spawn(count)
    return [
        Chain(np.random.default_rng(seed), deepcopy(places[number % len(places)]), rank)
        for number, seed in enumerate(seeds)
    ]


def run_chains(
    trial: Trial, walker: Walker, places: Sequence[Any], rank: Rank, shares: Iterable[float]
) -> None:
    """Let the trial's chains walk from ``places`` (of rank ``rank``) until all have ended, or for
    one round for each of ``shares``: the round's share of the budget left at the beginning.

    Raises SpentError where the budget is used up, and KeyboardInterrupt once the best so far is
    kept.
    """
    jobs, current = trial.chaining.n_jobs, _begun(trial, places, rank)
    workers = Workers(_Task(trial.problem, walker), jobs, trial.budget)
    turns = -(-len(current) // min(working(jobs), len(current)))
    for evaluations, seconds in _limits(trial.budget, shares):
        trial.budget.require()
        cpu_seconds, best = trial.budget.cpu_seconds, trial.best.rank
        seconds = None if seconds is None else seconds / turns
        pairs = zip(current, _dealt(evaluations, current), strict=True)
        answers: list[_Advanced] = workers.run(
            "advance", [(chain, limit, seconds, best) for chain, limit in pairs]
        )
        for answer in answers:
            _keep(trial, answer, cpu_seconds)
            cpu_seconds += answer.cpu_seconds
        if any(answer.interrupted for answer in answers):
            raise KeyboardInterrupt
        current = exchanged([answer.chain for answer in answers])
        if all(chain.ended for chain in current):
            return
    trial.budget.require()


def _limits(budget: Budget, shares: Iterable[float]) -> Iterator[tuple[int | None, float | None]]:
    """The evaluations and seconds that each round may use (None: no limit): its share of the budget
    that was left when the first round began.
    """
    begun, begun_s, passed = budget.evaluations, budget.wall_seconds, 0.0
    for share in shares:
        evaluations, seconds = None, None
        passed = 1.0 if passed + share > 1.0 - ROUNDING else passed + share
        if budget.limit is not None:
            evaluations = begun + round((budget.limit - begun) * passed) - budget.evaluations
        if budget.seconds is not None:
            until_s = begun_s + (budget.seconds - begun_s) * passed
            seconds = max(until_s - budget.wall_seconds, 0.0)
        yield evaluations, seconds


def _dealt(evaluations: int | None, chains: Sequence[Chain]) -> list[int | None]:
    """Evaluations for each chain that has not ended, shared out as evenly as possible."""
    if evaluations is None:
        return [None] * len(chains)
    walking, turns = sum(not chain.ended for chain in chains), iter(range(len(chains)))
    return [0 if chain.ended else (evaluations + next(turns)) // walking for chain in chains]


def _keep(trial: Trial, answer: _Advanced, cpu_seconds: float) -> None:
    """Take over the results of a chain, as if it had been evaluated here, after ``cpu_seconds``."""
    best, part, budget = trial.best, answer.best, trial.budget
    if part.rank < best.rank:
        best.placement, best.strategy = part.placement, part.strategy
        best.rank = part.rank
        for point in part.points:
            # An earlier chain of this round may already have a better point.
            if (
                point is part.points[-1]
                or not best.points
                or _worth(point) < _worth(best.points[-1])
            ):
                at, used = budget.evaluations + point.evaluation, cpu_seconds + point.cpu_seconds
                best.points.append(replace(point, evaluation=at, cpu_seconds=used))
    if part.base is not None and part.base_rank < best.base_rank:
        best.base, best.base_rank = part.base, part.base_rank
    best.refusals += part.refusals
    best.refused = part.refused or best.refused
    budget.count(answer.evaluations)


def _worth(point: Point) -> tuple[int, int]:
    return point.memory_excess, point.step_ps


def exchanged(chains: Sequence[Chain]) -> list[Chain]:
    """The chains after an exchange: the worst takes over the place of the best, and so on for the
    worse half. Each chain keeps its memory and its random numbers.
    """
    order = sorted(range(len(chains)), key=lambda number: (chains[number].rank, number))
    after = list(chains)
    for better, worse in zip(order[: len(order) // 2], reversed(order), strict=False):
        source = chains[better]
        if source.rank < chains[worse].rank:
            after[worse] = replace(
                chains[worse],
                where=deepcopy(source.where),
                rank=source.rank,
                ended=source.ended,
            )
    return after
