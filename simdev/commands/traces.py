"""Traces of ``torch.profiler``, from a rank or from several, as a scenario, which ``simdev import``
writes and ``simdev compare`` puts beside a predicted step.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..ground.errors import InputError
from ..ground.units import format_seconds

if TYPE_CHECKING:
    from ..formats import Imported, Machine, Source
    from ..nouns.cluster import Cluster, Host

TRACES = (".json", ".json.gz", ".et")
HEAD = b'"traceEvents"', b'"deviceProperties"'
LOOKED_AT, GZIP = 2**16, b"\x1f\x8b"
FAST = "1 TB/s"
"""The bandwidth between any two devices where all times come from the trace."""


def files_of(path: str) -> list[str]:
    """A file, or the traces that a folder holds. Raises InputError for a folder without any."""
    if not os.path.isdir(path):
        return [path]
    names = sorted(name for name in os.listdir(path) if not name.startswith("."))
    files = [name for name in names if name.endswith(TRACES)]
    if not files:
        raise InputError(f"{path}: holds no traces ({', '.join(TRACES)})")
    return [os.path.join(path, name) for name in files]


def is_traced(path: str) -> bool:
    """Whether a path is a folder, or a file that begins like a trace of ``torch.profiler``."""
    if path == "-" or os.path.isdir(path):
        return path != "-"
    with suppress(OSError, zlib.error), open(path, "rb") as file:
        head = file.read(LOOKED_AT)
        if head.startswith(GZIP):
            head = zlib.decompressobj(wbits=31).decompress(head)
        return any(sign in head for sign in HEAD)
    return False  # the file's reader will report the fault better


def traced(
    sources: Sequence[Source],
    name: str,
    machine: Machine,
    warm_up: int | None = None,
    names: Sequence[str] = (),
) -> Imported:
    """A step from the traces of a rank or of several, with the hosts that dispatched it. Its
    devices get these ``names`` if there are equally many. Raises InputError.
    """
    from ..files.reading import label
    from ..formats import Imported, graph_scenario, provenance_of
    from ..measure import trace_ranks
    from ..nouns.cluster import Cluster
    from ..nouns.strategy import Collectives, Strategy

    texts = {label(source.path): source.text() for source in sources}
    steps = trace_ranks(texts, machine.device, warm_up)
    if machine.cluster is None:
        machine = replace(machine, device=steps.first.kind)
    cluster = machine.build(1 if machine.cluster else machine.devices or len(sources))
    if len(names) == len(cluster.devices):
        called = [replace(d, name=text) for d, text in zip(cluster.devices, names, strict=True)]
        cluster = Cluster.all_to_all(cluster.name, called, bandwidth=FAST)
    if not steps.communicates:
        graph = replace(steps.first.graph, name=name)
        scenario = graph_scenario(graph, machine, "kineto", steps.first.notes, cluster=cluster)
    else:
        devices = [device.name for device in cluster.devices if device.runs_ops]
        joined = steps.joined(name, devices)
        scenario = Imported(
            joined.graph,
            cluster,
            Strategy(joined.placement, collectives=Collectives(groups=joined.groups)),
            source="kineto",
            notes=(*steps.notes, *joined.notes),
        )
    return replace(
        scenario,
        cluster=_hosted(scenario.cluster, steps.first.host),
        provenance=provenance_of(sources, "kineto") | {"step": dict(steps.figures)},
    )


def as_traced(path: str, predicted: Any = None) -> Any:
    """The step of a folder of traces, or of the trace of a single rank, with its measured times.
    Its ops get the names of a predicted step, if one is given. Raises SimdevError.
    """
    from ..costs import CostModel
    from ..execution.scenario import Scenario
    from ..formats import Machine, open_source
    from ..report.page import named_like, simulated

    sources = [open_source(file) for file in files_of(path)]
    title = os.path.basename(os.path.normpath(path))
    known = () if predicted is None else predicted.report.devices
    names = [device.name for device in known if device.ops]
    imported = traced(sources, title, Machine(bandwidth=FAST), names=names)
    graph, strategy = imported.graph, imported.strategy
    if predicted is not None and predicted.kinds is not None:
        places = dict(strategy.placement)
        if "*" in places:
            places = dict.fromkeys((op.name for op in graph.ops), places["*"])
        devices = [device.name for device in imported.cluster.devices]
        graph, renamed = named_like(graph, places, devices, (predicted.report, predicted.kinds))
        places = {renamed[op]: device for op, device in places.items()}
        strategy = replace(strategy, placement=places)
    given = replace(strategy.collectives, cost="given")
    strategy = replace(strategy, collectives=given)
    lengths = _step_seconds(imported.provenance["step"])
    name = f"{title}, traced {format_seconds(max(lengths))}"
    return simulated(name, Scenario(graph, imported.cluster, CostModel(()), strategy))


def _step_seconds(figures: Mapping[str, Any]) -> list[float]:
    """The lengths of a traced step on its ranks."""
    if "step_s" in figures:
        return [figures["step_s"]]
    return [of_rank["step_s"] for of_rank in figures.values()]


def _hosted(cluster: Cluster, host: Host) -> Cluster:
    """The cluster with this host, unless it has hosts already. A CPU gets the host in its own
    entry.
    """
    if cluster.host is not None or any(device.host is not None for device in cluster.devices):
        return cluster
    if not all(device.is_host for device in cluster.devices if device.runs_ops):
        return replace(cluster, host=host)
    devices = tuple(
        replace(device, host=host) if device.runs_ops else device for device in cluster.devices
    )
    return replace(cluster, devices=devices)
