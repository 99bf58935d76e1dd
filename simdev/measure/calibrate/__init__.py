"""Calibration: fits a scenario to measurements, reports how well the original and the fitted
scenario predict the trace, and writes the fitted one to files.

``simdev calibrate`` is the caller. ``calibrate`` fits gaps, latencies, bandwidths and efficiencies
to a trace: ``observe`` reads the trace, ``fit`` fits, ``solve`` is the mathematics; this module
executes, reports and writes the fitted scenario. It also writes the host times that ``hosts`` and
``steps`` fit. Where steps follow one another, periods are compared (``simdev.execution.period``).
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from ...execution.period import follow_one_another, step_time_ps
from ...execution.scenario import Scenario, execute, graph_of, of_every_device
from ...files.cluster import cluster_text
from ...files.reading import PathLike, read_json
from ...files.scenario import moved
from ...files.shape import VERSION, plain
from ...files.writing import write_text
from ...ground.frozen import FrozenDict
from ...ground.units import PS_PER_SECOND, format_bandwidth, format_seconds, picoseconds, time_text
from ...ground.version import __version__
from ...nouns.cluster import Cluster
from ...nouns.graph import Graph, Op
from ...nouns.taskgraph import TRANSFER
from ...nouns.trace import Trace
from ...report.table import NUMBER, TEXT, Table, shorten, table_text
from .fit import FIT, fit
from .hosts import HostCalibration, HostTimes, calibrate_host, host_text, read_host_times
from .observe import (
    MOST_OVERLAP,
    Measured,
    Member,
    Scene,
    numbered,
    period_ps,
    read_measured,
    task_and_step,
)
from .solve import Parameter, goodness
from .steps import MeasuredStep, StepFit, calibrate_steps, read_steps, steps_text

__all__ = [
    "FIT",
    "Calibration",
    "HostCalibration",
    "HostTimes",
    "Measured",
    "MeasuredStep",
    "Parameter",
    "Quality",
    "Residual",
    "StepFit",
    "calibrate",
    "calibrate_host",
    "calibrate_steps",
    "calibration_text",
    "fitted_cluster",
    "host_text",
    "read_host_times",
    "read_measured",
    "read_steps",
    "steps_text",
    "write_fitted",
    "write_fitted_cluster",
    "write_fitted_steps",
    "write_hosted",
]

# Writes a calibrated scenario, or its cluster alone: fitted values replace the old ones, and
# everything else stays unchanged.


def fitted_cluster(calibration: Calibration) -> Cluster:
    """The fitted cluster, with the provenance of the fitted values."""
    cluster = calibration.scenario.cluster
    # An entry for all links, or for all devices, is no longer true once one of them is fitted.
    stale = set()
    for parameter in calibration.parameters:
        if parameter.fitted and parameter.on_links:
            stale |= {f"links{every}.{parameter.quantity}" for every in ("", ".all_to_all")}
        elif parameter.fitted and parameter.quantity == "gap":
            stale.add("devices.gap")
    kept = {name: entry for name, entry in cluster.provenance.items() if name not in stale}
    return replace(cluster, provenance={**kept, **_provenance(calibration, False)})


def write_fitted_cluster(calibration: Calibration, path: PathLike) -> None:
    """Write the fitted cluster, whole or not at all. Raises OSError."""
    write_text(path, cluster_text(fitted_cluster(calibration)))


def write_fitted(
    calibration: Calibration, source: PathLike, path: PathLike, place: PathLike | None = None
) -> None:
    """Write the scenario of the file ``source`` with the fitted values, whole or not at all.

    The file holds the cluster itself and, where efficiencies were fitted, also the graph: the ops
    of the fitted classes carry times. Other parts remain references to their files, relative to the
    folder of ``place`` (None: of ``path``, which may be a temporary file). Raises InputError,
    OSError.
    """
    written = _document(source, place or path)
    # The writer of clusters makes this text too, so that both outputs agree.
    written["cluster"] = json.loads(cluster_text(fitted_cluster(calibration)))
    timed = _timed_ops(calibration)
    if timed:
        written["graph"] = _graph_with(source, "time", timed)
    _write(path, written, _provenance(calibration, True))


def write_fitted_steps(
    fit: StepFit, source: PathLike, path: PathLike, place: PathLike | None = None
) -> None:
    """Write the scenario of the file ``source`` with the fitted host times, whole or not at all.

    Paths are relative as in ``write_fitted``. Raises InputError, OSError.
    """
    times = {phase: time_text(time) for phase, time in fit.host_time.items()}
    origin = {
        "value": times,
        "kind": "fitted",
        "steps": len(fit.names),
        "mean_error": fit.mean_error("fitted"),
        "mean_error_left_out": fit.mean_error("left_out"),
        "source": f"simdev calibrate {__version__} on {fit.source}",
    }
    written = _document(source, place or path)
    written["graph"] |= {"host_time": times}
    _write(path, written, {"graph.host_time": origin})


def write_hosted(
    calibration: HostCalibration, source: PathLike, path: PathLike, place: PathLike | None = None
) -> None:
    """Write the scenario of the file ``source`` with a graph whose ops carry their host times,
    whole or not at all. Raises InputError, OSError.
    """
    times = {
        op.name: time_text(Fraction(op.host_time))
        for op in graph_of(calibration.scenario).ops
        if isinstance(op.host_time, (int, Fraction))
    }
    written = _document(source, place or path)
    _write(path, written | {"graph": _graph_with(source, "host_time", times)})


def _document(source: PathLike, place: PathLike) -> dict[str, Any]:
    """The document of a scenario's file, with paths relative to the folder of ``place``."""
    target = os.path.dirname(os.fspath(place))
    return {"version": VERSION} | moved(plain(read_json(source)), _folder(source), target)


