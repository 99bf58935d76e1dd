"""Fits the host's dispatch times to a measured step: a factor for each phase from the phases' times
on the host, one factor from the time of the whole step, or times by op from a trace.

``simdev calibrate --fit host`` calls it. The times are written into the graph;
``simdev.costs.dispatch`` makes costs of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple

from ...execution.period import step_time_ps
from ...execution.scenario import Scenario, execute, graph_of
from ...files.reading import PathLike, label, read_json, shown
from ...ground.errors import InputError
from ...ground.units import MAX_PS, PS_PER_SECOND, exact, format_seconds
from ...lowering import Prepared
from ...nouns.graph import PHASES, Graph
from ...nouns.strategy import resolve_placement
from ...report.table import NUMBER, TEXT, Table, table_text
from .observe import read_measured

_DISPATCH = "dispatch "
# A factor outside of these limits means another step, another graph or a wrong unit.
_LEAST, _MOST, _HALVINGS = 1 / 64, 64.0, 24
_CLOSE = 1e-4  # relative tolerance of step times
_UNITS = {"host_ms": 1000, "host_s": 1}  # of a second, by the key of times by phase


_NO_HOST = 'tells no host: neither "host_ms", "host_s" or "wall_s", nor spans "dispatch OP"'


class HostTimes(NamedTuple):
    """Measured times of a host, in seconds: by phase, or of the whole step, or by op name."""

    phases: Mapping[str, float]
    step_s: float | None
    ops: Mapping[str, Fraction]
    source: str = ""
    field: str = "host_s"  # the key of the phases' times in the file


@dataclass(frozen=True)
class HostCalibration:
    """A scenario whose ops carry fitted host times. The host's seconds by phase, and the step's,
    are each (measured, before, fitted); measured is None where the file lacks it.
    """

    scenario: Scenario
    phases: Mapping[str, tuple[float | None, float, float]]
    step_s: tuple[float | None, float, float]
    source: str

    def to_json(self) -> dict[str, Any]:
        """The output of ``simdev calibrate --fit host --json``."""
        names = ("measured", "before", "fitted")
        rows = {**self.phases, "step": self.step_s}
        return {"measured_in": self.source} | {
            ("step_s" if name == "step" else f"host_s.{name}"): dict(zip(names, row, strict=True))
            for name, row in rows.items()
        }


def read_host_times(path: PathLike) -> HostTimes:
    """The host's times in a file. The file is an object with ``host_ms`` (milliseconds by phase),
    ``host_s`` (seconds by phase) or ``wall_s`` (seconds per step in a row of many steps), or a
    trace with spans named ``dispatch OP``. Raises InputError.
    """
    value = read_json(path)
    if not isinstance(value, dict) or not {"host_ms", "host_s", "wall_s"} & set(value):
        # An object that is no trace was meant as a file of host times.
        if isinstance(value, dict) and not {"spans", "traceEvents"} & set(value):
            raise InputError(_NO_HOST, label(path))
        spans = read_measured(path).spans
        ops = {
            name.removeprefix(_DISPATCH): Fraction(
                sum(finish - start for start, finish in times), len(times) * PS_PER_SECOND
            )
            for name, times in spans.items()
            if name.startswith(_DISPATCH)
        }
        if not ops:
            raise InputError(_NO_HOST, label(path))
        return HostTimes({}, None, ops, label(path))
    try:
        keys = [key for key in _UNITS if key in value]
        if len(keys) > 1:
            raise InputError(f"{', '.join(keys)}: the same times twice; leave one of them out")
        phases = dict(_phases(value[keys[0]], keys[0])) if keys else {}
        step = None if "wall_s" not in value else _seconds(value["wall_s"], "wall_s")
    except InputError as error:
        raise error.within(label(path)) from None
    return HostTimes(phases, step, {}, label(path), *keys)


def _phases(table: Any, key: str) -> Iterator[tuple[str, float]]:
    if not isinstance(table, dict) or not set(table) <= set(PHASES):
        wanted = f"must be an object of times by phase ({', '.join(PHASES)})"
        raise InputError(f"{key}: {wanted}, got {shown(table)}")
    if not table:
        raise InputError(f"{key}: tells the time of no phase ({', '.join(PHASES)})")
    for phase, time in table.items():
        yield phase, _seconds(time, f"{key}.{phase}", _UNITS[key])


def _seconds(value: Any, path: str, unit: int = 1) -> float:
    """A time of the file in seconds; the file counts it in units of 1 / ``unit`` second."""
    try:
        seconds = exact(value) / unit
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    if isinstance(value, str) or seconds <= 0:
        raise InputError(f"{path}: must be a number above 0, got {shown(value)}")
    if seconds * PS_PER_SECOND > MAX_PS:
        raise InputError(f"{path}: is larger than 53 days: {shown(value)}")
    return float(seconds)


def calibrate_host(scenario: Scenario, measured: HostTimes) -> HostCalibration:
    """Fit host times: to a trace's times by op, else to those of phases, else to the step's time.

    Raises InputError where the scenario has no host that dispatches ops, or no host times; where
    the step's time does not depend on the host; where even the slowest host does not make the step
    as long as measured; and where the trace has none of the ops.
    """
    known = _host_seconds(scenario)
    before = _step_s(scenario)
    if measured.ops:
        names = {op: graph_of(scenario).ops[op].name for op in known}
        _require_some(measured, list(names.values()))
        times = {op: measured.ops.get(names[op], time) for op, time in known.items()}
        fitted = _with_hosts(scenario, times)
    elif measured.phases:
        factors = _factors(scenario, known, measured)
        fitted = _scaled(scenario, known, lambda phase: factors.get(phase, Fraction(1)))
    else:
        fitted = _to_step(scenario, known, float(measured.step_s or 0), before)
    sums, ends = _by_phase(scenario, known), _by_phase(fitted, _host_seconds(fitted))
    phases = {phase: (measured.phases.get(phase), sums[phase], ends[phase]) for phase in sums}
    steps = (measured.step_s, before, _step_s(fitted))
    return HostCalibration(fitted, phases, steps, measured.source)


def _host_seconds(scenario: Scenario) -> dict[int, Fraction]:
    """The host time in seconds of each op, by position in the graph, where it is known."""
    graph, cluster = graph_of(scenario), scenario.cluster
    prepared = Prepared(graph, cluster, scenario.costs, scenario.memory)
    placement = resolve_placement(prepared.graph, cluster, scenario.strategy.placement)
    known = {}
    for i, device in enumerate(placement):
        host = cluster.host_of(device)
        if host is not None and host.mode == "eager":
            cost = prepared.costed.host_cost(i, cluster.devices[device].kind)
            if cost is not None:
                known[i] = cost.seconds
    if not any(known.values()):
        modes = {host.mode for host in map(cluster.host_of, cluster.hosted) if host is not None}
        if modes == {"graph"}:
            raise InputError(
                "cluster: hosts that replay graphs dispatch no ops; there is nothing to fit"
            )
        raise InputError("cluster: no device has a host of which anything is known, to be fitted")
    return known


def _by_phase(scenario: Scenario, known: Mapping[int, Fraction]) -> dict[str, float]:
    ops = graph_of(scenario).ops
    sums: dict[str, Fraction] = {}
    for i, seconds in known.items():
        sums[ops[i].phase] = sums.get(ops[i].phase, Fraction(0)) + seconds
    return {phase: float(sums[phase]) for phase in PHASES if phase in sums}


def _factors(
    scenario: Scenario, known: Mapping[int, Fraction], measured: HostTimes
) -> dict[str, Fraction]:
    sums = _by_phase(scenario, known)
    absent = [phase for phase in measured.phases if not sums.get(phase)]
    if absent:
        reason = "no op of this phase is known to take time"
        problems = [f"{measured.field}.{phase}: {reason}" for phase in absent]
        raise InputError(problems, measured.source or None)
    return {phase: Fraction(time / sums[phase]) for phase, time in measured.phases.items()}


def _require_some(measured: HostTimes, names: Sequence[str]) -> None:
    """Raises InputError where no dispatch of a trace has the name of an op."""
    if not any(name in measured.ops for name in names):
        raise InputError(
            f'no span "dispatch OP" bears the name of an op: the trace has '
            f'"{_DISPATCH}{next(iter(measured.ops))}", the scenario the op "{names[0]}"',
            measured.source or None,
        )


def _to_step(
    scenario: Scenario, known: Mapping[int, Fraction], target: float, before: float
) -> Scenario:
    """The scenario with all host times scaled by one factor, so that the step lasts as measured."""

    def at(factor: float) -> Scenario:
        return _scaled(scenario, known, lambda _: Fraction(factor))

    low, high = _LEAST, _MOST
    if _step_s(at(low)) > target:
        raise InputError("wall_s: the devices alone need longer, so it tells nothing of the host")
    if _step_s(at(high)) < target * (1 - _CLOSE):
        raise InputError(
            f"wall_s: even hosts that are {_MOST:g} times slower take less: another step, or unit"
        )
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        lasts = _step_s(at(middle))
        low, high = (low, middle) if lasts > target else (middle, high)
        if abs(lasts / target - 1) < _CLOSE:
            break
    return at(middle)


def _scaled(
    scenario: Scenario,
    known: Mapping[int, Fraction],
    factor: Callable[[str], Fraction],
) -> Scenario:
    ops = graph_of(scenario).ops
    return _with_hosts(scenario, {i: factor(ops[i].phase) * time for i, time in known.items()})


def _with_hosts(scenario: Scenario, times: Mapping[int, Fraction]) -> Scenario:
    """The scenario with these host times, rounded to whole ps, on its ops."""
    graph: Graph = graph_of(scenario)
    ops = list(graph.ops)
    for i, seconds in times.items():
        whole = Fraction(round(seconds * PS_PER_SECOND), PS_PER_SECOND)
        ops[i] = replace(ops[i], host_time=whole)
    return replace(scenario, graph=replace(graph, ops=tuple(ops)))


def _step_s(scenario: Scenario) -> float:
    return step_time_ps(execute(scenario).trace) / PS_PER_SECOND


def host_text(calibration: HostCalibration) -> str:
    """A table of the host's times by phase and of the step: measured, before, fitted, and the
    signed relative error of the fit.
    """
    rows = {**calibration.phases, "step": calibration.step_s}
    body = []
    for name, (known, before, fitted) in rows.items():
        times = ("" if time is None else format_seconds(time) for time in (known, before, fitted))
        body.append((name, *times, "" if known is None else f"{fitted / known - 1:+.2%}"))
    numbers = ("measured", "before", "fitted", "off")
    columns = {"host's time of": TEXT} | dict.fromkeys(numbers, NUMBER)
    return table_text(Table("The host as fitted", columns, tuple(body), shown=len(body)))
