"""Reduction of a step with many replicas to a few of them, with an exact result for all.

Why it is exact. Let every replica r run the image T_r of one set of tasks, and let all share the
collectives S. The image keeps durations, gaps, edges within a replica, edges to and from S, and
within each queue the order of ids. No edge and no queue joins two replicas. Queues of S that
represent one another hold the same tasks. Then, by induction over the rounds of the execution
contract, the state of a replica is the image of the state of any other: a task that finishes in a
round finishes in all replicas; a task becomes ready in the same round, and gets its ready number,
by id, in the same order within each queue; so the same tasks start. Memory follows from these
times. So a step of some replicas, with collectives as long as those of all, gives the result for
every device: the ids of the others are missing, but the order of the remaining ids is the same.

Devices that differ (kind, gap, host, memory) run at other times, but meet others only in
collectives: one of each sort is simulated. The links between devices may differ in any way, for
only collectives cross them, and collectives are costed on the whole cluster.

``execution.scenario`` and the oracle call ``quotient_of`` before they lower a strategy that splits
ops. A new setting of strategies or clusters that makes replicas differ needs a row of ``reasons``
in ``replicas_of``, or must be one of the ``traits``.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ...costs import CostModel
from ...costs.collectives import CollectiveCall
from ...ground.errors import InputError
from ...nouns.cluster import Cluster
from ...nouns.fabric import Fabric, Queue
from ...nouns.graph import SIZES, Graph, Op, Tensor
from ...nouns.semantics import volume
from ...nouns.strategy import Collectives, Configuration, Origin, Strategy, Sync
from ...nouns.strategy.placement import resolve_partition
from ...nouns.taskgraph import Ints
from ..collective import Communicators, Ring, is_collective, rings
from ..partition import expanded
from ..partition.emit import Shares
from ..partition.geometry import Part, part
from ..partition.layout import inside, part_of
from ..partition.problem import Placed, SplitProblem
from ..partition.sharding import Sharding, sharding_of
from ..prepare import CostedGraph, Prepared
from ..sharing import slows
from ..splitting import split
from . import IDLE, Expanded, Symmetry

# Collectives of all replicas where only some are simulated: they last as long as those of the full
# group, and hold the representatives of the queues that the full group holds.


class SharedFabric(Fabric):
    """The queues of a cluster that collectives hold; a single queue represents all that are held by
    the same collectives.

    Such queues are interchangeable: they have the same policy, and the same tasks in the same
    order, so they are idle and busy together. No other task crosses the cluster, so there are no
    routes.
    """

    def __init__(self, cluster: Cluster, whole: Fabric) -> None:
        super().__init__(cluster)
        self.whole = whole
        self.classes: Ints = np.full(len(whole.queues), IDLE, np.int64)
        self._sets: dict[tuple[int, ...], None] = {}

    def settle(self) -> None:
        """Number the classes of queues, from all sets passed to ``held`` so far."""
        sets = list(self._sets)
        holds = np.zeros((len(self.whole.queues), len(sets)), np.bool_)
        for column, queues in enumerate(sets):
            holds[np.array(queues, np.int64) - self.whole.first_queue, column] = True
        used = np.flatnonzero(holds.any(axis=1))
        if not len(used):
            return
        _, first, number = np.unique(holds[used], axis=0, return_index=True, return_inverse=True)
        # Classes are ordered by their first queue, not by numpy's arbitrary order.
        rank = np.argsort(np.argsort(first))
        self.classes[used] = rank[number.ravel()]
        self.queues = tuple(Queue(self.whole.queues[used[i]].name, -1) for i in np.sort(first))

    @cached_property
    def queues(self) -> tuple[Queue, ...]:
        """A queue for each class; none before ``settle``."""
        return ()

    def held(self, queues: tuple[int, ...]) -> tuple[int, ...]:
        """The queues that represent the queues of the full group, as numbers of a task graph."""
        self._sets.setdefault(queues)
        rows = self.classes[np.array(queues, np.int64) - self.whole.first_queue]
        return tuple((self.first_queue + np.unique(rows)).tolist())


class GroupCommunicators(Communicators):
    """Collectives among devices that represent ``everyone`` (indices in the whole cluster)."""

    fabric: SharedFabric

    def __init__(
        self, cluster: Cluster, whole: Communicators, everyone: Sequence[int], fabric: SharedFabric
    ) -> None:
        # The base class's __init__ is not called: nothing is costed on the simulated cluster.
        self.cluster, self.choice, self.fabric = cluster, whole.choice, fabric
        self.whole, self.everyone = whole, tuple(everyone)

    def choosing(self, choice: Collectives) -> Communicators:
        """These collectives under another choice."""
        whole = self.whole.choosing(choice)
        return GroupCommunicators(self.cluster, whole, self.everyone, self.fabric)

    def costed(self, call: CollectiveCall, cost: str, simulated: tuple[int, ...] = ()) -> Ring:
        """The Ring of the full group's collective, with the simulated ranks and queues."""
        ring = self.whole.costed(replace(call, ranks=self.everyone), cost)
        held = self.fabric.held(ring.resources) if ring.resources else ()
        return replace(ring, ranks=call.ranks, resources=held)


