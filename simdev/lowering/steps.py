"""Steps that follow one another: the edges from a step to the next, and the task graph of several
steps.

``following`` has the rule for steps and microbatches (rule 10 of the execution contract), and makes
these edges for every strategy over a graph of ops. ``iterated`` repeats a step;
``execution.period`` calls it with more steps until they repeat. Policies add edges from their
averages (sync/__init__.py), and loaders drop some edges (``sent_once``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..ground.errors import InputError
from ..ground.frozen import FrozenDict
from ..nouns.graph import Graph
from ..nouns.strategy.placement import Origin
from ..nouns.structure import readers_of, updated
from ..nouns.taskgraph import MAX_TASKS, Ints, TaskGraph
from .collective import is_collective
from .copies import Copies, copied, in_order
from .hosts import Dispatches, dispatched


@dataclass(frozen=True, slots=True)
class Push:
    """A message that counts against its worker's credit: its first task, its bytes, and the task
    that arrives last.

    ``rank`` is its priority, which rises by ``later`` from step to step.
    """

    first: int
    size: int
    last: int
    rank: int
    later: int = 0


@dataclass(frozen=True, eq=False)
class LoweredStep:
    """The task graph of one step, and its edges to the next step.

    ``across`` are pairs (task, task of the next step that waits for it). ``later`` is the rise of
    each task's priority from step to step (None: no rise), so that tasks of an earlier step can go
    first. ``pushes`` are the messages that count against a credit, where there is one.
    ``synchronised`` is the number of gradients that a policy synchronises (None: no policy).
    A ``round`` has several steps, of which only the last has the last ``once_a_round`` tasks.
    ``microbatch`` is the task graph of one microbatch with all tasks that run once a step, where a
    step has several microbatches. ``stages`` is the stage of each op of the graph in a pipeline
    (else empty). ``dispatches`` are those of the step's hosts, which ``iterated`` adds to the task
    graph.
    """

    task_graph: TaskGraph
    across: tuple[tuple[int, int], ...] = ()
    later: Ints | None = None
    pushes: tuple[Push, ...] = ()
    synchronised: int | None = None
    microbatch: TaskGraph | None = None
    stages: tuple[int, ...] = ()
    dispatches: Dispatches | None = None
    round: int = 1
    once_a_round: int = 0


def most_rounds(step: LoweredStep) -> int:
    """The most rounds that fit in MAX_TASKS tasks."""
    return MAX_TASKS // max(len(step.task_graph.tasks) * step.round, 1)


def iterated(step: LoweredStep, rounds: int) -> TaskGraph:
    """The task graph of ``rounds`` rounds, one after another, followed by the dispatches of all
    hosts. A round has ``step.round`` steps.

    Task r of step k is row k * len(step) + r where all steps have the same tasks (else see
    ``TaskGraph.step_begins``) and is named ``name~k`` from the second step on; ``op`` stays the row
    in the first step. Raises InputError for more than 10 million tasks.
    """
    graph, count = step.task_graph, rounds * step.round
    if count == 1:
        return dispatched(graph, step.dispatches)
    if rounds > most_rounds(step):
        raise InputError(f"{count} steps lower to more than {MAX_TASKS} tasks")
    # A step shares no task with the next one.
    local = len(graph.tasks) - (step.once_a_round if step.round > 1 else 0)
    again = np.arange(len(graph.tasks)) < local
    copies = Copies(again, ~again, count, "~", step.round)
    sequences = in_order(graph, copies, ~again)
    edges = copies.joins(step.across)
    steps = copied(graph, copies, edges, sequences, later=step.later, steps=True)
    return dispatched(steps, step.dispatches)


def last_ops(graph: Graph, task_graph: TaskGraph, placement: Sequence[int]) -> dict[int, list[int]]:
    """The last forward and backward ops of each device: those for which no other op of the device
    waits.

    Collectives do not count: a device computes on while it takes part in one.
    """
    count = len(graph.ops)
    computes = [op.phase != "update" and not is_collective(op) for op in graph.ops]
    ends: dict[int, list[int]] = {}
    successors = task_graph.tasks.successors
    for i, device in enumerate(placement):
        if computes[i]:
            ops = (int(j) for j in successors[i] if j < count)
            if not any(computes[j] and placement[j] == device for j in ops):
                ends.setdefault(device, []).append(i)
    return ends


def updates_of_leaves(graph: Graph, origins: Mapping[str, Origin]) -> dict[int, list[int]]:
    """For each parameter that updates write, the updates that its next use waits for.

    A part of a split parameter (``origins``) that no update reads is a copy, whose update runs on
    another device. It waits for the updates of all parts that overlap with it.
    """
    updates = defaultdict[int, list[int]](list)
    written = defaultdict[str, list[tuple[Origin, int]]](list)
    for update, leaves in updated(graph).items():
        for leaf in leaves:
            updates[leaf].append(update)
            if origin := origins.get(graph.ops[leaf].name):
                written[origin.op].append((origin, update))
    for i, op in enumerate(graph.ops):
        part = origins.get(op.name)
        if part is not None and i not in updates and not graph.reads[i]:
            parts = (update for origin, update in written[part.op] if _overlap(part, origin))
            if overlapping := list(dict.fromkeys(parts)):
                updates[i] = overlapping
    return dict(updates)


def _overlap(a: Origin, b: Origin) -> bool:
    """Whether two parts of a tensor have a value in common."""
    sides = zip(a.regions[0][1], b.regions[0][1], strict=True)
    return all(max(p[0], q[0]) < min(p[1], q[1]) for p, q in sides)


def following(
    graph: Graph,
    task_graph: TaskGraph,
    placement: Sequence[int],
    ends: Mapping[int, list[int]],
    gates: Collection[int] = (),
    origins: Mapping[str, Origin] = FrozenDict(),
) -> list[tuple[int, int]]:
    """Pairs (op, op of the next step that waits for it), as positions in the graph.

    A parameter waits for its updates, on any device (``updates_of_leaves``; ``origins`` has the
    parts of split ops). Sending new weights back from another device takes no time. All other ops
    without predecessors in their step (the batch) wait for the last forward and backward ops of
    their device (``ends``), as in an in-order stream, and for updates there that name no parameter.
    On a device with no other ops they wait for their readers: a loader keeps one batch. ``gates``
    wait for tasks that are not ops, and are left out.
    """
    unnamed = dict[int, list[int]]()
    written = updates_of_leaves(graph, origins)
    edges = [(update, leaf) for leaf, updates in written.items() for update in updates]
    for update, leaves in updated(graph).items():
        if not leaves:
            unnamed.setdefault(placement[update], []).append(update)
    waiting = {*gates, *written}
    count = task_graph.predecessor_count
    roots = {i for i in range(len(graph.ops)) if not count[i]} - waiting
    readers = readers_of(graph)
    for i in roots:
        device = placement[i]
        before = [*ends.get(device, ()), *unnamed.get(device, ())]
        before += readers[i] if roots.issuperset(before) else []
        edges += [(op, i) for op in before if op != i]
    # Sorted, because ids must not depend on the order of the set ``roots``.
    return sorted(edges)
