"""The best so far as a step function of evaluations or CPU seconds: its quartiles over seeds, and
their picture.

Nothing is interpolated between evaluations: the value at a place is the last improvement before it.
A best that does not fit counts as infinite. Only ``Comparison`` calls this module; the medians of
its rows come from ``quartiles``, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ground.units import PS_PER_SECOND, format_seconds
from ...nouns.taskgraph import Floats
from ...report.figures.style import DEVICES, new_figure, plain, time_unit
from ...report.table import ONE_DEVICE, PRESENT
from ..result import Result
from .runs import References

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EVALUATIONS, CPU_SECONDS = AXES = "evaluations", "cpu_seconds"
STEPS = "lower_s", "median_s", "upper_s"
PLACES = 200  # of a grid, equally far apart in logarithms
QUARTILES = 0.25, 0.5, 0.75
HUGE = 1e300  # more than any step, in any unit


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """The best so far of one method over an axis: quartiles over its seeds, in seconds, at the
    places ``at`` of the axis, up to the end of the last seed.
    """

    method: str
    axis: str
    at: Floats
    lower_s: Floats
    median_s: Floats
    upper_s: Floats

    def to_json(self) -> dict[str, Any]:
        """Plain numbers; null where the best so far does not fit."""
        return {
            name: [value if value < inf else None for value in getattr(self, name).tolist()]
            for name in ("at", *STEPS)
        }


def improvements(result: Result, axis: str) -> tuple[Floats, Floats]:
    """The places on the axis where the best that fits got better, and its steps in seconds."""
    fitting = [point for point in result.points if not point.memory_excess]
    at = [p.evaluation if axis == EVALUATIONS else p.cpu_seconds for p in fitting]
    steps = [point.step_ps / 1e12 for point in fitting]
    return np.array(at, np.float64), np.array(steps, np.float64)


def best_so_far(result: Result, axis: str, places: Floats) -> Floats:
    """The step in seconds of the best that fits, by each place of the axis; inf where nothing fits
    by then.
    """
    at, steps = improvements(result, axis)
    best: Floats = np.append(inf, steps)[np.searchsorted(at, places, side="right")]
    return best


def quartiles(values: Floats) -> Floats:
    """The lower quartile, the median and the upper quartile over the first axis [3, ...].

    Between two values they are interpolated linearly, as NumPy does; next to an infinite value they
    are infinite.
    """
    # NumPy interpolates NaN next to inf; HUGE in place of inf can be recognised afterwards.
    each: Floats = np.quantile(np.minimum(values, HUGE), QUARTILES, axis=0)
    # A quartile takes at least a quarter of a neighbour that it is interpolated from, so one next
    # to HUGE is above HUGE / 8.
    return np.where(each < HUGE / 8, each, inf)


def places_of(results: Sequence[Result], axis: str) -> Floats:
    """The places at which all methods of a question are compared: from the first answer to the last
    end.

    Raises ValueError where there are no results.
    """
    first = min(_first(result, axis) for result in results)
    last = max(first, *(float(result.provenance[axis]) for result in results))
    places = np.geomspace(first, last, PLACES)
    # Rounding must lose neither the first answer nor the last evaluation.
    places[0], places[-1] = first, last
    return np.unique(np.round(places)) if axis == EVALUATIONS else np.unique(places)


def _first(result: Result, axis: str) -> float:
    point = result.points[0]
    return point.evaluation if axis == EVALUATIONS else max(point.cpu_seconds, 1e-6)


def curve_of(method: str, results: Sequence[Result], axis: str, places: Floats) -> Curve:
    """The quartiles of a method's runs at all places before the end of its last run, and at this
    end.

    A run that ended earlier than others keeps its best.
    """
    end = max(float(result.provenance[axis]) for result in results)
    at = np.append(places[places < end], end)
    values = np.array([best_so_far(result, axis, at) for result in results])
    return Curve(method, axis, at, *quartiles(values))


# The picture.

TITLES = {"evaluations": "evaluations", "cpu_seconds": "CPU seconds"}
COLOURS = DEVICES[:-1]  # the last is black, for the references
DASHES: Sequence[Any] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (6, 1.5, 1, 1.5)))
MARKERS = "os^DvPX<>p"
BESIDE: Mapping[str, Mapping[str, Any]] = {
    label: {"color": "black", "linewidth": 1.1, "linestyle": dash}
    for label, dash in ((ONE_DEVICE, (0, (1, 2))), (PRESENT, (0, (4, 3))))
}
WIDE = 3.0  # from this ratio of steps on their axis is logarithmic
NUMBERED = ((20, (1, 2, 3, 5, 7)), (500, (1, 2, 5)), (inf, (1,)))  # of a decade, up to a ratio
HIGHEST = 2.0  # times the slowest reference: a higher axis would press all curves together
WIDTH, HEIGHT, LINE = 13.0, 5.2, 0.21  # inches: of a picture, and of a line of its legend


@dataclass(frozen=True, slots=True)
class Scale:
    """The axis of steps: from ``low`` to ``high`` seconds, labelled in a ``unit`` of ``unit_s``
    seconds.
    """

    low: float
    high: float
    unit: str
    unit_s: float


def draw(
    question: str,
    curves: Mapping[str, Sequence[Curve]],
    planners: Collection[str],
    references: References,
) -> Figure:
    """A panel for each of AXES: a method's median is a line with a band between its quartiles, or
    for ``planners`` a point; one device and the own placement are horizontal lines.

    The legend has the best first. Points above the panels are drawn at the upper edge, hollow.
    """
    ends = {curve.method: float(curve.median_s[-1]) for curve in curves[AXES[0]]}
    known = {label: mark for label, mark in references.by_name.items() if mark is not None}
    beside = {label: mark.cost.seconds for label, mark in known.items() if mark.cost.feasible}
    looks, scale = looks_of(list(ends), planners), _scale(curves, beside)
    figure = new_figure(WIDTH, max(HEIGHT, LINE * (len(ends) + 5)))
    panels = figure.subplots(1, len(AXES), sharey=True)
    for panel, axis in zip(panels, AXES, strict=True):
        for curve in curves[axis]:
            drawn = _draw_point if curve.method in planners else _draw_line
            drawn(panel, curve, looks[curve.method], scale)
        for label, seconds in beside.items():
            panel.axhline(seconds / scale.unit_s, **BESIDE[label])
        _dress_places(panel, axis, curves[axis])
    _dress_steps(panels[0], scale)
    figure.suptitle(plain(question, 90), x=0.01, ha="left", fontsize=11)
    _draw_legend(figure, {**ends, **beside}, {**looks, **BESIDE})
    return figure


def looks_of(methods: Sequence[str], planners: Collection[str]) -> dict[str, dict[str, Any]]:
    """The colour and the line style or marker of each method: colours in turn, first lines, then
    points; where colours run out, dashes and markers differ.
    """
    looks: dict[str, dict[str, Any]] = {}
    lines = sum(method not in planners for method in methods)
    for number, method in enumerate(sorted(methods, key=lambda method: method in planners)):
        dash = DASHES[number // len(COLOURS) % len(DASHES)]
        looks[method] = {"color": COLOURS[number % len(COLOURS)], "linestyle": dash}
        if method in planners:
            marker = MARKERS[(number - lines) % len(MARKERS)]
            looks[method] |= {"linestyle": "none", "marker": marker}
    return looks


def _scale(curves: Mapping[str, Sequence[Curve]], beside: Mapping[str, float]) -> Scale:
    """The axis of all steps that fit, up to HIGHEST times the slowest reference, or up to the end
    of the slowest method.
    """
    shown = curves[AXES[0]]
    parts = *(curve.upper_s for curve in shown), [curve.lower_s[-1] for curve in shown]
    every = np.concatenate([*parts, list(beside.values())])
    every = every[np.isfinite(every)] if np.isfinite(every).any() else np.ones(1)  # none fits
    low, high = float(every.min()), float(every.max())
    if beside:
        high = max(min(high, HIGHEST * max(beside.values())), low)
    unit, unit_ps = time_unit(int(low * PS_PER_SECOND))
    # Room for markers at both ends, in the logarithm.
    margin = (high / low) ** 0.04 * 1.01
    return Scale(low / margin, high * margin, unit, unit_ps / PS_PER_SECOND)


def _draw_line(panel: Axes, curve: Curve, look: Mapping[str, Any], scale: Scale) -> None:
    """A method's median with a band between its quartiles, and a dot at its end."""
    lower, median, upper = (
        np.where(np.isfinite(steps), steps, np.nan) / scale.unit_s
        for steps in (getattr(curve, name) for name in STEPS)
    )
    colour = look["color"]
    panel.fill_between(curve.at, lower, upper, step="post", color=colour, alpha=0.15, linewidth=0)
    panel.plot(curve.at, median, linewidth=1.6, drawstyle="steps-post", **look)
    panel.plot(curve.at[-1:], median[-1:], color=colour, marker=".", markersize=6, linestyle="none")


