"""Measured times of operators, and the cost model that answers from them.

A Profile holds rows as they were measured, found by a key: what the op computes (kind, attributes, operand shapes and
dtypes, output shapes, phase) on which kind of device. A CostModel asks the graph first (``Op.time``), then the
profiles in order; what nobody measured is None, never a guess.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

from .errors import InputError
from .graph import Graph

PHASE_CODES = {"forward": "fwd", "backward": "bwd", "update": "opt"}
RUNGS = ("given", "measured", "interpolated", "fitted", "roofline")
_KEY = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=str)


def profile_key(
    kind: str,
    attrs: Mapping[str, Any],
    operands: Sequence[Sequence[int] | None],
    dtypes: Sequence[str | None],
    outputs: Sequence[Sequence[int] | None],
    phase: str,
    device: str,
) -> str:
    """Canonical JSON of everything that tells one measured operator from another."""
    shapes = [list(shape) if shape is not None else None for shape in operands]
    out = [list(shape) if shape is not None else None for shape in outputs]
    parts = [device, kind, phase, dict(attrs), shapes, list(dtypes), out]
    return _KEY.encode(parts)


def op_key(graph: Graph, position: int, device_kind: str) -> str:
    """Key of an op of a graph on a kind of device.

    The attributes "in" and "dt" (operand shapes and dtypes as executed) replace those of the tensors read, where
    views were folded away.
    """
    op = graph.ops[position]
    operands = graph.operands[position]
    attrs = {name: value for name, value in op.attrs.items() if name not in ("in", "dt")}
    shapes = op.attrs.get("in", [tensor.shape for tensor in operands])
    dtypes = op.attrs.get("dt", [tensor.dtype for tensor in operands])
    outputs = [tensor.shape for tensor in op.outputs]
    return profile_key(op.kind, attrs, shapes, dtypes, outputs, PHASE_CODES[op.phase], device_kind)


@dataclass(frozen=True, slots=True)
class Row:
    """One measured operator: its median time in seconds, and what was written about it.

    ``source`` tells how the time was found ("measured", or another of RUNGS), ``rel_err`` its relative error (0.1 is
    10 %, None: not told), ``details`` is the whole row.
    """

    key: str
    seconds: Fraction
    source: str = "measured"
    rel_err: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Profile:
    """Rows by key, with the header that tells how they were measured."""

    header: Mapping[str, Any]
    rows: Mapping[str, Row]

    @classmethod
    def of_rows(cls, header: Mapping[str, Any], rows: Sequence[Row]) -> Profile:
        """From rows in file order. Raises InputError where two rows have one key."""
        found: dict[str, int] = {}
        problems = []
        for i, row in enumerate(rows):
            if found.setdefault(row.key, i) != i:
                problems.append(f"rows[{i}]: the same key as rows[{found[row.key]}]: {row.key[:120]}")
        if problems:
            raise InputError(problems)
        return cls(header, {row.key: row for row in rows})

    def __repr__(self) -> str:
        return f"Profile({len(self.rows)} rows)"


@dataclass(frozen=True, slots=True)
class OpCost:
    """The time of an op on a kind of device, in seconds, with the rung of the ladder that answered (one of RUNGS).

    ``rel_err`` is its relative error (0.1 is 10 %, None: not told).
    """

    seconds: Fraction
    rung: str
    rel_err: float | None = None


@dataclass(frozen=True)
class CostModel:
    """Where the time of an op comes from: the graph itself, else the first profile that has the op's key."""

    profiles: tuple[Profile, ...] = ()

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of device of which some profile has a row."""
        return tuple(dict.fromkeys(str(json.loads(key)[0]) for profile in self.profiles for key in profile.rows))

    def cost(self, graph: Graph, position: int, device_kind: str) -> OpCost | None:
        """Cost of one op of the graph on a kind of device, or None where nothing is known."""
        seconds = graph.ops[position].seconds_on(device_kind)
        if seconds is not None:
            return OpCost(seconds, "given")
        if not self.profiles:
            return None
        key = op_key(graph, position, device_kind)
        for profile in self.profiles:
            row = profile.rows.get(key)
            if row is not None:
                return OpCost(row.seconds, row.source if row.source in RUNGS else "fitted", row.rel_err)
        return None
