"""Task graphs written by hand, for the known answers: a task a line, its resources and what it
waits for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from simdev.engine import simulate
from simdev.taskgraph import Buffers, Resource, Rows, TaskGraph, Tasks
from simdev.trace import Trace


@dataclass(frozen=True)
class T:
    """One task: its name, duration, the queues it holds and the tasks that it waits for."""

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
    """The tasks in the order of their ids; queues in the order of their first mention."""
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
    """Start of each task by name."""
    return dict(zip(trace.task_graph.tasks.name, trace.start.tolist(), strict=True))


def play(tasks: Sequence[T], policy: str = "fifo", **sequence: object) -> Trace:
    """Simulate a hand-written program."""
    return simulate(program(tasks, policy, **sequence))  # type: ignore[arg-type]
