"""The pass that gives queues their policy: priorities, or the fixed sequences that a strategy
names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ..errors import InputError
from ..graph import Graph
from ..strategy import Order
from ..taskgraph import Resource, TaskGraph


def apply_order(
    task_graph: TaskGraph, order: Order, graph: Graph, consumers: Mapping[int, tuple[int, ...]]
) -> TaskGraph:
    """The task graph with the policies of ``order``.

    Raises InputError with every problem at once.
    """
    match order.policy:
        case "fifo":
            return task_graph
        case "priority":
            return _with_priorities(task_graph, order.priority, graph, consumers)
        case "program":
            held = _tasks_by_resource(task_graph)
            compute = range(len(task_graph.devices))
            return _with_sequences(task_graph, {r: tuple(held[r]) for r in compute})
        case _:
            return _with_sequences(task_graph, _named_sequences(task_graph, order.sequence))


def _with_priorities(
    task_graph: TaskGraph,
    priority: Mapping[str, int],
    graph: Graph,
    consumers: Mapping[int, tuple[int, ...]],
) -> TaskGraph:
    unknown = [
        f'order.priority["{name}"]: no op of this name'
        for name in priority
        if name not in graph.index
    ]
    if unknown:
        raise InputError(unknown)
    column = np.zeros(len(task_graph.tasks), np.int64)
    for name, value in priority.items():
        column[graph.index[name]] = value
    for task, readers in consumers.items():
        column[task] = min(column[reader] for reader in readers)
    resources = tuple(replace(resource, policy="priority") for resource in task_graph.resources)
    return replace(
        task_graph, tasks=replace(task_graph.tasks, priority=column), resources=resources
    )


def _tasks_by_resource(task_graph: TaskGraph) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in task_graph.resources]
    for task, held in enumerate(task_graph.tasks.resources.lists()):
        for resource in held:
            found[resource].append(task)
    return found


def _named_sequences(
    task_graph: TaskGraph, sequence: Mapping[str, tuple[str, ...]]
) -> dict[int, tuple[int, ...]]:
    """Rows of the resources named, each with the rows of its tasks."""
    rows = {resource.name: row for row, resource in enumerate(task_graph.resources)}
    queues = Counter(resource.name for resource in task_graph.resources)
    held, names = _tasks_by_resource(task_graph), task_graph.tasks.name
    problems: list[str] = []
    found: dict[int, tuple[int, ...]] = {}
    for queue, entries in sequence.items():
        if queue not in rows:
            problems.append(
                f'order.sequence["{queue}"]: no such queue here; there are '
                f"{', '.join(list(rows)[:12])}"
            )
            continue
        tasks = {names[task]: task for task in held[rows[queue]]}
        if queues[queue] > 1 or len(tasks) < len(held[rows[queue]]):
            what = f"{queues[queue]} queues" if queues[queue] > 1 else "several of its transfers"
            problems.append(
                f'order.sequence["{queue}"]: {what} have the same name; rename an op or a device'
            )
            continue
        seen: set[str] = set()
        for i, entry in enumerate(entries):
            if entry not in tasks:
                problems.append(
                    f'order.sequence["{queue}"][{i}]: "{entry}" does not run in this queue'
                )
            elif entry in seen:
                problems.append(f'order.sequence["{queue}"][{i}]: "{entry}" stands there twice')
            seen.add(entry)
        absent = [name for name in tasks if name not in seen]
        if absent:
            more = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
            listed = ", ".join(f'"{name}"' for name in absent[:3])
            problems.append(f'order.sequence["{queue}"]: leaves out {listed}{more}')
        found[rows[queue]] = tuple(tasks.get(entry, -1) for entry in entries)
    if problems:
        raise InputError(problems)
    return found


def _with_sequences(task_graph: TaskGraph, sequences: Mapping[int, tuple[int, ...]]) -> TaskGraph:
    resources = tuple(
        replace(resource, policy="fixed", sequence=sequences[row]) if row in sequences else resource
        for row, resource in enumerate(task_graph.resources)
    )
    _require_one_policy(task_graph, resources)
    return replace(task_graph, resources=resources)


def _require_one_policy(task_graph: TaskGraph, resources: tuple[Resource, ...]) -> None:
    """All queues of one task have one policy: else no single key would order them."""
    problems: dict[tuple[str, str], str] = {}
    for task, held in enumerate(task_graph.tasks.resources.lists()):
        fixed = [resources[r].name for r in held if resources[r].policy == "fixed"]
        other = [resources[r].name for r in held if resources[r].policy != "fixed"]
        if fixed and other:
            name = task_graph.tasks.name[task]
            problems.setdefault(
                (fixed[0], other[0]),
                f'order.sequence: "{name}" stands in "{fixed[0]}", which has a '
                f'sequence, and in "{other[0]}", '
                "which has none; give both or neither",
            )
    if problems:
        raise InputError(problems.values())
