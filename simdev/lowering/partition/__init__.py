"""The pass that splits ops: it turns a graph into a graph of shards, all of them placed.

Each op becomes its shards, each reader gets exactly the regions that it needs, and partial results
are added up where their values are needed. Later passes, engines and the checker see an ordinary
graph. ``lowering.splitting`` calls it. ``oracle.splits`` runs the rules of sharding.py and sums.py
op by op; its kernels write the inputs of readers, and must give the same integers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...costs import CostModel
from ...ground.errors import InputError, collecting, prefixed, refuse
from ...nouns.cluster import Cluster
from ...nouns.graph import Graph
from ...nouns.strategy import Order, Origin, Strategy
from .emit import emitted, ops_of
from .problem import SplitProblem
from .sharding import sharding_of
from .short import expanded, short_form, without_short, written_out

__all__ = [
    "Partitioned",
    "expanded",
    "partition",
    "sharded_order",
    "short_form",
    "without_short",
    "written_out",
]


@dataclass(frozen=True, slots=True)
class Partitioned:
    """The graph of shards, and the device and the origin of each shard by name."""

    graph: Graph
    placement: Mapping[str, str]
    origins: Mapping[str, Origin]


def partition(
    graph: Graph,
    cluster: Cluster,
    strategy: Strategy,
    costs: CostModel = CostModel(),
    numbers: Sequence[int] = (),
) -> Partitioned:
    """The graph of shards of a strategy.

    Op "conv1" becomes "conv1#0", "conv1#1", .. (a single part keeps the name; ``numbers`` are the
    numbers in names where only some parts are simulated). Ops that add up, synchronise or store its
    outputs are "conv1#sum0", "conv1#sync0", "conv1#stored0". Raises InputError with every problem
    at once.
    """
    strategy = expanded(graph, cluster, strategy, costs)
    _require_tensors(graph, strategy)
    drafts = emitted(sharding_of(SplitProblem(graph, cluster, strategy, numbers)), costs)
    with prefixed("partition: the graph of shards: "):
        sharded = Graph(graph.name, tuple(ops_of(drafts)))
    placement = {draft.name: cluster.devices[draft.device].name for draft in drafts}
    origins = {
        draft.name: Origin(
            graph.ops[draft.op].name,
            draft.role,
            draft.number,
            tuple(draft.regions),
            tuple(draft.addend),
            draft.box,
        )
        for draft in drafts
    }
    return Partitioned(sharded, placement, origins)


def _require_tensors(graph: Graph, strategy: Strategy) -> None:
    problems: list[str] = []
    for name in strategy.tensors:
        with collecting(problems, f'tensors["{name}"]: '):
            op = graph.ops[graph.resolve(name)[0]]
            if not op.inputs and op.name not in strategy.partition:
                raise InputError(
                    f'op "{op.name}" reads nothing and is stored where it is read; configure it '
                    "under partition instead"
                )
    refuse(problems)


def sharded_order(order: Order, graph: Graph, sharded: Partitioned) -> Order:
    """The order with the priority of each op given to its shards; added ops take the smallest
    priority of their readers.
    """
    if order.policy != "priority":
        return order
    origins, ops = sharded.origins, sharded.graph.ops
    priority = {name: order.priority.get(origin.op, 0) for name, origin in origins.items()}
    readers: dict[str, list[str]] = {}
    for op, reads in zip(ops, sharded.graph.reads, strict=True):
        for producer, _ in reads:
            readers.setdefault(ops[producer].name, []).append(op.name)
    # Backwards, so that the readers of a sum of sums have their priority already.
    for op in reversed(ops):
        if origins[op.name].adds_up and op.name in readers:
            priority[op.name] = min(priority[name] for name in readers[op.name])
    # Unknown names stay, so that the pass that orders queues reports them.
    unknown = {name: value for name, value in order.priority.items() if name not in graph.index}
    return replace(
        order, priority={name: value for name, value in priority.items() if value} | unknown
    )
