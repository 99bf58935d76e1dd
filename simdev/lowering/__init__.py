"""From the question to the one intermediate form: passes that split, place, transfer, buffer and order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ..cluster import Cluster
from ..graph import Graph
from ..memory import MemoryModel
from ..profile import CostModel
from ..strategy import Origin, Strategy, resolve_placement
from ..taskgraph import TaskGraph
from .build import build
from .order import apply_order
from .partition import Partitioned, partition, sharded_order
from .partition.short import short_form
from .prepare import Prepared

__all__ = ["Partitioned", "Prepared", "Split", "lower", "lower_prepared", "partition", "short_form", "split"]


class Split(NamedTuple):
    """A question after its ops were split: shards, their placement as a strategy, and what each was made from."""

    prepared: Prepared
    strategy: Strategy
    origins: Mapping[str, Origin]


def split(prepared: Prepared, strategy: Strategy) -> Split:
    """The question with the ops split as the strategy says; the same one where it splits nothing. Raises InputError.

    The last answer is remembered: whoever lowers a strategy and then reports on it asks twice.
    """
    if not strategy.splits:
        return Split(prepared, strategy, {})
    known = prepared.last_split.get("split")
    if known is not None and known[0] is strategy:
        return known[1]  # type: ignore[no-any-return]
    found = partition(prepared.graph, prepared.cluster, strategy, prepared.costs)
    sharded = Prepared(found.graph, prepared.cluster, prepared.costs, prepared.memory)
    order = sharded_order(strategy.order, prepared.graph, found)
    answer = Split(sharded, Strategy(found.placement, order), found.origins)
    prepared.last_split["split"] = strategy, answer
    return answer


def lower(
    graph: Graph, cluster: Cluster, costs: CostModel, strategy: Strategy, memory: MemoryModel = MemoryModel()
) -> TaskGraph:
    """The TaskGraph of a strategy. Raises InputError, MissingCostError."""
    return lower_prepared(Prepared(graph, cluster, costs, memory), strategy)


def lower_prepared(prepared: Prepared, strategy: Strategy) -> TaskGraph:
    """The same for a question prepared once and asked again."""
    prepared, strategy, _ = split(prepared, strategy)
    placement = resolve_placement(prepared.graph, prepared.cluster, strategy.placement)
    task_graph, consumers = build(prepared, placement)
    return apply_order(task_graph, strategy.order, prepared.graph, consumers)
