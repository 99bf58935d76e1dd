"""From a strategy to a task graph, the intermediate form of all simulations: passes that split,
place, transfer, buffer and order, called by ``_lowered``.

``execution`` lowers every scenario that it simulates, the oracle the strategies that its kernels do
not cover. A new pass is called in ``_lowered``; ``can_be_retimed`` (build.py), ``replicas_of``
(symmetry/quotient.py) and the oracle's ``_runs_once`` each list the strategies that they know, and
must refuse or know the new one. An order of queues is a case of ``apply_order``; with hosts it is
also a case in ``turns.py`` and in the checker (``execution.check.hosts``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from ..costs import CostModel
from ..ground.errors import InputError, refuse
from ..ground.units import picoseconds
from ..nouns.cluster import Cluster
from ..nouns.graph import Graph
from ..nouns.memory import MemoryModel
from ..nouns.semantics import traits_of
from ..nouns.strategy import Loader, Order, Strategy, Sync, resolve_placement
from ..nouns.taskgraph import Ints, Resource, Rows, TaskGraph
from .build import build, can_be_retimed, hangs_on_op_times, retimed, retimes_to_itself
from .partition import Partitioned, expanded, partition, short_form, without_short, written_out
from .prepare import Prepared, device_problems
from .sharing import refuse_slowing, slows, with_sharing
from .splitting import rows_of, split, split_gated
from .stages import accumulated, once_a_step, staged
from .steps import LoweredStep, following, iterated, last_ops, most_rounds
from .sync import credited, synchronised
from .transfer import capacities
from .turns import in_turns

# The pass that makes a step's batch on a host: inputs move to the loader's device, and transfers
# bring them from there to their readers.


def loaded(
    prepared: Prepared, placement: Sequence[int], loader: Loader, gates: Collection[int] = ()
) -> tuple[Prepared, list[int]]:
    """The prepared graph and its placement (device by op) with the inputs on the loader's device.

    ``gates`` are ops that only wait for a synchronised weight; they stay with their workers. The
    loader's time is divided among the inputs in proportion to their bytes. Raises InputError where
    the loader's device does not exist, or the graph has no input.
    """
    refuse(device_problems(prepared.cluster, "loader.device", loader.device))
    device = prepared.cluster.index[loader.device]
    sizes = {
        i: sum(tensor.bytes for tensor in op.outputs)
        for i, op in enumerate(prepared.graph.ops)
        if traits_of(op.kind).leaf == "input" and i not in gates
    }
    if not sizes:
        raise InputError("loader: the graph has no op of kind input, whose batch it could make")
    duration, whole = prepared.duration.copy(), max(sum(sizes.values()), 1)
    moved = list(placement)
    for i, size in sizes.items():
        moved[i] = device
        duration[i, device] = picoseconds(Fraction(loader.time) * size / whole)
    return prepared.lasting(duration), moved


def sent_once(
    across: Sequence[tuple[int, int]], graph: Graph, placement: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """Reduce the edges to the next step (op, op that waits for it) where inputs are loaded: the
    next batch waits only for the first op on each device that reads this batch, since later ops
    read the copy there. Edges from tasks that are not ops (averages of parameters) are kept.
    """
    first: dict[tuple[int, int], int] = {}
    for op, waits in across:
        if op < len(placement):
            reader = placement[op], waits
            first[reader] = min(op, first.get(reader, op))

    def holds(op: int, waits: int) -> bool:
        is_input = waits < len(graph.ops) and traits_of(graph.ops[waits].kind).leaf == "input"
        return not is_input or op >= len(placement) or first[placement[op], waits] == op

    return tuple(edge for edge in across if holds(*edge))


# The pass that gives queues their policy: priorities, or the fixed sequences that a strategy
# names.

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
            # Only for compute queues: transfers have no place in a program.
            held = _tasks_by_resource(task_graph)[: len(task_graph.devices)]
            return _with_sequences(task_graph, dict(enumerate(map(tuple, held))))
        case "fixed":
            return _with_sequences(task_graph, _named_sequences(task_graph, order.sequence))
        case other:
            raise InputError(f'order: no queues are known for the policy "{other}"')


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
    held = task_graph.tasks.resources
    return Rows.of_pairs(held.ids, held.owners(), len(task_graph.resources)).lists()


def _named_sequences(task_graph: TaskGraph, sequence: Mapping[str, Sequence[str]]) -> Sequences:
    """The row of each named queue, with the rows of its tasks in the given sequence."""
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
    refuse(problems)
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
    """Raise InputError unless all queues of each task have a sequence, or none: a task that waits
    in queues of different policies would have no consistent order.
    """
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
    refuse(problems.values())


__all__ = [
    "LoweredStep",
    "Partitioned",
    "Prepared",
    "can_be_retimed",
    "capacities",
    "credited",
    "expanded",
    "hangs_on_op_times",
    "iterated",
    "lower",
    "lower_prepared",
    "lower_step",
    "most_rounds",
    "partition",
    "retimed",
    "retimes_to_itself",
    "rows_of",
    "short_form",
    "slows",
    "split",
    "without_short",
    "written_out",
]


def lower(
    graph: Graph,
    cluster: Cluster,
    costs: CostModel,
    strategy: Strategy,
    memory: MemoryModel = MemoryModel(),
) -> TaskGraph:
    """The task graph of a strategy. Raises InputError, MissingCostError."""
    return lower_prepared(Prepared(graph, cluster, costs, memory), strategy)


def lower_prepared(prepared: Prepared, strategy: Strategy) -> TaskGraph:
    """The task graph of a strategy, for a graph prepared once and lowered many times.

    Under a synchronisation policy this is one step. Its credit depends on the schedule, so there is
    no task graph of a policy with a credit. Raises InputError, MissingCostError.
    """
    if isinstance(strategy.sync, Sync) and strategy.sync.credit is not None:
        raise InputError(
            "sync.credit: what it lets go hangs on the schedule itself; simulate the scenario"
        )
    return iterated(lower_step(prepared, strategy), 1)


def lower_step(
    prepared: Prepared,
    strategy: Strategy,
    repeated: bool = False,
    durations: Callable[[Prepared], Ints] | None = None,
) -> LoweredStep:
    """Lower a strategy to one step; with the edges to the next step where steps are ``repeated``,
    and always under a synchronisation policy.

    ``durations`` makes other durations for the graph after splitting (``Prepared.lasting``).
    Raises InputError, MissingCostError.
    """
    step = _lowered(prepared, strategy, repeated, durations)
    if isinstance(strategy.sync, Sync) and strategy.sync.credit is not None:
        refuse_slowing(prepared.cluster, "sync.credit")
    return replace(step, task_graph=with_sharing(step.task_graph, prepared.fabric))


def _stream_problems(prepared: Prepared, strategy: Strategy) -> Iterator[str]:
    """Problems of settings that would run the ops of a stream in another order than the program."""
    if strategy.collectives.groups and isinstance(strategy.sync, Sync):
        yield "strategy.collectives.groups: a policy of synchronisation needs all ranks of a group"
    if not prepared.graph.streamed:
        return
    op = prepared.graph.ops[prepared.graph.streamed[0]]
    by_priority = strategy.order.policy == "priority" and prepared.cluster.hosted
    reasons = {
        "pipeline": ("a schedule", strategy.pipeline is not None),
        "accumulate": ("each further microbatch", strategy.accumulate > 1),
        "sync": ("a policy of synchronisation", isinstance(strategy.sync, Sync)),
        "order": ("a host that dispatches by priority", bool(by_priority)),
    }
    for name, (who, holds) in reasons.items():
        if holds:
            yield (
                f'strategy.{name}: {who} has an order of its own, but "{op.name}" runs in the '
                f'stream "{op.stream}", in the order of the program'
            )


def _lowered(
    prepared: Prepared,
    strategy: Strategy,
    repeated: bool,
    durations: Callable[[Prepared], Ints] | None,
) -> LoweredStep:
    refuse(_stream_problems(prepared, strategy))
    if strategy.pipeline is not None:
        timed = prepared if durations is None else prepared.lasting(durations(prepared))
        return staged(timed, strategy.pipeline)
    sync, microbatches, loader = strategy.sync, strategy.accumulate, strategy.loader
    (prepared, strategy, origins), weights = split_gated(prepared, strategy)
    if durations is not None:
        prepared = prepared.lasting(durations(prepared))
    graph = prepared.graph
    placement = resolve_placement(graph, prepared.cluster, strategy.placement)
    gates = {gate for weight in weights for gate in weight.gates}
    if loader is not None:
        prepared, placement = loaded(prepared, placement, loader, gates)
    built = build(prepared, placement)
    task_graph = apply_order(built.task_graph, strategy.order, graph, built.consumers)
    policy, last = strategy.order.policy, built.ends
    task_graph, dispatches = in_turns(prepared, task_graph, placement, policy, last, origins, gates)
    if isinstance(sync, Sync):
        step = synchronised(
            prepared, task_graph, built.buffer_of, placement, sync, weights, origins
        )
    elif repeated or microbatches > 1:
        ends = last_ops(graph, task_graph, placement)
        across = following(graph, task_graph, placement, ends, origins=origins)
        across += built.streams
        step = LoweredStep(task_graph, tuple(across))
    else:
        step = LoweredStep(task_graph)
    step = replace(step, dispatches=dispatches)
    if loader is not None:
        step = replace(step, across=sent_once(step.across, graph, placement))
    if microbatches == 1:
        return step
    return accumulated(step, len(graph.ops), once_a_step(graph, origins), microbatches)
