"""A strategy's split of a graph, with synchronisations taken out under a policy; the last results
are remembered.

``lower_step`` needs both; reports and the oracle need the split of the strategy that they have
lowered. ``partition`` splits and ``sync.weights`` takes synchronisations out; this module only
calls them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple
from weakref import WeakKeyDictionary

from ..nouns.strategy import SYNCS, Order, Origin, Strategy, Sync
from ..nouns.taskgraph import Rows
from .partition import Partitioned, partition, sharded_order
from .prepare import CostedGraph, Prepared
from .sync.weights import Weight, gated


class Split(NamedTuple):
    """A graph after its ops were split: the shards, their placement as a strategy, and the origin
    of each shard by name.
    """

    prepared: Prepared
    strategy: Strategy
    origins: Mapping[str, Origin]


Shards = tuple[Partitioned, Prepared]


# Only the last results: lowering a strategy and then reporting on it needs them twice. Shards are
# kept by graph and costs, for links and the order of queues do not change how ops are split.
_LAST: WeakKeyDictionary[Prepared, tuple[Strategy, Split, tuple[Weight, ...]]] = WeakKeyDictionary()
_LAST_SHARDS: WeakKeyDictionary[CostedGraph, tuple[object, Shards]] = WeakKeyDictionary()


def split(prepared: Prepared, strategy: Strategy) -> Split:
    """The graph with its ops split by the strategy; unchanged where the strategy splits nothing.

    Raises InputError.
    """
    return split_gated(prepared, strategy)[0]


def split_gated(prepared: Prepared, strategy: Strategy) -> tuple[Split, tuple[Weight, ...]]:
    """The split graph; under a policy of synchronisation without its synchronisations, which are
    returned as weights: the policy replaces them. Raises InputError.
    """
    policy = isinstance(strategy.sync, Sync)
    if not strategy.splits and not policy:
        return Split(prepared.running(strategy.collectives), strategy, {}), ()
    last = _LAST.get(prepared)
    if last is None or last[0] is not strategy:
        last = _LAST[prepared] = strategy, *_split(prepared, strategy)
    return last[1:]


def rows_of(prepared: Prepared, strategy: Strategy) -> Rows:
    """For each op of the graph, the tasks of a step in which it first runs; for strategies that
    split no op.

    Ops are the first tasks of a step. The tasks of an op that a policy of synchronisation takes out
    are its gates.
    """
    (there, _, _), weights = split_gated(prepared, strategy)
    places = {name: [row] for name, row in there.graph.index.items()}
    places |= {weight.name: list(weight.gates) for weight in weights}
    return Rows.of(places[op.name] for op in prepared.graph.ops)


def _split(prepared: Prepared, strategy: Strategy) -> tuple[Split, tuple[Weight, ...]]:
    if isinstance(strategy.sync, Sync):
        unsynchronised = replace(strategy, sync=SYNCS[0])
        sharded, placed, origins = split_gated(prepared, unsynchronised)[0]
        graph, placed, origins, weights = gated(
            sharded.graph, sharded.cluster, placed, origins, strategy.sync
        )
        return Split(sharded.of(graph, strategy.collectives), placed, origins), weights
    partitioned, shards = _shards(prepared, strategy)
    order = sharded_order(strategy.order, prepared.graph, partitioned)
    placed = Strategy(partitioned.placement, order, collectives=strategy.collectives)
    return Split(shards.on(prepared.cluster), placed, partitioned.origins), ()


def _shards(prepared: Prepared, strategy: Strategy) -> Shards:
    key = replace(strategy, order=Order()), prepared.cluster.devices
    last = _LAST_SHARDS.get(prepared.costed)
    if last is None or last[0] != key:
        nouns = prepared.graph, prepared.cluster, strategy, prepared.costs, prepared.parts
        partitioned = partition(*nouns)
        shards = prepared.of(partitioned.graph, strategy.collectives)
        last = _LAST_SHARDS[prepared.costed] = key, (partitioned, shards)
    return last[1]
