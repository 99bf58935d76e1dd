"""Which format a file has, and the reader for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import InputError
from ..files.reading import PathLike, label
from ..graph import Graph
from ..units import Number
from .chakra import is_trace, parse_trace, traces_scenario
from .dnn_partitioning import parse_workload, workload_scenario
from .imported import AnyImported, Imported
from .machine import Machine, on_first, untimed
from .nccl import log_tables, parse_log
from .networks import network_scenario, parse_network
from .onnx import is_model, model_scenario, parse_model, read_model
from .pipedream import layers_scenario, parse_layers
from .source import ZIP, Source, open_source
from .topology import parse_topology, topology_cluster


@dataclass(frozen=True)
class Asked:
    """What is asked for beside the file: the graph's name, the machine, numbers of symbolic
    dimensions.
    """

    machine: Machine
    name: str | None = None
    dims: Mapping[str, int] = field(default_factory=dict)

    @property
    def named(self) -> dict[str, Any]:
        """The name as a keyword, where one is asked for."""
        return {} if self.name is None else {"name": self.name}


@dataclass(frozen=True)
class Format:
    """How a format is read, and what the numbers in its files mean."""

    read: Callable[[Source, Asked], AnyImported]
    units: str


def _pipedream(source: Source, asked: Asked) -> Imported:
    machine = asked.machine
    _refuse(
        machine,
        "cluster",
        "device",
        reason="a PipeDream profile is of GPUs all alike: --devices, --bandwidth",
    )
    told = {"devices": machine.devices, "bandwidth": machine.bandwidth, "memory": machine.memory}
    chosen: dict[str, Any] = {key: value for key, value in told.items() if value is not None}
    return layers_scenario(parse_layers(source.text()), **chosen, **asked.named)


def _workload(source: Source, asked: Asked) -> Imported:
    _refuse(
        asked.machine,
        "cluster",
        "device",
        "devices",
        "bandwidth",
        "memory",
        reason="the file tells it itself",
    )
    return workload_scenario(parse_workload(source.text()), **asked.named)


def _onnx(source: Source, asked: Asked) -> Imported:
    return model_scenario(read_model(parse_model(source), asked.dims), asked.machine, asked.name)


def _refuse(machine: Machine, *names: str, reason: str) -> None:
    wrong = [f"--{name}: {reason}" for name in names if f"--{name}" in machine.asked]
    if wrong:
        raise InputError(wrong)


FORMATS: Mapping[str, Format] = {
    "pipedream": Format(_pipedream, "times in ms of one minibatch, sizes in bytes"),
    "dnn-partitioning": Format(
        _workload, "latencies in ms, sizes in bytes; costs of edges, in ms or in s, are not used"
    ),
    "onnx": Format(_onnx, "shapes in elements, sizes in bytes; a model tells no times"),
    "networkx": Format(
        lambda source, asked: network_scenario(
            parse_network(source.text()), asked.machine, **asked.named
        ),
        "times in s unless an attribute's name or a text says otherwise, sizes in bytes",
    ),
    "chakra": Format(
        lambda source, asked: traces_scenario([parse_trace(source)], asked.machine, **asked.named),
        "times in whole us, sizes in bytes",
    ),
    "nvidia-smi-topo": Format(
        lambda source, asked: topology_cluster(
            parse_topology(source.text()), asked.machine, **asked.named
        ),
        "numbers of NVLinks; the matrix tells no rates",
    ),
    "nccl-tests": Format(
        lambda source, asked: log_tables(parse_log(source.text()), asked.machine, **asked.named),
        "sizes in bytes, times in us, bandwidths in GB/s",
    ),
}
TORCH_FORMATS: Mapping[str, str] = {
    "torch-export": "shapes in elements, sizes in bytes; a program tells no times",
    "kineto": "times in us",
}
"""Formats of PyTorch's own, which ``simdev.measure`` reads, with their units."""


