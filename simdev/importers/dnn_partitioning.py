"""Workloads of dnn-partitioning (Tarnawski et al., NeurIPS 2020): JSON of nodes with times on two
kinds of device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import ceil
from typing import Any

from ..cluster import Cluster, Device
from ..errors import InputError
from ..files.nodes import require_joinable
from ..files.reading import PathLike, label, parse_json, read_text
from ..graph import Graph, Op, Tensor
from ..strategy import Strategy
from .imported import Imported

BANDWIDTH = 2**31  # bytes per second: what the files' edge costs rest on
MS = Fraction(1, 1000)
GRADIENT = "grad"  # what the name of a backward node adds to that of its forward node


@dataclass(frozen=True, slots=True)
class Node:
    """One node: ms on an accelerator (None: it cannot run there) and on a CPU, bytes, and its class
    (None: free).
    """

    id: int
    name: str
    on_accelerator: Fraction | None
    on_cpu: Fraction
    size: int
    backward: bool
    color: int | None


@dataclass(frozen=True, slots=True)
class Edge:
    """Positions of two nodes; the cost of moving the first's output, as the file has it, and its
    bytes.
    """

    source: int
    end: int
    cost: Fraction
    size: int


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload as its file tells it. ``capacity`` is bytes of each of ``accelerators``."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    accelerators: int
    cpus: int
    capacity: int


def read_workload(path: PathLike) -> Workload:
    """The workload of a file. Raises InputError with every problem at once."""
    text = read_text(path)
    try:
        return parse_workload(text)
    except InputError as error:
        raise error.within(label(path)) from None


def parse_workload(text: str) -> Workload:
    """The workload of a JSON text. Raises InputError."""
    value = parse_json(text)
    if (
        not isinstance(value, dict)
        or not isinstance(value.get("nodes"), list)
        or not isinstance(value.get("edges"), list)
    ):
        raise InputError(
            "not a dnn-partitioning workload: needs an object with lists of nodes and edges"
        )
    reader = _Reader()
    nodes = [reader.node(f"nodes[{i}]", one) for i, one in enumerate(value["nodes"])]
    row: dict[int, int] = {}
    for i, node in enumerate(nodes):
        if node is not None and row.setdefault(node.id, i) != i:
            reader.problems.append(
                f"nodes[{i}].id: {node.id} is already that of nodes[{row[node.id]}]"
            )
    edges = [reader.edge(f"edges[{i}]", one, row) for i, one in enumerate(value["edges"])]
    counts = [reader.whole("", value, name) for name in ("maxFPGAs", "maxCPUs")]
    capacity = reader.bytes("", value, "maxSizePerFPGA")
    if reader.problems:
        raise InputError(reader.problems)
    found = tuple(node for node in nodes if node is not None)
    if not counts[0] and not counts[1]:
        raise InputError("maxFPGAs: there is no device")
    require_joinable("maxFPGAs and maxCPUs", counts[0] + counts[1])
    return Workload(
        found, tuple(edge for edge in edges if edge is not None), counts[0], counts[1], capacity
    )


class _Reader:
    """Reads values and collects what is wrong with them."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def number(
        self, path: str, value: Mapping[str, Any], name: str, default: object = None
    ) -> Fraction:
        found = value.get(name, default)
        known = isinstance(found, (int, float, Decimal)) and not isinstance(found, bool)
        if (
            not known
            or Decimal(str(found)).is_nan()
            or Decimal(str(found)).is_infinite()
            or found < 0
        ):
            self.problems.append(f"{path}.{name}: must be a number >= 0, got {found!r}".lstrip("."))
            return Fraction(0)
        return Fraction(Decimal(str(found)) if isinstance(found, float) else found)

    def whole(self, path: str, value: Mapping[str, Any], name: str, default: object = None) -> int:
        found = self.number(path, value, name, default)
        if found.denominator != 1:
            self.problems.append(
                f"{path}.{name}: must be a whole number, got {value[name]}".lstrip(".")
            )
        return int(found)

    def bytes(self, path: str, value: Mapping[str, Any], name: str, default: object = None) -> int:
        """Bytes, rounded up: a flag is told as an eighth of a byte."""
        return ceil(self.number(path, value, name, default))

    def flag(self, path: str, value: Mapping[str, Any], name: str) -> bool:
        found = value.get(name)
        if found not in (True, False, 0, 1):
            self.problems.append(f"{path}.{name}: must be true, false, 0 or 1, got {found!r}")
        return bool(found)

    def node(self, path: str, value: object) -> Node | None:
        if not isinstance(value, dict):
            self.problems.append(f"{path}: must be an object")
            return None
        color = value.get("colorClass")
        able = self.flag(path, value, "supportedOnFpga")
        return Node(
            self.whole(path, value, "id"),
            str(value.get("name", value.get("id"))),
            self.number(path, value, "fpgaLatency") if able else None,
            self.number(path, value, "cpuLatency"),
            self.bytes(path, value, "size", 0),
            self.flag(path, value, "isBackwardNode"),
            None if color is None else self.whole(path, value, "colorClass"),
        )

    def edge(self, path: str, value: object, row: Mapping[int, int]) -> Edge | None:
        if not isinstance(value, dict):
            self.problems.append(f"{path}: must be an object")
            return None
        ends = [self.whole(path, value, name) for name in ("sourceId", "destId")]
        unknown = [end for end in ends if end not in row]
        self.problems += [f"{path}: no node with id {end}" for end in unknown]
        if unknown:
            return None
        cost, size = self.number(path, value, "cost"), self.bytes(path, value, "size", 0)
        return Edge(row[ends[0]], row[ends[1]], cost, size)


