"""The question of a few replicas whose answer is that of all.

Why it is exact. Let every replica r run the image T_r of one set of tasks, and let all share the
collectives S. The image keeps durations, gaps, edges within a replica, edges to and from S, and for
tasks that stand in one queue the order of their ids; no edge and no queue joins two replicas; what
queues of S hold is the same for all that stand for one another. Then by induction over the rounds
of the execution contract the state of r is the image of that of any other: what finishes in a round
finishes in all; what becomes ready does so in the same round, and gets its ready numbers, by id, in
the same order within each queue; so the same tasks start. Memory follows from the spans. So a step
in which only some replicas run, and collectives that last as long as those of all, shows every
device: ids of what is left out are missing, but the order of those that stay is the same.

Devices that differ (kind, gap, host, memory) run at other times, yet meet the others only in the
collectives: one of each sort is simulated. The links between them may be as uneven as they like,
for only the collectives cross them, and these are costed on the whole cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np

from ...ground.errors import InputError
from ...nouns.cluster import Cluster
from ...nouns.graph import Graph
from ...nouns.strategy import Origin, Strategy
from ..collective import is_collective, rings
from ..partition import expanded
from ..partition.problem import SplitProblem
from ..partition.sharding import sharding_of
from ..prepare import CostedGraph, Prepared
from ..splitting import split
from .groups import GroupCommunicators, SharedFabric
from .reduced import BrokenSymmetryError, Reduction
from .replicas import (
    Replicas,
    reduced_cluster,
    reduced_strategy,
    refusal,
    replicas_of,
    representatives,
)
from .symmetry import Expanded, Symmetry

WORTH_REDUCING = 17
"""Fewer replicas are simulated one by one: that is quick, and charts show each of them."""


@dataclass(frozen=True, slots=True)
class Quotient:
    """The question of the replicas that stand for all: lower and simulate it as any other."""

    prepared: Prepared
    strategy: Strategy
    symmetry: Symmetry


def quotient_of(
    prepared: Prepared, strategy: Strategy, fewest: int = WORTH_REDUCING
) -> Quotient | Expanded | None:
    """The question of a few replicas that has the answer of all; why there is none; None where
    nothing is worth it (under ``fewest`` replicas). Raises InputError.
    """
    if not strategy.splits or len(prepared.cluster.devices) < fewest:
        return None
    written = expanded(prepared.graph, prepared.cluster, strategy, prepared.costs)
    first = next(iter(written.partition.values()), None)
    # Looked at by the first: a search asks this of every strategy, most of which cut ops unlike.
    if first is None or max(first.split.values(), default=1) < fewest:
        return None
    why = refusal(prepared, written)
    replicas = why or replicas_of(prepared, written)
    if not _is_replicated(replicas):
        return Expanded(str(replicas))
    try:
        return _quotient(prepared, replicas)
    except BrokenSymmetryError as broken:
        return Expanded(str(broken))


def _is_replicated(replicas: Replicas | str) -> TypeGuard[Replicas]:
    return isinstance(replicas, Replicas)


def _quotient(prepared: Prepared, replicas: Replicas) -> Quotient:
    cluster, strategy = prepared.cluster, replicas.strategy
    chosen, stands = representatives(prepared, replicas)
    of_replicas = set(replicas.devices)
    names = tuple(cluster.devices[d].name for d in chosen if d in of_replicas)
    if 2 * len(names) > len(replicas.devices):
        raise BrokenSymmetryError("most devices differ")
    small = reduced_cluster(cluster, chosen)
    reduction = _reduction(prepared, replicas, small, names)
    fabric = SharedFabric(small, prepared.fabric)
    whole = prepared.communicators.choosing(strategy.collectives)
    group = GroupCommunicators(small, whole, replicas.devices, fabric)
    graph = reduction.reduced()
    costed = CostedGraph(graph, prepared.costs, prepared.costed.updating)
    nouns = graph, small, prepared.costs, prepared.memory, strategy.collectives
    # Parts are called as among those of all replicas: names stand in traces and reports. Copies
    # are counted in the order of the cluster, shards in that of the strategy: where it is one.
    kept, ordered = set(chosen), list(replicas.devices) == sorted(replicas.devices)
    parts = [at for at, device in enumerate(replicas.devices) if ordered and device in kept]
    reduced = Prepared(*nouns, costed=costed, communicators=group, parts=parts)
    cut = reduced_strategy(replicas, names)
    sharded, placed, origins = split(reduced, cut)
    _require_replicas(sharded.graph, placed, origins, reduction)
    # Costed once before the queues have their numbers: which there are follows from all of them.
    rings(sharded.graph, sharded.costed.collectives, group)
    fabric.settle()
    place = {device: at for at, device in enumerate(sorted(chosen))}
    return Quotient(
        reduced,
        cut,
        Symmetry(
            tuple(device.name for device in cluster.devices),
            np.array([place[chosen[at]] for at in stands], np.int64),
            tuple(queue.name for queue in prepared.fabric.queues),
            fabric.classes,
            len(replicas.devices),
        ),
    )


def _reduction(
    prepared: Prepared, replicas: Replicas, cluster: Cluster, names: tuple[str, ...]
) -> Reduction:
    """How ops are cut, seen on as few devices as cut the samples evenly."""
    for sample in range(2, len(names) + 1):
        cut = reduced_strategy(replicas, names[:sample])
        with suppress(InputError):
            sharding = sharding_of(SplitProblem(prepared.graph, cluster, cut))
            places = tuple(cluster.index[name] for name in names[:sample])
            counts = len(replicas.devices), len(names)
            return Reduction(sharding, places, *counts, prepared.costs)
    raise BrokenSymmetryError("the samples cannot be halved or cut in three")


def _require_replicas(
    graph: Graph, placed: Strategy, origins: Mapping[str, Origin], reduction: Reduction
) -> None:
    """Replicas run the same ops, those of the whole graph, and share nothing but collectives of all
    of them. Raises BrokenSymmetryError.
    """
    index = reduction.graph.index
    for op, reads in zip(graph.ops, graph.reads, strict=True):
        origin = origins[op.name]
        if is_collective(op):
            if len(op.attrs["ranks"]) != reduction.kept:
                raise BrokenSymmetryError(f'"{origin.op}" is added up by some replicas alone')
            continue
        if origin.role in ("shard", "copy") and not origin.number:
            reduction.require_as_whole(index[origin.op], op)
        there = placed.placement[op.name]
        for producer, output in reads:
            other = graph.ops[producer]
            if is_collective(other):
                if output < 0:
                    raise BrokenSymmetryError(f'"{op.name}" waits for a collective')
            elif placed.placement[other.name] != there:
                raise BrokenSymmetryError(f'"{other.name}" goes from one replica to another')
