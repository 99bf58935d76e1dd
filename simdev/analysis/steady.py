"""The steady state of steps that follow one another: how much later each ends than the one before.

A step ends when the last of its tasks does. The last step of a trace is not counted: it meets nothing of a next one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from ..trace import Trace
from ..units import PS_PER_SECOND, format_seconds

COUNTS = (4, 8, 16, 32, 52)
"""How many steps to simulate, until they repeat; the last leaves 50 periods."""

SLACK = 1e-9  # relative, of starts under fair links, whose rates are rounded


MOST_CYCLE = 4  # steps after which the same comes again, if it does at all


@dataclass(frozen=True, slots=True)
class Steady:
    """Times in ps: ``first_ps`` of the first step, ``periods_ps`` from the end of each to that of the next.

    Every ``cycle`` steps the same comes again: the last steps counted are those ``cycle`` before them in every task, up
    to one shift, so that all later ones are too, and the period is exact (a mean over the cycle). 0: they did not come
    to that; the period is the mean over the later half of the periods. ``iterations`` were simulated.
    ``synchronised`` counts the gradients that the policy synchronises (None: not told).
    """

    first_ps: int
    periods_ps: tuple[int, ...]
    iterations: int
    cycle: int
    synchronised: int | None = None

    @property
    def repeats(self) -> bool:
        """Whether the same comes again."""
        return self.cycle > 0

    @property
    def later_ps(self) -> tuple[int, ...]:
        """The periods that count: those of the last cycle, else the later half."""
        return self.periods_ps[-self.cycle :] if self.repeats else self.periods_ps[len(self.periods_ps) // 2 :]

    @property
    def period_ps(self) -> Fraction:
        """The period in ps; exact where the same comes again."""
        return Fraction(sum(self.later_ps), len(self.later_ps))

    @property
    def seconds(self) -> float:
        """The period in seconds."""
        return float(self.period_ps / PS_PER_SECOND)

    def to_json(self) -> dict[str, Any]:
        """What ``simdev simulate --json`` adds."""
        return {
            "period_s": self.seconds,
            "first_iteration_s": self.first_ps / 1e12,
            "iterations": self.iterations,
            "cycle": self.cycle,
            "synchronised_gradients": self.synchronised,
            "periods_s": [one / 1e12 for one in self.periods_ps],
            "period_min_s": min(self.later_ps) / 1e12,
            "period_max_s": max(self.later_ps) / 1e12,
        }

    def lines(self) -> Iterator[str]:
        """The same for people."""
        yield f"Steady-state period {format_seconds(self.seconds)}, first step {format_seconds(self.first_ps / 1e12)}."
        least, most = (format_seconds(one / 1e12) for one in (min(self.later_ps), max(self.later_ps)))
        if self.cycle == 1:
            yield f"{self.iterations} steps simulated; the last ones repeat each other in every task."
        elif self.repeats:
            yield f"{self.iterations} steps simulated; every {self.cycle} the same: periods from {least} to {most}."
        else:
            yield f"NOT STEADY after {self.iterations} steps: periods from {least} to {most}, the mean is given."
        shown = [format_seconds(one / 1e12) for one in self.periods_ps[:8]]
        yield f"From end to end: {', '.join(shown)}{', ..' if len(self.periods_ps) > 8 else ''}."
        if self.synchronised == 0:
            yield "No gradient is synchronised: the strategy makes none on several devices."


def steady_state(trace: Trace, iterations: int) -> Steady:
    """The steady state of a trace of so many equal steps, at least three (``lowering.iterated``)."""
    ends = (trace.finish + trace.task_graph.tasks.lag).reshape(iterations, -1).max(axis=1, initial=0)[:-1]
    cycle = next((c for c in range(1, MOST_CYCLE + 1) if _repeats(trace, iterations, c)), 0)
    return Steady(int(ends[0]), tuple(np.diff(ends).tolist()), iterations, cycle)


def _repeats(trace: Trace, iterations: int, cycle: int) -> bool:
    """Whether the last steps counted are those ``cycle`` before them, in every task as much later.

    One step more than a cycle is compared: what is under way when a step ends may belong to two.
    """
    last = iterations - 2
    if last < 2 * cycle:
        return False
    columns = [column.reshape(iterations, -1)[last - 2 * cycle : last + 1] for column in (trace.start, trace.finish)]
    shifts = np.concatenate([steps[cycle:] - steps[:-cycle] for steps in columns], axis=1)
    slack = shifts.max(initial=0) * SLACK if trace.task_graph.tasks.flow.any() else 0
    return not shifts.size or bool(shifts.max() - shifts.min() <= slack)
