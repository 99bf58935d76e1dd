"""Inputs of two partitioners: PipeDream's profiles (``graph.txt``), which are layers with forward
and backward times, activations and parameters; and workloads of dnn-partitioning (Tarnawski et al.,
NeurIPS 2020), which are JSON of nodes with times on two kinds of device.

``formats.import_file`` calls it. The maximum load of the paper's nodes is kept as an attribute of
ops.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from decimal import Decimal
from fractions import Fraction
from math import ceil
from typing import Any

from ..files.cluster import require_joinable
from ..files.reading import parse_json
from ..ground.errors import InputError, refuse
from ..ground.units import exact, parse_time, parse_whole, written
from ..nouns.cluster import Cluster, Device
from ..nouns.graph import Graph, Op, Tensor
from ..nouns.strategy import Strategy
from .imported import OPEN, Imported, Machine

SEPARATOR = " -- "
FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
LOADER = "Input"  # layers of this name carry the time to load data
ITEM = re.compile(r"__getitem__\(([0-9]{1,9})\)")
_VALUES = re.compile(r"(\w+)=(\[[^\]]*\]|[^,\s]+)")
# PipeDream's defaults.
BANDWIDTH = "1 GB/s"
DEVICES = 4


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer: times in seconds for one minibatch, bytes of its outputs and of its weights."""

    name: str
    description: str
    forward: Fraction
    backward: Fraction
    activations: tuple[int, ...]
    parameters: int
    inputs: tuple[str, ...] = ()
    stage: int | None = None

    @property
    def is_loader(self) -> bool:
        """Whether the layer loads data, which is no computation."""
        return self.description.startswith(LOADER)

    @property
    def kind(self) -> str:
        """The kind of the layer's op: the first word of its description."""
        word = re.match(r"\w+", self.description)
        return word[0].strip("_").lower() if word else "layer"


