"""The machine: its devices, hosts and links (``Device``, ``Host``, ``Link``), and the ``Cluster``
that they make. ``simdev.files.cluster`` and the importers make clusters; ``simdev.nouns.fabric``
says how bytes go on them.

A link is written once and normalised: its ends in the order of the devices, the links sorted by
their ends, so that listing them in another order changes nothing.

A queue mode is a name of ``QUEUES`` and a row of ``fabric.MODES``. A way to send an output to
several readers is a name of ``TRANSFERS``, a rule of ``simdev/lowering/transfer.py``, and a number
in ``simdev/oracle/placements/problem.py``. Modes of hosts have their meaning in
``simdev/lowering/hosts.py``, ``simdev/lowering/hybrid/dispatch.py`` (large models),
``simdev/oracle/cluster.py`` and, judged in another way, ``simdev/execution/check/hosts.py``.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from functools import cached_property
from itertools import combinations
from typing import Any

from ..ground.errors import refuse
from ..ground.frozen import FrozenDict, freeze
from ..ground.registry import Displayed
from ..ground.units import (
    MAX_BYTES,
    Bandwidth,
    Bytes,
    Seconds,
    Slowdown,
    Speed,
    is_count,
    name_problems,
    named_twice,
    unlisted,
    unread,
)

# Here, since files are checked before a fabric is made; ``fabric.MODES`` has the same names.
QUEUES = ("parallel", "device", "half-duplex", "egress", "link", "fair")
TRANSFERS = ("once-per-device", "per-consumer", "multicast")
# prefixes of queue names; the name of a device follows
QUEUE_PREFIXES = ("send ", "recv ", "channel ", "link ", "lane ", "thread ", "stream ")
HOST_MODES = ("eager", "graph", "none")
THREADS = ("device", "node")
DUPLEX = ("full", "half", "simplex")
HOST_WORDS = frozenset({"host", "cpu", "1core"})
"""Words that mark a kind of device as a host: "host-cpu", "cpu", and "epyc-1core", as profiles name
the CPU that they measured.
"""
UNLIMITED = Fraction(10**30)  # bytes per second, more than any link has


@dataclass(frozen=True, slots=True)
class Host:
    """The host that dispatches the ops of a device: a thread that runs ahead of it by at most
    ``ahead`` launches.

    ``mode`` "eager" dispatches each op by itself, "graph" the device's whole step by one ``launch``
    (in seconds: the replay of a CUDA graph), "none" nothing. ``threads``: a thread for each
    "device", or one for all devices of a "node". A dispatch is at most ``ahead`` launches ahead of
    the work that its device has finished. Raises InputError.
    """

    mode: str = "eager"
    ahead: int = 1024
    threads: str = "device"
    launch: Seconds = "10 us"

    def __post_init__(self) -> None:
        refuse(unread(self))

    def problems(self) -> Iterator[str]:
        """``field: reason`` for each fault."""
        yield from unlisted(self, mode=HOST_MODES, threads=THREADS)
        if not (is_count(self.ahead) and self.ahead):
            yield f"ahead: must be a whole number > 0, got {self.ahead!r}"


@dataclass(frozen=True, slots=True)
class Device:
    """A place that runs ops and holds buffers, or (kind ``switch``) only forwards transfers.

    ``memory`` is in bytes (None: unlimited; a file that gives none takes the datasheet's). ``gap``
    in seconds follows each op of positive duration. ``staging`` cuts every route through the device
    into two transfers, in chunks of ``chunk`` bytes (None: one chunk). Where ``transit`` is false,
    no route passes through it (a GPU does not forward what is meant for another). ``node`` is the
    machine that it is in, ``host`` the Host that dispatches its ops (None: the cluster's).
    ``beside_copies`` is how many times longer its ops take while a transfer begins or ends there,
    and how many times longer that transfer takes (1 to 2). ``speed`` is its speed as a share of the
    speed of its kind; below 1 it is a straggler.
    """

    name: str
    kind: str = "gpu"
    memory: Bytes | None = None
    gap: Seconds = 0
    staging: bool = False
    chunk: Bytes | None = None
    transit: bool = True
    node: int = 0
    host: Host | None = None
    beside_copies: Slowdown = 1
    speed: Speed = 1

    def __post_init__(self) -> None:
        refuse(unread(self))

    @property
    def runs_ops(self) -> bool:
        """Whether ops may be placed on it."""
        return self.kind != "switch"

    @property
    def is_host(self) -> bool:
        """Whether the kind names a CPU, or it stages transfers: a host beside accelerators."""
        # Whole words are compared: "epyc-1core" is a host, "cpu2gpu" is not.
        names_cpu = not HOST_WORDS.isdisjoint(self.kind.lower().split("-"))
        return self.runs_ops and (self.staging or names_cpu)

    def problems(self) -> Iterator[str]:
        """``field: reason`` for each fault."""
        yield from name_problems("name", self.name)
        yield from name_problems("kind", self.kind)
        if self.name.startswith(QUEUE_PREFIXES):
            yield (
                f'name: "{self.name}" reads as a queue; it may not start with '
                f"{', '.join(QUEUE_PREFIXES)}"
            )
        if self.chunk == 0:
            yield "chunk: must be > 0, got 0"
        if self.chunk is not None and not self.staging:
            yield "chunk: only a staging device cuts transfers into chunks"
        if self.beside_copies != 1 and not self.runs_ops:
            yield "beside_copies: a switch computes nothing beside its copies"
        if self.speed != 1 and not self.runs_ops:
            yield "speed: a switch computes nothing"
        if not is_count(self.node):
            yield f"node: must be a whole number, got {self.node!r}"
        if self.host is not None:
            yield from (f"host.{problem}" for problem in self.host.problems())


@dataclass(frozen=True, slots=True)
class Link:
    """A connection of two devices: ``bandwidth`` in bytes per second and direction, ``latency`` and
    ``gap`` in seconds.

    ``duplex`` is full (a half-link, that is one direction of a link, each way), half (both
    directions share one half-link) or simplex (first end to second only). ``hold_latency`` says
    whether the latency occupies the queue. ``kind`` ("nvlink", "pcie") names the technology, and
    the link's entry in the provenance. ``lanes`` is the number of physical links that it bundles
    (None: not known): a transfer takes all of them, each ring of a collective one lane.
    ``both_ways`` is how many times longer transfers take while others cross it in the other
    direction (1 to 2). ``measured_bandwidth`` and ``measured_latency`` are the values at the time
    when the collectives of its cluster were measured (None: unchanged). ``slowed`` is ``bandwidth``
    as a share of the bandwidth of a healthy link of its kind.
    """

    ends: tuple[str, str]
    bandwidth: Bandwidth
    latency: Seconds = 0
    gap: Seconds = 0
    duplex: str = "full"
    hold_latency: bool = True
    kind: str = ""
    lanes: int | None = None
    both_ways: Slowdown = 1
    measured_bandwidth: Bandwidth | None = None
    measured_latency: Seconds | None = None
    slowed: Speed = 1

    def __post_init__(self) -> None:
        freeze(self, "ends")
        refuse(unread(self))

    def problems(self, devices: Container[str]) -> Iterator[str]:
        """``field: reason`` for each fault of the link in a cluster with these device names."""
        for side, end in enumerate(self.ends):
            if end not in devices:
                yield f'ends[{side}]: no device named "{end}"'
        if self.ends[0] == self.ends[1]:
            yield f'ends: "{self.ends[0]}" is linked to itself'
        yield from unlisted(self, duplex=DUPLEX)
        if self.kind:
            yield from name_problems("kind", self.kind)
        if self.lanes is not None and not (is_count(self.lanes) and self.lanes):
            yield f"lanes: must be a whole number > 0, got {self.lanes!r}"
        if self.both_ways != 1 and self.duplex != "full":
            yield f"both_ways: only a full-duplex link has two ways, this one is {self.duplex}"

    @property
    def as_measured(self) -> Link:
        """The link as it was when the collectives of its cluster were measured."""
        if self.measured_bandwidth is None and self.measured_latency is None:
            return self
        was: dict[str, Any] = {
            "bandwidth": self.measured_bandwidth,
            "latency": self.measured_latency,
        }
        before = {name: value for name, value in was.items() if value is not None}
        slowed = self.slowed if self.measured_bandwidth is None else 1
        given = {"measured_bandwidth": None, "measured_latency": None, "slowed": slowed}
        return replace(self, **given | before)

    def changed(self, wider: int | Fraction = 1, later: int | Fraction = 1) -> Link:
        """The link with ``wider`` times the bandwidth (at most MAX_BYTES/s), ``later`` times the
        latency.
        """
        then = self.as_measured
        rate = min(Fraction(self.bandwidth) * wider, Fraction(MAX_BYTES))
        latency = Fraction(self.latency) * later
        return replace(
            self,
            bandwidth=rate,
            latency=latency,
            measured_bandwidth=None if rate == then.bandwidth else then.bandwidth,
            measured_latency=None if latency == then.latency else then.latency,
        )

    def between(self, first: str, second: str) -> Link:
        """A link with these quantities between two other devices."""
        copy = object.__new__(Link)
        # ``replace`` would parse the quantities again, and clusters have up to a million links.
        for name in _LINK_FIELDS:
            object.__setattr__(copy, name, getattr(self, name))
        object.__setattr__(copy, "ends", (first, second))
        return copy


_LINK_FIELDS = tuple(link_field.name for link_field in fields(Link))


@dataclass(frozen=True, slots=True)
class HalfLink:
    """One direction of a link, or both directions of a half-duplex link: the unit that transfers
    queue for or share.
    """

    name: str
    link: Link


@dataclass(frozen=True)
class Cluster(Displayed):
    """Devices, links and how transfers queue. Raises InputError with every problem at once.

    ``collectives`` names the tables of collectives measured on such nodes ("": none). ``host``
    dispatches the ops of every device that has no host of its own and is neither a switch nor a
    CPU. ``provenance`` holds the sources of the numbers; comparisons ignore it.
    """

    name: str
    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()
    queues: str = "half-duplex"
    transfer: str = "once-per-device"
    collectives: str = ""
    host: Host | None = None
    provenance: Mapping[str, Any] = field(default=FrozenDict(), compare=False, repr=False)

    def __post_init__(self) -> None:
        freeze(self, "devices", "links", "provenance")
        refuse(self._problems())
        object.__setattr__(
            self, "links", tuple(sorted(map(self._oriented, self.links), key=self._link_order))
        )

    def _problems(self) -> Iterator[str]:
        if not self.devices:
            yield "devices: at least one is needed"
        for i, device in enumerate(self.devices):
            yield from (f"devices[{i}].{problem}" for problem in device.problems())
        yield from named_twice("devices", (device.name for device in self.devices))
        taken: dict[tuple[str, str], int] = {}
        for i, link in enumerate(self.links):
            yield from (f"links[{i}].{problem}" for problem in link.problems(self.index))
            # Two simplex links may join a pair, one each way; any other twin would be ambiguous.
            for pair in [link.ends] if link.duplex == "simplex" else [link.ends, link.ends[::-1]]:
                if taken.setdefault(pair, i) != i:
                    yield (
                        f'links[{i}]: "{pair[0]}" and "{pair[1]}" are already linked by '
                        f"links[{taken[pair]}]"
                    )
                    break
        yield from unlisted(self, queues=QUEUES, transfer=TRANSFERS)
        if self.host is not None:
            yield from (f"host.{problem}" for problem in self.host.problems())
        yield from self._thread_problems()

    def _thread_problems(self) -> Iterator[str]:
        """Faults of devices whose thread would have the name of a node's thread."""
        hosts = (self.host, *(device.host for device in self.devices))
        if not any(host is not None and host.threads == "node" for host in hosts):
            return
        names: dict[str, list[tuple[int, str]]] = {"device": [], "node": []}
        for i in self.hosted:
            host = self.host_of(i)
            if host is not None and host.threads in names:
                names[host.threads].append((i, self.thread_of(i)))
        nodes = {name for _, name in names["node"]}
        for i, name in names["device"]:
            if name in nodes:
                yield f'devices[{i}].name: "{name}" reads as the thread of that node'

    def _oriented(self, link: Link) -> Link:
        first, second = (self.index[end] for end in link.ends)
        if link.duplex == "simplex" or first < second:
            return link
        return replace(link, ends=(link.ends[1], link.ends[0]))

    def _link_order(self, link: Link) -> tuple[int, int]:
        return self.index[link.ends[0]], self.index[link.ends[1]]

    @classmethod
    def all_to_all(
        cls,
        name: str,
        devices: Sequence[Device],
        queues: str = "half-duplex",
        transfer: str = "once-per-device",
        **link: object,
    ) -> Cluster:
        """A cluster in which every two devices that run ops have a link of their own. ``link``
        holds the fields of Link.
        """
        ends = [device.name for device in devices if device.runs_ops]
        like = Link(("", ""), **link)  # type: ignore[arg-type]
        links = tuple(like.between(a, b) for a, b in combinations(ends, 2))
        return cls(name, tuple(devices), links, queues, transfer)

    @cached_property
    def index(self) -> dict[str, int]:
        """Position of each device by its name."""
        return {device.name: i for i, device in enumerate(self.devices)}

    @cached_property
    def has_stragglers(self) -> bool:
        """Whether some device is slower than its kind."""
        return any(device.speed != 1 for device in self.devices)

    @cached_property
    def without_stragglers(self) -> Cluster:
        """The cluster with every device and link at the speed of its kind; itself where all are."""
        slow = any(link.slowed != 1 for link in self.links)
        if not (slow or self.has_stragglers):
            return self
        links = tuple(
            replace(link.changed(1 / Fraction(link.slowed)), slowed=1) if link.slowed != 1 else link
            for link in self.links
        )
        devices = tuple(replace(device, speed=1) for device in self.devices)
        return replace(self, devices=devices, links=links)

    @cached_property
    def workers(self) -> tuple[int, ...]:
        """The devices that a step is spread over by default: no switches, and no hosts beside
        others.
        """
        able = tuple(i for i, device in enumerate(self.devices) if device.runs_ops)
        return tuple(i for i in able if not self.devices[i].is_host) or able

    def why_no_place(self, name: str) -> str:
        """The reason why no op can be placed on the device of this name; "" where ops can."""
        if name not in self.index:
            return f'no device named "{name}"'
        return (
            ""
            if self.devices[self.index[name]].runs_ops
            else f'"{name}" is a switch and runs no op'
        )

    def host_of(self, index: int) -> Host | None:
        """The host that dispatches the ops of the device at ``index``, None without any.

        The device's own entry wins over the cluster's, which does not apply to switches and CPUs.
        """
        device = self.devices[index]
        inherits = device.runs_ops and not device.is_host
        host = device.host or (self.host if inherits else None)
        return None if host is None or host.mode == "none" else host

    def thread_of(self, index: int) -> str:
        """The name of the thread that dispatches for a device: "node 0", or the device's name."""
        host, device = self.host_of(index), self.devices[index]
        serves_node = host is not None and host.threads == "node"
        return f"node {device.node}" if serves_node else device.name

    @cached_property
    def hosted(self) -> tuple[int, ...]:
        """The devices whose ops a host dispatches."""
        return tuple(i for i in range(len(self.devices)) if self.host_of(i) is not None)

    @cached_property
    def half_links(self) -> tuple[HalfLink, ...]:
        """Every directed half-link, in the order of the links; a half-duplex link has one."""
        half_links = []
        for link in self.links:
            a, b = link.ends
            names = [f"{a}<>{b}"] if link.duplex == "half" else [f"{a}>{b}", f"{b}>{a}"]
            names = names[:1] if link.duplex == "simplex" else names
            half_links += [HalfLink(f"link {name}", link) for name in names]
        return tuple(half_links)

    @cached_property
    def neighbours(self) -> tuple[dict[int, int], ...]:
        """For each device, the half-link (index) to each neighbour, by the neighbour's index."""
        neighbours: tuple[dict[int, int], ...] = tuple({} for _ in self.devices)
        number = 0
        for link in self.links:
            a, b = (self.index[end] for end in link.ends)
            neighbours[a][b] = number
            if link.duplex != "simplex":
                number += link.duplex == "full"
                neighbours[b][a] = number
            number += 1
        return neighbours

    @cached_property
    def alike(self) -> tuple[int, ...]:
        """For each half-link a number; half-links with equal quantities share it."""
        numbers: dict[tuple[object, ...], int] = {}
        same: dict[tuple[int, ...], int] = {}
        alike = []
        for link in (half_link.link for half_link in self.half_links):
            # Fractions hash slowly; links of equal nodes share these objects, so ids come first.
            quantities = (
                link.bandwidth, link.latency, link.gap, link.measured_bandwidth,
                link.measured_latency, link.hold_latency,
            )  # fmt: skip
            objects = tuple(map(id, quantities))
            if objects not in same:
                same[objects] = numbers.setdefault(quantities, len(numbers))
            alike.append(same[objects])
        return tuple(alike)

    @cached_property
    def as_measured(self) -> Cluster:
        """The cluster with its links as they were when its collectives were measured; itself where
        no link has changed since.
        """
        links = tuple(link.as_measured for link in self.links)
        unchanged = all(a is b for a, b in zip(links, self.links, strict=True))
        return self if unchanged else replace(self, links=links)

    def __repr__(self) -> str:
        return (
            f"Cluster({self.name!r}, {len(self.devices)} devices, {len(self.links)} links, "
            f"{self.queues})"
        )
