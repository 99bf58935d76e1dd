"""The keys of a cluster's file, and what they mean."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Required

from pydantic import Field
from typing_extensions import TypedDict

from .shape import Bandwidth, Capacity, OptionalBytes, Seconds, Share, Slowdown


class HostShape(TypedDict, total=False):
    """What dispatches the ops of a device.

    - ``mode``: ``eager``: every op is dispatched by itself, for its ``host_time``; ``graph``:
      the device's step is one CUDA graph, dispatched in ``launch``; ``none``: no host.
    - ``ahead``: how many launches the host may be before what its device has finished; default
      1024.
    - ``threads``: a thread for each ``device`` (default), or for all of a ``node``.
    - ``launch``: how long the replay of a graph takes the host; default 10 us.
    """

    mode: str
    ahead: int
    threads: str
    launch: Seconds


class DeviceKindShape(TypedDict, total=False):
    """What all devices of a kind share.

    - ``memory``: its size, or ``unlimited``; left out or null: that of the datasheet of its kind,
      unlimited where none tells it.
    - ``gap``: how long it pauses after each op of positive duration.
    - ``staging``: whether transfers through it stop there, which cuts a route in two.
    - ``chunk``: bytes of the pieces in which a staging device passes transfers on.
    - ``transit``: false: no route leads through it.
    - ``host``: its own, before the cluster's.
    - ``beside_copies``: how many times longer it computes while a transfer begins or ends
      there, 1 to 2.
    """

    memory: Capacity
    gap: Seconds
    staging: bool
    chunk: OptionalBytes
    transit: bool
    host: HostShape
    beside_copies: Slowdown


class DeviceShape(DeviceKindShape, total=False):
    """A device; its keys go before its kind's.

    - ``name``: unique.
    - ``kind``: default ``gpu``; a ``switch`` carries routes and runs no op.
    - ``node``: the machine in which it stands.
    """

    name: Required[str]
    kind: str
    node: int


class LinkKindShape(TypedDict, total=False):
    """What all links of a kind share.

    - ``bandwidth``: in each direction.
    - ``latency``: of each transfer over it.
    - ``gap``: how long it pauses after each transfer.
    - ``duplex``: ``full`` (default), ``half``: both directions share it, or ``simplex``: only
      from the first end to the second.
    - ``hold_latency``: whether a transfer holds its queue during the latency; default true.
    - ``lanes``: how many physical links it bundles; rings are laid along them.
    - ``both_ways``: how many times longer transfers take while others cross it the other way, 1
      to 2.
    - ``measured_bandwidth``, ``measured_latency``: those that it had when the collectives of the
      cluster were measured; default: as they are.
    """

    bandwidth: Bandwidth
    latency: Seconds
    gap: Seconds
    duplex: Literal["full", "half", "simplex"]
    hold_latency: bool
    lanes: int
    both_ways: Slowdown
    measured_bandwidth: Bandwidth
    measured_latency: Seconds


class LinkShape(LinkKindShape, total=False):
    """A link; its keys go before its kind's.

    - ``ends``: two devices.
    - ``kind``: a key of ``link_kinds``.
    """

    ends: Required[Annotated[list[str], Field(min_length=2, max_length=2)]]
    kind: str


class EveryLinkShape(TypedDict, total=False):
    """What all links share, with the keys of a kind of link."""

    bandwidth: Required[Bandwidth]
    latency: Seconds
    gap: Seconds
    duplex: Literal["full", "half"]
    hold_latency: bool
    kind: str
    lanes: int
    both_ways: Slowdown
    measured_bandwidth: Bandwidth
    measured_latency: Seconds


class AllToAllShape(TypedDict, total=False):
    """Links between any two devices.

    - ``all_to_all``: what each of them is.
    """

    all_to_all: Required[EveryLinkShape]


class NetworkShape(TypedDict, total=False):
    """What joins the machines: a switch that never blocks.

    - ``attach``: an entry for each network adapter: the device, or devices, that it is linked
      with.
    - ``bandwidth``: of each adapter, in each direction.
    - ``efficiency``: the share of it that transfers reach; default 1.
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
    - ``collectives``: collections of measured tables that hold inside one machine, by name.
    - ``host``: what dispatches the ops of every GPU.
    - ``devices``: those of one machine.
    - ``device_kinds``, ``link_kinds``: what all of a kind share.
    - ``nodes``: how often the machine is repeated; default 1.
    - ``network``: how the machines are joined.
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
    network: NetworkShape
    provenance: dict[str, Any]


class ClusterShape(CommonShape, total=False):
    """A cluster whose links are listed.

    - ``links``: at most one between two devices in a direction.
    """

    links: list[LinkShape]


class ShortShape(CommonShape, total=False):
    """A cluster whose links are all alike.

    - ``links``: what every one of them is.
    """

    links: AllToAllShape


class PresetShape(TypedDict, total=False):
    """A preset with settings.

    - ``preset``: its name.
    - ``nodes``: how many machines.
    - ``network``: bandwidth of each adapter as sold; the preset's efficiency applies.
    - ``queues``, ``transfer``, ``host``: in place of the preset's.
    """

    preset: Required[str]
    nodes: int
    network: Bandwidth
    queues: str
    transfer: str
    host: HostShape
