"""Grids: which fields take which values, from Python, from a file (``files.read_grid``) and from
the command line.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from itertools import product
from math import prod
from typing import Any

from ...files.reading import parse_json
from ...ground.errors import InputError, collecting
from ...ground.units import DECIMAL, parse_bandwidth, parse_bytes, parse_flops, parse_time
from .fields import leading_path, parse_path

Grid = Mapping[str, Sequence[Any]] | Iterable[Mapping[str, Sequence[Any]]]
MOST_POINTS = 1_000_000
NUMBERS = (int, float, Decimal)
SLOW = 1_000_000  # bytes/s; a bandwidth below, without a unit, is no doubt meant in another unit
PARSERS = {
    "s": parse_time,
    "bytes": parse_bytes,
    "bytes_per_s": parse_bandwidth,
    "flop_per_s": parse_flops,
}


def points(grid: Grid | None) -> list[dict[str, Any]]:
    """Every combination of values, the first field changing slowest; several grids one after
    another.

    Without a grid one point that changes nothing. Raises InputError.
    """
    grids = [grid] if isinstance(grid, Mapping) else list(grid or [{}])
    problems: list[str] = []
    for fields in grids:
        for path, values in fields.items():
            with collecting(problems):
                parse_path(path)
            if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Sequence):
                problems.append(f"{path}: must be a list of values, got {values!r}")
            elif not values:
                problems.append(f"{path}: has no values")
            else:
                # Tables and rankings hold numbers as floats.
                large = [v for v in values if type(v) in NUMBERS and abs(v) > sys.float_info.max]
                problems += [f"{path}: out of range: {Decimal(v):.0e}" for v in large[:1]]
    if problems:
        raise InputError(problems)
    # Counted before any is made: a few long lists are more points than memory holds.
    count = sum(prod(map(len, fields.values())) for fields in grids)
    if count > MOST_POINTS:
        raise InputError(f"the grid has {count:,} points; at most {MOST_POINTS:,} are allowed")
    return [
        dict(zip(fields, values, strict=True))
        for fields in grids
        for values in product(*fields.values())
    ]


def crossed(
    first: Sequence[Mapping[str, Sequence[Any]]], second: Mapping[str, Sequence[Any]]
) -> list[Mapping[str, Sequence[Any]]]:
    """Every point of some grids with every point of another.

    Raises InputError for a field that stands in both.
    """
    twice = sorted({path for fields in first for path in fields if path in second})
    if twice:
        raise InputError([f"{path}: is set twice" for path in twice])
    return [{**fields, **second} for fields in first]


def parse_settings(texts: Iterable[str]) -> dict[str, list[Any]]:
    """The grid of the command line's ``PATH=VALUE,VALUE,...``.

    Raises InputError with every problem.

    A value is JSON where it reads as such, else text. A bare number takes the unit of the next
    value that has one: ``1,2,4,8Gbit/s``.
    """
    grid: dict[str, list[Any]] = {}
    problems: list[str] = []
    for text in texts:
        with collecting(problems):
            _, end = leading_path(text)
            path = text[:end]
            if text[end : end + 1] != "=":
                raise InputError(f"{text}: must be PATH=VALUE,VALUE,...")
            if path in grid:
                raise InputError(f"{path}: is set twice")
            grid[path] = _values(path, text[end + 1 :])
    if problems:
        raise InputError(problems)
    return grid


def slow_bandwidths(settings: Mapping[str, Sequence[Any]]) -> list[str]:
    """For each field a bandwidth that was given without a unit and that nobody would mean, and what
    it means.
    """
    notes = []
    for path, values in settings.items():
        steps = parse_path(path)
        if str(steps[-1]).endswith("bandwidth") or steps == ("cluster", "network"):
            plain = [value for value in values if type(value) in NUMBERS]
            slow = [f"{float(value):g}" for value in plain if 0 < value < SLOW]
            notes += [
                f"{path}={value} is {value} B/s; write {value}GB/s or {value}Gbit/s"
                for value in slow[:1]
            ]
    return notes


def _values(path: str, text: str) -> list[Any]:
    texts = [value.strip() for value in _split(text)]
    if "" in texts:
        raise InputError(f'{path}: a value is empty in "{text}"')
    units = [_unit(value) for value in texts]
    if any(units):
        # From behind, so that a unit is handed on from value to value.
        if units[-1] is None and DECIMAL.fullmatch(texts[-1]):
            raise InputError(f'{path}: "{texts[-1]}" has no unit; write it behind the last value')
        for i in reversed(range(len(texts) - 1)):
            if units[i] is None and DECIMAL.fullmatch(texts[i]):
                units[i] = units[i + 1]
                texts[i] += units[i] or ""
    return [_value(value) for value in texts]


def _split(text: str) -> list[str]:
    """Cut at the commas that stand in no brackets and no quotes."""
    parts, depth, quoted, start = [], 0, False, 0
    for i, sign in enumerate(text):
        if sign == '"' and text[i - 1 : i] != "\\":
            quoted = not quoted
        elif not quoted:
            depth += (sign in "[{") - (sign in "]}")
            if sign == "," and depth <= 0:
                parts.append(text[start:i])
                start = i + 1
    return [*parts, text[start:]]


def _unit(text: str) -> str | None:
    """What stands behind the number of a quantity, None where it is none or has no unit."""
    match = DECIMAL.match(text)
    unit = text[match.end() :] if match else ""
    return (
        unit if unit and any(_si(text, parse) is not None for parse in PARSERS.values()) else None
    )


def _value(text: str) -> Any:
    try:
        return parse_json(text)
    except InputError:
        return text


def si_values(values: Sequence[Any]) -> tuple[str, list[float]] | None:
    """(unit, numbers in that unit), where the values are quantities of one sort, written with
    units; else None.

    The unit is that of column names: ``s``, ``bytes``, ``bytes_per_s``, ``flop_per_s``.
    """
    if not any(isinstance(value, str) and _unit(value) for value in values):
        return None
    for unit, parse in PARSERS.items():
        numbers = [float(number) for value in values if (number := _si(value, parse)) is not None]
        if len(numbers) == len(values):
            return unit, numbers
    return None


def _si(value: Any, parse: Any) -> Fraction | None:
    try:
        return Fraction(parse(value))
    except (ValueError, TypeError, AttributeError):
        return None
