"""Measured times of operators: keys, rows, profiles, and the cost of an op as the ladder answers
it.

A Profile holds rows as they were measured, found by a key: what the op computes (kind, attributes,
operand shapes and dtypes, output shapes, phase) on which kind of device. ``files/profile.py`` reads
and writes them, ``ladder`` answers from them; RUNGS names the rungs of that ladder, which reports
(``report/measures/costs.py``) tell by these names.
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
well take twice as long, or next to nothing.
"""

ROOFLINE = "roofline"
"""The rung of the datasheet; large models and closed forms of collectives answer on it, too."""

RUNGS = ("given", "measured", "interpolated", "fitted", "scaled", ROOFLINE, MEMORY_PASS)
"""The rungs of the cost ladder, from the surest down."""

KNOWN = RUNGS[:2]
"""The rungs that are no estimates: all that ``strict`` lets pass."""


# A header is carried along and checked by nobody: it is whatever a tool wrote.
Header = Mapping[str, Any]
"""The header line of a profile, or an object in it."""


def fields_of(header: Header) -> Header:
    """The fields of the header line of a profile, under ``header`` or bare; empty without any."""
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
    """One measured operator: its median time in seconds, and what was written about it.

    ``source`` tells where the time comes from ("measured", or another of RUNGS), ``rel_err`` its
    relative error (0.1 is 10 %, None: not told), ``details`` is the whole row.
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
        """Kernels that a call launches; None where the row does not tell."""
        count = self.details.get("launches")
        return None if count is None else int(count)

    @property
    def tells_kernels(self) -> bool:
        """Whether it tells how many kernels a call launches and what they take."""
        return self.details.get("kernel_ns") is not None and bool(self.launches)

    def device_seconds(self, pace: Pace = PACE) -> Fraction:
        """Seconds that the op takes of its device.

        Those are its kernels' and a gap for each launch, where the row tells both (``kernel_ns``,
        ``launches``), else the median of the calls. Kernels that draw more power than the device
        keeps up, which one call alone does not show, take as much longer as the ``pace`` tells.
        """
        if not self.tells_kernels:
            return self.seconds
        seconds, flops = Fraction(self.details["kernel_ns"]) / 10**9, self.details.get("flops") or 0
        if pace.hot is not None and flops > pace.hot * seconds:
            seconds /= pace.clock
        return seconds + pace.gap * (self.launches or 0)


@dataclass(frozen=True)
class Profile:
    """Rows by key, with the header that tells how they were measured."""

    header: Header
    rows: Mapping[str, Row]

    def __post_init__(self) -> None:
        freeze(self, "header", "rows")

    @classmethod
    def of_rows(cls, header: Header, rows: Sequence[Row]) -> Profile:
        """From rows in file order. Raises InputError where two rows have one key."""
        first: dict[str, int] = {}
        refuse(
            f"rows[{i}]: the same key as rows[{first[row.key]}]: {row.key[:120]}"
            for i, row in enumerate(rows)
            if first.setdefault(row.key, i) != i
        )
        return cls(header, {row.key: row for row in rows})

    @property
    def about(self) -> Header:
        """The fields of its header (``fields_of``)."""
        return fields_of(self.header)

    @cached_property
    def device_kinds(self) -> tuple[str, ...]:
        """The kinds of device that its rows were measured on, in the order of their first rows."""
        # The kind is first in a key: there is no need to parse the rest.
        decode = json.JSONDecoder().raw_decode
        return tuple(dict.fromkeys(str(decode(key, 1)[0]) for key in self.rows))

    def __repr__(self) -> str:
        return f"Profile({len(self.rows)} rows)"


@dataclass(frozen=True, slots=True)
class OpCost:
    """The time of an op on a kind of device, in seconds, with the rung of the ladder that answered
    (one of RUNGS).

    ``rel_err`` is its expected relative error (0.1 is 10 %, None: not told), ``basis`` what an
    estimate rests on.
    """

    seconds: Fraction
    rung: str
    rel_err: float | None = None
    basis: str = ""


@dataclass(frozen=True, slots=True)
class CostMiss:
    """Ops whose time had to be estimated: all those of one kind and one cost on one kind of device.

    ``op`` is the first of them by name, ``count`` how many there are, ``seconds`` their time
    together.
    """

    op: str
    kind: str
    device_kind: str
    count: int
    seconds: float
    rung: str
    rel_err: float | None = None
    basis: str = ""
