"""Calibration: the fitted scenario beside the one it came from, and how well each tells the
trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from ..cluster import Cluster
from ..graph import Graph, Op
from ..scenario import Scenario, execute, graph_of
from ..taskgraph import TRANSFER, Ints
from ..trace import Trace
from ..units import PS_PER_SECOND, picoseconds
from .fit import FIT, fit
from .measured import Measured
from .observe import MOST_OVERLAP, Scene
from .parameter import Parameter
from .solve import goodness


@dataclass(frozen=True, slots=True)
class Residual:
    """One task: the seconds it took by the trace (mean over the steps), by the scenario before, and
    as fitted.
    """

    task: str
    kind: str
    measured: float
    before: float
    fitted: float

    @property
    def seconds(self) -> float:
        """Measured minus fitted."""
        return self.measured - self.fitted


@dataclass(frozen=True, slots=True)
class Quality:
    """How well durations of one kind (op, transfer) are told.

    ``rms`` in seconds, ``relative`` the RMS of the residuals as a share of what was measured,
    ``r2`` None where all measured durations are one; each as (before, fitted).
    """

    kind: str
    count: int
    rms: tuple[float, float]
    relative: tuple[float, float]
    r2: tuple[float | None, float | None]


@dataclass(frozen=True)
class Calibration:
    """The answer of ``calibrate``.

    ``steps_s`` are the measured steps in seconds, ``before_s`` and ``fitted_s`` the step times of
    the two scenarios. ``strangers`` are names of the trace that no task has, ``absent`` tasks that
    the trace does not hold, ``uneven`` those that it holds more or less often than the others (and
    that were left out). ``overlap`` is the share of spans that begin before the one before them on
    their serial queue has ended; 0 where that is too rare to matter.
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
        """What ``simdev calibrate --json`` prints; times are seconds, bandwidths bytes per
        second.
        """
        return {
            "trace": self.source,
            "parameters": [_parameter_json(one) for one in self.parameters],
            "step_s": {
                "measured": list(self.steps_s),
                "before": self.before_s,
                "fitted": self.fitted_s,
            },
            "quality": [_quality_json(one) for one in self.qualities],
            "overlap": self.overlap,
            "residuals": [_residual_json(one) for one in self.residuals],
            "unmatched": {
                "spans": list(self.strangers),
                "tasks": list(self.absent),
                "uneven": list(self.uneven),
            },
        }


def calibrate(scenario: Scenario, measured: Measured, names: Sequence[str] = FIT) -> Calibration:
    """Fit the named quantities of a scenario to a measured trace.

    ``names`` are of gap, latency, bandwidth, efficiency, ``efficiency:KIND/OP`` (patterns). What
    the trace does not tell keeps its value and says why. Raises InputError, MissingCostError,
    DeadlockError; SimdevError without scipy.
    """
    scene, parameters = fit(scenario, measured, names)
    fitted = with_parameters(scenario, parameters)
    before, after = execute(scenario).trace, execute(fitted).trace
    residuals = tuple(_residuals(scene, before, after))
    steps = scene.steps
    lengths = [
        int(finish[steps.known].max() - start[steps.known].min()) / PS_PER_SECOND
        for start, finish in zip(steps.start, steps.finish, strict=True)
    ]
    return Calibration(
        fitted,
        parameters,
        residuals,
        tuple(
            _quality(kind, same)
            for kind in ("op", "transfer")
            if (same := [r for r in residuals if r.kind == kind])
        ),
        measured.source,
        tuple(lengths),
        before.end_ps / PS_PER_SECOND,
        after.end_ps / PS_PER_SECOND,
        steps.strangers,
        steps.absent,
        steps.uneven,
        scene.overlap if scene.overlap > MOST_OVERLAP else 0.0,
    )


