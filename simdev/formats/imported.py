"""Common parts of the readers of foreign formats: the file as a source, the machine that the caller
describes, and the result (a scenario or one part of it) with its provenance, ready to be written.

Every reader of this folder builds on it. ``write_imported`` writes with the writers of
``simdev.files``: a new key of a file belongs there.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from ..costs import DeviceSpec
from ..costs.collectives import COLLECTIVES, CollectiveTable
from ..files import device_names, preset_names, read_cluster, read_device, read_preset, write_text
from ..files.cluster import cluster_text, preset_hint, require_joinable
from ..files.device import capacity_of
from ..files.graph import graph_text
from ..files.reading import PathLike, label, read_source, text_of
from ..files.scenario import seen_from
from ..files.shape import UNLIMITED
from ..files.writing import json_line
from ..ground.errors import InputError, install_line, prefixed, refuse
from ..ground.units import Number, decimal_text, parse_bandwidth, parse_bytes
from ..ground.version import __version__
from ..nouns.cluster import Cluster, Device
from ..nouns.graph import Graph
from ..nouns.semantics import traits_of
from ..nouns.strategy import Strategy

HEAD = 2**16
ZIP, GZIP = b"PK\x03\x04", b"\x1f\x8b"
# Control characters, except tabs, line ends and escapes, which terminal output contains.
_NEVER_IN_TEXT = frozenset([*range(9), *range(14, 27), *range(28, 32)])


@dataclass(frozen=True, slots=True)
class Source:
    """A file to import. ``sha256`` is the hash of the raw file, ``head`` its first bytes.

    ``data`` is the whole content, gunzipped if compressed; None for an archive or a model, which
    may be too large to hold: their readers open ``path`` themselves.
    """

    path: str
    sha256: str
    head: bytes = field(repr=False)
    data: bytes | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """The file's name without its folder, which says nothing about the content."""
        return label(self.path) if self.path == "-" else os.path.basename(self.path)

    @property
    def is_text(self) -> bool:
        """Whether its first bytes could be text."""
        return _could_be_text(self.head)

    def text(self) -> str:
        """The content as text. Raises InputError."""
        return text_of(self.content(), self.path)

    def content(self) -> bytes:
        """The content, gunzipped. Raises InputError where it is too large."""
        return self.data if self.data is not None else read_source(self.path)[1]


def open_source(path: PathLike) -> Source:
    """Open a file ("-": stdin) to import. Raises InputError."""
    path, head = os.fspath(path), b""
    if path != "-":
        try:
            with open(path, "rb") as file:
                head = file.read(HEAD)
        except OSError:
            pass  # the reader below reports it better
    if head.startswith(GZIP) or _could_be_text(head):
        raw, data = read_source(path)
        return Source(path, hashlib.sha256(raw).hexdigest(), data[:HEAD], data)
    with open(path, "rb") as file:
        return Source(path, hashlib.file_digest(file, "sha256").hexdigest(), head)


def _could_be_text(head: bytes) -> bool:
    return not head.startswith(ZIP) and _NEVER_IN_TEXT.isdisjoint(head)


def require(package: str, extra: str, noun: str) -> None:
    """Raises InputError where an optional package is missing."""
    from importlib.util import find_spec

    if find_spec(package) is None:
        raise InputError(f"{noun} needs the package {package}: {install_line(extra)}")


@dataclass(frozen=True, kw_only=True)
class AnyImported:
    """The result of an import: ``source`` is the format, ``notes`` are lines on what was left out
    or changed, ``provenance`` has further facts about the file.
    """

    source: str
    notes: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Imported(AnyImported):
    """A scenario made of a foreign file; ``profiles`` are paths of profiles with its ops' times."""

    graph: Graph
    cluster: Cluster
    strategy: Strategy
    profiles: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """How much was imported, for people."""
        ops, devices = len(self.graph.ops), len(self.cluster.devices)
        return f"{_counted(ops, 'op')}, {_counted(devices, 'device')}"


@dataclass(frozen=True)
class ImportedCluster(AnyImported):
    """A cluster made of a foreign file."""

    cluster: Cluster

    @property
    def summary(self) -> str:
        """How much was imported, for people."""
        devices, links = len(self.cluster.devices), len(self.cluster.links)
        return f"{_counted(devices, 'device')}, {_counted(links, 'link')}"


@dataclass(frozen=True)
class ImportedTables(AnyImported):
    """Tables of measured collectives made of a foreign file."""

    name: str
    tables: tuple[CollectiveTable, ...]

    @property
    def summary(self) -> str:
        """How much was imported, for people."""
        return ", ".join(f"{table.collective} over {table.ranks} ranks" for table in self.tables)


def write_imported(imported: AnyImported, path: PathLike) -> None:
    """Write the result of an import as one JSON file, whole or not at all.

    Raises InputError where it cannot be JSON, and OSError.
    """
    write_text(path, imported_text(imported, os.path.dirname(os.fspath(path))))


