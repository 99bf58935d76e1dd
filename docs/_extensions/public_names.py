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
from importlib import import_module
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import PycodeError
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective

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


def by_its_name(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.Element
) -> nodes.Node | None:
    """A class is documented by its public name, but its home is what annotations tell: where one
    documented name alone ends like the target, that is it.
    """
    if node.get("refdomain") != "py":
        return None
    domain, end = env.domains["py"], node["reftarget"].rpartition(".")[2]
    (*matches,) = [name for name, *_ in domain.get_objects() if name.rpartition(".")[2] == end]
    top = [name for name in matches if name[name.rfind(".") + 1].isupper() and "." in name]
    if len(top) != 1 or not app.builder:
        return None
    return domain.resolve_xref(
        env, node["refdoc"], app.builder, node["reftype"], top[0], node, content
    )


def shortened(signature: str) -> str:
    """A signature whose defaults that are objects tell their class alone."""
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


def setup(app: Sphinx) -> dict[str, bool]:
    """Adds the directive."""
    app.add_directive("public-names", PublicNames)
    app.connect("autodoc-process-signature", short_defaults)
    app.connect("missing-reference", by_its_name)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
