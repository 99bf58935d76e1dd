"""What a reader made of a foreign file: a scenario, or one part of it, ready to be written with its
provenance.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..cluster import Cluster
from ..collectives import CollectiveTable
from ..errors import InputError
from ..files.cluster import cluster_text
from ..files.graph import graph_text
from ..files.reading import PathLike
from ..files.writing import decimal_text, write_text
from ..graph import Graph
from ..strategy import Strategy
from ..version import __version__


@dataclass(frozen=True)
class Imported:
    """A question made of a foreign file. ``notes`` tell what was left out or changed, a line each.

    ``source`` is the format, ``profiles`` are paths of profiles that know its ops' times,
    ``provenance`` tells what else is known of the file.
    """

    graph: Graph
    cluster: Cluster
    strategy: Strategy
    source: str
    notes: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    profiles: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """How much it is, for people."""
        return (
            f"{_counted(len(self.graph.ops), 'op')}, "
            f"{_counted(len(self.cluster.devices), 'device')}"
        )


@dataclass(frozen=True)
class ImportedCluster:
    """A cluster made of a foreign file; the other fields are those of Imported."""

    cluster: Cluster
    source: str
    notes: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """How much it is, for people."""
        return (
            f"{_counted(len(self.cluster.devices), 'device')}, "
            f"{_counted(len(self.cluster.links), 'link')}"
        )


@dataclass(frozen=True)
class ImportedTables:
    """Tables of measured collectives made of a foreign file; the other fields are those of
    Imported.
    """

    name: str
    tables: tuple[CollectiveTable, ...]
    source: str
    notes: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """How much it is, for people."""
        return ", ".join(f"{one.collective} over {one.ranks} ranks" for one in self.tables)


AnyImported = Imported | ImportedCluster | ImportedTables


def write_imported(imported: AnyImported, path: PathLike) -> None:
    """Write it as one JSON file, whole or not at all.

    Raises InputError for what cannot be JSON, and OSError.
    """
    write_text(path, imported_text(imported, os.path.dirname(os.fspath(path))))


def imported_text(imported: AnyImported, folder: str = "") -> str:
    """What ``write_imported`` writes into this folder. Raises InputError."""
    told = {
        "kind": "imported",
        "format": imported.source,
        "notes": list(imported.notes),
        "simdev": __version__,
        **imported.provenance,
    }
    if isinstance(imported, ImportedCluster):
        # The cluster tells of its links one by one; the file stands beside them.
        object_ = imported.cluster
        return cluster_text(_with_provenance(object_, {"imported": told, **object_.provenance}))
    if isinstance(imported, ImportedTables):
        return _tables_text(imported, told)
    parts = [
        '"version": 1',
        f'"graph": {graph_text(imported.graph)}',
        f'"cluster": {cluster_text(imported.cluster).strip()}',
        f'"strategy": {_json({"placement": dict(imported.strategy.placement)})}',
    ]
    if imported.profiles:
        parts.append(f'"profile": {_json([_seen_from(folder, one) for one in imported.profiles])}')
    return "{" + ",\n".join([*parts, f'"provenance": {_json(told)}']) + "}\n"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _with_provenance(cluster: Cluster, told: Mapping[str, Any]) -> Cluster:
    return Cluster(
        cluster.name,
        cluster.devices,
        cluster.links,
        cluster.queues,
        cluster.transfer,
        cluster.collectives,
        told,
    )


def _tables_text(imported: ImportedTables, told: Mapping[str, Any]) -> str:
    lines = []
    for table in imported.tables:
        anchors = [
            [f"{size} B", f"{decimal_text(seconds * 10**6)} us"] for size, seconds in table.anchors
        ]
        one = {
            "collective": table.collective,
            "ranks": table.ranks,
            "source": table.source,
            "anchors": anchors,
        }
        lines.append(_json(one))
    head = _json({"version": 1, "name": imported.name})[:-1]
    return head + ', "tables": [\n ' + ",\n ".join(lines) + f'\n], "provenance": {_json(told)}}}\n'


def _seen_from(folder: str, path: str) -> str:
    """A path as a file in this folder names it."""
    return path if os.path.isabs(path) else os.path.relpath(path, folder or os.curdir)


def _json(told: object) -> str:
    try:
        return json.dumps(told, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"provenance: cannot be written as JSON: {error}") from None