def _residuals(scene: Scene, before: Trace, after: Trace) -> Iterator[Residual]:
    tasks = scene.task_graph.tasks
    measured = (scene.steps.finish - scene.steps.start).mean(axis=0)
    lengths: list[Ints] = [trace.finish - trace.start for trace in (before, after)]
    for task in np.flatnonzero(scene.steps.known).tolist():
        times = (float(column[task]) / PS_PER_SECOND for column in (measured, *lengths))
        yield Residual(
            tasks.name[task], "transfer" if tasks.kind[task] == TRANSFER else "op", *times
        )


def _quality(kind: str, residuals: Sequence[Residual]) -> Quality:
    took = [one.measured for one in residuals]
    before, fitted = (
        goodness(took, [one.before for one in residuals]),
        goodness(took, [one.fitted for one in residuals]),
    )
    return Quality(
        kind, len(took), (before[0], fitted[0]), (before[1], fitted[1]), (before[2], fitted[2])
    )


def with_parameters(scenario: Scenario, parameters: Sequence[Parameter]) -> Scenario:
    """The scenario with what was fitted."""
    cluster, graph = scenario.cluster, graph_of(scenario)
    for one in parameters:
        if one.fitted and one.quantity != "efficiency":
            cluster = _with_number(cluster, one)
    efficiencies = {
        one.of: one.value for one in parameters if one.fitted and one.quantity == "efficiency"
    }
    if efficiencies:
        graph = _with_efficiencies(scenario, efficiencies)
    return replace(scenario, cluster=cluster, graph=graph)


def _with_number(cluster: Cluster, one: Parameter) -> Cluster:
    if one.on_links:
        change: dict[str, Any] = {one.quantity: one.value}
        links = tuple(
            replace(link, **change) if row in one.rows else link
            for row, link in enumerate(cluster.links)
        )
        return replace(cluster, links=links)
    devices = tuple(
        replace(device, gap=one.value) if row in one.rows else device
        for row, device in enumerate(cluster.devices)
    )
    return replace(cluster, devices=devices)


def _with_efficiencies(scenario: Scenario, efficiencies: dict[str, Fraction]) -> Graph:
    """Ops whose class was fitted carry their times themselves, by kind of device, in whole ps."""
    kinds = list(
        dict.fromkeys(device.kind for device in scenario.cluster.devices if device.runs_ops)
    )
    graph = graph_of(scenario)
    ops = tuple(_timed(scenario, i, op, kinds, efficiencies) for i, op in enumerate(graph.ops))
    return replace(graph, ops=ops)


def _timed(
    scenario: Scenario, row: int, op: Op, kinds: Sequence[str], efficiencies: dict[str, Fraction]
) -> Op:
    times = {}
    for kind in kinds:
        efficiency, cost = (
            efficiencies.get(f"{kind}/{op.kind}"),
            scenario.costs.cost(graph_of(scenario), row, kind),
        )
        if cost is not None and (efficiency is not None or op.seconds_on(kind) is not None):
            times[kind] = Fraction(picoseconds(cost.seconds / (efficiency or 1)), PS_PER_SECOND)
    if not any(f"{kind}/{op.kind}" in efficiencies for kind in times):
        return op
    return replace(op, time=times)


def _parameter_json(one: Parameter) -> dict[str, Any]:
    return {
        "quantity": one.quantity,
        "of": one.of,
        "before": float(one.before),
        "value": float(one.value),
        "standard_error": one.error,
        "count": one.count,
        "fitted": one.fitted,
        "note": one.note,
    }


def _quality_json(one: Quality) -> dict[str, Any]:
    pairs = {"rms_s": one.rms, "rms_relative": one.relative, "r2": one.r2}
    told = {
        name: dict(zip(("before", "fitted"), pair, strict=True)) for name, pair in pairs.items()
    }
    return {"kind": one.kind, "count": one.count} | told


def _residual_json(one: Residual) -> dict[str, Any]:
    return {
        "task": one.task,
        "kind": one.kind,
        "measured_s": one.measured,
        "before_s": one.before,
        "predicted_s": one.fitted,
        "residual_s": one.seconds,
    }
