"""Entries by name: of an op, of a colocation group, or by pattern; the most specific one counts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import translate
from typing import Generic, NamedTuple, TypeVar

from ..graph import Graph

WILDCARDS = "*?["
T = TypeVar("T")


class _Pattern(NamedTuple):
    """An entry with wildcards, compiled: fnmatch forgets all but the last few hundred that it was
    asked for.
    """

    literals: int
    key: str
    match: Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Named(Generic[T]):
    """The entry of each op of a graph (None: it has none), the keys that count for nothing, and the
    clashes.

    A clash is an op with two patterns that are equally specific and tell different things.
    """

    keys: tuple[str | None, ...]
    unused: tuple[str, ...]
    clashes: tuple[tuple[str, str, str], ...]


def named(
    graph: Graph, entries: Mapping[str, T], allowed: Callable[[int, str], bool] | None = None
) -> Named[T]:
    """The entry that counts for each op.

    An op's own name wins over its colocation group, the group over patterns; among patterns the one
    with the most literal characters wins. ``allowed`` tells which patterns may count for the op at
    a position (default: all).
    """
    patterns = _patterns(entries)
    keys: list[str | None] = []
    clashes: list[tuple[str, str, str]] = []
    used: set[str] = set()
    for position, op in enumerate(graph.ops):
        key = op.name if op.name in entries else op.colocate if op.colocate in entries else None
        if key is None and patterns:
            fitting = (
                p
                for p in patterns
                if p.match(op.name) and (allowed is None or allowed(position, p.key))
            )
            key, clash = _most_specific(fitting, entries)
            if clash and key is not None:
                clashes.append((op.name, key, clash))
        keys.append(key)
        if key is not None:
            used.add(key)
    matches = {pattern.key: pattern.match for pattern in patterns}
    unused = tuple(
        key
        for key in entries
        if key not in used and not _names(graph, key, matches.get(key), allowed)
    )
    return Named(tuple(keys), unused, tuple(clashes))


def _names(
    graph: Graph,
    key: str,
    match: Callable[[str], object] | None,
    allowed: Callable[[int, str], bool] | None,
) -> bool:
    """Whether a key names or matches anything at all, though a more specific one may count."""
    if key in graph.index or key in graph.groups:
        return True
    if match is None:
        return False
    return any(
        match(op.name) and (allowed is None or allowed(i, key)) for i, op in enumerate(graph.ops)
    )


def _patterns(entries: Mapping[str, T]) -> list[_Pattern]:
    """The patterns of a placement or partition, the most specific first."""
    keys = [key for key in entries if any(c in key for c in WILDCARDS)]
    found = [
        _Pattern(sum(c not in "*?" for c in key), key, re.compile(translate(key)).match)
        for key in keys
    ]
    return sorted(found, key=lambda pattern: pattern.literals, reverse=True)


def _most_specific(fitting: Iterator[_Pattern], entries: Mapping[str, T]) -> tuple[str | None, str]:
    """The best of the patterns that fit, and an equally specific one that tells another thing (or
    "").
    """
    best = next(fitting, None)
    if best is None:
        return None, ""
    for pattern in fitting:
        if pattern.literals < best.literals:
            break
        if entries[pattern.key] != entries[best.key]:
            return best.key, pattern.key
    return best.key, ""
