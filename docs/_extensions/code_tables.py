"""Directives that write tables of what the code names and says of it.

    .. code-table:: simdev.measure.doctor.CHECKS
       :heads: warning, what is looked for

A row for each key of a mapping: the key, and its text or the docstring of a function. Of a class of
settings a row for each field: what the bullets of its docstring say, and its default.

    .. registry-table:: NAME

The tables that registries.TABLES has under a name, those with titles as sections.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from importlib import import_module
from typing import ClassVar

from bullets import plain, said_of_fields
from docutils import nodes
from docutils.parsers.rst import directives
from registries import TABLES
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from tables import section, table


def rows_of(path: str) -> Iterator[tuple[str, str]]:
    """The names in ``MODULE.NAME``, each with what is said of it as one paragraph.

    Raises ValueError where a docstring tells of other settings than the class has.
    """
    module, _, name = path.rpartition(".")
    home = getattr(import_module(module), name)
    if is_dataclass(home):
        texts = said_of_fields(home)
        for field in fields(home):
            # The docstring itself says what none means.
            has_none = field.default is None or field.default is MISSING
            default = "" if has_none else f" Default: ``{plain(field.default)}``."
            yield field.name, f"{texts[field.name]}.{default}"
        return
    for key, value in home.items():
        text = value if isinstance(value, str) else inspect.getdoc(value) or ""
        yield key, " ".join(text.split())


def table_of(path: str, heads: str) -> nodes.table:
    """Its table under two heads; names may break, for a narrow page."""
    head = [title.strip() for title in heads.split(",", 1)]
    return table(head, [(f"``{name}``", text) for name, text in rows_of(path)], "options")


class CodeTable(SphinxDirective):
    """``.. code-table:: MODULE.NAME`` with ``:heads:``, the titles of its two columns."""

    required_arguments = 1
    has_content = False
    option_spec: ClassVar = {"heads": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        """The table."""
        return [table_of(self.arguments[0], self.options["heads"])]


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
    """Adds the directives."""
    app.add_directive("code-table", CodeTable)
    app.add_directive("registry-table", RegistryTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
