"""Latency, bandwidth and gap of link classes, from the spans of transfers.

A transfer lasts bytes / the smallest bandwidth of its route plus the latencies that are held; the
others are the lag after it. Both are linear in the latencies and in the inverse bandwidths, so one
system of equations tells all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from ..fabric import Route
from ..taskgraph import TRANSFER
from ..units import MAX_BYTES, PS_PER_SECOND
from .observe import LinkClass, Scene, Waits, alone
from .parameter import Parameter, error_of, gap_parameter, significant
from .solve import Floats, independent, solve

ROUNDING_PS = 2.0  # a duration is two parts, each rounded up
LEAST_INVERSE = PS_PER_SECOND / MAX_BYTES  # ps a byte of the largest bandwidth that a link may have


@dataclass(frozen=True, slots=True)
class LinkNumbers:
    """Latency (ps), inverse bandwidth (ps a byte) and gap (ps) of each link class."""

    latency: Floats
    inverse: Floats
    gap: Floats


def numbers_of(links: Sequence[LinkClass]) -> LinkNumbers:
    """The numbers that the cluster tells."""
    rows = [(one.link.latency, 1 / Fraction(one.link.bandwidth), one.link.gap) for one in links]
    table = np.array([[float(value) * PS_PER_SECOND for value in row] for row in rows]).reshape(
        -1, 3
    )
    return LinkNumbers(table[:, 0], table[:, 1], table[:, 2])


@dataclass(frozen=True, slots=True)
class Way:
    """How a transfer crosses the link classes: how often it holds and how often it only suffers the
    latency of each.

    ``slowest`` is the class whose bandwidth rules, ``stiffest`` the one whose gap does (-1: none).
    """

    held: tuple[int, ...]
    lagging: tuple[int, ...]
    slowest: int
    stiffest: int

    def duration_ps(self, numbers: LinkNumbers, size: int) -> float:
        """Alone on its links."""
        sending = size * float(numbers.inverse[self.slowest]) if self.slowest >= 0 else 0.0
        return sending + float(numbers.latency @ np.array(self.held))

    def lag_ps(self, numbers: LinkNumbers) -> float:
        """What passes after it before it is received."""
        return float(numbers.latency @ np.array(self.lagging))

    def gap_ps(self, numbers: LinkNumbers) -> float:
        """How long its queues stay busy after it."""
        return float(numbers.gap[self.stiffest]) if self.stiffest >= 0 else 0.0


def ways(scene: Scene, numbers: LinkNumbers) -> dict[int, Way]:
    """The way of every transfer task, with bottlenecks by the given numbers."""
    made: dict[tuple[tuple[int, ...], ...], Way] = {}
    found = {}
    for task, routes in scene.routes.items():
        key = tuple(route.half_links for route in routes)
        if key not in made:
            made[key] = _way(scene, routes, numbers)
        found[task] = made[key]
    return found


def _way(scene: Scene, routes: Sequence[Route], numbers: LinkNumbers) -> Way:
    """Of several routes of one multicast the largest latency counts, held and not, and the smallest
    bandwidth.
    """
    crossed = [[scene.class_of_half_link[half] for half in route.half_links] for route in routes]
    holds = [one.link.hold_latency for one in scene.links]
    counts = []
    for holding in (True, False):
        each = [
            [sum(k == c and holds[c] is holding for c in path) for k in range(len(holds))]
            for path in crossed
        ]
        counts.append(max(each, key=lambda one: float(numbers.latency @ np.array(one))))
    classes = list(dict.fromkeys(k for path in crossed for k in path))
    slowest = max(classes, key=lambda k: float(numbers.inverse[k]), default=-1)
    stiffest = max(classes, key=lambda k: float(numbers.gap[k]), default=-1)
    return Way(tuple(counts[0]), tuple(counts[1]), slowest, stiffest)


@dataclass(frozen=True, slots=True)
class System:
    """Rows of equations in ps: columns are the inverse bandwidths, then the latencies, of all
    classes.

    ``care`` is how much each row counts beside the others.
    """

    columns: Floats
    target: Floats
    care: Floats


def system(scene: Scene, found: dict[int, Way], lags: Waits) -> System:
    """What the transfers took, and how long their receivers waited after them."""
    classes, rows, target = len(scene.links), list[Floats](), list[float]()
    tasks = scene.task_graph.tasks
    for start, finish in zip(scene.steps.start, scene.steps.finish, strict=True):
        for task in alone(scene, start, finish):
            row = np.zeros(2 * classes)
            way = found[task]
            if way.slowest >= 0:
                row[way.slowest] = tasks.bytes[task]
            row[classes:] = way.held
            rows.append(row)
            target.append(float(finish[task] - start[task]))
    rows += [
        np.concatenate((np.zeros(classes), found[task].lagging)) for task in lags.before.tolist()
    ]
    care = np.concatenate(
        (np.ones(len(target)), np.median(lags.scale) / lags.scale if len(lags.scale) else [])
    )
    columns, times = (
        np.array(rows).reshape(-1, 2 * classes),
        np.array(target + lags.length.tolist()),
    )
    telling = (times > 0) & columns.any(axis=1)
    return System(columns[telling], times[telling], care[telling])


def fit_links(
    scene: Scene,
    numbers: LinkNumbers,
    found: tuple[Waits, Waits],
    gap: bool,
    latency: bool,
    bandwidth: bool,
) -> tuple[list[Parameter], LinkNumbers]:
    """The parameters of all link classes that are wanted, and the numbers with what was fitted."""
    parameters: list[Parameter] = []
    if not scene.links:
        return parameters, numbers
    crossed = ways(scene, numbers)
    if gap and scene.prepared.fabric.has_queues:
        gaps = [_gap(scene, k, crossed, found[0]) for k in range(len(scene.links))]
        numbers = LinkNumbers(
            numbers.latency,
            numbers.inverse,
            np.array([float(one.value) * PS_PER_SECOND for one in gaps]),
        )
        parameters += gaps
    if latency or bandwidth:
        lines, numbers = _lines(
            scene, numbers, system(scene, crossed, found[1]), latency, bandwidth
        )
        parameters += lines
    return parameters, numbers


def _gap(scene: Scene, k: int, crossed: dict[int, Way], found: Waits) -> Parameter:
    kinds = scene.task_graph.tasks.kind
    here = [
        i
        for i, t in enumerate(found.before.tolist())
        if kinds[t] == TRANSFER and crossed[t].stiffest == k
    ]
    one = scene.links[k]
    return gap_parameter(
        one.name, Fraction(one.link.gap), found.of(np.array(here, np.int64)), one.rows, True
    )


def _lines(
    scene: Scene, numbers: LinkNumbers, rows: System, latency: bool, bandwidth: bool
) -> tuple[list[Parameter], LinkNumbers]:
    classes = len(scene.links)
    values = np.concatenate((numbers.inverse, numbers.latency))
    wanted = [k for k in range(classes) if bandwidth]
    # where two latencies cannot be told apart, the larger one is the one that is fitted
    if latency:
        wanted += sorted(range(classes, 2 * classes), key=lambda k: (-values[k], k))
    solved = _solved(rows, values, wanted)
    for k, (value, _) in solved.items():
        values[k] = value
    fitted = LinkNumbers(values[classes:], values[:classes], numbers.gap)
    order = sorted(wanted, key=lambda k: (k % classes, -k))
    return [
        _line(scene.links[k % classes], k >= classes, solved.get(k), rows, rows.columns[:, k])
        for k in order
    ], fitted


def _solved(rows: System, values: Floats, wanted: Sequence[int]) -> dict[int, tuple[float, float]]:
    """(value, standard error) in ps of the columns that the data tell of; none comes out
    negative.
    """
    classes, fixed = len(values) // 2, values.copy()
    free, at_least = list(wanted), dict[int, tuple[float, float]]()
    while True:
        relative = rows.columns[:, free] / rows.target[:, None]
        chosen = [free[k] for k in independent(relative)]
        if not chosen:
            return at_least
        others = np.setdiff1d(np.arange(2 * classes), chosen)
        solution = solve(
            rows.columns[:, chosen],
            rows.target,
            rows.columns[:, others] @ fixed[others],
            care=rows.care,
        )
        found = dict(
            zip(
                chosen,
                zip(solution.values.tolist(), solution.errors.tolist(), strict=True),
                strict=True,
            )
        )
        low = [
            k
            for k, (value, _) in found.items()
            if value < 0 or (k < classes and value <= LEAST_INVERSE)
        ]
        if not low:
            return at_least | found
        # A negative inverse bandwidth means that the latencies told are too long; a negative
        # latency means none.
        worst = low[0]
        free.remove(worst)
        if worst >= classes:
            fixed[worst] = 0.0
            at_least[worst] = 0.0, found[worst][1]


def _line(
    one: LinkClass,
    is_latency: bool,
    solved: tuple[float, float] | None,
    rows: System,
    column: Floats,
) -> Parameter:
    """The parameter of one column, in SI units."""
    quantity = "latency" if is_latency else "bandwidth"
    before = Fraction(one.link.latency if is_latency else one.link.bandwidth)
    count = int(np.count_nonzero(column))
    if solved is None:
        return Parameter(
            quantity,
            one.name,
            before,
            before,
            None,
            count,
            one.rows,
            True,
            _why_not(quantity, count),
        )
    value, error = solved
    if is_latency:
        exact = significant(value, error, ROUNDING_PS) / PS_PER_SECOND
        return Parameter(
            quantity,
            one.name,
            before,
            exact,
            error_of(error / PS_PER_SECOND),
            count,
            one.rows,
            True,
        )
    rate, rounding = (
        PS_PER_SECOND / value,
        ROUNDING_PS * float(np.mean(1 / rows.target[column > 0])),
    )
    exact = significant(rate, error * rate / value, rounding * rate)
    return Parameter(
        quantity, one.name, before, exact, error_of(error * rate / value), count, one.rows, True
    )


def _why_not(quantity: str, count: int) -> str:
    if not count:
        reason = (
            "no transfer in the trace is ruled by it"
            if quantity == "bandwidth"
            else "no transfer waits for it"
        )
    elif quantity == "latency":
        reason = "the sizes sent do not tell it from the bandwidth, or from another latency"
    else:
        reason = "the latencies leave no time for sending"
    return f"left alone: {reason}"
