"""Random task graphs with many ties, where schedulers go wrong, and the trace on which both engines
agree. Times are ps, sizes bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from simdev.execution.check import check
from simdev.execution.engine import simulate
from simdev.nouns.taskgraph import (
    BUFFER_KINDS,
    PERSISTENT,
    Buffers,
    Resource,
    Rows,
    TaskGraph,
    Tasks,
)
from simdev.nouns.trace import Trace
from worlds.clusters import UNIT
from worlds.sequences import fixed
from worlds.tape import Tape, drawn

POLICIES = ("fifo", "priority", "fixed")
COLUMNS = [
    "op",
    "output",
    "source",
    "destination",
    "duration",
    "lag",
    "gap",
    "priority",
    "bytes",
    "flow",
]


def _edges(tape: Tape, count: int) -> list[list[int]]:
    """The successors of each task: random ones, a chain, a star, or none."""
    shape = tape.pick("any", "any", "any", "chain", "star", "none")
    if shape == "chain":
        return [[task + 1] if task + 1 < count else [] for task in range(count)]
    if shape == "star":
        return [list(range(1, count)) if task == 0 else [] for task in range(count)]
    found: list[set[int]] = [set() for _ in range(count)]
    for _ in range(tape.number(2 * count) if count > 1 and shape == "any" else 0):
        a, b = tape.number(count), tape.number(count)
        if a != b:
            found[min(a, b)].add(max(a, b))
    return [sorted(one) for one in found]


def _buffers(tape: Tape, successors: Sequence[Sequence[int]]) -> Buffers:
    """A buffer for about every second task, read by successors, and a persistent one."""
    rows: list[tuple[int, int, tuple[int, ...]]] = [(0, PERSISTENT, ())]
    for task, later in enumerate(successors):
        if tape.number(2):
            rows.append((tape.number(2), task, tuple(later[: tape.pick(0, 1, 9)])))
    sizes = tape.column(len(rows), 0, 1, 2)
    device, filler = (np.array([row[i] for row in rows], np.int64) for i in (0, 1))
    kind = np.full(len(rows), BUFFER_KINDS.index("activations"))
    readers = Rows.of(readers for _, _, readers in rows)
    return Buffers(tuple(f"b{i}" for i in range(len(rows))), device, sizes, kind, filler, readers)


def _tasks(
    tape: Tape, count: int, queues: int, flows: bool, successors: Sequence[Sequence[int]]
) -> Tasks:
    flow = tape.column(count, 0, 1).astype(bool) if flows else np.zeros(count, bool)
    zeros = np.zeros(count, np.int64)
    return Tasks(
        name=tuple(f"t{i}" for i in range(count)),
        kind=("compute",) * count,
        op=zeros - 1,
        output=zeros - 1,
        source=zeros,
        destination=zeros,
        duration=tape.column(count, 0, 0, 1, 2, 3),
        lag=tape.column(count, 0, 0, 1, 2),
        gap=tape.column(count, 0, 0, 1, 2) * ~flow,
        priority=tape.column(count, 0, 1, 2),
        bytes=tape.column(count, 0, 1, 2, 3, 5) * flow,
        flow=flow,
        resources=Rows.of([] if is_flow else tape.some(2, queues) for is_flow in flow),
        links=Rows.of(
            sorted({tape.number(3), tape.number(3)}) if is_flow else [] for is_flow in flow
        ),
        successors=Rows.of(successors),
    )


def make_task_graph(tape: Tape, policies: Sequence[str], flows: bool) -> TaskGraph:
    """A random task graph; see ``task_graphs``."""
    count, queues, policy = tape.number(13), 1 + tape.number(3), tape.pick(*policies)
    successors = _edges(tape, count)
    found = TaskGraph(
        _tasks(tape, count, queues, flows, successors),
        tuple(
            Resource(f"q{i}", "priority" if policy == "priority" else "fifo") for i in range(queues)
        ),
        _buffers(tape, successors),
        ("d0", "d1"),
        tape.column(2, -1, -1, 0, 2, 4),
        ("l0", "l1", "l2"),
        tape.column(3, 1, 2, 3) * float(UNIT),
    )
    return fixed(found, tape.column(count, 0, 1, 2, 3).tolist()) if policy == "fixed" else found


def repeated(task_graph: TaskGraph, copies: int) -> TaskGraph:
    """Disjoint copies of a task graph, without buffers."""
    tasks, count = task_graph.tasks, len(task_graph.tasks)

    def rows(one: Rows, shift: int) -> Rows:
        return Rows.of([i + c * shift for i in held] for c in range(copies) for held in one.lists())

    columns = {name: np.tile(getattr(tasks, name), copies) for name in COLUMNS}
    return replace(
        task_graph,
        tasks=Tasks(
            name=tuple(f"{name}/{c}" for c in range(copies) for name in tasks.name),
            kind=tasks.kind * copies,
            **columns,
            resources=rows(tasks.resources, len(task_graph.resources)),
            links=rows(tasks.links, len(task_graph.links)),
            successors=rows(tasks.successors, count),
        ),
        resources=tuple(
            replace(queue, name=f"{queue.name}/{c}")
            for c in range(copies)
            for queue in task_graph.resources
        ),
        buffers=Buffers((), *np.zeros((4, 0), np.int64), Rows.of([])),
        links=tuple(f"{link}/{c}" for c in range(copies) for link in task_graph.links),
        bandwidth=np.tile(task_graph.bandwidth, copies),
    )


def task_graphs(
    policies: Sequence[str] = POLICIES, flows: bool = False
) -> st.SearchStrategy[TaskGraph]:
    """Random task graphs of up to 12 tasks of 0 to 3 ps, on up to 3 queues of one policy; with
    ``flows`` half of the tasks are flows.
    """
    return drawn(make_task_graph, policies, flows)


def judged(task_graph: TaskGraph) -> Trace:
    """The trace of a task graph; asserts that both engines agree and the checker accepts it."""
    trace, other = (simulate(task_graph, engine) for engine in ("simpy", "compiled"))
    assert np.array_equal(trace.start, other.start)
    assert np.array_equal(trace.finish, other.finish)
    assert check(trace.task_graph, trace) == ()
    return trace
