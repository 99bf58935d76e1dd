"""Quantities at the door: "80 GiB", "300 GB/s", "5 us" in, exact fractions of SI units inside, and
back to text.

A plain number is SI (bytes, bytes per second, seconds). kB, MB, GB are powers of 1,000 and KiB,
MiB, GiB powers of 1,024; bits are never meant unless "bit" or "bps" is written. Numbers are
decimals as written: 0.1 means one tenth.

Nouns name a unit as the type of a field (``Bytes``, ``Seconds``), and ``unread`` puts the exact
value in place of what was given. Files take their types from the same fields, so a quantity is
added to a noun alone; a unit of another kind is needed in ``simdev/files/shape.py`` too. The texts
for people (``format_bytes`` and its like) are those of reports and messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache, lru_cache
from typing import Annotated, Any, TypeGuard, get_args, get_type_hints

from .frozen import FrozenDict

Number = int | float | str | Decimal | Fraction

PS_PER_SECOND = 10**12
MAX_BYTES = 2**60
MAX_NAME = 256
MAX_PS = 2**62  # 53 days: two of them still add up inside int64
# A float has at most 309 digits before its point; longer integers take quadratic time to read.
MAX_DIGITS = 400

_DECIMAL = {"": 0, "k": 3, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50}
_TIME = {"ps": -12, "ns": -9, "us": -6, "µs": -6, "μs": -6, "ms": -3, "s": 0}
DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
"""A number as texts write it: Python reads "1_000" and digits of all scripts too."""
_WHOLE = re.compile(r"[+-]?[0-9]+")
_QUANTITY = re.compile(rf"\s*({DECIMAL.pattern})\s*([A-Za-zµμ/]*)\s*\Z")


def _scales(unit: str, divisor: int = 1) -> dict[str, Fraction]:
    decimal = {prefix + unit: Fraction(10**power, divisor) for prefix, power in _DECIMAL.items()}
    return decimal | {
        prefix + unit: Fraction(2**power, divisor) for prefix, power in _BINARY.items()
    }


_BYTES = _scales("B")
_RATE = {unit + "/s": scale for unit, scale in (_BYTES | _scales("bit", 8)).items()}
_RATE |= {
    unit.replace("bit/s", "bps"): scale for unit, scale in _RATE.items() if unit.endswith("bit/s")
}
_SECONDS = {unit: Fraction(10) ** power for unit, power in _TIME.items()}
_LONG = {
    name: Fraction(seconds)
    for names, seconds in (
        (("min",), 60), (("h", "hour", "hours"), 3600), (("d", "day", "days"), 86_400),
        (("y", "year", "years"), 365 * 86_400),
    )
    for name in names
}  # fmt: skip
_FLOPS = {
    prefix + "FLOP/s": Fraction(10) ** power for prefix, power in _DECIMAL.items() if prefix != "K"
}
MAX_FLOPS = 10**21


def exact(value: Number) -> Fraction:
    """The number as an exact fraction; a float means its shortest decimal form.

    Raises ValueError for booleans, NaN, infinities and numbers of absurd length.
    """
    if isinstance(value, Fraction):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float, str, Decimal)):
        raise ValueError(f"must be a number, got {written(value)}")
    if isinstance(value, int):
        return Fraction(value)
    if isinstance(value, str) and not DECIMAL.fullmatch(value):
        raise ValueError(f"must be a number, got {written(value)}")
    text = repr(float(value)) if isinstance(value, float) else value
    decimal = text if isinstance(text, Decimal) else Decimal(text)
    if not decimal.is_finite():
        raise ValueError(f"must be finite, got {value}")
    # Longer numbers are mistakes, and their fractions would take minutes to compute with.
    if decimal and abs(decimal.adjusted()) > 60:
        raise ValueError(f"is out of range: {value}")
    return Fraction(decimal)


def parse_whole(text: str) -> int:
    """The whole number that a text is, of at most MAX_DIGITS digits. Raises ValueError."""
    text = text.strip()
    if not _WHOLE.fullmatch(text):
        raise ValueError(f'must be a whole number, got "{text}"')
    if len(text) > MAX_DIGITS:
        raise ValueError(f"must have at most {MAX_DIGITS} digits, got {len(text):,}")
    return int(text)


def _quantity(value: Number, units: dict[str, Fraction], example: str) -> Fraction:
    if not isinstance(value, str):
        return exact(value)
    match = _QUANTITY.match(value)
    if match is None:
        raise ValueError(f'must be a number or a string like "{example}", got "{value}"')
    number, unit = match.groups()
    if unit and unit not in units:
        raise ValueError(f'has the unknown unit "{unit}" in "{value}"; write it like "{example}"')
    return exact(number) * (units[unit] if unit else 1)


def parse_bytes(value: Number) -> int:
    """Bytes, as a whole number from 0 to 2^60. Raises ValueError."""
    size = _quantity(value, _BYTES, "80 GiB")
    if size.denominator != 1:
        raise ValueError(f"must be a whole number of bytes, got {value}")
    if size < 0:
        raise ValueError(f"must not be negative, got {value}")
    if size > MAX_BYTES:
        raise ValueError(f"is larger than 2^60 bytes: {value}")
    return int(size)


def parse_bandwidth(value: Number) -> Fraction:
    """Bytes per second, positive. Raises ValueError."""
    rate = _quantity(value, _RATE, "300 GB/s")
    if rate <= 0:
        raise ValueError(f"must be > 0, got {value}")
    if rate > MAX_BYTES or rate * MAX_BYTES < 1:
        raise ValueError(f"is out of range: {value}")
    return rate


def parse_time(value: Number) -> Fraction:
    """Seconds, not negative and under 53 days. Raises ValueError."""
    seconds = _quantity(value, _SECONDS, "5 us")
    if seconds.numerator < 0:
        raise ValueError(f"must not be negative, got {value}")
    # On integers: every op of a graph comes through here, and Fractions would be ten times slower.
    if seconds.numerator * PS_PER_SECOND > MAX_PS * seconds.denominator:
        raise ValueError(f"is larger than 53 days: {value}")
    return seconds


def parse_duration(value: Number) -> Fraction:
    """Seconds of a long time, like "5 min", "1 d" or "9 years" (of 365 days), not negative and at
    most a million years. Raises ValueError.
    """
    seconds = _quantity(value, _SECONDS | _LONG, "5 min")
    if not 0 <= seconds <= 10**6 * _LONG["year"]:
        raise ValueError(f"must be from 0 to a million years, got {value}")
    return seconds


def parse_times(value: Number | Mapping[str, Number]) -> Fraction | FrozenDict[str, Fraction]:
    """Seconds, or seconds by kind of device. Raises ValueError."""
    if isinstance(value, Mapping):
        return FrozenDict({kind: parse_time(time) for kind, time in value.items()})
    return parse_time(value)


def parse_flops(value: Number) -> Fraction:
    """Floating-point operations per second, positive and at most 10^21. Raises ValueError."""
    rate = _quantity(value, _FLOPS, "67 TFLOP/s")
    if not 0 < rate <= MAX_FLOPS:
        raise ValueError(f"must be > 0 and at most 10^21 FLOP/s, got {value}")
    return rate


def parse_price(value: Number) -> Fraction:
    """Dollars, as a number or like "$2.5", from 0 to 10^9. Raises ValueError."""
    dollars = exact(value.strip().removeprefix("$") if isinstance(value, str) else value)
    if not 0 <= dollars <= 10**9:
        raise ValueError(f"must be from 0 to 10^9 dollars, got {value}")
    return dollars


def parse_slowdown(value: Number) -> Fraction:
    """The factor by which sharing something lengthens a task, from 1 to 2. Raises ValueError."""
    factor = exact(value)
    # Beyond 2 one after the other would be faster, which every device can do.
    if not 1 <= factor <= 2:
        raise ValueError(f"must be from 1 to 2, got {float(factor):g}")
    return factor


def parse_speed(value: Number) -> Fraction:
    """A share that is left of something, over 0 and at most 1. Raises ValueError."""
    share = exact(value)
    if not 0 < share <= 1:
        raise ValueError(f"must be > 0 and at most 1, got {float(share):g}")
    return share


def decimal_text(value: Fraction) -> str:
    """The fraction as a decimal: exact where it ends within 60 digits, else rounded up to 30
    significant ones.
    """
    # A fraction ends as a decimal where its denominator has no prime factors but 2 and 5.
    digits, rest = 0, value.denominator
    for factor in (2, 5):
        power = 0
        while rest % factor == 0:
            rest //= factor
            power += 1
        digits = max(digits, power)
    with localcontext() as context:
        context.prec, context.rounding = (
            (200, "ROUND_HALF_EVEN") if rest == 1 and digits <= 60 else (30, "ROUND_CEILING")
        )
        return f"{(Decimal(value.numerator) / Decimal(value.denominator)).normalize():f}"


@lru_cache(4096)
def time_text(seconds: Fraction) -> str:
    """Exact text of a time in the largest unit that leaves it at least 1: ``12 us``."""
    return _text(seconds, {"s": 0, "ms": -3, "us": -6, "ns": -9, "ps": -12})


def times_text(seconds: Fraction | Mapping[str, Fraction]) -> str | dict[str, str]:
    """Exact text of a time, or of each time by kind of device."""
    if isinstance(seconds, Mapping):
        return {kind: time_text(time) for kind, time in seconds.items()}
    return time_text(seconds)


@lru_cache(4096)  # a cluster may have a million links of one bandwidth
def rate_text(rate: Fraction) -> str:
    """Exact text of a bandwidth: ``5.7 GB/s``."""
    return _text(rate, {"TB/s": 12, "GB/s": 9, "MB/s": 6, "kB/s": 3, "B/s": 0})


def _text(value: Fraction, units: dict[str, int]) -> str:
    # Zero is less than one of every unit; it is written in the first.
    fitting = (name for name, power in units.items() if not value or value >= Fraction(10) ** power)
    unit = next(fitting, list(units)[-1])
    return f"{decimal_text(value / Fraction(10) ** units[unit])} {unit}"


@dataclass(frozen=True, slots=True)
class Unit:
    """How a quantity is read from a number or a text, and how its exact value is written as a text
    (None: as a plain number).
    """

    parse: Callable[[Any], Any]
    text: Callable[[Any], Any] | None = None


# Types for the fields of nouns: the unit is told once, for the noun, for files in and files out.
Bytes = Annotated[Number, Unit(parse_bytes)]
Seconds = Annotated[Number, Unit(parse_time, time_text)]
Duration = Annotated[Number, Unit(parse_duration, time_text)]
Times = Annotated[Number | Mapping[str, Number], Unit(parse_times, times_text)]
Bandwidth = Annotated[Number, Unit(parse_bandwidth, rate_text)]
Slowdown = Annotated[Number, Unit(parse_slowdown, decimal_text)]
Speed = Annotated[Number, Unit(parse_speed, decimal_text)]


@cache
def units_of(noun: Any) -> Mapping[str, tuple[Unit, bool]]:
    """By name of each field of a dataclass that is a quantity its unit, and whether it may be
    None.
    """
    units = {}
    for name, hint in get_type_hints(noun, include_extras=True).items():
        choices = (hint, *get_args(hint))
        for unit in (unit for choice in choices for unit in getattr(choice, "__metadata__", ())):
            units[name] = unit, type(None) in choices
    return units


def unread(noun: Any) -> Iterator[str]:
    """Puts exact SI values in place of the quantities of a frozen dataclass; yields ``field:
    reason`` for what is none.
    """
    for name, (unit, may_miss) in units_of(noun.__class__).items():
        value = getattr(noun, name)
        if value is not None or not may_miss:
            try:
                object.__setattr__(noun, name, unit.parse(value))
            except ValueError as error:
                yield f"{name}: {error}"


def picoseconds(seconds: Fraction) -> int:
    """Whole picoseconds, rounded up: nothing that takes time is free."""
    return -(-seconds.numerator * PS_PER_SECOND // seconds.denominator)


def transmission_ps(size: int, bandwidth: Fraction) -> int:
    """Time in ps that ``size`` bytes need at ``bandwidth`` bytes per second, rounded up."""
    # ceil(size * 1e12 / bandwidth) on integers: Fractions would be ten times slower here.
    return -(-size * PS_PER_SECOND * bandwidth.denominator // bandwidth.numerator)


def is_count(value: object) -> TypeGuard[int]:
    """Whether the value is a whole number from 0 to 2^60 (and no bool)."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_BYTES