def _draw_point(panel: Axes, curve: Curve, look: Mapping[str, Any], scale: Scale) -> None:
    """A planner's answer as a point, with a bar between its quartiles; hollow at the upper edge
    where it lies above.
    """
    at = float(curve.at[-1])
    low, middle, high = (float(getattr(curve, name)[-1]) for name in STEPS)
    if not isfinite(middle):
        return
    is_beyond, colour = middle > scale.high, look["color"]
    panel.plot(
        [at], [min(middle, scale.high) / scale.unit_s], markersize=7, clip_on=False, zorder=3,
        markerfacecolor="none" if is_beyond else colour,
        markeredgecolor=colour if is_beyond else "white", **look,
    )  # fmt: skip
    if low < high < scale.high:
        panel.plot([at, at], [low / scale.unit_s, high / scale.unit_s], color=colour)


def _dress_places(panel: Axes, axis: str, curves: Sequence[Curve]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low = min(float(curve.at[0]) for curve in curves)
    high = max(float(curve.at[-1]) for curve in curves)
    margin = 1.05 * (high / low) ** 0.05
    panel.set_xscale("log")
    panel.set_xlim(low / margin, high * margin)
    panel.set_xlabel(TITLES[axis])
    numbered = next(digits for most, digits in NUMBERED if high / low < most)
    panel.xaxis.set_major_locator(LogLocator(10, numbered))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda place, _: f"{place:,.6g}"))
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.grid(which="major", color="#E4E4E4", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


def _dress_steps(panel: Axes, scale: Scale) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    panel.set_ylabel(f"step of the best so far ({scale.unit})")
    if scale.high > WIDE * scale.low:
        panel.set_yscale("log")
        panel.yaxis.set_major_locator(LogLocator(10, (1, 1.5, 2, 3, 4, 5, 6, 8)))
        panel.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        panel.yaxis.set_minor_formatter(NullFormatter())
    panel.set_ylim(scale.low / scale.unit_s, scale.high / scale.unit_s)


def _draw_legend(
    figure: Figure, ends: Mapping[str, float], looks: Mapping[str, Mapping[str, Any]]
) -> None:
    """A line for every method with its median end, the best first, and for each reference at its
    place among them.
    """
    from matplotlib.lines import Line2D

    every = dict(sorted(ends.items(), key=lambda entry: entry[1]))
    labels = [
        f"{plain(label, 32)}  {format_seconds(end)}" if isfinite(end) else f"{label}  does not fit"
        for label, end in every.items()
    ]
    lines = [Line2D([], [], **{"linewidth": 1.8, **looks[label]}) for label in every]
    figure.legend(
        lines, labels, loc="outside right upper", frameon=False, fontsize=9, handlelength=2.6,
        title="ends at (median)", alignment="left",
    )  # fmt: skip
