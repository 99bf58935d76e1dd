"""The rungs below the measured one: what is estimated, from what, and how far off it is expected to
be.

interpolated  nearest measured rows of the op class on this kind of device (``neighbours``)
fitted        three scalars fitted to those rows (``fit``)
scaled        a row measured on another kind of device, times the ratio of the two rooflines of the
op class
roofline      the datasheet, with its efficiencies or the class default

Each rung's expected error is what it does to rows left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .groups import Group, device_prefix, estimate, group_of, measured_rows, rows_by_class
from .roofline import (
    ROOFLINE_ERROR,
    Load,
    datasheet_scalars,
    ideal_seconds,
    is_covered,
    load_of,
    peak_name,
)
from .rows import OpCost, Profile, Row
from .spec import DeviceSpec

_TELLING = 3  # rows that an expected error needs


@dataclass(frozen=True, eq=False)
class Estimates:
    """Estimates from measured rows and datasheets; tables and fits are made when they are first
    asked for.
    """

    profiles: tuple[Profile, ...]
    specs: Mapping[str, DeviceSpec]

    @cached_property
    def _groups(self) -> dict[tuple[str, str], Group]:
        return {}

    @cached_property
    def _rows(self) -> dict[str, Mapping[str, list[Row]]]:
        return {}

    @cached_property
    def _measured(self) -> dict[str, Mapping[str, float]]:
        return {}

    @cached_property
    def _datasheet_errors(self) -> dict[tuple[str, str], float]:
        return {}

    @cached_property
    def _scaled_errors(self) -> dict[tuple[str, str, str], float | None]:
        return {}

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of device of which some profile has a row."""
        kinds = (kind for profile in self.profiles for kind in profile.device_kinds)
        return tuple(dict.fromkeys(kinds))

    def knows(self, device_kind: str) -> bool:
        """Whether there are rows or a datasheet of a kind of device: without either nothing can be
        estimated.
        """
        return device_kind in self.specs or device_kind in self.kinds

    def group(self, device_kind: str, op_class: str) -> Group:
        """The measured rows of an op class on a kind of device; a group of none where there are
        none.
        """
        if (device_kind, op_class) not in self._groups:
            rows = self._rows_of(device_kind).get(op_class, [])
            self._groups[device_kind, op_class] = group_of(
                op_class, rows, self.specs.get(device_kind)
            )
        return self._groups[device_kind, op_class]

    def _rows_of(self, device_kind: str) -> Mapping[str, list[Row]]:
        if device_kind not in self._rows:
            self._rows[device_kind] = rows_by_class(self.profiles, device_kind)
        return self._rows[device_kind]

    def cost(self, key: str, load: Load, device_kind: str) -> OpCost | None:
        """The first rung that knows an answer; None where none does, or the datasheet tells no peak
        for the dtype.
        """
        if not is_covered(load, self.specs.get(device_kind)):
            return None
        own = next(self.group(device_kind, load.op_class).estimates(load), None)
        return own or self.scaled(key, load, device_kind) or self.roofline(load, device_kind)

    def roofline(self, load: Load, device_kind: str) -> OpCost | None:
        """The datasheet's answer; None where there is no datasheet."""
        group = self.group(device_kind, load.op_class)
        if group.datasheet is None or group.spec is None:
            return None
        ideal = ideal_seconds(load, group.spec)
        seconds, basis = group.datasheet.seconds(ideal), "datasheet"
        computes = ideal[0] / group.datasheet.compute > ideal[1] / group.datasheet.memory
        stand_in = peak_name(group.spec, load.dtype)
        if computes and stand_in != load.dtype:
            basis += f": {load.dtype} at the peak of {stand_in}"
        return estimate(
            seconds, "roofline", self._datasheet_error(device_kind, load.op_class), basis
        )

    def _datasheet_error(self, device_kind: str, op_class: str) -> float:
        key = (device_kind, op_class)
        if key not in self._datasheet_errors:
            self._datasheet_errors[key] = self._error_of_datasheets(device_kind, op_class)
        return self._datasheet_errors[key]

    def _error_of_datasheets(self, device_kind: str, op_class: str) -> float:
        """On this kind of device, else on the others that have a datasheet and rows, else as
        published.
        """
        for kinds in ((device_kind,), tuple(self.specs)):
            groups = [self.group(kind, op_class) for kind in kinds]
            known = [(group.datasheet_error, len(group.samples)) for group in groups]
            counts = sum(count for error, count in known if error is not None)
            if counts >= _TELLING:
                return sum(error * count for error, count in known if error is not None) / counts
        return ROOFLINE_ERROR

    def scaled(self, key: str, load: Load, device_kind: str) -> OpCost | None:
        """The same op measured on another kind of device, brought over by the ratio of rooflines.

        Of several kinds the one that is expected to err least, then the first in the profiles.
        """
        sources = [kind for kind in self.kinds if kind != device_kind]
        if not sources:
            return None
        found = [(self._scaled_error(kind, device_kind, load.op_class), kind) for kind in sources]
        for error, kind in sorted(
            found, key=lambda pair: float("inf") if pair[0] is None else pair[0]
        ):
            seconds = self._brought(_moved(key, device_kind, kind), load, kind, device_kind)
            if seconds is not None:
                return estimate(seconds, "scaled", error, f"from {kind}")
        return None

    def _brought(self, key: str, load: Load, source: str, target: str) -> float | None:
        """Seconds on ``target`` of a row of ``source``.

        The scalars fitted to the source count where the target's datasheet knows its own for the
        class (or the source has no datasheet). Else both are reckoned by their datasheets: what is
        slow on the one is slow on the other.
        """
        measured, spec = self._seconds(source).get(key), self.specs.get(target)
        if measured is None or spec is None:
            return None
        group = self.group(source, load.op_class)
        if not (is_covered(load, spec) and is_covered(load, group.spec)):
            return None
        if load.op_class in spec.efficiency or group.spec is None:
            there = group.seconds(load)
        else:
            there = datasheet_scalars(group.spec, load.op_class).seconds(
                ideal_seconds(load, group.spec)
            )
        here = datasheet_scalars(spec, load.op_class).seconds(ideal_seconds(load, spec))
        return measured * here / there if there else None

    def _seconds(self, device_kind: str) -> Mapping[str, float]:
        if device_kind not in self._measured:
            rows = measured_rows(self.profiles, device_kind)
            self._measured[device_kind] = {row.key: float(row.seconds) for row in rows}
        return self._measured[device_kind]

    def _scaled_error(self, source: str, target: str, op_class: str) -> float | None:
        """Mean relative error of scaling from ``source`` over the keys that it shares with a kind
        that has rows.

        That kind is the target itself where it has some, else any third one. None where no two
        devices share enough.
        """
        key = (source, target, op_class)
        if key not in self._scaled_errors:
            others = [kind for kind in self.kinds if kind not in (source, target)]
            errors = self._shared(source, target, op_class)
            if len(errors) < _TELLING:
                errors = [
                    error for kind in others for error in self._shared(source, kind, op_class)
                ]
            self._scaled_errors[key] = float(np.mean(errors)) if len(errors) >= _TELLING else None
        return self._scaled_errors[key]

    def _shared(self, source: str, target: str, op_class: str) -> list[float]:
        """Relative errors of scaling over the keys that two kinds of device share."""
        errors = []
        for key, measured in self._seconds(target).items():
            there = _moved(key, target, source)
            load = load_of(key) if there in self._seconds(source) else None
            if load is not None and load.op_class == op_class:
                seconds = self._brought(there, load, source, target)
                if seconds is not None:
                    errors.append(abs(seconds / measured - 1))
        return errors


def _moved(key: str, source: str, target: str) -> str:
    """The same op's key on another kind of device."""
    return device_prefix(target) + key[len(device_prefix(source)) :]
