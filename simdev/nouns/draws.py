"""Draws: the answers of a step whose durations were drawn from their expected errors.

``simdev/oracle/draws.py`` makes them, ``simdev/report/measures/uncertainty.py`` reports them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..ground.units import PS_PER_SECOND, is_count, written
from .taskgraph import Floats, Ints

Numbers = Ints | Floats

PERCENTS = (10, 50, 90)
"""The percentiles that reports show."""


MOST = 100_000
"""The most draws of a scenario."""


def draws_problems(draws: int, seed: int) -> Iterator[str]:
    """The problems of a number of draws, and of a seed."""
    if not (is_count(draws) and 0 < draws <= MOST):
        yield f"draws: must be a whole number from 1 to {MOST:,}, got {written(draws)}"
    if not is_count(seed):
        yield f"seed: must be a whole number from 0 to 2^60, got {written(seed)}"


def percentiles(column: NDArray[np.int64]) -> tuple[int, ...]:
    """The PERCENTS of whole numbers: for each percentage, the least of the numbers that at least
    this percentage of them do not exceed.
    """
    parts = np.array(PERCENTS) / 100
    return tuple(np.quantile(column, parts, method="inverted_cdf").tolist())


TIE = 0.8
"""The least share of draws that the faster of two answers wins if they are no tie (ours): such a
decision is wrong once in five times.
"""


def wins(first: Numbers, second: Numbers) -> float:
    """The share of draws in which the first is less than the second; equal draws count half."""
    return float((first < second).mean() + (first == second).mean() / 2)


TIE_MEANING = f"the faster wins in fewer than {TIE:.0%} of the draws"
"""The meaning of a tie, for people."""


def is_tie(share: float) -> bool:
    """Whether two answers are a tie, where one wins this share of the draws (``wins``)."""
    return max(share, 1 - share) < TIE


def are_tied(first: Numbers, second: Numbers) -> bool:
    """Whether neither is less in a share of at least TIE of the draws."""
    return is_tie(wins(first, second))


MOST_RANKED = 100  # best answers whose order is compared: thousands of pairs


@dataclass(frozen=True, eq=False)
class Stability:
    """The order of several answers over draws with common random numbers, the best answer first.

    ``beats`` is the share of draws in which each answer beats the best answer (``wins``), ``first``
    the share in which it is the best of all. ``kendall`` is the mean of Kendall's tau (Kendall,
    1938) between the order of a draw and the order of the answers: 1 where no two change places, 0
    where half of all pairs do. It is computed for the MOST_RANKED best answers.
    """

    beats: Floats
    first: Floats
    kendall: float


def stability(times: Floats) -> Stability:
    """The stability of an order. ``times`` have a row for each answer, the best first, and a column
    for each draw; the smallest time of a draw is its best.
    """
    beats = np.array([wins(row, times[0]) for row in times])
    least = times == times.min(axis=0)
    first = (least / least.sum(axis=0)).mean(axis=1)
    some = times[:MOST_RANKED]
    before, after = np.triu_indices(len(some), 1)
    signs = np.sign(some[after] - some[before])
    return Stability(beats, first, float(signs.mean()) if len(before) else 1.0)


@dataclass(frozen=True, eq=False)
class Draws:
    """The answers of draws, one row each: ``step_ps``, the step time in ps, and ``peaks``, the peak
    bytes of each simulated device (``devices``).

    ``answer_ps`` and ``answer_peaks`` are the answers without errors, ``capacity`` the bytes of
    each device (-1: no limit). ``erring`` is the number of costs with drawn errors; noise counts as
    one.
    """

    seed: int
    erring: int
    devices: tuple[str, ...]
    capacity: Ints
    answer_ps: int
    answer_peaks: Ints
    step_ps: Ints
    peaks: Ints

    def __len__(self) -> int:
        return len(self.step_ps)

    @property
    def seconds(self) -> Floats:
        """The step time of each draw in seconds."""
        seconds: Floats = self.step_ps / PS_PER_SECOND
        return seconds

    @property
    def largest(self) -> Ints:
        """The peak bytes of the fullest device of each draw."""
        largest: Ints = self.peaks.max(axis=1)
        return largest

    @property
    def fitting(self) -> float:
        """The share of draws in which every device stays within its memory."""
        within = (self.peaks <= self.capacity) | (self.capacity < 0)
        return float(within.all(axis=1).mean())

    def __repr__(self) -> str:
        low, middle, high = (ps / PS_PER_SECOND for ps in percentiles(self.step_ps))
        return f"Draws({len(self)} draws, step {middle:.6g} s, {low:.6g} to {high:.6g} s)"
