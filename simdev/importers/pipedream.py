"""PipeDream's profiles (``graph.txt``): layers with forward and backward times, activations and
parameters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from ..cluster import Cluster, Device
from ..errors import InputError
from ..files.nodes import require_joinable
from ..files.reading import PathLike, label, read_text
from ..graph import Graph, Op, Tensor
from ..strategy import Strategy
from ..units import Number, parse_time
from .imported import Imported

SEPARATOR = " -- "
FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
LOADER = "Input"  # layers of this name carry the time to load data
ITEM = re.compile(r"__getitem__\((\d+)\)")
_VALUES = re.compile(r"(\w+)=(\[[^\]]*\]|[^,\s]+)")
BANDWIDTH = "1 GB/s"  # PipeDream's default
DEVICES = 4


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: times in seconds for one minibatch, bytes of its outputs and of its weights."""

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
        """Whether it stands for the loading of data, which is no computation."""
        return self.description.startswith(LOADER)


@dataclass(frozen=True, slots=True)
class Layers:
    """A profile: its layers in the order of the file."""

    layers: tuple[Layer, ...]


def read_layers(path: PathLike) -> Layers:
    """The layers of a file. Raises InputError with every problem at once."""
    text = read_text(path)
    try:
        return parse_layers(text)
    except InputError as error:
        raise error.within(label(path)) from None


