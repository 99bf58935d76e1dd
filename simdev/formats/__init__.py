"""Readers of the field's public formats, which make scenarios, clusters and tables of collectives
with their provenance; and writers of plans as configurations of frameworks (``launch``).

``simdev import`` calls ``import_file``. A new format is a module here, a row of FORMATS, and a
pattern in ``recognise`` (TEXTS, JSONS); the help of the verb prints FORMATS, and
``docs/how-to/importers.md`` has a row of each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..files.reading import PathLike, label
from ..ground.errors import InputError, within
from ..ground.units import Number
from .chakra import traces_scenario
from .chakra_messages import is_trace, parse_trace
from .imported import (
    ZIP,
    AnyImported,
    Imported,
    Machine,
    Source,
    graph_scenario,
    imported_text,
    open_source,
    write_imported,
)
from .networks import network_scenario, parse_network
from .nvidia import log_tables, parse_log, parse_topology, topology_cluster
from .onnx_graph import model_graph, model_scenario
from .onnx_model import is_model, parse_model, read_model
from .partitioning import layers_scenario, parse_layers, parse_workload, workload_scenario

# The formats, their recognition and their readers.


@dataclass(frozen=True, kw_only=True)
class Format:
    """The description of a format: its ``files``, the kind of result, the units of its numbers."""

    files: str
    becomes: str
    units: str


@dataclass(frozen=True)
class Readable(Format):
    """A format with its reader: ``parse`` takes the file and the numbers of symbolic dimensions;
    ``build`` takes the result of ``parse``, the machine and a name.
    """

    parse: Callable[[Source, Mapping[str, int]], Any]
    build: Callable[[Any, Machine, str | None], AnyImported]


def _of_text(parse: Callable[[str], Any]) -> Callable[[Source, Mapping[str, int]], Any]:
    return lambda source, dims: parse(source.text())


FORMATS: Mapping[str, Readable] = {
    "pipedream": Readable(
        _of_text(parse_layers),
        layers_scenario,
        files="PipeDream's profiles (graph.txt)",
        becomes="scenario",
        units="times in ms of one minibatch, sizes in bytes",
    ),
    "dnn-partitioning": Readable(
        _of_text(parse_workload),
        workload_scenario,
        files="workloads of dnn-partitioning (JSON)",
        becomes="scenario",
        units="latencies in ms, sizes in bytes; costs of edges, in ms or in s, are not used",
    ),
    "onnx": Readable(
        lambda source, dims: read_model(parse_model(source), dims),
        model_scenario,
        files="ONNX models (.onnx)",
        becomes="scenario",
        units="shapes in elements, sizes in bytes; a model tells no times",
    ),
    "networkx": Readable(
        _of_text(parse_network),
        network_scenario,
        files="node-link JSON, GraphML",
        becomes="scenario",
        units="times in s unless an attribute's name or a text says otherwise, sizes in bytes",
    ),
    "chakra": Readable(
        lambda source, dims: [parse_trace(source)],
        traces_scenario,
        files="MLCommons Chakra traces, one file a rank (.et)",
        becomes="scenario",
        units="times in whole us, sizes in bytes",
    ),
    "nvidia-smi-topo": Readable(
        _of_text(parse_topology),
        topology_cluster,
        files="output of nvidia-smi topo -m",
        becomes="cluster",
        units="numbers of NVLinks; the matrix tells no rates",
    ),
    "nccl-tests": Readable(
        _of_text(parse_log),
        log_tables,
        files="output of nccl-tests",
        becomes="tables of collectives",
        units="sizes in bytes, times in us, bandwidths in GB/s",
    ),
}
TORCH_FORMATS: Mapping[str, Format] = {
    "torch-export": Format(
        files="programs of torch.export (.pt2)",
        becomes="scenario",
        units="shapes in elements, sizes in bytes; a program tells no times",
    ),
    "kineto": Format(
        files="traces of torch.profiler, one file a rank",
        becomes="profile or scenario",
        units="times in us",
    ),
}
"""Formats of PyTorch's own, which ``simdev.measure`` reads."""
EVERY_FORMAT: Mapping[str, Format] = {**FORMATS, **TORCH_FORMATS}


