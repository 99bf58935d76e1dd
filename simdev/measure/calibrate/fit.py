"""Fitting a scenario's gaps, latencies, bandwidths and efficiencies to a measured trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from fractions import Fraction

import numpy as np

from ...execution.scenario import Scenario, graph_of
from ...ground.errors import InputError
from ...ground.units import PS_PER_SECOND, picoseconds
from ...lowering import Prepared
from ...nouns.cluster import Device
from ...nouns.taskgraph import TRANSFER, Ints
from .links import LinkNumbers, crossings_of, fit_links, gap_parameter, numbers_of
from .measured import Measured
from .observe import UNKNOWN, Alike, Beliefs, Scene, Waits, device_classes, scene_of, waits
from .solve import Floats, Parameter, error_of, significant, solve

FIT = ("gap", "latency", "bandwidth")
ROUNDS = 3  # gaps, latencies and bandwidths tell each other which tasks waited for what


def efficiency_patterns(names: Sequence[str]) -> list[str]:
    """The patterns ``device kind/op kind`` of efficiencies among the names of what is to be fitted:
    FIT, ``efficiency`` (all), ``efficiency:PATTERN``.

    Raises InputError for any other name, and for none.
    """
    parts = [(name, *name.partition(":")[::2]) for name in names]
    unknown = [name for name, word, _ in parts if name not in FIT and word != "efficiency"]
    if unknown or not names:
        known = f"{', '.join(FIT)}, efficiency and efficiency:KIND/OP"
        raise InputError(
            [f'fit: "{name}" cannot be fitted; there are {known}' for name in unknown or [""]]
        )
    return [pattern or "*/*" for _, word, pattern in parts if word == "efficiency"]


def fit(
    scenario: Scenario, measured: Measured, names: Sequence[str] = FIT
) -> tuple[Scene, tuple[Parameter, ...]]:
    """The parameters of these names, fitted or left alone.

    Raises InputError, MissingCostError.
    """
    patterns = efficiency_patterns(names)
    prepared = Prepared(graph_of(scenario), scenario.cluster, scenario.costs, scenario.memory)
    scene = scene_of(prepared, scenario.strategy, measured)
    duration = scene.task_graph.tasks.duration.astype(np.float64)
    # First: what ops take without their efficiency would pass for gaps.
    efficiencies = list(_efficiencies(scene, patterns, duration))
    classes = device_classes(scenario.cluster)
    gap_ps = np.array(
        [picoseconds(Fraction(devices.member.gap)) for devices in classes], np.float64
    )
    numbers = numbers_of(scene.links)
    gaps, lines = list[Parameter](), list[Parameter]()
    for _ in range(ROUNDS):
        waited = waits(scene, _beliefs(scene, classes, gap_ps, numbers, duration))
        if "gap" in names:
            gaps = [_device_gap(scene, devices, waited[0]) for devices in classes]
            gap_ps = np.array([float(gap.value) * PS_PER_SECOND for gap in gaps])
        lines, numbers = fit_links(scene, numbers, waited, names)
    return scene, (*gaps, *lines, *efficiencies)


def _beliefs(
    scene: Scene,
    classes: Sequence[Alike[Device]],
    gap_ps: Floats,
    numbers: LinkNumbers,
    duration: Floats,
) -> Beliefs:
    tasks, moves = scene.task_graph.tasks, scene.moves
    gap = np.zeros(len(tasks))
    for devices, value in zip(classes, gap_ps.tolist(), strict=True):
        gap[np.isin(tasks.source, devices.rows) & (tasks.duration > 0)] = value
    crossings = crossings_of(scene, numbers)
    duration = duration.copy()
    duration[moves] = crossings.duration[moves] @ numbers.line
    # Flows share their links: no gap follows them.
    stiffest = crossings.stiffest[moves]
    has_gap = ~tasks.flow[moves] & (stiffest != UNKNOWN)
    gap[moves] = np.where(has_gap, numbers.gap[stiffest], 0.0)
    return Beliefs(duration, crossings.lag @ numbers.line, gap)


def _device_gap(scene: Scene, devices: Alike[Device], gaps: Waits) -> Parameter:
    tasks = scene.task_graph.tasks
    computes = ~scene.task_graph.of_kind(TRANSFER)
    here = computes[gaps.before] & np.isin(tasks.source[gaps.before], devices.rows)
    return gap_parameter(devices, gaps.of(np.flatnonzero(here)), on_links=False)


def _efficiencies(scene: Scene, patterns: Sequence[str], duration: Floats) -> Iterator[Parameter]:
    """The efficiency of every class of ops that a pattern names; ``duration`` is corrected by
    it.
    """
    classes: dict[str, list[int]] = {}
    graph, cluster = scene.prepared.graph, scene.prepared.cluster
    for task, (op, device) in enumerate(
        zip(graph.ops, scene.task_graph.tasks.source[: len(graph.ops)].tolist(), strict=True)
    ):
        name = f"{cluster.devices[device].kind}/{op.kind}"
        if duration[task] > 0 and any(fnmatchcase(name, pattern) for pattern in patterns):
            classes.setdefault(name, []).append(task)
    for name, tasks in classes.items():
        rows = np.array([task for task in tasks if scene.steps.known[task]], np.int64)
        parameter = _efficiency(scene, name, rows, duration)
        duration[tasks] /= float(parameter.value)
        yield parameter
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in classes):
            raise InputError(
                f'fit: no op that takes time is "{pattern}"; write it like "gpu/matmul" or '
                '"*/conv2d"'
            )


def _efficiency(scene: Scene, name: str, rows: Ints, duration: Floats) -> Parameter:
    took = (scene.steps.finish - scene.steps.start)[:, rows].astype(np.float64).ravel()
    predicted = np.tile(duration[rows], len(scene.steps.start))
    # Relative residuals need a length: spans below the clock's resolution have none.
    took, predicted = took[took > 0], predicted[took > 0]
    whole = Parameter("efficiency", name, Fraction(1), Fraction(1), None, len(took))
    if not len(took):
        return replace(whole, note="left alone: the trace holds none of these ops")
    # Solved for the inverse, in which the model is linear: measured = predicted / efficiency.
    solution = solve(predicted[:, None], took)
    value = 1 / float(solution.values[0])
    error = float(solution.errors[0]) * value**2
    exact = significant(value, error, 2 * value / float(predicted.max()))
    return replace(whole, value=exact, error=error_of(error))
