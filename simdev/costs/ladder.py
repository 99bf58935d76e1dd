"""CostModel: where the time of an op comes from, rung by rung.

given         the graph says it (``Op.time``)
measured      a row of a profile, the first profile that has one
interpolated  nearest measured rows of the op class on this kind of device (``Neighbours``)
fitted        three scalars fitted to those rows (``Fit``)
scaled        a row measured on another kind of device, times the ratio of the two rooflines of the
              op class
roofline      the datasheet, with its efficiencies or the class default

``CostModel`` answers given and measured (a row's own source is its rung), ``Group.estimates``
(groups.py) interpolated and fitted, ``Estimates`` the other two; a new rung needs its name in
``rows.RUNGS``.

Every answer carries its rung and its expected error, which for an estimate is what its rung does to
rows left out; what no rung knows is None, never a guess.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import inf
from typing import Any, TypeVar

import numpy as np

from ..errors import InputError
from ..frozen import freeze
from ..graph import Graph
from ..semantics import traits_of
from ..units import MAX_PS, picoseconds
from .groups import Group, device_prefix, estimate, group_of, measured_rows, rows_by_class
from .host import HostCost, between_cost, given_cost, launches_of
from .roofline import (
    ROOFLINE_ERROR,
    DeviceSpec,
    Load,
    datasheet_scalars,
    ideal_seconds,
    is_covered,
    launch_gap,
    load_of,
    no_peak,
    peak_name,
    work_problem,
)
from .rows import KNOWN, RUNGS, OpCost, Profile, op_key

_FEWEST_ERRORS = 3  # rows that an expected error needs

# What leaves and views take, unless the graph or a profile says otherwise: they compute nothing and
# move no byte.
FREE_OF_COST = OpCost(Fraction(0), "given")

Value = TypeVar("Value")


class Estimates:
    """Estimates from measured rows and datasheets; remembers tables, fits and answers.

    A table or a fit is made when an op first needs it: most steps are measured whole.
    """

    def __init__(self, profiles: tuple[Profile, ...], specs: Mapping[str, DeviceSpec]) -> None:
        self.profiles, self.specs = profiles, specs
        self.answers: dict[str, OpCost | None] = {}
        self._made: dict[tuple[str, ...], Any] = {}

    def _once(self, key: tuple[str, ...], make: Callable[[], Value]) -> Value:
        if key not in self._made:
            self._made[key] = make()
        value: Value = self._made[key]
        return value

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
        """The measured rows of an op class on a kind of device, perhaps none, with their fits."""

        def make() -> Group:
            rows = self._once(
                ("rows", device_kind), lambda: rows_by_class(self.profiles, device_kind)
            )
            return group_of(op_class, rows.get(op_class, []), self.specs.get(device_kind))

        return self._once(("group", device_kind, op_class), make)

    def cost(self, key: str, load: Load, device_kind: str) -> OpCost | None:
        """The answer of the first rung that knows one (``Group.estimates``, ``scaled``,
        ``roofline``); None where none does. Where a datasheet has no peak for the dtype no rung is
        asked.
        """
        if not is_covered(load, self.specs.get(device_kind)):
            return None
        near = next(self.group(device_kind, load.op_class).estimates(load), None)
        return near or self.scaled(key, load, device_kind) or self.roofline(load, device_kind)

    def roofline(self, load: Load, device_kind: str) -> OpCost | None:
        """The datasheet's answer; None where there is no datasheet."""
        group = self.group(device_kind, load.op_class)
        if group.datasheet is None or group.spec is None:
            return None
        ideal = ideal_seconds(load, group.spec)
        basis = "datasheet"
        computes = ideal[0] / group.datasheet.compute > ideal[1] / group.datasheet.memory
        stand_in = peak_name(group.spec, load.dtype)
        if computes and stand_in != load.dtype:
            basis += f": {load.dtype} at the peak of {stand_in}"
        error = self._once(
            ("roofline", device_kind, load.op_class),
            lambda: self._error_of_datasheets(device_kind, load.op_class),
        )
        return estimate(group.datasheet.seconds(ideal), "roofline", error, basis)

    def _error_of_datasheets(self, device_kind: str, op_class: str) -> float:
        """On this kind of device, else on the others that have a datasheet and rows, else as
        published.
        """
        for kinds in ((device_kind,), tuple(self.specs)):
            groups = [self.group(kind, op_class) for kind in kinds]
            known = [
                (group.datasheet_error, len(group.loads))
                for group in groups
                if group.datasheet_error is not None
            ]
            rows = sum(count for _, count in known)
            if rows >= _FEWEST_ERRORS:
                return sum(error * count for error, count in known) / rows
        return ROOFLINE_ERROR

    def scaled(self, key: str, load: Load, device_kind: str) -> OpCost | None:
        """The op's row of another kind of device, times the ratio of the rooflines.

        Of several kinds the one that is expected to err least, then the first in the profiles.
        """
        errors = [
            (self._scaling_error(kind, device_kind, load.op_class), kind)
            for kind in self.kinds
            if kind != device_kind
        ]
        for error, kind in sorted(errors, key=lambda pair: inf if pair[0] is None else pair[0]):
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
        group = self.group(source, load.op_class)
        if measured is None or spec is None:
            return None
        if not (is_covered(load, spec) and is_covered(load, group.spec)):
            return None
        if load.op_class in spec.efficiency or group.spec is None:
            there = group.seconds(load)
        else:
            there = _datasheet_seconds(load, group.spec)
        return measured * _datasheet_seconds(load, spec) / there if there else None

    def _seconds(self, device_kind: str) -> Mapping[str, float]:
        """The measured rows of a kind of device, by key."""
        gap = launch_gap(self.specs.get(device_kind))
        return self._once(
            ("seconds", device_kind),
            lambda: {
                row.key: float(row.device_seconds(gap))
                for row in measured_rows(self.profiles, device_kind)
            },
        )

    def _scaling_error(self, source: str, target: str, op_class: str) -> float | None:
        return self._once(
            ("scaled", source, target, op_class),
            lambda: self._error_of_scaling(source, target, op_class),
        )

    def _error_of_scaling(self, source: str, target: str, op_class: str) -> float | None:
        """Mean relative error of scaling from ``source`` over the keys that it shares with a kind
        that has rows.

        That kind is the target itself where it has some, else any third one. None where no two
        devices share enough.
        """
        errors = self._errors_shared(source, target, op_class)
        if len(errors) < _FEWEST_ERRORS:
            others = [kind for kind in self.kinds if kind not in (source, target)]
            errors = [
                error for kind in others for error in self._errors_shared(source, kind, op_class)
            ]
        return float(np.mean(errors)) if len(errors) >= _FEWEST_ERRORS else None

    def _errors_shared(self, source: str, target: str, op_class: str) -> list[float]:
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


