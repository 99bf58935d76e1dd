"""How messages write the place of a value in a file, and the value itself."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from ..ground import PACKAGE

PRESETS = PACKAGE / "files" / "presets"

# Objects whose keys are names of the user's and not fields of the format.
_KEYED_BY_NAME = frozenset(
    {
        "placement",
        "priority",
        "sequence",
        "attrs",
        "time",
        "provenance",
        "memory",
        "partition",
        "tensors",
        "split",
    }
)
_FIELD = re.compile(r"[A-Za-z_][A-Za-z_0-9]*\Z")
# Messages show values of strangers: long enough to know them, short enough for a line.
_MOST = 40


def _keyed(path: Sequence[str | int]) -> bool:
    """Whether the keys of the object at this path are names (those of ``options.memory`` are
    fields).
    """
    return bool(path) and path[-1] in _KEYED_BY_NAME and list(path) != ["options", "memory"]


def path_text(path: Sequence[str | int]) -> str:
    """The path as messages write it: ``ops[17].inputs[2]``, ``placement["a b"]``."""
    text = ""
    for i, part in enumerate(path):
        if isinstance(part, int):
            text += f"[{part}]"
        # A user's name may hold dots and brackets; quoted, it cannot be taken for a path.
        elif not _FIELD.match(part) or _keyed(path[:i]):
            text += f'["{part}"]'
        else:
            text += f".{part}" if text else part
    return text


def shown(value: Any) -> str:
    """A value as it is written in JSON, cut after 40 characters; a list or an object by its sort
    only.
    """
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, (list, tuple)):
        return "a list"
    text = (
        json.dumps(value, ensure_ascii=False)
        if isinstance(value, (str, bool)) or value is None
        else str(value)
    )
    return text if len(text) <= _MOST else text[: _MOST - 3] + "..."


@cache
def shipped(folder: Path) -> tuple[str, ...]:
    """Names of the presets in a folder, sorted."""
    return tuple(sorted(path.stem for path in folder.glob("*.json")))


def meant(name: str, names: Sequence[str], otherwise: str) -> str:
    """What to say of a name that is none of these: the closest of them, or ``otherwise``."""
    close = get_close_matches(name, names, 1)
    return f'did you mean "{close[0]}"?' if close else otherwise


def at(path: Sequence[str | int] | str, reason: str) -> str:
    """``path: reason``, or only the reason where the whole file is meant."""
    where = path if isinstance(path, str) else path_text(path)
    return f"{where}: {reason}" if where else reason
