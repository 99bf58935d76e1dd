"""The section on goodput: the share of a long run of steps that counts where machines fail
(``LongRun``).

It applies where a scenario has ``failures``. The page draws ``curve``
(``page/assets/goodput.js``); sweeps have its ``goodput`` and ``steps_per_day``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ...execution.goodput import (
    RUNS,
    SHARES,
    Fleet,
    Goodput,
    best_interval,
    failure_rate,
    goodput_of,
)
from ...execution.scenario import Scenario
from ...ground.units import PS_PER_SECOND, format_duration, format_number
from ...nouns.failures import Failures
from ..table import SHARE, TEXT, Json, Table
from .section import Facts, Places, Section, Step

DAY = 86_400
REACH, POINTS = 16, 33  # the curve reaches to 16 times the best interval, in 33 points
TICKS = (1, 10, 60, 600, 3600, 6 * 3600, DAY, 10 * DAY, 100 * DAY)


@dataclass(frozen=True, slots=True)
class LongRun(Section):
    """A long training run of equal steps on machines that fail."""

    name = "goodput"
    places = Places(entries=125, lines=55, facts=75, tables=5)

    failures: Failures
    fleet: Fleet

    @classmethod
    def of(cls, scenario: Scenario, step_ps: int) -> LongRun | None:
        """The long run of a scenario whose step takes ``step_ps``; None without ``failures``.

        All workers of its cluster take part.
        """
        if scenario.failures is None:
            return None
        cluster = scenario.cluster
        nodes = {cluster.devices[worker].node for worker in cluster.workers}
        fleet = Fleet(len(cluster.workers), len(nodes), step_ps / PS_PER_SECOND)
        return cls(scenario.failures, fleet)

    @classmethod
    def of_step(cls, step: Step) -> LongRun | None:
        """The section of a step whose scenario has ``failures``."""
        scenario = step.outcome.scenario
        return None if scenario is None else cls.of(scenario, step.step_ps)

    @cached_property
    def runs(self) -> Goodput:
        """The simulated runs. Raises InputError where they fail too often."""
        return goodput_of(self.failures, self.fleet)

    @property
    def steps_per_day(self) -> float | None:
        """The number of steps a day that count (None: a step takes no time)."""
        return self.runs.mean * DAY / self.fleet.step if self.fleet.step else None

    @property
    def mtbf(self) -> float | None:
        """Seconds of training between two failures of the whole fleet (None: nothing fails)."""
        rate = failure_rate(self.failures, self.fleet)
        return 1 / rate if rate else None

    def to_json(self) -> Json:
        """Shares of the time, the interval of checkpoints, and the steps a day that count."""
        runs, (low, high) = self.runs, self.runs.range()
        return {
            "goodput": runs.mean,
            "range": [low, high],
            "expected": runs.expected,
            "steps_per_day": self.steps_per_day,
            "interval_s": runs.interval,
            "best_interval_s": best_interval(self.failures, self.fleet),
            "mtbf_s": self.mtbf,
            "failures": float(runs.failures.mean()),
            "shares": dict(zip(SHARES, runs.shares.mean(0).tolist(), strict=True)),
        }

    def facts(self) -> Facts:
        """The goodput, and the steps that count."""
        yield "goodput", f"{self.runs.mean:.1%}"
        if self.steps_per_day is not None:
            yield "steps a day that count", format_number(self.steps_per_day)

    def lines(self) -> Iterator[str]:
        """The goodput with its spread, the interval of checkpoints, and the rate of failures."""
        runs, (low, high) = self.runs, self.runs.range()
        steps = self.steps_per_day
        counted = "" if steps is None else f": {format_number(steps)} steps a day count"
        length = format_duration(float(self.failures.length))
        yield f"Goodput {runs.mean:.1%} of {length} ({low:.1%} to {high:.1%}){counted}"
        fails = "nothing fails"
        if self.mtbf is not None:
            often = format_duration(self.mtbf)
            fails = f"a failure each {often} of training, {runs.failures.mean():.4g} in a run"
        best = " (the best)" if self.failures.interval is None else f"; best: {self._best}"
        yield f"Checkpoints each {format_duration(runs.interval)}{best}; {fails}"

    @property
    def _best(self) -> str:
        return format_duration(best_interval(self.failures, self.fleet))

    def tables(self) -> Iterator[Table]:
        """The shares of a run's time."""
        means = self.runs.shares.mean(0).tolist()
        rows = tuple(
            (name, share, format_duration(share * DAY) if share else None)
            for name, share in zip(SHARES, means, strict=True)
        )
        columns = {"part": TEXT, "share": SHARE, "of a day": TEXT}
        yield Table("Where a long run's time goes", columns, rows)

    def notes(self) -> Iterator[str]:
        """The method behind the goodput."""
        expected = self.runs.expected
        formula = "" if expected is None else f" By formula {expected:.2%} is expected."
        yield (
            f"Goodput is a mean over {RUNS} simulated runs with failures at random, whatever the "
            f"age of machines; 5 % of the runs are below its range, 5 % above.{formula}"
        )

    def curve(self) -> Json:
        """Goodput over the interval between checkpoints, for a picture: by interval in s the mean,
        the range and the expected value; and the chosen and the best point.
        """
        best, step = best_interval(self.failures, self.fleet), self.fleet.step or 1e-9
        longest = float(self.failures.length)
        wanted = best * np.geomspace(1 / REACH, REACH, POINTS)
        least = max(step, float(self.failures.written))
        steps = np.unique(np.rint(np.clip(wanted, least, longest) / step)).clip(1)
        points = [goodput_of(self.failures, self.fleet, n * step) for n in steps.tolist()]
        at = [point.interval for point in points]
        figures: dict[str, Any] = {
            "at": at, "mean": [point.mean for point in points],
            "low": [point.range()[0] for point in points],
            "high": [point.range()[1] for point in points],
            "expected": [point.expected for point in points],
        }  # fmt: skip
        chosen = self.runs
        marks = [("chosen", chosen.interval, chosen.mean)] if self.failures.interval else []
        marks.append(("best", best, goodput_of(self.failures, self.fleet, best).mean))
        ticks = [[s, format_duration(s)] for s in TICKS if at[0] <= s <= at[-1]]
        named = [[name, s, share, format_duration(s)] for name, s, share in marks]
        return figures | {"marks": named, "ticks": ticks}
