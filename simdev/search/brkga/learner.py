"""The genetic algorithm's loop: generations, evaluated together."""

from __future__ import annotations

from ...ground.errors import InputError
from ..learning.beginning import by_group
from ..sampling import PATIENCE
from ..space import Rank, rank_of
from ..trial import Trial
from .keys import Decoder, next_generation
from .settings import Settings


def brkga(trial: Trial) -> None:
    """A biased random-key genetic algorithm (Goncalves, Resende, 2011) over placements.

    The first population is random but for one placement: the one to imitate, or the best that was
    evaluated by then. What does not fit ranks last. It ends where generations bring
    nothing new. Raises SpentError, and InputError for settings that leave no children.
    """
    settings: Settings = trial.learning.settings
    size, random = settings.population, trial.budget.random
    elites, mutants = _sizes(settings)
    problem = trial.problem
    decoder = Decoder(settings.decoder, problem.allowed)
    keys = random.random((size, len(problem.allowed), decoder.width))
    start = trial.learning.warm
    if start is None and trial.best.base is not None:
        start, _ = by_group(problem, trial.best.base[0])
    if start is not None:
        keys[0] = decoder.keys(start, random)
    ranks, idle = list[Rank](), 0
    while idle < PATIENCE:
        before = trial.distinct
        rows = decoder.placements(keys[len(ranks) :])
        costs = trial.score_batch(rows, trial.learning.n_jobs or 1)
        ranks += [rank_of(problem.oracle, cost) for cost in costs]
        order = sorted(range(size), key=lambda i: ranks[i])
        ranks = [ranks[i] for i in order[:elites]]
        keys = next_generation(keys[order], elites, mutants, settings.inherit, random)
        idle = 0 if trial.distinct > before else idle + 1


def _sizes(settings: Settings) -> tuple[int, int]:
    """How many individuals are elite, and how many are mutants."""
    size = settings.population
    elites, mutants = max(round(settings.elite * size), 1), round(settings.mutants * size)
    if elites + mutants >= size:
        raise InputError(
            f"settings: the elite ({elites}) and the mutants ({mutants}) must leave some of a "
            f"population of {size}"
        )
    return elites, mutants
