"""The time that a host needs to dispatch the ops of a step, and the kernels that they launch.

The ladder of hosts has four rungs, from the surest down:

given         the graph says it (``Op.host_time``).
measured      the op's row has the host's time in a real step (``host_step_ns``).
estimated     the profile has the host's time of the phase, or rows have the time of bare calls
              (``host_ns``).
datasheet     the device's datasheet has the time of a bare call (``dispatch``).

The host's time of an op that no rung knows is None: it counts as nothing, and reports say so.
``CostModel`` (``costs/ladder.py``) returns these times to ``lowering/prepare.py`` and to the
checker (``execution/check/hosts.py``). ``measure/compare.py`` reads phases of headers.

In a step the host needs longer for an op than for a bare call of it: modules, views, autograd's
records and cold caches come on top. An estimate is a number of bare dispatches of a small
elementwise op, in three classes (LIGHT, HEAVY, FIRST). These numbers were fitted to the host's
times by phase of 19 steps of 15 models on one machine with an H100; ``benchmarks.h100 --fit`` fits
them anew. For a model left out of the fit, a phase errs by 18 % in the mean; two runs of one step
differ by 10 to 25 %. Guarded by ``tests/costs/test_dispatch.py``, the phases by
``tests/measure/test_measured_compare.py``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import copysign, dist, exp, isfinite, log
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from ..ground.units import MAX_PS, PS_PER_SECOND, picoseconds
from ..nouns.graph import PHASES, Graph, Op
from ..nouns.semantics import op_class, traits_of
from ..nouns.semantics.keys import Load, load_of, op_key
from ..nouns.structure import part_of
from ..nouns.taskgraph import Floats
from .groups import device_prefix, measured_rows
from .roofline import DeviceSpec, pace_of, rounded
from .rows import Header, Profile, Row, fields_of, object_at

HOST_RUNGS = ("given", "measured", "estimated", "datasheet")
"""The rungs of the host's ladder, from the surest down."""


@dataclass(frozen=True, slots=True)
class HostCost:
    """The time of a host to dispatch an op, in seconds, with all of its kernels.

    ``launches`` is the number of kernels, ``rung`` the one of HOST_RUNGS that answered, ``rel_err``
    the expected relative error (0.1 is 10 %, None: unknown), ``basis`` the source of an estimate.
    """

    seconds: Fraction
    launches: int
    rung: str
    rel_err: float | None = None
    basis: str = ""


def between_cost(
    headers: Iterable[Header], op: Op, device_kind: str, launches: int = 1
) -> HostCost | None:
    """The time between ops on a kind of device that is its own host (a CPU): the time of a phase of
    a measured step beyond the time of its ops, in equal parts.

    ``headers`` are the headers of profiles. None where no header of this kind has the phase.
    """
    for header in headers:
        if not tells_own_host(header, device_kind):
            continue
        seconds = phase_share(object_at(fields_of(header), "host"), op.phase)
        if seconds is not None:
            if traits_of(op.kind).leaf is not None:
                seconds = Fraction(0)
            basis = "the time between the ops of its phase, measured with them"
            return HostCost(seconds, launches, "estimated", None, basis)
    return None


def tells_own_host(header: Header, device_kind: str) -> bool:
    """Whether a profile's header describes this kind of device as its own host."""
    device, host = (object_at(fields_of(header), name) for name in ("device", "host"))
    return is_own_host(host) and device.get("kind") == device_kind


def is_own_host(host: Header) -> bool:
    """Whether the ``host`` in a profile's header is the device itself (a CPU)."""
    return "ahead" in host


def phase_share(host: Header, phase: str) -> Fraction | None:
    """The host's seconds for one op of a phase, by the ``host`` of a profile's header; None where
    it has none, or numbers that cannot be times.
    """
    part = object_at(host, "phases", phase)
    try:
        ops, seconds = int(part["ops"]), Fraction(str(part["host_s"]))
    except (KeyError, TypeError, ValueError, ArithmeticError):
        return None
    return seconds / ops if ops > 0 and 0 <= seconds * PS_PER_SECOND <= MAX_PS else None


# The time of dispatching, from a measured step whose phases the host held up. A step begins with
# host and device idle. An op starts when it is dispatched and the op before it has finished. So a
# phase ends at the largest sum of the dispatches up to an op and the device's times from that op
# on. Where a phase lasted clearly longer than its ops, this gives the time of dispatching.


