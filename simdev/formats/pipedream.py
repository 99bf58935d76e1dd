"""PipeDream's profiles (``graph.txt``): layers with forward and backward times, activations and
parameters.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from ..ground.errors import InputError, refuse
from ..ground.units import exact, parse_time, parse_whole
from ..nouns.graph import Graph, Op, Tensor
from ..nouns.strategy import Strategy
from .imported import Imported
from .machine import OPEN, Machine

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
        """Whether it stands for the loading of data, which is no computation."""
        return self.description.startswith(LOADER)

    @property
    def kind(self) -> str:
        """The kind of its op: the word that its description begins with."""
        word = re.match(r"\w+", self.description)
        return word[0].strip("_").lower() if word else "layer"


def parse_layers(text: str) -> tuple[Layer, ...]:
    """The layers of a profile's text, in its order: ``id -- description -- values`` lines, then
    tab-indented ``a -- b`` edges.

    Times are ms, sizes bytes; a list ``[a; b]`` is of several outputs; ``stage_id`` may follow.
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
            raise InputError(f"{field}: must be bytes, got {number!r}") from None
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
    made. Layers named ``Input`` are left out: their time is that of loading data. Raises
    InputError.
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
    """The backward ops, later layers first; output k is the gradient of what the layer's k-th
    producer made.
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