def _write(
    path: PathLike, written: dict[str, Any], provenance: Mapping[str, Any] = FrozenDict()
) -> None:
    if provenance:
        written["provenance"] = written.get("provenance", {}) | provenance
    # Each part on its own line: the parts beside the (long) graph stay legible.
    lines = ",\n".join(
        f"{json.dumps(key)}: {json.dumps(part, ensure_ascii=False)}"
        for key, part in written.items()
    )
    write_text(path, f"{{{lines}}}\n")


def _folder(source: PathLike) -> str:
    return "" if os.fspath(source) == "-" else os.path.dirname(os.fspath(source))


def _timed_ops(calibration: Calibration) -> dict[str, dict[str, str]]:
    """For each op of a fitted class, by name: its times by kind of device."""
    fitted = (parameter for parameter in calibration.parameters if parameter.fitted)
    classes = {parameter.of for parameter in fitted if parameter.quantity == "efficiency"}
    return {
        op.name: {kind: time_text(Fraction(seconds)) for kind, seconds in op.time.items()}
        for op in graph_of(calibration.scenario).ops
        if isinstance(op.time, Mapping) and any(f"{kind}/{op.kind}" in classes for kind in op.time)
    }


def _graph_with(source: PathLike, field: str, timed: Mapping[str, str | Mapping[str, str]]) -> Any:
    """The graph of a scenario's file, with the values ``timed`` (by op name) in a field of ops."""
    part = read_json(source)["graph"]
    graph = plain(
        part if isinstance(part, dict) else read_json(os.path.join(_folder(source), part))
    )
    for op in graph["ops"]:
        op |= {field: timed[op["name"]]} if op["name"] in timed else {}
    return graph


def _provenance(calibration: Calibration, efficiencies: bool) -> dict[str, Any]:
    """The provenance of the fitted numbers: of the efficiencies, or of the cluster's numbers."""
    return {
        f"{'links' if parameter.on_links else 'devices'}.{parameter.of}.{parameter.quantity}": {
            "value": float(parameter.value),
            "kind": "fitted",
            "spans": parameter.count,
            "standard_error": parameter.error,
            "source": f"simdev calibrate {__version__} on {calibration.source}",
        }
        for parameter in calibration.parameters
        if parameter.fitted and (parameter.quantity == "efficiency") is efficiencies
    }


RESIDUALS_SHOWN = 10
NAMES_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Residual:
    """The seconds of a task in the trace (mean over the steps), in the original scenario, and in
    the fitted one.
    """

    task: str
    kind: str
    measured_s: float
    before_s: float
    predicted_s: float

    @property
    def residual_s(self) -> float:
        """Measured minus fitted."""
        return self.measured_s - self.predicted_s