# A phase was clearly held up by the host where it lasted longer than this times its ops.
_HELD = 1.25
_LEAD = 0.1  # of a phase: a host that is ahead by more did not hold it up all the time
# Two runs of one step differ by this much (in logarithms); smaller differences mean nothing.
_NOISE = 0.15
_LEAST, _MOST, _HALVINGS = 1 / 16, 16.0, 40


def held_factors(
    phases: Sequence[str],
    host: Sequence[float],
    device: Sequence[float],
    measured: Header,
) -> dict[str, float]:
    """The factor on the host's times for each phase that the host held up. ``phases``, ``host`` and
    ``device`` (seconds) are by op, in program order; ``measured`` has the measured phases
    (``measured_step_s``).
    """
    names, hosts, devices = np.array(phases), np.array(host), np.array(device)
    factors: dict[str, float] = {}
    begun = busy = 0.0  # when the phase's dispatches begin, and when the device is free
    for phase in PHASES:
        of_phase = names == phase
        seconds = _seconds(measured.get(phase))
        if not of_phase.any() or seconds is None:
            return factors
        dispatch, work = hosts[of_phase], devices[of_phase]
        factor = 1.0
        # A host that is ahead when a phase begins may have waited for the device.
        if seconds > _HELD * work.sum() and busy - begun < _LEAD * seconds:
            factor = _factor(dispatch, work, begun, busy, seconds)
            factors[phase] = factor
        end = _end(factor * dispatch, work, begun, busy)
        begun, busy = begun + factor * float(dispatch.sum()), end
    return factors


def _seconds(phase: Any) -> float | None:
    """The measured seconds of a phase; None where a header has no number."""
    try:
        seconds = float(phase["measured_step_s"])
    except (KeyError, TypeError, ValueError):
        return None
    return seconds if isfinite(seconds) else None


def _end(dispatch: Floats, work: Floats, begun: float, busy: float) -> float:
    """The time when a device busy until ``busy`` ends a phase dispatched from ``begun`` on."""
    done = np.cumsum(work)
    waits = float((begun + np.cumsum(dispatch) - (done - work)).max())
    return max(busy, waits) + float(done[-1])


def _factor(dispatch: Floats, work: Floats, begun: float, busy: float, seconds: float) -> float:
    """The factor with which a phase lasts as measured, less the noise between two runs."""
    low, high = _LEAST, _MOST
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        lasts = _end(middle * dispatch, work, begun, busy) - busy
        low, high = (low, middle) if lasts > seconds else (middle, high)
    exponent = log(high)
    return exp(copysign(max(0.0, abs(exponent) - _NOISE), exponent))


LIGHT = Fraction(93, 100)
"""Bare dispatches for a light op: an elementwise op, a copy into existing memory, a launch of an
optimizer's loop, or the second half of a convolution's backward, which is one call with the first.
"""
HEAVY = Fraction(472, 100)
"""Bare dispatches for any other op: part of a module, among views, recorded by autograd."""
FIRST = Fraction(272, 100)
"""Bare dispatches on top for the first op of a profile key in a step: the host's caches
are cold.
"""

WEIGHT, INPUT = "_backward_weight", "_backward_input"
Place = tuple[float, ...]
ESTIMATED_ERROR, DATASHEET_ERROR = 0.2, 0.5
RUN_ERROR = 0.175
"""The relative difference between two runs of a host-bound step, equal for all dispatches: the
middle of 10 to 25 % (docs/reference/errors.md).
"""
# Bare calls of two runs on one machine differ by less. A larger ratio means another host than the
# datasheet's.
_SAME_HOST = Fraction(3, 2)


class Bare(NamedTuple):
    """Seconds of a bare dispatch on the host of a kind of device, and the rung that answered."""

    seconds: Fraction
    rung: str
    rel_err: float
    basis: str


class Weight(NamedTuple):
    """The cost of dispatching an op, as numbers of LIGHT, HEAVY and FIRST dispatches."""

    light: int
    heavy: int
    first: int

    @property
    def dispatches(self) -> Fraction:
        """The sum in bare dispatches."""
        return LIGHT * self.light + HEAVY * self.heavy + FIRST * self.first


