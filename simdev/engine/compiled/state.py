"""What a compiled execution reads (Program) and changes (State): columns only, so that kernels can
take them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...taskgraph import Ints, TaskGraph
from ..fair import RATE_UNIT

FIFO, PRIORITY, FIXED = 0, 1, 2
POLICY_CODES = {"fifo": FIFO, "priority": PRIORITY, "fixed": FIXED}
# Cells of State.cell.
DUE, ARRIVED, TOUCHED, ZERO, NUMBER, ACTIVE, SINCE, CHANGED, FLOWS_END = range(9)
NEVER = 2**62
Floats = NDArray[np.float64]
Flags = NDArray[np.uint8]


class Program(NamedTuple):
    """The columns of a TaskGraph that an execution reads."""

    tasks: int
    duration: Ints
    lag: Ints
    gap: Ints
    priority: Ints
    flow: Flags
    bytes: Ints
    held_ptr: Ints
    held: Ints
    successor_ptr: Ints
    successor: Ints
    link_ptr: Ints
    link: Ints
    capacity: Floats
    policy: Ints
    queue_ptr: Ints  # where the waiting tasks of each resource are kept, or its sequence
    queue: Ints


class State(NamedTuple):
    """What changes while it runs; ``cell`` holds the scalars."""

    cell: Ints
    start: Ints
    finish: Ints
    missing: Ints
    ready: Flags
    idle: Flags
    due_time: Ints
    due_code: Ints
    arrived: Ints
    touched: Ints
    zero: Ints
    number: Ints
    head: Ints
    tail: Ints
    active: Ints
    remaining: Floats
    rate: Floats
    end: Ints
    left: Floats
    waiting: Ints
    used: Ints


def program_of(task_graph: TaskGraph) -> Program:
    """The columns, with the storage of each queue."""
    tasks, resources = task_graph.tasks, task_graph.resources
    policy = np.array([POLICY_CODES[resource.policy] for resource in resources], np.int64)
    sizes = np.bincount(tasks.resources.ids, minlength=len(resources)).astype(np.int64)
    for row, resource in enumerate(resources):
        if resource.policy == "fixed":
            sizes[row] = len(resource.sequence)
    queue_ptr = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))
    queue = np.zeros(int(queue_ptr[-1]), np.int64)
    for row, resource in enumerate(resources):
        if resource.policy == "fixed":
            queue[queue_ptr[row] : queue_ptr[row + 1]] = resource.sequence
    return Program(
        len(tasks),
        tasks.duration,
        tasks.lag,
        tasks.gap,
        tasks.priority,
        tasks.flow.view(np.uint8),
        tasks.bytes,
        tasks.resources.ptr,
        tasks.resources.ids,
        tasks.successors.ptr,
        tasks.successors.ids,
        tasks.links.ptr,
        tasks.links.ids,
        task_graph.bandwidth / RATE_UNIT,
        policy,
        queue_ptr,
        queue,
    )


def state_for(program: Program, missing: Ints) -> State:
    """A state in which nothing has happened yet."""
    tasks, queues, links = program.tasks, len(program.policy), len(program.capacity)
    flows = tasks if program.flow.any() else 0
    cell = np.zeros(9, np.int64)
    cell[FLOWS_END] = NEVER
    return State(
        cell,
        np.full(tasks, -1, np.int64),
        np.full(tasks, -1, np.int64),
        missing.copy(),
        np.zeros(tasks, np.uint8),
        np.ones(queues, np.uint8),
        np.empty(3 * tasks + 1, np.int64),
        np.empty(3 * tasks + 1, np.int64),
        np.empty(tasks, np.int64),
        np.empty(2 * len(program.held) + 1, np.int64),
        np.empty(tasks, np.int64),
        np.empty(tasks, np.int64),
        np.zeros(queues, np.int64),
        np.zeros(queues, np.int64),
        np.empty(flows, np.int64),
        np.zeros(flows, np.float64),
        np.zeros(flows, np.float64),
        np.zeros(flows, np.int64),
        np.zeros(links, np.float64),
        np.zeros(links, np.int64),
        np.zeros(links, np.int64),
    )