def import_file(
    path: PathLike | Source | Sequence[PathLike | Source],
    format: str | None = None,
    name: str | None = None,
    devices: int | None = None,
    bandwidth: Number | None = None,
    memory: Number | None = None,
    *,
    cluster: str | None = None,
    device: str | None = None,
    dims: Mapping[str, int] | None = None,
) -> AnyImported:
    """Read a file of one of FORMATS (None: told from what it holds). ``name`` is the graph's.

    The machine, of formats that tell none, is ``cluster`` (a preset or a file) or ``devices`` of
    the kind ``device`` with ``memory`` each, every two joined at ``bandwidth``. ``dims`` are
    numbers of an ONNX model's symbolic dimensions. A Chakra trace may be several files, one a rank.
    Raises InputError.
    """
    paths = [path] if isinstance(path, str) or not isinstance(path, Sequence) else list(path)
    sources = [one if isinstance(one, Source) else open_source(one) for one in paths]
    asked = Asked(Machine(cluster, device, devices, bandwidth, memory), name, dims or {})
    if len(sources) != 1:
        return _import_ranks(sources, format, asked)
    source = sources[0]
    try:
        chosen = recognise(source) if format is None else format
        if chosen in TORCH_FORMATS:
            raise InputError(
                f"a file of {chosen}: simdev.measure reads it (import_program, import_trace)"
            )
        found = _known(chosen).read(source, asked)
    except InputError as error:
        raise error.within(label(source.path)) from None
    return replace(found, provenance={**provenance_of([source], chosen), **found.provenance})


def _import_ranks(sources: Sequence[Source], format: str | None, asked: Asked) -> AnyImported:
    """Several files that are one trace."""
    traces = []
    for source in sources:
        try:
            chosen = recognise(source) if format is None else format
            if chosen != "chakra":
                raise InputError(f"is of the format {chosen}: only Chakra traces are several files")
            traces.append(parse_trace(source))
        except InputError as error:
            raise error.within(label(source.path)) from None
    if not sources:
        raise InputError("no file to import")
    found = traces_scenario(traces, asked.machine, **asked.named)
    return replace(found, provenance=provenance_of(sources, "chakra"))


def graph_scenario(
    graph: Graph, machine: Machine, source: str, notes: Sequence[str] = (), timed: bool = False
) -> Imported:
    """A graph on the machine that is asked for, all of it on the first device.

    ``timed`` where a profile goes with it. Raises InputError.
    """
    cluster = machine.build()
    more = () if timed else untimed(graph, cluster)
    return Imported(graph, cluster, on_first(cluster), source, (*notes, *more))


def provenance_of(sources: Sequence[Source], format: str) -> dict[str, Any]:
    """Where imported numbers come from: names and hashes of the files, and their units."""
    files = [{"file": source.name, "sha256": source.sha256} for source in sources]
    units = FORMATS[format].units if format in FORMATS else TORCH_FORMATS[format]
    return {**(files[0] if len(files) == 1 else {"files": files}), "units": units}


def _known(format: str) -> Format:
    if format not in FORMATS:
        raise InputError(
            f'format: must be one of {", ".join([*FORMATS, *TORCH_FORMATS])}, got "{format}"'
        )
    return FORMATS[format]


TEXTS: Sequence[tuple[str, str]] = (
    ("nvidia-smi-topo", r"^(?:\x1b\[[0-9;]*m|\s)*GPU0\b(?!.*\bX\b)"),
    ("nccl-tests", r"\balgbw\b.*\bbusbw\b"),
    ("networkx", r"\A\s*<"),
    ("pipedream", r" -- "),
)
JSONS: Sequence[tuple[str, str]] = (
    ("kineto", r'\A\s*\[|"traceEvents"\s*:'),
    (
        "chakra",
        r'"workload_graph"\s*:|"type"\s*:\s*"[A-Z_]+_NODE"|"(?:dataDeps|durationMicros)"\s*:',
    ),
    ("dnn-partitioning", r'"(?:maxFPGAs|supportedOnFpga|sourceId)"\s*:'),
    ("networkx", r'"(?:links|edges|directed|multigraph)"\s*:'),
)
"""Formats of texts, and of texts that are JSON, with what betrays them; the first that is found."""


def recognise(source: Source) -> str:
    """The format that a file has, by what it holds. Raises InputError."""
    if source.head.startswith(ZIP):
        return "torch-export"
    if not source.is_text:
        for name, fits in (("onnx", is_model), ("chakra", is_trace)):
            if fits(source):
                return name
    else:
        text = source.text()
        for name, pattern in JSONS if text.lstrip()[:1] in ("{", "[") else TEXTS:
            if re.search(pattern, text, re.MULTILINE):
                return name
    known = ", ".join([*FORMATS, *TORCH_FORMATS])
    raise InputError(f"of no format that simdev knows ({known}): tell it by --format")