def written(value: object) -> str:
    """A value as a message shows it; numbers of files as they are written there."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {written(item)}" for key, item in value.items()) + "}"
    return str(value) if isinstance(value, Decimal) else repr(value)


def size_problems(name: str, value: object) -> Iterator[str]:
    """``name: reason`` unless the value is a whole number of bytes from 0 to 2^60."""
    if not is_count(value):
        yield f"{name}: must be a whole number of bytes from 0 to 2^60, got {written(value)}"


def range_problems(name: str, value: object, least: int, most: int) -> Iterator[str]:
    """``name: reason`` unless the value is a whole number from ``least`` to ``most``."""
    if not (is_count(value) and least <= value <= most):
        wanted = f"must be a whole number from {least} to {most:,}"
        yield f"{name}: {wanted}, got {written(value)}"


def flag_problems(name: str, value: object) -> Iterator[str]:
    """``name: reason`` unless the value is true or false."""
    if not isinstance(value, bool):
        yield f"{name}: must be true or false, got {written(value)}"


def name_problems(name: str, value: object) -> Iterator[str]:
    """``name: reason`` unless the value is printable text of 1 to 256 characters."""
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_NAME or not value.isprintable():
        yield f"{name}: must be 1 to {MAX_NAME} printable characters, got {str(value)[:40]!r}"


def named_twice(field: str, names: Iterable[str]) -> Iterator[str]:
    """``field[i].name: reason`` for each of the names that an earlier one is equal to."""
    first: dict[str, int] = {}
    for i, name in enumerate(names):
        if first.setdefault(name, i) != i:
            yield f'{field}[{i}].name: "{name}" is already the name of {field}[{first[name]}]'


def text_problems(name: str, value: object) -> Iterator[str]:
    """``name: reason`` unless the value is a text; a trace may call a kind anything."""
    if not isinstance(value, str):
        yield f"{name}: must be a text, got {written(value)[:40]!r}"


def unlisted(noun: object, **choices: Collection[str | None]) -> Iterator[str]:
    """``field: reason`` for each of these fields of a noun whose value is none of its choices."""
    for name, choice in choices.items():
        if getattr(noun, name) not in tuple(choice):
            known = ", ".join(filter(None, choice))
            yield f'{name}: must be one of {known}, got "{getattr(noun, name)}"'


def format_number(value: float) -> str:
    """A rate or a large count for people: ``66,727`` and ``3.142``."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.4g}"


