"""Clusters from and to JSON: devices and links one by one, by kinds, or one machine repeated on
several nodes.

Scenarios, ``simdev clusters`` and importers read them here; presets are files in
``presets/clusters``. Queue modes are named in ``nouns/cluster.py`` (QUEUES) and ruled by
``nouns/fabric.py``: this module passes their names on.

``"nodes": 8`` repeats the machine on eight nodes joined by a network. Names of its devices end in
``:`` and a number, which is counted on through the nodes: the GPUs of eight machines with eight
GPUs each are ``gpu:0`` to ``gpu:63``, as ranks are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Annotated, Any, Literal, Required

from pydantic import Field
from typing_extensions import TypedDict

from ..costs import DeviceSpec
from ..costs.collectives import require_collectives
from ..ground.errors import InputError, collecting, refuse
from ..ground.units import Number, is_count, parse_bandwidth, rate_text
from ..nouns.cluster import Cluster, Device, Host, Link
from .device import capacity_of
from .machines import (
    MOST_LINKS,
    Network,
    cut_to,
    machines_of,
    network_problems,
    repeated,
    with_slow,
)
from .reading import PRESETS, PathLike, meant, path_text, shipped
from .shape import (
    UNLIMITED,
    VERSION,
    Bandwidth,
    Capacity,
    Fields,
    Format,
    Seconds,
    Share,
    Speed,
    keys_of,
    opened,
    plain,
)
from .writing import changed_fields, entries_text, json_line, write_text


def require_joinable(path: str, devices: int) -> None:
    """Refuse a number of devices, each linked with every other, that needs more links than a
    cluster may have.

    Raises InputError.
    """
    links = devices * (devices - 1) // 2
    if links > MOST_LINKS:
        raise InputError(
            f"{path}: joins {devices} devices by {links} links; at most {MOST_LINKS} are allowed"
        )


@keys_of(Host)
class HostShape(TypedDict, total=False):
    """The host that dispatches the ops of a device.

    - ``mode``: ``eager``: every op is dispatched by itself, for its ``host_time``; ``graph``:
      the device's step is one CUDA graph, dispatched in ``launch``; ``none``: no host.
    - ``ahead``: how many launches the host may be ahead of what its device has finished; default
      1024.
    - ``threads``: a thread for each ``device`` (default), or for all of a ``node``.
    - ``launch``: the time that the host needs to replay a graph; default 10 us.
    """


@keys_of(Device, "name", "kind", "node")
class DeviceKindShape(TypedDict, total=False):
    """Properties shared by all devices of a kind.

    - ``memory``: its size, or ``unlimited``. Left out or null: the memory in the datasheet of its
      kind, or unlimited where no datasheet gives one.
    - ``gap``: how long it pauses after each op of positive duration.
    - ``staging``: whether transfers through it stop there, which cuts a route in two.
    - ``chunk``: bytes of the pieces in which a staging device passes transfers on.
    - ``transit``: false: no route leads through it.
    - ``host``: the host of these devices, in place of the cluster's.
    - ``beside_copies``: how many times longer it computes while a transfer begins or ends
      there, 1 to 2.
    - ``speed``: its speed as a share of the speed of its kind; default 1.
    """

    memory: Capacity
    host: HostShape


class DeviceShape(DeviceKindShape, total=False):
    """A device. A key here overrides the same key of its kind.

    - ``name``: unique.
    - ``kind``: default ``gpu``; a ``switch`` carries routes and runs no op.
    - ``node``: the machine that it is part of.
    """

    name: Required[str]
    kind: str
    node: int


@keys_of(Link, "ends", "kind")
class LinkKindShape(TypedDict, total=False):
    """Properties shared by all links of a kind.

    - ``bandwidth``: in each direction.
    - ``latency``: of each transfer over it.
    - ``gap``: how long it pauses after each transfer.
    - ``duplex``: ``full`` (default), ``half``: both directions share it, or ``simplex``: only
      from the first end to the second.
    - ``hold_latency``: whether a transfer holds its queue during the latency; default true.
    - ``lanes``: how many physical links it bundles; rings are laid along them.
    - ``both_ways``: how many times longer transfers take while others cross it the other way, 1
      to 2.
    - ``measured_bandwidth``, ``measured_latency``: its bandwidth and latency when the collectives
      of the cluster were measured; default: ``bandwidth`` and ``latency``.
    - ``slowed``: ``bandwidth`` as a share of the bandwidth of a sound link of this kind; default 1.
    """

    bandwidth: Bandwidth
    duplex: Literal["full", "half", "simplex"]
    lanes: int


class LinkShape(LinkKindShape, total=False):
    """A link. A key here overrides the same key of its kind.

    - ``ends``: two devices.
    - ``kind``: a key of ``link_kinds``.
    """

    ends: Required[Annotated[list[str], Field(min_length=2, max_length=2)]]
    kind: str


@keys_of(Link, "ends")
class EveryLinkShape(TypedDict, total=False):
    """Properties shared by all links, with the keys of a kind of link."""

    duplex: Literal["full", "half"]
    lanes: int


class AllToAllShape(TypedDict, total=False):
    """A link between every two devices.

    - ``all_to_all``: the properties of each link.
    """

    all_to_all: Required[EveryLinkShape]


class NetworkShape(TypedDict, total=False):
    """The network that joins the machines: a switch that never blocks.

    - ``attach``: an entry for each network adapter: the device, or devices, that it is linked
      with.
    - ``bandwidth``: of each adapter, in each direction.
    - ``efficiency``: the share of ``bandwidth`` that transfers reach; default 1.
    - ``latency``: from adapter to adapter.
    - ``duplex``: ``full`` (default) or ``half``.
    - ``hold_latency``: whether a transfer holds its queue during the latency; default true.
    """

    attach: Required[list[str | list[str]]]
    bandwidth: Required[Bandwidth]
    efficiency: Share
    latency: Seconds
    duplex: Literal["full", "half"]
    hold_latency: bool


class CommonShape(TypedDict, total=False):
    """Devices, and how they are joined.

    - ``name``: what it is called.
    - ``title``, ``about``: what it is, in words.
    - ``queues``: ``parallel``, ``device``, ``half-duplex`` (default), ``egress``, ``link`` or
      ``fair``.
    - ``transfer``: ``once-per-device`` (default), ``per-consumer`` or ``multicast``.
    - ``collectives``: the name of a collection of measured tables, which hold inside one machine.
    - ``host``: the host that dispatches the ops of every GPU.
    - ``devices``: the devices of one machine.
    - ``device_kinds``, ``link_kinds``: properties shared by all devices or links of a kind.
    - ``nodes``: the number of machines; default 1.
    - ``gpus``: how many computing devices the job uses: the first of each machine, equally many
      on each; default all. Without ``nodes`` it runs on the fewest machines.
    - ``network``: how the machines are joined.
    - ``slow``: stragglers among all machines, by name: the share of its speed that a device keeps,
      like ``{"gpu:5": 0.8}``, or the share of its bandwidth that a link (``gpu:0 - nic:0``) or
      every link of a switch (``nic:3``) keeps.
    - ``provenance``: where the numbers come from, in any form.
    """

    name: str
    title: str
    about: str
    queues: str
    transfer: str
    collectives: str
    host: HostShape
    devices: Required[list[DeviceShape]]
    device_kinds: dict[str, DeviceKindShape]
    link_kinds: dict[str, LinkKindShape]
    nodes: int
    gpus: int
    network: NetworkShape
    slow: dict[str, Speed]
    provenance: dict[str, Any]


class ClusterShape(CommonShape, total=False):
    """A cluster whose links are listed.

    - ``links``: at most one between two devices in a direction.
    """

    links: list[LinkShape]


class ShortShape(CommonShape, total=False):
    """A cluster whose links all have the same properties.

    - ``links``: the properties of every link.
    """

    links: AllToAllShape


class PresetShape(TypedDict, total=False):
    """A preset with settings.

    - ``preset``: its name.
    - ``nodes``: how many machines.
    - ``gpus``: how many of their GPUs the job uses, equally many on each; default all. Without
      ``nodes`` it runs on the fewest machines.
    - ``network``: nominal bandwidth of each adapter; the preset's efficiency applies.
    - ``queues``, ``transfer``, ``host``: replace the preset's.
    - ``slow``: stragglers, as in a cluster.
    """

    preset: Required[str]
    nodes: int
    gpus: int
    network: Bandwidth
    queues: str
    transfer: str
    host: HostShape
    slow: dict[str, Speed]


CLUSTERS = PRESETS / "clusters"
_DEFAULT_KIND = Device("any").kind
_OPTIONS = ("queues", "transfer", "collectives", "host", "provenance")
_LISTED = Format(ClusterShape, "a cluster")
_SHORT = Format(ShortShape, "a cluster")
_PRESET = Format(PresetShape, "a cluster")


def read_cluster(
    source: PathLike | Mapping[str, Any], sheets: Sequence[DeviceSpec] = ()
) -> Cluster:
    """The cluster of a file, or of an object already parsed (which may leave out the version).

    A device without ``memory`` has the memory of its kind's datasheet, taken from ``sheets`` or
    else from those that ship. ``{"preset": NAME, "nodes": 8, "network": "25 Gbit/s"}`` is a preset
    with settings; see ``read_preset``. Raises InputError with every problem at once.
    """
    with opened(source) as (value, is_file):
        if isinstance(value, dict) and "preset" in value:
            settings = _PRESET.checked(value, is_file)
            name = settings.pop("preset")
            if name not in preset_names():
                raise InputError(f"preset: {_no_preset(name)}")
            return read_preset(name, **settings)
        return _cluster(_fields(value, is_file), sheets)


def _fields(value: Any, is_file: bool) -> Fields:
    # Two shapes, not a union: pydantic would report every fault once for each member of the union.
    is_short = isinstance(value, dict) and isinstance(value.get("links"), dict)
    return (_SHORT if is_short else _LISTED).checked(value, is_file)


def _cluster(fields: Fields, sheets: Sequence[DeviceSpec] = ()) -> Cluster:
    """The cluster of a checked object. Raises InputError."""
    require_collectives(fields.get("collectives", ""))
    problems, network = list(_kind_problems(fields)), None
    with collecting(problems):
        node = _node(fields, sheets)
    refuse(problems)
    if "network" in fields:
        joined = fields["network"]["attach"]
        attach = tuple((ends,) if isinstance(ends, str) else tuple(ends) for ends in joined)
        network = Network(**{**fields["network"], "attach": attach})
    gpus = fields.get("gpus")
    nodes = machines_of(node, fields.get("nodes"), gpus)
    if network and (nodes == 1 or gpus is not None):
        # A single node needs no network, but a network that is written must be valid.
        refuse(network_problems(node, network))
    if gpus is not None:
        node, network = cut_to(node, network, gpus // nodes)
    whole = repeated(node, nodes, network) if nodes > 1 else node
    return with_slow(whole, fields["slow"]) if "slow" in fields else whole


def _node(fields: Fields, sheets: Sequence[DeviceSpec]) -> Cluster:
    """The devices and links of a node as written, with the properties of their kinds filled in."""
    name, links = fields.get("name", "cluster"), fields.get("links", ())
    options = _with_host({key: fields[key] for key in _OPTIONS if key in fields})
    kinds = fields.get("device_kinds", {})
    devices = tuple(
        _device({**kinds.get(device.get("kind", _DEFAULT_KIND), {}), **device}, sheets)
        for device in fields["devices"]
    )
    if isinstance(links, dict):
        return _all_to_all(name, devices, options, links["all_to_all"])
    return Cluster(name, devices, _links(links, fields.get("link_kinds", {})), **options)


def _kind_problems(fields: Fields) -> Iterator[str]:
    """Faults of kinds that no device or link uses. Kinds in use are checked with the devices and
    links that use them.
    """
    devices, links, ends = fields["devices"], fields.get("links", ()), ("a", "b")
    # Links of an all-to-all cluster take nothing from kinds.
    links = () if isinstance(links, dict) else links
    for part, rows, default in (
        ("device_kinds", devices, _DEFAULT_KIND),
        ("link_kinds", links, ""),
    ):
        used = {row.get("kind", default) for row in rows}
        for kind, said in fields.get(part, {}).items():
            if kind in used:
                continue
            if rows is devices:
                problems = _device({"name": "any", "kind": kind, **said}).problems()
            else:
                link = {"ends": ends, "bandwidth": 1, "kind": kind, **said}
                problems = Link(**link).problems(ends)
            path = path_text([part, kind])
            yield from (f"{path}.{problem}" for problem in problems)


def _device(fields: Fields, sheets: Sequence[DeviceSpec] = ()) -> Device:
    """The device with these fields, and the memory of its datasheet where they have none."""
    memory = fields.get("memory")
    if memory is None:
        memory = capacity_of(fields.get("kind", _DEFAULT_KIND), sheets)
    return Device(**_with_host({**fields, "memory": None if memory == UNLIMITED else memory}))


def _with_host(fields: Fields) -> Fields:
    """The fields of a cluster or a device, with ``host`` as a Host."""
    return {**fields, "host": Host(**fields["host"])} if "host" in fields else fields


def _links(links: list[Fields], kinds: dict[str, Fields]) -> tuple[Link, ...]:
    whole = [{**kinds.get(link.get("kind", ""), {}), **link} for link in links]
    # A link may leave its bandwidth to its kind, so the shape cannot ask for it.
    refuse(
        f"links[{i}].bandwidth: missing" for i, link in enumerate(whole) if "bandwidth" not in link
    )
    # A million links have few distinct fields: each distinct set is read once.
    sorts = dict[tuple[Any, ...], Link]()
    made = []
    for link in whole:
        ends = link.pop("ends")
        sort = tuple(link.items())
        if sort not in sorts:
            sorts[sort] = Link(tuple(ends), **link)
        made.append(sorts[sort].between(*ends))
    return tuple(made)


def _all_to_all(name: str, devices: tuple[Device, ...], options: Fields, link: Fields) -> Cluster:
    require_joinable("links.all_to_all", sum(device.runs_ops for device in devices))
    # The devices are checked first, without links: a name given twice must not be reported as a
    # hundred faulty links too.
    alone = Cluster(name, devices, (), **options)
    return replace(alone, links=Cluster.all_to_all(name, devices, **link).links)


def preset_names() -> tuple[str, ...]:
    """Names of the clusters shipped with simdev."""
    return shipped(CLUSTERS)


def read_preset(
    name: str,
    nodes: int | None = None,
    *,
    gpus: int | None = None,
    network: Number | None = None,
    queues: str | None = None,
    transfer: str | None = None,
    host: Host | Mapping[str, Any] | None = None,
    slow: Mapping[str, Number] | None = None,
) -> Cluster:
    """A cluster shipped with simdev, unchanged or with settings. Raises InputError.

    ``nodes`` is the number of machines. ``gpus`` is the number of GPUs that are used (64 of a rack
    of 72, say): equally many on each machine, and on the fewest machines without ``nodes``.
    ``network`` is the nominal bandwidth of each NIC, per direction; the preset's efficiency
    applies. ``queues``, ``transfer`` and ``host`` (a Host or its fields) are as in a cluster,
    ``slow`` its stragglers. A setting changes the cluster's name.
    """
    # Looked up in the list, not on the disk: a client's name must not lead out of the folder.
    if name not in preset_names():
        raise InputError(_no_preset(name))
    fields = preset_fields(name)
    settings = {"nodes": nodes, "gpus": gpus, "queues": queues, "transfer": transfer}
    chosen: Fields = {key: value for key, value in settings.items() if value is not None}
    counts = {"nodes": nodes, "gpus": gpus}
    refuse(
        f"{key}: must be a whole number, got {value!r}"
        for key, value in counts.items()
        if value is not None and not is_count(value)
    )
    names = [name, *(f"{key} {value}" for key, value in chosen.items())]
    if network is not None:
        rate = _network_rate(network, fields)
        names.append(f"network {rate_text(rate)}")
        source = {"value": rate_text(rate), "kind": "setting", "source": "set by whoever asked"}
        fields["network"] = {**fields["network"], "bandwidth": rate}
        fields["provenance"] = {**fields.get("provenance", {}), "network.bandwidth": source}
    if host is not None:
        host = host if isinstance(host, Host) else Host(**host)
        names.append(f"host {host.mode}")
    if slow:
        names.append(f"slow {' and '.join(slow)}")
        chosen["slow"] = slow
    cluster = _cluster(fields | chosen | {"name": ", ".join(names)})
    return cluster if host is None else replace(cluster, host=host)


def _no_preset(name: str) -> str:
    return f'no preset "{name}"; {preset_hint(name)}'


def _network_rate(bandwidth: Number, fields: Fields) -> Fraction:
    if "network" not in fields:
        raise InputError("network: the preset has none whose bandwidth could be set")
    try:
        return parse_bandwidth(bandwidth)
    except ValueError as error:
        raise InputError(f"network: {error}") from None


def preset_fields(name: str) -> Fields:
    """The fields of a preset's file, checked one by one; quantities are numbers.

    Raises InputError.
    """
    with opened(CLUSTERS / f"{name}.json") as (value, _):
        return _fields(value, True)


def preset_hint(name: str) -> str:
    """The hint of an error about a preset that does not exist."""
    return meant(name, preset_names(), 'there are those of "simdev clusters"')


def cluster_object(cluster: Cluster) -> Fields:
    """The fields of the cluster's file, ready for JSON: every device and link separately, the
    provenance last.
    """
    fields: Fields = {
        "version": VERSION,
        "name": cluster.name,
        "queues": cluster.queues,
        "transfer": cluster.transfer,
        "collectives": cluster.collectives,
        "host": _host_object(cluster.host),
        "devices": [_device_object(device) for device in cluster.devices],
        "links": [changed_fields(link) for link in cluster.links],
        "provenance": plain(cluster.provenance),
    }
    # The other fields are written even where they have their defaults: a file shows what it means.
    optional = ("collectives", "host", "provenance")
    return {key: value for key, value in fields.items() if value or key not in optional}


def _device_object(device: Device) -> Fields:
    fields = changed_fields(device, "kind")
    if device.memory is None and device.runs_ops:
        fields["memory"] = UNLIMITED
    return fields | {"host": _host_object(device.host)} if device.host else fields


def _host_object(host: Host | None) -> Fields | None:
    """All fields of a host, defaults too: a file shows what it means."""
    return None if host is None else changed_fields(host, "mode", "ahead", "threads", "launch")


def write_cluster(cluster: Cluster, path: PathLike) -> None:
    """Write a cluster with one device or link a line, its provenance last.

    Raises InputError, or OSError.
    """
    write_text(path, cluster_text(cluster))


def cluster_text(cluster: Cluster) -> str:
    """The text that ``write_cluster`` writes. Raises InputError."""
    fields = cluster_object(cluster)
    listed = ("devices", "links", "provenance")
    parts = [json_line({key: value for key, value in fields.items() if key not in listed})]
    parts += [entries_text(key, map(json_line, fields[key])) for key in listed[:2]]
    if "provenance" in fields:
        origins = fields["provenance"].items()
        entries = (f"{json_line(key)}: {json_line(entry)}" for key, entry in origins)
        parts.append(entries_text("provenance", entries, "{}"))
    return ", ".join([parts[0].removesuffix("}"), *parts[1:]]) + "}\n"
