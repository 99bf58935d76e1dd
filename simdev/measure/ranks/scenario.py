"""Makes the scenario of captured ranks: their joint graph on a machine, with the machine's measured
rows and a host that issues every op.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...files import device_names, preset_names, read_cluster, read_device, read_preset
from ...files.profile import shipped_paths
from ...files.reading import read_json
from ...ground.errors import InputError
from ...ground.version import __version__
from ...nouns.cluster import Cluster, Device
from ..kinds import Fields
from .joining import joined
from .pretend import World
from .writing import RankStep

Machine = str | Mapping[str, Any]
"""A cluster in the format of a scenario's file: a preset, a path, or an object."""


def machine_of(
    cluster: Machine, world: int | None = None, host: str | None = None
) -> tuple[Machine, Cluster]:
    """The machine with a host of mode ``host``, and its cluster. Where neither the argument nor the
    machine sets a mode, the ops of accelerators are dispatched one by one ("eager"), as PyTorch
    does.

    A preset without a number of nodes or GPUs gets as many GPUs as the world has ranks or, where
    these do not fill its nodes equally, as many nodes as needed. Raises InputError.
    """
    fields = _object(cluster)
    if world is not None and world < 1:
        raise InputError(f"world: must be at least 1, got {world}")
    if world is not None and "preset" in fields and not fields.keys() & {"nodes", "gpus"}:
        each = len(workers_of(read_cluster(fields))[0])
        nodes = -(-world // each)
        fields |= {"nodes": nodes} if world % nodes else {"gpus": world}
    read = read_cluster(fields)
    hosted = read.host is not None or any(device.host for device in read.devices)
    if host is None and (hosted or not any(map(_is_accelerator, read.devices))):
        return fields, read
    fields["host"] = {"mode": host or "eager"}
    return fields, read_cluster(fields)


def _object(cluster: Machine) -> Fields:
    if not isinstance(cluster, str):
        return dict(cluster)
    if cluster in preset_names() and not Path(cluster).exists():
        return {"preset": cluster}
    if not Path(cluster).exists() and not cluster.endswith((".json", ".gz")):
        read_preset(cluster)
    value = read_json(cluster)
    if not isinstance(value, dict):
        raise InputError("must be an object (a cluster)", cluster)
    return value


def _is_accelerator(device: Device) -> bool:
    return device.runs_ops and not device.is_host


def workers_of(cluster: Cluster) -> list[list[Device]]:
    """The devices on which ranks run, by node: accelerators, or CPUs where there are none."""
    every = [device for device in cluster.devices if device.runs_ops]
    chosen = list(filter(_is_accelerator, every)) or every
    nodes = sorted({device.node for device in chosen})
    return [[device for device in chosen if device.node == node] for node in nodes]


def world_of(cluster: Cluster, size: int | None = None, per_node: int | None = None) -> World:
    """The world of ``size`` ranks on a cluster, a rank per device (None: on all devices).

    Raises InputError where the ranks do not fit.
    """
    nodes = workers_of(cluster)
    count = sum(map(len, nodes)) if size is None else size
    if per_node is None:
        per_node = max(1, min(len(nodes[0]), count))
    rank_devices(cluster, count, per_node)
    world, memory = World(count, per_node=per_node), nodes[0][0].memory
    return world if memory is None else replace(world, memory=int(memory))


def rank_devices(cluster: Cluster, world: int, per_node: int) -> list[str]:
    """The names of the devices of all ranks; ``per_node`` ranks share a node, as torchrun starts
    them. Raises InputError where they do not fit.
    """
    if per_node < 1:
        raise InputError(f"per_node: must be at least 1, got {per_node}")
    nodes, per_node = workers_of(cluster), min(world, per_node)
    needed = -(-world // per_node)
    if needed > len(nodes) or per_node > len(nodes[0]):
        every = sum(map(len, nodes))
        raise InputError(
            f"world: {world:,} ranks, {per_node} on a node, do not fit: "
            f"{cluster.name} has {every:,} devices in {len(nodes):,} nodes"
        )
    return [nodes[rank // per_node][rank % per_node].name for rank in range(world)]


def scenario_of(
    steps: Sequence[RankStep],
    world: World,
    cluster: Machine,
    profiles: Sequence[str] | None = None,
    host: str | None = None,
    name: str = "captured",
    notes: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    compared: Sequence[int] = (),
) -> Fields:
    """The document of a scenario, in the format of files.

    ``profiles`` are paths of measured rows (None: those that ship for the devices), ``host`` is the
    mode of the host (``machine_of``). Raises InputError where ranks do not match, or do not fit on
    the cluster.
    """
    machine, read = machine_of(cluster, world.size, host)
    graph, strategy = joined(steps, rank_devices(read, world.size, world.per_node), name)
    rows = shipped(read) if profiles is None else list(profiles)
    provenance = {
        "kind": "captured",
        "world": world.size,
        "per_node": world.per_node,
        "ranks": [step.rank for step in steps],
        "compared": list(compared),
        "notes": [*notes, *_assumptions(cluster, machine, host, rows)],
        "simdev": __version__,
    }
    document = {"version": 1, "graph": graph, "cluster": machine, "profile": rows}
    chosen = {**_memory(read), **(options or {})}
    more = {"options": chosen} if chosen else {}
    return {**document, "strategy": strategy, **more, "provenance": provenance}


def _memory(cluster: Cluster) -> Fields:
    """The options for counting memory: on accelerators as PyTorch's caching allocator does."""
    if not any(map(_is_accelerator, cluster.devices)):
        return {}
    return {"memory": {"framework": "pytorch", "rounding": "pytorch"}}


def shipped(cluster: Cluster) -> list[str]:
    """The paths of the shipped profiles for the devices of a cluster, or for the devices that their
    datasheets name as measured in their place.
    """
    kinds = dict.fromkeys(device.kind for nodes in workers_of(cluster) for device in nodes)
    measured = [read_device(kind).measured_as if kind in device_names() else "" for kind in kinds]
    sources = dict.fromkeys(m or kind for m, kind in zip(measured, kinds, strict=True))
    return [str(path) for kind in sources for path in shipped_paths(kind)]


def _assumptions(
    cluster: Machine, machine: Machine, host: str | None, rows: Sequence[str]
) -> Iterator[str]:
    if host is None and "host" in machine and "host" not in _object(cluster):
        yield (
            "an eager host is assumed: a thread a device that dispatches op after op, as fast as "
            "that of the machine on which the rows were measured"
        )
    if not rows:
        yield "no measured rows: op times are estimated from datasheets"
