"""From the question to the one intermediate form: passes that place, transfer, buffer and order."""

from __future__ import annotations

from ..cluster import Cluster
from ..graph import Graph
from ..profile import CostModel
from ..strategy import Strategy, resolve_placement
from ..taskgraph import TaskGraph
from .build import build
from .order import apply_order
from .prepare import Prepared

__all__ = ["Prepared", "lower", "lower_prepared"]


def lower(graph: Graph, cluster: Cluster, costs: CostModel, strategy: Strategy) -> TaskGraph:
    """The TaskGraph of a strategy. Raises InputError, MissingCostError."""
    return lower_prepared(Prepared(graph, cluster, costs), strategy)


def lower_prepared(prepared: Prepared, strategy: Strategy) -> TaskGraph:
    """The same for a question prepared once and asked again."""
    placement = resolve_placement(prepared.graph, prepared.cluster, strategy.placement)
    task_graph, consumers = build(prepared, placement)
    return apply_order(task_graph, strategy.order, prepared.graph, consumers)
