"""Output of NVIDIA's tools: the matrix of ``nvidia-smi topo -m`` and logs of nccl-tests.

The matrix shows which GPUs are joined by NVLink, and how far apart the others are on PCIe. It has
the kind of every connection and no rates. Rates and latencies are assumptions, stated in the
cluster's provenance for each kind of link: NCCL's own rates of NVLink and PCIe
(``src/graph/topo.h``), and the latencies of simdev's presets.

A test of nccl-tests (and rccl-tests) prints lines ``size count type redop root time algbw busbw
#wrong``, the last four out of place and again in place: bytes, us and GB/s
(https://github.com/NVIDIA/nccl-tests, PERFORMANCE.md). The collective follows from its header or
command line, else from ``busbw / algbw``. Times out of place are used. A log becomes a table of
each collective, and a line fitted to it.

``formats.import_file`` calls it. ``simdev.files`` reads the resulting table of collectives, and
``simdev.costs.collectives`` uses it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations
from typing import Any

from ..costs.collectives import COLLECTIVES, CollectiveTable, bus_factor, table_of_rows
from ..ground.errors import InputError, collecting, refuse
from ..ground.units import MAX_BYTES, exact, parse_bandwidth, parse_time, rate_text
from ..nouns.cluster import Cluster, Device, Link
from .imported import ImportedCluster, ImportedTables, Machine

SWITCHES = {
    "PIX": "pcie",
    "PXB": "bridges",
    "PHB": "host-bridge",
    "NODE": "socket",
    "SYS": "system",
}
"""Kinds of connections over PCIe, the nearest first (a bridge, several, the host bridge, the NUMA
node, the machine), and the name of the device where connections of the kind meet.
"""
NEAR = tuple(SWITCHES)

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_GPU, _NVLINK = re.compile(r"GPU([0-9]{1,9})\Z"), re.compile(r"NV([0-9]{1,3})\Z")


@dataclass(frozen=True, slots=True)
class Generation:
    """Assumptions about a kind of GPU: its number of NVLinks, the rate of each in NCCL, the
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
"""The latency of links by role, and the source of their bandwidth."""


@dataclass(frozen=True, slots=True)
class Topology:
    """The matrix: names of GPUs and of network adapters, kinds of connection by pair, and the
    affinities of each (``places``), from which its NUMA node follows.
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
    """The matrix in a text, which may begin at any line.

    Raises InputError with every problem, each with its line.
    """
    lines = [_ANSI.sub("", line).split() for line in text.splitlines()]
    starts = [i for i, words in enumerate(lines) if words[:1] == ["GPU0"] and "X" not in words]
    if not starts:
        raise InputError(
            'no matrix of "nvidia-smi topo -m": no line begins with the columns GPU0, GPU1, ..'
        )
    # The columns of affinities, which are two words each, come last.
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
    """The cluster of a matrix, with GPUs of the kind ``machine.device``; ``machine.bandwidth`` is
    the bandwidth of a GPU's PCIe.

    A pair of GPUs with NV# has a link of # lanes; where a GPU would need more NVLinks than it has,
    all GPUs have a link to a switch instead. Other pairs are joined by a tree of PCIe switches,
    host bridges and sockets. Raises InputError.
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
    """A builder of the cluster, link by link."""

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
        """Adds a link for each pair with NV#, or from each GPU to a switch."""
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
        """Adds a tree of PCIe: near devices meet at a switch, and switches meet farther up."""
        # The device at the top of each part so far. Adapters take part ("": no device), since two
        # GPUs joined by NVLink often show that they share a bridge only by an adapter near both.
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
        """The device at the top of parts that meet: a new switch, or a single part's device."""
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
        """Sets of parts that are connected at this depth or nearer, in the order of the matrix."""
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
        # NVLink hides where two GPUs are; the same affinities mean the same NUMA node.
        near = self.topology.places[first] == self.topology.places[second] != ""
        return depth >= NEAR.index("NODE" if near else "SYS")

    def switch(self, name: str) -> str:
        """Adds a switch; returns its name."""
        count = sum(device.name.startswith(f"{name}:") for device in self.switches)
        self.switches.append(Device(f"{name}:{count}", "switch"))
        return self.switches[-1].name

    def link(self, first: str, second: str, role: str, kind: str, lanes: int | None = None) -> None:
        """Adds a link, and the provenance of its kind."""
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
        for quantity, value, origin in (
            ("bandwidth", rate_text(Fraction(rate)), source),
            ("latency", latency, "presets of simdev"),
        ):
            self.provenance[f"links.{kind}.{quantity}"] = {
                "value": value,
                "kind": "assumed",
                "source": origin,
            }