@dataclass(frozen=True, slots=True)
class Quality:
    """How well durations of one kind (op, transfer) are predicted, each figure as (before, fitted).

    ``rms_s`` is in seconds, ``rms_relative`` relative to the measured durations; ``r2`` is None
    where all measured durations are equal.
    """

    kind: str
    count: int
    rms_s: tuple[float, float]
    rms_relative: tuple[float, float]
    r2: tuple[float | None, float | None]

    def to_json(self) -> dict[str, Any]:
        """Its fields as JSON values."""
        pairs = {"rms_s": self.rms_s, "rms_relative": self.rms_relative, "r2": self.r2}
        return {"kind": self.kind, "count": self.count} | {
            name: dict(zip(("before", "fitted"), pair, strict=True)) for name, pair in pairs.items()
        }


@dataclass(frozen=True)
class Calibration:
    """The result of ``calibrate``.

    ``steps_s`` are the measured steps in seconds (a single value, their period, where the
    scenario's steps follow one another), ``before_s`` and ``fitted_s`` the step times of the
    original and the fitted scenario. Three lists of names were not used: ``strangers``, spans of no
    task; ``absent``, tasks without a span; ``uneven``, tasks with more or fewer spans than most.
    ``overlap`` is the share of spans that begin before the previous span on their serial queue has
    ended; 0 where that is too rare to matter.
    """

    scenario: Scenario
    parameters: tuple[Parameter, ...]
    residuals: tuple[Residual, ...]
    qualities: tuple[Quality, ...]
    source: str
    steps_s: tuple[float, ...]
    before_s: float
    fitted_s: float
    strangers: tuple[str, ...]
    absent: tuple[str, ...]
    uneven: tuple[str, ...]
    overlap: float

    def to_json(self) -> dict[str, Any]:
        """The output of ``simdev calibrate --json``: times in seconds, bandwidths in bytes per
        second.
        """
        return {
            "trace": self.source,
            "parameters": [parameter.to_json() for parameter in self.parameters],
            "step_s": {
                "measured": list(self.steps_s),
                "before": self.before_s,
                "fitted": self.fitted_s,
            },
            "quality": [quality.to_json() for quality in self.qualities],
            "overlap": self.overlap,
            "residuals": [
                asdict(residual) | {"residual_s": residual.residual_s}
                for residual in self.residuals
            ],
            "unmatched": {
                "spans": list(self.strangers),
                "tasks": list(self.absent),
                "uneven": list(self.uneven),
            },
        }


def calibrate(scenario: Scenario, measured: Measured, names: Sequence[str] = FIT) -> Calibration:
    """Fit the named quantities of a scenario to a measured trace.

    ``names`` are among gap, latency, bandwidth, efficiency, ``efficiency:KIND/OP`` (patterns). A
    quantity that the trace does not determine keeps its value, and its note says why. Raises
    InputError, MissingCostError, DeadlockError; SimdevError without scipy.
    """
    scene, parameters = fit(scenario, measured, names)
    fitted = with_parameters(scenario, parameters)
    # Both scenarios are executed rather than their tasks summed up: queues and waits affect the
    # step as a whole.
    before, after = (execute(of_every_device(there)).trace for there in (scenario, fitted))
    residuals = tuple(_residuals(scene, before, after))
    steps, strangers = scene.steps, scene.steps.strangers
    if follow_one_another(scenario.strategy, scenario.steps):
        tasks = frozenset(scene.task_graph.tasks.name)
        # Where a name occurs several times in a step, its spans cannot be assigned to steps.
        alike = Counter(scene.task_graph.tasks.name)
        known = [residual.task for residual in residuals if alike[residual.task] == 1]
        lengths = [period_ps(measured, known)]
        strangers = tuple(name for name in strangers if task_and_step(name, tasks)[0] not in tasks)
    else:
        ends, begins = steps.finish[:, steps.known], steps.start[:, steps.known]
        lengths = (ends.max(axis=1) - begins.min(axis=1)).tolist()
    kinds = dict.fromkeys(residual.kind for residual in residuals)
    return Calibration(
        fitted,
        parameters,
        residuals,
        tuple(_quality(kind, residuals) for kind in sorted(kinds)),
        measured.source,
        tuple(length / PS_PER_SECOND for length in lengths),
        step_time_ps(before) / PS_PER_SECOND,
        step_time_ps(after) / PS_PER_SECOND,
        strangers,
        steps.absent,
        steps.uneven,
        scene.overlap if scene.overlap > MOST_OVERLAP else 0.0,
    )


