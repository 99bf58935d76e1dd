"""Tables of measured collectives from JSON, and how a strategy says that collectives run.

``strategy`` reads its choice here, ``costs/collectives/table.py`` has the tables themselves and
reads the shipped ones, in files whose fields ``table_of_fields`` knows too.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any, Literal, Required

from pydantic import Field
from typing_extensions import TypedDict

from ..costs.collectives import (
    COLLECTIVE_PRESETS,
    CollectiveTable,
    collective_names,
    shipped_tables,
    table_of_fields,
)
from ..ground.errors import InputError, prefixed, refuse
from ..ground.units import time_text
from ..nouns.strategy import Collectives
from .reading import PathLike, shown
from .shape import VERSION, Fields, Format, keys_of
from .writing import changed_fields

_Anchor = Annotated[list[Any], Field(min_length=2, max_length=2)]


class _TableShape(TypedDict, total=False):
    """A measured table.

    - ``collective``: its kind.
    - ``ranks``: how many took part.
    - ``source``: ``measured`` (default) or ``fitted``.
    - ``anchors``: pairs of bytes and time, with straight lines between them.
    - ``left_out``: how many measured sizes are not anchors, and the error of the lines there.
    """

    collective: Required[str]
    ranks: Required[int]
    source: Literal["measured", "fitted"]
    anchors: Required[list[_Anchor]]
    left_out: dict[str, Any]


class _CollectivesShape(TypedDict, total=False):
    """A collection of tables.

    - ``tables``: one for each kind and number of ranks.
    - ``name``, ``title``: what it is called.
    - ``provenance``: where the numbers come from, in any form.
    """

    name: str
    title: str
    tables: Required[list[_TableShape]]
    provenance: dict[str, Any]


@keys_of(Collectives)
class _ChoiceShape(TypedDict, total=False):
    """How collective ops run.

    - ``algorithm``: ``auto`` (default), the fastest, or ``ring``, ``tree``, ``hierarchical`` or
      ``direct``.
    - ``cost``: ``auto`` (default), ``closed``, ``table``, ``expanded`` or ``given``.
    - ``tables``: measured tables, by name or as an object; default the cluster's tables.
    - ``chunks``: the number of chunks that a broadcast or reduce along a chain is cut into; default
      the number that makes the closed form shortest.
    - ``slowdown``: how many times longer computation and a collective take while they share a
      device, 1 (default) to 2.
    - ``groups``: process groups by name, each a list of devices in the order of its ranks; a
      collective with ``group`` in its ``attrs`` takes as long as among all of them.
    """

    tables: Any
    slowdown: Any
    groups: dict[str, list[str]]


FORMAT = Format(_CollectivesShape, "tables of collectives")
CHOICE = Format(_ChoiceShape, prefix="collectives.")


def read_choice(value: Any) -> Collectives:
    """The settings of collectives in a strategy. Their ``tables`` are the name of a shipped
    collection, or an object with the shape of a collection.

    Raises InputError with every problem at once.
    """
    if not isinstance(value, dict):
        raise InputError(f"collectives: must be an object, got {shown(value)}")
    fields = CHOICE.validated(value)
    source = fields.pop("tables", None)
    if isinstance(source, str):
        if source not in collective_names():
            raise InputError(
                f"collectives.tables: none are shipped as {shown(source)}; there are those "
                f"of {', '.join(collective_names())}"
            )
    elif source is not None and not isinstance(source, dict):
        raise InputError(
            "collectives.tables: must be the name of a collection or an object, got "
            f"{shown(source)}"
        )
    with prefixed("collectives.tables."):
        tables = () if source is None else read_collectives(source)
    return Collectives(**fields, tables=tables)


def choice_object(choice: Collectives) -> Fields:
    """The settings of collectives that differ from the defaults, as JSON."""
    fields = changed_fields(choice)
    if choice.tables:
        tables = [_table_object(table) for table in choice.tables]
        fields["tables"] = {"version": VERSION, "tables": tables}
    return fields


def _table_object(table: Any) -> Fields:
    anchors = [[size, time_text(Fraction(seconds))] for size, seconds in table.anchors]
    return changed_fields(table, "source") | {"anchors": anchors}


def read_collectives(source: PathLike | Mapping[str, Any]) -> tuple[CollectiveTable, ...]:
    """The tables of a file, of a shipped collection (by name), or of an object already parsed.

    Raises InputError.
    """
    if isinstance(source, str) and source in collective_names():
        return shipped_tables(source)
    with FORMAT.opened(source) as fields:
        return _tables(fields["tables"])


def collectives_fields(name: str) -> Fields:
    """The fields of a shipped collection, checked one by one. Raises InputError."""
    with FORMAT.opened(COLLECTIVE_PRESETS / f"{name}.json") as fields:
        return fields


def _tables(entries: list[Fields]) -> tuple[CollectiveTable, ...]:
    problems: list[str] = []
    tables: dict[tuple[str, int], tuple[int, CollectiveTable]] = {}
    for i, entry in enumerate(entries):
        try:
            table = table_of_fields(entry)
        except InputError as error:
            problems += [f"tables[{i}].{problem}" for problem in error.problems]
        except ValueError as error:
            problems.append(f"tables[{i}].anchors: {error}")
        else:
            # A second table of the same collective and number of ranks would never be used.
            first, _ = tables.setdefault((table.collective, table.ranks), (i, table))
            if first != i:
                problems.append(
                    f"tables[{i}]: {table.collective} over {table.ranks} ranks stands in "
                    f"tables[{first}] already"
                )
    refuse(problems)
    return tuple(table for _, table in tables.values())
