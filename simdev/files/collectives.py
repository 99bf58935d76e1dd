"""Tables of measured collectives from JSON, and the model that a cluster gets of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Required

from pydantic import Field, TypeAdapter, with_config
from typing_extensions import TypedDict

from ..cluster import Cluster
from ..collectives import CollectiveModel, CollectiveTable
from ..errors import InputError
from ..strategy import Collectives
from ..units import parse_bytes, parse_time
from .paths import shown
from .reading import PathLike
from .shape import STRICT, read_shape, validate
from .source import opened
from .writing import decimal_text, time_text

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


@with_config(STRICT)
class _ChoiceShape(TypedDict, total=False):
    algorithm: str
    cost: str
    tables: Any
    chunks: int | None
    slowdown: Any


_KEYS = frozenset({*_CollectivesShape.__annotations__, *_TableShape.__annotations__, "version"})


@cache
def _adapter() -> TypeAdapter[Any]:
    return TypeAdapter(_CollectivesShape)


@cache
def _choice_adapter() -> TypeAdapter[Any]:
    return TypeAdapter(_ChoiceShape)


def read_choice(value: Any) -> Collectives:
    """What a strategy says of collectives; its tables are a shipped collection, or an object of its
    shape.

    Raises InputError with every problem at once.
    """
    if not isinstance(value, dict):
        raise InputError(f"collectives: must be an object, got {shown(value)}")
    shaped = validate(
        _choice_adapter(), value, frozenset(_ChoiceShape.__annotations__), "collectives."
    )
    named = shaped.pop("tables", None)
    if isinstance(named, str):
        if named not in collective_names():
            choice = ", ".join(collective_names())
            raise InputError(
                f"collectives.tables: none are shipped as {shown(named)}; there are those "
                f"of {choice}"
            )
    elif named is not None and not isinstance(named, dict):
        raise InputError(
            f"collectives.tables: must be the name of a collection or an object, got {shown(named)}"
        )
    try:
        tables = () if named is None else read_collectives(named)
    except InputError as error:
        raise InputError([f"collectives.tables.{problem}" for problem in error.problems]) from None
    return Collectives(**shaped, tables=tables)


def choice_object(choice: Collectives) -> dict[str, Any]:
    """What a strategy's file says of collectives: what differs from the defaults."""
    default = Collectives()
    names = ("algorithm", "cost", "chunks")
    found = {
        name: getattr(choice, name)
        for name in names
        if getattr(choice, name) != getattr(default, name)
    }
    if choice.slowdown != default.slowdown:
        found["slowdown"] = decimal_text(choice.slowdown)
    if choice.tables:
        found["tables"] = {
            "version": 1,
            "tables": [_table_object(table) for table in choice.tables],
        }
    return found


def _table_object(table: Any) -> dict[str, Any]:
    anchors = [[size, time_text(Fraction(seconds))] for size, seconds in table.anchors]
    return {
        "collective": table.collective,
        "ranks": table.ranks,
        "source": table.source,
        "anchors": anchors,
    }


def with_tables(choice: Collectives, cluster: Cluster) -> Collectives:
    """With the shipped tables that hold on the cluster, where it names none itself."""
    if choice.tables or not cluster.collectives:
        return choice
    return replace(choice, tables=read_collectives(cluster.collectives))


def collective_names() -> tuple[str, ...]:
    """Names of the collections of tables shipped with simdev, one for each kind of node."""
    return tuple(sorted(path.stem for path in COLLECTIVE_PRESETS.glob("*.json")))


def read_collectives(source: PathLike | Mapping[str, Any]) -> tuple[CollectiveTable, ...]:
    """The tables of a file, of a shipped collection (by name), or of an object already parsed.

    Raises InputError.
    """
    if isinstance(source, str) and source in collective_names():
        source = COLLECTIVE_PRESETS / f"{source}.json"
    with opened(source) as (value, is_file):
        return _tables(
            read_shape(_adapter(), value, _KEYS, is_file, "tables of collectives")["tables"]
        )


def collectives_fields(name: str) -> dict[str, Any]:
    """The fields of a shipped collection, checked one by one. Raises InputError."""
    with opened(COLLECTIVE_PRESETS / f"{name}.json") as (value, _):
        return read_shape(_adapter(), value, _KEYS, True, "tables of collectives")


def collective_model(cluster: Cluster, algorithm: str = "auto") -> CollectiveModel:
    """The collectives of a cluster: the shipped tables that it names, closed forms elsewhere.

    Raises InputError.
    """
    require_collectives(cluster.collectives)
    return CollectiveModel(
        cluster, read_collectives(cluster.collectives) if cluster.collectives else (), algorithm
    )


def require_collectives(name: str) -> None:
    """Raises InputError unless tables of that name are shipped, or none are named ("")."""
    if name and name not in collective_names():
        raise InputError(
            f'collectives: no tables "{name}"; there are those of {", ".join(collective_names())}'
        )


def _tables(shaped: list[dict[str, Any]]) -> tuple[CollectiveTable, ...]:
    problems, found = [], []
    for i, one in enumerate(shaped):
        try:
            anchors = tuple((parse_bytes(size), parse_time(time)) for size, time in one["anchors"])
            found.append(
                CollectiveTable(
                    one["collective"], one["ranks"], anchors, one.get("source", "measured")
                )
            )
        except InputError as error:
            problems += [f"tables[{i}].{problem}" for problem in error.problems]
        except ValueError as error:
            problems.append(f"tables[{i}].anchors: {error}")
    taken: dict[tuple[str, int], int] = {}
    for i, table in enumerate(found):
        first = taken.setdefault((table.collective, table.ranks), i)
        if first != i and not problems:
            problems.append(
                f"tables[{i}]: {table.collective} over {table.ranks} ranks stands in "
                f"tables[{first}] already"
            )
    if problems:
        raise InputError(problems)
    return tuple(found)
