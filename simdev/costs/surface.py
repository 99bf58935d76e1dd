"""The rung "interpolated": an op's time from the measured rows of its class on a kind of device.

The *extents* of an op (such as m, n and k of a product) are its coordinates, as logarithms. Its
time is a roofline times a correction, which comes from the nearest measured rows (``Neighbours``).

In this roofline the rates grow with the extents: a small op reaches less of the peak. The rates,
the overhead and the extents at which half of a rate is reached are fitted four times, each fit the
prior of the next: to all rows of the class; to a forward kind together with its gradients, since
these launch equal grids of thread blocks; to the kind; to the kind in its dtype. Rows of other
dtypes can be used because demands are in seconds at the rates that each dtype attains by the
datasheet. Where the plainer roofline of three scalars (``groups.py``) has a clearly smaller error
on rows that were left out, it is used instead.

``Estimates`` of ``costs/ladder.py`` is the only caller. Tests are ``tests/costs/test_surfaces.py``
and ``tests/costs/test_estimates.py``; ``test_profile_accuracy.py`` holds the errors that
``docs/reference/errors.md`` states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..nouns.semantics import traits_of
from ..nouns.semantics.dtype import bits_of
from ..nouns.semantics.keys import Load
from ..nouns.taskgraph import Floats
from .groups import Group
from .roofline import Scalars, ideal_seconds

# A roofline whose rates grow with the extents of an op.
# A vector machine of Hockney's reaches half of its rate at a length n_1/2, and n / (n + n_1/2) of
# it at length n (R. W. Hockney, C. R. Jesshope, "Parallel Computers 2", 1988, section 1.3).
# Kernels are alike in each of their extents: tiles that are cut off, threads without work, sums
# too short to hide the latency. So
#
#     time = overhead + max(F / (e1 x peak) x slow, B / (e2 x bandwidth))
#     slow = 1 + w (prod(1 + h_j / x_j) - 1)
#
# with x_j the extents and h_j their half lengths. Kinds that compute (a trait) are slowed in the
# term F and have w = 1. The others, which pass over memory, are slowed in the term B: threads
# without work cost by the element, however few bytes it has, so w is 4 bytes over those of an
# element. The parameters minimise a sum of weighted |log error| and a normal prior on their
# logarithms, from which few rows do not lead far away. They are found by steps of Levenberg and
# Marquardt on squared errors, whose weights are set anew in each step so that they add up to
# absolute ones.

HALF = 4.0  # prior of a half length; a factor of e^2 beside it is one standard deviation
SPREAD_OF_CLASS = (1.0, 2.0)  # of rates and overhead, and of half lengths, as logarithms
SPREAD_OF_FORWARD = (0.7, 1.5)
SPREAD_OF_KIND = (0.3, 0.3)
SPREAD_OF_DTYPE = (0.1, 0.15)
_LONGER_COUNT_MORE = 0.3  # weight of a row: its time to this power
_SMALL, _SCALE = 0.02, 0.2  # |log error| below which squares count; one that costs 1
_STEPS, _DAMPINGS, _LONGEST, _ENOUGH = 30, 8, 1.0, 1e-7


@dataclass(frozen=True, eq=False, slots=True)
class Demands:
    """The demands of n ops: seconds [n] for ``compute`` and ``memory`` at the rates that the
    datasheet attains, logarithms of ``extents`` [n, q], and the ``weight`` [n] of the slowdown.
    """

    compute: Floats
    memory: Floats
    extents: Floats
    weight: Floats
    slows_compute: bool

    def take(self, rows: NDArray[np.bool_]) -> Demands:
        """The demands of some of the ops."""
        columns = (self.compute, self.memory, self.extents, self.weight)
        compute, memory, extents, weight = (column[rows] for column in columns)
        return Demands(compute, memory, extents, weight, self.slows_compute)


@dataclass(frozen=True, eq=False, slots=True)
class Prior:
    """A normal prior of the logarithms of e1, e2, overhead and half lengths: mean and standard
    deviation.
    """

    centre: Floats
    spread: Floats

    @classmethod
    def around(cls, centre: Floats, spread: tuple[float, float]) -> Prior:
        """A prior with one spread for all rates and overhead, and another for all half lengths."""
        rates, halves = spread
        return cls(centre, np.array([rates] * 3 + [halves] * (len(centre) - 3)))


def log_seconds(parameters: Floats, demands: Demands) -> Floats:
    """Logarithms of the model's seconds [n]."""
    return _model(parameters, demands)[0]


