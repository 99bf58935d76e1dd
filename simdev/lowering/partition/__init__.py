"""The pass that splits ops: a graph in, a graph of shards out, every one of them placed.

Each op becomes its shards, each reader gets exactly the regions that it needs, partial results are
added up where somebody needs the values. What follows (transfers, memory, order, engines, checker)
sees an ordinary graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ...cluster import Cluster
from ...costs import CostModel
from ...errors import InputError
from ...graph import Graph
from ...strategy import Order, Origin, Strategy
from .emit import emitted, ops_of
from .layout import Draft
from .plan import Question
from .sharding import Sharding
from .short import expanded
from .written import written_out

__all__ = ["Partitioned", "expanded", "partition", "sharded_order", "written_out"]


@dataclass(frozen=True, slots=True)
class Partitioned:
    """The graph of shards, the device of each by name, and what each was made from."""

    graph: Graph
    placement: Mapping[str, str]
    origins: Mapping[str, Origin]


def partition(
    graph: Graph, cluster: Cluster, strategy: Strategy, costs: CostModel = CostModel()
) -> Partitioned:
    """The graph of shards of a strategy.

    Op "conv1" becomes "conv1#0", "conv1#1", .. (one part keeps the name); what is added up,
    synchronised or stored in between becomes "conv1#sum0", "conv1#sync0", "conv1#stored0". Raises
    InputError with every problem at once.
    """
    strategy = expanded(graph, cluster, strategy, costs)
    _require_tensors(graph, strategy)
    sharding = Sharding(Question(graph, cluster, strategy))
    drafts = emitted(sharding, costs)
    names = [device.name for device in cluster.devices]
    try:
        found = Graph(graph.name, tuple(ops_of(drafts)))
    except InputError as error:
        raise InputError(
            [f"partition: the graph of shards: {problem}" for problem in error.problems]
        ) from None
    placement = {draft.name: names[draft.device] for draft in drafts}
    return Partitioned(found, placement, {draft.name: _origin(graph, draft) for draft in drafts})


def _origin(graph: Graph, draft: Draft) -> Origin:
    return Origin(
        graph.ops[draft.op].name,
        draft.role,
        draft.number,
        tuple(draft.regions),
        tuple(draft.addend),
        draft.box,
    )


def _require_tensors(graph: Graph, strategy: Strategy) -> None:
    problems = []
    for name in strategy.tensors:
        try:
            producer, _ = graph.resolve(name)
        except InputError as error:
            problems += [f'tensors["{name}"]: {problem}' for problem in error.problems]
            continue
        if not graph.ops[producer].inputs and graph.ops[producer].name not in strategy.partition:
            problems.append(
                f'tensors["{name}"]: op "{graph.ops[producer].name}" reads nothing and '
                "is stored where it is read; "
                f"configure it under partition instead"
            )
    if problems:
        raise InputError(problems)


def sharded_order(order: Order, graph: Graph, found: Partitioned) -> Order:
    """The order with the priority of an op given to its shards; what was added takes the smallest
    of its readers.
    """
    if order.policy != "priority":
        return order
    given = {name: order.priority.get(origin.op, 0) for name, origin in found.origins.items()}
    readers: dict[str, list[str]] = {}
    for op, reads in zip(found.graph.ops, found.graph.reads, strict=True):
        for producer, _ in reads:
            readers.setdefault(found.graph.ops[producer].name, []).append(op.name)
    for op in reversed(found.graph.ops):
        if found.origins[op.name].role in ("sum", "sync", "stored"):
            given[op.name] = min(
                (given[name] for name in readers.get(op.name, ())), default=given[op.name]
            )
    own = {name: value for name, value in order.priority.items() if name not in graph.index}
    return replace(order, priority={name: value for name, value in given.items() if value} | own)
