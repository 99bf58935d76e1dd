"""The three scalars of a kind of device and an op class, fitted to measured rows by least mean |log
error|.

The error |log(predicted / measured)| treats twice too slow and twice too fast alike, and its mean
is not drawn by outliers as squares would be. It is neither smooth nor convex, so the fit starts
from the best of a grid that the rows themselves span, and looks about with halving steps in all 26
directions of the three logarithms.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
from numpy.typing import NDArray

from .roofline import Scalars

Floats = NDArray[np.float64]

FEWEST = 6  # rows that a fit needs: twice the number of its scalars
FEWEST_OF_KIND = 2  # rows of one kind that tell how far it is off its class, and how sure that is
_MOST = 500  # rows that a fit looks at: more of them move it by less than the noise
_STARTS, _FOLDS = 4, 5
_FIRST_STEP, _NEAR_STEP, _LAST_STEP = 1.0, 0.1, 1e-5
_DIRECTIONS = np.array([d for d in product((-1.0, 0.0, 1.0), repeat=3) if any(d)])
_QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
_TINY = -700.0  # logarithm of a rate that never binds


@dataclass(frozen=True, slots=True)
class Points:
    """Measured rows as columns: seconds at the peak compute and memory rates, and the seconds
    measured (all > 0).
    """

    compute: Floats
    memory: Floats
    seconds: Floats

    def __len__(self) -> int:
        return len(self.seconds)

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_] | slice) -> Points:
        """Some of the rows."""
        return Points(self.compute[rows], self.memory[rows], self.seconds[rows])


def predicted(scalars: Scalars, points: Points) -> Floats:
    """Seconds that the three scalars say for each point."""
    bound = np.maximum(points.compute / scalars.compute, points.memory / scalars.memory)
    return np.asarray(scalars.overhead + bound, np.float64)


@dataclass(frozen=True, eq=False)
class Fit:
    """The scalars fitted to some points; ``prior`` tells what they do not show.

    Fewer than FEWEST points cannot tell three scalars: they tell by which factor their prior is
    off.
    """

    points: Points
    prior: Scalars | None = None

    @cached_property
    def scalars(self) -> Scalars:
        """The scalars of least mean |log error|."""
        return self._of(self.points)

    @cached_property
    def error(self) -> float:
        """Mean relative error on points left out, in five folds (one a point below ten).

        Needs two points.
        """
        folds = _FOLDS if len(self.points) >= 2 * _FOLDS else len(self.points)
        fold, errors = np.arange(len(self.points)) % folds, []
        for part in range(folds):
            left_out = self.points.take(fold == part)
            scalars = self._of(self.points.take(fold != part), self.scalars)
            errors.append(np.abs(predicted(scalars, left_out) / left_out.seconds - 1))
        return float(np.concatenate(errors).mean())

    def _of(self, points: Points, start: Scalars | None = None) -> Scalars:
        if len(self.points) < FEWEST and self.prior is not None:
            return stretched(self.prior, points)
        return fit_scalars(points, self.prior, start)


def stretched(scalars: Scalars, points: Points) -> Scalars:
    """The scalars slowed down by one factor: the geometric mean of measured / predicted."""
    factor = float(np.exp(np.log(points.seconds / predicted(scalars, points)).mean()))
    return Scalars(scalars.compute / factor, scalars.memory / factor, scalars.overhead * factor)


def fit_scalars(
    points: Points, prior: Scalars | None = None, start: Scalars | None = None
) -> Scalars:
    """The scalars of least mean |log error| over the points (at least one).

    A rate that binds at fewer than two points is not told by them: it is taken from ``prior`` where
    there is one, and is never slower than the fastest point shows. ``start`` spares the grid.
    """
    thin = points.take(slice(None, None, -(-len(points) // _MOST)))
    if start is None:
        starts, step = _grid(thin), _FIRST_STEP
    else:
        # Folds differ little from the whole: a short descent from its scalars does.
        rates = [start.compute, start.memory, 1 / max(start.overhead, 1e-12)]
        starts, step = -np.log(np.array([rates])), _NEAR_STEP
    ends = np.array([_descended(thin, corner, step) for corner in starts])
    return _settled(thin, np.exp(ends[int(np.argmin(_errors(thin, ends)))]), prior)


def _errors(points: Points, logs: Floats) -> Floats:
    """Mean |log error| for each row of ``logs``: log seconds per ideal second of compute and
    memory, log overhead.
    """
    slopes = np.exp(logs)
    bound = np.maximum(slopes[:, :1] * points.compute, slopes[:, 1:2] * points.memory)
    errors = np.abs(np.log((slopes[:, 2:] + bound) / points.seconds)).mean(axis=1)
    # Logarithms may differ in their last bit between processors; what they decide must not.
    return np.asarray(np.round(errors, 10), np.float64)


def _grid(points: Points) -> Floats:
    """The best starts among the slopes and overheads that single points would explain."""
    least = points.seconds.min()
    overheads = [np.log(least) - 7, *np.log(np.quantile(points.seconds, _QUANTILES[:-1]))]
    corners = np.array(
        list(product(_slopes(points, points.compute), _slopes(points, points.memory), overheads))
    )
    order = np.argsort(_errors(points, corners), kind="stable")
    return corners[order[:_STARTS]]


def _slopes(points: Points, ideal: Floats) -> list[float]:
    some = ideal > 0
    return (
        list(np.log(np.quantile(points.seconds[some] / ideal[some], _QUANTILES)))
        if some.any()
        else [_TINY]
    )


def _descended(points: Points, start: Floats, step: float) -> Floats:
    """Steps to the best neighbour, halved where none is better."""
    here, error = start, float(_errors(points, start[None])[0])
    while step > _LAST_STEP:
        around = here + step * _DIRECTIONS
        errors = _errors(points, around)
        best = int(np.argmin(errors))
        if errors[best] < error:
            here, error = around[best], float(errors[best])
        else:
            step /= 2
    return here


def _settled(points: Points, slopes: Floats, prior: Scalars | None) -> Scalars:
    """The scalars of fitted slopes (seconds per ideal second) and overhead, to five digits."""
    by_compute, by_memory = slopes[0] * points.compute, slopes[1] * points.memory
    matters = np.maximum(by_compute, by_memory) > slopes[2] / 10
    bounds = (
        (points.compute, by_compute > by_memory, prior.compute if prior else 0.0),
        (points.memory, by_memory >= by_compute, prior.memory if prior else 0.0),
    )
    rates = [
        float(1 / slope)
        if np.count_nonzero(matters & binds) >= 2
        else _shown(points, ideal, slopes[2], default)
        for slope, (ideal, binds, default) in zip(slopes, bounds, strict=False)
    ]
    return Scalars(*(float(f"{value:.4e}") for value in (*rates, slopes[2])))


def _shown(points: Points, ideal: Floats, overhead: float, default: float) -> float:
    """A rate at which this bound slows no point that lasts clearly longer than the overhead; the
    default if faster.
    """
    rest = points.seconds - overhead
    some = rest > overhead / 10
    return max(default, float((ideal[some] / rest[some]).max(initial=0.0))) or 1.0
