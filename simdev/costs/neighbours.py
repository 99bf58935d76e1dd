"""Times from the nearest measured rows: their ratio to the fitted roofline, in log-shape space.

The space has the logarithms of FLOPs, bytes read and bytes written. An op of another kind, and a
variant of the same kind (other attributes or ranks), lies farther off by a fixed distance. The
answer is the roofline of the op asked for, times the geometric mean of measured / roofline over its
eight nearest rows of the op class, each weighted by the inverse fourth power of its distance. At a
measured point the rows that lie there answer alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log

import numpy as np
from numpy.typing import NDArray

from .roofline import Load

Floats = NDArray[np.float64]

NEAREST = 8
OTHER_KIND = 3.0  # distance: e^3 is a factor of 20 in size
OTHER_VARIANT = 0.5
_SAMPLE = 256  # rows that are left out in turn
_WINDOW = 16  # rows at about the same distance that tell the error there
# distances that differ by less are equal: the order of rows decides, not the last bit of a
# logarithm
_GRAIN = 1e-9


@dataclass(frozen=True, slots=True)
class Found:
    """An answer: the log of measured / roofline, and the distance of the nearest row."""

    log_ratio: float
    distance: float


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The measured rows of one op class on one kind of device; ``log_ratios`` are log(measured /
    roofline).
    """

    loads: Sequence[Load]
    log_ratios: Floats

    @cached_property
    def _places(self) -> Floats:
        return np.array([_place(load) for load in self.loads])

    @cached_property
    def _codes(self) -> dict[str, dict[str, int]]:
        kinds: dict[str, int] = {}
        variants: dict[str, int] = {}
        for load in self.loads:
            kinds.setdefault(load.kind, len(kinds))
            variants.setdefault(load.dtype + load.variant, len(variants))
        return {"kind": kinds, "variant": variants}

    @cached_property
    def _kinds(self) -> NDArray[np.int64]:
        return np.array([self._codes["kind"][load.kind] for load in self.loads], np.int64)

    @cached_property
    def _variants(self) -> NDArray[np.int64]:
        return np.array(
            [self._codes["variant"][load.dtype + load.variant] for load in self.loads], np.int64
        )

    def find(self, load: Load, without: int = -1) -> Found:
        """The answer for an op, from rows other than ``without``."""
        squares = np.square(self._places - np.array(_place(load))).sum(axis=1) / 3
        squares += OTHER_KIND**2 * (self._kinds != self._codes["kind"].get(load.kind, -1))
        squares += OTHER_VARIANT**2 * (
            self._variants != self._codes["variant"].get(load.dtype + load.variant, -1)
        )
        if without >= 0:
            squares[without] = np.inf
        distances = np.round(np.sqrt(squares) / _GRAIN) * _GRAIN
        near = _smallest(distances, min(NEAREST, len(distances) - (without >= 0)))
        there = near[distances[near] == 0]
        if len(there):
            return Found(float(self.log_ratios[there].mean()), 0.0)
        weights = distances[near] ** -4.0
        return Found(
            float(weights @ self.log_ratios[near] / weights.sum()), float(distances[near[0]])
        )

    @cached_property
    def _left_out(self) -> tuple[Floats, Floats]:
        """Distance and relative error of rows answered from the others, by distance."""
        rows = np.unique(np.linspace(0, len(self.loads) - 1, _SAMPLE).astype(np.int64))
        found = [self.find(self.loads[row], int(row)) for row in rows]
        errors = np.abs(np.exp([one.log_ratio for one in found] - self.log_ratios[rows]) - 1)
        distances = np.array([one.distance for one in found])
        order = np.argsort(distances, kind="stable")
        return distances[order], errors[order]

    def expected_error(self, distance: float) -> float:
        """Mean relative error of the left-out rows whose nearest row was about as far off as
        this.
        """
        distances, errors = self._left_out
        start = int(np.searchsorted(distances, distance)) - _WINDOW // 2
        start = max(0, min(start, len(errors) - _WINDOW))
        return float(errors[start : start + _WINDOW].mean())


def _place(load: Load) -> tuple[float, float, float]:
    # math.log, one at a time: numpy's vector form may differ in its last bit between processors.
    return log(max(load.flops, 1)), log(max(load.read, 1)), log(max(load.written, 1))


def _smallest(values: Floats, count: int) -> NDArray[np.int64]:
    """Rows of the smallest values, in their order; equal ones by row."""
    limit = np.partition(values, count - 1)[count - 1]
    rows = np.flatnonzero(values <= limit)
    return rows[np.argsort(values[rows], kind="stable")][:count]
