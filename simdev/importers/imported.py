"""Imported: what a reader made of a foreign file, and the scenario file of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..cluster import Cluster
from ..files.cluster import cluster_text
from ..files.graph import graph_text
from ..files.reading import PathLike
from ..files.writing import write_text
from ..graph import Graph
from ..strategy import Strategy
from ..version import __version__


@dataclass(frozen=True)
class Imported:
    """A question made of a foreign file. ``notes`` tell what was left out or changed, a line each."""

    graph: Graph
    cluster: Cluster
    strategy: Strategy
    source: str
    notes: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)


def write_imported(imported: Imported, path: PathLike) -> None:
    """Write it as one scenario file, whole or not at all. Raises OSError."""
    told = {
        "kind": "imported",
        "format": imported.source,
        "notes": list(imported.notes),
        "simdev": __version__,
        **imported.provenance,
    }
    parts = [
        '"version": 1',
        f'"graph": {graph_text(imported.graph)}',
        f'"cluster": {cluster_text(imported.cluster).strip()}',
        f'"strategy": {json.dumps({"placement": dict(imported.strategy.placement)}, ensure_ascii=False)}',
        f'"provenance": {json.dumps(told, ensure_ascii=False)}',
    ]
    write_text(path, "{" + ",\n".join(parts) + "}\n")
