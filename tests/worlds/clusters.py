"""Small clusters: devices and the links between them. Bandwidths are in bytes per second."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from simdev.nouns.cluster import Cluster, Device, Link
from worlds.tape import Tape

UNIT = 10**12
"""The bandwidth at which a byte takes a picosecond."""
SWITCH = Device("hub", "switch")


def devices(count: int, prefix: str = "g", **fields: object) -> list[Device]:
    """Devices ``g0``, ``g1``, ... with these fields of Device, for example memory in bytes."""
    return [Device(f"{prefix}{d}", **fields) for d in range(count)]


def joined(
    members: int | Iterable[str | Device],
    queues: str = "half-duplex",
    *,
    prefix: str = "g",
    memory: int | None = None,
    name: str = "joined",
    **link: object,
) -> Cluster:
    """A cluster in which every two devices are joined by a separate link, at ``UNIT``.

    ``members`` is the number of devices (named by ``prefix`` and index), their names, or devices;
    in the first two cases ``memory`` sets theirs, in bytes. ``link`` holds fields of Link.
    """
    named = devices(members, prefix, memory=memory) if isinstance(members, int) else members
    own = [Device(one, memory=memory) if isinstance(one, str) else one for one in named]
    return Cluster.all_to_all(name, own, queues, **({"bandwidth": UNIT} | link))


def star(
    members: Iterable[Device],
    queues: str = "half-duplex",
    *,
    hub: Device = SWITCH,
    **link: object,
) -> Cluster:
    """A cluster in which every device is joined only to the hub, at ``UNIT``."""
    own = tuple(members)
    links = tuple(Link((one.name, hub.name), **({"bandwidth": UNIT} | link)) for one in own)
    return Cluster("star", (*own, hub), links, queues)


def machines(count: int, queues: str = "device", host: bool = False, **link: object) -> Cluster:
    """A cluster of ``count`` GPUs, and a host where ``host``; any two are joined by a link of 8
    bytes per second.
    """
    members = devices(count, "gpu:") + [Device("host:0", "cpu")] * host
    return joined(members, queues, name="machines", **({"bandwidth": 8} | link))


def limited(cluster: Cluster, memory: int | None) -> Cluster:
    """The cluster, with ``memory`` bytes on each device (None: unlimited)."""
    own = tuple(replace(device, memory=memory) for device in cluster.devices)
    return replace(cluster, devices=own)


def _links(tape: Tape, names: Sequence[str], shape: str) -> list[Link]:
    """Links all to all, or in a star around the last name, a switch or host."""
    pairs = [
        (a, b)
        for i, a in enumerate(names)
        for b in names[i + 1 :]
        if shape == "all" or b == names[-1]
    ]
    hold, duplex = tape.pick(True, False), tape.pick("full", "full", "half")
    return [
        Link(
            pair,
            bandwidth=tape.pick(1, 1, 2) * UNIT,
            latency=f"{tape.pick(0, 0, 1, 2)} ps",
            gap=f"{tape.pick(0, 0, 1)} ps",
            duplex=duplex,
            hold_latency=hold,
        )
        for pair in pairs
    ]


def make_cluster(tape: Tape, queues: Sequence[str], transfers: Sequence[str]) -> Cluster:
    """One to four devices that run ops, joined all to all, through a switch or over a staging
    host.
    """
    count, shape = 1 + tape.number(4), tape.pick("all", "all", "switch", "host")
    modes = [mode for mode in transfers if (mode, shape) != ("multicast", "host")] or [
        "once-per-device"
    ]
    memory = tape.pick(None, None, 2, 6)
    devices = [Device(f"g{d}", gap=f"{tape.pick(0, 0, 1)} ps", memory=memory) for d in range(count)]
    if shape == "switch":
        devices.append(Device("hub", "switch"))
    if shape == "host":
        devices.append(Device("hub", "cpu", staging=True, chunk=tape.pick(None, 1)))
    links = _links(tape, [device.name for device in devices], shape)
    return Cluster("c", tuple(devices), tuple(links), tape.pick(*queues), tape.pick(*modes))
