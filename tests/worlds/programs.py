"""Task graphs written by hand, with known answers: tasks with resources and predecessors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from simdev.execution.engine import simulate
from simdev.nouns.cluster import Device
from simdev.nouns.taskgraph import Buffers, Resource, Rows, TaskGraph, Tasks
from simdev.nouns.trace import Trace
from worlds.clusters import joined
from worlds.graphs import op
from worlds.scenarios import World


@dataclass(frozen=True)
class T:
    """A task: its name, its duration in ps, the queues that it holds, and its predecessors."""

    name: str
    duration: int
    on: str | Sequence[str] = ()
    after: str | Sequence[str] = ()
    lag: int = 0
    gap: int = 0
    priority: int = 0


def words(text: str | Sequence[str]) -> list[str]:
    return text.split() if isinstance(text, str) else list(text)


def program(
    tasks: Sequence[T],
    policy: str = "fifo",
    sequence: Mapping[str, str | Sequence[str]] | None = None,
) -> TaskGraph:
    """The task graph of these tasks; queues are in the order of their first mention."""
    row = {task.name: i for i, task in enumerate(tasks)}
    queues = list(dict.fromkeys(queue for task in tasks for queue in words(task.on)))
    successors: list[list[int]] = [[] for _ in tasks]
    for i, task in enumerate(tasks):
        for name in words(task.after):
            successors[row[name]].append(i)
    sequence = sequence or {}
    resources = tuple(
        Resource(queue, "fixed", tuple(row[name] for name in words(sequence[queue])))
        if queue in sequence
        else Resource(queue, policy)
        for queue in queues
    )
    count = len(tasks)
    zeros = np.zeros(count, np.int64)
    column = {
        name: np.array([getattr(task, name) for task in tasks], np.int64)
        for name in ("duration", "lag", "gap", "priority")
    }
    return TaskGraph(
        Tasks(
            tuple(task.name for task in tasks),
            ("forward",) * count,
            zeros - 1,
            zeros - 1,
            zeros,
            zeros,
            **column,
            bytes=zeros,
            flow=zeros.astype(bool),
            resources=Rows.of([queues.index(queue) for queue in words(task.on)] for task in tasks),
            links=Rows.of([] for _ in tasks),
            successors=Rows.of(successors),
        ),
        resources,
        Buffers((), zeros[:0], zeros[:0], zeros[:0], zeros[:0], Rows.of([])),
        ("gpu",),
        np.array([-1]),
    )


def starts(trace: Trace) -> dict[str, int]:
    """The start of each task by name."""
    return dict(zip(trace.task_graph.tasks.name, trace.start.tolist(), strict=True))


def play(tasks: Sequence[T], policy: str = "fifo", **sequence: object) -> Trace:
    """Simulate a hand-written program."""
    return simulate(program(tasks, policy, **sequence))  # type: ignore[arg-type]


# Small programs whose traces are worked out by hand: [start, finish) of each task.


def sequence() -> TaskGraph:
    """a [0, 2) b [2, 4) in one queue; c [4, 5) alone after b; a also releases d [5, 6) after a
    lag.
    """
    return program([T("a", 2, "q", lag=0), T("b", 2, "q"), T("c", 1, "r", "b"), T("l", 2, (),
    lag=3),
                    T("d", 1, "s", "l")])  # fmt: skip


def gapped() -> TaskGraph:
    """x [0, 2) keeps its queue busy to 4, y [4, 5), z of length zero."""
    return program([T("x", 2, "q", gap=2), T("y", 1, "q"), T("z", 0, "q"), T("free", 2)])


def pair() -> TaskGraph:
    """p [0, 2) holds both queues, u [2, 4) the first, v [2, 5) the second."""
    return program([T("p", 2, "s r"), T("u", 2, "s"), T("v", 3, "r")])


def ranked() -> TaskGraph:
    """Under priority: first [0, 1), urgent [1, 3), later [3, 5)."""
    return program([T("first", 1, "q", priority=2), T("later", 2, "q", "first", priority=9),
                    T("urgent", 2, "q", "first", priority=1)], "priority")  # fmt: skip


def sequenced() -> TaskGraph:
    """A fixed sequence b, a: b [0, 2) a [2, 4)."""
    return program([T("a", 2, "q"), T("b", 2, "q")], sequence={"q": "b a"})


def rounds() -> TaskGraph:
    """At 1, n (a successor of s) is ready a round before m (a successor of z, of length zero):
    n [1, 3) m [3, 5).
    """
    return program([T("m", 2, "q", "z"), T("s", 1), T("z", 0, (), "s"), T("n", 2, "q", "s")])


def behind() -> TaskGraph:
    """x [0, 4) on r; head waits for r and s; tail is after head on s: head [4, 5), tail [5, 6)."""
    return program([T("x", 4, "r"), T("head", 1, "r s"), T("tail", 1, "s")])


def remote(queues: str = "fair", latency: str = "0 ps") -> World:
    """a and b on g0 send 4 and 2 bytes to c on g1."""
    devices = [Device("g0", memory=10), Device("g1", memory=4)]
    cluster = joined(devices, queues, latency=latency)
    ops = [op("a", 1, size=4), op("b", 1, size=2), op("c", 1, "a", "b", workspace_bytes=1)]
    return World.of(ops, cluster, [0, 0, 1])


def remote_graph() -> TaskGraph:
    return remote().task_graph