def fitted(demands: Demands, log_measured: Floats, prior: Prior) -> Floats:
    """The parameters [3 + q] fitted to measured rows; the prior's where there are none."""
    here = prior.centre.copy()
    if not len(log_measured):
        return here
    weights = np.exp(_LONGER_COUNT_MORE * (log_measured - log_measured.max()))
    weights /= weights.mean() * _SCALE
    damping, cost = 1e-2, _cost(here, demands, log_measured, weights, prior)
    for _ in range(_STEPS):
        predicted, slopes = _model(here, demands)
        errors = predicted - log_measured
        scaled = slopes * (weights / np.maximum(np.abs(errors), _SMALL))[:, None]
        off = (here - prior.centre) / prior.spread**2
        curvature = scaled.T @ slopes + np.diag(prior.spread**-2)
        descent = -(scaled.T @ errors + off)
        for _ in range(_DAMPINGS):
            damped = curvature + damping * np.diag(np.diag(curvature))
            step = np.clip(np.linalg.solve(damped, descent), -_LONGEST, _LONGEST)
            there = _cost(here + step, demands, log_measured, weights, prior)
            if there < cost:
                break
            damping *= 4
        else:
            break
        here, gained, cost = here + step, cost - there, there
        damping = max(damping / 8, 1e-6)
        if gained < _ENOUGH:
            break
    # Rounded to five digits: last bits of sums differ between processors.
    return np.round(here, 5)


def _cost(
    parameters: Floats, demands: Demands, log_measured: Floats, weights: Floats, prior: Prior
) -> float:
    errors = np.abs(_model(parameters, demands)[0] - log_measured)
    flat = np.where(errors < _SMALL, errors**2 / (2 * _SMALL), errors - _SMALL / 2)
    away = ((parameters - prior.centre) / prior.spread) ** 2
    return float(weights @ flat + away.sum() / 2)


def _model(parameters: Floats, demands: Demands) -> tuple[Floats, Floats]:
    """The logarithms of the seconds [n], and their derivatives by the parameters [n, 3 + q]."""
    (compute, memory, overhead), halves = np.exp(parameters[:3]), np.exp(parameters[3:])
    shares = halves / np.exp(demands.extents)
    grown = demands.weight * np.prod(1 + shares, axis=1)
    slow = 1 - demands.weight + grown
    by_compute, by_memory = demands.compute / compute, demands.memory / memory
    if demands.slows_compute:
        by_compute = by_compute * slow
    else:
        by_memory = by_memory * slow
    computes = by_compute > by_memory
    bound = np.where(computes, by_compute, by_memory)
    seconds = overhead + bound
    share = bound / seconds
    slowed = share * (computes == demands.slows_compute) * grown / slow
    slopes = np.column_stack(
        [-share * computes, -share * ~computes, overhead / seconds]
        + [slowed * (column / (1 + column)) for column in shares.T]
    )
    return np.log(seconds), slopes


# How far an op is off its roofline, from measured rows: kriging (a Gaussian process) of the
# logarithm. ln(measured / roofline) is taken as a random field over the logarithms of an op's
# extents, or of its bytes where it has no extents. Its correlation falls as exp(-distance), and by
# fixed factors where the kind, the dtype or the variant (attributes, ranks) differ. The answer for
# an op is the expectation of the field given the nearest rows (Rasmussen, Williams, "Gaussian
# Processes for Machine Learning", 2006, equation 2.25). The variance of their noise, the *nugget*,
# is chosen by the rows. At a measured point only the rows that lie there answer. Far from all rows
# the expectation is 0, so the answer is the roofline.

