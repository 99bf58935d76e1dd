"""Tables of measured collectives from JSON, and the model that a cluster gets of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Required

from pydantic import Field, TypeAdapter, with_config
from typing_extensions import TypedDict

from ..cluster import Cluster
from ..collectives import CollectiveModel, CollectiveTable
from ..errors import InputError
from ..units import parse_bytes, parse_time
from .reading import PathLike
from .shape import STRICT, read_shape
from .source import opened

COLLECTIVE_PRESETS = Path(__file__).parent.parent / "presets" / "collectives"
_Anchor = Annotated[list[Any], Field(min_length=2, max_length=2)]


@with_config(STRICT)
class _TableShape(TypedDict, total=False):
    collective: Required[str]
    ranks: Required[int]
    source: Literal["measured", "fitted"]
    anchors: Required[list[_Anchor]]
    left_out: dict[str, Any]


@with_config(STRICT)
class _CollectivesShape(TypedDict, total=False):
    name: str
    title: str
    tables: Required[list[_TableShape]]
    provenance: dict[str, Any]


_KEYS = frozenset({*_CollectivesShape.__annotations__, *_TableShape.__annotations__, "version"})


@cache
def _adapter() -> TypeAdapter[Any]:
    return TypeAdapter(_CollectivesShape)


def collective_names() -> tuple[str, ...]:
    """Names of the collections of tables shipped with simdev, one for each kind of node."""
    return tuple(sorted(path.stem for path in COLLECTIVE_PRESETS.glob("*.json")))


def read_collectives(source: PathLike | Mapping[str, Any]) -> tuple[CollectiveTable, ...]:
    """The tables of a file, of a shipped collection (by name), or of an object already parsed. Raises InputError."""
    if isinstance(source, str) and source in collective_names():
        source = COLLECTIVE_PRESETS / f"{source}.json"
    with opened(source) as (value, is_file):
        return _tables(read_shape(_adapter(), value, _KEYS, is_file, "tables of collectives")["tables"])


def collectives_fields(name: str) -> dict[str, Any]:
    """The fields of a shipped collection, checked one by one. Raises InputError."""
    with opened(COLLECTIVE_PRESETS / f"{name}.json") as (value, _):
        return read_shape(_adapter(), value, _KEYS, True, "tables of collectives")


def collective_model(cluster: Cluster, algorithm: str = "auto") -> CollectiveModel:
    """The collectives of a cluster: the shipped tables that it names, closed forms elsewhere. Raises InputError."""
    require_collectives(cluster.collectives)
    return CollectiveModel(cluster, read_collectives(cluster.collectives) if cluster.collectives else (), algorithm)


def require_collectives(name: str) -> None:
    """Raises InputError unless tables of that name are shipped, or none are named ("")."""
    if name and name not in collective_names():
        raise InputError(f'collectives: no tables "{name}"; there are those of {", ".join(collective_names())}')


def _tables(shaped: list[dict[str, Any]]) -> tuple[CollectiveTable, ...]:
    problems, found = [], []
    for i, one in enumerate(shaped):
        try:
            anchors = tuple((parse_bytes(size), parse_time(time)) for size, time in one["anchors"])
            found.append(CollectiveTable(one["collective"], one["ranks"], anchors, one.get("source", "measured")))
        except InputError as error:
            problems += [f"tables[{i}].{problem}" for problem in error.problems]
        except ValueError as error:
            problems.append(f"tables[{i}].anchors: {error}")
    taken: dict[tuple[str, int], int] = {}
    for i, table in enumerate(found):
        first = taken.setdefault((table.collective, table.ranks), i)
        if first != i and not problems:
            problems.append(
                f"tables[{i}]: {table.collective} over {table.ranks} ranks stands in tables[{first}] already"
            )
    if problems:
        raise InputError(problems)
    return tuple(found)
