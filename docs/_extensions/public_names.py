"""A directive that documents the public names of a module, those of its ``__all__``.

    .. public-names:: simdev.oracle
       :except: cost_of

Of a value stand its type, its keys and what is said of it where it is made. What ``except`` names
is documented by another page.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from pkgutil import resolve_name
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import PycodeError
from sphinx.ext.napoleon import NumpyDocstring
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective
from sphinx.writers.html5 import HTML5Translator

MOST_KEYS = 60


def said_of(module: str, name: str, value: Any) -> list[str]:
    """What stands below a value where it is made: packages only hand it on."""
    for home in sorted(key for key in sys.modules if f"{key}.".startswith(f"{module}.")):
        if vars(sys.modules[home]).get(name) is value:
            with suppress(PycodeError):
                said = ModuleAnalyzer.for_module(home).find_attr_docs().get(("", name))
                if said:
                    return said
    return []


def entry_of(module: str, name: str, value: Any) -> list[str]:
    """The directive that documents a name."""
    if inspect.isclass(value):
        return [f".. autoclass:: {module}.{name}", "   :members:"]
    if callable(value):
        return [f".. autofunction:: {module}.{name}"]
    lines = [*said_of(module, name, value)]
    if isinstance(value, Collection) and not isinstance(value, str) and len(value) <= MOST_KEYS:
        keys = ", ".join(f"``{key}``" for key in value)
        lines += ["", f"Holds {keys}."] if isinstance(value, Mapping) else ["", f"{keys}."]
    head = [f".. py:data:: {module}.{name}", f"   :type: {type(value).__name__}", ""]
    return [*head, *(f"   {line}" for line in lines)]


class PublicNames(SphinxDirective):
    """``.. public-names:: MODULE``, with ``:only:`` or ``:except:`` lists of names."""

    required_arguments = 1
    has_content = False
    option_spec: ClassVar = {"only": directives.unchanged, "except": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        """The nodes of every name, in alphabetical order as in ``__all__``."""
        (module,) = self.arguments
        home = import_module(module)
        left_out = self.options.get("except", "").split()
        names = self.options.get("only", "").split() or list(home.__all__)
        lines = list[str]()
        for name in names:
            if name in left_out or name.startswith("__"):
                continue
            lines += [*entry_of(module, name, getattr(home, name)), ""]
        source = self.get_source_info()[0]
        return self.parse_text_to_nodes(StringList(lines, source=source))


def value_of(name: str) -> Any:
    """What a dotted name stands for, None where it stands for nothing."""
    try:
        return resolve_name(name)
    except (ImportError, AttributeError, ValueError):
        return None


@cache
def documented(env: BuildEnvironment) -> Mapping[str, tuple[str, ...]]:
    """The classes that have a place in the reference, by what their names end with; complete once
    all pages are read.
    """
    names: dict[str, tuple[str, ...]] = {}
    for name, *_ in env.domains["py"].get_objects():
        end = name.rpartition(".")[2]
        if end[0].isupper() and "." in name:
            names[end] = (*names.get(end, ()), name)
    return names


def by_its_name(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.Element
) -> nodes.Node | None:
    """A class is documented by its public name, but annotations tell where it is made, or its last
    word. What simdev has but keeps to itself is no link; what it has not stays missing.
    """
    target = node["reftarget"]
    if node.get("refdomain") != "py" or not app.builder:
        return None
    names = documented(env).get(target.rpartition(".")[2], ())
    if target.startswith("simdev."):
        value = value_of(target)
        names = tuple(name for name in names if value_of(name) is value is not None)
        if not names and value is not None:
            return content
    if len(names) != 1:
        return None
    return env.domains["py"].resolve_xref(
        env, node["refdoc"], app.builder, node["reftype"], names[0], node, content
    )


def sections(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Autodoc's event: Parameters and Notes as numpy writes them. Napoleon as an extension would
    take the words before a property's first colon for its type.
    """
    if what not in ("attribute", "data", "property"):
        lines[:] = NumpyDocstring(lines, what=what, name=name, obj=value).lines()


def shortened(signature: str) -> str:
    """A signature whose defaults that are objects tell their class alone, and ``...`` where they
    are made anew each time.
    """
    signature = signature.replace("<factory>", "...")
    while match := re.search(r"= (\w+)\((?!\.\.\.\))", signature):
        depth, end = 1, match.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(signature[end], 0)
            end += 1
        signature = f"{signature[: match.start()]}= {match[1]}(...){signature[end:]}"
    return signature


def short_defaults(
    app: Sphinx,
    what: str,
    name: str,
    value: Any,
    options: Any,
    signature: str | None,
    back: str | None,
) -> tuple[str | None, str | None]:
    """Autodoc's event: the signature to write, and what is returned."""
    return signature and shortened(signature), back


class Signatures(HTML5Translator):
    """Parameters on lines of their own are spans: Sphinx writes ``dl`` and ``dd`` without a ``dt``,
    which readers of screens announce as broken lists.
    """

    SPANS: ClassVar = {
        "<dl>": '<span class="parameters">',
        "<dd>": '<span class="parameter">',
        "</dd>": "</span>",
        "</dl>": "</span>",
    }

    def visit_desc_parameterlist(self, node: nodes.Element) -> None:
        """Remember where the list begins."""
        self.begins = len(self.body)
        super().visit_desc_parameterlist(node)

    def depart_desc_parameterlist(self, node: nodes.Element) -> None:
        """Write what was written since with spans."""
        super().depart_desc_parameterlist(node)
        text = "".join(self.body[self.begins :])
        for tag, span in self.SPANS.items():
            text = text.replace(tag, span)
        self.body[self.begins :] = [text]


def setup(app: Sphinx) -> dict[str, bool]:
    """Adds the directive."""
    app.add_directive("public-names", PublicNames)
    app.set_translator("html", Signatures)
    app.connect("autodoc-process-docstring", sections)
    app.connect("autodoc-process-signature", short_defaults)
    app.connect("missing-reference", by_its_name)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