NEAREST = 64  # rows that answer together: more of them change nothing
RANGE = 3.0  # distance at which the correlation has fallen to 1/e: a factor of e^3 in size
RANGE_OF_BYTES = 1.0  # the same of ops that have none: a cache ends within a factor of e
OTHER_ALIGNMENT = 3.0  # distance of ops whose tensor rows are aligned to 16 bytes from others
OTHER_KIND, OTHER_DTYPE, OTHER_VARIANT = 0.5, 0.5, 0.8  # factors of the correlation
# Candidates for the noise variance of a row, relative to the field's: calls of one op differ, and a
# library chooses other kernels for nearly equal sizes. For ops with extents the candidate with the
# smallest leave-one-out error is used.
NUGGETS = (0.002, 0.03, 0.3, 1.0)
# Correlations that differ by less are equal, so that the order of rows decides and not the last bit
# of a logarithm.
_GRAIN = 1e-9
_LEFT_OUT = 400  # rows that are left out in turn, evenly spaced: of all a matrix would be inverted


class Interpolation(NamedTuple):
    """The correction of an op by nearby rows: ln(measured / roofline), its variance (0: known, 1:
    no row is near), and the distance of the nearest row of the same kind.
    """

    log_ratio: float
    variance: float
    distance: float


class Neighbours:
    """An index of measured rows with equal numbers of extents; ``log_ratios`` are log(measured /
    roofline) of the ``loads``.
    """

    def __init__(self, loads: Sequence[Load], log_ratios: Floats) -> None:
        self.loads, self.log_ratios = loads, log_ratios
        self._places = np.array([place(load) for load in loads])
        # Numbers instead of texts: a variant is a line of JSON, and thousands of rows are compared.
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
        """The interpolated correction of an op."""
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
        """The candidate of NUGGETS with the least error on left-out rows; on a tie the first."""
        if not self.loads[0].extents:
            # Ops without extents are passes over bytes, with one kernel each.
            return NUGGETS[0]
        errors = [round(float(np.abs(left[1]).mean()), 9) for left in self._left_out.values()]
        return NUGGETS[errors.index(min(errors))]

    @property
    def left_out(self) -> tuple[Floats, Floats]:
        """Variances and errors of the log ratios of left-out rows, each answered from the
        others.
        """
        return self._left_out[self.nugget]

    @cached_property
    def _left_out(self) -> Mapping[float, tuple[Floats, Floats]]:
        """``left_out`` for each nugget, computed from the inverse of the correlations of all rows
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
        """The variances and log ratios of several ops, each from all rows."""
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
        """Correlations and distances [p, r] of places [p, d] with these codes to some rows."""
        apart = places[:, None, :] - self._places[rows][None, :, :]
        distances = np.sqrt(np.square(apart).sum(axis=2))
        likeness = np.exp(-distances)
        for kind, factor in enumerate((OTHER_KIND, OTHER_DTYPE, OTHER_VARIANT)):
            alike = codes[:, None, kind] == self._codes[rows][None, :, kind]
            likeness = np.where(alike, likeness, likeness * factor)
        return np.round(likeness / _GRAIN) * _GRAIN, distances * RANGE


def thinned(count: int) -> NDArray[np.int64]:
    """At most _LEFT_OUT row numbers, evenly spaced."""
    return np.unique(np.linspace(0, count - 1, min(count, _LEFT_OUT)).astype(np.int64))


def place(load: Load) -> tuple[float, ...]:
    """The coordinates of an op: logarithms of its extents, else of its bytes, in units of RANGE."""
    sizes = load.extents or (max(load.read, 1), max(load.written, 1))
    reach = RANGE if load.extents else RANGE_OF_BYTES
    # math.log for each: numpy's vector form may differ in its last bit between processors.
    return (*(log(size) / reach for size in sizes), load.aligned * OTHER_ALIGNMENT / RANGE)


def _names(load: Load) -> tuple[str, str, str]:
    return load.family, load.dtype, load.variant


def _largest(values: Floats, count: int) -> NDArray[np.int64]:
    """The rows of the largest values, largest first; rows of equal values in order."""
    # argpartition would leave open which of equal values come first.
    limit = np.partition(values, len(values) - count)[len(values) - count]
    rows = np.flatnonzero(values >= limit)
    return rows[np.argsort(-values[rows], kind="stable")][:count]


# The plain roofline (three scalars) is used only where its error is below the share _CLEARLY of the
# growing roofline's, and the growing roofline's mean error is below _CLOSE: most kernels do reach
# less of the peak when they are small.
_CLEARLY, _CLOSE = 0.5, 0.05
_WIDE = 32  # bits of an element at which the slowdown has weight 1
_FOLDS, _WINDOW = 5, 16  # folds; rows of the nearest variances whose errors are averaged


def _mean_error(neighbours: Neighbours) -> float:
    return round(float(np.abs(neighbours.left_out[1]).mean()), 9)


class Answer(NamedTuple):
    """Seconds, their expected (mean) relative error, and the distance of the nearest row of the
    kind.
    """

    seconds: float
    error: float
    distance: float


class Surface:
    """The measured rows (at least one) of one op class on one kind of device, all with the same
    number of extents, possibly 0. ``group_of`` gives the group of a dtype.
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
        """The time of an op that has the same number of extents as the rows."""
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
        """Whether the plain roofline fits these rows clearly better than the growing one."""
        growing = _mean_error(self._near_growing)
        # Only where a growing roofline fits this closely can a plain one fit better.
        return growing < _CLOSE and _mean_error(self._near_plain) < round(_CLEARLY * growing, 9)

    @property
    def _neighbours(self) -> Neighbours:
        return self._near_plain if self._is_plain else self._near_growing

    def _error(self, variance: float) -> float:
        """The expected error of an answer with this variance: the mean error of the left-out rows
        with the nearest variances.
        """
        deviations, errors = self._left_out
        apart = np.round(np.abs(deviations - np.sqrt(variance)), 6)
        return float(errors[np.argsort(apart, kind="stable")[:_WINDOW]].mean())

    @cached_property
    def _left_out(self) -> tuple[Floats, Floats]:
        """Standard deviations and relative errors of left-out rows."""
        if self._is_plain:
            variances, errors = self._near_plain.left_out
        else:
            variances, errors = self._folded()
        return np.sqrt(variances), np.abs(np.exp(errors) - 1)

    def _folded(self) -> tuple[Floats, Floats]:
        """Variances and errors (of logarithms) of rows in five folds, each answered from the other
        four. The roofline is fitted anew without the fold: few rows fit their own roofline too
        well.
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
        """The logarithm of the seconds by the plain roofline."""
        seconds = self.group_of(load.dtype).seconds(load)
        return log(seconds) if seconds else 0.0

    def _growing(self, load: Load) -> float:
        """The logarithm of the seconds by the growing roofline."""
        return float(log_seconds(self._parameters(load), self._demanded([load]))[0])

    def _growing_rows(self) -> Floats:
        """The logarithms of the seconds of every row by the growing roofline."""
        known = np.empty(len(self.loads))
        for load in {(load.family, load.dtype): load for load in self.loads}.values():
            rows = (self._families == load.family) & (self._dtypes == load.dtype)
            known[rows] = log_seconds(self._parameters(load), self._demands.take(rows))
        return known

    def _parameters(self, load: Load) -> Floats:
        """The parameters of a kind in a dtype, or of the next wider set that has rows."""
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
        """The prior of a class: the datasheet, or without one the three fitted scalars."""
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
