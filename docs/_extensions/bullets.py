"""What the bullets of docstrings say of names, and values beside it.

A bullet begins with names and a colon and goes on with others after a full stop; what is said of
several names holds for each. Names that a base class brings may be told there.

    - ``rate``: of a step. ``lower``, ``upper``: the bounds of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from inspect import cleandoc
from typing import Any

NAMES = re.compile(r"(?:^|(?<=\. ))``[\w-]+``(?:, ``[\w-]+``)*: ")


def said_of(kind: type[Any]) -> dict[str, str]:
    """What the docstrings of a class and of its bases say of each name, in a line."""
    texts: dict[str, str] = {}
    for base in reversed(_bases(kind)):
        for bullet in re.split(r"^- ", cleandoc(base.__doc__ or ""), flags=re.MULTILINE)[1:]:
            # What follows an empty line is no part of the bullet.
            for names, text in _entries(" ".join(bullet.split("\n\n")[0].split())):
                texts |= dict.fromkeys(re.findall(r"``([\w-]+)``", names), text)
    return texts


def said_of_fields(kind: type[Any]) -> dict[str, str]:
    """What the docstring of a dataclass says of each field, in their order.

    Raises ValueError where it leaves one out, or tells of others.
    """
    texts, names = said_of(kind), [field.name for field in fields(kind)]
    if apart := sorted(texts.keys() ^ set(names)):
        path = f"{kind.__module__}.{kind.__name__}"
        raise ValueError(f"{path}: the docstring and the fields differ: {', '.join(apart)}")
    return {name: texts[name] for name in names}


def plain(value: object) -> str:
    """A value as JSON has it, and ``--settings`` takes it."""
    return str(value).lower() if isinstance(value, bool) else f"{value}"


def _bases(kind: type[Any]) -> list[type[Any]]:
    """A class and its bases, the nearest first; a TypedDict keeps its bases elsewhere."""
    bases = [base for base in getattr(kind, "__orig_bases__", ()) if isinstance(base, type)]
    return list(dict.fromkeys([*kind.__mro__, *(up for base in bases for up in _bases(base))]))


def _entries(bullet: str) -> Iterator[tuple[str, str]]:
    """Names with a colon, and what is said of them up to the next ones."""
    matches = list(NAMES.finditer(bullet))
    for i, match in enumerate(matches):
        end = matches[i + 1].start() if i + 1 < len(matches) else len(bullet)
        yield match.group(), bullet[match.end() : end].strip().rstrip(".,;")