def workload_scenario(workload: Workload, name: str = "dnn-partitioning workload") -> Imported:
    """The step of a workload on its machine: accelerators and CPUs joined at 2^31 bytes/s, all on
    the first device.

    Costs, sizes and readers stay with each op as the attribute ``max_load``, just as the file has
    them (the layer files add seconds to ms); times of the simulated step are computed from sizes.
    Where backward nodes are joined to no forward node, their edges are those of the forward pass
    repeated: they are reversed, gradients take the sizes of the forward edges, and the last forward
    nodes are joined to the first backward ones.
    """
    names, notes = _names(workload)
    edges = workload.edges
    joins: tuple[tuple[int, int], ...] = ()
    if _is_parallel(workload):
        edges, joins = _reversed(workload)
        notes = [
            *notes,
            (
                "backward edges pointed the way of the forward ones: reversed, and joined at "
                "the loss"
            ),
        ]
    ops = _ops(workload, names, edges, joins)
    devices = [
        Device(f"accelerator:{d}", "accelerator", workload.capacity)
        for d in range(workload.accelerators)
    ]
    devices += [Device(f"cpu:{d}", "cpu") for d in range(workload.cpus)]
    cluster = Cluster.all_to_all(name, devices, "half-duplex", bandwidth=BANDWIDTH)
    first = (
        devices[0].name
        if all(node.on_accelerator is not None for node in workload.nodes)
        else devices[-1].name
    )
    return Imported(
        Graph(name, ops), cluster, Strategy({"*": first}), "dnn-partitioning", tuple(notes)
    )


def _names(workload: Workload) -> tuple[list[str], list[str]]:
    """A name for the op of each node; of nodes whose own name cannot be one, "node" and the id."""
    counts = Counter(node.name for node in workload.nodes)
    found, notes = [], []
    for node in workload.nodes:
        fine = counts[node.name] == 1 and not any(Op(node.name).problems())
        found.append(node.name if fine else f"node{node.id}")
        if not fine:
            notes.append(
                f'node {node.id} is called "{found[-1]}": "{node.name}" cannot be the name of an op'
            )
    return found, notes


