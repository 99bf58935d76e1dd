"""``nvidia-smi topo -m``: which GPUs are joined by NVLink, and how far apart the others are on
PCIe.

The matrix tells the kind of every connection and no rates. Rates and latencies are assumptions,
stated in the cluster's provenance one by one: those of NVLink and PCIe that NCCL itself reckons
with (``src/graph/topo.h``), latencies as the presets of simdev have them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..cluster import Cluster, Device, Link
from ..errors import InputError
from ..files.writing import rate_text
from ..units import parse_bandwidth, parse_time
from .imported import ImportedCluster
from .machine import Machine

NEAR = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Connections over PCIe, from the nearest: one bridge, several, the host bridge, the NUMA node, the
machine.
"""

SWITCHES = {
    "PIX": "pcie",
    "PXB": "bridges",
    "PHB": "host-bridge",
    "NODE": "socket",
    "SYS": "system",
}
"""What stands where connections of a kind meet."""

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_GPU, _NVLINK = re.compile(r"GPU(\d+)\Z"), re.compile(r"NV(\d+)\Z")


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
LATENCY = {
    "nvlink": "2 us",
    "nvswitch": "3.8 us",
    "pcie": "3.85 us",
    "uplink": "2.1 us",
    "socket": "1 us",
}
SOURCES = {
    "nvlink": (
        "NVLinks told by the matrix, each at the rate that NCCL reckons with (src/graph/topo.h)"
    ),
    "nvswitch": (
        "NVLinks told by the matrix, each at the rate that NCCL reckons with (src/graph/topo.h)"
    ),
    "pcie": (
        "16 lanes: 12 GB/s for PCIe 3 as NCCL reckons (src/graph/topo.h), doubled each generation"
    ),
    "uplink": "16 lanes, shared by all that stand behind it",
    "socket": (
        "10 GB/s between sockets as NCCL reckons for Intel Skylake (src/graph/topo.h); "
        "others 6 to 40"
    ),
}


