"""The measured rows of one op class on one kind of device, and what they say of ops that were not
measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp

import numpy as np

from ..semantics import op_class
from .fit import FEWEST, FEWEST_OF_KIND, Fit, Points, predicted
from .neighbours import NEAREST, Neighbours
from .roofline import Load, Scalars, datasheet_scalars, ideal_seconds, is_covered, load_of, rounded
from .rows import OpCost, Profile, Row
from .spec import DeviceSpec


@dataclass(frozen=True, slots=True)
class Sample:
    """A measured row with what its op asks for."""

    load: Load
    seconds: float


@dataclass(frozen=True, eq=False)
class Group:
    """Rows of one op class on one kind of device, and its datasheet where there is one."""

    op_class: str
    samples: Sequence[Sample]
    spec: DeviceSpec | None = None

    @cached_property
    def points(self) -> Points:
        """The rows as columns."""
        ideal = np.array(
            [ideal_seconds(sample.load, self.spec) for sample in self.samples], np.float64
        ).reshape(-1, 2)
        return Points(
            ideal[:, 0],
            ideal[:, 1],
            np.array([sample.seconds for sample in self.samples], np.float64),
        )

    @cached_property
    def datasheet(self) -> Scalars | None:
        """What the datasheet says of the three scalars; None without one."""
        return None if self.spec is None else datasheet_scalars(self.spec, self.op_class)

    @cached_property
    def fit(self) -> Fit | None:
        """The three scalars of the op class; None where its rows are too few."""
        return Fit(self.points, self.datasheet) if len(self.samples) >= FEWEST else None

    @cached_property
    def _fits(self) -> Mapping[str, Fit]:
        """The scalars of each kind by its own rows: kernels of one class may be unlike."""
        if self.fit is None:
            return {}
        kinds, prior = np.array([sample.load.kind for sample in self.samples]), self.fit.scalars
        rows = {kind: kinds == kind for kind in dict.fromkeys(kinds.tolist())}
        return {
            kind: Fit(self.points.take(own), prior)
            for kind, own in rows.items()
            if own.sum() >= FEWEST_OF_KIND
        }

    def fit_of(self, kind: str) -> Fit | None:
        """The fit that answers for a kind: by its own rows, else by those of its class."""
        return self._fits.get(kind, self.fit)

    @cached_property
    def datasheet_error(self) -> float | None:
        """Mean relative error of the bare datasheet on the rows."""
        if self.datasheet is None or not self.samples:
            return None
        return float(
            np.abs(predicted(self.datasheet, self.points) / self.points.seconds - 1).mean()
        )

    @cached_property
    def _neighbours(self) -> Neighbours | None:
        if len(self.samples) < NEAREST:
            return None
        roofs = [self.seconds(sample.load) for sample in self.samples]
        ratios = np.log(self.points.seconds / np.array(roofs, np.float64))
        return Neighbours([sample.load for sample in self.samples], ratios)

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
            found = self._neighbours.find(load)
            error = self._neighbours.expected_error(found.distance)
            basis = f"nearest of {len(self.samples)} rows at {found.distance:.2f}"
            yield estimate(roof * exp(found.log_ratio), "interpolated", error, basis)
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
    found: dict[str, list[Row]] = {}
    for row in measured_rows(profiles, device_kind):
        kind, _ = decoder.raw_decode(row.key, start)
        found.setdefault(op_class(kind), []).append(row)
    return found


def group_of(name: str, rows: Iterable[Row], spec: DeviceSpec | None) -> Group:
    """The group of an op class from its rows; those whose work, or whose dtype's peak, is not known
    stay out.
    """
    loads = ((row, load_of(row.key)) for row in rows)
    known = ((row, load) for row, load in loads if load is not None and is_covered(load, spec))
    return Group(name, tuple(Sample(load, float(row.seconds)) for row, load in known), spec)
