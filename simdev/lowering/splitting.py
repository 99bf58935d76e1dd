"""A strategy's split of a graph, and its synchronisation taken out: remembered for those who ask
again.

``lower_step`` asks for both, reports and the oracle for the split of the very strategy that they
have lowered. ``partition`` splits and ``sync.weights`` takes synchronisations out; this module has
no rule of its own.
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
    """A graph after its ops were split: shards, their placement as a strategy, and what each was
    made from.
    """

    prepared: Prepared
    strategy: Strategy
    origins: Mapping[str, Origin]


Shards = tuple[Partitioned, Prepared]


# The last answers only: whoever lowers a strategy and then reports on it asks twice. Shards are
# kept by graph and costs, for neither links nor the order of queues say how ops are split.
_LAST: WeakKeyDictionary[Prepared, tuple[Strategy, Split, tuple[Weight, ...]]] = WeakKeyDictionary()
_LAST_SHARDS: WeakKeyDictionary[CostedGraph, tuple[object, Shards]] = WeakKeyDictionary()


def split(prepared: Prepared, strategy: Strategy) -> Split:
    """The graph with the ops split as the strategy says; as it is where it splits nothing.

    Raises InputError.
    """
    return split_gated(prepared, strategy)[0]


def split_gated(prepared: Prepared, strategy: Strategy) -> tuple[Split, tuple[Weight, ...]]:
    """The graph split; under a policy of synchronisation with its synchronisations taken out, and
    these: the policy says what happens in their place. Raises InputError.
    """
    policy = isinstance(strategy.sync, Sync)
    if not strategy.splits and not policy:
        return Split(prepared.running(strategy.collectives), strategy, {}), ()
    last = _LAST.get(prepared)
    if last is None or last[0] is not strategy:
        last = _LAST[prepared] = strategy, *_split(prepared, strategy)
    return last[1:]


def rows_of(prepared: Prepared, strategy: Strategy) -> Rows:
    """By op of the graph the tasks of a step in which it first runs; for a strategy that splits no
    op.

    Ops are the first tasks of a step. An op that a policy of synchronisation takes out has its
    gates as tasks.
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
