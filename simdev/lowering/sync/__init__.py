"""The pass that lays a synchronisation policy over the task graph of a step: parcels, messages,
sums.

One mechanism (slice function, priority key, credit, server order, sums as a resource); docs/sync.md
tells the policies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from ...cluster import Cluster
from ...errors import InputError
from ...graph import Graph
from ...strategy import Sync
from ...structure import order_of, updated
from ...taskgraph import PERSISTENT, SYNC, Ints, TaskGraph
from ...units import transmission_ps
from ..following import following, last_ops
from ..iterations import Step
from ..prepare import Prepared
from .credit import credited
from .draft import Draft
from .exchange import FIRST, Exchange
from .layers import Layer, layer_graph
from .parcels import Parcel, parcels, require_few, rounds
from .tictac import timing_aware_order, timing_independent_order
from .weights import Gated, Weight, gated, server_devices

__all__ = [
    "FIRST",
    "Gated",
    "Layer",
    "Parcel",
    "Weight",
    "credited",
    "gated",
    "layer_graph",
    "parcels",
    "synchronised",
    "timing_aware_order",
    "timing_independent_order",
]


def synchronised(
    prepared: Prepared,
    task_graph: TaskGraph,
    placement: Sequence[int],
    sync: Sync,
    weights: Sequence[Weight],
) -> Step:
    """The step with its weights synchronised, ready to be followed by others.

    ``prepared`` holds the gated graph, ``task_graph`` what it was lowered to. Raises InputError.
    """
    graph, cluster = prepared.graph, prepared.cluster
    _require_possible(prepared, placement, weights)
    base = _free_leaves(_by_priority(task_graph), graph, weights)
    ends = last_ops(graph, base, placement)
    gates = {gate for weight in weights for gate in weight.gates}
    draft = Draft(base, prepared.memory)
    made: dict[int, list[int]] = {}
    if not sync.overlap:
        made = {
            worker: [_barrier(draft, cluster, worker, ends)] for w in weights for worker in w.ranks
        }
    ranks = priorities(prepared, weights, sync, placement)
    exchange = Exchange(draft, prepared, sync, weights, made, _buffers(graph, base))
    require_few(weights, sync, prepared.fabric.holds_several)
    for together in rounds(parcels(weights, sync, server_devices(sync, cluster), ranks)):
        exchange.add(together)
    exchange.finish()
    whole = draft.finished()
    rank = whole.tasks.priority[len(base.tasks) :]
    # What an earlier step still has to send goes before what a later one sends: a worker that is
    # ahead waits.
    rise = np.where(rank >= FIRST, len(weights), 0)
    later = np.concatenate((np.zeros(len(base.tasks), np.int64), rise))
    pushes = tuple(exchange.pushed) if sync.credit else ()
    return Step(
        whole, tuple(following(graph, base, placement, ends, gates)), later, pushes, len(weights)
    )


def _require_possible(
    prepared: Prepared, placement: Sequence[int], weights: Sequence[Weight]
) -> None:
    """Every worker has its gradient, and nothing is asked that a policy does not know."""
    names = [device.name for device in prepared.cluster.devices]
    problems = []
    if prepared.collectives.slowdown != 1:
        problems.append(
            "collectives.slowdown: a synchronisation policy does not know it yet; leave it out"
        )
    for weight in weights:
        for j, ((op, output), rank) in enumerate(zip(weight.gradients, weight.ranks, strict=True)):
            home = prepared.home(op, output, placement)
            if home != rank:
                told = (
                    f'"{prepared.graph.ops[op].name}:{output}" lies on {names[home]}, rank '
                    f"{j} is {names[rank]}"
                )
                problems.append(f'"{weight.name}": inputs[{j}]: {told}')
    if problems:
        raise InputError(problems)


def priorities(
    prepared: Prepared, weights: Sequence[Weight], sync: Sync, placement: Sequence[int]
) -> list[int]:
    """The place of each weight in the order in which parcels are to go."""
    if sync.priority in ("tic", "tac") and weights:
        waits, compute = _waits(prepared, weights, placement)
        if sync.priority == "tic":
            found = timing_independent_order(waits)
        else:
            found = timing_aware_order(
                waits, compute, np.array([_receive_ps(prepared, w) for w in weights], np.int64)
            )
        # Those of equal rank go in the order of the forward.
        order = sorted(range(len(weights)), key=lambda row: (found[row], weights[row].order))
        return [place for _, place in sorted((row, place) for place, row in enumerate(order))]
    return [weight.order for weight in weights]


def _waits(
    prepared: Prepared, weights: Sequence[Weight], placement: Sequence[int]
) -> tuple[NDArray[np.bool_], Ints]:
    """By op of the first worker and weight whether the op waits for the weight; and the ps of these
    ops.
    """
    graph, worker = prepared.graph, weights[0].ranks[0]
    leaves: dict[int, list[int]] = {}
    for update, parameters in updated(graph).items():
        for producer, _ in graph.reads[update]:
            for row, weight in enumerate(weights):
                if producer in weight.gates:
                    for leaf in parameters:
                        leaves.setdefault(leaf, []).append(row)
    waits = np.zeros((len(graph.ops), len(weights)), np.bool_)
    for i in order_of(graph):
        for producer, _ in graph.reads[i]:
            waits[i] |= waits[producer]
        waits[i, leaves.get(i, [])] = True
    rows = [
        i
        for i, op in enumerate(graph.ops)
        if op.phase != "update" and placement[i] == worker and op.inputs
    ]
    return waits[rows], prepared.duration[rows, worker]


def _receive_ps(prepared: Prepared, weight: Weight) -> int:
    """How long a worker receives the whole weight, over the route between the first two workers."""
    if len(weight.ranks) < 2:
        return weight.size
    pieces = prepared.segments(weight.ranks[1], weight.ranks[0])
    return sum(
        transmission_ps(weight.size, Fraction(piece.route.bandwidth)) + piece.held_ps
        for piece in pieces
    )


def _by_priority(task_graph: TaskGraph) -> TaskGraph:
    """Queues of transfers serve by priority; compute queues keep their policy.

    Raises InputError for fixed ones.
    """
    own = set(task_graph.devices)
    problems = [
        (
            f'order.sequence["{resource.name}"]: a synchronisation policy orders what is '
            "sent; leave the sequence out"
        )
        for resource in task_graph.resources
        if resource.policy == "fixed" and resource.name not in own
    ]
    if problems:
        raise InputError(problems)
    return replace(
        task_graph,
        resources=tuple(
            resource if resource.name in own else replace(resource, policy="priority")
            for resource in task_graph.resources
        ),
    )


def _free_leaves(task_graph: TaskGraph, graph: Graph, weights: Sequence[Weight]) -> TaskGraph:
    """Gates, and parameters that wait for their updates, hold no queue: they are no work."""
    tasks = task_graph.tasks
    gates = {gate for weight in weights for gate in weight.gates}
    leaves = {leaf for parameters in updated(graph).values() for leaf in parameters}
    free = [row for row in gates | leaves if not tasks.duration[row]]
    keep = np.ones(len(tasks), np.bool_)
    keep[free] = False
    held = tasks.resources
    entries = keep[held.owners()]
    counts = np.where(keep, np.diff(held.ptr), 0)
    ptr = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    kinds = tuple(SYNC if row in gates else kind for row, kind in enumerate(tasks.kind))
    rows = replace(held, ptr=ptr, ids=held.ids[entries])
    gone = set(free)
    resources = tuple(
        replace(one, sequence=tuple(row for row in one.sequence if row not in gone))
        if one.sequence
        else one
        for one in task_graph.resources
    )
    return replace(
        task_graph, tasks=replace(tasks, resources=rows, kind=kinds), resources=resources
    )


def _barrier(draft: Draft, cluster: Cluster, worker: int, ends: Mapping[int, list[int]]) -> int:
    """The point at which a worker has nothing left to compute but updates."""
    row = draft.task(f"backward of {cluster.devices[worker].name}", SYNC, (worker, worker))
    draft.edges += [(one, row) for one in ends.get(worker, ())]
    return row


def _buffers(graph: Graph, task_graph: TaskGraph) -> dict[tuple[int, int], int]:
    """The buffer of each output, by (op, output); a view's is that of its base."""
    buffers = task_graph.buffers
    named = {
        buffers.name[row]: row
        for row in range(len(buffers) - 1, -1, -1)
        if buffers.filler[row] != PERSISTENT
    }
    found = {}
    for i, op in enumerate(graph.ops):
        for output, tensor in enumerate(op.outputs):
            row = named.get(f"{op.name}:{output if tensor.view_of is None else tensor.view_of}")
            if row is not None and buffers.filler[row] == i:
                found[i, output] = row
    return found