def parse_layers(text: str) -> tuple[Layer, ...]:
    """The layers of a profile's text, in its order: ``id -- description -- values`` lines, then
    tab-indented ``a -- b`` edges.

    Times are in ms, sizes in bytes; a list ``[a; b]`` means several outputs; ``stage_id`` may
    follow.
    Raises InputError with every problem.
    """
    problems: list[str] = []
    layers: dict[str, Layer] = {}
    edges: list[tuple[int, list[str]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            if line[0] in "\t ":
                edges.append((number, _edge(line)))
            else:
                layer = _layer(line)
                if layer.name in layers:
                    raise InputError(f'"{layer.name}" is already told')
                layers[layer.name] = layer
        except (InputError, ValueError) as error:
            reasons = getattr(error, "problems", (str(error),))
            problems += [f"line {number}: {reason}" for reason in reasons]
    inputs: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for number, ends in edges:
        problems += [f'line {number}: no layer named "{end}"' for end in ends if end not in layers]
        inputs[ends[1]][ends[0]] = None
    if not layers and not problems:
        problems.append("no layers: not a PipeDream profile")
    refuse(problems)
    return tuple(replace(layer, inputs=tuple(inputs[layer.name])) for layer in layers.values())


def _edge(line: str) -> list[str]:
    ends = [part.strip() for part in line.strip().split(SEPARATOR)]
    if len(ends) != 2 or not all(ends):
        raise InputError('an edge is written "a -- b"')
    return ends


def _layer(line: str) -> Layer:
    parts = line.strip().split(SEPARATOR)
    if len(parts) < 3:
        raise InputError('a layer is written "id -- description -- values"')
    stage = None
    if parts[-1].startswith("stage_id="):
        try:
            stage = parse_whole(parts.pop().partition("=")[2])
        except ValueError as error:
            raise InputError(f"stage_id: {error}") from None
    # A description may hold the separator itself.
    name, *description, texts = parts
    values = dict(_VALUES.findall(texts))
    missing = [f"{field}: missing" for field in FIELDS if field not in values]
    refuse(missing)
    forward, backward = (parse_time(f"{values[field]} ms") for field in FIELDS[:2])
    activations, parameters = (_sizes(field, values[field]) for field in FIELDS[2:])
    return Layer(
        name.strip(), SEPARATOR.join(description), forward, backward, activations, sum(parameters),
        stage=stage,
    )  # fmt: skip


def _sizes(field: str, text: str) -> tuple[int, ...]:
    sizes = []
    for number in map(str.strip, text.strip("[]").split(";")):
        try:
            size = exact(number)
        except ValueError:
            raise InputError(f"{field}: must be bytes, got {written(number)}") from None
        if size < 0 or size.denominator != 1:
            raise InputError(f"{field}: must be a whole number of bytes >= 0, got {number}")
        sizes.append(int(size))
    return tuple(sizes)


def layers_scenario(
    layers: Iterable[Layer], machine: Machine = OPEN, name: str | None = None
) -> Imported:
    """The training step of a profile, all on the first of the machine's GPUs.

    Each layer is a forward and a backward op in one colocation group. Gradients run against the
    edges and have the size of the activations; a backward op reads what its forward op read and
    made. Layers named ``Input`` are left out: their time is for loading data. Raises InputError.
    """
    machine.refuse(
        "a PipeDream profile is of GPUs all alike: --devices, --bandwidth", "cluster", "device"
    )
    devices = machine.devices or DEVICES
    bandwidth = BANDWIDTH if machine.bandwidth is None else machine.bandwidth
    cluster = replace(machine, devices=devices, bandwidth=bandwidth).build()
    kept, notes = {}, []
    for layer in layers:
        if layer.is_loader:
            loading = f"{float(layer.forward * 1000):g} ms of loading data"
            notes.append(f"left out {layer.name} ({layer.description}): {loading}")
        else:
            kept[layer.name] = layer
    # A layer that only a loader feeds reads nothing.
    kept = {
        key: replace(layer, inputs=tuple(end for end in layer.inputs if end in kept))
        for key, layer in kept.items()
    }
    notes.append(
        "gradients of parameters are counted, optimizer states are not: the profile tells neither"
    )
    return Imported(
        Graph(name or "PipeDream profile", (*_forward(kept), *_backward(kept))),
        replace(cluster, name=f"{devices} GPUs"),
        Strategy({"*": "gpu:0"}),
        source="pipedream",
        notes=tuple(notes),
    )


def _forward(layers: dict[str, Layer]) -> Iterator[Op]:
    for layer in layers.values():
        yield Op(
            layer.name,
            kind=layer.kind,
            inputs=tuple(_reads(layers, layer)),
            outputs=tuple(map(Tensor, layer.activations)),
            attrs={"description": layer.description},
            param_bytes=layer.parameters,
            grad_bytes=layer.parameters,
            colocate=layer.name,
            time=layer.forward,
        )


def _reads(layers: dict[str, Layer], layer: Layer) -> Iterator[str]:
    """The tensors that a layer reads: ``__getitem__(k)`` output k, any other all outputs of its
    producers.
    """
    item = ITEM.match(layer.description)
    for name in layer.inputs:
        count = len(layers[name].activations)
        chosen = [int(item[1])] if item and int(item[1]) < count else range(count)
        yield from (f"{name}:{output}" for output in chosen)


def _backward(layers: dict[str, Layer]) -> Iterator[Op]:
    """The backward ops, later layers first; output k is the gradient of the tensor from the layer's
    k-th producer.
    """
    gradients: dict[str, list[str]] = {name: [] for name in layers}
    for layer in layers.values():
        for k, name in enumerate(layer.inputs):
            gradients[name].append(f"{layer.name}/backward:{k}")
    for layer in reversed(layers.values()):
        activations = [f"{layer.name}:{output}" for output in range(len(layer.activations))]
        yield Op(
            f"{layer.name}/backward",
            kind=f"{layer.kind}_backward",
            phase="backward",
            inputs=(*gradients[layer.name], *activations, *_reads(layers, layer)),
            outputs=tuple(Tensor(sum(layers[name].activations)) for name in layer.inputs),
            colocate=layer.name,
            time=layer.backward,
        )


EDGE_RATE = 2**31  # bytes per second: the rate behind the files' edge costs
MS = Fraction(1, 1000)
GRADIENT = "grad"  # a backward node has the name of its forward node with this suffix


@dataclass(frozen=True, slots=True)
class Node:
    """A node: ms on an accelerator (None: it cannot run there) and on a CPU, bytes, and its class
    of colocation (None: free).
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
    """An edge between the positions of two nodes, with the file's cost of moving the first node's
    output, and its bytes.
    """

    source: int
    end: int
    cost: Fraction
    size: int


@dataclass(frozen=True, slots=True)
class Workload:
    """The workload of a file. ``capacity`` is in bytes of each of the ``accelerators``."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    accelerators: int
    cpus: int
    capacity: int


def parse_workload(text: str) -> Workload:
    """The workload of a JSON text. Raises InputError with every problem."""
    value = parse_json(text)
    match value:
        case {"nodes": list(nodes), "edges": list(edges)}:
            pass
        case _:
            raise InputError(
                "not a dnn-partitioning workload: needs an object with lists of nodes and edges"
            )
    problems: list[str] = []
    objects = [_Object(f"nodes[{i}]", node, problems) for i, node in enumerate(nodes)]
    read = {i: node.node() for i, node in enumerate(objects) if node.is_object}
    rows: dict[int, int] = {}
    for i, node in read.items():
        if rows.setdefault(node.id, i) != i:
            problems.append(f"nodes[{i}].id: {node.id} is already that of nodes[{rows[node.id]}]")
    objects = [_Object(f"edges[{i}]", edge, problems) for i, edge in enumerate(edges)]
    joins = [edge.edge(rows) for edge in objects if edge.is_object]
    whole = _Object("", value, problems)
    accelerators, cpus = whole.count("maxFPGAs"), whole.count("maxCPUs")
    # Capacities and sizes may be fractions of bytes: a flag counts as an eighth of a byte.
    capacity = ceil(whole.number("maxSizePerFPGA"))
    refuse(problems)
    if not accelerators and not cpus:
        raise InputError("maxFPGAs: there is no device")
    require_joinable("maxFPGAs and maxCPUs", accelerators + cpus)
    return Workload(tuple(read.values()), tuple(filter(None, joins)), accelerators, cpus, capacity)


class _Object:
    """A reader of the values of an object, which adds faults to the problems."""

    def __init__(self, path: str, value: Any, problems: list[str]) -> None:
        self.path, self.value, self.problems = path, value, problems
        self.is_object = isinstance(value, dict)
        if not self.is_object:
            problems.append(f"{path}: must be an object")

    def _refuse(self, name: str, reason: str) -> None:
        self.problems.append(f"{self.path}.{name}: {reason}".lstrip("."))

    def number(self, name: str, default: object = None) -> Fraction:
        value = self.value.get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, Decimal)) or value < 0:
            self._refuse(name, f"must be a number >= 0, got {written(value)}")
            return Fraction(0)
        return Fraction(value)

    def count(self, name: str) -> int:
        number = self.number(name)
        if number.denominator != 1:
            self._refuse(name, f"must be a whole number, got {self.value[name]}")
        return int(number)

    def flag(self, name: str) -> bool:
        value = self.value.get(name)
        if value not in (True, False, 0, 1):
            self._refuse(name, f"must be true, false, 0 or 1, got {written(value)}")
        return bool(value)

    def node(self) -> Node:
        get = self.value.get
        return Node(
            self.count("id"),
            str(get("name", get("id"))),
            self.number("fpgaLatency") if self.flag("supportedOnFpga") else None,
            self.number("cpuLatency"),
            ceil(self.number("size", 0)),
            self.flag("isBackwardNode"),
            None if get("colorClass") is None else self.count("colorClass"),
        )

    def edge(self, rows: Mapping[int, int]) -> Edge | None:
        ends = [self.count("sourceId"), self.count("destId")]
        unknown = [f"{self.path}: no node with id {end}" for end in ends if end not in rows]
        self.problems += unknown
        if unknown:
            return None
        cost, size = self.number("cost"), ceil(self.number("size", 0))
        return Edge(rows[ends[0]], rows[ends[1]], cost, size)


