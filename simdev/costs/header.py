"""Reading a profile's header, which is carried along and checked by nobody: it is whatever a tool
wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def fields_of(header: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the header line of a profile tells: under ``header``, or bare."""
    fields = header.get("header", header)
    return fields if isinstance(fields, Mapping) else {}


def object_at(value: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    """The object at a path in a header; empty where none stands there."""
    for name in path:
        inner = value.get(name)
        value = inner if isinstance(inner, Mapping) else {}
    return value