TESTS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "sendrecv": "p2p",
}
"""Names of the tests (``all_reduce_perf``) -> the collectives of simdev."""

SIZE, TIME = ("size", "bytes"), "time"
# Bandwidths are printed with two digits behind the point.
TOLERANCE = 0.02
# The tag that mpirun --tag-output puts before each line.
_TAG = re.compile(r"^\s*\[[^\]]*\]\s*<std(?:out|err)>:\s?")
_TEST = re.compile(
    r"\b(all_reduce|all_gather|reduce_scatter|alltoall|broadcast|reduce|sendrecv|\w+)_perf(?:_mpi)?\b"
)
_RANK = re.compile(r"^#\s*Rank\s+([0-9]{1,9})\b")
_NUMBER = re.compile(r"[0-9]{1,40}(?:\.[0-9]+)?\Z")


@dataclass
class Run:
    """A run of a test: its name and ranks as far as the log has them, and rows of (bytes, us,
    algbw, busbw).
    """

    line: int
    columns: tuple[str, ...]
    name: str | None
    ranks: int
    rows: list[tuple[int, Fraction, Fraction, Fraction]] = field(default_factory=list)
    redop: str = ""
    root: str = ""

    def add(self, words: Sequence[str]) -> None:
        """Add a row. Raises InputError."""
        if len(words) < len(self.columns):
            raise InputError(
                f"has {len(words)} of the {len(self.columns)} columns of line {self.line}"
            )
        time = self.columns.index(TIME)
        texts = [words[0], *words[time : time + 3]]
        wrong = [text for text in texts if not _NUMBER.match(text)]
        if wrong:
            raise InputError(f"must hold numbers of bytes, us and GB/s, got {', '.join(wrong)}")
        size = int(words[0])
        if size > MAX_BYTES:
            raise InputError(f"size: larger than 2^60 bytes: {size}")
        # The first of two columns of this name is out of place.
        faults = dict(zip(self.columns[: time + 4], words, strict=False)).get("#wrong", "0")
        if faults not in ("0", "N/A"):
            raise InputError(f"{faults} wrong results: a time of wrong results tells nothing")
        values = dict(zip(self.columns, words, strict=False))
        self.redop, self.root = values.get("redop", ""), values.get("root", "")
        seconds, algbw, busbw = map(exact, texts[1:])
        if size and seconds:
            self.rows.append((size, seconds, algbw, busbw))


def parse_log(text: str) -> tuple[Run, ...]:
    """The tests in a log, which may have other lines between them.

    Raises InputError with every problem.
    """
    runs: list[Run] = []
    problems: list[str] = []
    name, ranks, started = None, 0, False
    for number, raw in enumerate(text.splitlines(), 1):
        line = _TAG.sub("", raw).lstrip()
        is_comment, words = line.startswith("#"), line.lstrip("# \t").split()
        if is_comment and words[:1] and words[0] in SIZE and TIME in words:
            runs.append(Run(number, tuple(words), name, ranks))
            name, ranks, started = None, 0, True
        elif test := _TEST.search(line):
            name, started = test[1], False
        elif rank := _RANK.match(line):
            ranks = max(ranks, int(rank[1]) + 1)
        elif started and words and words[0].isdigit() and not is_comment:
            with collecting(problems, f"line {number}: "):
                runs[-1].add(words)
    if not runs:
        problems.append("no table of nccl-tests: no header with the columns size and time")
    if not problems:
        problems = [f"line {run.line}: no sizes under this header" for run in runs if not run.rows]
    refuse(problems)
    return tuple(runs)


