"""A directive that writes a table of what the code names and says of it.

    .. code-table:: simdev.measure.doctor.CHECKS
       :heads: warning, what is looked for

A row for each key of a mapping: the key, and its text, or the docstring of a function.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


def rows_of(path: str) -> Iterator[tuple[str, str]]:
    """The keys of a mapping, ``MODULE.NAME``, each with what is said of it as one paragraph."""
    module, _, name = path.rpartition(".")
    for key, value in getattr(import_module(module), name).items():
        yield key, " ".join(said_of(value).split())


def said_of(value: Any) -> str:
    """A text itself; of anything else its docstring."""
    return value if isinstance(value, str) else inspect.getdoc(value) or ""


class CodeTable(SphinxDirective):
    """``.. code-table:: MODULE.MAPPING`` with ``:heads:``, the titles of its two columns."""

    required_arguments = 1
    has_content = False
    option_spec: ClassVar = {"heads": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        """The table."""
        body = nodes.tbody()
        for key, text in rows_of(self.arguments[0]):
            said, messages = self.parse_inline(text)
            body += row([nodes.literal("", key)], [*said, *messages])
        titles = [title.strip() for title in self.options["heads"].split(",", 1)]
        head = nodes.thead("", row(*([nodes.Text(title)] for title in titles)))
        group = nodes.tgroup("", cols=2)
        group += [nodes.colspec(colwidth=25), nodes.colspec(colwidth=75), head, body]
        return [nodes.table("", group)]


def row(*cells: list[nodes.Node]) -> nodes.row:
    """A row of cells of one paragraph each."""
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", *cell)) for cell in cells))


def setup(app: Sphinx) -> dict[str, bool]:
    """Adds the directive."""
    app.add_directive("code-table", CodeTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
