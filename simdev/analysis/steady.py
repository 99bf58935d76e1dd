"""The step time of steps that follow one another: the period after which they repeat (execution contract, rule 10).

E(k) is the last finish or release of step k. Where every start repeats q steps later, up to one
shift, the period is (E(k + q) - E(k)) / q. Two equal periods prove nothing: what is compared is the
whole state. Let ``ahead`` be the most steps that begin before one before them ends. When step
``last - ahead`` ends, all that runs, waits and is still to come hangs on what it and the steps up to
``last`` have done. If every task of theirs starts and ends as much later than its like q steps
before, the state has been there before, and what is deterministic goes on as it did then. The last
``ahead`` steps of a trace are not counted: they do not meet all that would follow them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Any

import numpy as np

from ..taskgraph import Ints
from ..trace import Trace
from ..units import PS_PER_SECOND, format_seconds
from .spans import Window

COUNTS = (4, 8, 16, 32, 52)
"""How many steps to simulate, until they repeat; the last leaves 50 periods."""

SLACK = 1e-9  # relative, of starts under fair links, whose rates are rounded
SHOWN = 8  # periods


@dataclass(frozen=True, slots=True)
class Steady:
    """Of ``steps`` simulated: times in ps, ``first_ps`` of the first, ``periods_ps`` from the end of each to the next.

    Every ``cycle`` steps the same comes again, proved by the state; then the period is exact, a mean over the cycle.
    0: it was not seen to; the period is the mean over the later half of ``periods_ps``. ``trace_ps`` is the end of all.
    """

    first_ps: int
    periods_ps: tuple[int, ...]
    steps: int
    cycle: int
    trace_ps: int

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
    def step_ps(self) -> int:
        """The step time: the period, rounded up to a picosecond."""
        return ceil(self.period_ps)

    @property
    def window(self) -> Window:
        """The part of the trace in which the periods that count lie."""
        end = self.first_ps + sum(self.periods_ps)
        return Window(end - sum(self.later_ps), end, len(self.later_ps), self.steps)

    def to_json(self) -> dict[str, Any]:
        """What ``simdev simulate --json`` adds."""
        return {
            "first_step_s": self.first_ps / PS_PER_SECOND,
            "trace_s": self.trace_ps / PS_PER_SECOND,
            "cycle": self.cycle,
            "steps": self.steps,
            "periods_s": [period / PS_PER_SECOND for period in self.periods_ps],
            "period_min_s": min(self.later_ps) / PS_PER_SECOND,
            "period_max_s": max(self.later_ps) / PS_PER_SECOND,
        }

    def lines(self) -> Iterator[str]:
        """What a person should know of the step time."""
        first, whole, least, most = map(_time, (self.first_ps, self.trace_ps, min(self.later_ps), max(self.later_ps)))
        yield f"Steps follow one another: this is their period. First step {first}, all {self.steps} steps {whole}."
        if self.cycle == 1:
            yield "The last steps repeat each other in every task."
        elif self.repeats:
            yield f"Every {self.cycle} steps the same comes again in every task: periods from {least} to {most}."
        else:
            yield f"NOT STEADY after {self.steps} steps: periods from {least} to {most}, the mean is given."
        more = ", .." if len(self.periods_ps) > SHOWN else ""
        yield f"From end to end: {', '.join(map(_time, self.periods_ps[:SHOWN]))}{more}."


def _time(ps: int) -> str:
    return format_seconds(ps / PS_PER_SECOND)


def steady_state(trace: Trace) -> Steady | None:
    """How the steps of a trace repeat; None for a trace of fewer than three, which has no period to tell."""
    steps = trace.task_graph.steps
    if steps < 3:
        return None
    start, finish = trace.start.reshape(steps, -1), trace.finish.reshape(steps, -1)
    ends = (trace.finish + trace.task_graph.tasks.lag).reshape(steps, -1).max(axis=1, initial=0)
    ahead = _steps_ahead(start, ends)
    last = steps - 1 - ahead
    slack = SLACK if trace.task_graph.tasks.flow.any() else 0.0
    cycles = range(1, last // 2 + 1)
    cycle = next((q for q in cycles if _repeats((start, finish, ends[:, None]), last, q, ahead, slack)), 0)
    counted = ends[: (last if cycle else steps - 2) + 1]
    return Steady(int(counted[0]), tuple(np.diff(counted).tolist()), steps, cycle, trace.step_ps)


def step_time_ps(trace: Trace) -> int:
    """The step time in ps: of steps that follow one another their period, rounded up (rule 10)."""
    steady = steady_state(trace)
    return -(-trace.step_ps // trace.task_graph.steps) if steady is None else steady.step_ps


def _steps_ahead(start: Ints, ends: Ints) -> int:
    """The most steps that begin before one before them ends, at least 1."""
    begins = start.min(axis=1, initial=np.iinfo(np.int64).max)
    later = np.triu(begins[None, :] < ends[:, None], 1)
    return max(1, int(later.sum(axis=1).max(initial=0)))


def _repeats(columns: tuple[Ints, ...], last: int, cycle: int, ahead: int, slack: float) -> bool:
    """Whether the last steps counted are those ``cycle`` before them, in every task as much later.

    One step more than a cycle is compared, or as many as are under way at once.
    """
    first = last - max(cycle, ahead)
    if first < cycle:
        return False
    shift = columns[-1][last, 0] - columns[-1][last - cycle, 0]
    limit = slack * max(int(shift), 0)
    return all(
        bool((np.abs(times[first : last + 1] - times[first - cycle : last + 1 - cycle] - shift) <= limit).all())
        for times in columns[::-1]  # ends first: they tell most of what does not repeat
    )
