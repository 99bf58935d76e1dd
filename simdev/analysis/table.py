"""Tables of text, for a terminal and as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

NAME_WIDTH = 32


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as text; columns whose title starts with "<" are aligned to the left."""

    title: str
    head: tuple[str, ...]
    body: tuple[tuple[str, ...], ...]
    more: int = 0


def shorten(name: str, width: int = NAME_WIDTH) -> str:
    """At most ``width`` characters; the middle gives way, since names differ at both ends."""
    if len(name) <= width:
        return name
    tail = (width - 1) // 2
    return f"{name[: width - 1 - tail]}…{name[len(name) - tail :]}"


def table_text(table: Table) -> str:
    """A table for a terminal."""
    left = [title.startswith("<") for title in table.head]
    lines = [tuple(title.removeprefix("<") for title in table.head), *table.body]
    widths = [max(len(line[column]) for line in lines) for column in range(len(left))]
    text = [table.title]
    for line in lines:
        cells = zip(line, widths, left, strict=True)
        text.append(
            "  "
            + "  ".join(f"{c:<{w}}" if is_left else f"{c:>{w}}" for c, w, is_left in cells).rstrip()
        )
    return "\n".join([*text, f"  ... and {table.more:,} more"] if table.more else text)


def table_html(table: Table) -> str:
    """A table for a notebook; every cell is escaped."""
    left = [title.startswith("<") for title in table.head]
    head = _html_row("th", [title.removeprefix("<") for title in table.head], left)
    body = "".join(_html_row("td", line, left) for line in table.body)
    more = f"<p>... and {table.more:,} more</p>" if table.more else ""
    caption = f"<caption>{escape(table.title)}</caption>"
    return f"<table>{caption}<thead>{head}</thead><tbody>{body}</tbody></table>{more}"


def _html_row(tag: str, cells: Sequence[str], left: Sequence[bool]) -> str:
    pairs = zip(cells, left, strict=True)
    inner = (
        f'<{tag} style="text-align:{"left" if side else "right"}">{escape(cell)}</{tag}>'
        for cell, side in pairs
    )
    return f"<tr>{''.join(inner)}</tr>"