def _residuals(scene: Scene, before: Trace, after: Trace) -> Iterator[Residual]:
    tasks = scene.task_graph.tasks
    measured = (scene.steps.finish - scene.steps.start).mean(axis=0)
    # Matched by name: of several steps the first is compared, and dispatches follow the last.
    lasting = [
        dict(
            zip(
                numbered(trace.task_graph.tasks.name),
                (trace.finish - trace.start).tolist(),
                strict=True,
            )
        )
        for trace in (before, after)
    ]
    names = list(numbered(tasks.name))
    for task in np.flatnonzero(scene.steps.known).tolist():
        lengths = (measured[task], *(lengths[names[task]] for lengths in lasting))
        times = (float(length) / PS_PER_SECOND for length in lengths)
        yield Residual(
            tasks.name[task], "transfer" if tasks.kind[task] == TRANSFER else "op", *times
        )


def _quality(kind: str, residuals: Sequence[Residual]) -> Quality:
    rows = [residual for residual in residuals if residual.kind == kind]
    took = [residual.measured_s for residual in rows]
    before = goodness(took, [residual.before_s for residual in rows])
    fitted = goodness(took, [residual.predicted_s for residual in rows])
    rms, relative = (before[0], fitted[0]), (before[1], fitted[1])
    return Quality(kind, len(took), rms, relative, (before[2], fitted[2]))


def with_parameters(scenario: Scenario, parameters: Sequence[Parameter]) -> Scenario:
    """The scenario with the fitted values."""
    cluster, graph = scenario.cluster, graph_of(scenario)
    fitted = [parameter for parameter in parameters if parameter.fitted]
    for parameter in fitted:
        if parameter.quantity != "efficiency":
            cluster = _with_number(cluster, parameter)
    efficiencies = {
        parameter.of: parameter.value for parameter in fitted if parameter.quantity == "efficiency"
    }
    if efficiencies:
        graph = _with_efficiencies(scenario, efficiencies)
    return replace(scenario, cluster=cluster, graph=graph)


def _with_number(cluster: Cluster, parameter: Parameter) -> Cluster:
    def changed(members: Sequence[Member]) -> tuple[Member, ...]:
        change: dict[str, Any] = {parameter.quantity: parameter.value}
        return tuple(
            replace(member, **change) if row in parameter.rows else member
            for row, member in enumerate(members)
        )

    if parameter.on_links:
        return replace(cluster, links=changed(cluster.links))
    return replace(cluster, devices=changed(cluster.devices))


def _with_efficiencies(scenario: Scenario, efficiencies: Mapping[str, Fraction]) -> Graph:
    """The graph, with times by kind of device, in whole ps, on each op whose class was fitted."""
    devices = [device for device in scenario.cluster.devices if device.runs_ops]
    kinds = list(dict.fromkeys(device.kind for device in devices))
    graph = graph_of(scenario)
    ops = tuple(_timed(scenario, i, op, kinds, efficiencies) for i, op in enumerate(graph.ops))
    return replace(graph, ops=ops)


def _timed(
    scenario: Scenario, row: int, op: Op, kinds: Sequence[str], efficiencies: Mapping[str, Fraction]
) -> Op:
    times = {}
    for kind in kinds:
        efficiency = efficiencies.get(f"{kind}/{op.kind}")
        cost = scenario.costs.cost(graph_of(scenario), row, kind)
        # The new table of times replaces the op's old one, so it also keeps its other devices.
        if cost is not None and (efficiency is not None or op.seconds_on(kind) is not None):
            times[kind] = Fraction(picoseconds(cost.seconds / (efficiency or 1)), PS_PER_SECOND)
    if not any(f"{kind}/{op.kind}" in efficiencies for kind in times):
        return op
    return replace(op, time=times)


