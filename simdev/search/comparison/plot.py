"""The picture of a comparison: the best so far over evaluations and over CPU seconds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ground.units import PS_PER_SECOND, format_seconds
from ...report.figures.style import DEVICES, new_figure, plain, time_unit
from ...report.table import ONE_DEVICE, PRESENT
from .curves import AXES, Curve
from .runs import References

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

TITLES = {"evaluations": "evaluations", "cpu_seconds": "CPU seconds"}
COLOURS = DEVICES[:-1]  # the last is black, of what stands beside
DASHES: Sequence[Any] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (6, 1.5, 1, 1.5)))
MARKERS = "os^DvPX<>p"
BESIDE: Mapping[str, Any] = {ONE_DEVICE: (0, (1, 2)), PRESENT: (0, (4, 3))}
WIDE = 3.0  # from this ratio of steps on their axis is logarithmic
NUMBERED = ((20, (1, 2, 3, 5, 7)), (500, (1, 2, 5)), (inf, (1,)))  # of a decade, up to a ratio
HIGHEST = 2.0  # times the slowest reference: what is beyond would press all others together
WIDTH, HEIGHT, LINE = 13.0, 5.2, 0.21  # inches: of a picture, and of a line of its legend


@dataclass(frozen=True, slots=True)
class Look:
    """How a method is drawn: as a line with a dash, or as points with a marker."""

    colour: str
    dash: Any = "-"
    marker: str = ""


@dataclass(frozen=True, slots=True)
class Scale:
    """The axis of steps: from ``low`` to ``high`` seconds, told in a unit of so many seconds."""

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
    """Two panels, over each of AXES: median lines with bands between the quartiles, ``planners`` as
    points, one device and the own placement as horizontal lines.

    The legend has the best first. What lies above the panels stands at their upper edge, hollow.
    """
    ends = {curve.method: float(curve.median_s[-1]) for curve in curves[AXES[0]]}
    looks, beside = _looks(list(ends), planners), _beside(references)
    scale = _scale(curves, beside)
    figure = new_figure(WIDTH, max(HEIGHT, LINE * (len(ends) + 5)))
    panels = figure.subplots(1, len(AXES), sharey=True)
    for panel, axis in zip(panels, AXES, strict=True):
        for curve in curves[axis]:
            _draw_curve(panel, curve, looks[curve.method], scale)
        for label, seconds in beside.items():
            panel.axhline(
                seconds / scale.unit_s, color="black", linewidth=1.1, linestyle=BESIDE[label]
            )
        _dress_places(panel, axis, curves[axis])
    _dress_steps(panels[0], scale)
    figure.suptitle(plain(question, 90), x=0.01, ha="left", fontsize=11)
    _draw_legend(figure, ends, looks, beside)
    return figure


def _looks(methods: Sequence[str], planners: Collection[str]) -> dict[str, Look]:
    """Colours in turn, those of points after those of lines; where they are used up, dashes and
    markers tell equal ones apart.
    """
    points = [method for method in methods if method in planners]
    lines = [method for method in methods if method not in planners]
    count = len(COLOURS)
    looks = {
        method: Look(COLOURS[i % count], dash=DASHES[i // count % len(DASHES)])
        for i, method in enumerate(lines)
    }
    return looks | {
        method: Look(COLOURS[(len(lines) + i) % count], marker=MARKERS[i % len(MARKERS)])
        for i, method in enumerate(points)
    }


def _beside(references: References) -> dict[str, float]:
    return {
        label: reference.cost.seconds
        for label, reference in references.by_name.items()
        if reference is not None and reference.cost.feasible
    }


def _scale(curves: Mapping[str, Sequence[Curve]], beside: Mapping[str, float]) -> Scale:
    """All that fits, up to HIGHEST times what stands beside, or where a method ends."""
    every = np.concatenate([curve.upper_s for curve in curves[AXES[0]]])
    ends = [float(curve.lower_s[-1]) for curve in curves[AXES[0]]]
    every = np.concatenate([every, ends, list(beside.values())])
    every = every[np.isfinite(every)] if np.isfinite(every).any() else np.ones(1)  # none fits
    low, high = float(every.min()), float(every.max())
    if beside:
        high = min(high, HIGHEST * max(beside.values()))
        high = max(high, low)
    unit, unit_ps = time_unit(int(low * PS_PER_SECOND))
    # Room for markers at both ends, in the logarithm.
    margin = (high / low) ** 0.04 * 1.01
    return Scale(low / margin, high * margin, unit, unit_ps / PS_PER_SECOND)


def _draw_curve(panel: Axes, curve: Curve, look: Look, scale: Scale) -> None:
    lower, median, upper = (
        np.where(np.isfinite(steps), steps, np.nan) / scale.unit_s
        for steps in (curve.lower_s, curve.median_s, curve.upper_s)
    )
    if look.marker:
        _draw_point(panel, float(curve.at[-1]), curve, look, scale)
        return
    panel.fill_between(
        curve.at, lower, upper, step="post", color=look.colour, alpha=0.15, linewidth=0
    )
    panel.plot(
        curve.at, median, color=look.colour, linestyle=look.dash, linewidth=1.6,
        drawstyle="steps-post",
    )  # fmt: skip
    panel.plot(
        curve.at[-1:], median[-1:], color=look.colour, marker=".", markersize=6, linestyle="none"
    )


def _draw_point(panel: Axes, at: float, curve: Curve, look: Look, scale: Scale) -> None:
    """A single answer, with a bar between its quartiles; hollow at the upper edge where it is
    beyond.
    """
    low, middle, high = (
        float(steps[-1]) for steps in (curve.lower_s, curve.median_s, curve.upper_s)
    )
    if not isfinite(middle):
        return
    is_beyond = middle > scale.high
    panel.plot(
        [at], [min(middle, scale.high) / scale.unit_s], color=look.colour, marker=look.marker,
        markersize=7, linestyle="none", markerfacecolor="none" if is_beyond else look.colour,
        markeredgecolor=look.colour if is_beyond else "white", clip_on=False, zorder=3,
    )  # fmt: skip
    if low < high < scale.high:
        panel.plot([at, at], [low / scale.unit_s, high / scale.unit_s], color=look.colour)


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
    figure: Figure,
    ends: Mapping[str, float],
    looks: Mapping[str, Look],
    beside: Mapping[str, float],
) -> None:
    """Every method with its median end, the best first, and what stands beside where it falls."""
    from matplotlib.lines import Line2D

    def line(label: str) -> Line2D:
        if label in beside:
            return Line2D([], [], color="black", linewidth=1.1, linestyle=BESIDE[label])
        look = looks[label]
        if look.marker:
            return Line2D([], [], color=look.colour, marker=look.marker, linestyle="none")
        return Line2D([], [], color=look.colour, linestyle=look.dash, linewidth=1.8)

    every = sorted({**ends, **beside}.items(), key=lambda entry: entry[1])
    labels = [
        f"{plain(label, 32)}  {format_seconds(end)}" if isfinite(end) else f"{label}  does not fit"
        for label, end in every
    ]
    figure.legend(
        [line(label) for label, _ in every], labels, loc="outside right upper", frameon=False,
        fontsize=9, handlelength=2.6, title="ends at (median)", alignment="left",
    )  # fmt: skip