def workload_scenario(
    workload: Workload, machine: Machine = OPEN, name: str | None = None
) -> Imported:
    """The step of a workload on its machine: accelerators and CPUs joined at 2^31 bytes/s, all on
    the first device that can run all. ``machine`` must be left open.

    Each op keeps costs, sizes and readers from the file in the attribute ``max_load``, unchanged
    (the layer files add seconds to ms); times of the simulated step are computed from sizes. Where
    no edge joins backward nodes to forward nodes, the backward edges only repeat the forward ones:
    they are reversed, gradients take the sizes of the forward edges, and the last forward nodes are
    joined to the first backward ones.
    """
    machine.refuse("the file tells it itself", *(field.name for field in fields(machine)))
    title = name or "dnn-partitioning workload"
    names, notes = _names(workload)
    edges = workload.edges
    joins: Joins = ()
    if _is_parallel(workload):
        edges, joins = _reversed(workload)
        notes.append(
            "backward edges pointed the way of the forward ones: reversed, and joined at the loss"
        )
    devices = [
        *(
            Device(f"accelerator:{d}", "accelerator", workload.capacity)
            for d in range(workload.accelerators)
        ),
        *(Device(f"cpu:{d}", "cpu") for d in range(workload.cpus)),
    ]
    # Accelerators come first, CPUs, which run every node, last.
    anywhere = all(node.on_accelerator is not None for node in workload.nodes)
    return Imported(
        Graph(title, _ops(workload, names, edges, joins)),
        Cluster.all_to_all(title, devices, "half-duplex", bandwidth=EDGE_RATE),
        Strategy({"*": devices[0 if anywhere else -1].name}),
        source="dnn-partitioning",
        notes=tuple(notes),
    )


