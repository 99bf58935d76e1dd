"""How much there is to read, told before it is: what takes too long by a guess is refused."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from ..ground.errors import InputError
from ..nouns.scale import LIMIT, parse_limit, scale_to_read
from .reading import label, parse_json, read_text

LARGE_TEXT = 16 * 2**20
"""Bytes of a file that takes seconds to parse."""


def limit_of(options: Mapping[str, Any], limit: Any) -> Any:
    """The limit that counts: ``limit``, or where it is None that of the options. Raises
    InputError.
    """
    chosen = options.get("limit", LIMIT) if limit is None else limit
    try:
        parse_limit(chosen)
    except ValueError as error:
        raise InputError(f"limit: {error}") from None
    return chosen


OTHERS = {
    ".py": "Python, and no scenario: simdev profile FILE:MODEL measures a model of such a file",
    ".jsonl": 'a profile, and no scenario: a scenario names it, "profile": ["FILE"]',
    ".onnx": "a model of ONNX, and no scenario: simdev import makes one of it",
}
"""What other files are that people simulate, by how their names end."""


def parsed(path: str, limit: Any) -> Any:
    """The value of a scenario's file; ``limit`` takes the place of its (None: that counts).

    Raises InputError, before anything is parsed where that would take too long and neither the file
    nor the limit allows for more.
    """
    text = read_text(path)
    if len(text) > LARGE_TEXT and limit is None and '"limit"' not in text:
        # Every op tells its outputs, few devices of so large a file none of their memory.
        scale_to_read(text.count('"outputs"'), text.count('"memory"')).require(parse_limit(LIMIT))
    try:
        return parse_json(text)
    except InputError as error:
        hint = next((hint for ending, hint in OTHERS.items() if path.endswith(ending)), None)
        raise (InputError(hint) if hint else error).within(label(path)) from None


def require_few(fields: Mapping[str, Any], path_of: Callable[[str], str], limit: float) -> None:
    """Refuse the graph and the cluster of a scenario where they have so many ops and devices that
    they take longer than ``limit`` seconds. Raises InputError.
    """
    counts = []
    for part, rows in (("graph", "ops"), ("cluster", "devices")):
        value = fields[part]
        listed = value.get(rows) if isinstance(value, Mapping) else None
        count = len(listed) if isinstance(listed, list) else 0
        counts.append(_names_in(path_of(value)) if isinstance(value, str) else count)
    scale_to_read(counts[0], counts[1]).require(limit)


def _names_in(path: str) -> int:
    """About how many ops or devices a large file describes; 0 of others, which say it themselves
    soon enough.
    """
    if not os.path.isfile(path) or os.path.getsize(path) < LARGE_TEXT:
        return 0
    return read_text(path).count('"name"')
