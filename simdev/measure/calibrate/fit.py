"""Fits a scenario's gaps, latencies, bandwidths and efficiencies to a measured trace.

``calibrate`` calls ``fit``. It inverts the rules by which ``simdev.lowering.transfer`` makes the
duration and the lag of a transfer from its route: a new rule there needs its column in
``crossings_of``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from fractions import Fraction

import numpy as np

from ...execution.scenario import Scenario, graph_of
from ...ground.errors import InputError
from ...ground.units import MAX_BYTES, PS_PER_SECOND, picoseconds
from ...lowering import Prepared
from ...nouns.cluster import Device, Link
from ...nouns.fabric import Route
from ...nouns.taskgraph import TRANSFER, Ints
from .observe import (
    UNKNOWN,
    Alike,
    Beliefs,
    Measured,
    Scene,
    Waits,
    alone,
    device_classes,
    scene_of,
    waits,
)
from .solve import Floats, Parameter, error_of, independent, middle, significant, solve

# Gaps, latencies and bandwidths of classes of links, from the spans of transfers.
# A transfer lasts bytes / the smallest bandwidth of its route, plus the latencies that hold their
# links; the other latencies are its lag. Both times are linear in the latencies and in the inverse
# bandwidths, so a system of linear equations determines them.

ROUNDING_PS = 2.0  # a duration is the sum of two parts, each rounded up
LEAST_INVERSE = PS_PER_SECOND / MAX_BYTES  # ps a byte of the largest bandwidth that a link may have


@dataclass(frozen=True, slots=True)
class LinkNumbers:
    """The numbers of all link classes: ``line`` holds their inverse bandwidths (ps a byte), then
    their latencies (ps); ``gap`` is in ps.
    """

    line: Floats
    gap: Floats


def numbers_of(classes: Sequence[Alike[Link]]) -> LinkNumbers:
    """The numbers of the link classes as the cluster gives them."""
    links = [links.member for links in classes]
    inverse, latency, gap = (
        [float(value) * PS_PER_SECOND for value in column]
        for column in (
            [1 / Fraction(link.bandwidth) for link in links],
            [link.latency for link in links],
            [link.gap for link in links],
        )
    )
    return LinkNumbers(np.array(inverse + latency), np.array(gap))


@dataclass(frozen=True, slots=True)
class Crossings:
    """How each task crosses the link classes: coefficients, [tasks, 2 classes].

    ``duration`` @ ``line`` (of LinkNumbers) is the time of each task alone on its links, ``lag`` @
    ``line`` the time from its end until it is received. ``stiffest`` is the class whose gap follows
    the task, -1 for none.
    """

    duration: Floats
    lag: Floats
    stiffest: Ints


def crossings_of(scene: Scene, numbers: LinkNumbers) -> Crossings:
    """The crossings of transfers, with bottlenecks by ``numbers``; zero for other tasks."""
    tasks, classes = scene.task_graph.tasks, len(scene.links)
    duration, lag = np.zeros((2, len(tasks), 2 * classes))
    stiffest = np.full(len(tasks), UNKNOWN)
    # Thousands of transfers take a few routes.
    ways: dict[tuple[tuple[int, ...], ...], tuple[list[int], list[int], int, int]] = {}
    for task, routes in scene.routes.items():
        key = tuple(route.half_links for route in routes)
        if key not in ways:
            ways[key] = _way(scene, routes, numbers)
        duration[task, classes:], lag[task, classes:], slowest, stiffest[task] = ways[key]
        if slowest != UNKNOWN:
            duration[task, slowest] = tasks.bytes[task]
    return Crossings(duration, lag, stiffest)


def _way(
    scene: Scene, routes: Sequence[Route], numbers: LinkNumbers
) -> tuple[list[int], list[int], int, int]:
    """A transfer's coefficients: (for each class, the number of its latencies that are held; the
    number that are lags; the class with the smallest bandwidth; the class with the largest gap).

    Of the routes of a multicast the largest latency counts, separately for held latencies and for
    lags, and the smallest bandwidth.
    """
    crossed = [[scene.class_of_half_link[half] for half in route.half_links] for route in routes]
    holds = np.array([links.member.hold_latency for links in scene.links], np.bool_)
    inverse, latency = numbers.line[: len(holds)], numbers.line[len(holds) :]
    counts = np.array(
        [np.bincount(np.array(path, np.int64), minlength=len(holds)) for path in crossed]
    )
    held, lagging = (
        max(kept.tolist(), key=lambda count: float(latency @ np.array(count)))
        for kept in (counts * holds, counts * ~holds)
    )
    classes = list(dict.fromkeys(k for path in crossed for k in path))
    slowest = max(classes, key=lambda k: float(inverse[k]), default=UNKNOWN)
    stiffest = max(classes, key=lambda k: float(numbers.gap[k]), default=UNKNOWN)
    return held, lagging, slowest, stiffest


@dataclass(frozen=True, slots=True)
class System:
    """Linear equations in ps, ``columns`` @ line = ``target``, with the columns of LinkNumbers.

    ``care`` is the weight of each equation.
    """

    columns: Floats
    target: Floats
    care: Floats


def system(scene: Scene, crossings: Crossings, lags: Waits) -> System:
    """The equations of the durations of transfers, and of the waits of their receivers."""
    sent, target = list[int](), list[float]()
    for start, finish in zip(scene.steps.start, scene.steps.finish, strict=True):
        for task in alone(scene, start, finish):
            sent.append(task)
            target.append(float(finish[task] - start[task]))
    rows = np.array(sent, np.int64)
    columns = np.concatenate((crossings.duration[rows], crossings.lag[lags.before]))
    times = np.array(target + lags.length.tolist())
    care = np.ones(len(times))
    if len(lags.scale):
        care[len(target) :] = np.median(lags.scale) / lags.scale
    telling = (times > 0) & columns.any(axis=1)
    return System(columns[telling], times[telling], care[telling])


def fit_links(
    scene: Scene, numbers: LinkNumbers, waits: tuple[Waits, Waits], quantities: Sequence[str]
) -> tuple[list[Parameter], LinkNumbers]:
    """The parameters of all link classes, for these ``quantities``, and the numbers with the fitted
    values.
    """
    parameters: list[Parameter] = []
    if not scene.links:
        return parameters, numbers
    crossings = crossings_of(scene, numbers)
    if "gap" in quantities and scene.prepared.fabric.has_queues:
        behind = crossings.stiffest[waits[0].before]
        parameters = [
            gap_parameter(links, waits[0].of(np.flatnonzero(behind == k)), on_links=True)
            for k, links in enumerate(scene.links)
        ]
        gaps = np.array([float(gap.value) * PS_PER_SECOND for gap in parameters])
        numbers = replace(numbers, gap=gaps)
    wanted = [name for name in ("bandwidth", "latency") if name in quantities]
    if wanted:
        lines, line = _lines(scene, numbers, system(scene, crossings, waits[1]), wanted)
        return [*parameters, *lines], replace(numbers, line=line)
    return parameters, numbers


def gap_parameter(alike: Alike[Device] | Alike[Link], waits: Waits, on_links: bool) -> Parameter:
    """The gap of a class from the waits for it."""
    before, count = Fraction(alike.member.gap), len(waits.before)
    kept = Parameter("gap", alike.name, before, before, None, count, alike.rows, on_links)
    if not count:
        note = "left alone: in the trace nothing there starts right after another"
        return replace(kept, note=note)
    solution = middle(waits.length, waits.scale)
    value, error = float(solution.values[0]), float(solution.errors[0])
    seconds = significant(max(value, 0.0), error, Fraction(1, 2)) / PS_PER_SECOND
    # After transfers whose ends are assumed (``believed``), the main error is that of their
    # durations, which this error does not include: so none is given.
    known = None if on_links and waits.believed else error_of(error / PS_PER_SECOND)
    return replace(kept, value=seconds, error=known)


def _lines(
    scene: Scene, numbers: LinkNumbers, rows: System, quantities: Sequence[str]
) -> tuple[list[Parameter], Floats]:
    """The parameters of latencies and bandwidths, and ``line`` with the fitted values."""
    classes, values = len(scene.links), numbers.line.copy()
    wanted = list(range(classes)) if "bandwidth" in quantities else []
    if "latency" in quantities:
        # Where the data cannot distinguish two latencies, the larger is fitted.
        wanted += sorted(range(classes, 2 * classes), key=lambda k: (-values[k], k))
    solved = _solved(rows, values, wanted)
    for k, (value, _) in solved.items():
        values[k] = value
    # Class by class, the latency before the bandwidth.
    order = sorted(wanted, key=lambda k: (k % classes, -k))
    lines = [_line(scene, k, solved.get(k), rows) for k in order]
    return lines, values


def _solved(rows: System, values: Floats, wanted: Sequence[int]) -> dict[int, tuple[float, float]]:
    """The value and standard error, in ps, of each column that the data determine. No value is
    negative.
    """
    classes, fixed = len(values) // 2, values.copy()
    free, zero = list(wanted), dict[int, tuple[float, float]]()
    while True:
        relative = rows.columns[:, free] / rows.target[:, None]
        chosen = [free[k] for k in independent(relative)]
        if not chosen:
            return zero
        others = np.setdiff1d(np.arange(2 * classes), chosen)
        offset = rows.columns[:, others] @ fixed[others]
        solution = solve(rows.columns[:, chosen], rows.target, offset, care=rows.care)
        pairs = zip(solution.values.tolist(), solution.errors.tolist(), strict=True)
        fitted = dict(zip(chosen, pairs, strict=True))
        impossible = (
            k
            for k, (value, _) in fitted.items()
            if value < 0 or (k < classes and value <= LEAST_INVERSE)
        )
        worst = next(impossible, None)
        if worst is None:
            return zero | fitted
        # A negative inverse bandwidth means that the assumed latencies are too long: it is left
        # alone. A negative latency becomes zero.
        free.remove(worst)
        if worst >= classes:
            fixed[worst] = 0.0
            zero[worst] = 0.0, fitted[worst][1]


def _line(scene: Scene, k: int, solved: tuple[float, float] | None, rows: System) -> Parameter:
    """The parameter of column ``k``, in SI units."""
    is_latency, links = k >= len(scene.links), scene.links[k % len(scene.links)]
    column, quantity = rows.columns[:, k], "latency" if is_latency else "bandwidth"
    before = Fraction(getattr(links.member, quantity))
    count = int(np.count_nonzero(column))
    kept = Parameter(quantity, links.name, before, before, None, count, links.rows, True)
    if solved is None:
        return replace(kept, note=_why_not(quantity, count, bool(scene.unrouted)))
    value, error = solved
    if is_latency:
        exact = significant(value, error, ROUNDING_PS) / PS_PER_SECOND
        return replace(kept, value=exact, error=error_of(error / PS_PER_SECOND))
    rate, rounding = PS_PER_SECOND / value, ROUNDING_PS * np.mean(1 / rows.target[column > 0])
    error = error * rate / value
    return replace(
        kept, value=significant(rate, error, float(rounding) * rate), error=error_of(error)
    )


def _why_not(quantity: str, count: int, messages: bool) -> str:
    if not count and quantity == "bandwidth":
        reason = "no transfer in the trace is ruled by it"
    elif not count:
        reason = "no transfer waits for it"
    elif quantity == "latency":
        reason = "the sizes sent do not tell it from the bandwidth, or from another latency"
    else:
        reason = "the latencies leave no time for sending"
    if messages and not count:
        reason += ", and nothing is fitted to the messages of a synchronisation policy"
    return f"left alone: {reason}"


FIT = ("gap", "latency", "bandwidth")
ROUNDS = 3  # which task waited for which depends on gaps, latencies and bandwidths: so iterate


def efficiency_patterns(names: Sequence[str]) -> list[str]:
    """The patterns ``device kind/op kind`` of the efficiencies to be fitted. ``names`` are among
    FIT, ``efficiency`` (all ops) and ``efficiency:PATTERN``.

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
    # Efficiencies first: too short durations of ops would be mistaken for gaps.
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
    tasks = scene.task_graph.tasks
    gap = np.zeros(len(tasks))
    for devices, value in zip(classes, gap_ps.tolist(), strict=True):
        gap[np.isin(tasks.source, devices.rows) & scene.computing] = value
    crossings = crossings_of(scene, numbers)
    duration, moves = duration.copy(), np.array(list(scene.routes), np.int64)
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
    """The efficiency of every class of ops that a pattern matches. ``duration`` is divided by it in
    place.
    """
    classes: dict[str, list[int]] = {}
    graph, cluster = scene.prepared.graph, scene.prepared.cluster
    devices = scene.task_graph.tasks.source.tolist()
    for task, op in scene.ops.items():
        name = f"{cluster.devices[devices[task]].kind}/{graph.ops[op].kind}"
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
    # Spans below the clock's resolution have no length, and so no relative residual.
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
