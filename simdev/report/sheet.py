"""Tables with typed cells: told to a page as JSON, which shows and sorts them, and to a terminal as
text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..analysis import Table, shorten
from ..units import format_bytes, format_seconds

TEXT, COUNT, TIME, BYTES, RATE, SHARE, CHANGE, NUMBER = (
    "text", "count", "time", "bytes", "rate", "share", "change", "number"
)  # fmt: skip
"""How a cell is shown: as it is; whole number; ps; bytes; bytes/s; 0 to 1 with a bar; signed part
of 1; number.
"""


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table: ``columns`` are (title, how its cells are shown); a cell is a text, a number, a
    truth value or None.
    """

    title: str
    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Any, ...], ...]
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """For the page."""
        columns = [{"title": title, "as": kind} for title, kind in self.columns]
        return {
            "title": self.title,
            "note": self.note,
            "columns": columns,
            "rows": [list(row) for row in self.rows],
        }


def sheet_table(sheet: Sheet, most: int, width: int = 40) -> Table:
    """For a terminal: the first ``most`` rows, names cut to ``width``."""
    kinds = [kind for _, kind in sheet.columns]
    head = tuple(f"<{title}" if kind == TEXT else title for title, kind in sheet.columns)
    body = tuple(
        tuple(_cell(cell, kind, width) for cell, kind in zip(row, kinds, strict=True))
        for row in sheet.rows[:most]
    )
    return Table(sheet.title, head, body, max(len(sheet.rows) - most, 0))


def _cell(cell: Any, kind: str, width: int) -> str:
    if cell is None:
        return "-"
    if kind == TIME:
        return format_seconds(cell / 1e12)
    shown = {
        BYTES: format_bytes,
        SHARE: "{:.1%}".format,
        CHANGE: "{:+.1%}".format,
        COUNT: "{:,}".format,
    }
    return shown[kind](cell) if kind in shown else shorten(str(cell), width)


def columns(*pairs: str) -> tuple[tuple[str, str], ...]:
    """``columns("device", TEXT, "busy", TIME)``."""
    return tuple(zip(pairs[::2], pairs[1::2], strict=True))


def change(before: float, after: float) -> float | None:
    """What was added as a part of what was there; None where nothing was and something is now."""
    return (after - before) / before if before else None if after else 0.0


def sheets_json(sheets: Sequence[Sheet]) -> list[dict[str, Any]]:
    """Those with any rows."""
    return [sheet.to_json() for sheet in sheets if sheet.rows]
