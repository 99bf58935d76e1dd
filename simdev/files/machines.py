"""One machine repeated on several nodes joined by a network, and the part of the machines that a
job uses.

``files/cluster.py`` reads both from the keys ``nodes``, ``gpus`` and ``network`` of a file. Names
of devices end in ``:`` and a number, which is counted on through the nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from ..ground.errors import InputError, refuse
from ..ground.units import Number, parse_speed
from ..nouns.cluster import Cluster, Device, Link

# A few digits in a file can make a cluster that fills the memory. A step on more devices or links
# than these could not be simulated anyhow.
MOST_DEVICES = 100_000
MOST_LINKS = 1_000_000
NETWORK = "network"
_NUMBERED = re.compile(r"(.*:)([0-9]{1,6})\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Network:
    """The network that joins the nodes: NICs, and one switch that never blocks.

    ``attach`` has an entry for each NIC of a node: the devices that it is linked with.
    ``bandwidth`` is the bandwidth of a NIC in bytes per second and direction, ``efficiency`` the
    share of it that transfers reach, ``latency`` the seconds from NIC to NIC.
    """

    attach: tuple[tuple[str, ...], ...]
    bandwidth: Fraction
    efficiency: Fraction = Fraction(1)
    latency: Fraction = Fraction(0)
    duplex: str = "full"
    hold_latency: bool = True


def repeated(node: Cluster, nodes: int, network: Network | None) -> Cluster:
    """A cluster of ``nodes`` (at least 2) copies of ``node``. Raises InputError."""
    if network is None:
        raise InputError("nodes: several nodes need a network that joins them")
    refuse([*_node_problems(node, nodes, network), *network_problems(node, network)])
    strides = _strides([device.name for device in node.devices])
    strides["nic"] = len(network.attach)
    rate = network.bandwidth * network.efficiency
    devices, links = list[Device](), list[Link]()
    to_nic = Link(("", ""), rate, duplex=network.duplex, kind="nic")
    # Half of the latency on either side of the switch, so that it adds up from NIC to NIC.
    to_switch = Link(
        ("", ""), rate, network.latency / 2, 0, network.duplex, network.hold_latency, NETWORK
    )
    for k in range(nodes):
        names = {device.name: _renamed(device.name, k, strides) for device in node.devices}
        devices += [replace(device, name=names[device.name], node=k) for device in node.devices]
        links += [link.between(*(names[end] for end in link.ends)) for link in node.links]
        for i, ends in enumerate(network.attach):
            nic = _renamed(f"nic:{i}", k, strides)
            devices.append(Device(nic, "switch", node=k))
            links += [to_nic.between(names[end], nic) for end in ends]
            links.append(to_switch.between(nic, NETWORK))
    # The switch is last: it belongs to no node, and ranks count through the devices before it.
    devices.append(Device(NETWORK, "switch", node=nodes))
    return replace(node, devices=tuple(devices), links=tuple(links))


def with_slow(cluster: Cluster, slow: Mapping[str, Number]) -> Cluster:
    """The cluster with stragglers. ``slow`` maps the name of a device to the share of its speed
    that it keeps, or the name of a link ("gpu:0 - nic:0"; a switch means all of its links) to the
    share of its bandwidth that it keeps.

    Raises InputError for unknown names and for values that are no share.
    """
    devices, links, problems = list(cluster.devices), list(cluster.links), list[str]()
    for name, left in slow.items():
        try:
            share = parse_speed(left)
        except ValueError as error:
            problems.append(f'slow["{name}"]: {error}')
            continue
        device = cluster.index.get(name)
        if device is not None and devices[device].runs_ops:
            speed = Fraction(devices[device].speed) * share
            devices[device] = replace(devices[device], speed=speed)
            continue
        joined = [row for row, link in enumerate(links) if name in _names_of(link)]
        if not joined:
            reason = "no device of this name, nor a link like gpu:0 - gpu:1"
            problems.append(f'slow["{name}"]: {reason}')
        for row in joined:
            slowed = Fraction(links[row].slowed) * share
            links[row] = replace(links[row].changed(share), slowed=slowed)
    refuse(problems)
    return replace(cluster, devices=tuple(devices), links=tuple(links))


def _names_of(link: Link) -> tuple[str, ...]:
    first, second = link.ends
    return first, second, f"{first} - {second}", f"{second} - {first}"


def machines_of(node: Cluster, nodes: int | None, gpus: int | None) -> int:
    """The number of machines of a job: ``nodes`` (default 1), or the fewest with ``gpus`` GPUs.

    GPUs are the devices of ``node`` that compute (hosts do only where nothing else does). Raises
    InputError where machines have too few, or not all the same number.
    """
    if nodes is not None and nodes < 1:
        raise InputError(f"nodes: must be > 0, got {nodes}")
    if gpus is None:
        return 1 if nodes is None else nodes
    if gpus < 1:
        raise InputError(f"gpus: must be > 0, got {gpus}")
    each = len(node.workers)
    count = -(-gpus // max(each, 1)) if nodes is None else nodes
    if gpus > count * each:
        raise InputError(f"gpus: {count * each} are there ({count} x {each}), got {gpus}")
    if count * len(node.devices) > MOST_DEVICES:
        raise InputError(f"gpus: {gpus} make more than {MOST_DEVICES} devices")
    if gpus % count:
        raise InputError(f"gpus: {gpus} are not equally many on {count} machines")
    return count


def cut_to(node: Cluster, network: Network | None, gpus: int) -> tuple[Cluster, Network | None]:
    """The machine and its network with the first ``gpus`` GPUs alone, no other and none of the
    others' links and NICs.

    Switches and hosts stay.
    """
    left_out = {node.devices[i].name for i in node.workers[gpus:]}
    devices = tuple(device for device in node.devices if device.name not in left_out)
    links = tuple(link for link in node.links if left_out.isdisjoint(link.ends))
    if network is not None:
        kept = (tuple(e for e in ends if e not in left_out) for ends in network.attach)
        network = replace(network, attach=tuple(ends for ends in kept if ends))
    return replace(node, devices=devices, links=links), network


def _node_problems(node: Cluster, nodes: int, network: Network) -> Iterator[str]:
    # Counted before any device is made: the limits are there to save the memory.
    links = len(node.links) + sum(len(ends) + 1 for ends in network.attach)
    if (
        nodes * (len(node.devices) + len(network.attach)) > MOST_DEVICES
        or nodes * links > MOST_LINKS
    ):
        yield f"nodes: {nodes} make more than {MOST_DEVICES} devices or {MOST_LINKS} links"
    for i, device in enumerate(node.devices):
        if _NUMBERED.match(device.name) is None:
            yield (
                f'devices[{i}].name: must end in ":" and a number, for it is repeated on '
                f'each node: "{device.name}"'
            )
        if device.node:
            reason = "must be 0 where the devices are repeated on each node"
            yield f"devices[{i}].node: {reason}, got {device.node}"


def network_problems(node: Cluster, network: Network) -> Iterator[str]:
    """``path: reason`` for each fault of the network of nodes like this one."""
    if network.efficiency > 1:
        yield f"network.efficiency: must be at most 1, got {float(network.efficiency):g}"
    if not network.attach:
        yield "network.attach: must name at least one device"
    for i, ends in enumerate(network.attach):
        yield from (
            f'network.attach[{i}]: no device named "{end}"' for end in ends if end not in node.index
        )
        if not ends or len(set(ends)) < len(ends):
            yield f"network.attach[{i}]: must name devices, each once"


def _strides(names: list[str]) -> dict[str, int]:
    """For each stem of a device name ("gpu"): the step of its numbers from one node to the next."""
    strides: dict[str, int] = {}
    for name in names:
        stem, number = _split(name)
        strides[stem] = max(strides.get(stem, 0), number + 1)
    return strides


def _renamed(name: str, node: int, strides: dict[str, int]) -> str:
    stem, number = _split(name)
    return f"{stem}:{number + node * strides[stem]}"


def _split(name: str) -> tuple[str, int]:
    stem, _, number = name.rpartition(":")
    return stem, int(number)
