"""The measured tables that are shipped, one collection for each kind of node, and the model of a
cluster that names one of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from ...ground import PACKAGE
from ...ground.errors import InputError
from ...ground.units import parse_bytes, parse_time
from ...nouns.cluster import Cluster
from .model import CollectiveModel
from .table import CollectiveTable

COLLECTIVE_PRESETS = PACKAGE / "files" / "presets" / "collectives"


@cache
def collective_names() -> tuple[str, ...]:
    """Names of the collections of tables shipped with simdev, sorted."""
    return tuple(sorted(path.stem for path in COLLECTIVE_PRESETS.glob("*.json")))


@cache
def shipped_tables(name: str) -> tuple[CollectiveTable, ...]:
    """The tables shipped under a name, none under "". Raises InputError."""
    require_collectives(name)
    if not name:
        return ()
    fields = json.loads((COLLECTIVE_PRESETS / f"{name}.json").read_text(encoding="utf-8"))
    return tuple(map(table_of_fields, fields["tables"]))


def table_of_fields(fields: Mapping[str, Any]) -> CollectiveTable:
    """A table by its fields in JSON. Raises InputError, or ValueError for an anchor."""
    anchors = tuple((parse_bytes(size), parse_time(time)) for size, time in fields["anchors"])
    source = fields.get("source", "measured")
    return CollectiveTable(fields["collective"], fields["ranks"], anchors, source)


def collective_model(
    cluster: Cluster, algorithm: str = "auto", tables: Sequence[CollectiveTable] = ()
) -> CollectiveModel:
    """The collectives of a cluster: these tables, else the shipped ones that it names; closed forms
    elsewhere.

    Raises InputError.
    """
    return CollectiveModel(cluster, tables or shipped_tables(cluster.collectives), algorithm)


def require_collectives(name: str) -> None:
    """Raises InputError unless tables of that name are shipped, or none are named ("")."""
    if name and name not in collective_names():
        raise InputError(
            f'collectives: no tables "{name}"; there are those of {", ".join(collective_names())}'
        )
