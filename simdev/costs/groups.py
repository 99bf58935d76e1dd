"""The measured rows of one op class and dtype on one kind of device, and fits to them that estimate
other ops: three scalars with the least mean |log error|.

The error |log(predicted / measured)| is the same for twice too slow and twice too fast, and
outliers move its mean less than a mean of squares. It is neither smooth nor convex, so the fit
starts from the best points of a grid that the rows span, and searches with halving steps in all 26
directions of the three logarithms.

``Estimates`` (``ladder``) makes the groups, whose answers are the rung "fitted"; ``surface`` uses
them where rates do not grow with the extents.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
from numpy.typing import NDArray

from ..nouns.semantics import op_class
from ..nouns.semantics.keys import Load, load_of
from ..nouns.taskgraph import Floats
from .roofline import (
    DeviceSpec,
    Scalars,
    datasheet_scalars,
    ideal_seconds,
    is_covered,
    pace_of,
    rounded,
)
from .rows import OpCost, Profile, Row

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
    """Columns of measured rows: seconds at the peak compute rate, at the peak memory rate, and
    measured (all > 0).
    """

    compute: Floats
    memory: Floats
    seconds: Floats

    def __len__(self) -> int:
        return len(self.seconds)

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_] | slice) -> Points:
        """The points of some rows."""
        return Points(self.compute[rows], self.memory[rows], self.seconds[rows])


def predicted(scalars: Scalars, points: Points) -> Floats:
    """The seconds of each point by the three scalars."""
    bound = np.maximum(points.compute / scalars.compute, points.memory / scalars.memory)
    return np.asarray(scalars.overhead + bound, np.float64)


@dataclass(frozen=True, eq=False)
class Fit:
    """The scalars fitted to some points, with a ``prior`` for what the points do not determine.

    Fewer than FEWEST points cannot determine three scalars; they only give a common factor on the
    prior.
    """

    points: Points
    prior: Scalars | None = None

    @cached_property
    def scalars(self) -> Scalars:
        """The scalars with the least mean |log error|."""
        return self._of(self.points)

    @cached_property
    def error(self) -> float:
        """Mean relative error on left-out points, in five folds (below ten points, one point a
        fold).

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
    """The scalars with the least mean |log error| over the points (at least one).

    Points determine a rate only where it binds at two of them at least. Else the rate is the
    prior's, if there is one, and never slower than the fastest point shows. With ``start`` the grid
    is left out.
    """
    thin = points.take(slice(None, None, -(-len(points) // _MOST)))
    if start is None:
        starts, step = _grid(thin), _FIRST_STEP
    else:
        # Folds differ little from the whole, so a short descent from its scalars is enough.
        rates = [start.compute, start.memory, 1 / max(start.overhead, 1e-12)]
        starts, step = -np.log(np.array([rates])), _NEAR_STEP
    ends = np.array([_descended(thin, corner, step) for corner in starts])
    return _settled(thin, np.exp(ends[int(np.argmin(_errors(thin, ends)))]), prior)


def _errors(points: Points, logs: Floats) -> Floats:
    """Mean |log error| for each row of ``logs``: the logarithms of seconds per ideal second of
    compute and of memory, and of the overhead.
    """
    slopes = np.exp(logs)
    bound = np.maximum(slopes[:, :1] * points.compute, slopes[:, 1:2] * points.memory)
    errors = np.abs(np.log((slopes[:, 2:] + bound) / points.seconds)).mean(axis=1)
    # Rounded: last bits of logarithms differ between processors, and must not decide.
    return np.asarray(np.round(errors, 10), np.float64)


def _grid(points: Points) -> Floats:
    """The best starts among combinations of slopes and overheads that single points suggest."""
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
    """The end of a descent to the best neighbour; the step is halved where none is better."""
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
    """The scalars, to five digits, from fitted slopes (seconds per ideal second) and overhead."""
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
    """The fastest rate that some point clearly longer than the overhead requires, or ``default`` if
    that is faster.
    """
    rest = points.seconds - overhead
    some = rest > overhead / 10
    return max(default, float((ideal[some] / rest[some]).max(initial=0.0))) or 1.0


FEWEST_NEAR = 8  # rows of a dtype that the rung "interpolated" needs


@dataclass(frozen=True, eq=False)
class Group:
    """Measured rows of one op class and dtype on one kind of device: the load and the seconds of
    each.

    ``spec`` is the datasheet of the device, if there is one, ``chip`` the datasheet of the same
    chip under another power cap.
    """

    op_class: str
    dtype: str
    loads: Sequence[Load]
    seconds_measured: Sequence[float]
    spec: DeviceSpec | None = None
    chip: DeviceSpec | None = None

    @cached_property
    def points(self) -> Points:
        """The rows as columns."""
        ideal = np.array([ideal_seconds(load, self.spec) for load in self.loads], np.float64)
        compute, memory = ideal.reshape(-1, 2).T
        return Points(compute, memory, np.array(self.seconds_measured, np.float64))

    @cached_property
    def datasheet(self) -> Scalars | None:
        """The three scalars of the datasheet; None without one."""
        if self.spec is None:
            return None
        return datasheet_scalars(self.spec, self.op_class, self.dtype, self.chip)

    @cached_property
    def fit(self) -> Fit | None:
        """The fit to all rows of the op class; None where they are too few."""
        return Fit(self.points, self.datasheet) if len(self.loads) >= FEWEST else None

    @cached_property
    def _fits(self) -> Mapping[str, Fit]:
        """The fit to the rows of each kind, since kernels of one class may differ."""
        if self.fit is None:
            return {}
        kinds = np.array([load.kind for load in self.loads])
        return {
            kind: Fit(self.points.take(kinds == kind), self.fit.scalars)
            for kind, count in Counter(load.kind for load in self.loads).items()
            if count >= FEWEST_OF_KIND
        }

    def fit_of(self, kind: str) -> Fit | None:
        """The fit for a kind: by its own rows, else by the rows of its class."""
        return self._fits.get(kind, self.fit)

    @cached_property
    def datasheet_error(self) -> float | None:
        """Mean relative error of the datasheet alone on the rows."""
        if self.datasheet is None or not self.loads:
            return None
        ratios = predicted(self.datasheet, self.points) / self.points.seconds
        return float(np.abs(ratios - 1).mean())

    def seconds(self, load: Load) -> float | None:
        """Seconds by the fitted scalars, else by the datasheet's."""
        fit = self.fit_of(load.kind)
        scalars = fit.scalars if fit else self.datasheet
        return scalars.seconds(ideal_seconds(load, self.spec)) if scalars else None

    def fitted(self, load: Load) -> OpCost | None:
        """The answer of the rung "fitted", with its expected error; None where rows are too few."""
        fit = self.fit_of(load.kind)
        if fit is None:
            return None
        roof = fit.scalars.seconds(ideal_seconds(load, self.spec))
        return estimate(roof, "fitted", fit.error, f"{len(fit.points)} rows")


def estimate(seconds: float, rung: str, error: float | None, basis: str) -> OpCost:
    """A cost with its numbers rounded: seconds to six digits, the error to three."""
    return OpCost(rounded(seconds), rung, None if error is None else float(f"{error:.3g}"), basis)


def measured_rows(profiles: Iterable[Profile], device_kind: str) -> Iterator[Row]:
    """The rows that were measured on a kind of device; of rows with equal keys the first."""
    start, seen = device_prefix(device_kind), set()
    for profile in profiles:
        for key, row in profile.rows.items():
            if key.startswith(start) and key not in seen:
                seen.add(key)
                if row.source == "measured" and row.seconds > 0:
                    yield row


def device_prefix(device_kind: str) -> str:
    """The beginning of all keys of a kind of device."""
    return "[" + json.dumps(device_kind) + ","


def rows_by_class(profiles: Iterable[Profile], device_kind: str) -> Mapping[str, list[Row]]:
    """The measured rows of a kind of device by op class."""
    start, decoder = len(device_prefix(device_kind)), json.JSONDecoder()
    rows: dict[str, list[Row]] = {}
    for row in measured_rows(profiles, device_kind):
        # The kind follows the device in a key: reading it alone is a tenth of parsing the key.
        kind, _ = decoder.raw_decode(row.key, start)
        rows.setdefault(op_class(kind), []).append(row)
    return rows


def groups_of(
    name: str, rows: Iterable[Row], spec: DeviceSpec | None, chip: DeviceSpec | None = None
) -> Mapping[str, Group]:
    """The groups of an op class by dtype. Rows of unknown work, or in a dtype without a peak, are
    left out.
    """
    by_dtype: dict[str, list[tuple[Load, float]]] = {}
    for row in rows:
        load = load_of(row.key)
        if load is not None and is_covered(load, spec):
            seconds = float(row.device_seconds(pace_of(spec)))
            by_dtype.setdefault(load.dtype, []).append((load, seconds))
    return {
        dtype: Group(name, dtype, [load for load, _ in pairs], [s for _, s in pairs], spec, chip)
        for dtype, pairs in by_dtype.items()
    }