def _datasheet_seconds(load: Load, spec: DeviceSpec) -> float:
    return datasheet_scalars(spec, load.op_class).seconds(ideal_seconds(load, spec))


def _moved(key: str, source: str, target: str) -> str:
    """The key of an op of ``source`` on the kind of device ``target``."""
    return device_prefix(target) + key[len(device_prefix(source)) :]


@dataclass(frozen=True)
class CostModel:
    """The ladder over profiles and datasheets; ``strict`` refuses all that was not given or
    measured.

    Raises InputError where two specs are of one kind.
    """

    profiles: tuple[Profile, ...] = ()
    specs: tuple[DeviceSpec, ...] = ()
    strict: bool = False

    def __post_init__(self) -> None:
        freeze(self, "profiles", "specs")
        counts = Counter(spec.kind for spec in self.specs)
        twice = sorted(kind for kind, count in counts.items() if count > 1)
        if twice:
            raise InputError(f'specs: two of kind "{kind}"' for kind in twice)

    @cached_property
    def estimates(self) -> Estimates:
        """The rungs below the measured one."""
        return Estimates(self.profiles, {spec.kind: spec for spec in self.specs})

    def cost(self, graph: Graph, position: int, device_kind: str) -> OpCost | None:
        """Cost of one op of the graph on a kind of device, or None where nothing is known."""
        op = graph.ops[position]
        seconds = op.seconds_on(device_kind)
        if seconds is not None:
            return OpCost(seconds, "given")
        if traits_of(op.kind).leaf and not self.profiles:
            return FREE_OF_COST
        return self.cost_of_key(op_key(graph, position, device_kind), op.kind, device_kind)

    def cost_of_key(self, key: str, kind: str, device_kind: str) -> OpCost | None:
        """Cost of an op that is in no graph, by its profile key; ``kind`` and ``device_kind`` are
        those of the key.
        """
        answers = self.estimates.answers
        if key not in answers:
            answers[key] = self._answer(key, kind, device_kind)
        return answers[key]

    def host_cost(self, graph: Graph, position: int, device_kind: str) -> HostCost | None:
        """What dispatching one op of the graph costs the host of a kind of device, or None where
        nothing is known.
        """
        op = graph.ops[position]
        headers = (profile.header for profile in self.profiles)
        return given_cost(op, device_kind) or between_cost(headers, op, device_kind)

    def launches(self, graph: Graph, position: int, device_kind: str) -> int:
        """How many kernels one op of the graph launches on a kind of device."""
        cost = self.host_cost(graph, position, device_kind)
        return launches_of(graph.ops[position]) if cost is None else cost.launches

    def _answer(self, key: str, kind: str, device_kind: str) -> OpCost | None:
        row = next((profile.rows[key] for profile in self.profiles if key in profile.rows), None)
        if row is not None:
            # A row whose source is no rung (a model of somebody's) is an estimate for ``strict``.
            rung = row.source if row.source in RUNGS else "fitted"
            allowed = rung in KNOWN or not self.strict
            seconds = row.device_seconds(launch_gap(self.estimates.specs.get(device_kind)))
            return OpCost(seconds, rung, row.rel_err) if allowed else None
        load = load_of(key)
        if traits_of(kind).leaf or (load is not None and load.is_free):
            return FREE_OF_COST
        if load is None or self.strict or not self.estimates.knows(device_kind):
            return None
        cost = self.estimates.cost(key, load, device_kind)
        return None if cost is None or picoseconds(cost.seconds) > MAX_PS else cost

    def why_unknown(self, key: str, device_kind: str) -> str:
        """Why nothing is known of an op's cost, for people; "" where its row is all that is
        missing.
        """
        estimates = self.estimates
        answers = estimates.knows(device_kind) and not self.strict
        if estimates.kinds and device_kind not in estimates.kinds and not answers:
            return f"the profiles know {', '.join(estimates.kinds)}"
        if self.strict:
            return ""
        if not answers:
            return "no profile and no datasheet tells of this kind"
        load, spec = load_of(key), estimates.specs.get(device_kind)
        if load is None:
            return work_problem(key)
        if spec is not None and not is_covered(load, spec):
            return no_peak(spec, load.dtype)
        cost = estimates.cost(key, load, device_kind)
        if cost is None:
            return ""
        return f"it is estimated at {float(cost.seconds):.3g} s, more than 53 days"
