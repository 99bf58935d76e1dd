"""``nvidia-smi topo -m``: which GPUs are joined by NVLink, and how far apart the others are on
PCIe.

The matrix tells the kind of every connection and no rates. Rates and latencies are assumptions,
stated in the cluster's provenance for each kind of link: those of NVLink and PCIe that NCCL itself
reckons with (``src/graph/topo.h``), latencies as the presets of simdev have them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from typing import Any

from ..ground.errors import InputError, refuse
from ..ground.units import parse_bandwidth, parse_time, rate_text
from ..nouns.cluster import Cluster, Device, Link
from .imported import ImportedCluster
from .machine import Machine

SWITCHES = {
    "PIX": "pcie",
    "PXB": "bridges",
    "PHB": "host-bridge",
    "NODE": "socket",
    "SYS": "system",
}
"""Connections over PCIe, from the nearest (a bridge, several, the host bridge, the NUMA node, the
machine), and what stands where those of a kind meet.
"""
NEAR = tuple(SWITCHES)

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_GPU, _NVLINK = re.compile(r"GPU([0-9]{1,9})\Z"), re.compile(r"NV([0-9]{1,3})\Z")


@dataclass(frozen=True, slots=True)
class Generation:
    """What is assumed of a kind of GPU: its NVLinks, the rate of each as NCCL reckons, the
    generation of its PCIe.
    """

    ports: int
    nvlink: str
    pcie: int


UNKNOWN = Generation(18, "20 GB/s", 4)
GENERATIONS: Mapping[str, Generation] = {
    "p100": Generation(4, "18 GB/s", 3),
    "v100": Generation(6, "20 GB/s", 3),
    "t4": Generation(0, "20 GB/s", 3),
    "k80": Generation(0, "20 GB/s", 3),
    "p4000": Generation(0, "20 GB/s", 3),
    "rtx-2080": Generation(1, "20 GB/s", 3),
    "a100-40": Generation(12, "20 GB/s", 4),
    "a100-80": Generation(12, "20 GB/s", 4),
    "l40s": Generation(0, "20 GB/s", 4),
    "h100-sxm": Generation(18, "20.6 GB/s", 5),
    "h200-sxm": Generation(18, "20.6 GB/s", 5),
    "b200": Generation(18, "40.1 GB/s", 5),
    "gb200": Generation(18, "40.1 GB/s", 5),
    "rtx-pro-6000": Generation(0, "20 GB/s", 5),
}
PCIE = {3: "12 GB/s", 4: "24 GB/s", 5: "48 GB/s"}
SOCKETS = "10 GB/s"
_NVLINKS = "NVLinks told by the matrix, each at the rate that NCCL reckons with (src/graph/topo.h)"
ROLES = {
    "nvlink": ("2 us", _NVLINKS),
    "nvswitch": ("3.8 us", _NVLINKS),
    "pcie": (
        "3.85 us",
        "16 lanes: 12 GB/s for PCIe 3 as NCCL reckons (src/graph/topo.h), doubled each generation",
    ),
    "uplink": ("2.1 us", "16 lanes, shared by all that stand behind it"),
    "socket": (
        "1 us",
        "10 GB/s between sockets as NCCL reckons for Intel Skylake (src/graph/topo.h); others "
        "6 to 40",
    ),
}
"""The latency of links by what they are for, and where their bandwidth comes from."""


@dataclass(frozen=True, slots=True)
class Topology:
    """The matrix: names of GPUs, then of network adapters; kinds of connection; the affinities of
    each, which tell where it stands.
    """

    gpus: tuple[str, ...]
    adapters: tuple[str, ...]
    kinds: Mapping[tuple[str, str], str]
    places: Mapping[str, str]

    def nvlinks(self, first: str, second: str) -> int:
        """How many NVLinks join two GPUs."""
        match = _NVLINK.match(self.kinds[first, second])
        return int(match[1]) if match else 0

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Every two GPUs, in the order of the matrix."""
        return tuple(combinations(self.gpus, 2))


