"""A directive that writes a table of what the code names and says of it.

    .. code-table:: simdev.measure.doctor.CHECKS
       :heads: warning, what is looked for

A row for each key of a mapping: the key, and its text or the docstring of a function. Of a class of
settings a row for each field: what the bullets of its docstring say, and its default.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any, ClassVar

from bullets import said_of
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from tables import table


def rows_of(path: str) -> Iterator[tuple[str, str]]:
    """The names in ``MODULE.NAME``, each with what is said of it as one paragraph.

    Raises ValueError where a docstring tells of other settings than the class has.
    """
    module, _, name = path.rpartition(".")
    home = getattr(import_module(module), name)
    if is_dataclass(home):
        texts = said_of(home)
        if apart := texts.keys() ^ {field.name for field in fields(home)}:
            raise ValueError(f"{path}: the docstring and the fields differ: {', '.join(apart)}")
        for field in fields(home):
            default = "" if field.default is None else f" Default: ``{_plain(field.default)}``."
            yield field.name, f"{texts[field.name]}.{default}"
        return
    for key, value in home.items():
        text = value if isinstance(value, str) else inspect.getdoc(value) or ""
        yield key, " ".join(text.split())


def _plain(value: Any) -> str:
    """A value as JSON has it."""
    return str(value).lower() if isinstance(value, bool) else f"{value}"


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


def setup(app: Sphinx) -> dict[str, bool]:
    """Adds the directive."""
    app.add_directive("code-table", CodeTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
