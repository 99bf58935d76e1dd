"""What measured rows say of how far an op is off its roofline: kriging of the logarithm.

ln(measured / roofline) is taken as a random field over the logarithms of an op's extents (of its
bytes where it has none), whose correlation falls as exp(-distance), and by fixed factors where the
kind, the dtype or the variant (attributes, ranks) differ. The answer for an op is the field's
expectation given the nearest rows (simple kriging with a nugget, which the rows tell: Rasmussen,
Williams, "Gaussian Processes for Machine Learning", 2006, equation 2.25); at a measured point the
rows that lie there answer alone. Far from all rows it is 0: the roofline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..nouns.semantics.keys import Load
from .fit import Floats

NEAREST = 64  # rows that answer together: more of them change nothing
RANGE = 3.0  # distance at which the correlation has fallen to 1/e: a factor of e^3 in size
RANGE_OF_BYTES = 1.0  # the same of ops that have none: a cache ends within a factor of e
OTHER_ALIGNMENT = 3.0  # distance of rows that no vector divides from those that whole ones do
OTHER_KIND, OTHER_DTYPE, OTHER_VARIANT = 0.5, 0.5, 0.8  # factors of the correlation
# Variance of a row beside the field's: how unlike calls of one op are, and kernels that a library
# chooses for sizes nearly alike. Of ops that have extents the one that tells rows left out best.
NUGGETS = (0.002, 0.03, 0.3, 1.0)
# Correlations that differ by less are equal: the order of rows decides, not the last bit of a
# logarithm.
_GRAIN = 1e-9
_LEFT_OUT = 400  # rows that are left out in turn


class Interpolation(NamedTuple):
    """The log of measured / roofline, its variance (of the field's, 0 to 1), and the distance of
    the nearest row of the op's kind.
    """

    log_ratio: float
    variance: float
    distance: float


class Neighbours:
    """An index of measured rows, whose loads have equally many extents; ``log_ratios`` are
    log(measured / roofline) of the ``loads``.
    """

    def __init__(self, loads: Sequence[Load], log_ratios: Floats) -> None:
        self.loads, self.log_ratios = loads, log_ratios
        self._places = np.array([place(load) for load in loads])
        # Codes, not texts: a variant is a line of JSON, and thousands of rows are compared at once.
        self._lookup: tuple[dict[str, int], ...] = ({}, {}, {})
        numbered = (
            [
                codes.setdefault(name, len(codes))
                for codes, name in zip(self._lookup, _names(load), strict=True)
            ]
            for load in loads
        )
        self._codes = np.array(list(numbered), np.int64)

    def find(self, load: Load) -> Interpolation:
        """The answer for an op."""
        codes = np.array([self._coded(load)], np.int64)
        at = np.array([place(load)])
        likeness, distances = (row[0] for row in self._compared(at, codes, slice(None)))
        near = _largest(likeness, min(NEAREST, len(likeness)))
        there = near[likeness[near] == 1]
        if len(there):
            return Interpolation(float(self.log_ratios[there].mean()), 0.0, 0.0)
        among, _ = self._compared(self._places[near], self._codes[near], near)
        weights = np.linalg.solve(among + self.nugget * np.eye(len(near)), likeness[near])
        same = distances[self._codes[:, 0] == codes[0, 0]]
        return Interpolation(
            float(weights @ self.log_ratios[near]),
            max(0.0, 1 - float(weights @ likeness[near])),
            float(same.min()) if len(same) else float(distances.min()),
        )

    @cached_property
    def nugget(self) -> float:
        """The one of NUGGETS that errs least on rows left out, the least of equal ones."""
        if not self.loads[0].extents:
            # A pass over bytes has one kernel.
            return NUGGETS[0]
        errors = [round(float(np.abs(left[1]).mean()), 9) for left in self._left_out.values()]
        return NUGGETS[errors.index(min(errors))]

    @property
    def left_out(self) -> tuple[Floats, Floats]:
        """Variances and errors of the log ratios of rows, each answered from the others."""
        return self._left_out[self.nugget]

    @cached_property
    def _left_out(self) -> Mapping[float, tuple[Floats, Floats]]:
        """Those by nugget, each of all rows at once from the inverse of their correlations
        (Rasmussen, Williams, equation 5.12).
        """
        rows = thinned(len(self.loads))
        among, _ = self._compared(self._places[rows], self._codes[rows], rows)
        known = {}
        for nugget in NUGGETS:
            inverse = np.linalg.inv(among + nugget * np.eye(len(rows)))
            spread: Floats = 1 / np.diag(inverse)
            errors = -(inverse @ self.log_ratios[rows]) * spread
            known[nugget] = np.maximum(spread - nugget, 0.0), errors
        return known

    def expected(self, loads: Sequence[Load]) -> tuple[Floats, Floats]:
        """Variances and log ratios of several ops, from all rows together."""
        codes = np.array([self._coded(load) for load in loads], np.int64)
        places = np.array([place(load) for load in loads])
        likeness, _ = self._compared(places, codes, slice(None))
        among, _ = self._compared(self._places, self._codes, slice(None))
        weights = np.linalg.solve(among + self.nugget * np.eye(len(self.loads)), likeness.T)
        variances = 1 - np.einsum("pr,rp->p", likeness, weights)
        return np.maximum(variances, 0.0), self.log_ratios @ weights

    def _coded(self, load: Load) -> list[int]:
        names = zip(self._lookup, _names(load), strict=True)
        return [known.get(name, -1) for known, name in names]

    def _compared(
        self, places: Floats, codes: NDArray[np.int64], rows: NDArray[np.int64] | slice
    ) -> tuple[Floats, Floats]:
        """Correlations and distances [p, r] of places [p, d] and their codes with some rows."""
        apart = places[:, None, :] - self._places[rows][None, :, :]
        distances = np.sqrt(np.square(apart).sum(axis=2))
        likeness = np.exp(-distances)
        for kind, factor in enumerate((OTHER_KIND, OTHER_DTYPE, OTHER_VARIANT)):
            alike = codes[:, None, kind] == self._codes[rows][None, :, kind]
            likeness = np.where(alike, likeness, likeness * factor)
        return np.round(likeness / _GRAIN) * _GRAIN, distances * RANGE


def thinned(count: int) -> NDArray[np.int64]:
    """Rows of many, evenly: so many as errors are told from."""
    return np.unique(np.linspace(0, count - 1, min(count, _LEFT_OUT)).astype(np.int64))


def place(load: Load) -> tuple[float, ...]:
    """Where an op lies: logarithms of its extents, else of its bytes, in units of RANGE."""
    sizes = load.extents or (max(load.read, 1), max(load.written, 1))
    reach = RANGE if load.extents else RANGE_OF_BYTES
    # math.log, one at a time: numpy's vector form may differ in its last bit between processors.
    return (*(log(size) / reach for size in sizes), load.aligned * OTHER_ALIGNMENT / RANGE)


def _names(load: Load) -> tuple[str, str, str]:
    return load.family, load.dtype, load.variant


def _largest(values: Floats, count: int) -> NDArray[np.int64]:
    """Rows of the largest values, in their order; equal ones by row."""
    # Not argpartition: it leaves open which of equal values come first.
    limit = np.partition(values, len(values) - count)[len(values) - count]
    rows = np.flatnonzero(values >= limit)
    return rows[np.argsort(-values[rows], kind="stable")][:count]