# The graph of some replicas: every op on their samples of the whole batch.
# The sharding of the whole graph over a few devices shows how each op is cut. An even cut into all
# replicas is assumed to go along the same axes; this is checked on the first, second and last
# replica, which must read only their own parts. Regions are affine in the number of a part, so the
# condition then holds for the replicas between; and an axis whose parts read only their own part is
# followed before any other.

Fields = Mapping[str, Any]


class BrokenSymmetryError(Exception):
    """The reason why replicas do not behave equally."""


class Reduction:
    """The reduction of a graph cut over ``replicas`` to ``kept`` of them; ``sharding`` is that of
    the whole graph over the ``sample`` devices, in the order of the parts.

    ``axes`` is by op the axis that is cut, with the extent of a part (None: every replica, or only
    the first, runs the whole op). Raises BrokenSymmetryError, InputError.
    """

    def __init__(
        self,
        sharding: Sharding,
        sample: tuple[int, ...],
        replicas: int,
        kept: int,
        costs: CostModel,
    ) -> None:
        self.sharding, self.graph = sharding, sharding.graph
        self.sample, self.replicas, self.kept, self.costs = sample, replicas, kept, costs
        self.axes = [self._axis(i) for i in range(len(self.graph.ops))]
        for i, axis in enumerate(self.axes):
            if axis is not None:
                self._require_closed(i)

    def _axis(self, i: int) -> tuple[str, int] | None:
        name, parts = self.graph.ops[i].name, self.sharding.parts[i]
        boxes, devices = [dict(each.part.box) for each in parts], [each.device for each in parts]
        if not any(boxes) and devices in (list(self.sample), [self.sample[0]]):
            return None
        axes = {axis for box in boxes for axis in box}
        if devices != list(self.sample) or len(axes) != 1:
            raise BrokenSymmetryError(f'"{name}" is not cut as the samples are')
        axis = axes.pop()
        semantics = self.sharding.problem.readings[i].semantics
        assert semantics is not None
        size = next(each.size for each in semantics.axes if each.name == axis)
        extent, rest = divmod(size, self.replicas)
        each = size // len(self.sample)
        even = [{axis: (at * each, (at + 1) * each)} for at in range(len(self.sample))]
        if rest or boxes != even:
            raise BrokenSymmetryError(f'"{name}" is cut unevenly along "{axis}"')
        return axis, extent

    def part(self, i: int, number: int, count: int = 1) -> Part:
        """``count`` parts of an op as a single part, from the part ``number`` on."""
        cut, reading = self.axes[i], self.sharding.problem.readings[i]
        if cut is None:
            return part(reading, ())
        axis, extent = cut
        return part(reading, ((axis, (number * extent, (number + count) * extent)),))

    def _require_closed(self, i: int) -> None:
        """Require that a replica reads only its own part of tensors that are cut."""
        for number in dict.fromkeys((0, 1, self.replicas - 1)):
            needs = self.part(i, number).needs
            for (producer, output), region in zip(
                self.sharding.problem.read[i], needs, strict=True
            ):
                if self.axes[producer] is None or region is None:
                    continue
                made = self.part(producer, number).makes[output]
                if made is None or not inside(region, made):
                    names = self.graph.ops[i].name, self.graph.ops[producer].name
                    raise BrokenSymmetryError(f'"{names[0]}" reads "{names[1]}" of other replicas')

    def fields(self, i: int, number: int, count: int = 1) -> dict[str, Any]:
        """The fields of ``count`` parts of an op as a single op."""
        placed = Placed(self.part(i, number, count), 0)
        return Shares(self.sharding, i, self.costs).fields(placed)

    def outputs(self, i: int, count: int) -> Iterator[Tensor]:
        """The outputs of ``count`` parts as a single op, with ``count`` times the bytes of a part,
        which are rounded up.
        """
        single, several = self.part(i, 0), self.part(i, 0, count)
        pairs = zip(self.graph.ops[i].outputs, single.makes, several.makes, strict=True)
        for tensor, first, region in pairs:
            if first is None or region is None:
                raise BrokenSymmetryError(f'"{self.graph.ops[i].name}" makes nothing on a replica')
            grown = volume(region) // max(volume(first), 1) if region != first else 1
            part = part_of(tensor, region)
            yield replace(part, bytes=grown * part_of(tensor, first).bytes)

    def op(self, i: int) -> Op:
        """An op on the samples of the replicas that stay."""
        op = self.graph.ops[i]
        if self.axes[i] is None:
            return op
        fields = self.fields(i, 0, self.kept)
        single = self.fields(i, 0)
        sizes = {name: self.kept * single[name] for name in SIZES}
        return replace(op, outputs=tuple(self.outputs(i, self.kept)), **(fields | sizes))

    def reduced(self) -> Graph:
        """The graph of the replicas that stay. Raises InputError."""
        return Graph(self.graph.name, tuple(map(self.op, range(len(self.graph.ops)))))

    def require_as_whole(self, i: int, made: Op) -> None:
        """Require that ``made``, an op of a replica of the reduced graph, equals the op of a
        replica of the whole graph. Raises BrokenSymmetryError.
        """
        if self.axes[i] is None:
            return
        outputs = tuple(self.outputs(i, 1))
        # The first and the last part may differ from others, at the edges.
        alike = outputs == made.outputs[: len(outputs)] and all(
            _plain(getattr(made, name)) == _plain(value)
            for number in dict.fromkeys((0, 1, self.replicas - 1))
            for name, value in self.fields(i, number).items()
        )
        if not alike:
            raise BrokenSymmetryError(f'"{self.graph.ops[i].name}" differs on fewer samples')


