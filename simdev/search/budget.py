"""Budget: what a search may use, and what it has used by now."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Self

import numpy as np


class SpentError(Exception):
    """The budget is spent: methods let it pass, and ``search`` ends."""


@dataclass(frozen=True, slots=True)
class Chaining:
    """How many walks go on side by side (chains.py), and how many processes work on them."""

    count: int = 1
    n_jobs: int | None = 1


ALONE = Chaining()


class Budget:
    """What a search may use: so many evaluations and seconds (None: any number), and random
    numbers.

    Its clock starts when it is made. ``progress`` is called with the evaluations so far.
    """

    def __init__(
        self,
        limit: int | None = None,
        seconds: float | None = None,
        seed: int = 0,
        progress: Callable[[int], object] | None = None,
    ) -> None:
        self.limit = None if limit is None else int(limit)  # a NumPy number is no JSON
        self.seconds, self.seed, self.evaluations = seconds, int(seed), 0
        self.random = np.random.default_rng(self.seed)
        self._whole: Self | None = None  # of which this is a part
        self._progress, self._elsewhere = progress, 0.0
        self._began = time.perf_counter(), time.process_time()

    def part(self, share: float, most: int | None = None) -> Self:
        """A budget of its own for a search within this one: a share of both limits, at most so many
        evaluations, and random numbers that begin anew from the same seed.

        What it counts is counted here too, and no part goes on where these are used up.
        """
        limits = [most] if most is not None else []
        limits += [int(share * self.limit)] if self.limit is not None else []
        seconds = None if self.seconds is None else share * self.seconds
        limit = max(min(limits), 1) if limits else None
        part = type(self)(limit, seconds, self.seed, lambda _: self.count())
        part._whole = self
        return part

    @property
    def wall_seconds(self) -> float:
        """Seconds since the search began."""
        return time.perf_counter() - self._began[0]

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds since the search began, those of its worker processes too."""
        return time.process_time() - self._began[1] + self._elsewhere

    def add_cpu_seconds(self, seconds: float) -> None:
        """Count CPU seconds that another process used for this search."""
        self._elsewhere += seconds

    @property
    def share(self) -> float:
        """The share of the budget used so far, from 0 to 1 (0 where there is no limit)."""
        evaluated = 0.0 if self.limit is None else self.evaluations / self.limit
        # A round of chains may be given no time at all, where the one before took it.
        passed = self.wall_seconds / self.seconds if self.seconds else float(self.seconds == 0)
        return min(max(evaluated, passed), 1.0)

    @property
    def seconds_left(self) -> float:
        """Seconds until the limit in time, 0 where it is over; inf where there is none."""
        return inf if self.seconds is None else max(self.seconds - self.wall_seconds, 0.0)

    def require_time(self) -> None:
        """Raises SpentError where the time is over: what plans call between their steps."""
        if not self.seconds_left:
            raise SpentError

    def require(self) -> None:
        """Raises SpentError where nothing may be evaluated any more; the first always may."""
        if self._is_used_up or (self._whole is not None and self._whole._is_used_up):
            raise SpentError
        if self.evaluations:
            self.require_time()

    @property
    def _is_used_up(self) -> bool:
        """Whether there are as many evaluations as there may be, of at least one."""
        return self.limit is not None and self.evaluations >= max(self.limit, 1)

    def count(self, evaluations: int = 1) -> None:
        """One more evaluation, or so many."""
        self.evaluations += evaluations
        if self._progress is not None:
            self._progress(self.evaluations)
