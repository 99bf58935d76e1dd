"""The section of a report on a pipeline that is given only by the times of its stages: its bubble,
the live activations of each rank, and its steady period.

The *cost* of a step is the longest span of a rank, from its first start to its last finish, and the
*bubble rate* is the share of it in which the busiest rank would not be busy:
(cost - m (f + b + w)) / cost for m microbatches and equal stages (Zero Bubble, Qi et al. 2024,
section 5.3). Each of several steps without a barrier between them takes the cost; the step time,
from the first start to the last finish, is the time of a single step.

``simdev pipeline`` prints this section alone; ``figures/charts.py`` (``pipeline_chart``) draws it.
The schedules themselves are in ``nouns/schedules``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from ...execution.period import Steady, steady_rounds
from ...ground.units import PS_PER_SECOND, format_ps
from ...nouns.schedules import BACKWARD, FORWARD, WEIGHT, Action, Schedule, weight_versions
from ...nouns.taskgraph import SYNC, Ints
from ...nouns.trace import Trace
from ..table import BYTES, COUNT, NUMBER, SHARE, TEXT, TIME, Json, Table, fields_json, table_text
from .section import Places, Section, Step


@dataclass(frozen=True, slots=True)
class RankUse:
    """The use of a rank: ``busy_ps``, first ``start_ps``, last ``finish_ps``.

    ``sync_ps`` is the time in which it only synchronises with other replicas. ``live`` is the most
    activations at once (one for each microbatch and stage), each from the start of its forward to
    the finish of its backward, including the gradient of the weights. ``peak`` is in bytes.
    """

    name: str
    stages: tuple[int, ...]
    busy_ps: int
    start_ps: int
    finish_ps: int
    live: int
    peak: int
    sync_ps: int

    @property
    def span_ps(self) -> int:
        """The time from the first start to the last finish, in ps."""
        return self.finish_ps - self.start_ps


@dataclass(frozen=True, slots=True)
class PipelineUse(Section):
    """The measures of a pipeline's trace; times in ps.

    ``period`` is the period of rounds of an asynchronous schedule (``Schedule.round`` microbatches)
    once the pipeline is full; None for a synchronous schedule, or a run that is too short.
    ``latency_ps`` is the instant when the first microbatch is done.
    """

    name = "pipeline"
    # ``simdev pipeline`` prints the JSON of the section alone.
    places = Places(lines=20, asides=None, tables=20, entries=None)

    schedule: Schedule
    engine: str
    step_ps: int
    ranks: tuple[RankUse, ...]
    versions: tuple[int, ...]
    period: Steady | None
    latency_ps: int

    @classmethod
    def of_step(cls, step: Step) -> PipelineUse | None:
        """The section of a trace of stage times alone."""
        schedule = step.outcome.schedule
        return None if schedule is None else pipeline_use(schedule, step.trace)

    @property
    def period_ps(self) -> Fraction | None:
        """The steady period of a microbatch in ps."""
        return None if self.period is None else self.period.period_ps / self.schedule.round

    @property
    def cost_ps(self) -> int:
        """The longest span of a rank."""
        return max(rank.span_ps for rank in self.ranks)

    @property
    def ideal_ps(self) -> int:
        """The busy time of the busiest rank in ps: the least cost that any order allows."""
        return max(rank.busy_ps for rank in self.ranks)

    @property
    def bubble_rate(self) -> Fraction:
        """(cost - ideal) / cost, of one period in an asynchronous steady state; 0 where nothing
        takes time.
        """
        ideal, cost = Fraction(self.ideal_ps), Fraction(self.cost_ps)
        # In a steady state a period holds one microbatch, and the pipeline neither fills nor
        # drains.
        if self.period_ps is not None:
            ideal, cost = ideal / self.schedule.microbatches, self.period_ps
        return 1 - ideal / cost if cost else Fraction(0)

    def to_json(self) -> Json:
        """The section as an object of JSON; seconds and bytes."""
        schedule, period = self.schedule, self.period
        section: Json = {
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
            "ranks": [
                fields_json(rank, live="live_activations", peak="peak_bytes")
                | {"stages": list(rank.stages)}
                for rank in self.ranks
            ],
        }
        if schedule.asynchronous:
            section["replicas"] = list(schedule.replicas)
            section["first_s"] = self.latency_ps / PS_PER_SECOND
        if period is not None and self.period_ps is not None:
            extremes = min(period.later_ps), max(period.later_ps)
            section["period_s"] = float(self.period_ps / PS_PER_SECOND)
            section["period_exact"] = period.repeats
            section["period_range_s"] = [ps / schedule.round / PS_PER_SECOND for ps in extremes]
        return section

    def lines(self) -> Iterator[str]:
        """Schedule, step time, and bubble rate or steady period."""
        schedule, period, rate = self.schedule, self.period, float(self.bubble_rate)
        yield (
            f"{schedule.name}: {schedule.stages} stages on {schedule.ranks} ranks, "
            f"{schedule.microbatches} microbatches"
        )
        yield f"Step time {format_ps(self.step_ps)}  ({self.step_ps:,} ps, engine {self.engine})"
        if period is not None and self.period_ps is not None:
            how = "the mean, not yet steady"
            if period.repeats:
                how = f"exact, repeats every {period.cycle * schedule.round}"
            length = format_ps(self.period_ps)
            yield f"Steady period {length} a microbatch ({how}); bubble rate {rate:.4f}"
            return
        work = f"cost {format_ps(self.cost_ps)} for {format_ps(self.ideal_ps)} of work"
        yield f"Bubble rate {rate:.4f}: {work}"
        if schedule.asynchronous:
            yield "No steady state: too few microbatches"

    def tables(self) -> Iterator[Table]:
        """The ranks, a row each; with versions of weights, and memory, where there are any."""
        columns = {
            "rank": TEXT, "stages": TEXT, "busy": TIME, "idle": SHARE, "live activations": COUNT,
        }  # fmt: skip
        stashes, holds = self.schedule.asynchronous, any(rank.peak for rank in self.ranks)
        joins = any(rank.sync_ps for rank in self.ranks)
        columns |= {"synchronising": TIME} if joins else {}
        columns |= {"weight versions": NUMBER} if stashes else {}
        columns |= {"peak memory": BYTES} if holds else {}
        rows = []
        for rank in self.ranks:
            used = rank.busy_ps + rank.sync_ps
            idle = 1 - used / self.step_ps if self.step_ps else 0.0
            cells = [rank.name, ",".join(map(str, rank.stages)), rank.busy_ps, idle, rank.live]
            cells += [rank.sync_ps] * joins
            if stashes:
                cells.append(",".join(str(self.versions[stage]) for stage in rank.stages))
            rows.append((*cells, *[rank.peak] * holds))
        yield Table("Ranks (idle: of the step time)", columns, tuple(rows), shown=64)

    def __str__(self) -> str:
        return "\n\n".join(["\n".join(self.lines()), *map(table_text, self.tables())])


def pipeline_use(schedule: Schedule, trace: Trace) -> PipelineUse:
    """The section of a trace of ``pipeline_task_graph(schedule, ...)``."""
    ranks, first = [], 0
    # The tasks of a pipeline are its actions, rank by rank, then its messages.
    for row in schedule.rows:
        last = first + sum(action is not None for action in row)
        ranks.append(_rank_use(schedule, trace, first, last))
        first = last
    period = _period(schedule, trace) if schedule.asynchronous else None
    fed = [row for row, action in enumerate(schedule.actions) if action.microbatch == 0]
    return PipelineUse(
        schedule, trace.engine, trace.end_ps, tuple(ranks), weight_versions(schedule), period,
        int(trace.finish[fed].max()),
    )  # fmt: skip


def _rank_use(schedule: Schedule, trace: Trace, first: int, last: int) -> RankUse:
    """The use of a rank, whose tasks are ``first`` to ``last`` - 1."""
    start, finish, graph = trace.start[first:last], trace.finish[first:last], trace.task_graph
    stages = tuple(dict.fromkeys(action.stage for action in schedule.actions[first:last]))
    device = int(graph.tasks.source[first])
    live, memory = _live(schedule, first, start, finish), trace.memory[device]
    joint = [task for task in graph.resources[device].sequence if graph.tasks.kind[task] == SYNC]
    times = int((finish - start).sum()), int(start.min()), int(finish.max())
    synced = int((trace.finish - trace.start)[joint].sum())
    return RankUse(memory.device, tuple(sorted(stages)), *times, live, memory.peak, synced)


def _live(schedule: Schedule, first: int, start: Ints, finish: Ints) -> int:
    """The most activations of a rank that live at once."""
    events = []
    for i, (begin, end) in enumerate(zip(start.tolist(), finish.tolist(), strict=True)):
        kind = schedule.actions[first + i].kind
        if kind == FORWARD:
            events.append((begin, 1))
        elif kind in (BACKWARD, WEIGHT):
            events.append((end, -1))
    # Sorted so that at an instant ends come before begins, as for any buffer (rule 7).
    changes = [change for _, change in sorted(events)]
    return int(np.cumsum([0, *changes]).max())


def _period(schedule: Schedule, trace: Trace) -> Steady | None:
    """The period of rounds of microbatches (in which every stage uses each of its replicas in
    turn) while new microbatches still enter the pipeline.
    """
    tasks = trace.task_graph.tasks
    microbatch = np.array([action.microbatch for action in schedule.actions], np.int64)
    # Messages and synchronisation belong to the action before them.
    rounds = microbatch[tasks.op] // schedule.round
    count = schedule.microbatches // schedule.round
    # The last forward before a replica's first backward shows how far ahead a stage may be.
    ahead = max(_ahead(row) for row in schedule.rows)
    fed = (schedule.microbatches + 1 - ahead) // schedule.round
    if fed < 3:
        return None
    order = np.argsort(rounds, kind="stable")[: int((rounds < count).sum())]
    rows = order.reshape(count, -1)
    # A schedule table may have microbatches in any order, so rounds are sorted by their begin.
    return steady_rounds(trace, rows[trace.start[rows].min(axis=1).argsort(kind="stable")])


def _ahead(row: Sequence[Action | None]) -> int:
    """The number of microbatches up to the last that a rank forwards before its first backward."""
    actions = list(filter(None, row))
    first = next(i for i, action in enumerate(actions) if action.kind != FORWARD)
    return actions[first - 1].microbatch + 1