def _plain(value: Any) -> Any:
    """The value with lists turned to tuples at any depth, for comparison."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_plain, value))
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return value


# The replicas of a strategy, and the representatives among them.


@dataclass(frozen=True, slots=True)
class Replicas:
    """A strategy that cuts samples evenly over ``devices`` (indices, in the order of the parts),
    without a short form; ``axes`` are the cut axes, by key of its partition.
    """

    strategy: Strategy
    devices: tuple[int, ...]
    axes: dict[str, str]


def replicas_of(prepared: Prepared, strategy: Strategy) -> Replicas:
    """The replicas of a strategy whose short form is written out.

    Replicas may share only collectives of all of them: then the state of each is the image of any
    other's, round by round. Raises BrokenSymmetryError where they share more, InputError.
    """
    graph, cluster = prepared.graph, prepared.cluster
    hosts = (cluster.host_of(device) for device in cluster.hosted)
    cuts = {
        key: [axis for axis, degree in configuration.split.items() if degree > 1]
        for key, configuration in strategy.partition.items()
    }
    reasons = {
        "a pipeline gives devices different work": strategy.pipeline is not None,
        "a synchronisation policy gives servers different work": isinstance(strategy.sync, Sync),
        "a loader feeds all devices": strategy.loader is not None,
        "tensors are stored otherwise than they are made": bool(strategy.tensors),
        "queues have sequences of their own": strategy.order.policy == "fixed",
        "collectives run as their messages": strategy.collectives.cost == "expanded",
        "links are shared at max-min rates": prepared.fabric.shares_rates,
        "transfers and computing slow each other": slows(cluster),
        "devices of a node share a host": any(h is not None and h.threads == "node" for h in hosts),
        "some ops are placed by themselves": bool(strategy.placement),
        "ops are split along several axes, or not at all": any(len(c) != 1 for c in cuts.values()),
    }
    for reason, holds in reasons.items():
        if holds:
            raise BrokenSymmetryError(reason)
    resolved = resolve_partition(graph, cluster, strategy.partition).values()
    spread = {each.devices for each in resolved}
    devices = next(iter(spread))
    if len(spread) > 1 or len(set(devices)) < len(devices):
        raise BrokenSymmetryError("ops are split over different devices")
    return Replicas(strategy, devices, {key: axes[0] for key, axes in cuts.items()})


def representatives(cluster: Cluster, devices: Sequence[int]) -> list[int]:
    """The representative of each device of the cluster; replicas run on ``devices``.

    The first replica represents only itself, for tensors that are not cut are there. So does the
    last, which names the far end of a collective. At least three stay, for a group of two has other
    buffers in NCCL.
    """
    used, every = set(devices), range(len(cluster.devices))
    order = (*devices[1:], *(device for device in every if device not in used))
    traits_of = {device: traits(cluster, device, device in used) for device in order}
    first = {trait: device for device, trait in reversed(traits_of.items())}
    alone = devices[0], devices[-1]
    return [device if device in alone else first[traits_of[device]] for device in every]


def traits(cluster: Cluster, device: int, used: bool) -> Hashable:
    """The traits of a device; devices of equal traits behave equally and have equal memory."""
    there = cluster.devices[device]
    held = there.kind, there.memory, there.staging
    # The speed of a device without ops does not matter.
    if not used:
        return held
    return (*held, there.gap, there.speed, there.beside_copies, cluster.host_of(device))


def reduced_strategy(replicas: Replicas, names: tuple[str, ...]) -> Strategy:
    """The strategy on fewer devices, by name, in the order of the parts."""
    partition = {
        key: Configuration({axis: len(names)}, names, replicas.strategy.partition[key].time)
        for key, axis in replicas.axes.items()
    }
    return replace(replicas.strategy, partition=partition)


WORTH_REDUCING = 17
"""The least number of replicas to reduce: fewer are simulated quickly, and charts show each."""


@dataclass(frozen=True, slots=True)
class Quotient:
    """The reduced question, of the representatives; it is lowered and simulated as any other."""

    prepared: Prepared
    strategy: Strategy
    symmetry: Symmetry


def quotient_of(
    prepared: Prepared, strategy: Strategy, fewest: int = WORTH_REDUCING
) -> Quotient | Expanded | None:
    """The Quotient of a strategy; or Expanded, with the reason why there is none; None where there
    are fewer than ``fewest`` replicas. Raises InputError.
    """
    if not strategy.splits or len(prepared.cluster.devices) < fewest:
        return None
    written = expanded(prepared.graph, prepared.cluster, strategy, prepared.costs)
    first = next(iter(written.partition.values()), None)
    # Only the first entry is checked here, because searches call this for every strategy.
    if first is None or max(first.split.values(), default=1) < fewest:
        return None
    try:
        return _quotient(prepared, replicas_of(prepared, written))
    except BrokenSymmetryError as broken:
        return Expanded(str(broken))


def _quotient(prepared: Prepared, replicas: Replicas) -> Quotient:
    cluster, strategy = prepared.cluster, replicas.strategy
    simulated = representatives(cluster, replicas.devices)
    kept = set(simulated)
    names = tuple(cluster.devices[d].name for d in replicas.devices if d in kept)
    if 2 * len(names) > len(replicas.devices):
        raise BrokenSymmetryError("most devices differ")
    # Without links, because only collectives join these devices, and these are costed on the whole
    # cluster. The order of devices breaks ties, so it is kept.
    chosen = sorted(kept)
    small = replace(cluster, devices=tuple(cluster.devices[d] for d in chosen), links=())
    reduction = _reduction(prepared, replicas, small, names)
    fabric = SharedFabric(small, prepared.fabric)
    whole = prepared.communicators.choosing(strategy.collectives)
    group = GroupCommunicators(small, whole, replicas.devices, fabric)
    graph = reduction.reduced()
    costed = CostedGraph(graph, prepared.costs, prepared.costed.updating)
    nouns = graph, small, prepared.costs, prepared.memory, strategy.collectives
    # Parts keep their numbers among all replicas in names, which traces and reports show. Copies
    # are numbered in the order of the cluster, shards in that of the strategy, so both must agree.
    ordered = list(replicas.devices) == sorted(replicas.devices)
    parts = [at for at, device in enumerate(replicas.devices) if ordered and device in kept]
    reduced = Prepared(*nouns, costed=costed, communicators=group, parts=parts)
    cut = reduced_strategy(replicas, names)
    sharded, placed, origins = split(reduced, cut)
    _require_replicas(sharded.graph, placed, origins, reduction)
    # Collectives are costed once before queues are numbered, for classes follow from all of them.
    rings(sharded.graph, sharded.costed.collectives, group)
    fabric.settle()
    place = {device: at for at, device in enumerate(chosen)}
    return Quotient(
        reduced,
        cut,
        Symmetry(
            tuple(device.name for device in cluster.devices),
            np.array([place[device] for device in simulated], np.int64),
            tuple(queue.name for queue in prepared.fabric.queues),
            fabric.classes,
            len(replicas.devices),
        ),
    )


def _reduction(
    prepared: Prepared, replicas: Replicas, cluster: Cluster, names: tuple[str, ...]
) -> Reduction:
    """The Reduction, from a sharding over the least number of devices that cuts samples evenly."""
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
    """Require that replicas run the ops of the whole graph, and share only collectives of all of
    them. Raises BrokenSymmetryError.
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
