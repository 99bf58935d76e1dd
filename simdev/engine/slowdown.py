"""Computation and collectives that share a device slow each other: the durations at which
everything fits together.

While a device computes and takes part in a collective, both advance at 1 / k of their speed; a
collective is as slow as its slowest rank. Two that overlap from the start then take max(c, d) + (k
- 1) min(c, d) together (Galvatron, VLDB 2022). The execution contract knows no such rates, but it
need not: a task that works d and is slowed for o lasts D = d + (k - 1) / k x o, so a schedule whose
durations are these D is the schedule under rates. It is found by executing the step with the last
durations until none changes. The result is an ordinary trace: its task graph holds the longer
durations, and whoever executes or checks it needs to know nothing of this.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np

from ..errors import InputError
from ..taskgraph import COLLECTIVE, DISPATCH, TRANSFER, Ints, Sharing, TaskGraph
from ..trace import Trace

MOST_ROUNDS = 200


def slowed(
    task_graph: TaskGraph, sharing: Sharing, simulate: Callable[[TaskGraph], Trace]
) -> Trace:
    """The trace with the slowed durations; ``simulate`` executes a task graph.

    Raises InputError under fair links, whose rates hang on the flows alone, and where the step does
    not settle.
    """
    tasks = task_graph.tasks
    if tasks.flow.any():
        raise InputError("collectives.slowdown: not under fair links; use queues")
    kinds = np.array(tasks.kind, dtype=object)
    elsewhere = np.isin(kinds, (TRANSFER, COLLECTIVE, DISPATCH))
    computes = np.flatnonzero(~elsewhere & (tasks.duration > 0))
    alone = replace(task_graph, sharing=None)
    trace = simulate(alone)
    for _ in range(MOST_ROUNDS):
        slow = _overlap(trace, computes, sharing)
        duration = tasks.duration + _ceil_share(slow, 1 - 1 / sharing.slowdown)
        if (duration == trace.task_graph.tasks.duration).all():
            return trace
        trace = simulate(replace(alone, tasks=replace(tasks, duration=duration)))
    raise InputError(f"collectives.slowdown: the step did not settle within {MOST_ROUNDS} rounds")


def _ceil_share(times: Ints, share: Fraction) -> Ints:
    """A share of each of the times in ps, rounded up; on Python integers, for the products may not
    overflow.
    """
    over, under = share.numerator, share.denominator
    return np.array([-(-time * over // under) for time in times.tolist()], np.int64)


def _overlap(trace: Trace, computes: Ints, sharing: Sharing) -> Ints:
    """For how long (ps) each task ran while its device was shared; 0 for what is neither
    computation nor collective.
    """
    overlap = np.zeros(len(trace.start), np.int64)
    task, ranks = sharing.devices.owners(), sharing.devices.ids
    where = trace.task_graph.tasks.source[computes]
    for device in np.unique(ranks).tolist():
        members = computes[where == device]
        overlap[members] = _covered(trace, task[ranks == device], members)
    # Collectives over one set of devices at once: a model has thousands over few sets.
    by_devices: dict[bytes, list[int]] = {}
    for collective in np.unique(task).tolist():
        by_devices.setdefault(sharing.devices[collective].tobytes(), []).append(collective)
    for devices, collectives in by_devices.items():
        beside = computes[np.isin(where, np.frombuffer(devices, np.int64))]
        overlap[collectives] = _covered(trace, beside, np.array(collectives, np.int64))
    return overlap


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
