"""Fixed sequences for the queues of a task graph that cannot deadlock, and their starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simdev.nouns.taskgraph import TaskGraph


def line_up(task_graph: TaskGraph, keys: Sequence[int]) -> list[int]:
    """A topological order of the tasks; among the tasks that could come next, the one with the
    smallest key does.
    """
    missing = task_graph.predecessor_count.tolist()
    ready = [task for task, count in enumerate(missing) if not count]
    order = []
    while ready:
        task = min(ready, key=lambda one: (keys[one], one))
        ready.remove(task)
        order.append(task)
        for successor in task_graph.tasks.successors[task].tolist():
            missing[successor] -= 1
            ready += [successor] * (not missing[successor])
    return order


def in_line(task_graph: TaskGraph, keys: Sequence[int]) -> list[list[int]]:
    """The tasks of each resource, in the order of one topological order of all tasks, so that the
    sequences cannot deadlock.
    """
    held = task_graph.tasks.resources.lists()
    line = line_up(task_graph, keys)
    return [
        [task for task in line if resource in held[task]]
        for resource in range(len(task_graph.resources))
    ]


def fixed(task_graph: TaskGraph, keys: Sequence[int]) -> TaskGraph:
    """The task graph with a fixed sequence in every queue."""
    sequences = map(tuple, in_line(task_graph, keys))
    pairs = zip(task_graph.resources, sequences, strict=True)
    return replace(
        task_graph, resources=tuple(replace(r, policy="fixed", sequence=s) for r, s in pairs)
    )


def longest_paths(task_graph: TaskGraph) -> list[int]:
    """The starts as longest paths in the disjunctive graph, in which each queue's sequence adds
    edges of length duration + gap from a task to the next.
    """
    tasks = task_graph.tasks
    edges = [
        (task, after, tasks.duration[task] + tasks.lag[task])
        for task, later in enumerate(tasks.successors.lists())
        for after in later
    ]
    for queue in task_graph.resources:
        pairs = zip(queue.sequence, queue.sequence[1:], strict=False)
        edges += [(task, after, tasks.duration[task] + tasks.gap[task]) for task, after in pairs]
    start, changed = [0] * len(tasks), True
    while changed:
        changed = False
        for task, after, length in edges:
            if start[task] + length > start[after]:
                start[after], changed = int(start[task] + length), True
    return start