def parse_layers(text: str) -> Layers:
    """The layers of a profile's text: ``id -- description -- values`` lines, then tab-indented ``a
    -- b`` edges.

    Times are ms, sizes bytes; a list ``[a; b]`` is of several outputs; ``stage_id`` may follow.
    Raises InputError.
    """
    problems: list[str] = []
    found: dict[str, Layer] = {}
    edges: list[tuple[int, str, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            if line[0] in "\t ":
                edges.append((number, *_edge(line)))
            else:
                layer = _layer(line)
                if layer.name in found:
                    raise InputError(f'"{layer.name}" is already told')
                found[layer.name] = layer
        except (InputError, ValueError) as error:
            problems += [
                f"line {number}: {problem}" for problem in getattr(error, "problems", (str(error),))
            ]
    inputs: dict[str, dict[str, None]] = {name: {} for name in found}
    for number, first, second in edges:
        unknown = [name for name in (first, second) if name not in found]
        problems += [f'line {number}: no layer named "{name}"' for name in unknown]
        if not unknown:
            inputs[second][first] = None
    if not found and not problems:
        problems.append("no layers: not a PipeDream profile")
    if problems:
        raise InputError(problems)
    return Layers(tuple(_with_inputs(layer, tuple(inputs[layer.name])) for layer in found.values()))


def _with_inputs(layer: Layer, inputs: tuple[str, ...]) -> Layer:
    return Layer(
        layer.name,
        layer.description,
        layer.forward,
        layer.backward,
        layer.activations,
        layer.parameters,
        inputs,
        layer.stage,
    )


def _edge(line: str) -> tuple[str, str]:
    ends = [part.strip() for part in line.strip().split(SEPARATOR)]
    if len(ends) != 2 or not all(ends):
        raise InputError('an edge is written "a -- b"')
    return ends[0], ends[1]


def _layer(line: str) -> Layer:
    parts = line.strip().split(SEPARATOR)
    if len(parts) < 3:
        raise InputError('a layer is written "id -- description -- values"')
    values, stage = parts[-1], None
    if values.startswith("stage_id="):
        stage, values, parts = int(values.partition("=")[2]), parts[-2], parts[:-1]
    told = dict(_VALUES.findall(values))
    missing = [name for name in FIELDS if name not in told]
    if missing:
        raise InputError([f"{name}: missing" for name in missing])
    forward, backward = (parse_time(f"{told[name]} ms") for name in FIELDS[:2])
    activations, parameters = (_sizes(name, told[name]) for name in FIELDS[2:])
    description = SEPARATOR.join(parts[1:-1])
    return Layer(
        parts[0].strip(), description, forward, backward, activations, sum(parameters), (), stage
    )


def _sizes(name: str, text: str) -> tuple[int, ...]:
    found = []
    for one in text.strip("[]").split(";"):
        try:
            size = Fraction(one.strip())
        except (ValueError, ZeroDivisionError):
            raise InputError(f"{name}: must be bytes, got {one.strip()!r}") from None
        if size < 0 or size.denominator != 1:
            raise InputError(f"{name}: must be a whole number of bytes >= 0, got {one.strip()}")
        found.append(int(size))
    return tuple(found)


def layers_scenario(
    profile: Layers,
    name: str = "PipeDream profile",
    devices: int = DEVICES,
    bandwidth: Number = BANDWIDTH,
    memory: Number | None = None,
) -> Imported:
    """The training step of a profile, on ``devices`` alike GPUs joined by links of ``bandwidth``;
    all on the first.

    Each layer is a forward and a backward op in one colocation group. Gradients run against the
    edges and have the size of the activations; a backward op reads what its forward op read and
    made. Layers named ``Input`` are left out: their time is that of loading data. Raises
    InputError.
    """
    if devices < 1:
        raise InputError(f"devices: must be at least 1, got {devices}")
    require_joinable("devices", devices)
    kept = {layer.name: layer for layer in profile.layers if not layer.is_loader}
    dropped = [layer for layer in profile.layers if layer.is_loader]
    ops = [*_forward(kept), *_backward(kept)]
    cluster = Cluster.all_to_all(
        f"{devices} GPUs",
        [Device(f"gpu:{d}", memory=memory) for d in range(devices)],
        "device",
        bandwidth=bandwidth,
    )
    notes = [
        (
            f"left out {layer.name} ({layer.description}): {float(layer.forward * 1000):g} "
            "ms of loading data"
        )
        for layer in dropped
    ]
    notes += [
        ("gradients of parameters are counted, optimizer states are not: the profile tells neither")
    ]
    return Imported(
        Graph(name, tuple(ops)), cluster, Strategy({"*": "gpu:0"}), "pipedream", tuple(notes)
    )


def _forward(kept: dict[str, Layer]) -> Iterator[Op]:
    for layer in kept.values():
        yield Op(
            layer.name,
            kind=_kind(layer.description),
            inputs=tuple(_reads(kept, layer)),
            outputs=tuple(map(Tensor, layer.activations)),
            attrs={"description": layer.description},
            param_bytes=layer.parameters,
            grad_bytes=layer.parameters,
            colocate=layer.name,
            time=layer.forward,
        )


def _reads(kept: dict[str, Layer], layer: Layer) -> Iterator[str]:
    """The tensors that a layer reads: ``__getitem__(k)`` output k, any other all outputs of its
    producers.
    """
    item = ITEM.match(layer.description)
    for name in layer.inputs:
        if name in kept:
            count = len(kept[name].activations)
            chosen = [int(item[1])] if item and int(item[1]) < count else range(count)
            yield from (f"{name}:{output}" for output in chosen)


def _backward(kept: dict[str, Layer]) -> Iterator[Op]:
    """The backward ops, later layers first; output k is the gradient of what the layer's k-th
    producer made.
    """
    readers: dict[str, list[str]] = {name: [] for name in kept}
    for layer in kept.values():
        for name in layer.inputs:
            if name in kept:
                at = [one for one in layer.inputs if one in kept].index(name)
                readers[name].append(f"{_back(layer.name)}:{at}")
    for layer in reversed(kept.values()):
        own = [f"{layer.name}:{output}" for output in range(len(layer.activations))]
        producers = [kept[name] for name in layer.inputs if name in kept]
        yield Op(
            _back(layer.name),
            kind=f"{_kind(layer.description)}_backward",
            phase="backward",
            inputs=(*readers[layer.name], *own, *_reads(kept, layer)),
            outputs=tuple(Tensor(sum(one.activations)) for one in producers),
            colocate=layer.name,
            time=layer.backward,
        )


def _back(name: str) -> str:
    return f"{name}/backward"


def _kind(description: str) -> str:
    found = re.match(r"\w+", description)
    return found[0].strip("_").lower() if found else "layer"
