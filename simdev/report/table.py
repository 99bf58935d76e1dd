"""Tables with typed cells, shown in four ways: text for a terminal, Markdown for documents, HTML
for a notebook, JSON for the page, which formats and sorts them itself; and the best rows of a
table: the first, and those that no other beats in every respect.

A new way to show a cell is a name here with its text in ``_FORMATS``, and its form on the page in
``page/assets/base.js``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

import numpy as np

from ..ground.errors import printable
from ..ground.units import PS_PER_SECOND, format_bytes, format_ps
from ..nouns.taskgraph import Floats

TEXT, COUNT, TIME, BYTES, LIMIT, RATE, SHARE, CHANGE, NUMBER, BAR, DETAIL = (
    "text", "count", "time", "bytes", "limit", "rate", "share", "change", "number", "bar", "detail",
)  # fmt: skip
"""How a cell is shown: as it is; whole number; ps; bytes; bytes that may be without limit (None);
bytes/s; 0 to 1; signed part of 1; number; a share as a bar, for a terminal alone; a text, for the
page alone.
"""

Json = dict[str, Any]
"""An object of JSON."""
Columns = Mapping[str, Sequence[Any]]
"""By name the values of a column."""
TERMINAL_WIDTH = 99
PADDING = "padding:1px 7px"  # of a notebook's cells, which some notebooks set side by side
NAME_WIDTH, LEAST_WIDTH = 44, 8  # of a column of texts, where a table has to fit a terminal

_FORMATS: Mapping[str, Callable[[Any], str]] = {
    COUNT: "{:,}".format,
    TIME: format_ps,
    BYTES: format_bytes,
    LIMIT: format_bytes,
    SHARE: "{:.1%}".format,
    CHANGE: "{:+.1%}".format,
    BAR: lambda share: "█" * round(30 * share),
}


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells; ``columns`` says by title how their cells are shown (TEXT, COUNT, ...).

    A cell is a text, a number, a truth value or None. A terminal and a notebook show the first
    ``shown`` rows and count the others (0: the table is on the page alone).
    """

    title: str
    columns: Mapping[str, str]
    rows: tuple[tuple[Any, ...], ...]
    note: str = ""
    shown: int = 16

    def to_json(self, most: int | None = None) -> Json:
        """The table as the page takes it, with at most so many rows (None: all)."""
        # A page draws bars of its own, beside shares.
        kept = [i for i, kind in enumerate(self.columns.values()) if kind != BAR]
        columns = [
            {"title": title, "as": TEXT if kind == DETAIL else kind}
            for title, kind in self.columns.items()
        ]
        return {
            "title": self.title,
            "note": self.note,
            "columns": [columns[i] for i in kept],
            "rows": [[row[i] for i in kept] for row in self.rows[:most]],
        }


def table_text(table: Table, width: int | None = TERMINAL_WIDTH) -> str:
    """A table for a terminal: texts are cut where it would be wider than ``width`` characters."""
    lines, left = _cells(table)
    widths = _widths(lines, left, width)
    text = [table.title]
    for line in lines:
        cells = (
            f"{shorten(cell, size):{'<' if is_left else '>'}{size}}"
            for cell, size, is_left in zip(line, widths, left, strict=True)
        )
        text.append("  " + "  ".join(cells).rstrip())
    return "\n".join(text + [f"  {line}" for line in (_more(table), table.note) if line])


def table_markdown(table: Table) -> str:
    """A table for a document, under its title; numbers are aligned to the right."""
    (head, *body), left = _cells(table)
    rule = ("---" if is_left else "---:" for is_left in left)
    # A bar in a cell would begin the next one.
    rows = (" | ".join(cell.replace("|", r"\|") for cell in line) for line in (head, rule, *body))
    below = [f"\n{line}" for line in (_more(table), table.note) if line]
    return "\n".join([f"{table.title}\n", *(f"| {row} |" for row in rows), *below])


