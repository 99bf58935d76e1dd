"""A directive that writes a table of what a registry of the code holds.

    .. registry-table:: NAME

NAME is a key of registries.TABLES. Tables with titles become sections.
"""

from __future__ import annotations

from docutils import nodes
from registries import TABLES
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from tables import section, table


class RegistryTable(SphinxDirective):
    """``.. registry-table:: NAME``."""

    required_arguments = 1
    has_content = False

    def run(self) -> list[nodes.Node]:
        """The tables, each in its section where it has a title."""
        written: list[nodes.Node] = []
        for part in TABLES[self.arguments[0]]():
            rows = table(part.head, part.rows)
            written.append(section(self, part.title, rows) if part.title else rows)
        return written


def setup(app: Sphinx) -> dict[str, bool]:
    """Adds the directive."""
    app.add_directive("registry-table", RegistryTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
