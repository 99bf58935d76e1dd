"""Measured times of operators: rows, profiles, and ``OpCost``, the ladder's answer.

A Profile holds measured rows by their keys. A key says what the op computes (kind, attributes,
operand shapes and dtypes, output shapes, phase) on which kind of device. ``files/profile.py`` reads
and writes profiles, ``ladder`` answers from them; RUNGS names the rungs of that ladder, also in
reports (``report/measures/costs.py``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

from ..ground.errors import refuse
from ..ground.frozen import FrozenDict, freeze
from .roofline import PACE, Pace

MEMORY_PASS, MEMORY_PASS_ERROR = "memory pass", 1.0
"""The rung of ops of which only the bytes are known, and its expected error (ours): such an op may
take twice as long, or next to nothing.
"""

ROOFLINE = "roofline"
"""The rung of the datasheet, also for large models and closed forms of collectives."""

RUNGS = ("given", "measured", "interpolated", "fitted", "scaled", ROOFLINE, MEMORY_PASS)
"""The rungs of the cost ladder, from the surest down."""

KNOWN = RUNGS[:2]
"""The rungs that are no estimates, the only ones that ``strict`` allows."""


# Nothing checks a header: it holds whatever a tool wrote.
Header = Mapping[str, Any]
"""The header line of a profile, or an object in it."""


def fields_of(header: Header) -> Header:
    """The fields of a profile's header, bare or under ``header``; empty without any."""
    fields = header.get("header", header)
    return fields if isinstance(fields, Mapping) else {}


def object_at(value: Header, *path: str) -> Header:
    """The object at a path in a header; empty where there is none."""
    for name in path:
        inner = value.get(name)
        value = inner if isinstance(inner, Mapping) else {}
    return value


@dataclass(frozen=True, slots=True)
class Row:
    """One measured operator: its median time in seconds, and further facts about it.

    ``source`` is the origin of the time ("measured", or another of RUNGS), ``rel_err`` its relative
    error (0.1 is 10 %, None: unknown), ``details`` the whole row.
    """

    key: str
    seconds: Fraction
    source: str = "measured"
    rel_err: float | None = None
    details: Mapping[str, Any] = field(default=FrozenDict(), repr=False)

    def __post_init__(self) -> None:
        freeze(self, "details")

    @property
    def launches(self) -> int | None:
        """The number of kernels that a call launches; None where the row has none."""
        count = self.details.get("launches")
        return None if count is None else int(count)

    @property
    def tells_kernels(self) -> bool:
        """Whether the row has the number of kernels that a call launches, and their time."""
        return self.details.get("kernel_ns") is not None and bool(self.launches)

    def device_seconds(self, pace: Pace = PACE) -> Fraction:
        """The seconds that the op occupies its device.

        They are the kernels' time and a gap for each launch, where the row has both (``kernel_ns``,
        ``launches``), else the median of the calls. Kernels that draw more power than the device
        can sustain, which a single call does not show, take longer by the ``pace``.
        """
        if not self.tells_kernels:
            return self.seconds
        seconds, flops = Fraction(self.details["kernel_ns"]) / 10**9, self.details.get("flops") or 0
        if pace.hot is not None and flops > pace.hot * seconds:
            seconds /= pace.clock
        return seconds + pace.gap * (self.launches or 0)


@dataclass(frozen=True)
class Profile:
    """Rows by key, with the header that describes the measurement."""

    header: Header
    rows: Mapping[str, Row]

    def __post_init__(self) -> None:
        freeze(self, "header", "rows")

    @classmethod
    def of_rows(cls, header: Header, rows: Sequence[Row]) -> Profile:
        """A profile from rows in file order. Raises InputError where two rows have equal keys."""
        first: dict[str, int] = {}
        refuse(
            f"rows[{i}]: the same key as rows[{first[row.key]}]: {row.key[:120]}"
            for i, row in enumerate(rows)
            if first.setdefault(row.key, i) != i
        )
        return cls(header, {row.key: row for row in rows})

    @property
    def about(self) -> Header:
        """The fields of the header (``fields_of``)."""
        return fields_of(self.header)

    @cached_property
    def device_kinds(self) -> tuple[str, ...]:
        """The kinds of device in its rows, in the order of their first rows."""
        # The kind of device comes first in a key, so the rest need not be parsed.
        decode = json.JSONDecoder().raw_decode
        return tuple(dict.fromkeys(str(decode(key, 1)[0]) for key in self.rows))

    def __repr__(self) -> str:
        return f"Profile({len(self.rows)} rows)"


@dataclass(frozen=True, slots=True)
class OpCost:
    """The time of an op on a kind of device, in seconds, with the rung of the ladder (one of
    RUNGS).

    ``rel_err`` is the expected relative error (0.1 is 10 %, None: unknown), ``basis`` the source of
    an estimate.
    """

    seconds: Fraction
    rung: str
    rel_err: float | None = None
    basis: str = ""


@dataclass(frozen=True, slots=True)
class CostMiss:
    """Ops whose time was estimated: all ops of one kind with one cost on one kind of device.

    ``op`` is the first name of them, ``count`` their number, ``seconds`` the sum of their times.
    """

    op: str
    kind: str
    device_kind: str
    count: int
    seconds: float
    rung: str
    rel_err: float | None = None
    basis: str = ""
