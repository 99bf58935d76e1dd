"""Which replicas a strategy makes, which of them differ, and which stand for the rest."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace

from ...nouns.cluster import Cluster
from ...nouns.strategy import Configuration, Strategy, Sync
from ...nouns.strategy.configuration import resolve_partition
from ..prepare import Prepared
from ..sharing import slows


@dataclass(frozen=True, slots=True)
class Replicas:
    """A strategy that cuts samples evenly over ``devices`` (indices, in the order of the parts),
    as written out; ``axes`` are those along which it says so, by key of its partition.
    """

    strategy: Strategy
    devices: tuple[int, ...]
    axes: dict[str, str]


def refusal(prepared: Prepared, strategy: Strategy) -> str:
    """Why no replica can be simulated alone, whatever the graph; "" where one can.

    Replicas must share nothing but collectives of all: then the state of each is the image of any
    other's, round by round (``quotient``).
    """
    cluster = prepared.cluster
    hosts = (cluster.host_of(device) for device in cluster.hosted)
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
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def replicas_of(prepared: Prepared, strategy: Strategy) -> Replicas | str:
    """The replicas of a strategy whose short form is written out, or why it has none.

    Raises InputError.
    """
    if strategy.placement:
        return "some ops are placed by themselves"
    graph, cluster, cuts = prepared.graph, prepared.cluster, dict[str, str]()
    for key, configuration in strategy.partition.items():
        axes = [axis for axis, degree in configuration.split.items() if degree > 1]
        if len(axes) != 1:
            return "ops are split along several axes, or not at all"
        cuts[key] = axes[0]
    resolved = resolve_partition(graph, cluster, strategy.partition).values()
    spread = {each.devices for each in resolved}
    devices = next(iter(spread))
    if len(spread) > 1 or len(set(devices)) < len(devices):
        return "ops are split over different devices"
    return Replicas(strategy, devices, cuts)


def representatives(prepared: Prepared, replicas: Replicas) -> tuple[list[int], list[int]]:
    """The devices to simulate (indices, in the order of the parts, then idle ones in that of the
    cluster), and by device of the cluster the place among them of the one that stands for it.

    The first stands for itself alone, for what nothing cuts lies there.
    """
    cluster, place = prepared.cluster, {d: i for i, d in enumerate(replicas.devices)}
    first, last = replicas.devices[0], replicas.devices[-1]
    stands: dict[Hashable, int] = {}
    for device in (*replicas.devices[1:], *_idle(cluster, place)):
        stands.setdefault(traits(cluster, device, device in place), device)
    # The last names the far end of a collective; three at least, for a group of two has other
    # buffers in NCCL.
    used = {first, last, *(device for device in stands.values() if device in place)}
    chosen = sorted(used, key=place.__getitem__)
    chosen += sorted(device for device in stands.values() if device not in place)
    at = {device: number for number, device in enumerate(chosen)}
    by_device = [
        at[device] if device in at else at[stands[traits(cluster, device, device in place)]]
        for device in range(len(cluster.devices))
    ]
    return chosen, by_device


def _idle(cluster: Cluster, used: dict[int, int]) -> Iterator[int]:
    return (device for device in range(len(cluster.devices)) if device not in used)


def traits(cluster: Cluster, device: int, used: bool) -> Hashable:
    """What a device has in common with those that run as it does, and hold as much."""
    there = cluster.devices[device]
    held = there.kind, there.memory, there.staging
    # Where nothing runs, how fast it would run does not matter.
    return (*held, there.gap, there.beside_copies, cluster.host_of(device)) if used else held


def reduced_cluster(cluster: Cluster, chosen: list[int]) -> Cluster:
    """These devices without links: only collectives, which are costed on the whole, join them."""
    # The order of a cluster breaks ties, so it stays.
    devices = tuple(cluster.devices[device] for device in sorted(chosen))
    return replace(cluster, devices=devices, links=())


def reduced_strategy(replicas: Replicas, names: tuple[str, ...]) -> Strategy:
    """The strategy on fewer devices, by name, in the order of the parts."""
    partition = {
        key: Configuration({axis: len(names)}, names, replicas.strategy.partition[key].time)
        for key, axis in replicas.axes.items()
    }
    return replace(replicas.strategy, partition=partition)