def calibration_text(calibration: Calibration) -> str:
    """The parameters, how well they predict the trace, the largest residuals, and the spans and
    tasks that were left out.
    """
    tables = [make(calibration) for make in (_parameter_table, _quality_table, _residual_table)]
    parts = [_headline(calibration), *(table_text(table) for table in tables if table.rows)]
    return "\n\n".join([*parts, *_notes(calibration)])


def _headline(calibration: Calibration) -> str:
    steps = calibration.steps_s
    mean = sum(steps) / len(steps)
    several = f", mean of {len(steps)} steps" if len(steps) > 1 else ""
    return (
        f"Measured step {format_seconds(mean)}{several}; simulated "
        f"{format_seconds(calibration.before_s)} before, "
        f"{format_seconds(calibration.fitted_s)} as fitted to it (no error: it is not held out)"
    )


def _off(value: float, measured: float) -> str:
    return f"{value / measured - 1:+.2%}" if measured else "no length"


def _number(quantity: str, value: Fraction | float) -> str:
    if quantity == "efficiency":
        return f"{float(value):.4g}"
    return (
        format_bandwidth(float(value)) if quantity == "bandwidth" else format_seconds(float(value))
    )


def _parameter_table(calibration: Calibration) -> Table:
    body = []
    for parameter in calibration.parameters:
        if parameter.fitted:
            values = (parameter.before, parameter.value, parameter.error)
            numbers = (
                "" if value is None else _number(parameter.quantity, value) for value in values
            )
            of, count = shorten(parameter.of, 40), f"{parameter.count:,}"
            body.append((parameter.quantity, of, *numbers, count))
    columns = _columns(["quantity", "of"], ["before", "fitted", "std. error", "spans"])
    return Table("Fitted", columns, tuple(body), shown=len(body))


def _quality_table(calibration: Calibration) -> Table:
    body = tuple(
        (
            f"{quality.kind}s",
            f"{quality.count:,}",
            *map(format_seconds, quality.rms_s),
            *(f"{value:.2%}" for value in quality.rms_relative),
            "" if quality.r2[1] is None else f"{quality.r2[1]:.4f}",
        )
        for quality in calibration.qualities
    )
    pairs = [f"{title} {when}" for title in ("RMS", "relative") for when in ("before", "fitted")]
    return Table("Residuals", _columns(["durations of"], ["count", *pairs, "R2"]), body)


def _residual_table(calibration: Calibration) -> Table:
    residuals = sorted(calibration.residuals, key=lambda residual: -abs(residual.residual_s))
    body = tuple(
        (
            shorten(residual.task, 40),
            format_seconds(residual.measured_s),
            format_seconds(residual.predicted_s),
            format_seconds(residual.residual_s),
            _off(residual.predicted_s, residual.measured_s),
        )
        for residual in residuals[:RESIDUALS_SHOWN]
        if residual.residual_s
    )
    columns = _columns(["task"], ["measured", "fitted", "residual", "off"])
    return Table("The largest of them", columns, body)


def _columns(texts: Sequence[str], numbers: Sequence[str]) -> dict[str, str]:
    return dict.fromkeys(texts, TEXT) | dict.fromkeys(numbers, NUMBER)


def _notes(calibration: Calibration) -> Iterator[str]:
    for parameter in calibration.parameters:
        if not parameter.fitted:
            value = _number(parameter.quantity, parameter.value)
            yield f"{parameter.quantity} of {parameter.of} (stays {value}): {parameter.note}."
    if calibration.overlap:
        yield (
            f"{calibration.overlap:.1%} of the spans begin before the one before them on "
            "their queue has ended: where "
            "waits are told apart, ends of spans are start + duration as fitted."
        )
    lists = {
        "Names in the trace that are no task": calibration.strangers,
        "Tasks that the trace lacks": calibration.absent,
        "Tasks that the trace holds more or less often than the others, left out": (
            calibration.uneven
        ),
    }
    for title, names in lists.items():
        if names:
            shown = ", ".join(shorten(name) for name in names[:NAMES_SHOWN])
            yield f"{title}: {len(names):,} ({shown}{', ...' if len(names) > NAMES_SHOWN else ''})"