class Dispatches:
    """Host costs of graphs by kind of device; remembers the costs of the last graph."""

    def __init__(self, profiles: tuple[Profile, ...], specs: Mapping[str, DeviceSpec]) -> None:
        self.profiles, self.specs = profiles, specs
        self._bare: dict[str, Bare | None] = {}
        self._graph: Graph | None = None
        self._columns: dict[str, tuple[list[HostCost | None], list[int]]] = {}
        self._sizes: dict[tuple[str, str], list[tuple[Place, int]]] = {}
        self._estimated: dict[str, int] = {}  # launches by key

    def column(self, graph: Graph, device_kind: str) -> Sequence[HostCost | None]:
        """The host's cost of every op of a graph, None where it is unknown."""
        return self._of(graph, device_kind)[0]

    def launches(self, graph: Graph, device_kind: str) -> Sequence[int]:
        """The number of kernels that each op of a graph launches: as the op says, else by its row,
        else by the row of its kind nearest in size, else one. Leaves and views of measured graphs
        launch none.
        """
        return self._of(graph, device_kind)[1]

    def _of(self, graph: Graph, device_kind: str) -> tuple[list[HostCost | None], list[int]]:
        if self._graph is not graph:
            self._graph, self._columns = graph, {}
        if device_kind not in self._columns:
            # Keys take long to make, and without profiles there are no rows to look up.
            positions = range(len(graph.ops)) if self.profiles else ()
            keys = [op_key(graph, i, device_kind) for i in positions]
            keys = keys or [op.kind for op in graph.ops]
            rows = [self._row(key) for key in keys]
            launches = list(map(self._launches, graph.ops, keys, rows))
            costs = list(self._costs(graph, device_kind, keys, rows, launches))
            self._columns[device_kind] = costs, launches
        return self._columns[device_kind]

    def _costs(
        self,
        graph: Graph,
        device_kind: str,
        keys: Sequence[str],
        rows: Sequence[tuple[Profile, Row] | None],
        launches: Sequence[int],
    ) -> Iterator[HostCost | None]:
        # Filtered once: few profiles are of such a device, and every op would search them all.
        headers = [p.header for p in self.profiles if tells_own_host(p.header, device_kind)]
        bare = self.bare(device_kind)
        seconds: list[Fraction | None] = [None] * len(keys)
        if bare is not None:
            each = weights(graph, keys, launches)
            seconds = [weight.dispatches * bare.seconds for weight in each]
            if bare.rung == "estimated":
                seconds = self._as_held(graph, device_kind, rows, seconds)
        for op, row, count, estimate in zip(graph.ops, rows, launches, seconds, strict=True):
            given = op.host_seconds_on(device_kind)
            known = None if given is None else HostCost(given, count, "given")
            if known is None and row is not None:
                known = _in_a_step(*row, op.phase, count)
            known = known or between_cost(headers, op, device_kind, count)
            if known is not None:
                yield known
            elif _launches_nothing(op.kind):
                # The costs of other ops include the calls of views.
                yield HostCost(Fraction(0), count, "given")
            elif bare is None or estimate is None or picoseconds(estimate) > MAX_PS:
                yield None
            else:
                yield HostCost(estimate, count, *bare[1:])

    def _launches(self, op: Op, key: str, row: tuple[Profile, Row] | None) -> int:
        if op.launches is not None:
            return op.launches
        if row is not None and row[1].launches is not None:
            return row[1].launches
        if key not in self._estimated:
            self._estimated[key] = self._estimated_launches(op.kind, key)
        return self._estimated[key]

    def _estimated_launches(self, kind: str, key: str) -> int:
        device_kind = json.loads(key)[0] if self.profiles else ""
        # Without a measured row of this kind of device the default counts: one launch.
        if _launches_nothing(kind) and any(device_kind in p.device_kinds for p in self.profiles):
            return 0
        of_kind = self._of_kind(device_kind, kind) if self.profiles else []
        load = load_of(key) if of_kind else None
        if load is None:
            return 1
        place = _place(load)
        return min(of_kind, key=lambda row: dist(row[0], place))[1]

    def _of_kind(self, device_kind: str, kind: str) -> list[tuple[Place, int]]:
        """The size and launches of each measured row of a kind of op on a kind of device."""
        if (device_kind, kind) not in self._sizes:
            start = f"{device_prefix(device_kind)}{json.dumps(kind)},"
            rows = [
                row
                for row in measured_rows(self.profiles, device_kind)
                if row.key.startswith(start) and row.tells_kernels
            ]
            loads = [(load_of(row.key), row.launches) for row in rows]
            self._sizes[device_kind, kind] = [
                (_place(load), count) for load, count in loads if load is not None and count
            ]
        return self._sizes[device_kind, kind]

    def _row(self, key: str) -> tuple[Profile, Row] | None:
        """The first profile that has a row of this key, and the row."""
        return next(((p, p.rows[key]) for p in self.profiles if key in p.rows), None)

    def _as_held(
        self,
        graph: Graph,
        device_kind: str,
        rows: Sequence[tuple[Profile, Row] | None],
        seconds: Sequence[Fraction | None],
    ) -> list[Fraction | None]:
        """The estimates, corrected by phase where the step measured with the rows was held up by
        the host (``held_factors``).
        """
        pace = pace_of(self.specs.get(device_kind))
        whole = [i for i, row in enumerate(rows) if row is not None]
        profiles = {id(row[0]): row[0] for row in rows if row is not None}
        step = step_of(next(iter(profiles.values()))) if len(profiles) == 1 else {}
        if step.get("ops") != len(whole):
            return list(seconds)  # not the step that the profile measured
        phases = [graph.ops[i].phase for i in whole]
        host = [float(seconds[i] or 0) for i in whole]
        device = [float(row[1].device_seconds(pace)) for row in rows if row is not None]
        factors = held_factors(phases, host, device, object_at(step, "phases"))
        return [
            None if time is None else rounded(float(time) * factors.get(op.phase, 1.0))
            for op, time in zip(graph.ops, seconds, strict=True)
        ]

    def bare(self, device_kind: str) -> Bare | None:
        """The time of a bare dispatch by rows of the kind, else by its datasheet; None without
        either.
        """
        if device_kind not in self._bare:
            self._bare[device_kind] = self._find_bare(device_kind)
        return self._bare[device_kind]

    def _find_bare(self, device_kind: str) -> Bare | None:
        spec, start = self.specs.get(device_kind), device_prefix(device_kind)
        known = None if spec is None else spec.dispatch
        times = [
            Fraction(row.details["host_ns"]) / 10**9
            for profile in self.profiles
            for key, row in profile.rows.items()
            if key.startswith(start) and _tells_a_bare_call(row)
        ]
        if not times:
            text = "a bare dispatch by the datasheet"
            return None if known is None else Bare(known, "datasheet", DATASHEET_ERROR, text)
        seconds = rounded(float(median(times)))
        if known is not None and known / _SAME_HOST <= seconds <= known * _SAME_HOST:
            seconds = known
        text = f"bare calls of {len(times)} rows"
        return Bare(seconds, "estimated", ESTIMATED_ERROR, text)


