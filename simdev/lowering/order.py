"""The pass that gives queues their policy: priorities, or the fixed sequences that a strategy
names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..ground.errors import InputError
from ..nouns.graph import Graph
from ..nouns.strategy import Order
from ..nouns.taskgraph import Resource, TaskGraph

Sequences = Mapping[int, tuple[int, ...]]


def apply_order(
    task_graph: TaskGraph, order: Order, graph: Graph, consumers: Mapping[int, tuple[int, ...]]
) -> TaskGraph:
    """The task graph with the policies of ``order``; ``consumers`` are the ops that each transfer
    serves.

    Raises InputError with every problem at once.
    """
    match order.policy:
        case "fifo":
            return task_graph
        case "priority":
            return _with_priorities(task_graph, order.priority, graph, consumers)
        case "program":
            # Compute queues alone: what is sent stands in no program.
            held = _tasks_by_resource(task_graph)[: len(task_graph.devices)]
            return _with_sequences(task_graph, dict(enumerate(map(tuple, held))))
        case _:
            return _with_sequences(task_graph, _named_sequences(task_graph, order.sequence))


def _with_priorities(
    task_graph: TaskGraph,
    priority: Mapping[str, int],
    graph: Graph,
    consumers: Mapping[int, tuple[int, ...]],
) -> TaskGraph:
    unknown = [name for name in priority if name not in graph.index]
    if unknown:
        raise InputError(f'order.priority["{name}"]: no op of this name' for name in unknown)
    column = np.zeros(len(task_graph.tasks), np.int64)
    for name, value in priority.items():
        column[graph.index[name]] = value
    # A transfer is as urgent as the most urgent op that waits for it.
    for task, readers in consumers.items():
        column[task] = column[list(readers)].min()
    resources = tuple(replace(resource, policy="priority") for resource in task_graph.resources)
    tasks = replace(task_graph.tasks, priority=column)
    return replace(task_graph, tasks=tasks, resources=resources)


def _tasks_by_resource(task_graph: TaskGraph) -> list[list[int]]:
    tasks: list[list[int]] = [[] for _ in task_graph.resources]
    for task, held in enumerate(task_graph.tasks.resources.lists()):
        for resource in held:
            tasks[resource].append(task)
    return tasks


def _named_sequences(task_graph: TaskGraph, sequence: Mapping[str, Sequence[str]]) -> Sequences:
    """Rows of the resources named, each with the rows of its tasks."""
    rows = {resource.name: row for row, resource in enumerate(task_graph.resources)}
    queues = Counter(resource.name for resource in task_graph.resources)
    held, names = _tasks_by_resource(task_graph), task_graph.tasks.name
    problems: list[str] = []
    sequences: dict[int, tuple[int, ...]] = {}
    for queue, entries in sequence.items():
        where = f'order.sequence["{queue}"]'
        if queue not in rows:
            listed = ", ".join(list(rows)[:12])
            problems.append(f"{where}: no such queue here; there are {listed}")
            continue
        tasks = {names[task]: task for task in held[rows[queue]]}
        alike = f"{queues[queue]} queues" if queues[queue] > 1 else "several of its transfers"
        if queues[queue] > 1 or len(tasks) < len(held[rows[queue]]):
            problems.append(f"{where}: {alike} have the same name; rename an op or a device")
            continue
        problems += _entry_problems(where, entries, tasks)
        sequences[rows[queue]] = tuple(tasks.get(entry, -1) for entry in entries)
    if problems:
        raise InputError(problems)
    return sequences


def _entry_problems(where: str, entries: Sequence[str], tasks: Mapping[str, int]) -> Iterator[str]:
    seen = set[str]()
    for i, entry in enumerate(entries):
        if entry not in tasks:
            yield f'{where}[{i}]: "{entry}" does not run in this queue'
        elif entry in seen:
            yield f'{where}[{i}]: "{entry}" stands there twice'
        seen.add(entry)
    absent = [name for name in tasks if name not in seen]
    if absent:
        more = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
        listed = ", ".join(f'"{name}"' for name in absent[:3])
        yield f"{where}: leaves out {listed}{more}"


def _with_sequences(task_graph: TaskGraph, sequences: Sequences) -> TaskGraph:
    resources = tuple(
        replace(resource, policy="fixed", sequence=sequences[row]) if row in sequences else resource
        for row, resource in enumerate(task_graph.resources)
    )
    _require_one_policy(task_graph, resources)
    return replace(task_graph, resources=resources)


def _require_one_policy(task_graph: TaskGraph, resources: Sequence[Resource]) -> None:
    """All queues of one task have one policy: else no single key would order them."""
    problems: dict[tuple[str, str], str] = {}
    for task, held in enumerate(task_graph.tasks.resources.lists()):
        fixed = [resources[r].name for r in held if resources[r].policy == "fixed"]
        other = [resources[r].name for r in held if resources[r].policy != "fixed"]
        if fixed and other:
            problems.setdefault(
                (fixed[0], other[0]),
                f'order.sequence: "{task_graph.tasks.name[task]}" stands in "{fixed[0]}", which '
                f'has a sequence, and in "{other[0]}", which has none; give both or neither',
            )
    if problems:
        raise InputError(problems.values())