def table_of_formats() -> str:
    """A table of formats, a line each: name, files and kind of result."""
    rows = ((name, format.files, format.becomes) for name, format in EVERY_FORMAT.items())
    return "\n".join(f"  {name:16}  {files:46}  {becomes}" for name, files, becomes in rows)


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
    """Read a file of one of FORMATS (None: recognised by its content). ``name`` is the graph's.

    For formats without a machine it is ``cluster`` (a preset or a file), or ``devices`` devices of
    the kind ``device`` with ``memory`` each, every two joined at ``bandwidth``. ``dims`` has the
    numbers of an ONNX model's symbolic dimensions. A Chakra trace may be several files, one a rank.
    Raises InputError.
    """
    paths = [path] if isinstance(path, str) or not isinstance(path, Sequence) else list(path)
    sources = [file if isinstance(file, Source) else open_source(file) for file in paths]
    machine = Machine(cluster, device, devices, bandwidth, memory)
    # Several files are one trace of several ranks; no other format has more than a file.
    if len(sources) != 1:
        return _import_ranks(sources, format, machine, name)
    source = sources[0]
    with within(label(source.path)):
        chosen = format or recognise(source)
        if chosen in TORCH_FORMATS:
            raise InputError(
                f"a file of {chosen}: simdev.measure reads it (import_program, import_trace)"
            )
        if chosen not in FORMATS:
            known = ", ".join(EVERY_FORMAT)
            raise InputError(f'format: must be one of {known}, got "{chosen}"')
        reader = FORMATS[chosen]
        imported = reader.build(reader.parse(source, dims or {}), machine, name)
    return replace(imported, provenance=provenance_of([source], chosen) | {**imported.provenance})


def _import_ranks(
    sources: Sequence[Source], format: str | None, machine: Machine, name: str | None
) -> AnyImported:
    """The import of several files that are one trace."""
    traces = []
    for source in sources:
        with within(label(source.path)):
            chosen = format or recognise(source)
            if chosen != "chakra":
                raise InputError(f"is of the format {chosen}: only Chakra traces are several files")
            traces.append(parse_trace(source))
    if not traces:
        raise InputError("no file to import")
    imported = traces_scenario(traces, machine, name)
    return replace(imported, provenance=provenance_of(sources, "chakra"))


def provenance_of(sources: Sequence[Source], format: str) -> dict[str, Any]:
    """The provenance of imported numbers: names and hashes of the files, and their units."""
    files = [{"file": source.name, "sha256": source.sha256} for source in sources]
    origin = files[0] if len(files) == 1 else {"files": files}
    return {**origin, "units": EVERY_FORMAT[format].units}


TEXTS: Sequence[tuple[str, str]] = (
    # A line that begins with GPU0 and has no X is the head of the matrix; rows have an X.
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
"""Patterns that recognise formats of texts, and of texts that are JSON; the first match decides."""

EXECUTION_TRACE = r'"schema"\s*:\s*"[\d.]+-chakra'
"""The beginning of files that are input of Chakra's converter, not traces of Chakra."""


def recognise(source: Source) -> str:
    """The format of a file, recognised by its content. Raises InputError."""
    if source.head.startswith(ZIP):
        return "torch-export"
    if source.is_text:
        text = source.text()
        for name, pattern in JSONS if text.lstrip()[:1] in ("{", "[") else TEXTS:
            if re.search(pattern, text, re.MULTILINE):
                return name
        if re.search(EXECUTION_TRACE, text):
            raise InputError(
                "an execution trace of PyTorch (ExecutionTraceObserver), which tells no times: "
                "import the profiler's trace of the step, or link both and convert them "
                "(chakra_trace_link, chakra_converter)"
            )
    elif is_model(source):
        return "onnx"
    elif is_trace(source):
        return "chakra"
    known = ", ".join(EVERY_FORMAT)
    raise InputError(f"of no format that simdev knows ({known}): tell it by --format")


__all__ = [
    "EVERY_FORMAT",
    "FORMATS",
    "TORCH_FORMATS",
    "Imported",
    "Machine",
    "Source",
    "graph_scenario",
    "import_file",
    "imported_text",
    "layers_scenario",
    "log_tables",
    "model_graph",
    "model_scenario",
    "network_scenario",
    "open_source",
    "parse_layers",
    "parse_log",
    "parse_model",
    "parse_network",
    "parse_topology",
    "parse_trace",
    "parse_workload",
    "provenance_of",
    "read_model",
    "recognise",
    "table_of_formats",
    "topology_cluster",
    "traces_scenario",
    "workload_scenario",
    "write_imported",
]
