"""From a strategy to the one intermediate form: passes that split, place, transfer, buffer and
order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..costs import CostModel
from ..ground.errors import InputError
from ..nouns.cluster import Cluster
from ..nouns.graph import Graph
from ..nouns.memory import MemoryModel
from ..nouns.strategy import Strategy, Sync, resolve_placement
from ..nouns.taskgraph import Ints, TaskGraph
from .build import build
from .loader import loaded, sent_once
from .machine import capacities
from .microbatches import accumulated, once_a_step
from .order import apply_order
from .partition import Partitioned, expanded, partition, short_form, without_short, written_out
from .prepare import Prepared
from .retimed import can_be_retimed, hangs_on_op_times, retimed, retimes_to_itself
from .sharing import refuse_slowing, slows, with_sharing
from .splitting import Split, rows_of, split, split_gated
from .stages import staged
from .steps import LoweredStep, following, iterated, last_ops, most_steps
from .sync import credited, synchronised
from .turns import in_turns

__all__ = [
    "LoweredStep",
    "Partitioned",
    "Prepared",
    "Split",
    "can_be_retimed",
    "capacities",
    "credited",
    "expanded",
    "hangs_on_op_times",
    "iterated",
    "lower",
    "lower_prepared",
    "lower_step",
    "most_steps",
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

    Of a synchronisation policy one step; its credit hangs on the schedule, so there is no task
    graph of that alone. Raises InputError, MissingCostError.
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
    """One step of a strategy, with what it releases in the next one where ``repeated`` says so, and
    under a synchronisation policy in any case.

    ``durations`` gives others for what the strategy makes of the graph (``Prepared.lasting``).
    Raises InputError, MissingCostError.
    """
    step = _lowered(prepared, strategy, repeated, durations)
    if isinstance(strategy.sync, Sync) and strategy.sync.credit is not None:
        refuse_slowing(prepared.cluster, "sync.credit")
    return replace(step, task_graph=with_sharing(step.task_graph, prepared.fabric))


def _lowered(
    prepared: Prepared,
    strategy: Strategy,
    repeated: bool,
    durations: Callable[[Prepared], Ints] | None,
) -> LoweredStep:
    if strategy.pipeline is not None:
        timed = prepared if durations is None else prepared.lasting(durations(prepared))
        return staged(timed, strategy.pipeline)
    sync, microbatches, loader = strategy.sync, strategy.accumulate, strategy.loader
    (prepared, strategy, origins), weights = split_gated(prepared, strategy)
    if durations is not None:
        prepared = prepared.lasting(durations(prepared))
    graph = prepared.graph
    placement = resolve_placement(graph, prepared.cluster, strategy.placement)
    if loader is not None:
        prepared, placement = loaded(prepared, placement, loader)
    built = build(prepared, placement)
    task_graph = apply_order(built.task_graph, strategy.order, graph, built.consumers)
    gates = {gate for weight in weights for gate in weight.gates}
    policy, last = strategy.order.policy, built.ends
    task_graph, dispatches = in_turns(prepared, task_graph, placement, policy, last, origins, gates)
    if isinstance(sync, Sync):
        step = synchronised(prepared, task_graph, built.buffer_of, placement, sync, weights)
    elif repeated or microbatches > 1:
        ends = last_ops(graph, task_graph, placement)
        step = LoweredStep(task_graph, tuple(following(graph, task_graph, placement, ends)))
    else:
        step = LoweredStep(task_graph)
    step = replace(step, dispatches=dispatches)
    if loader is not None:
        step = replace(step, across=sent_once(step.across, graph, placement))
    if microbatches == 1:
        return step
    return accumulated(step, len(graph.ops), once_a_step(graph, origins), microbatches)