def _is_parallel(workload: Workload) -> bool:
    """Whether there is a backward half, and nothing leads from the forward half to it."""
    sides = [node.backward for node in workload.nodes]
    return (
        any(sides)
        and not all(sides)
        and not any(sides[e.source] != sides[e.end] for e in workload.edges)
    )


def _reversed(workload: Workload) -> tuple[tuple[Edge, ...], tuple[tuple[int, int], ...]]:
    """The edges with the backward ones turned round, and (forward, backward) pairs that wait for
    each other.
    """
    nodes, mates = workload.nodes, _mates(workload)
    sizes = {(e.source, e.end): e.size for e in workload.edges}
    edges = []
    for edge in workload.edges:
        if nodes[edge.source].backward:
            pair = mates.get(edge.source, -1), mates.get(edge.end, -1)
            edges.append(Edge(edge.end, edge.source, edge.cost, sizes.get(pair, edge.size)))
        else:
            edges.append(edge)
    reads, read = {e.end for e in edges}, {e.source for e in edges}
    last = [i for i, node in enumerate(nodes) if not node.backward and i not in read]
    first = [i for i, node in enumerate(nodes) if node.backward and i not in reads]
    own = [(mate, i) for i, mate in sorted(mates.items())]
    return tuple(edges), tuple(dict.fromkeys([*((a, b) for b in first for a in last), *own]))


def _mates(workload: Workload) -> dict[int, int]:
    """The forward node of each backward node: of its class, or of its name."""
    forward = {
        node.color: i
        for i, node in enumerate(workload.nodes)
        if not node.backward and node.color is not None
    }
    named = {node.name: i for i, node in enumerate(workload.nodes) if not node.backward}
    found = {}
    for i, node in enumerate(workload.nodes):
        if node.backward:
            mate = named.get(node.name.removesuffix(GRADIENT), -1)
            if mate < 0 and node.color is not None:
                mate = forward.get(node.color, -1)
            if mate >= 0:
                found[i] = mate
    return found


def _ops(
    workload: Workload,
    names: Sequence[str],
    edges: Sequence[Edge],
    joins: Sequence[tuple[int, int]],
) -> tuple[Op, ...]:
    """An op for each node. Edges of one size from one node carry the same tensor."""
    sizes: list[list[int]] = [[] for _ in names]
    inputs: list[list[str]] = [[] for _ in names]
    for edge in edges:
        if edge.size not in sizes[edge.source]:
            sizes[edge.source].append(edge.size)
        inputs[edge.end].append(f"{names[edge.source]}:{sizes[edge.source].index(edge.size)}")
    waits: list[list[str]] = [[] for _ in names]
    for first, second in joins:
        waits[second].append(names[first])
    told = _told(workload, names)
    return tuple(
        Op(
            name=names[i],
            kind="node",
            phase="backward" if node.backward else "forward",
            inputs=tuple(inputs[i]),
            control_inputs=tuple(waits[i]),
            outputs=tuple(map(Tensor, sizes[i])),
            attrs={"max_load": told[i]},
            param_bytes=max(node.size - sum(sizes[i]), 0),
            colocate=None if node.color is None else f"class {node.color}",
            time=_times(node),
        )
        for i, node in enumerate(workload.nodes)
    )


def _times(node: Node) -> dict[str, Fraction]:
    found = {"cpu": node.on_cpu * MS}
    return (
        found if node.on_accelerator is None else {"accelerator": node.on_accelerator * MS, **found}
    )


def _told(workload: Workload, names: Sequence[str]) -> list[dict[str, Any]]:
    """The numbers of each node as the file has them."""
    costs: list[Fraction] = [Fraction(0)] * len(names)
    readers: list[list[str]] = [[] for _ in names]
    for edge in workload.edges:
        costs[edge.source] = max(costs[edge.source], edge.cost)
        readers[edge.source].append(names[edge.end])
    rows = zip(workload.nodes, costs, readers, strict=True)
    return [
        {"transfer_ms": float(cost), "bytes": node.size, "readers": ends}
        for node, cost, ends in rows
    ]
