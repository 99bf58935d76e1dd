"""A directive that writes a format's keys and types from the shape that files are checked by.

    .. file-format:: simdev.files.graph._GraphShape

A table of its keys, what each may hold, and which must stand; shapes inside are tables of their
own, once each.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from importlib import import_module
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from typing_extensions import get_type_hints, is_typeddict

from simdev.files import shape

QUANTITIES = {
    "Bytes": "bytes",
    "OptionalBytes": "bytes or null",
    "Seconds": "a time",
    "Bandwidth": "a bandwidth",
    "Flops": "FLOP/s",
    "Share": "a share, 0 to 4",
    "Slowdown": "a factor",
    "Dtype": "a dtype",
    "GivenTime": "a time, or times by kind of device",
    "Time": "a time, or times by kind of device",
    "Priority": "a whole number",
    "Extent": "a whole number",
}
PLAIN = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
    Any: "anything",
    object: "anything",
}


def title(kind: Any) -> str:
    """The name of a shape as a reader says it: ``_WholeRow`` is a whole row."""
    name = kind.__name__.strip("_").removesuffix("Shape")
    return "".join(f" {sign.lower()}" if sign.isupper() else sign for sign in name).strip()


def known(kind: Any) -> str | None:
    """What a quantity is called."""
    for name, words in QUANTITIES.items():
        if getattr(shape, name, None) == kind:
            return words
    return None


def words(kind: Any, inner: dict[str, Any]) -> str:
    """What may stand there; shapes that are met join ``inner``."""
    if (quantity := known(kind)) is not None:
        return quantity
    if is_typeddict(kind):
        inner[kind.__name__] = kind
        return f"an object: {title(kind)}"
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return words(arguments[0], inner)
    if origin is Literal:
        return " or ".join(
            f'"{value}"' if isinstance(value, str) else str(value) for value in arguments
        )
    if origin in (Union, types.UnionType):
        return ", or ".join(dict.fromkeys(words(argument, inner) for argument in arguments))
    if origin in (list, tuple):
        return f"a list of: {words(arguments[0], inner)}" if arguments else "a list"
    if origin in (dict, Mapping) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return f"an object by name of: {words(arguments[1], inner)}"
    return PLAIN.get(kind, getattr(kind, "__name__", str(kind)))


def entry(text: str, is_code: bool = False) -> nodes.entry:
    """A cell."""
    child = nodes.literal("", text) if is_code else nodes.Text(text)
    return nodes.entry("", nodes.paragraph("", "", child))


def table(kind: Any, inner: dict[str, Any]) -> nodes.table:
    """Key, type, whether it must stand."""
    hints = get_type_hints(kind, include_extras=True)
    rows = nodes.tbody()
    for key in sorted(hints, key=lambda key: key not in kind.__required_keys__):
        must = "yes" if key in kind.__required_keys__ else ""
        plain = get_type_hints(kind, include_extras=True)[key]
        if get_origin(plain) is not None and getattr(get_origin(plain), "_name", "") in (
            "Required",
            "NotRequired",
        ):
            plain = get_args(plain)[0]
        rows += nodes.row("", entry(key, True), entry(words(plain, inner)), entry(must))
    heads = nodes.thead("", nodes.row("", entry("key"), entry("value"), entry("required")))
    group = nodes.tgroup("", cols=3)
    group += [*(nodes.colspec(colwidth=width) for width in (25, 60, 15)), heads, rows]
    return nodes.table("", group)


class FileFormat(SphinxDirective):
    """``.. file-format:: MODULE.SHAPE``."""

    required_arguments = 1
    has_content = False

    def run(self) -> list[nodes.Node]:
        """The tables of the shape and of those inside."""
        module, _, name = self.arguments[0].rpartition(".")
        queue = {name: getattr(import_module(module), name)}
        done, written = set[str](), list[nodes.Node]()
        while queue:
            key = next(iter(queue))
            kind = queue.pop(key)
            if key in done:
                continue
            done.add(key)
            if len(done) > 1:
                written.append(nodes.paragraph("", "", nodes.strong("", title(kind))))
            written.append(table(kind, queue))
        return written


def setup(app: Sphinx) -> dict[str, bool]:
    """Adds the directive."""
    app.add_directive("file-format", FileFormat)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
