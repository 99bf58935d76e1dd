"""The pass that adds a synchronisation policy to the task graph of a step: parcels, messages, sums.

All policies are settings of one mechanism (slice function, priority key, credit, server order, sums
as a resource); docs/reference/sync.md describes them. ``lower_step`` calls ``synchronised`` for a
strategy whose ``sync`` is a ``Sync``; partition/sums.py handles a ``sync`` given as a text.
Policies are rows of ``PRESETS`` in ``nouns.strategy.sync``. Engines and checker see ordinary tasks,
apart from a credit (credit.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...ground.errors import refuse
from ...nouns.strategy import Sync
from ...nouns.strategy.placement import Origin
from ...nouns.structure import TensorOf
from ...nouns.taskgraph import SYNC, Rows, TaskGraph
from ..columns import NONE, Columns
from ..prepare import Prepared
from ..steps import LoweredStep, following, last_ops, updates_of_leaves
from .credit import credited
from .exchange import FIRST, Exchange
from .parcels import parcels, priorities, require_few, rounds
from .weights import Weight, server_devices, updates_behind

__all__ = ["FIRST", "credited", "synchronised"]


def synchronised(
    prepared: Prepared,
    task_graph: TaskGraph,
    buffer_of: Mapping[TensorOf, int],
    placement: Sequence[int],
    sync: Sync,
    weights: Sequence[Weight],
    origins: Mapping[str, Origin],
) -> LoweredStep:
    """The step with its weights synchronised, and with its edges to the next step.

    ``prepared`` has the gated graph, ``task_graph`` is the lowered graph, ``buffer_of`` has the
    buffers of its outputs, ``origins`` the origins of its parts. Raises InputError.
    """
    graph, cluster = prepared.graph, prepared.cluster
    _require_possible(prepared, placement, weights)
    gates = {gate for weight in weights for gate in weight.gates}
    leaves = updates_of_leaves(graph, origins)
    base = _free_leaves(_by_priority(task_graph), gates.union(leaves), gates)
    ends = last_ops(graph, base, placement)
    columns = Columns(prepared.memory, base.resources, base)
    updates: Mapping[int, Sequence[int]] = {}
    if sync.every is not None:
        updates = updates_behind(graph, gates)
        _add_local_gradients(columns, weights, buffer_of)
    ready = {} if sync.overlap else _barriers(columns, prepared, weights, ends, updates)
    exchange = Exchange(columns, prepared, sync, weights, ready, buffer_of, updates)
    # Checked before writing, because slices of a parameter could make millions of tasks.
    require_few(weights, sync, prepared.fabric.holds_several)
    ranks = priorities(prepared, weights, sync, placement)
    for together in rounds(parcels(weights, sync, server_devices(sync, cluster), ranks)):
        exchange.add(together)
    exchange.finish()
    whole = columns.on_base()
    # Messages of an earlier step go before those of a later one, so a worker that is ahead waits.
    added = np.arange(len(whole.tasks)) >= len(base.tasks)
    later = np.where(added & (whole.tasks.priority >= FIRST), len(weights), 0)
    pushes = tuple(exchange.pushed) if sync.credit else ()
    across = following(graph, base, placement, ends, gates, origins)
    step = LoweredStep(whole, tuple(across), later, pushes, len(weights))
    if sync.every is None:
        return step
    averages: defaultdict[int, list[int]] = defaultdict(list)
    for update, average in exchange.averaged:
        averages[update].append(average)
    # The next step waits for updates, and after the last step of a round also for their averages.
    across += [(average, after) for op, after in across for average in averages[op]]
    across, once = list(dict.fromkeys(across)), int(np.count_nonzero(added))
    return replace(step, across=tuple(across), round=sync.every, once_a_round=once)


def _add_local_gradients(
    columns: Columns, weights: Sequence[Weight], buffer_of: Mapping[TensorOf, int]
) -> None:
    """Let each gate wait for the gradient that its own worker makes."""
    for weight in weights:
        for gradient, gate in zip(weight.gradients, weight.gates, strict=True):
            columns.release(gradient[0], [gate])
            columns.read(buffer_of.get(gradient, NONE), [gate])


def _barriers(
    columns: Columns,
    prepared: Prepared,
    weights: Sequence[Weight],
    ends: Mapping[int, list[int]],
    updates: Mapping[int, Sequence[int]],
) -> dict[int, list[int]]:
    """For each worker, a task at which it has nothing left to compute but updates, or, where
    parameters are averaged, nothing at all; ``updates`` are then those behind each gate.
    """
    before = {rank: ends.get(rank, []) for weight in weights for rank in weight.ranks}
    for weight in weights if updates else ():
        for worker, gate in zip(weight.ranks, weight.gates, strict=True):
            before[worker] = [*before[worker], *updates[gate]]
    ready: dict[int, list[int]] = {}
    for worker, ops in before.items():
        name = f"{'step' if updates else 'backward'} of {prepared.cluster.devices[worker].name}"
        barrier = columns.task(name, SYNC, (worker, worker))
        columns.wait(barrier, ops)
        ready[worker] = [barrier]
    return ready


def _require_possible(
    prepared: Prepared, placement: Sequence[int], weights: Sequence[Weight]
) -> None:
    """Raise InputError where a gradient is not on its worker, or a setting goes with no policy."""
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
                problems.append(
                    f'"{weight.name}": inputs[{j}]: "{prepared.graph.ops[op].name}:{output}" lies '
                    f"on {names[home]}, rank {j} is {names[rank]}"
                )
    refuse(problems)


def _by_priority(task_graph: TaskGraph) -> TaskGraph:
    """Queues of transfers serve by priority; compute queues keep their policy.

    Raises InputError for fixed ones.
    """
    devices = set(task_graph.devices)
    resources = tuple(
        queue if queue.name in devices else replace(queue, policy="priority")
        for queue in task_graph.resources
    )
    problems = [
        f'order.sequence["{queue.name}"]: a synchronisation policy orders what is sent; leave '
        "the sequence out"
        for queue in task_graph.resources
        if queue.policy == "fixed" and queue.name not in devices
    ]
    refuse(problems)
    return replace(task_graph, resources=resources)


def _free_leaves(task_graph: TaskGraph, rows: set[int], gates: set[int]) -> TaskGraph:
    """Let gates, and parameters that wait for their updates, hold no queue: they take no time."""
    tasks = task_graph.tasks
    freed = {row for row in rows if not tasks.duration[row]}
    kinds = tuple(SYNC if row in gates else kind for row, kind in enumerate(tasks.kind))
    queues = enumerate(tasks.resources.lists())
    held = Rows.of([] if row in freed else queues_held for row, queues_held in queues)
    resources = tuple(
        replace(queue, sequence=tuple(row for row in queue.sequence if row not in freed))
        for queue in task_graph.resources
    )
    tasks = replace(tasks, resources=held, kind=kinds)
    return replace(task_graph, tasks=tasks, resources=resources)
