"""The Gantt chart of a pipeline: a row a rank, a colour a microbatch, a shade a kind of action, the
bubble hatched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..analysis.pipeline import PipelineReport
from ..schedules import BACKWARD, FORWARD, INPUT, WEIGHT, Schedule
from ..trace import Trace
from ..units import PS_PER_SECOND, format_seconds
from .style import MARGIN, WIDTH, new_figure, plain, time_unit

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Microbatches take these in turn. They differ in hue, kinds of actions in lightness.
HUES = ("#0072B2", "#D55E00", "#009E73", "#B2569B", "#9A7D00", "#5B4FBF", "#0097A7", "#8C564B")
GREY = "#757575"
LIGHT, DARK = 0.62, 0.42  # how far forwards go towards white and gradients of weights towards black
HALF = {FORWARD: 0.44, BACKWARD: 0.44, INPUT: 0.44, WEIGHT: 0.30}  # rows
NAMES = {
    FORWARD: "forward",
    BACKWARD: "backward",
    INPUT: "input gradient",
    WEIGHT: "weight gradient",
}
IDLE_FILL, IDLE_HATCH = "#F4F4F4", "#C9C9C9"
LABELS = 2_000
# actions: beyond, white edges would hide the bars, and single microbatches cannot be seen
EDGES_BELOW = 3_000
TEXT = (8.0, 7.0, 6.0, 5.0)  # points, of the labels inside the bars: the largest that fits
WIDE = 0.62  # of its size: a character's width


Numbers = NDArray[np.float64] | NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Bars:
    """The bars of one hue and kind: ``actions`` number those of the schedule; row, start and finish
    (ps) of each.
    """

    hue: int
    kind: str
    actions: NDArray[np.int64]
    row: NDArray[np.int64]
    start: NDArray[np.int64]
    finish: NDArray[np.int64]


def pipeline_bars(schedule: Schedule, trace: Trace, shared: int = 1) -> tuple[Bars, ...]:
    """All actions of a pipeline's trace as bars, by hue and kind; those of no length are left out.

    ``shared`` microbatches in a row have one hue.
    """
    groups: dict[tuple[int, str], list[int]] = {}
    length = (trace.finish - trace.start).tolist()
    for i, action in enumerate(schedule.actions):
        if length[i]:
            groups.setdefault((action.microbatch // shared % len(HUES), action.kind), []).append(i)
    ranks = np.array([schedule.rank_of[action.stage] for action in schedule.actions], np.int64)
    found = []
    for (hue, kind), members in sorted(groups.items()):
        ids = np.array(members, np.int64)
        found.append(Bars(hue, kind, ids, ranks[ids], trace.start[ids], trace.finish[ids]))
    return tuple(found)


def idle_gaps(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """When ranks compute nothing: rank, begin and end (ps) of each gap in the step, in the order of
    time by rank.
    """
    found = []
    for rank, resource in enumerate(trace.task_graph.resources):
        tasks = np.array(resource.sequence, np.int64)
        begins = np.concatenate(([0], trace.finish[tasks]))
        ends = np.concatenate((trace.start[tasks], [trace.end_ps]))
        found += [
            (rank, begin, end)
            for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
            if end > begin
        ]
    table = np.array(found, np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2]


def pipeline_figure(report: PipelineReport, trace: Trace) -> Figure:
    """The chart on a figure of its own; save it with ``figure.savefig(path)``."""
    figure = new_figure(WIDTH, min(1.7 + 0.42 * max(report.schedule.ranks, 2), 40.0))
    plot_pipeline(report, trace, figure.add_subplot())
    return figure


def plot_pipeline(report: PipelineReport, trace: Trace, ax: Axes | None = None) -> Axes:
    """Draw the Gantt chart of a pipeline on ``ax`` (None: on a figure of its own) and return the
    axes.

    Colours stand for microbatches, in turn; forwards are light, backwards full, gradients of
    weights dark and lower. What is hatched is idle. The right margin tells the activations that
    live at most at once on each rank.
    """
    if ax is None:
        return pipeline_figure(report, trace).axes[0]
    _draw_axes(ax, report)
    _draw_idle(ax, report, trace)
    many = len(report.schedule.actions) > EDGES_BELOW
    shared = -(-report.schedule.microbatches // (2 * len(HUES))) if many else 1
    bars = pipeline_bars(report.schedule, trace, shared)
    scale = time_unit(report.step_ps)[1]
    for group in bars:
        _draw_bars(ax, group, scale, edged=not many)
    _draw_labels(ax, report, bars, scale)
    _draw_legend(ax, report, bars, shared)
    return ax


def shade(colour: str, kind: str) -> tuple[float, float, float]:
    """The colour of a kind of action: lighter for forwards, darker for gradients of weights."""
    from matplotlib.colors import to_rgb

    red, green, blue = to_rgb(colour)
    if kind == FORWARD:
        return (red + (1 - red) * LIGHT, green + (1 - green) * LIGHT, blue + (1 - blue) * LIGHT)
    keep = 1 - DARK if kind == WEIGHT else 1.0
    return (red * keep, green * keep, blue * keep)


def _draw_axes(ax: Axes, report: PipelineReport) -> None:
    unit, scale = time_unit(report.step_ps)
    ax.set_xlim(0, report.step_ps / scale * MARGIN or 1)
    ax.set_ylim(report.schedule.ranks - 0.4, -0.6)
    size = min(9.0, max(4.0, 500.0 / report.schedule.ranks))
    places = range(report.schedule.ranks)
    ax.set_yticks(places, [rank.name for rank in report.ranks], fontsize=size)
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel(f"time ({unit})")
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    right = ax.secondary_yaxis("right")
    right.set_yticks(
        places, [f"live {rank.live}" for rank in report.ranks], fontsize=size, color="#555555"
    )
    right.tick_params(axis="y", length=0)
    right.spines["right"].set_visible(False)


def _draw_idle(ax: Axes, report: PipelineReport, trace: Trace) -> None:
    from matplotlib.collections import PolyCollection

    scale = time_unit(report.step_ps)[1]
    row, start, finish = (
        column / divisor
        for column, divisor in zip(idle_gaps(trace), (1, scale, scale), strict=True)
    )
    boxes = _boxes(row, start, finish, HALF[FORWARD])
    idle = PolyCollection(
        boxes, facecolors=IDLE_FILL, edgecolors=IDLE_HATCH, linewidths=0.0, hatch="/////", zorder=1
    )
    ax.add_collection(idle, autolim=False)


def _boxes(row: Numbers, left: Numbers, right: Numbers, half: float) -> list[Numbers]:
    """The four corners of each bar."""
    corners = ((left, row + half), (left, row - half), (right, row - half), (right, row + half))
    return list(np.stack([np.stack(corner, axis=-1) for corner in corners], axis=1))


def _draw_bars(ax: Axes, bars: Bars, scale: int, edged: bool) -> None:
    from matplotlib.collections import PolyCollection

    boxes = _boxes(bars.row, bars.start / scale, bars.finish / scale, HALF[bars.kind])
    colour = shade(HUES[bars.hue], bars.kind)
    edge, width = ("white", 0.5) if edged else (colour, 0.1)
    drawn = PolyCollection(boxes, facecolors=colour, edgecolors=edge, linewidths=width, zorder=2)
    ax.add_collection(drawn, autolim=False)


def _draw_labels(ax: Axes, report: PipelineReport, bars: tuple[Bars, ...], scale: int) -> None:
    """The microbatch inside the bars that have room; the whole action where a rank runs several
    stages.
    """
    points = ax.get_window_extent().width * 72 / ax.figure.dpi
    per_ps = points / max(report.step_ps, 1)
    several = max(report.schedule.chunks) > 1
    drawn = 0
    for group in bars:
        colour = "#1A1A1A" if group.kind == FORWARD else "white"
        for i, row, start, finish in zip(
            group.actions, group.row, group.start, group.finish, strict=True
        ):
            action = report.schedule.actions[i]
            names = (str(action), str(action.microbatch)) if several else (str(action.microbatch),)
            text, size = fitting(names, float(finish - start) * per_ps)
            if text and drawn < LABELS:
                middle = (start + finish) / 2 / scale
                ax.text(
                    middle,
                    row,
                    text,
                    color=colour,
                    fontsize=size,
                    ha="center",
                    va="center",
                    zorder=3,
                )
                drawn += 1


def fitting(names: tuple[str, ...], room: float) -> tuple[str, float]:
    """The first of the names that fits so many points, and its size in points."""
    for name in names:
        for size in TEXT:
            if len(name) * size * WIDE <= room:
                return name, size
    return "", TEXT[-1]


def _draw_legend(ax: Axes, report: PipelineReport, bars: tuple[Bars, ...], shared: int) -> None:
    from matplotlib.legend_handler import HandlerTuple
    from matplotlib.patches import Patch

    kinds = [kind for kind in NAMES if any(group.kind == kind for group in bars)]
    handles: list[Artist | tuple[Artist, ...]] = [
        Patch(facecolor=shade(GREY, kind)) for kind in kinds
    ]
    labels = [NAMES[kind] for kind in kinds]
    handles.append(Patch(facecolor=IDLE_FILL, edgecolor=IDLE_HATCH, linewidth=0.0, hatch="/////"))
    labels.append("idle")
    hues = -(-report.schedule.microbatches // shared)
    handles.append(tuple(Patch(facecolor=colour) for colour in HUES[:hues]))
    told = [f"{shared} of one colour"] * (shared > 1) + [
        f"colours repeat every {shared * len(HUES)}"
    ] * (hues > len(HUES))
    labels.append("microbatches" + (f" ({', '.join(told)})" if told else ""))
    ax.legend(
        handles, labels, loc="lower left", bbox_to_anchor=(0.0, 1.0), borderaxespad=0.2,
        ncols=len(labels),
        frameon=False, fontsize=9, handlelength=1.8, columnspacing=1.6,
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0.0)},
    )  # fmt: skip
    schedule, period = report.schedule, report.period
    time = f"step {format_seconds(report.step_ps / PS_PER_SECOND)}"
    if period is not None:
        time += f", steady period {format_seconds(float(period.ps / PS_PER_SECOND))}"
    rate = f"bubble rate {float(report.bubble_rate):.2%}"
    title = f"{schedule.stages} stages, {schedule.microbatches} microbatches, {time}, {rate}"
    ax.set_title(f"{plain(schedule.name, 60)}: {title}", loc="left", pad=26, fontsize=11)