@dataclass(frozen=True, slots=True)
class Topology:
    """The matrix: names of GPUs, then of network adapters; kinds of connection; what is told of
    each GPU's place.
    """

    gpus: tuple[str, ...]
    adapters: tuple[str, ...]
    kinds: Mapping[tuple[str, str], str]
    places: Mapping[str, str]

    def kind(self, first: str, second: str) -> str:
        """How two are connected."""
        return self.kinds[first, second]

    def nvlinks(self, first: str, second: str) -> int:
        """How many NVLinks join two GPUs."""
        found = _NVLINK.match(self.kind(first, second))
        return int(found[1]) if found else 0

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Every two GPUs, in the order of the matrix."""
        return tuple((a, b) for i, a in enumerate(self.gpus) for b in self.gpus[i + 1 :])


def parse_topology(text: str) -> Topology:
    """The matrix of the text, wherever it stands in it.

    Raises InputError with every problem, each with its line.
    """
    lines = [_ANSI.sub("", line) for line in text.splitlines()]
    start = next(
        (
            i
            for i, line in enumerate(lines)
            if line.split()[:1] == ["GPU0"] and "X" not in line.split()
        ),
        None,
    )
    if start is None:
        raise InputError(
            'no matrix of "nvidia-smi topo -m": no line begins with the columns GPU0, GPU1, ..'
        )
    columns = _columns(lines[start])
    kinds: dict[tuple[str, str], str] = {}
    places: dict[str, str] = {}
    problems: list[str] = []
    for number, line in enumerate(lines[start + 1 :], start + 2):
        words = line.split()
        if not words or words[0] not in columns:
            if words and not places.keys() >= {name for name in columns if _GPU.match(name)}:
                problems.append(f'line {number}: "{words[0]}" is no column of the matrix')
            break
        name, row = words[0], words[1 : 1 + len(columns)]
        problems += [f"line {number}: {problem}" for problem in _row_problems(name, row, columns)]
        kinds |= {(name, other): kind for other, kind in zip(columns, row, strict=False)}
        places[name] = " ".join(words[1 + len(columns) :])
    gpus = tuple(name for name in columns if _GPU.match(name))
    adapters = tuple(name for name in columns if not _GPU.match(name) and name in places)
    problems = problems or list(_matrix_problems((*gpus, *adapters), kinds))
    if problems:
        raise InputError(problems)
    return Topology(gpus, adapters, kinds, places)


def _columns(header: str) -> tuple[str, ...]:
    """The names before the columns of affinities, which are two words each."""
    words = header.split()
    end = next((i for i, word in enumerate(words) if word in ("CPU", "NUMA")), len(words))
    return tuple(words[:end])


def _row_problems(name: str, row: Sequence[str], columns: Sequence[str]) -> Iterable[str]:
    if len(row) < len(columns):
        yield f"{name} has {len(row)} of {len(columns)} columns"
    for other, kind in zip(columns, row, strict=False):
        if kind not in NEAR and not _NVLINK.match(kind) and (kind != "X" or name != other):
            yield f'{name}, column {other}: must be one of NV#, {", ".join(NEAR)}, got "{kind}"'


def _matrix_problems(names: Sequence[str], kinds: Mapping[tuple[str, str], str]) -> Iterable[str]:
    for i, first in enumerate(names):
        if (first, first) not in kinds:
            yield f"the row of {first} is missing"
            continue
        for second in names[i + 1 :]:
            there, back = kinds.get((first, second)), kinds.get((second, first))
            if back is not None and there != back:
                yield f"{first} to {second} is {there}, {second} to {first} is {back}"


def topology_cluster(
    topology: Topology, machine: Machine, name: str = "nvidia-smi topology"
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
    wrong = [
        f"{asked}: the matrix tells it"
        for asked in machine.asked
        if asked in ("--devices", "--cluster")
    ]
    if wrong:
        raise InputError(wrong)
    build = _Builder(topology, machine)
    build.nvlinks()
    if any(not topology.nvlinks(*pair) for pair in topology.pairs):
        build.pcie()
    devices = (*build.gpus, *build.switches)
    cluster = Cluster(name, devices, tuple(build.links), "link", provenance=build.provenance)
    notes = ["rates and latencies are assumptions, stated in the provenance: the matrix tells none"]
    if machine.device not in GENERATIONS:
        notes.append(
            f'"{machine.device}" is not known: NVLinks of {UNKNOWN.nvlink}, PCIe '
            f"{UNKNOWN.pcie} are assumed"
        )
    if topology.adapters:
        notes.append(
            f"left out the network adapters {', '.join(topology.adapters)}: their rates "
            "are not told"
        )
    return ImportedCluster(cluster, "nvidia-smi-topo", tuple(notes))


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
        sheet = machine.datasheet
        memory = machine.memory if machine.memory is not None or sheet is None else sheet.memory
        self.names = {gpu: f"gpu:{gpu.removeprefix('GPU')}" for gpu in topology.gpus}
        self.gpus = [
            Device(self.names[gpu], machine.device or "", memory, transit=False)
            for gpu in topology.gpus
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
        if counts and len(set(counts.values())) == 1 and max(used) > self.generation.ports:
            switch = self.switch("nvswitch")
            for gpu in self.topology.gpus:
                self.link(
                    self.names[gpu], switch, "nvswitch", "nvlink", next(iter(counts.values()))
                )
            return
        several = len({count for count in counts.values() if count}) > 1
        for (first, second), count in counts.items():
            if count:
                kind = f"nvlink-x{count}" if several else "nvlink"
                self.link(self.names[first], self.names[second], "nvlink", kind, count)

    def pcie(self) -> None:
        """A tree: what is near meets at a switch of its own, and these meet farther up."""
        # What stands at the top of each part so far, and whose it is: adapters take part, for two
        # GPUs joined by NVLink are often known to share a bridge only by the adapter that both are
        # near to.
        tops: dict[frozenset[str], str] = {
            frozenset([name]): self.names.get(name, "")
            for name in (*self.names, *self.topology.adapters)
        }
        for depth, kind in enumerate(NEAR):
            merged: dict[frozenset[str], str] = {}
            for group in self._groups(depth, list(tops)):
                parts = [part for part in tops if part <= group]
                real = [tops[part] for part in parts if tops[part]]
                merged[group] = self._joined(kind, real)
            tops = merged

    def _joined(self, kind: str, parts: Sequence[str]) -> str:
        """The device at the top of parts that meet: a switch, or the part itself where it is
        alone.
        """
        if len(parts) < 2:
            return parts[0] if parts else ""
        if kind == "SYS" and len(parts) == 2 and not set(parts) & set(self.names.values()):
            self.link(parts[0], parts[1], "socket", "socket")
            return parts[0]
        switch = self.switch(SWITCHES[kind])
        for part in parts:
            leaf = part in self.names.values()
            role = "pcie" if leaf else "socket" if kind == "SYS" else "uplink"
            self.link(part, switch, role, role)
        return switch

    def _groups(self, depth: int, parts: Sequence[frozenset[str]]) -> list[frozenset[str]]:
        """Parts put together that are connected no farther than this; at the end all."""
        groups = list(parts)
        for i, first in enumerate(parts):
            for second in parts[i + 1 :]:
                if any(self._within(a, b, depth) for a in first for b in second):
                    one = next(group for group in groups if first <= group)
                    other = next(group for group in groups if second <= group)
                    if one != other:
                        groups = [group for group in groups if group not in (one, other)]
                        groups.append(one | other)
        order = {name: i for i, name in enumerate((*self.topology.gpus, *self.topology.adapters))}
        return sorted(groups, key=lambda group: min(order[name] for name in group))

    def _within(self, first: str, second: str, depth: int) -> bool:
        kind = self.topology.kinds.get(
            (first, second), self.topology.kinds.get((second, first), "SYS")
        )
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
        rate = (
            self.lane * lanes
            if lanes
            else parse_bandwidth(SOCKETS)
            if role == "socket"
            else self.bus
        )
        latency = LATENCY[role]
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
        told = {"kind": "assumed", "source": SOURCES[role]}
        self.provenance[f"links.{kind}.bandwidth"] = {"value": rate_text(Fraction(rate)), **told}
        self.provenance[f"links.{kind}.latency"] = {
            "value": latency,
            "kind": "assumed",
            "source": "presets of simdev",
        }