def table_html(table: Table) -> str:
    """A table for a notebook; every cell is escaped."""
    lines, left = _cells(table)
    head, *body = (
        "".join(
            f'<{tag} style="{PADDING};text-align:{"left" if is_left else "right"}">'
            f"{escape(cell)}</{tag}>"
            for cell, is_left in zip(line, left, strict=True)
        )
        for line, tag in zip(lines, ["th"] + ["td"] * len(lines), strict=False)
    )
    rows = "".join(f"<tr>{row}</tr>" for row in body)
    below = "".join(f"<p>{escape(line)}</p>" for line in (_more(table), table.note) if line)
    return (
        f'<table style="color:inherit"><caption>{escape(table.title)}</caption>'
        f"<thead><tr>{head}</tr></thead>"
        f"<tbody>{rows}</tbody></table>{below}"
    )


def _cells(table: Table) -> tuple[list[tuple[str, ...]], list[bool]]:
    """(the head and the rows that are shown, as texts; which columns are aligned to the left)."""
    columns = [column for column in enumerate(table.columns.values()) if column[1] != DETAIL]
    titles = list(table.columns)
    body = (tuple(_text(row[i], kind) for i, kind in columns) for row in table.rows[: table.shown])
    head = tuple(titles[i] for i, _ in columns)
    return [head, *body], [kind in (TEXT, BAR) for _, kind in columns]


def _text(cell: Any, kind: str) -> str:
    if cell is None:
        return "unlimited" if kind == LIMIT else "-"
    return printable(_FORMATS.get(kind, str)(cell))


def _more(table: Table) -> str:
    hidden = len(table.rows) - table.shown
    return f"... and {hidden:,} more" if hidden > 0 else ""


