"""The measured rows of one op class on one kind of device, and what they say of ops that were not
measured.

``Neighbours`` answers from the nearest rows: their ratio to the fitted roofline, in log-shape
space. The space has the logarithms of FLOPs, bytes read and bytes written. An op of another kind,
and a variant of the same kind (other attributes or ranks), lies farther off by a fixed distance.
The answer is the roofline of the op, times the geometric mean of measured / roofline over its eight
nearest rows of the op class, each weighted by the inverse fourth power of its distance. At a
measured point the rows that lie there answer alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..semantics import op_class
from .fit import FEWEST, FEWEST_OF_KIND, Fit, Floats, Points, predicted
from .roofline import (
    DeviceSpec,
    Load,
    Scalars,
    datasheet_scalars,
    ideal_seconds,
    is_covered,
    launch_gap,
    load_of,
    rounded,
)
from .rows import OpCost, Profile, Row

NEAREST = 8
OTHER_KIND = 3.0  # distance: e^3 is a factor of 20 in size
OTHER_VARIANT = 0.5
_LEFT_OUT = 256  # rows that are left out in turn
_WINDOW = 16  # rows at about the same distance that tell the error there
# Distances that differ by less are equal: the order of rows decides, not the last bit of a
# logarithm.
_GRAIN = 1e-9


class Interpolation(NamedTuple):
    """The log of measured / roofline, and the distance of the nearest row."""

    log_ratio: float
    distance: float


class Neighbours:
    """An index of measured rows; ``log_ratios`` are log(measured / roofline) of the ``loads``."""

    def __init__(self, loads: Sequence[Load], log_ratios: Floats) -> None:
        self.loads, self.log_ratios = loads, log_ratios
        self._places = np.array([_place(load) for load in loads])
        # Codes, not texts: a variant is a line of JSON, and thousands of rows are compared at once.
        self._kind_codes, self._kinds = _coded(load.kind for load in loads)
        self._variant_codes, self._variants = _coded(load.dtype + load.variant for load in loads)

    def find(self, load: Load, without: int = -1) -> Interpolation:
        """The answer for an op, from rows other than ``without``."""
        kind = self._kind_codes.get(load.kind, -1)
        variant = self._variant_codes.get(load.dtype + load.variant, -1)
        squares = np.square(self._places - np.array(_place(load))).sum(axis=1) / 3
        squares += OTHER_KIND**2 * (self._kinds != kind)
        squares += OTHER_VARIANT**2 * (self._variants != variant)
        if without >= 0:
            squares[without] = np.inf
        distances = np.round(np.sqrt(squares) / _GRAIN) * _GRAIN
        near = _smallest(distances, min(NEAREST, len(distances) - (without >= 0)))
        there = near[distances[near] == 0]
        if len(there):
            return Interpolation(float(self.log_ratios[there].mean()), 0.0)
        weights = distances[near] ** -4.0
        log_ratio = float(weights @ self.log_ratios[near] / weights.sum())
        return Interpolation(log_ratio, float(distances[near[0]]))

    @cached_property
    def _left_out(self) -> tuple[Floats, Floats]:
        """Distance and relative error of rows answered from the others, by distance."""
        rows = np.unique(np.linspace(0, len(self.loads) - 1, _LEFT_OUT).astype(np.int64))
        answers = np.array([self.find(self.loads[row], int(row)) for row in rows])
        errors = np.abs(np.exp(answers[:, 0] - self.log_ratios[rows]) - 1)
        order = np.argsort(answers[:, 1], kind="stable")
        return answers[order, 1], errors[order]

    def expected_error(self, distance: float) -> float:
        """Mean relative error of the left-out rows whose nearest row was about this far off."""
        distances, errors = self._left_out
        start = int(np.searchsorted(distances, distance)) - _WINDOW // 2
        start = max(0, min(start, len(errors) - _WINDOW))
        return float(errors[start : start + _WINDOW].mean())


def _coded(names: Iterable[str]) -> tuple[dict[str, int], NDArray[np.int64]]:
    """A code for each name, and the names by their codes."""
    codes: dict[str, int] = {}
    return codes, np.array([codes.setdefault(name, len(codes)) for name in names], np.int64)


def _place(load: Load) -> tuple[float, float, float]:
    # math.log, one at a time: numpy's vector form may differ in its last bit between processors.
    return log(max(load.flops, 1)), log(max(load.read, 1)), log(max(load.written, 1))


def _smallest(values: Floats, count: int) -> NDArray[np.int64]:
    """Rows of the smallest values, in their order; equal ones by row."""
    # Not argpartition: it leaves open which of equal values come first.
    limit = np.partition(values, count - 1)[count - 1]
    rows = np.flatnonzero(values <= limit)
    return rows[np.argsort(values[rows], kind="stable")][:count]


@dataclass(frozen=True, eq=False)
class Group:
    """Measured rows of one op class on one kind of device: what each asked, and its seconds.

    ``spec`` is the datasheet of the device, where there is one.
    """

    op_class: str
    loads: Sequence[Load]
    seconds_measured: Sequence[float]
    spec: DeviceSpec | None = None

    @cached_property
    def points(self) -> Points:
        """The rows as columns."""
        ideal = np.array([ideal_seconds(load, self.spec) for load in self.loads], np.float64)
        compute, memory = ideal.reshape(-1, 2).T
        return Points(compute, memory, np.array(self.seconds_measured, np.float64))

    @cached_property
    def datasheet(self) -> Scalars | None:
        """What the datasheet says of the three scalars; None without one."""
        return None if self.spec is None else datasheet_scalars(self.spec, self.op_class)

    @cached_property
    def fit(self) -> Fit | None:
        """The three scalars of the op class; None where its rows are too few."""
        return Fit(self.points, self.datasheet) if len(self.loads) >= FEWEST else None

    @cached_property
    def _fits(self) -> Mapping[str, Fit]:
        """The scalars of each kind by its own rows: kernels of one class may be unlike."""
        if self.fit is None:
            return {}
        codes, kinds = _coded(load.kind for load in self.loads)
        return {
            kind: Fit(self.points.take(kinds == code), self.fit.scalars)
            for kind, code in codes.items()
            if np.count_nonzero(kinds == code) >= FEWEST_OF_KIND
        }

    def fit_of(self, kind: str) -> Fit | None:
        """The fit that answers for a kind: by its own rows, else by those of its class."""
        return self._fits.get(kind, self.fit)

    @cached_property
    def datasheet_error(self) -> float | None:
        """Mean relative error of the bare datasheet on the rows."""
        if self.datasheet is None or not self.loads:
            return None
        ratios = predicted(self.datasheet, self.points) / self.points.seconds
        return float(np.abs(ratios - 1).mean())

    @cached_property
    def _neighbours(self) -> Neighbours | None:
        if len(self.loads) < NEAREST:
            return None
        roofs = np.array([self.seconds(load) for load in self.loads], np.float64)
        return Neighbours(self.loads, np.log(self.points.seconds / roofs))

    def seconds(self, load: Load) -> float | None:
        """Seconds by the best scalars known: fitted, else the datasheet's."""
        fit = self.fit_of(load.kind)
        scalars = fit.scalars if fit else self.datasheet
        return scalars.seconds(ideal_seconds(load, self.spec)) if scalars else None

    def estimates(self, load: Load) -> Iterator[OpCost]:
        """What the rungs "interpolated" and "fitted" say, as far as the rows suffice, each with its
        expected error.
        """
        fit = self.fit_of(load.kind)
        if fit is None:
            return
        roof = fit.scalars.seconds(ideal_seconds(load, self.spec))
        if self._neighbours is not None:
            log_ratio, distance = self._neighbours.find(load)
            error = self._neighbours.expected_error(distance)
            basis = f"nearest of {len(self.loads)} rows at {distance:.2f}"
            yield estimate(roof * exp(log_ratio), "interpolated", error, basis)
        yield estimate(roof, "fitted", fit.error, f"{len(fit.points)} rows")


