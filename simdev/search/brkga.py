"""A biased random-key genetic algorithm over placements (Goncalves, Resende, Journal of Heuristics,
2011).

methods.py names it as a learner: its ``Settings`` are read like those of learners (learners.py),
but it saves no policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from numpy.random import Generator

from ..ground.errors import InputError
from ..nouns.taskgraph import Bools, Floats, Ints
from .learners import bounded
from .space import Rank, rank_of
from .trial import Trial, rounds

# The settings of the genetic algorithm.


@dataclass(frozen=True, slots=True)
class Settings:
    """Sizes of the population. The ranges below are recommended by Goncalves and Resende (2011,
    section 2; recalled); the values within them are ours.

    - ``population``: individuals (recommended: a multiple of the number of keys).
    - ``elite``: the share that survives unchanged and gives one parent (0.1 to 0.25).
    - ``mutants``: the share of new random individuals in each generation (0.1 to 0.3).
    - ``inherit``: the probability that a key comes from the elite parent (0.5 to 0.8).
    - ``decoder``: the meaning of keys: "share", where the one key of a group cuts [0, 1) into a
      part for each of its devices, or "affinity", with a key for each device, of which the largest
      wins.
    """

    population: int = 100
    elite: float = bounded(0.2, most=1)
    mutants: float = bounded(0.1, most=1)
    inherit: float = bounded(0.7, most=1)
    decoder: Literal["share", "affinity"] = "share"

    @classmethod
    def published(cls) -> Self:
        """The middle of each range, and REGAL's decoder (Paliwal and others, ICLR 2020)."""
        return cls(elite=0.2, mutants=0.2, inherit=0.7, decoder="affinity")


# Random keys: individuals as numbers in [0, 1), their placements, and how they breed.
# Keys are [individual, group, width]; width is 1 under the decoder "share", the number of devices
# under "affinity".


@dataclass(frozen=True, eq=False)
class Decoder:
    """The meaning of keys. ``allowed`` [group, device]: whether a group may go to a device.

    "share": a group's one key cuts [0, 1) into as many equal parts as it has devices. "affinity": a
    key for each device; the largest key of an allowed device wins (REGAL, Paliwal and others, ICLR
    2020).
    """

    name: str
    allowed: Bools

    @property
    def width(self) -> int:
        """The number of keys per group."""
        return self.allowed.shape[1] if self.name == "affinity" else 1

    def placements(self, keys: Floats) -> Ints:
        """Devices by group [individual, group]."""
        if self.name == "affinity":
            best: Ints = np.where(self.allowed, keys, -1.0).argmax(axis=-1)
            return best
        counts = self.allowed.sum(axis=1)
        # The n-th allowed device is the place of the n-th True; a sort puts these first, in order.
        order = np.argsort(~self.allowed, axis=1, kind="stable")
        place = (keys[..., 0] * counts).astype(np.int64)
        devices: Ints = order[np.arange(len(counts)), place]
        return devices

    def keys(self, placement: Ints, random: Generator) -> Floats:
        """Keys [group, width] of an individual with the given placement."""
        groups = np.arange(len(placement))
        if self.name == "affinity":
            keys = random.random(self.allowed.shape)
            keys[groups, placement] = np.nextafter(1.0, 0.0)
            return keys
        place = self.allowed.cumsum(axis=1)[groups, placement] - 1
        middle: Floats = ((place + 0.5) / self.allowed.sum(axis=1))[:, None]
        return middle


def offspring(
    elite: Floats, others: Floats, count: int, inherit: float, random: Generator
) -> Floats:
    """Children of an elite parent and another: each key comes from the elite parent with
    probability ``inherit`` (parametrised uniform crossover, section 2).
    """
    first = elite[random.integers(len(elite), size=count)]
    second = others[random.integers(len(others), size=count)]
    children: Floats = np.where(random.random(first.shape) < inherit, first, second)
    return children


def next_generation(
    keys: Floats, elites: int, mutants: int, inherit: float, random: Generator
) -> Floats:
    """The next population, from a population in the order of rank: the elite unchanged, children,
    and new random individuals (mutants).
    """
    children = offspring(
        keys[:elites], keys[elites:], len(keys) - elites - mutants, inherit, random
    )
    strangers = random.random((mutants, *keys.shape[1:]))
    return np.concatenate((keys[:elites], children, strangers))


# The genetic algorithm's loop: generations, evaluated together.


def brkga(trial: Trial) -> None:
    """A biased random-key genetic algorithm (Goncalves, Resende, 2011) over placements.

    The first population is random but for one placement: the one to imitate, or the best that was
    evaluated so far. Placements that do not fit rank last. The search ends where generations bring
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
        start, _ = problem.by_group(trial.best.base[0])
    if start is not None:
        keys[0] = decoder.keys(start, random)
    ranks = list[Rank]()
    for _ in rounds(trial):
        rows = decoder.placements(keys[len(ranks) :])
        costs = trial.score_batch(rows, trial.learning.n_jobs or 1)
        ranks += [rank_of(problem.oracle, cost) for cost in costs]
        order = sorted(range(size), key=lambda i: ranks[i])
        ranks = [ranks[i] for i in order[:elites]]
        keys = next_generation(keys[order], elites, mutants, settings.inherit, random)


def _sizes(settings: Settings) -> tuple[int, int]:
    """The numbers of elite individuals and of mutants."""
    size = settings.population
    elites, mutants = max(round(settings.elite * size), 1), round(settings.mutants * size)
    if elites + mutants >= size:
        raise InputError(
            f"settings: the elite ({elites}) and the mutants ({mutants}) must leave some of a "
            f"population of {size}"
        )
    return elites, mutants
