"""A directive that writes a format's keys and types from the shape that files are checked by.

    .. file-format:: simdev.files.graph._GraphShape

A table of its keys, what each may hold, and which must stand; shapes inside are tables of their
own, once each.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from bullets import said_of
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from tables import table
from typing_extensions import get_type_hints, is_typeddict

from simdev.files import shape
from simdev.nouns.disturbances import Disturbances, Pauses
from simdev.nouns.failures import Failures
from simdev.nouns.memory import MemoryModel
from simdev.nouns.strategy import Sync

QUANTITIES = {
    "Bytes": "bytes",
    "OptionalBytes": "bytes or null",
    "Capacity": 'bytes, "unlimited" or null',
    "Seconds": "a time",
    "Duration": "a time, of any length",
    "Bandwidth": "a bandwidth",
    "Flops": "FLOP/s",
    "Share": "a share, 0 to 4",
    "Slowdown": "a factor",
    "Speed": "a share, 0 to 1",
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


HEAD = ("key", "meaning", "value")
NOUNS: dict[str, type[Any]] = {
    "SyncShape": Sync, "_MemoryShape": MemoryModel, "FailuresShape": Failures,
    "DisturbancesShape": Disturbances, "PausesShape": Pauses,
}  # fmt: skip
"""By the name of a shape the class whose docstring explains its keys, where it is not itself."""


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


def rows(kind: Any, inner: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Key, what it means, what it may hold."""
    texts = said_of(NOUNS.get(kind.__name__, kind))
    lines = list[tuple[str, str, str]]()
    for key, plain in get_type_hints(kind, include_extras=True).items():
        # Hints that are texts, as in all of these modules, leave __required_keys__ empty.
        mark = getattr(get_origin(plain), "_name", "")
        if mark in ("Required", "NotRequired"):
            (plain,) = get_args(plain)
        must = mark == "Required" or (kind.__total__ and mark != "NotRequired")
        text, value = texts.get(key, ""), words(plain, inner)
        # What it means says more than that its shape does not tell what it may hold.
        parts = ["" if text and value == PLAIN[Any] else value, "required" if must else ""]
        lines.append((f"``{key}``", text, "; ".join(filter(None, parts))))
    yield from sorted(lines, key=lambda line: not line[-1].endswith("required"))


def tables(kind: Any) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """The rows of a shape and of those inside, each with its name."""
    queue, done = {kind.__name__: kind}, set[str]()
    while queue:
        key = next(iter(queue))
        item = queue.pop(key)
        if key not in done:
            done.add(key)
            yield title(item), list(rows(item, queue))


class FileFormat(SphinxDirective):
    """``.. file-format:: MODULE.SHAPE``."""

    required_arguments = 1
    has_content = False

    def run(self) -> list[nodes.Node]:
        """The tables of the shape and of those inside."""
        module, _, name = self.arguments[0].rpartition(".")
        written = list[nodes.Node]()
        for head, lines in tables(getattr(import_module(module), name)):
            if written:
                written.append(nodes.paragraph("", "", nodes.strong("", head)))
            if any(text for _, text, _ in lines):
                written.append(table(HEAD, lines))
            else:
                written.append(table(HEAD[::2], [line[::2] for line in lines]))
        return written


def setup(app: Sphinx) -> dict[str, bool]:
    """Adds the directive."""
    app.add_directive("file-format", FileFormat)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