def parse_topology(text: str) -> Topology:
    """The matrix of the text, wherever it stands in it.

    Raises InputError with every problem, each with its line.
    """
    lines = [_ANSI.sub("", line).split() for line in text.splitlines()]
    starts = [i for i, words in enumerate(lines) if words[:1] == ["GPU0"] and "X" not in words]
    if not starts:
        raise InputError(
            'no matrix of "nvidia-smi topo -m": no line begins with the columns GPU0, GPU1, ..'
        )
    # The columns of affinities, which are two words each, stand behind.
    columns = " ".join(lines[starts[0]]).partition(" CPU")[0].partition(" NUMA")[0].split()
    kinds: dict[tuple[str, str], str] = {}
    places: dict[str, str] = {}
    problems: list[str] = []
    for number, words in enumerate(lines[starts[0] + 1 :], starts[0] + 2):
        if not words or words[0] not in columns:
            if words and not places.keys() >= set(filter(_GPU.match, columns)):
                problems.append(f'line {number}: "{words[0]}" is no column of the matrix')
            break
        name, row = words[0], words[1 : 1 + len(columns)]
        problems += [f"line {number}: {problem}" for problem in _row_problems(name, row, columns)]
        kinds |= {(name, other): kind for other, kind in zip(columns, row, strict=False)}
        places[name] = " ".join(words[1 + len(columns) :])
    gpus = tuple(filter(_GPU.match, columns))
    adapters = tuple(name for name in columns if name not in gpus and name in places)
    problems = problems or list(_matrix_problems((*gpus, *adapters), kinds))
    refuse(problems)
    return Topology(gpus, adapters, kinds, places)


def _row_problems(name: str, row: Sequence[str], columns: Sequence[str]) -> Iterator[str]:
    if len(row) < len(columns):
        yield f"{name} has {len(row)} of {len(columns)} columns"
    for other, kind in zip(columns, row, strict=False):
        if kind not in NEAR and not _NVLINK.match(kind) and (kind != "X" or name != other):
            yield f'{name}, column {other}: must be one of NV#, {", ".join(NEAR)}, got "{kind}"'


def _matrix_problems(names: Sequence[str], kinds: Mapping[tuple[str, str], str]) -> Iterator[str]:
    yield from (f"the row of {name} is missing" for name in names if (name, name) not in kinds)
    for first, second in combinations(names, 2):
        there, back = kinds.get((first, second)), kinds.get((second, first))
        if None not in (there, back) and there != back:
            yield f"{first} to {second} is {there}, {second} to {first} is {back}"


def topology_cluster(
    topology: Topology, machine: Machine, name: str | None = None
) -> ImportedCluster:
    """The cluster of a matrix, of GPUs of the kind ``machine.device``; ``machine.bandwidth`` is
    that of a GPU's PCIe.

    Pairs of NV# have a link of that many lanes, or all GPUs one to a switch where a GPU has not as
    many NVLinks as such links would need. Others go over a tree of PCIe switches, host bridges and
    sockets. Raises InputError.
    """
    if machine.device is None:
        raise InputError(
            "--device: missing; the matrix does not tell what the GPUs are (v100, h100-sxm, ..)"
        )
    machine.refuse("the matrix tells it", "devices", "cluster")
    build = _Builder(topology, machine)
    build.nvlinks()
    if not all(topology.nvlinks(*pair) for pair in topology.pairs):
        build.pcie()
    notes = ["rates and latencies are assumptions, stated in the provenance: the matrix tells none"]
    if machine.device not in GENERATIONS:
        assumed = f"NVLinks of {UNKNOWN.nvlink}, PCIe {UNKNOWN.pcie} are assumed"
        notes.append(f'"{machine.device}" is not known: {assumed}')
    if topology.adapters:
        adapters = ", ".join(topology.adapters)
        notes.append(f"left out the network adapters {adapters}: their rates are not told")
    cluster = Cluster(
        name or "nvidia-smi topology",
        (*build.gpus, *build.switches),
        tuple(build.links),
        "link",
        provenance=build.provenance,
    )
    return ImportedCluster(cluster, source="nvidia-smi-topo", notes=tuple(notes))


