"""The ladder of costs: the sources of an op's time, one rung each, from the surest down.

given         the graph says it (``Op.time``).
measured      a row of a profile, the first profile that has one.
interpolated  nearest measured rows of the op class on this kind of device (``Surface``).
fitted        three scalars fitted to these rows (``Fit``).
scaled        a time of another dtype or of another kind of device, times the ratio of the two
              rooflines of the op class and dtype.
roofline      the datasheet, with its efficiencies or the class default.
memory pass   bytes of operands and outputs over the datasheet's bandwidth, for kinds of ops that
              simdev has no description of.

Lowering, oracle, searches and checker ask ``CostModel``. It answers on the rungs given, measured
and memory pass; ``Estimates`` works out all others. A row of a profile that was not measured names
the rung that made it.

Every answer names its rung. An estimate also has an expected relative error, None where it is
unknown:

- interpolated, fitted: the error on measured rows, each left out in turn (``surface.py``,
  ``groups.py``);
- scaled: the error on the keys that both devices have; without such keys the error of its source
  and CARRIED_ERROR;
- roofline: the error of the datasheet on measured rows; without rows ROOFLINE_ERROR.

An op that no rung knows has the cost None, never a guess.

A new rung is a name in ``RUNGS`` (``rows.py``), whose order is that of every list of rungs, and a
branch of ``Estimates.cost`` or ``Estimates.estimates``. ``lowering/origins.py`` and ``_sources`` of
``lowering/hybrid/__init__.py`` add up times by the names of RUNGS, so they need no edit. Single
rungs have constants: ROOFLINE (``lowering/hybrid/durations.py`` puts its own datasheet in place of
that rung, so a new estimate below it has to be named there), MEMORY_PASS, and KNOWN for the rungs
that are no estimates. ``docs/how-to/profiles.md``, ``benchmarks/ladder.py`` and
``benchmarks/grids.py`` list rungs in words. Tests: ``tests/costs/test_ladder.py``.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial, wraps
from math import inf
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from ..ground.errors import InputError, refuse
from ..ground.registry import provided
from ..ground.units import MAX_PS, format_bytes, picoseconds
from ..nouns.graph import NO_KIND, Graph
from ..nouns.semantics import is_described, operand_shapes, traits_of, whole_bytes
from ..nouns.semantics.dtype import bits_of
from ..nouns.semantics.keys import Load, load_of, op_key, work_problem
from .dispatch import Dispatches, HostCost
from .groups import (
    FEWEST_NEAR,
    Group,
    device_prefix,
    estimate,
    groups_of,
    measured_rows,
    rows_by_class,
)
from .roofline import (
    DATASHEET_ERRORS,
    ROOFLINE_ERROR,
    DeviceSpec,
    ideal_seconds,
    is_covered,
    least_seconds,
    no_peak,
    pace_of,
    peak_name,
)
from .rows import KNOWN, MEMORY_PASS, MEMORY_PASS_ERROR, ROOFLINE, RUNGS, OpCost, Profile, Row
from .surface import Surface

_FEWEST_ERRORS = 3  # rows that an expected error needs (ours): the mean of fewer says little
CARRIED_ERROR = 0.12
"""The error added to an estimate that is carried over without shared rows: the mean difference
between seven GPUs in the share of the peak that products reach.
"""

Arguments = ParamSpec("Arguments")
Value = TypeVar("Value")
Method = Callable[Concatenate["Estimates", Arguments], Value]


def _once(method: Method[Arguments, Value]) -> Method[Arguments, Value]:
    """A method of Estimates that remembers its answers by its arguments."""

    @wraps(method)
    def answer(self: Estimates, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Value:
        key = method.__name__, *args, *kwargs.values()
        if key not in self.made:
            self.made[key] = method(self, *args, **kwargs)
        value: Value = self.made[key]
        return value

    return answer


class Estimates:
    """Estimates from measured rows and datasheets; remembers tables, fits and answers.

    A table or a fit is made when an op first needs it: most steps are measured whole. With
    ``carries``, rows of one kind of device also serve to estimate others.
    """

    def __init__(
        self,
        profiles: tuple[Profile, ...],
        specs: Mapping[str, DeviceSpec],
        carries: bool = True,
    ) -> None:
        self.profiles, self.specs, self._carries = profiles, specs, carries
        self.answers: dict[str, OpCost | None] = {}
        self.made: dict[tuple[Any, ...], Any] = {}

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of device that some profile has a row of."""
        kinds = (kind for profile in self.profiles for kind in profile.device_kinds)
        return tuple(dict.fromkeys(kinds))

    def knows(self, device_kind: str) -> bool:
        """Whether a kind of device has rows or a datasheet; without either nothing can be
        estimated.
        """
        return device_kind in self.specs or device_kind in self.kinds

    @_once
    def _rows(self, device_kind: str) -> Mapping[str, list[Row]]:
        return rows_by_class(self.profiles, device_kind)

    @_once
    def groups(self, device_kind: str, op_class: str) -> Mapping[str, Group]:
        """The measured rows of an op class on a kind of device, with their fits, by dtype."""
        rows = self._rows(device_kind).get(op_class, [])
        return groups_of(op_class, rows, *self._sheets(device_kind))

    @_once
    def group(self, device_kind: str, op_class: str, dtype: str = "float32") -> Group:
        """The measured rows of an op class in one dtype; the group may be empty."""
        known = self.groups(device_kind, op_class).get(dtype)
        return known or Group(op_class, dtype, (), (), *self._sheets(device_kind))

    def _sheets(self, device_kind: str) -> tuple[DeviceSpec | None, DeviceSpec | None]:
        """The datasheets of a kind of device, and of the same chip under another power cap."""
        spec = self.specs.get(device_kind)
        return spec, None if spec is None else self.specs.get(spec.measured_as)

    def cost(self, key: str, load: Load, device_kind: str) -> OpCost | None:
        """The first answer of the rungs interpolated, fitted, scaled and roofline; None where none
        answers, or where the datasheet has no peak for the dtype.
        """
        if not is_covered(load, self.specs.get(device_kind)):
            return None
        near = next(self.estimates(load, device_kind), None)
        answer = near or self.scaled(key, load, device_kind) or self.roofline(load, device_kind)
        least = least_seconds(self.specs.get(device_kind))
        if answer is None or answer.seconds >= least:
            return answer
        return replace(answer, seconds=least, basis=f"{answer.basis}; no less than a launch")

    def estimates(self, load: Load, device_kind: str) -> Iterator[OpCost]:
        """The answers of the rungs "interpolated" and "fitted", with their expected errors, where
        there are enough rows.
        """
        group = self.group(device_kind, load.op_class, load.dtype)
        alike = sum(len(other.extents) == len(load.extents) for other in group.loads)
        if alike >= FEWEST_NEAR:
            # Only rows of its dtype where no datasheet says how dtypes compare.
            dtypes: tuple[str, ...] = (load.dtype,)
            if device_kind in self.specs:
                dtypes = tuple(self.groups(device_kind, load.op_class))
            surface = self._surface(device_kind, load.op_class, dtypes, len(load.extents))
            answer = surface.answer(load)
            others = len(surface.loads) - alike
            beside = f" and {others} of other dtypes by the ratio of rooflines" if others else ""
            basis = f"nearest of {alike} rows{beside} at {answer.distance:.2f}"
            yield estimate(answer.seconds, "interpolated", answer.error, basis)
        fitted = group.fitted(load)
        if fitted is not None:
            yield fitted

    @_once
    def _surface(
        self, device_kind: str, op_class: str, dtypes: tuple[str, ...], count: int
    ) -> Surface:
        """The surface of the rows of an op class in these dtypes that have ``count`` extents."""
        groups = self.groups(device_kind, op_class)
        pairs = [
            pair
            for dtype in dtypes
            for pair in zip(groups[dtype].loads, groups[dtype].seconds_measured, strict=True)
            if len(pair[0].extents) == count
        ]
        return Surface(
            [load for load, _ in pairs],
            np.log([seconds for _, seconds in pairs]),
            partial(self.group, device_kind, op_class),
        )

    def roofline(self, load: Load, device_kind: str) -> OpCost | None:
        """The datasheet's answer; None where there is no datasheet."""
        group = self.group(device_kind, load.op_class, load.dtype)
        if group.datasheet is None or group.spec is None:
            return None
        ideal = ideal_seconds(load, group.spec)
        error = self._error_of_datasheets(device_kind, load.op_class, load.dtype)
        basis = "datasheet" + ": ".join(("", *_remarks(load, group, ideal)))
        return estimate(group.datasheet.seconds(ideal), ROOFLINE, error, basis)

    def memory_pass(self, moved: int, device_kind: str) -> OpCost | None:
        """The time of a pass over ``moved`` bytes at the datasheet's bandwidth, at least a launch;
        None without a datasheet.
        """
        spec = self.specs.get(device_kind)
        if spec is None:
            return None
        seconds = max(moved / spec.memory_bandwidth, least_seconds(spec)) if moved else Fraction(0)
        basis = f"no description of the kind: a pass over {format_bytes(moved)}"
        return OpCost(seconds, MEMORY_PASS, MEMORY_PASS_ERROR, basis)

    @_once
    def _error_of_datasheets(self, device_kind: str, op_class: str, dtype: str) -> float:
        """The mean error of datasheets: by rows of this kind of device, else by rows of all kinds
        with a datasheet, else ROOFLINE_ERROR.
        """
        for kinds in ((device_kind,), tuple(self.specs)):
            groups = [self.group(kind, op_class, dtype) for kind in kinds]
            errors = ((group.datasheet_error, len(group.loads)) for group in groups)
            known = [(error, count) for error, count in errors if error is not None]
            rows = sum(count for _, count in known)
            if rows >= _FEWEST_ERRORS:
                return sum(error * count for error, count in known) / rows
        return ROOFLINE_ERROR

    def datasheet_error(self, load: Load, device_kind: str) -> float:
        """The expected error of the datasheet's answer for a long kernel: the error of its op
        class, plus CARRIED_ERROR where this kind of device has no rows of the dtype.
        """
        rows = self.group(device_kind, load.op_class, load.dtype).loads
        error = DATASHEET_ERRORS.get(load.op_class)
        return ROOFLINE_ERROR if error is None else error + (0.0 if rows else CARRIED_ERROR)

    def scaled(self, key: str, load: Load, device_kind: str) -> OpCost | None:
        """The time of the op on another kind of device (measured, else estimated), or on this kind
        in another dtype, times the ratio of the rooflines.

        Of several, the time with the least expected error, then the first in the profiles.
        """
        others = self.kinds if self._carries else ()
        errors = [
            (self._scaling_error(kind, device_kind, load.op_class), kind)
            for kind in others
            if kind != device_kind
        ]
        for error, kind in sorted(errors, key=lambda pair: inf if pair[0] is None else pair[0]):
            seconds = self._brought(_moved(key, device_kind, kind), load, kind, device_kind)
            if seconds is not None:
                return estimate(seconds, "scaled", error, f"from {kind}")
        carried = [self._recast(load, device_kind)]
        carried += [self._carried(load, kind, device_kind) for kind in others]
        known = [cost for cost in carried if cost is not None]
        return min(known, key=lambda cost: cost.rel_err or inf, default=None)

    def _recast(self, load: Load, device_kind: str) -> OpCost | None:
        """The estimate from the same op in another dtype on this kind of device, with the least
        error. The ratio of datasheets is used: an efficiency fitted in one dtype does not hold in
        another.
        """
        known = []
        if device_kind in self.specs:
            here = self.group(device_kind, load.op_class, load.dtype)
            for dtype, group in self.groups(device_kind, load.op_class).items():
                other = _in_dtype(load, dtype)
                near = group.fitted(other) if other != load else None
                if near is not None and near.rel_err is not None:
                    ratio = _datasheet_seconds(load, here) / _datasheet_seconds(other, group)
                    error = near.rel_err + CARRIED_ERROR
                    seconds = float(near.seconds) * ratio
                    known.append(estimate(seconds, "scaled", error, f"from {dtype}, {near.rung}"))
        return min(known, key=lambda cost: cost.rel_err or inf, default=None)

    def _carried(self, load: Load, source: str, target: str) -> OpCost | None:
        """The estimate from another kind of device, where both have a datasheet, and both or
        neither are processors: caches of one kind say nothing about the other.
        """
        specs = self.specs.get(source), self.specs.get(target)
        if source == target or not specs[0] or not specs[1]:
            return None
        families = {specs[0].family, specs[1].family}
        if "" in families or ("cpu" in families and len(families) > 1):
            return None
        near = next(self.estimates(load, source), None) if is_covered(load, specs[0]) else None
        if near is None or near.rel_err is None:
            return None
        seconds = float(near.seconds) * self._ratio(load, source, target)
        basis = f"from {source}, {near.rung} there"
        return estimate(seconds, "scaled", near.rel_err + CARRIED_ERROR, basis)

    def _brought(self, key: str, load: Load, source: str, target: str) -> float | None:
        """The seconds on ``target`` by the measured row of ``source`` with this key."""
        measured, spec = self._seconds(source).get(key), self.specs.get(target)
        if measured is None or spec is None:
            return None
        if not (is_covered(load, spec) and is_covered(load, self.specs.get(source))):
            return None
        ratio = self._ratio(load, source, target)
        return measured * ratio if ratio else None

    def _ratio(self, load: Load, source: str, target: str) -> float:
        """The ratio of the target's roofline to the source's; 0 where the source has none.

        The target's time always comes from its datasheet. The source's time comes from the scalars
        fitted to its rows where the target's datasheet has an efficiency for the op class and
        dtype, or the source has no datasheet. Else it comes from the source's datasheet: then an op
        that is slower than its datasheet says is taken to be so on both devices.
        """
        here = self.group(target, load.op_class, load.dtype)
        group = self.group(source, load.op_class, load.dtype)
        spec = self.specs[target]
        if group.spec is None or spec.efficiency_of(load.op_class, load.dtype) is not None:
            there = group.seconds(load)
        else:
            there = _datasheet_seconds(load, group)
        return _datasheet_seconds(load, here) / there if there else 0.0

    @_once
    def _seconds(self, device_kind: str) -> Mapping[str, float]:
        """The measured seconds on a kind of device, by key."""
        rows, pace = measured_rows(self.profiles, device_kind), pace_of(self.specs.get(device_kind))
        return {row.key: float(row.device_seconds(pace)) for row in rows}

    @_once
    def _scaling_error(self, source: str, target: str, op_class: str) -> float | None:
        """Mean relative error of scaling from ``source``, over the keys that it shares with the
        target, or where these are too few with any third kind. None where these are too few, too.
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


def _remarks(load: Load, group: Group, ideal: tuple[float, float]) -> Iterator[str]:
    """Remarks on an answer of the datasheet, for people."""
    assert group.spec is not None
    assert group.datasheet is not None
    computes = ideal[0] / group.datasheet.compute > ideal[1] / group.datasheet.memory
    stand_in = peak_name(group.spec, load.dtype)
    if computes and stand_in != load.dtype:
        yield f"{load.dtype} at the peak of {stand_in}"
    others = group.spec.other_dtypes(load.op_class, load.dtype)
    if others:
        yield f"class default, its efficiency is of {' and '.join(others)}"


def _in_dtype(load: Load, dtype: str) -> Load:
    """The op in another dtype: the same operations on elements of another size."""
    share = Fraction(bits_of(dtype), bits_of(load.dtype))
    return replace(
        load, dtype=dtype, read=int(load.read * share), written=int(load.written * share)
    )


def _datasheet_seconds(load: Load, group: Group) -> float:
    assert group.spec is not None
    assert group.datasheet is not None
    return group.datasheet.seconds(ideal_seconds(load, group.spec))


def _moved(key: str, source: str, target: str) -> str:
    """The key on the kind of device ``target`` of an op with this key on ``source``."""
    return device_prefix(target) + key[len(device_prefix(source)) :]


# The cost of leaves and views, unless the graph or a profile gives one: they compute nothing and
# move no byte.
FREE_OF_COST = OpCost(Fraction(0), "given")


_LEARNT: dict[Any, Estimates] = {}
"""Estimates fitted to shipped rows, by the identities (``id``) of their profiles, which are read
once and never dropped, so no other profile gets the same identity.
"""
Source = Profile | str | os.PathLike[str] | Mapping[str, Any]
"""A profile, the path of its file, or the content of the file: ``{"header": {}, "rows": []}``."""


@dataclass(frozen=True, init=False)
class CostModel:
    """The ladder over profiles and datasheets; ``strict`` allows only given and measured times.

    ``profiles`` are one or several, each a Profile or the path of its file:
    ``CostModel("profiles/x.jsonl")``. With None a Scenario of a large model takes the measured rows
    that ship for each kind of its devices. With () there are no rows, only datasheets. ``specs``
    are datasheets; a Scenario finds the shipped ones of the kinds of a cluster and of profiles.
    Raises InputError where two specs are of one kind, and for a file that is no profile.

    ``shipped`` is None where the caller named the profiles, and () where they are still open. After
    a Scenario has chosen shipped rows it holds the datasheets of the devices on which these were
    measured. ``specs`` may then describe a faster or slower device of the same kind, so
    ``lowering/hybrid/durations.py`` multiplies times by the ratio of the two datasheets.
    """

    profiles: tuple[Profile, ...]
    specs: tuple[DeviceSpec, ...]
    strict: bool
    shipped: tuple[DeviceSpec, ...] | None

    def __init__(
        self,
        profiles: Source | Iterable[Source] | None = None,
        specs: Iterable[DeviceSpec] = (),
        strict: bool = False,
        shipped: tuple[DeviceSpec, ...] | None = None,
    ) -> None:
        object.__setattr__(self, "shipped", () if profiles is None else shipped)
        profiles = () if profiles is None else profiles
        # A text and a mapping are iterable, too, but mean one profile.
        if isinstance(profiles, (str, Mapping)) or not isinstance(profiles, Iterable):
            profiles = (profiles,)
        object.__setattr__(self, "profiles", tuple(map(_opened, profiles)))
        object.__setattr__(self, "specs", tuple(specs))
        object.__setattr__(self, "strict", strict)
        counts = Counter(spec.kind for spec in self.specs)
        twice = sorted(kind for kind, count in counts.items() if count > 1)
        refuse(f'specs: two of kind "{kind}"' for kind in twice)

    def completed(
        self,
        specs: tuple[DeviceSpec, ...],
        rows: tuple[Profile, ...] = (),
        shipped: tuple[DeviceSpec, ...] | None = (),
    ) -> CostModel:
        """The ladder with these datasheets. Where its profiles were left open it also gets
        ``rows``, which were measured on the devices of the datasheets ``shipped``.

        The result is remembered, and with it its fits and answers, since hundreds of scenarios may
        share a model.
        """
        if self.shipped is None:
            rows, shipped = self.profiles, None
        before, after = (tuple(map(id, profiles)) for profiles in (self.profiles, rows))
        if len(specs) == len(self.specs) and before == after:
            return self
        kinds = tuple(spec.kind for spec in specs), after
        if kinds not in self._variants:
            self._variants[kinds] = replace(self, profiles=rows, specs=specs, shipped=shipped)
        return self._variants[kinds]

    @cached_property
    def _variants(self) -> dict[Any, CostModel]:
        return {}

    @cached_property
    def estimates(self) -> Estimates:
        """The rungs below the measured one."""
        if not self.shipped:
            return Estimates(self.profiles, {spec.kind: spec for spec in self.specs})
        # Fitting takes seconds, and equal rows give equal fits in any model.
        key = tuple(map(id, self.profiles))
        if key not in _LEARNT:
            known = {spec.kind: spec for spec in self.shipped}
            _LEARNT[key] = Estimates(self.profiles, known, carries=False)
        return _LEARNT[key]

    def cost(self, graph: Graph, position: int, device_kind: str) -> OpCost | None:
        """The cost of one op of the graph on a kind of device, or None where nothing is known."""
        op = graph.ops[position]
        seconds = op.seconds_on(device_kind)
        if seconds is not None:
            return OpCost(seconds, "given")
        if traits_of(op.kind).leaf and not self.profiles:
            return FREE_OF_COST
        key = op_key(graph, position, device_kind)
        known = self.cost_of_key(key, op.kind, device_kind)
        return known if known or self.strict else self.memory_pass(graph, position, device_kind)

    def memory_pass(self, graph: Graph, position: int, device_kind: str) -> OpCost | None:
        """The last rung; None for an op whose kind has a description, or without a datasheet."""
        if not _is_undescribed(graph, position):
            return None
        cost = self.estimates.memory_pass(whole_bytes(graph, position), device_kind)
        return None if cost is None or picoseconds(cost.seconds) > MAX_PS else cost

    def cost_of_key(self, key: str, kind: str, device_kind: str) -> OpCost | None:
        """The cost of an op by its profile key, in which both kinds stand, too."""
        answers = self.estimates.answers
        if key not in answers:
            answers[key] = self._answer(key, kind, device_kind)
        return answers[key]

    def host_cost(self, graph: Graph, position: int, device_kind: str) -> HostCost | None:
        """The cost of dispatching one op of the graph on the host of a kind of device, or None
        where nothing is known.
        """
        return self._dispatches.column(graph, device_kind)[position]

    @cached_property
    def _dispatches(self) -> Dispatches:
        return Dispatches(self.profiles, self.estimates.specs)

    def launches(self, graph: Graph, position: int, device_kind: str) -> int:
        """The number of kernels that one op of the graph launches on a kind of device."""
        return self._dispatches.launches(graph, device_kind)[position]

    def _answer(self, key: str, kind: str, device_kind: str) -> OpCost | None:
        row = next((profile.rows[key] for profile in self.profiles if key in profile.rows), None)
        if row is not None:
            # A row whose source is no rung (a user's own model) is an estimate: ``strict`` refuses
            # it, and it is shown as fitted.
            rung = row.source if row.source in RUNGS else "fitted"
            allowed = rung in KNOWN or not self.strict
            seconds = row.device_seconds(pace_of(self.estimates.specs.get(device_kind)))
            # Files check rows with the usual gap; a datasheet's gap may be a million times longer.
            allowed = allowed and picoseconds(seconds) <= MAX_PS
            return OpCost(seconds, rung, row.rel_err) if allowed else None
        load = load_of(key)
        if traits_of(kind).leaf or (load is not None and load.is_free):
            return FREE_OF_COST
        if load is None or self.strict or not self.estimates.knows(device_kind):
            return None
        cost = self.estimates.cost(key, load, device_kind)
        return None if cost is None or picoseconds(cost.seconds) > MAX_PS else cost

    def why_unknown(self, key: str, device_kind: str) -> str:
        """The reason, for people, why an op's cost is unknown; "" where only its row is missing."""
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


def _is_undescribed(graph: Graph, position: int) -> bool:
    """Whether only the bytes of its tensors are known of an op of the graph."""
    op = graph.ops[position]
    if not is_described(op.kind):
        return op.kind != NO_KIND
    # Its kind has a description, but keys leave out tensors without elements.
    shapes = (*operand_shapes(graph, position), *(tensor.shape for tensor in op.made))
    return (
        any(0 in (shape or ()) for shape in shapes) and load_of(op_key(graph, position, "")) is None
    )


def _opened(source: Source) -> Profile:
    if isinstance(source, Profile):
        return source
    if not isinstance(source, (str, os.PathLike, Mapping)):
        raise InputError(f"profiles: must be profiles or paths of their files, got {source!r}")
    # By name: the reader of files is on a floor above, and only a path needs it.
    profile: Profile = provided("read_profile")(source)
    return profile