def _tells_a_bare_call(row: Row) -> bool:
    """Whether a row has one launch of a small elementwise op on a GPU, which the host does not wait
    for.
    """
    get = row.details.get
    if get("host_ns") is None or not row.tells_kernels or row.launches != 1:
        return False
    return op_class(str(get("op"))) == "elementwise"


def _launches_nothing(kind: str) -> bool:
    traits = traits_of(kind)
    return traits.leaf is not None or traits.view


def _place(load: Load) -> Place:
    return tuple(log(max(size, 1)) for size in (load.flops, load.read, load.written))


def weights(graph: Graph, keys: Sequence[str], launches: Sequence[int]) -> Iterator[Weight]:
    """The cost of dispatching each op of a graph, given the keys and launches of its ops.

    Each part of a split op is dispatched by its own host, which has its own first op of a key.
    """
    seen: set[tuple[str, str]] = set()
    before: dict[str, str] = {}
    for op, key, count in zip(graph.ops, keys, launches, strict=True):
        part = part_of(op.name)
        first = int((part, key) not in seen)
        seen.add((part, key))
        input_kind = op.kind.removesuffix(WEIGHT) + INPUT
        half = op.kind.endswith(WEIGHT) and before.get(part) == input_kind
        before[part] = op.kind
        if op_class(op.kind) == "optimizer":
            yield Weight(count, 0, first)
        elif half or op_class(op.kind) == "elementwise" or traits_of(op.kind).bare:
            yield Weight(1, 0, first)
        else:
            yield Weight(0, 1, first)


def _in_a_step(profile: Profile, row: Row, phase: str, launches: int) -> HostCost | None:
    """The host's time of an op in a real step, by its row or by the header of its profile."""
    measured = row.details.get("host_step_ns")
    if measured is not None:
        seconds = Fraction(measured) / 10**9
        if row.source == "measured":
            return HostCost(seconds, launches, "measured")
        # A share of a measured time (of an optimizer's step, in a trace) is an estimate of the op.
        note = str(row.details.get("note") or "a row that was not measured")
        return HostCost(seconds, launches, "estimated", ESTIMATED_ERROR, note)
    host = object_at(fields_of(profile.header), "host")
    share = None if is_own_host(host) else phase_share(host, phase)
    if share is None:
        return None
    mean = rounded(float(share))
    return HostCost(mean, launches, "estimated", ESTIMATED_ERROR, "the phase of a measured step")


def step_of(profile: Profile) -> Header:
    """The whole step measured with the rows of a profile, from its header; empty without one."""
    return object_at(fields_of(profile.header), "step")
