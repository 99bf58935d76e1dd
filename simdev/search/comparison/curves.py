"""The best so far as a step function of evaluations or CPU seconds, and its quartiles over seeds.

Between two evaluations nothing is known, so nothing is interpolated: the value at a place is that
of the last improvement before it. A best that does not fit counts as infinite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, inf
from typing import Any

import numpy as np

from ...nouns.taskgraph import Floats
from ..result import Result

EVALUATIONS, CPU_SECONDS = AXES = ("evaluations", "cpu_seconds")
PLACES = 200  # of a grid, equally far apart in logarithms
LOWER, MEDIAN, UPPER = 0.25, 0.5, 0.75


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """The best so far of one method over an axis: quartiles over its seeds, in seconds, at places
    of the axis, up to where the last seed ended.
    """

    method: str
    axis: str
    at: Floats
    lower_s: Floats
    median_s: Floats
    upper_s: Floats

    def to_json(self) -> dict[str, Any]:
        """Plain numbers; null where the best so far does not fit."""
        columns = ("at", "lower_s", "median_s", "upper_s")
        return {
            name: [value if value < inf else None for value in getattr(self, name).tolist()]
            for name in columns
        }


def improvements(result: Result, axis: str) -> tuple[Floats, Floats]:
    """Where on the axis the best that fits got better, and its step from there on in seconds."""
    fitting = [point for point in result.points if not point.memory_excess]
    at = [p.evaluation if axis == EVALUATIONS else p.cpu_seconds for p in fitting]
    steps = [point.step_ps / 1e12 for point in fitting]
    return np.array(at, np.float64), np.array(steps, np.float64)


def best_so_far(result: Result, axis: str, places: Floats) -> Floats:
    """The step in seconds of the best that fits, by each place of the axis; inf where there is none
    by then.
    """
    at, steps = improvements(result, axis)
    best: Floats = np.append(inf, steps)[np.searchsorted(at, places, side="right")]
    return best


def quantile(values: Floats, share: float) -> Floats:
    """The value over the first axis that a share of the others do not exceed.

    Between two of them it is interpolated linearly, as NumPy does; next to one that is infinite it
    is infinite.
    """
    ordered = np.sort(values, axis=0)
    place = share * (len(values) - 1)
    low, high = ordered[floor(place)], ordered[ceil(place)]
    with np.errstate(invalid="ignore"):  # inf - inf, which is not taken
        between: Floats = low + (place - floor(place)) * (high - low)
    return np.where(np.isfinite(high), between, high)


def places_of(results: Sequence[Result], axis: str) -> Floats:
    """The places at which all methods of a question are compared: from the first answer to the last
    end.

    Raises ValueError where there are no results.
    """
    first = min(_first(result, axis) for result in results)
    last = max(end_of(result, axis) for result in results)
    places = np.geomspace(first, max(last, first), PLACES)
    # Rounding must not lose the first answer, nor what the last evaluation brought.
    places[0], places[-1] = first, max(last, first)
    return np.unique(np.round(places)) if axis == EVALUATIONS else np.unique(places)


def _first(result: Result, axis: str) -> float:
    point = result.points[0]
    return point.evaluation if axis == EVALUATIONS else max(point.cpu_seconds, 1e-6)


def end_of(result: Result, axis: str) -> float:
    """Where on the axis a run ended."""
    return float(result.provenance[axis])


def curve_of(method: str, results: Sequence[Result], axis: str, places: Floats) -> Curve:
    """The quartiles of a method's runs at those places that come before the last of its ends, and
    at that end.

    A run that ended before others of its method keeps its best.
    """
    end = max(end_of(result, axis) for result in results)
    at = np.append(places[places < end], end)
    values = np.array([best_so_far(result, axis, at) for result in results])
    lower, median, upper = (quantile(values, share) for share in (LOWER, MEDIAN, UPPER))
    return Curve(method, axis, at, lower, median, upper)
