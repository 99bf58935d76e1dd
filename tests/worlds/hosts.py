"""Random hosts for random questions: with every mode and thread, ties, and times of zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simdev.nouns.cluster import Cluster, Host
from simdev.nouns.graph import Graph, Op
from worlds.scenarios import World
from worlds.tape import Tape

MODES = ("eager", "eager", "eager", "graph", "none")
FAR = 1000  # more launches than a small question has


def with_hosts(tape: Tape, cluster: Cluster, unit: str = "ps") -> Cluster:
    """The cluster with hosts of its own or of its devices, which are in one or two nodes."""
    shared = Host("eager", tape.pick(FAR, 1, 2, 3, 5), tape.pick("device", "node"), f"1 {unit}")
    mixed = tape.pick(False, True)
    devices = []
    for device in cluster.devices:
        own = Host(
            tape.pick(*MODES),
            tape.pick(FAR, 1, 2, 3),
            tape.pick("device", "node"),
            f"{tape.pick(0, 1, 3)} {unit}",
        )
        has_own = device.runs_ops and tape.pick(mixed, mixed, False)
        devices.append(
            replace(device, node=tape.pick(0, 0, 1), host=own if has_own else device.host)
        )
    host = None if mixed and tape.pick(False, True) else shared
    return replace(cluster, devices=tuple(devices), host=host)


def blocks_nowhere(cluster: Cluster) -> bool:
    """Whether no op may block its host, because some host replays a graph."""
    hosts = map(cluster.host_of, range(len(cluster.devices)))
    return any(host is not None and host.mode == "graph" for host in hosts)


def dispatched(
    tape: Tape,
    graph: Graph,
    cluster: Cluster,
    times: Sequence[int] = (0, 1, 2, 3),
    unit: str = "ps",
) -> Graph:
    """The graph, with random host times and launches on its ops; some ops may block their host."""
    blocking = tape.pick(False, False, True) and not blocks_nowhere(cluster)

    def change(op: Op) -> Op:
        time = tape.pick(None, *(f"{time} {unit}" for time in times))
        launches = tape.pick(None, None, 1, 0, 2, 4)
        blocks = blocking and tape.pick(False, False, False, True)
        return replace(op, host_time=time, launches=launches, blocks_host=blocks)

    return Graph(graph.name, tuple(map(change, graph.ops)))


def hosted(tape: Tape, world: World) -> World:
    """The world with random hosts, and with host times on its ops."""
    cluster = with_hosts(tape, world.cluster)
    return world.but(cluster=cluster, graph=dispatched(tape, world.graph, cluster))
