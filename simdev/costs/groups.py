"""The measured rows of one op class and dtype on one kind of device, and what fits to them say of
ops that were not measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..nouns.semantics import op_class
from ..nouns.semantics.keys import Load, load_of
from .fit import FEWEST, FEWEST_OF_KIND, Fit, Points, predicted
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

FEWEST_NEAR = 8  # rows of a dtype that neighbours of it need


def _coded(names: Iterable[str]) -> tuple[dict[str, int], NDArray[np.int64]]:
    """A code for each name, and the names by their codes."""
    codes: dict[str, int] = {}
    return codes, np.array([codes.setdefault(name, len(codes)) for name in names], np.int64)


@dataclass(frozen=True, eq=False)
class Group:
    """Measured rows of one op class and dtype on one kind of device: what each asked, and its
    seconds.

    ``spec`` is the datasheet of the device, where there is one.
    """

    op_class: str
    dtype: str
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
        if self.spec is None:
            return None
        return datasheet_scalars(self.spec, self.op_class, self.dtype)

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

    def seconds(self, load: Load) -> float | None:
        """Seconds by the best scalars known: fitted, else the datasheet's."""
        fit = self.fit_of(load.kind)
        scalars = fit.scalars if fit else self.datasheet
        return scalars.seconds(ideal_seconds(load, self.spec)) if scalars else None

    def fitted(self, load: Load) -> OpCost | None:
        """What the rung "fitted" says, with its expected error; None where rows are too few."""
        fit = self.fit_of(load.kind)
        if fit is None:
            return None
        roof = fit.scalars.seconds(ideal_seconds(load, self.spec))
        return estimate(roof, "fitted", fit.error, f"{len(fit.points)} rows")


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


def groups_of(name: str, rows: Iterable[Row], spec: DeviceSpec | None) -> Mapping[str, Group]:
    """The groups of an op class by dtype from its rows; those whose work, or whose dtype's peak, is
    not known stay out.
    """
    by_dtype: dict[str, list[tuple[Load, float]]] = {}
    for row in rows:
        load = load_of(row.key)
        if load is not None and is_covered(load, spec):
            seconds = float(row.device_seconds(pace_of(spec)))
            by_dtype.setdefault(load.dtype, []).append((load, seconds))
    return {
        dtype: Group(name, dtype, [load for load, _ in pairs], [time for _, time in pairs], spec)
        for dtype, pairs in by_dtype.items()
    }
