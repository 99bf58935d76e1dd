"""The pass that runs the forward and backward of a step several times, before its updates.

The step as it stands is that of one microbatch. Its forward and backward ops, and what they send
one another, are run again for each further one; parameters and their transfers, the synchronisation
of gradients and the updates stay single. Gradients are added up in place: each is one buffer, from
the first microbatch that makes it to its last reader, and adding takes no time of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from ..ground.errors import InputError
from ..nouns.graph import Graph
from ..nouns.semantics import is_linear, traits_of
from ..nouns.strategy import Origin
from ..nouns.structure import readers_of
from ..nouns.taskgraph import MAX_TASKS, Rows, TaskGraph
from .collective import is_collective
from .copies import Bools, Copies, copied, in_order
from .steps import LoweredStep


def once_a_step(graph: Graph, origins: Mapping[str, Origin]) -> frozenset[int]:
    """The ops (positions) that run once, however many microbatches there are.

    Parameters, updates, and ops that only prepare gradients for these: collectives, what a
    partition made to add up, copy or move them (PyTorch's ``no_sync``), and sums of gradients,
    which for a weight with several readers are made in place as over microbatches. ``origins`` are
    those of ops that a partition made.
    """
    readers = readers_of(graph)
    once = {
        i
        for i, op in enumerate(graph.ops)
        if op.phase == "update" or traits_of(op.kind).leaf == "parameter"
    }
    waiting = [producer for i in once for producer, _ in graph.reads[i]]
    while waiting:
        i = waiting.pop()
        origin = origins.get(graph.ops[i].name)
        made = is_collective(graph.ops[i]) or (origin is not None and origin.role != "shard")
        if i not in once and (made or _adds_up(graph, i)) and once.issuperset(readers[i]):
            once.add(i)
            waiting += [producer for producer, _ in graph.reads[i]]
    return frozenset(once)


def _adds_up(graph: Graph, i: int) -> bool:
    """Whether an op is a sum of what several backward ops make."""
    producers = {producer for producer, _ in graph.reads[i]}
    backward = all(graph.ops[producer].phase == "backward" for producer in producers)
    return len(producers) > 1 and backward and is_linear(graph.ops[i])


def microbatches(task_graph: TaskGraph, ops: int, once: Collection[int], count: int) -> Copies:
    """Which tasks run again for each of ``count`` microbatches: the first ``ops``, which are those
    of the ops, but for ``once``.

    So is what they send, where it does not go to tasks that run once alone. Raises InputError for
    more than ten million tasks.
    """
    rows, op = len(task_graph.tasks), task_graph.tasks.op
    again = np.ones(rows, np.bool_)
    again[list(once)] = False
    again[ops:] = (op[ops:] >= 0) & again[op[ops:]]
    is_op = np.arange(rows) < ops
    before = task_graph.predecessors
    # Through nothing but what is sent: an op in between takes what it gets, and makes its own.
    again[ops:] &= (
        _reached(before, again & is_op, ~is_op) | ~_reached(before, ~again & is_op, ~is_op)
    )[ops:]
    # Single tasks go on in the last microbatch if they wait for any, else they stand in the first.
    copies = Copies(again, np.zeros(rows, np.bool_), count, "@")
    if copies.total > MAX_TASKS:
        raise InputError(f"{count} microbatches lower to more than {MAX_TASKS} tasks")
    return copies


def _reached(links: Rows, marked: Bools, through: Bools) -> Bools:
    """The marked tasks, and those that links lead to from them over tasks of ``through`` alone."""
    reached, lists = marked.copy(), links.lists()
    waiting = np.flatnonzero(marked).tolist()
    while waiting:
        for row in lists[waiting.pop()]:
            if through[row] and not reached[row]:
                reached[row] = True
                waiting.append(row)
    return reached


def accumulated(step: LoweredStep, ops: int, once: Collection[int], count: int) -> LoweredStep:
    """The step with its forward and backward run ``count`` times (``Strategy.accumulate``).

    ``ops`` is the number of ops, which are the first tasks; ``once`` are those that stay single.
    What waits for nothing in its microbatch (the batch) waits for the last ops of the microbatch
    before on its device, as it does for those of the step before (``lowering.steps.following``). A
    step that follows waits for all microbatches of what it waits for. Raises InputError.
    """
    task_graph = step.task_graph
    copies = microbatches(task_graph, ops, once, count)
    successors = task_graph.tasks.successors
    late = _reached(successors, copies.again, ~copies.again) & ~copies.again
    # What is sent at the end goes with the last microbatch: its id decides ties there.
    copies = replace(copies, late=late & (np.arange(len(late)) >= ops))
    sequences = in_order(task_graph, copies, late)
    across = tuple(
        (before, after) for first, after in step.across for before in copies.all_rows(first)
    )
    row = copies.rows(slice(None), 0).tolist()
    return replace(
        step,
        task_graph=copied(task_graph, copies, copies.joins(step.across), sequences),
        across=across,
        later=None if step.later is None else copies.tiled(step.later),
        pushes=tuple(
            replace(push, first=row[push.first], last=row[push.last]) for push in step.pushes
        ),
        microbatch=task_graph,
        dispatches=None if step.dispatches is None else step.dispatches.in_copies(copies, late),
    )
