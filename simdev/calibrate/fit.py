"""Fitting a scenario's gaps, latencies, bandwidths and efficiencies to a measured trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from fractions import Fraction

import numpy as np

from ..errors import InputError
from ..lowering import Prepared
from ..scenario import Scenario, graph_of
from ..taskgraph import TRANSFER, Ints
from ..units import PS_PER_SECOND
from .links import LinkNumbers, fit_links, numbers_of, ways
from .measured import Measured
from .observe import Beliefs, DeviceClass, Scene, Waits, device_classes, scene_of, waits
from .parameter import Parameter, error_of, gap_parameter, significant
from .solve import Floats, solve

FIT = ("gap", "latency", "bandwidth")
ROUNDS = 3  # gaps, latencies and bandwidths tell each other which tasks waited for what


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be fitted: quantities, and patterns ``device kind/op kind`` of efficiencies."""

    gap: bool
    latency: bool
    bandwidth: bool
    efficiency: tuple[str, ...]

    @classmethod
    def of(cls, names: Sequence[str]) -> Wanted:
        """From ``gap``, ``latency``, ``bandwidth``, ``efficiency`` and ``efficiency:PATTERN``.

        Raises InputError.
        """
        patterns = [
            name.partition(":")[2] or "*/*"
            for name in names
            if name.partition(":")[0] == "efficiency"
        ]
        unknown = [
            name for name in names if name not in FIT and name.partition(":")[0] != "efficiency"
        ]
        if unknown or not names:
            known = f"{', '.join(FIT)}, efficiency and efficiency:KIND/OP"
            raise InputError(
                [f'fit: "{name}" cannot be fitted; there are {known}' for name in unknown or [""]]
            )
        return cls("gap" in names, "latency" in names, "bandwidth" in names, tuple(patterns))


def fit(
    scenario: Scenario, measured: Measured, names: Sequence[str] = FIT
) -> tuple[Scene, tuple[Parameter, ...]]:
    """The parameters that were asked for, fitted or left alone.

    Raises InputError, MissingCostError.
    """
    wanted = Wanted.of(names)
    prepared = Prepared(graph_of(scenario), scenario.cluster, scenario.costs, scenario.memory)
    scene = scene_of(prepared, scenario.strategy, measured)
    duration = scene.task_graph.tasks.duration.astype(np.float64)
    efficiencies = list(_efficiencies(scene, wanted.efficiency, duration))
    devices = device_classes(prepared)
    gap_ps = np.array([one.gap_ps for one in devices], np.float64)
    numbers = numbers_of(scene.links)
    gaps, lines = list[Parameter](), list[Parameter]()
    for _ in range(ROUNDS):
        found = waits(scene, _beliefs(scene, devices, gap_ps, numbers, duration))
        if wanted.gap:
            gaps = [_device_gap(scene, one, found[0]) for one in devices]
            gap_ps = np.array([float(one.value) * PS_PER_SECOND for one in gaps])
        lines, numbers = fit_links(
            scene, numbers, found, wanted.gap, wanted.latency, wanted.bandwidth
        )
    return scene, (*gaps, *lines, *efficiencies)


def _beliefs(
    scene: Scene,
    devices: Sequence[DeviceClass],
    gap_ps: Floats,
    numbers: LinkNumbers,
    duration: Floats,
) -> Beliefs:
    tasks = scene.task_graph.tasks
    gap = np.zeros(len(tasks))
    for one, value in zip(devices, gap_ps.tolist(), strict=True):
        gap[np.isin(tasks.source, one.rows) & (tasks.duration > 0)] = value
    lag = np.zeros(len(tasks))
    duration = duration.copy()
    for task, way in ways(scene, numbers).items():
        duration[task] = way.duration_ps(numbers, int(tasks.bytes[task]))
        lag[task], gap[task] = way.lag_ps(numbers), 0.0 if tasks.flow[task] else way.gap_ps(numbers)
    return Beliefs(duration, lag, gap)


def _device_gap(scene: Scene, devices: DeviceClass, found: Waits) -> Parameter:
    tasks = scene.task_graph.tasks
    computes = np.array([kind != TRANSFER for kind in tasks.kind], np.bool_)
    here = found.of(
        np.flatnonzero(computes[found.before] & np.isin(tasks.source[found.before], devices.rows))
    )
    before = Fraction(devices.gap_ps, PS_PER_SECOND)
    return gap_parameter(devices.name, before, here, devices.rows, False)


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
    took, predicted = took[took > 0], predicted[took > 0]
    one = Fraction(1)
    if not len(took):
        return Parameter(
            "efficiency",
            name,
            one,
            one,
            None,
            0,
            note="left alone: the trace holds none of these ops",
        )
    # Solved for the inverse, in which the model is linear: measured = predicted / efficiency.
    solution = solve(predicted[:, None], took)
    value = 1 / float(solution.values[0])
    error = float(solution.errors[0]) * value**2
    exact = significant(value, error, 2 * value / float(predicted.max()))
    return Parameter("efficiency", name, one, exact, error_of(error), len(took))