def _widths(lines: Sequence[tuple[str, ...]], left: Sequence[bool], most: int | None) -> list[int]:
    """The widths of the columns; the widest texts give way until the line fits."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    if most is None:
        return widths
    texts = [column for column, is_left in enumerate(left) if is_left]
    # Long names alone must not push each other away: they are capped before they are levelled.
    for column in texts:
        widths[column] = min(widths[column], NAME_WIDTH)
    while sum(widths) + 2 * len(widths) > most:
        widest = max(texts, key=lambda column: widths[column], default=None)
        if widest is None or widths[widest] <= LEAST_WIDTH:
            break
        widths[widest] -= 1
    return widths


def shorten(name: str, width: int = 32) -> str:
    """At most ``width`` characters; the middle gives way, since names differ at both ends."""
    if len(name) <= width:
        return name
    tail = (width - 1) // 2
    return f"{name[: width - 1 - tail]}…{name[len(name) - tail :]}"


def fields_json(noun: Any, *left_out: str, **renamed: str) -> Json:
    """The fields of a dataclass as an object of JSON, but those ``left_out``, and some
    ``renamed``; times in ps (``..._ps``) become seconds (``..._s``).
    """
    entry = Json()
    for name, value in asdict(noun).items():
        if name in left_out:
            continue
        in_json = name
        if name.endswith("_ps"):
            in_json = f"{name[:-3]}_s"
            value = None if value is None else value / PS_PER_SECOND
        entry[renamed.get(name, in_json)] = value
    return entry


def change(before: float, after: float) -> float | None:
    """The change as a part of ``before``; None where only ``before`` is 0."""
    return (after - before) / before if before else None if after else 0.0


@dataclass(frozen=True, slots=True)
class Goal:
    """A column to be as small as may be, or as large (``upward``), and how people call that."""

    column: str
    words: str
    upward: bool = False


FASTEST = Goal("step_time_s", "fastest")
RATES = (
    Goal("tokens_per_s", "most tokens a second", True),
    Goal("samples_per_s", "most samples a second", True),
)
KEPT = Goal("steps_per_day", "most steps a day that count", True)
"""Decides between steps of equal length in a long run with failures."""
BESIDE = Goal("devices", "fewest devices"), Goal("peak_bytes", "least memory")
"""Figures given up for speed, told where they differ between rows."""


ONE_DEVICE, PRESENT = "one device", "the scenario's strategy"
"""The names under which people read the references of a search."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """Rows by their numbers: fitting rows, the best first, the rows of the front in this order, and
    the rest; the goals that decide.
    """

    order: tuple[int, ...]
    front: tuple[int, ...]
    apart: tuple[int, ...]
    goals: tuple[Goal, ...]

    def to_json(self) -> Json:
        """Plain numbers and texts, as a page takes them."""
        return {
            "order": list(self.order),
            "front": list(self.front),
            "apart": list(self.apart),
            "goals": [goal.column for goal in self.goals],
            "upward": [goal.upward for goal in self.goals],
        }

    def page(
        self, columns: Mapping[str, tuple[str, Sequence[Any]]], axes: Mapping[str, str], noun: str,
        order: str, apart: str,
    ) -> Json:  # fmt: skip
        """The part of a page that shows the rows, each a ``noun``: ``columns`` have (kind of cell,
        values) by title, ``axes`` are the columns that the picture shows first, ``order`` and
        ``apart`` the titles of fitting rows and of the rest.
        """
        words = ", ".join(goal.words for goal in self.goals)
        return {
            "columns": [
                {"title": title, "as": kind, "values": values}
                for title, (kind, values) in columns.items()
            ],
            "axes": axes,
            "ranking": self.to_json(),
            "texts": {
                "front": f"The front of {words}: no other {noun} beats these in all",
                "order": order,
                "apart": apart,
            },
        }


def ranking(columns: Columns, usable: Sequence[bool], sizes: Sequence[Any]) -> Ranking:
    """``usable`` says which rows fit and have figures; ``sizes`` are their batches: where these
    differ, steps cannot be compared, and what is trained a second counts. Where all steps take the
    same time, that which counts of a long run decides.
    """
    rows = [number for number, is_usable in enumerate(usable) if is_usable]
    apart = tuple(number for number, is_usable in enumerate(usable) if not is_usable)
    first = FASTEST
    if len({sizes[row] for row in rows}) > 1:
        first = next((goal for goal in RATES if _is_whole(columns, goal, rows)), FASTEST)
    elif _differs(columns, KEPT, rows) and not _differs(columns, FASTEST, rows):
        first = KEPT
    if not _is_whole(columns, first, rows):
        return Ranking(tuple(rows), (), apart, ())
    goals = (first, *(goal for goal in BESIDE if _differs(columns, goal, rows)))
    costs = np.array([_least(columns, goal, rows) for goal in goals])
    order = np.lexsort((np.arange(len(rows)), *costs[::-1]))
    ranked = tuple(rows[place] for place in order.tolist())
    front = tuple(rows[place] for place in order.tolist() if not _is_beaten(costs, place))
    return Ranking(ranked, front if len(goals) > 1 else (), apart, goals)


def _is_whole(columns: Columns, goal: Goal, rows: Sequence[int]) -> bool:
    values = columns.get(goal.column)
    return bool(rows) and values is not None and all(values[row] is not None for row in rows)


def _differs(columns: Columns, goal: Goal, rows: Sequence[int]) -> bool:
    return _is_whole(columns, goal, rows) and len({columns[goal.column][row] for row in rows}) > 1


def _least(columns: Columns, goal: Goal, rows: Sequence[int]) -> Floats:
    """The values of a goal, negated where large ones are better."""
    values = np.array([float(columns[goal.column][row]) for row in rows])
    return -values if goal.upward else values


def _is_beaten(costs: Floats, place: int) -> bool:
    """Whether another row is as good in every respect and better in one; of equals the first
    stays.
    """
    here = costs[:, place : place + 1]
    no_worse = np.all(costs <= here, axis=0)
    better = np.any(costs < here, axis=0)
    alike = np.all(costs == here, axis=0) & (np.arange(costs.shape[1]) < place)
    return bool(np.any(no_worse & (better | alike)))