def imported_text(imported: AnyImported, folder: str = "") -> str:
    """The text that ``write_imported`` writes into this folder. Raises InputError."""
    provenance = {
        "kind": "imported",
        "format": imported.source,
        "notes": list(imported.notes),
        "simdev": __version__,
        **imported.provenance,
    }
    if isinstance(imported, ImportedCluster):
        # A cluster has an origin for each kind of link; the file's origin is added to them.
        cluster = imported.cluster
        origins = {"imported": provenance, **cluster.provenance}
        return cluster_text(replace(cluster, provenance=origins))
    if isinstance(imported, ImportedTables):
        tables = ",\n ".join(map(_table_text, imported.tables))
        head = json_line({"version": 1, "name": imported.name})[:-1]
        return f'{head}, "tables": [\n {tables}\n], "provenance": {json_line(provenance)}}}\n'
    assert isinstance(imported, Imported)
    strategy = imported.strategy
    choice = {"collectives": {"groups": strategy.collectives.groups}}
    parts = {
        "version": "1",
        "graph": graph_text(imported.graph),
        "cluster": cluster_text(imported.cluster).strip(),
        "strategy": json_line(
            {"placement": dict(strategy.placement)}
            | (choice if strategy.collectives.groups else {})
        ),
    }
    if imported.profiles:
        parts["profile"] = json_line([seen_from(folder, path) for path in imported.profiles])
    parts["provenance"] = json_line(provenance)
    return "{" + ",\n".join(f'"{name}": {text}' for name, text in parts.items()) + "}\n"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _table_text(table: CollectiveTable) -> str:
    anchors = [
        [f"{size} B", f"{decimal_text(seconds * 10**6)} us"] for size, seconds in table.anchors
    ]
    fields = {name: getattr(table, name) for name in ("collective", "ranks", "source")}
    return json_line(fields | {"anchors": anchors})


@dataclass(frozen=True)
class Machine:
    """The caller's description of the machine; fields that are None are left open.

    With ``cluster``, a preset or a file, no other field is given, except ``devices`` for a format
    that counts ranks: this number of the cluster's devices is used. Else there are ``devices`` of
    the kind ``device``, every two joined at ``bandwidth``, each with ``memory`` ("unlimited", or
    None: the memory of the kind's datasheet, else unlimited). Problems name the options of the
    command line.
    """

    cluster: str | None = None
    device: str | None = None
    devices: int | None = None
    bandwidth: Number | None = None
    memory: Number | None = None

    def __post_init__(self) -> None:
        if self.cluster is not None:
            self.refuse("--cluster tells it", "device", "bandwidth", "memory")
        if self.devices is not None and self.devices < 1:
            raise InputError(f"--devices: must be at least 1, got {self.devices}")
        require_joinable("--devices", self.devices or 1)
        # Checked here, since a format that has these values itself never reads the fields.
        given = ("bandwidth", self.bandwidth, parse_bandwidth), ("memory", self.memory, parse_bytes)
        for name, value, parse in given:
            try:
                if value not in (None, UNLIMITED):
                    parse(value)
            except ValueError as error:
                raise InputError(f"--{name}: {error}") from None

    def refuse(self, reason: str, *names: str) -> None:
        """Raises InputError where one of these fields is not left open."""
        given = [field.name for field in fields(self) if getattr(self, field.name) is not None]
        wrong = [f"--{name}: {reason}" for name in given if name in names]
        refuse(wrong)

    @cached_property
    def datasheet(self) -> DeviceSpec | None:
        """The datasheet of the kind of device, where simdev ships one."""
        return read_device(self.device) if self.device in device_names() else None

    @property
    def capacity(self) -> Number | None:
        """Bytes of a device; None: unlimited."""
        if self.memory is None and self.device is not None:
            return capacity_of(self.device)
        return None if self.memory == UNLIMITED else self.memory

    def build(self, at_least: int = 1) -> Cluster:
        """The cluster, with ``at_least`` devices where ``devices`` is None. Raises InputError."""
        if self.cluster is not None:
            if self.devices not in (None, at_least):
                raise InputError("--devices: --cluster tells it")
            return _named_cluster(self.cluster)
        kind, count = self.device or "gpu", self.devices or at_least
        if count > 1 and self.bandwidth is None:
            raise InputError(
                f"--bandwidth: missing; the file does not tell how the {count} devices are joined"
            )
        name = f"{count} x {kind}"
        family = "cpu" if Device("cpu", kind).is_host else "gpu"
        devices = [Device(f"{family}:{i}", kind, self.capacity) for i in range(count)]
        # A single device needs no bandwidth, and has no queues to choose.
        if count == 1:
            return Cluster(name, tuple(devices))
        with prefixed("--"):
            return Cluster.all_to_all(name, devices, "device", bandwidth=self.bandwidth)


def _named_cluster(path: str) -> Cluster:
    """The cluster of a preset or a file. Raises InputError."""
    if path in preset_names():
        return read_preset(path)
    if not path.endswith((".json", ".json.gz")) and not os.path.exists(path):
        hint = preset_hint(path)
        raise InputError(f'--cluster: neither a preset nor a file: "{path}"; {hint}')
    return read_cluster(path)


OPEN = Machine()


def graph_scenario(
    graph: Graph,
    machine: Machine,
    source: str,
    notes: Sequence[str] = (),
    timed: bool = False,
    cluster: Cluster | None = None,
) -> Imported:
    """A scenario of a graph on a machine, or on a ``cluster`` already made from it, with all ops on
    the first device that runs ops. ``timed``: a profile has its times. Raises InputError.
    """
    cluster = cluster or machine.build()
    first = next(device.name for device in cluster.devices if device.runs_ops)
    more = [] if timed else _untimed(graph, cluster)
    return Imported(graph, cluster, Strategy({"*": first}), source=source, notes=(*notes, *more))


def _untimed(graph: Graph, cluster: Cluster) -> list[str]:
    """A note on ops without a time on a machine without a datasheet."""
    count = sum(
        op.time is None and traits_of(op.kind).leaf is None and op.kind not in COLLECTIVES
        for op in graph.ops
    )
    kinds = {device.kind for device in cluster.devices if device.runs_ops}
    unknown = ", ".join(sorted(kinds - set(device_names())))
    if not count or not unknown:
        return []
    return [
        f"{count} of {len(graph.ops)} ops tell no time, and {unknown} has no datasheet: add a "
        "profile (--profile), or name a --device or --cluster that simdev knows"
    ]
