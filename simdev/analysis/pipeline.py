"""What a pipeline's trace means: its bubble, the activations that live on each rank, and its steady
period.

The *cost* of a step is the longest time that a rank spans, from its first start to its last finish,
and the *bubble rate* is the share of it in which the busiest rank would not be busy: (cost - m (f +
b + w)) / cost for m microbatches and equal stages (Zero Bubble, Qi et al. 2024, section 5.3). Steps
that follow one another without a barrier between the ranks take the cost each; the step time, from
the first start to the last finish, is the time of one step alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from ..schedules import BACKWARD, FORWARD, WEIGHT, Schedule, weight_versions
from ..taskgraph import Ints
from ..trace import Trace
from ..units import PS_PER_SECOND, format_bytes, format_seconds
from .table import Table, table_text

ROWS_SHOWN = 64


@dataclass(frozen=True, slots=True)
class RankUse:
    """One rank: ``busy_ps``, first ``start_ps``, last ``finish_ps``, and what lives at most at
    once.

    ``live`` counts activations (one a microbatch and stage), each from the start of its forward to
    the finish of its backward, that of the weights included. ``peak`` are bytes.
    """

    name: str
    stages: tuple[int, ...]
    busy_ps: int
    start_ps: int
    finish_ps: int
    live: int
    peak: int

    @property
    def span_ps(self) -> int:
        """From the first start to the last finish, in ps."""
        return self.finish_ps - self.start_ps


@dataclass(frozen=True, slots=True)
class Period:
    """The steady state of an asynchronous pipeline: ``ps`` a microbatch, exact where ``repeats``.

    It repeats where the state of all stages does, every ``cycle`` microbatches; else ``ps`` is the
    mean over the later half. ``least_ps`` and ``most_ps`` are the extremes of the times that were
    averaged.
    """

    ps: Fraction
    repeats: bool
    cycle: int
    least_ps: int
    most_ps: int


@dataclass(frozen=True, slots=True)
class PipelineReport:
    """What a pipeline's trace shows; times in ps.

    ``period`` is None for a synchronous schedule, or too short a run.
    """

    schedule: Schedule
    engine: str
    step_ps: int
    ranks: tuple[RankUse, ...]
    versions: tuple[int, ...]
    period: Period | None

    @property
    def cost_ps(self) -> int:
        """The longest span of a rank."""
        return max(rank.span_ps for rank in self.ranks)

    @property
    def ideal_ps(self) -> int:
        """What the busiest rank computes: the least cost that any order allows."""
        return max(rank.busy_ps for rank in self.ranks)

    @property
    def bubble_rate(self) -> Fraction:
        """(cost - ideal) / cost; in an asynchronous steady state, of one period. 0 where nothing
        takes time.
        """
        if self.period is not None:
            ideal = Fraction(self.ideal_ps, self.schedule.microbatches)
            return 1 - ideal / self.period.ps if self.period.ps else Fraction(0)
        return Fraction(self.cost_ps - self.ideal_ps, self.cost_ps) if self.cost_ps else Fraction(0)

    def to_json(self) -> dict[str, Any]:
        """The report as an object of JSON; seconds and bytes."""
        schedule, period = self.schedule, self.period
        found: dict[str, Any] = {
            "schedule": schedule.name,
            "stages": schedule.stages,
            "microbatches": schedule.microbatches,
            "step_time_s": self.step_ps / PS_PER_SECOND,
            "step_time_ps": self.step_ps,
            "cost_s": self.cost_ps / PS_PER_SECOND,
            "ideal_s": self.ideal_ps / PS_PER_SECOND,
            "bubble_rate": float(self.bubble_rate),
            "engine": self.engine,
            "live_activations": [rank.live for rank in self.ranks],
            "peak_bytes": [rank.peak for rank in self.ranks],
            "weight_versions": list(self.versions),
            "ranks": [_rank_json(rank) for rank in self.ranks],
        }
        if period is not None:
            found["period_s"] = float(period.ps / PS_PER_SECOND)
            found["period_exact"] = period.repeats
            found["period_range_s"] = [
                period.least_ps / PS_PER_SECOND,
                period.most_ps / PS_PER_SECOND,
            ]
        return found

    def __str__(self) -> str:
        return "\n\n".join([_headline(self), table_text(_rank_table(self))])


def analyze_pipeline(schedule: Schedule, trace: Trace) -> PipelineReport:
    """The report of a trace of ``pipeline_task_graph(schedule, ...)``."""
    ranks, first = [], 0
    for rank, row in enumerate(schedule.rows):
        count = sum(action is not None for action in row)
        ranks.append(_rank_use(schedule, trace, rank, first, first + count))
        first += count
    period = _period(schedule, trace) if schedule.asynchronous else None
    return PipelineReport(
        schedule, trace.engine, trace.end_ps, tuple(ranks), weight_versions(schedule), period
    )


def _rank_use(schedule: Schedule, trace: Trace, rank: int, first: int, last: int) -> RankUse:
    """Of the tasks ``first`` to ``last``, which are those of the rank."""
    start, finish = trace.start[first:last], trace.finish[first:last]
    stages = tuple(stage for stage, home in enumerate(schedule.rank_of) if home == rank)
    live = _live(schedule, first, start, finish)
    memory = trace.memory[rank]
    return RankUse(
        memory.device,
        stages,
        int((finish - start).sum()),
        int(start.min()),
        int(finish.max()),
        live,
        memory.peak,
    )


def _live(schedule: Schedule, first: int, start: Ints, finish: Ints) -> int:
    """The most activations at once; ends at an instant come before begins at it, as for any
    buffer.
    """
    events = []
    for i, (begin, end) in enumerate(zip(start.tolist(), finish.tolist(), strict=True)):
        kind = schedule.actions[first + i].kind
        if kind == FORWARD:
            events.append((begin, 1))
        elif kind in (BACKWARD, WEIGHT):
            events.append((end, -1))
    live = most = 0
    for _, change in sorted(events):
        live += change
        most = max(most, live)
    return most


def _period(schedule: Schedule, trace: Trace) -> Period | None:
    """The time between microbatches completed by stage 0, while the pipeline is still being fed.

    In 1F1B what happens between two backwards of each stage follows from what happened between the
    two before them. So the state repeats for ever once all its times differ by one constant from
    those of an earlier microbatch.
    """
    state = _states(schedule, trace)
    if len(state) < 3:
        return None
    ends = state[:, 0]  # of the backwards of stage 0
    shifts = state[-1] - state[:-1]
    same = np.flatnonzero((shifts == shifts[:, :1]).all(axis=1))
    cycle = len(state) - 1 - int(same[-1]) if len(same) else 0
    gaps = np.diff(ends)[-(cycle or len(ends) // 2) :]
    return Period(
        Fraction(int(gaps.sum()), len(gaps)), cycle > 0, cycle, int(gaps.min()), int(gaps.max())
    )


def _states(schedule: Schedule, trace: Trace) -> Ints:
    """A line a microbatch while all stages are fed: when each stage ended its backward, and the
    forward before that.
    """
    ends: dict[tuple[int, bool], list[int]] = {}
    ahead: dict[int, int] = {}  # forwards of a stage before its first backward
    for action, finish in zip(schedule.actions, trace.finish.tolist(), strict=False):
        forward = action.kind == FORWARD
        if forward or action.kind in (BACKWARD, WEIGHT):
            ends.setdefault((action.stage, forward), []).append(finish)
        if not forward:
            ahead.setdefault(action.stage, len(ends[action.stage, True]))
    count = schedule.microbatches + 1 - max(ahead.values())
    columns = []
    for stage, skipped in sorted(ahead.items()):
        columns += [
            ends[stage, False][:count],
            ends[stage, True][skipped - 1 : skipped - 1 + count],
        ]
    return np.array(columns, np.int64).T


def _rank_json(rank: RankUse) -> dict[str, Any]:
    return {
        "name": rank.name,
        "stages": list(rank.stages),
        "busy_s": rank.busy_ps / PS_PER_SECOND,
        "start_s": rank.start_ps / PS_PER_SECOND,
        "finish_s": rank.finish_ps / PS_PER_SECOND,
        "live_activations": rank.live,
        "peak_bytes": rank.peak,
    }


def _headline(report: PipelineReport) -> str:
    schedule = report.schedule
    lines = [
        (
            f"{schedule.name}: {schedule.stages} stages on {schedule.ranks} ranks, "
            f"{schedule.microbatches} microbatches"
        ),
        f"Step time {_time(report.step_ps)}  ({report.step_ps:,} ps, engine {report.engine})",
    ]
    if report.period is None:
        told = f"cost {_time(report.cost_ps)} for {_time(report.ideal_ps)} of work"
        lines.append(f"Bubble rate {float(report.bubble_rate):.4f}: {told}")
    lines += _steady(report)
    return "\n".join(lines)


def _steady(report: PipelineReport) -> Iterator[str]:
    if not report.schedule.asynchronous:
        return
    period = report.period
    if period is None:
        yield "No steady state: too few microbatches"
        return
    how = f"exact, repeats every {period.cycle}" if period.repeats else "the mean, not yet steady"
    yield (
        f"Steady period {_time(period.ps)} a microbatch ({how}); bubble rate "
        f"{float(report.bubble_rate):.4f}"
    )


def _rank_table(report: PipelineReport) -> Table:
    """A line a rank."""
    memory = any(rank.peak for rank in report.ranks)
    stash = report.schedule.asynchronous
    head = ["<rank", "<stages", "busy", "idle", "live activations"]
    head += ["weight versions"] * stash + ["peak memory"] * memory
    body = []
    for rank in report.ranks[:ROWS_SHOWN]:
        idle = 1 - rank.busy_ps / report.step_ps if report.step_ps else 0.0
        cells = [
            rank.name,
            ",".join(map(str, rank.stages)),
            _time(rank.busy_ps),
            f"{idle:.1%}",
            str(rank.live),
        ]
        cells += [",".join(str(report.versions[stage]) for stage in rank.stages)] * stash
        body.append((*cells, *[format_bytes(rank.peak)] * memory))
    return Table(
        "Ranks (idle: of the step time)",
        tuple(head),
        tuple(body),
        max(len(report.ranks) - ROWS_SHOWN, 0),
    )


def _time(ps: int | Fraction) -> str:
    return format_seconds(float(Fraction(ps) / PS_PER_SECOND))