def format_bytes(size: float) -> str:
    """For people: ``1.50 GiB``."""
    for prefix, power in reversed(_BINARY.items()):
        if abs(size) >= 2**power:
            return f"{size / 2**power:.2f} {prefix}B"
    return f"{size:.0f} B"


def format_capacity(size: int) -> str:
    """For people, as it was written: ``80 GiB`` and ``80 GB`` are two sizes."""
    for unit, scale in (("GiB", 2**30), ("GB", 10**9), ("MiB", 2**20)):
        if size % scale == 0:
            return f"{size // scale:,} {unit}"
    return f"{size / 1e9:.2f} GB"


def format_seconds(seconds: float, digits: int = 4) -> str:
    """For people: ``12.34 ms``."""
    for unit in ("s", "ms", "us", "ns"):
        scale = 10.0 ** _TIME[unit]
        if abs(seconds) >= scale:
            return f"{seconds / scale:.{digits}g} {unit}"
    return f"{seconds * 1e12:.{digits}g} ps"


def format_ps(ps: float | Fraction, digits: int = 4) -> str:
    """A time in ps for people: ``12.34 ms``."""
    return format_seconds(float(ps / PS_PER_SECOND), digits)


def format_duration(seconds: float, digits: int = 3) -> str:
    """For people: ``2.3 h`` and ``30 d``."""
    for unit in ("years", "d", "h", "min"):
        if seconds >= _LONG[unit]:
            return f"{seconds / float(_LONG[unit]):.{digits}g} {unit}"
    return format_seconds(seconds, digits)


def format_bandwidth(rate: float) -> str:
    """For people: ``300 GB/s``."""
    for prefix, power in reversed(_DECIMAL.items()):
        if prefix != "K" and rate >= 10**power:
            return f"{rate / 10**power:.4g} {prefix}B/s"
    return f"{rate:.4g} B/s"
