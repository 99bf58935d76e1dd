"""From the question to the one intermediate form: passes that split, place, transfer, buffer and
order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from ..cluster import Cluster
from ..costs import CostModel
from ..errors import InputError
from ..graph import Graph
from ..memory import MemoryModel
from ..strategy import SYNCS, Order, Origin, Strategy, Sync, resolve_placement
from ..taskgraph import Ints, TaskGraph
from .build import build
from .microbatches import accumulated, once_a_step
from .order import apply_order
from .partition import (
    Partitioned,
    expanded,
    partition,
    sharded_order,
    short_form,
    without_short,
    written_out,
)
from .prepare import Prepared
from .stages import staged
from .steps import LoweredStep, following, iterated, last_ops, most_steps
from .sync import Weight, credited, gated, synchronised

__all__ = [
    "LoweredStep",
    "Partitioned",
    "Prepared",
    "Split",
    "credited",
    "expanded",
    "iterated",
    "lower",
    "lower_prepared",
    "lower_step",
    "most_steps",
    "partition",
    "short_form",
    "split",
    "without_short",
    "written_out",
]


class Split(NamedTuple):
    """A question after its ops were split: shards, their placement as a strategy, and what each was
    made from.
    """

    prepared: Prepared
    strategy: Strategy
    origins: Mapping[str, Origin]


def split(prepared: Prepared, strategy: Strategy) -> Split:
    """The question with the ops split as the strategy says; the same one where it splits nothing.

    Raises InputError.

    The last answer is remembered: whoever lowers a strategy and then reports on it asks twice.
    """
    if isinstance(strategy.sync, Sync):
        return _split_gated(prepared, strategy, strategy.sync)[0]
    if not strategy.splits:
        return Split(prepared.running(strategy.collectives), strategy, {})
    known = prepared.last_split.get("split")
    if known is not None and known[0] is strategy:
        return known[1]  # type: ignore[no-any-return]
    found, sharded = _shards(prepared, strategy)
    order = sharded_order(strategy.order, prepared.graph, found)
    answer = Split(
        sharded, Strategy(found.placement, order, collectives=strategy.collectives), found.origins
    )
    prepared.last_split["split"] = strategy, answer
    return answer


def _shards(prepared: Prepared, strategy: Strategy) -> tuple[Partitioned, Prepared]:
    """The shards of a strategy, alone and on this cluster; cut once for clusters that differ in
    their links only.

    Neither links nor the order of queues say anything of how ops are split.
    """
    asked = replace(strategy, order=Order()), prepared.cluster.devices
    known = prepared.shards.get("last")
    if known is None or known[0] != asked:
        found = partition(prepared.graph, prepared.cluster, strategy, prepared.costs)
        sharded = prepared.of(found.graph, strategy.collectives)
        known = prepared.shards["last"] = asked, found, sharded
    return known[1], known[2].on(prepared.cluster, prepared.fabric)


def _split_gated(
    prepared: Prepared, strategy: Strategy, sync: Sync
) -> tuple[Split, tuple[Weight, ...]]:
    """The question with its synchronisations taken out, and these: the policy says what happens in
    their place.
    """
    known = prepared.last_split.get("gated")
    if known is not None and known[0] is strategy:
        return known[1]  # type: ignore[no-any-return]
    own, placed, origins = split(prepared, replace(strategy, sync=SYNCS[0]))
    found = gated(own.graph, own.cluster, placed, origins, sync)
    opened = own.of(found.graph, strategy.collectives)
    answer = Split(opened, found.strategy, found.origins), found.weights
    prepared.last_split["gated"] = strategy, answer
    return answer


def lower(
    graph: Graph,
    cluster: Cluster,
    costs: CostModel,
    strategy: Strategy,
    memory: MemoryModel = MemoryModel(),
) -> TaskGraph:
    """The TaskGraph of a strategy. Raises InputError, MissingCostError."""
    return lower_prepared(Prepared(graph, cluster, costs, memory), strategy)


def lower_prepared(prepared: Prepared, strategy: Strategy) -> TaskGraph:
    """The same for a question prepared once and asked again.

    Of a synchronisation policy one step; its credit hangs on the schedule, so there is no task
    graph of that alone.
    """
    if isinstance(strategy.sync, Sync) and strategy.sync.credit is not None:
        raise InputError(
            "sync.credit: what it lets go hangs on the schedule itself; simulate the scenario"
        )
    return lower_step(prepared, strategy).task_graph


def lower_step(
    prepared: Prepared,
    strategy: Strategy,
    repeated: bool = False,
    durations: Callable[[Prepared], Ints] | None = None,
) -> LoweredStep:
    """One step of a strategy, with what it releases in the next one where that is asked
    (``repeated``).

    It is told under a synchronisation policy in any case. ``durations`` gives others for what the
    strategy makes of the question (``Prepared.lasting``). Raises InputError, MissingCostError.
    """
    if strategy.pipeline is not None:
        timed = prepared if durations is None else prepared.lasting(durations(prepared))
        return staged(timed, strategy.pipeline)
    sync, microbatches = strategy.sync, strategy.accumulate
    weights: tuple[Weight, ...] = ()
    if isinstance(sync, Sync):
        (prepared, strategy, origins), weights = _split_gated(prepared, strategy, sync)
    else:
        prepared, strategy, origins = split(prepared, strategy)
    if durations is not None:
        prepared = prepared.lasting(durations(prepared))
    placement = resolve_placement(prepared.graph, prepared.cluster, strategy.placement)
    built = build(prepared, placement)
    task_graph = apply_order(built.task_graph, strategy.order, prepared.graph, built.consumers)
    if isinstance(sync, Sync):
        step = synchronised(prepared, task_graph, built.buffer_of, placement, sync, weights)
    elif repeated or microbatches > 1:
        ends = last_ops(prepared.graph, task_graph, placement)
        across = following(prepared.graph, task_graph, placement, ends)
        step = LoweredStep(task_graph, tuple(across))
    else:
        return LoweredStep(task_graph)
    if microbatches == 1:
        return step
    once = once_a_step(prepared.graph, origins)
    return accumulated(step, len(prepared.graph.ops), once, microbatches)
