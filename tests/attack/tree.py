"""JSON as a tree that may hold invalid JSON: equal keys, arbitrary text as numbers, and halves of
surrogate pairs.
"""

from __future__ import annotations

import json
from typing import Any


class Raw(str):
    """A piece of a file that is written literally."""


class Pairs(list[list[Any]]):
    """An object as a list of ``[key, value]``, in which a key may occur twice."""


def tree_of(value: Any) -> Any:
    """The tree of a value of ``json.loads``."""
    if isinstance(value, dict):
        return Pairs([key, tree_of(item)] for key, item in value.items())
    return list(map(tree_of, value)) if isinstance(value, (list, tuple)) else value


def parsed(text: str) -> Any:
    """The tree of a text; numbers with a point keep their text."""
    return json.loads(text, object_pairs_hook=lambda it: Pairs(map(list, it)), parse_float=Raw)


def text_of(tree: Any) -> str:
    """The tree as a text, which is JSON only where the tree is."""
    if isinstance(tree, Raw):
        return str(tree)
    if isinstance(tree, Pairs):
        return "{" + ", ".join(f"{json.dumps(str(k))}: {text_of(v)}" for k, v in tree) + "}"
    if isinstance(tree, list):
        return "[" + ", ".join(map(text_of, tree)) + "]"
    return json.dumps(tree)


Place = tuple[list[Any], int]
"""A place in a tree: a holder (a list or an object), and the index of an item or pair in it."""


def places(tree: Any) -> list[Place]:
    """Every place of a tree except its root."""
    listed: list[Place] = []
    level = [tree]
    while level:
        holder = level.pop()
        if isinstance(holder, list):
            listed += ((holder, i) for i in range(len(holder)))
            level += (get((holder, i)) for i in range(len(holder)))
    return listed


def get(place: Place) -> Any:
    """The value of a place."""
    holder, i = place
    return holder[i][1] if isinstance(holder, Pairs) else holder[i]


def put(place: Place, value: Any) -> None:
    """Replace the value of a place."""
    holder, i = place
    if isinstance(holder, Pairs):
        holder[i] = [holder[i][0], value]
    else:
        holder[i] = value
