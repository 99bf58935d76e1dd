"""The settings of learners: what users write, as a checked dataclass.

A class of settings is a frozen dataclass whose fields have defaults and are of type int, float,
str, bool, or Literal of texts; its classmethod ``published`` returns those of the paper. Numbers
must be greater than 0, or at least ``field(metadata={"least": 0})``, and at most "most" there,
else LARGEST.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from math import isfinite
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from ...ground.errors import InputError

Settings = str | Mapping[str, Any]
PUBLISHED = "published"
LARGEST = 1e30  # of numbers: weights in 32 bits hold no more than some 1e38
TRUTHS = {"true": True, "false": False}


def resolved(kind: type[Any], given: Settings | object | None, base: Settings = "") -> Any:
    """An instance of a class of settings.

    ``given`` is a mapping of values by name, a text like ``published,hidden=128`` (the first word
    alone stands for the paper's values), an instance, or None; ``base`` has the values in place of
    the defaults. Raises InputError that lists the fields.
    """
    if isinstance(given, kind):
        given = asdict(given)
    before, after = _values(kind, base), _values(kind, {} if given is None else given)
    hints = get_type_hints(kind)
    values = before | after
    problems = [f"no {name!r}" for name in values if name not in hints]
    checked = {}
    for field in fields(kind):
        if field.name in values:
            try:
                least = field.metadata.get("least")
                most = field.metadata.get("most", LARGEST)
                checked[field.name] = _value(hints[field.name], values[field.name], least, most)
            except ValueError as error:
                problems.append(f"{field.name} must be {error}, got {values[field.name]!r}")
    if problems:
        raise InputError(f"settings: {'; '.join(problems)}; there are {_listing(kind, hints)}")
    return kind(**checked)


def _values(kind: type[Any], given: object) -> dict[str, Any]:
    """What is given, by name; texts stay texts."""
    if isinstance(given, Mapping):
        return {str(name): value for name, value in given.items()}
    if not isinstance(given, str):
        raise InputError(f"settings: must be values by name, or a text, got {given!r}")
    values: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in given.split(","))):
        name, equals, value = part.partition("=")
        if part == PUBLISHED:
            # What is written out goes before the paper's values, wherever it stands.
            values = asdict(kind.published()) | values
        elif not equals:
            raise InputError(f'settings: must be "{PUBLISHED}" or NAME=VALUE, got "{part}"')
        else:
            values[name.strip()] = value.strip()
    return values


def _value(hint: Any, value: Any, least: float | None, most: float) -> Any:
    """A value of a type. Raises ValueError that says what it must be."""
    if get_origin(hint) is Literal or hint is str:
        allowed = get_args(hint)
        if not isinstance(value, str) or (allowed and value not in allowed):
            raise ValueError(f"of {', '.join(allowed)}" if allowed else "a text")
        return value
    if hint is bool:
        value = TRUTHS.get(value, value) if isinstance(value, str) else value
        if not isinstance(value, bool):
            raise ValueError("true or false")
        return value
    return _number(hint, value, least, most)


def _number(
    hint: type[int] | type[float], value: Any, least: float | None, most: float
) -> int | float:
    bound = "> 0" if least is None else f">= {least}"
    wanted = f"a whole number {bound}" if hint is int else f"a number {bound}"
    try:
        # 128.7 is no whole number, and True none at all.
        number = hint(value)
        exact = isinstance(value, str) or (not isinstance(value, bool) and number == value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(wanted) from None
    if not exact or not isfinite(number) or not (number > 0 if least is None else number >= least):
        raise ValueError(wanted)
    if number > most:
        raise ValueError(f"at most {most:g}")
    return number


def require_finite(numbers: NDArray[Any]) -> None:
    """Raises InputError where what settings lead to is no finite number any more."""
    if not np.isfinite(numbers).all():
        raise InputError("settings: too large or too small: what is learned is no finite number")


def _listing(kind: type[Any], hints: Mapping[str, Any]) -> str:
    """The fields, their types and defaults."""
    plain = asdict(kind())
    return ", ".join(f"{name} ({_type_name(hints[name])}, {plain[name]})" for name in plain)


def _type_name(hint: Any) -> str:
    return "/".join(get_args(hint)) or str(hint.__name__)
