"""Tasks that slow each other: the durations at which everything fits together.

Computation beside a collective or a copy, copies both ways over one link: while tasks of two sides
run at one place, both advance at 1 / k of their speed; a task at several places is as slow as the
slowest of them. Two that overlap from the start then take max(c, d) + (k - 1) min(c, d) together
(Galvatron, VLDB 2022). The execution contract knows no such rates, but it need not: a task that
works d and is slowed for o lasts D = d + (k - 1) / k x o, so a schedule whose durations are these D
is the schedule under rates. Where several pairs of sides slow one task, what each adds is added up.
The schedule is found by executing the step with the last durations until none changes. The result
is an ordinary trace: its task graph holds the longer durations, and whoever executes or checks it
needs to know nothing of this.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np

from ...ground.errors import InputError
from ...nouns.taskgraph import Ints, Rows, Sharing, TaskGraph
from ...nouns.trace import Trace

MOST_ROUNDS = 200


def slowed(task_graph: TaskGraph, simulate: Callable[[TaskGraph], Trace]) -> Trace:
    """The trace with the slowed durations; ``simulate`` executes a task graph.

    Raises InputError under fair links, whose rates hang on the flows alone, and where the step does
    not settle.
    """
    tasks = task_graph.tasks
    if tasks.flow.any():
        raise InputError("beside_copies, collectives.slowdown: not under fair links; use queues")
    alone = replace(task_graph, sharing=())
    trace = simulate(alone)
    for _ in range(MOST_ROUNDS):
        duration = tasks.duration.copy()
        for pair in task_graph.sharing:
            duration += _ceil_share(_overlap(trace, pair), 1 - 1 / pair.slowdown)
        if (duration == trace.task_graph.tasks.duration).all():
            return trace
        trace = simulate(replace(alone, tasks=replace(tasks, duration=duration)))
    raise InputError(
        "collectives.slowdown, beside_copies, both_ways: the step did not settle within "
        f"{MOST_ROUNDS} rounds"
    )


def _ceil_share(times: Ints, share: Fraction) -> Ints:
    """A share of each of the times in ps, rounded up; on Python integers, for the products may not
    overflow.
    """
    over, under = share.numerator, share.denominator
    return np.array([-(-time * over // under) for time in times.tolist()], np.int64)


def _overlap(trace: Trace, pair: Sharing) -> Ints:
    """For how long (ps) each task ran beside one of the other side."""
    overlap = np.zeros(len(trace.start), np.int64)
    for these, those in ((pair.first, pair.second), (pair.second, pair.first)):
        members, places = those.owners(), those.ids
        # Tasks at one set of places at once: a model has thousands over few sets.
        for at, tasks in _by_places(these).items():
            beside = members[np.isin(places, np.frombuffer(at, np.int64))]
            overlap[tasks] += _covered(trace, beside, tasks)
    return overlap


def _by_places(rows: Rows) -> dict[bytes, Ints]:
    """The tasks of a side by the places where they stand; those that stand nowhere are left out."""
    tasks: dict[bytes, list[int]] = {}
    for task in np.unique(rows.owners()).tolist():
        tasks.setdefault(rows[task].tobytes(), []).append(task)
    return {at: np.array(members, np.int64) for at, members in tasks.items()}


def _covered(trace: Trace, others: Ints, tasks: Ints) -> Ints:
    """For how long each of the tasks runs beside any of the others."""
    others = others[trace.finish[others] > trace.start[others]]
    if not len(others) or not len(tasks):
        return np.zeros(len(tasks), np.int64)
    # Busy stretches: sorted by start, one begins where all before have finished.
    order = np.argsort(trace.start[others], kind="stable")
    start, finish = trace.start[others][order], np.maximum.accumulate(trace.finish[others][order])
    first = np.concatenate(([True], start[1:] > finish[:-1]))
    begin, end = start[first], finish[np.append(first[1:], True)]
    before = np.concatenate(([0], np.cumsum(end - begin)))

    def until(time: Ints) -> Ints:
        at = np.searchsorted(begin, time, "right") - 1
        inside = np.where(at >= 0, np.minimum(time, end[at]) - begin[at], 0)
        covered: Ints = before[np.maximum(at, 0)] + inside
        return covered

    return until(trace.finish[tasks]) - until(trace.start[tasks])
