"""Tables and sections that directives write: text between double backquotes is code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from docutils import nodes
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_id


def inline(text: str) -> list[nodes.Node]:
    """A text whose code stands between double backquotes."""
    parts = re.split(r"``(.+?)``", text)
    return [
        nodes.literal("", part) if i % 2 else nodes.Text(part)
        for i, part in enumerate(parts)
        if part
    ]


def row(cells: Iterable[str]) -> nodes.row:
    """A row of texts."""
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", *inline(c))) for c in cells))


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *classes: str, widths: Sequence[int] = ()
) -> nodes.table:
    """A table of texts; without a head where that is empty. ``widths`` are relative (none: as the
    texts need it).
    """
    group = nodes.tgroup("", cols=len(widths or head))
    group += [nodes.colspec(colwidth=width) for width in widths or [1] * len(head)]
    if head:
        group += nodes.thead("", row(head))
    group += nodes.tbody("", *map(row, rows))
    by_text = () if widths else ("colwidths-auto", "from-code")
    return nodes.table("", group, classes=[*classes, *by_text])


def section(directive: SphinxDirective, title: str, *children: nodes.Node) -> nodes.section:
    """A section that links can name by its title."""
    document = directive.state.document
    key = make_id(directive.env, document, "", title)
    begun = nodes.section("", nodes.title("", title), ids=[key], names=[title])
    document.note_explicit_target(begun)
    begun += children
    return begun
