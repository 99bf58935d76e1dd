"""What a reader makes of a foreign file: a scenario, or one part of it, ready to be written with
its provenance.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..costs.collectives import CollectiveTable
from ..files import write_text
from ..files.cluster import cluster_text
from ..files.graph import graph_text
from ..files.named import seen_from
from ..files.reading import PathLike
from ..ground.errors import InputError
from ..ground.units import decimal_text
from ..ground.version import __version__
from ..nouns.cluster import Cluster
from ..nouns.graph import Graph
from ..nouns.strategy import Strategy


@dataclass(frozen=True, kw_only=True)
class AnyImported:
    """``source`` is the format, ``notes`` tell what was left out or changed, a line each,
    ``provenance`` tells what else is known of the file.
    """

    source: str
    notes: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Imported(AnyImported):
    """A scenario made of a foreign file; ``profiles`` are paths of profiles that know its ops'
    times.
    """

    graph: Graph
    cluster: Cluster
    strategy: Strategy
    profiles: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """How much it is, for people."""
        ops, devices = len(self.graph.ops), len(self.cluster.devices)
        return f"{_counted(ops, 'op')}, {_counted(devices, 'device')}"


@dataclass(frozen=True)
class ImportedCluster(AnyImported):
    """A cluster made of a foreign file."""

    cluster: Cluster

    @property
    def summary(self) -> str:
        """How much it is, for people."""
        devices, links = len(self.cluster.devices), len(self.cluster.links)
        return f"{_counted(devices, 'device')}, {_counted(links, 'link')}"


@dataclass(frozen=True)
class ImportedTables(AnyImported):
    """Tables of measured collectives made of a foreign file."""

    name: str
    tables: tuple[CollectiveTable, ...]

    @property
    def summary(self) -> str:
        """How much it is, for people."""
        return ", ".join(f"{table.collective} over {table.ranks} ranks" for table in self.tables)


def write_imported(imported: AnyImported, path: PathLike) -> None:
    """Write it as one JSON file, whole or not at all.

    Raises InputError for what cannot be JSON, and OSError.
    """
    write_text(path, imported_text(imported, os.path.dirname(os.fspath(path))))


def imported_text(imported: AnyImported, folder: str = "") -> str:
    """What ``write_imported`` writes into this folder. Raises InputError."""
    provenance = {
        "kind": "imported",
        "format": imported.source,
        "notes": list(imported.notes),
        "simdev": __version__,
        **imported.provenance,
    }
    if isinstance(imported, ImportedCluster):
        # A cluster has an origin for each kind of link; that of the file stands beside them.
        cluster = imported.cluster
        origins = {"imported": provenance, **cluster.provenance}
        return cluster_text(replace(cluster, provenance=origins))
    if isinstance(imported, ImportedTables):
        tables = ",\n ".join(map(_table_text, imported.tables))
        head = _json({"version": 1, "name": imported.name})[:-1]
        return f'{head}, "tables": [\n {tables}\n], "provenance": {_json(provenance)}}}\n'
    assert isinstance(imported, Imported)
    placement = dict(imported.strategy.placement)
    parts = [
        '"version": 1',
        f'"graph": {graph_text(imported.graph)}',
        f'"cluster": {cluster_text(imported.cluster).strip()}',
        f'"strategy": {_json({"placement": placement})}',
    ]
    if imported.profiles:
        parts.append(f'"profile": {_json([seen_from(folder, path) for path in imported.profiles])}')
    return "{" + ",\n".join([*parts, f'"provenance": {_json(provenance)}']) + "}\n"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _table_text(table: CollectiveTable) -> str:
    anchors = [
        [f"{size} B", f"{decimal_text(seconds * 10**6)} us"] for size, seconds in table.anchors
    ]
    fields = {name: getattr(table, name) for name in ("collective", "ranks", "source")}
    return _json(fields | {"anchors": anchors})


def _json(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"provenance: cannot be written as JSON: {error}") from None
