"""The measured rows of one op class on one kind of device, of all dtypes, as a surface that any op
of the class has a place on.

An op's time is its roofline, times what the nearest rows say that rooflines are off
(``Neighbours``). Rows of another dtype take part by the ratio of the two dtypes' rooflines: an op's
demands are reckoned in seconds at what the datasheet says is reached in its dtype. The roofline is
one whose rates grow with the extents (``halves``), fitted to the class, then to the forward of a
kind with its gradients, whose blocks lie alike, then to the kind, then to the kind in its dtype,
each with the one before as its prior; where three scalars by kind and dtype
(``Group``) err clearly less on rows left out, it is theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from math import exp, log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..nouns.semantics import traits_of
from ..nouns.semantics.dtype import bits_of
from ..nouns.semantics.keys import Load
from .fit import Floats
from .groups import Group
from .halves import (
    HALF,
    SPREAD_OF_CLASS,
    SPREAD_OF_DTYPE,
    SPREAD_OF_FORWARD,
    SPREAD_OF_KIND,
    Demands,
    Prior,
    fitted,
    log_seconds,
)
from .neighbours import Neighbours, thinned
from .roofline import Scalars, ideal_seconds

_CLEARLY = 0.5  # a plainer roofline has to err by so much less: most kernels do slow down
_CLOSE = 0.05  # mean error of rows that may keep to it
_WIDE = 32  # bits of the elements by which what slows a pass over memory is reckoned
_FOLDS, _WINDOW = 5, 16  # parts of the rows left out; rows that are about as unsure


def _mean_error(neighbours: Neighbours) -> float:
    return round(float(np.abs(neighbours.left_out[1]).mean()), 9)


class Answer(NamedTuple):
    """Seconds, their expected relative error, and how far off the nearest row of the kind is."""

    seconds: float
    error: float
    distance: float


class Surface:
    """Rows of one class and device, with equally many extents, at least one; ``group_of`` gives the
    group of any dtype.
    """

    def __init__(
        self, loads: Sequence[Load], log_measured: Floats, group_of: Callable[[str], Group]
    ) -> None:
        self.loads, self.log_measured, self.group_of = loads, log_measured, group_of
        self._families = np.array([load.family for load in loads])
        self._forwards = np.array([load.forward for load in loads])
        self._dtypes = np.array([load.dtype for load in loads])
        self._fitted: dict[tuple[str, ...], Floats] = {}

    def answer(self, load: Load) -> Answer:
        """The time of an op with as many extents."""
        log_ratio, variance, distance = self._neighbours.find(load)
        roofline = self._plain if self._is_plain else self._growing
        return Answer(exp(roofline(load) + log_ratio), self._error(variance), distance)

    @cached_property
    def _near_plain(self) -> Neighbours:
        roofs = np.array([self._plain(load) for load in self.loads])
        return Neighbours(self.loads, self.log_measured - roofs)

    @cached_property
    def _near_growing(self) -> Neighbours:
        return Neighbours(self.loads, self.log_measured - self._growing_rows())

    @cached_property
    def _is_plain(self) -> bool:
        """Whether three scalars tell these rows clearly better."""
        growing = _mean_error(self._near_growing)
        # Only rows that keep to a roofline this closely may keep to a plainer one.
        return growing < _CLOSE and _mean_error(self._near_plain) < round(_CLEARLY * growing, 9)

    @property
    def _neighbours(self) -> Neighbours:
        return self._near_plain if self._is_plain else self._near_growing

    def _error(self, variance: float) -> float:
        """Mean relative error of the rows left out that were about as unsure."""
        deviations, errors = self._left_out
        apart = np.round(np.abs(deviations - np.sqrt(variance)), 6)
        return float(errors[np.argsort(apart, kind="stable")[:_WINDOW]].mean())

    @cached_property
    def _left_out(self) -> tuple[Floats, Floats]:
        """Standard deviations and relative errors of rows left out."""
        if self._is_plain:
            variances, errors = self._near_plain.left_out
        else:
            variances, errors = self._folded()
        return np.sqrt(variances), np.abs(np.exp(errors) - 1)

    def _folded(self) -> tuple[Floats, Floats]:
        """Variances and errors (of logarithms) of rows in five parts, each answered from the other
        four: few rows fit their own roofline better than another's.
        """
        rows = thinned(len(self.loads))
        if len(rows) < 2:
            return np.ones(1), np.ones(1)
        folds = np.arange(len(rows)) % min(_FOLDS, len(rows))
        variances, errors = np.empty(len(rows)), np.empty(len(rows))
        for part in range(folds.max() + 1):
            rest = rows[folds != part]
            others = Surface([self.loads[i] for i in rest], self.log_measured[rest], self.group_of)
            held = [self.loads[i] for i in rows[folds == part]]
            variance, log_ratio = others._near_growing.expected(held)
            roofs = np.array([others._growing(load) for load in held])
            variances[folds == part] = variance
            errors[folds == part] = log_ratio + roofs - self.log_measured[rows[folds == part]]
        return variances, errors

    def _plain(self, load: Load) -> float:
        """Logarithm of the seconds by three scalars."""
        seconds = self.group_of(load.dtype).seconds(load)
        return log(seconds) if seconds else 0.0

    def _growing(self, load: Load) -> float:
        """Logarithm of the seconds where rates grow with the extents."""
        return float(log_seconds(self._parameters(load), self._demanded([load]))[0])

    def _growing_rows(self) -> Floats:
        """Those of every row."""
        known = np.empty(len(self.loads))
        for load in {(load.family, load.dtype): load for load in self.loads}.values():
            rows = (self._families == load.family) & (self._dtypes == load.dtype)
            known[rows] = log_seconds(self._parameters(load), self._demands.take(rows))
        return known

    def _parameters(self, load: Load) -> Floats:
        """Of a kind in a dtype; by what is known of its like where it has no rows."""
        known = self._fit((), np.ones(len(self.loads), bool), self._prior)
        rows = self._forwards == load.forward
        known = self._fit((load.forward,), rows, Prior.around(known, SPREAD_OF_FORWARD))
        rows = self._families == load.family
        known = self._fit((load.forward, load.family), rows, Prior.around(known, SPREAD_OF_KIND))
        if len(set(self._dtypes)) < 2:
            return known
        key = (load.forward, load.family, load.dtype)
        rows = rows & (self._dtypes == load.dtype)
        return self._fit(key, rows, Prior.around(known, SPREAD_OF_DTYPE))

    def _fit(self, key: tuple[str, ...], rows: NDArray[np.bool_], prior: Prior) -> Floats:
        if key not in self._fitted:
            demands = self._demands.take(rows)
            self._fitted[key] = fitted(demands, self.log_measured[rows], prior)
        return self._fitted[key]

    @cached_property
    def _demands(self) -> Demands:
        return self._demanded(self.loads)

    def _demanded(self, loads: Sequence[Load]) -> Demands:
        times = []
        for load in loads:
            group = self.group_of(load.dtype)
            reached = group.datasheet or Scalars(1.0, 1.0, 0.0)
            compute, memory = ideal_seconds(load, group.spec)
            times.append((compute / reached.compute, memory / reached.memory))
        compute, memory = np.array(times).T
        extents = np.log(np.array([load.extents for load in loads], np.float64))
        computes = bool(traits_of(loads[0].kind).computes)
        weight = [1.0 if computes else _WIDE / bits_of(load.dtype) for load in loads]
        return Demands(compute, memory, extents, np.array(weight), computes)

    @property
    def _prior(self) -> Prior:
        """The datasheet; without one what three scalars say."""
        group = self.group_of(self.loads[0].dtype)
        if group.datasheet is not None:
            rates = [1.0, 1.0, group.datasheet.overhead]
        elif group.fit is not None:
            known = group.fit.scalars
            rates = [known.compute, known.memory, known.overhead]
        else:
            rates = [1.0, 1.0, 1e-6]
        halves = [HALF] * len(self.loads[0].extents)
        return Prior.around(np.log(np.maximum([*rates, *halves], 1e-9)), SPREAD_OF_CLASS)
