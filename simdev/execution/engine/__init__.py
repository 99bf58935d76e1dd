"""Engines: two implementations of the execution contract, with equal results. ``simulate`` is the
only way in.

All code that simulates a task graph calls it: ``execution.scenario``, ``period``, what-ifs, plans,
calibration, ``simdev pipeline``. It chooses the engine, names the tasks of a deadlock, and
lengthens tasks that slow each other or that a pause interrupts (``slowed``), which neither engine
knows of. A new engine is a name in ENGINES, which ``files/scenario.py`` and the options of
``commands`` repeat.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from importlib.util import find_spec

import numpy as np

from ...ground.errors import DeadlockError, InputError, install_line
from ...nouns.taskgraph import (
    COLLECTIVE,
    DISPATCH,
    SYNC,
    TRANSFER,
    Ints,
    Rows,
    Sharing,
    TaskGraph,
)
from ...nouns.trace import Trace

# Tasks that slow each other: durations consistent with the schedule that they produce.
# Examples are computation beside a collective or a copy, and copies both ways over one link. While
# tasks of two sides run at one place, both advance at 1 / k of their speed; a task at several
# places is as slow as at the slowest. Two tasks that start together then take max(c, d) + (k - 1)
# min(c, d) (Galvatron, VLDB 2022). The execution contract has no such rates, and needs none: a task
# of d ps of work that is slowed for o ps lasts D = d + (k - 1) / k x o, so the schedule with these
# durations D is the schedule under rates. Where several pairs of sides slow one task, their
# additions are summed. The schedule is a fixed point: the step is executed with the durations of
# the last schedule until none changes. Pauses work in the same way: a task lasts longer by the time
# for which its device stands still, which follows from its start. The result is an ordinary trace,
# whose task graph holds the longer durations; engines and the checker need no rule for it.

MOST_ROUNDS = 200
# With pauses alone each round corrects at least the first wrong task, so the rounds end.
MOST_WITH_PAUSES = 10_000


def slowed(task_graph: TaskGraph, simulate: Callable[[TaskGraph], Trace]) -> Trace:
    """The trace in which tasks are lengthened by what slows them; ``simulate`` executes a task
    graph.

    Raises InputError under fair links, whose rates depend on the flows alone, and where the
    durations do not settle.
    """
    tasks = task_graph.tasks
    if task_graph.sharing and tasks.flow.any():
        raise InputError("beside_copies, collectives.slowdown: not under fair links; use queues")
    alone = replace(task_graph, sharing=(), stalls=None)
    trace, stalls = simulate(alone), task_graph.stalls
    stalled = _stalled(task_graph) if stalls is not None else None
    most = MOST_ROUNDS if task_graph.sharing else MOST_WITH_PAUSES
    for _ in range(most):
        duration = tasks.duration.copy()
        for pair in task_graph.sharing:
            duration += _ceil_share(_overlap(trace, pair), 1 - 1 / pair.slowdown)
        if stalls is not None:
            start, device = trace.start[stalled], tasks.source[stalled]
            duration[stalled] = stalls.finish(start, duration[stalled], device) - start
        if (duration == trace.task_graph.tasks.duration).all():
            return trace
        trace = simulate(replace(alone, tasks=replace(tasks, duration=duration)))
    raise InputError(
        "collectives.slowdown, beside_copies, both_ways, pauses: the step did not settle within "
        f"{most:,} rounds"
    )


def _stalled(task_graph: TaskGraph) -> Ints:
    """The tasks that a pause of their device interrupts: the dispatches of a device that has any,
    for the host's program pauses and launched kernels go on; else the device's computation.
    """
    tasks, hosts = task_graph.tasks, task_graph.of_kind(DISPATCH)
    hosted = np.zeros(len(task_graph.devices), np.bool_)
    hosted[tasks.source[hosts]] = True
    waits = task_graph.of_kind(TRANSFER, COLLECTIVE, SYNC)
    return np.flatnonzero((tasks.duration > 0) & (hosts | ~(waits | hosted[tasks.source])))


def _ceil_share(times: Ints, share: Fraction) -> Ints:
    """A share of each time in ps, rounded up; in Python integers, so that products do not
    overflow.
    """
    over, under = share.numerator, share.denominator
    return np.array([-(-time * over // under) for time in times.tolist()], np.int64)


def _overlap(trace: Trace, pair: Sharing) -> Ints:
    """The time in ps for which each task ran beside a task of the other side of ``pair``."""
    overlap = np.zeros(len(trace.start), np.int64)
    for these, those in ((pair.first, pair.second), (pair.second, pair.first)):
        members, places = those.owners(), those.ids
        # Tasks with the same set of places together: a model has thousands of tasks and few sets.
        for at, tasks in _by_places(these).items():
            beside = members[np.isin(places, np.frombuffer(at, np.int64))]
            overlap[tasks] += _covered(trace, beside, tasks)
    return overlap


def _by_places(rows: Rows) -> dict[bytes, Ints]:
    """The tasks of a side by their places (as bytes); tasks without a place are left out."""
    tasks: dict[bytes, list[int]] = {}
    for task in np.unique(rows.owners()).tolist():
        tasks.setdefault(rows[task].tobytes(), []).append(task)
    return {at: np.array(members, np.int64) for at, members in tasks.items()}


def _covered(trace: Trace, others: Ints, tasks: Ints) -> Ints:
    """The time in ps for which each of ``tasks`` runs beside any of ``others``."""
    others = others[trace.finish[others] > trace.start[others]]
    if not len(others) or not len(tasks):
        return np.zeros(len(tasks), np.int64)
    # Merge the others to busy stretches: sorted by start, a stretch begins after all before ended.
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


ENGINES = ("simpy", "compiled")
# The reference engine does 150,000 tasks a second or more; loading compiled kernels takes about
# half a second.
WORTH_COMPILING = 100_000


def simulate(task_graph: TaskGraph, engine: str = "auto") -> Trace:
    """Execute a task graph.

    ``engine`` is one of ENGINES, or "auto": compiled for large graphs, where Numba is installed.

    Where tasks slow each other (``sharing``) or devices pause (``stalls``), the trace is that of a
    task graph with longer durations. Raises DeadlockError where fixed sequences contradict each
    other, InputError for an engine that is unknown or not installed.
    """
    given: object = task_graph  # a caller without type checks may pass a scenario
    if not isinstance(given, TaskGraph):
        raise InputError("simulate: executes a TaskGraph; simdev.run(...) answers a scenario")
    # With pauses a graph is executed dozens of times, so compiling always pays.
    often = WORTH_COMPILING if task_graph.stalls is not None else 0
    name = choose(engine, len(task_graph.tasks) + often)
    if task_graph.is_stretched:
        return slowed(task_graph, partial(simulate, engine=name))
    if name == "simpy":
        from .simpy_engine import execute
    else:
        from .compiled import execute
    start, finish = execute(task_graph)
    require_finished(task_graph, start)
    return Trace(task_graph, start, finish, name)


def choose(engine: str, tasks: int) -> str:
    """The engine that "auto" means for this number of tasks; any other name is returned.

    Raises InputError for an engine that is unknown or not installed.
    """
    if engine not in ("auto", *ENGINES):
        raise InputError(f'engine: must be auto or one of {", ".join(ENGINES)}, got "{engine}"')
    has_numba = find_spec("numba") is not None
    if engine == "compiled" and not has_numba:
        raise InputError(f"engine: compiled needs numba: {install_line('fast')}")
    if engine == "auto":
        return "compiled" if has_numba and tasks >= WORTH_COMPILING else "simpy"
    return engine


def require_finished(task_graph: TaskGraph, start: Ints) -> None:
    """Raise DeadlockError naming every task without a start (-1) and the tasks it waits for."""
    stuck = (start < 0).nonzero()[0].tolist()
    if not stuck:
        return
    tasks, resources = task_graph.tasks, task_graph.resources
    # The stuck head of each fixed queue; other policies never block on a task that is not ready.
    heads = [next((t for t in queue.sequence if start[t] < 0), -1) for queue in resources]
    lines = []
    for task in stuck:
        before = [p for p in task_graph.predecessors[task].tolist() if start[p] < 0]
        reasons = [f'"{tasks.name[p]}"' for p in before[:2]]
        reasons += [f"{len(before) - 2} more"] * (len(before) > 2)
        reasons += [
            f'"{tasks.name[heads[row]]}", next in "{resources[row].name}"'
            for row in tasks.resources[task].tolist()
            if heads[row] not in (-1, task)
        ]
        waits = " and for ".join(reasons) or "its other queues"
        lines.append(f'"{tasks.name[task]}" waits for {waits}')
    raise DeadlockError(lines)