class _Builder:
    """Puts the cluster together, link by link."""

    def __init__(self, topology: Topology, machine: Machine) -> None:
        self.topology = topology
        self.generation = GENERATIONS.get(machine.device or "", UNKNOWN)
        rate = PCIE[self.generation.pcie] if machine.bandwidth is None else machine.bandwidth
        try:
            self.lane, self.bus = parse_bandwidth(self.generation.nvlink), parse_bandwidth(rate)
        except ValueError as error:
            raise InputError(f"--bandwidth: {error}") from None
        self.names = {gpu: f"gpu:{gpu.removeprefix('GPU')}" for gpu in topology.gpus}
        self.gpus = [
            Device(name, machine.device or "", machine.capacity, transit=False)
            for name in self.names.values()
        ]
        self.switches: list[Device] = []
        self.links: list[Link] = []
        self.provenance: dict[str, Any] = {}

    def nvlinks(self) -> None:
        """A link for each pair of NV#, or for each GPU one to a switch."""
        counts = {pair: self.topology.nvlinks(*pair) for pair in self.topology.pairs}
        used = [
            sum(count for pair, count in counts.items() if gpu in pair)
            for gpu in self.topology.gpus
        ]
        kinds = set(counts.values())
        if len(kinds) == 1 and max(used) > self.generation.ports:
            switch = self.switch("nvswitch")
            for name in self.names.values():
                self.link(name, switch, "nvswitch", "nvlink", min(kinds))
            return
        several = len(kinds - {0}) > 1
        for (first, second), count in counts.items():
            if count:
                kind = f"nvlink-x{count}" if several else "nvlink"
                self.link(self.names[first], self.names[second], "nvlink", kind, count)

    def pcie(self) -> None:
        """A tree: what is near meets at a switch of its own, and these meet farther up."""
        # The device at the top of each part so far. Adapters take part ("": no device), for two
        # GPUs joined by NVLink are often known to share a bridge only by the adapter that both are
        # near to.
        tops = {
            frozenset([name]): self.names.get(name, "")
            for name in (*self.names, *self.topology.adapters)
        }
        for depth, kind in enumerate(NEAR):
            tops = {
                frozenset().union(*parts): self._joined(
                    kind, [tops[part] for part in tops if part in parts and tops[part]]
                )
                for parts in self._meeting(depth, list(tops))
            }

    def _joined(self, kind: str, parts: Sequence[str]) -> str:
        """The device at the top of parts that meet: a switch, or a part that is alone."""
        if len(parts) < 2:
            return parts[0] if parts else ""
        # Two sockets are joined by a link of their own, not by a switch.
        if kind == "SYS" and len(parts) == 2 and not set(parts) & set(self.names.values()):
            self.link(parts[0], parts[1], "socket", "socket")
            return parts[0]
        switch = self.switch(SWITCHES[kind])
        for part in parts:
            leaf = part in self.names.values()
            role = "pcie" if leaf else "socket" if kind == "SYS" else "uplink"
            self.link(part, switch, role, role)
        return switch

    def _meeting(self, depth: int, parts: Sequence[frozenset[str]]) -> list[set[frozenset[str]]]:
        """Sets of parts that are connected no farther than this, in the order of the matrix."""
        import networkx as nx

        graph: nx.Graph[frozenset[str]] = nx.Graph()
        graph.add_nodes_from(parts)
        graph.add_edges_from(
            (first, second)
            for first, second in combinations(parts, 2)
            if any(self._within(a, b, depth) for a in first for b in second)
        )
        rows = {name: i for i, name in enumerate((*self.topology.gpus, *self.topology.adapters))}
        return sorted(
            nx.connected_components(graph),
            key=lambda meeting: min(rows[name] for part in meeting for name in part),
        )

    def _within(self, first: str, second: str, depth: int) -> bool:
        kind = self.topology.kinds[first, second]
        if kind in NEAR:
            return NEAR.index(kind) <= depth
        # NVLink hides where two GPUs stand; the same affinities mean the same NUMA node.
        near = self.topology.places[first] == self.topology.places[second] != ""
        return depth >= NEAR.index("NODE" if near else "SYS")

    def switch(self, name: str) -> str:
        """A switch more; returns its name."""
        count = sum(device.name.startswith(f"{name}:") for device in self.switches)
        self.switches.append(Device(f"{name}:{count}", "switch"))
        return self.switches[-1].name

    def link(self, first: str, second: str, role: str, kind: str, lanes: int | None = None) -> None:
        """A link more, with the provenance of its kind."""
        latency, source = ROLES[role]
        if lanes is not None:
            rate = self.lane * lanes
        else:
            rate = parse_bandwidth(SOCKETS) if role == "socket" else self.bus
        self.links.append(
            Link(
                (first, second),
                rate,
                parse_time(latency),
                hold_latency=False,
                kind=kind,
                lanes=lanes,
            )
        )
        for field, value, origin in (
            ("bandwidth", rate_text(Fraction(rate)), source),
            ("latency", latency, "presets of simdev"),
        ):
            self.provenance[f"links.{kind}.{field}"] = {
                "value": value,
                "kind": "assumed",
                "source": origin,
            }
