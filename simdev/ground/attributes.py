"""What the nodes and edges of networkx call a kind, a time and a size: the names that the field
gives them, and what their values mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from .errors import InputError
from .units import exact, parse_bytes, parse_time

KIND = ("kind", "op", "op_type", "type")
TIME = {"time": 0, "seconds": 0, "duration": 0, "time_s": 0} | {
    f"{name}_{unit}": power
    for name in ("time", "duration")
    for unit, power in (("ms", -3), ("us", -6), ("ns", -9), ("ps", -12))
}
"""Attributes for the time, with the power of ten of a plain number in seconds; a text may carry a
unit instead.
"""

SIZES = ("param_bytes", "grad_bytes", "state_bytes", "workspace_bytes")
OUTPUT = ("bytes", "nbytes", "output_bytes", "size")
EDGE = ("bytes", "nbytes", "size", "tensor_bytes")
WEIGHT = "weight"
"""Of an edge made in Python: its bytes. In a file it may be anything, and is not read."""


def only(fields: Mapping[str, Any], known: Sequence[str], meaning: str) -> str | None:
    """The attribute of those ``known`` that is there, None for none.

    Raises InputError where several tell one ``meaning``.
    """
    names = [name for name in known if fields.get(name) is not None]
    if len(names) > 1:
        raise InputError(f"{names[1]}: the {meaning} is told twice, beside {names[0]}")
    return names[0] if names else None


def _plain(value: Any) -> Any:
    """A number of numpy, which graphs often hold, as Python has it."""
    return value.item() if isinstance(value, np.generic) else value


def size_of(fields: Mapping[str, Any], name: str) -> int:
    """The bytes that an attribute tells. Raises InputError."""
    value = _plain(fields[name])
    try:
        # GraphML and JavaScript write whole numbers as floats.
        return parse_bytes(Fraction(str(value)) if isinstance(value, (float, Decimal)) else value)
    except ValueError as error:
        raise InputError(f"{name}: {error}") from None


def time_of(name: str, value: Any) -> Any:
    """Seconds, or seconds by kind of device. Raises InputError."""
    if isinstance(value, Mapping):
        return {str(kind): time_of(f"{name}.{kind}", time) for kind, time in value.items()}
    value = _plain(value)
    power = TIME.get(name.partition(".")[0], 0)
    try:
        if isinstance(value, str):
            return parse_time(value)
        return parse_time(exact(value) * Fraction(10) ** power)
    except ValueError as error:
        raise InputError(f"{name}: {error}") from None