def estimate(seconds: float, rung: str, error: float | None, basis: str) -> OpCost:
    """A cost with its numbers rounded: seconds to six digits, the error to three."""
    return OpCost(rounded(seconds), rung, None if error is None else float(f"{error:.3g}"), basis)


def measured_rows(profiles: Iterable[Profile], device_kind: str) -> Iterator[Row]:
    """The rows that were measured on a kind of device; of those with one key the first."""
    start, seen = device_prefix(device_kind), set()
    for profile in profiles:
        for key, row in profile.rows.items():
            if key.startswith(start) and key not in seen:
                seen.add(key)
                if row.source == "measured" and row.seconds > 0:
                    yield row


def device_prefix(device_kind: str) -> str:
    """How the keys of a kind of device begin."""
    return "[" + json.dumps(device_kind) + ","


def rows_by_class(profiles: Iterable[Profile], device_kind: str) -> Mapping[str, list[Row]]:
    """The measured rows of a kind of device by op class."""
    start, decoder = len(device_prefix(device_kind)), json.JSONDecoder()
    rows: dict[str, list[Row]] = {}
    for row in measured_rows(profiles, device_kind):
        # The kind stands right behind the device: reading it alone is a tenth of parsing the key.
        kind, _ = decoder.raw_decode(row.key, start)
        rows.setdefault(op_class(kind), []).append(row)
    return rows


def group_of(name: str, rows: Iterable[Row], spec: DeviceSpec | None) -> Group:
    """The group of an op class from its rows; those whose work, or whose dtype's peak, is not known
    stay out.
    """
    loads, seconds = [], []
    for row in rows:
        load = load_of(row.key)
        if load is not None and is_covered(load, spec):
            loads.append(load)
            seconds.append(float(row.device_seconds(launch_gap(spec))))
    return Group(name, loads, seconds, spec)