def log_tables(runs: Sequence[Run], machine: Machine, name: str | None = None) -> ImportedTables:
    """A table of each test.

    ``machine.devices`` is the number of ranks where the log does not have it. Raises InputError
    where a collective is unclear, or two tests have the same collective and number of ranks.
    """
    machine.refuse(
        "is nothing that tables of collectives hold", "cluster", "device", "bandwidth", "memory"
    )
    tables: list[CollectiveTable] = []
    fits: dict[str, dict[str, Any]] = {}
    problems: list[str] = []
    for run in runs:
        with collecting(problems, f"line {run.line}: "):
            collective, ranks = _identify(run, machine.devices)
            rows = [(size, time / 10**6) for size, time, _, _ in run.rows]
            tables.append(table_of_rows(collective, ranks, rows))
            fits[f"{collective} over {ranks} ranks"] = _fit(collective, ranks, rows)
    if not problems:
        counts = Counter(f"{table.collective} over {table.ranks} ranks" for table in tables)
        problems = [
            f"{count} tests of {test}: keep one" for test, count in counts.items() if count > 1
        ]
    refuse(problems)
    notes = [
        f"{test}: {fit['latency']} + bytes x factor / {fit['bus_bandwidth']} is off by "
        f"{fit['mean_error']:.1%}"
        for test, fit in fits.items()
    ]
    return ImportedTables(
        name or "nccl-tests",
        tuple(tables),
        source="nccl-tests",
        notes=tuple(notes),
        provenance={"fits": fits},
    )


def _identify(run: Run, devices: int | None) -> tuple[str, int]:
    """(collective, ranks) of a test. Raises InputError."""
    if run.name is not None and run.name not in TESTS:
        raise InputError(
            f"{run.name}_perf: no collective that simdev knows; those are {', '.join(TESTS)}"
        )
    # From the row of the largest bandwidth, where rounding to two digits matters least.
    _, _, algbw, busbw = max(run.rows, key=lambda row: row[3])
    factor = float(busbw / algbw) if algbw else 0.0
    collective = TESTS[run.name] if run.name else _by_factor(run, factor)
    ranks = run.ranks or devices or _ranks_by_factor(collective, factor)
    if devices is not None and run.ranks and devices != run.ranks:
        raise InputError(f"--devices: {devices}, but the log tells of {run.ranks} ranks")
    if ranks < 2:
        raise InputError(f"{collective} over {ranks} rank: nothing is sent")
    expected = float(bus_factor(collective, ranks))
    if factor and abs(factor / expected - 1) > TOLERANCE:
        raise InputError(
            f"busbw is {factor:.4g} times algbw, for {collective} over {ranks} ranks it is "
            f"{expected:.4g}"
        )
    return collective, ranks


def _by_factor(run: Run, factor: float) -> str:
    """The collective of a test without a name, from its rows."""
    adds = run.redop not in ("", "none")
    if run.root.isdigit():
        return "reduce" if adds else "broadcast"
    if adds and factor:
        # 2 (n-1) / n of an all-reduce is 1 or more, (n-1) / n of a reduce-scatter less.
        return "all_reduce" if factor >= 1 - TOLERANCE / 2 else "reduce_scatter"
    raise InputError(
        'cannot tell which collective it is: put the command ("all_gather_perf ..") before '
        "the output"
    )


def _ranks_by_factor(collective: str, factor: float) -> int:
    """The number of ranks from ``busbw / algbw``, where the log does not list them."""
    share = factor / 2 if collective == "all_reduce" else factor
    if collective in COLLECTIVES[:4] and 0 < share < 1:
        ranks = round(1 / (1 - share))
        # The bound is tight, for the shares of many ranks are close to one another.
        if ranks >= 2 and abs(share / (1 - 1 / ranks) - 1) < TOLERANCE / 4:
            return ranks
    raise InputError("the log does not list its ranks: tell their number by --devices")


def _fit(collective: str, ranks: int, rows: Sequence[tuple[int, Fraction]]) -> dict[str, Any]:
    """Latency and bus bandwidth of the line through the times with the least sum of squared
    relative errors.
    """
    import numpy as np

    sizes, times = np.array(rows, float).T
    factor = float(bus_factor(collective, ranks))
    columns = np.stack([1 / times, sizes * factor / times], axis=1)
    (latency, slope), *_ = np.linalg.lstsq(columns, np.full(len(times), 1.0), rcond=None)
    if latency < 0 or slope <= 0:
        # No valid line fits such a curve: the smallest message gives the latency, the largest the
        # bandwidth.
        latency = times.min()
        slope = max(times[sizes.argmax()] - latency, latency) / sizes.max() / factor
    error = float(np.mean(np.abs(columns @ np.array([latency, slope]) - 1)))
    return {
        "latency": f"{latency * 1e6:.4g} us",
        "bus_bandwidth": f"{1e-9 / slope:.4g} GB/s",
        "mean_error": round(error, 4),
    }