Joins = tuple[tuple[int, int], ...]
"""Pairs of positions of nodes: the second waits for the first."""


def _names(workload: Workload) -> tuple[list[str], list[str]]:
    """A name for the op of each node, and notes on nodes that had to be renamed."""
    counts = Counter(node.name for node in workload.nodes)
    names, notes = [], []
    for node in workload.nodes:
        is_name = counts[node.name] == 1 and not any(Op(node.name).problems())
        names.append(node.name if is_name else f"node{node.id}")
        if not is_name:
            reason = f'"{node.name}" cannot be the name of an op'
            notes.append(f'node {node.id} is called "{names[-1]}": {reason}')
    return names, notes


def _is_parallel(workload: Workload) -> bool:
    """Whether there is a backward half and no edge joins it to the forward half."""
    sides = [node.backward for node in workload.nodes]
    crossing = any(sides[edge.source] != sides[edge.end] for edge in workload.edges)
    return any(sides) and not all(sides) and not crossing


def _reversed(workload: Workload) -> tuple[tuple[Edge, ...], Joins]:
    """The edges with the backward ones reversed, and (forward, backward) pairs that are joined: the
    second waits for the first.
    """
    nodes, forward = workload.nodes, _forward_nodes(workload)
    sizes = {(edge.source, edge.end): edge.size for edge in workload.edges}
    edges = []
    for edge in workload.edges:
        if nodes[edge.source].backward:
            pair = forward.get(edge.source, -1), forward.get(edge.end, -1)
            size = sizes.get(pair, edge.size)
            edge = replace(edge, source=edge.end, end=edge.source, size=size)
        edges.append(edge)
    readers, read = {edge.end for edge in edges}, {edge.source for edge in edges}
    last = [i for i, node in enumerate(nodes) if not node.backward and i not in read]
    first = [i for i, node in enumerate(nodes) if node.backward and i not in readers]
    at_the_loss = [(end, start) for start in first for end in last]
    pairs = [(forward[i], i) for i in sorted(forward)]
    return tuple(edges), tuple(dict.fromkeys(at_the_loss + pairs))


def _forward_nodes(workload: Workload) -> dict[int, int]:
    """The forward node of each backward node, matched by name, else by class."""
    rows = list(enumerate(workload.nodes))
    by_name = {node.name: i for i, node in rows if not node.backward}
    by_color: dict[int | None, int]
    by_color = {node.color: i for i, node in rows if not node.backward and node.color is not None}
    matches = {
        i: by_name.get(node.name.removesuffix(GRADIENT), by_color.get(node.color))
        for i, node in rows
        if node.backward
    }
    return {i: match for i, match in matches.items() if match is not None}


def _ops(
    workload: Workload, names: Sequence[str], edges: Sequence[Edge], joins: Joins
) -> tuple[Op, ...]:
    """An op for each node. Edges of one size from one node carry the same tensor."""
    sizes: list[list[int]] = [[] for _ in names]
    inputs: list[list[str]] = [[] for _ in names]
    waits: list[list[str]] = [[] for _ in names]
    for edge in edges:
        outputs = sizes[edge.source]
        if edge.size not in outputs:
            outputs.append(edge.size)
        inputs[edge.end].append(f"{names[edge.source]}:{outputs.index(edge.size)}")
    for first, second in joins:
        waits[second].append(names[first])
    loads = _loads(workload, names)
    return tuple(
        Op(
            name=names[i],
            kind="node",
            phase="backward" if node.backward else "forward",
            inputs=tuple(inputs[i]),
            control_inputs=tuple(waits[i]),
            outputs=tuple(map(Tensor, sizes[i])),
            attrs={"max_load": loads[i]},
            # Sizes include a node's outputs, which are counted already.
            param_bytes=max(node.size - sum(sizes[i]), 0),
            colocate=None if node.color is None else f"class {node.color}",
            time=_times(node),
        )
        for i, node in enumerate(workload.nodes)
    )


def _times(node: Node) -> dict[str, Fraction]:
    times = {"accelerator": node.on_accelerator, "cpu": node.on_cpu}
    return {kind: time * MS for kind, time in times.items() if time is not None}


def _loads(workload: Workload, names: Sequence[str]) -> list[dict[str, Any]]:
    """The file's numbers of each node, from which the paper computes its maximum load."""
    costs = [Fraction(0)] * len(names)
    readers: list[list[str]] = [[] for _ in names]
    for edge in workload.edges:
        costs[edge.source] = max(costs[edge.source], edge.cost)
        readers[edge.source].append(names[edge.end])
    return [
        {"transfer_ms": float(cost), "bytes": node.size, "readers": ends}
        for node, cost, ends in zip(workload.nodes, costs, readers, strict=True)
    ]
