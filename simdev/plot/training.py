"""The Gantt chart of a large model's step: a row for each rank of the pipeline.

Above, what a rank computes: colours stand for microbatches, shades for kinds of work (forwards and
what is made again light, backwards full, gradients of weights dark). Below it what nothing hides of
communication, in colours of its own: the paler, the smaller its share of what is too short to be
seen. The bubble is hatched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ..analysis import Report, Training
from ..analysis.training import BUBBLE, EXPOSED, TERMS, tiles
from ..models.large.roles import BACKWARD, COMPUTES, FORWARD, RECOMPUTE, ROLES, UPDATE, WEIGHT
from ..schedules import BACKWARD as WHOLE
from ..schedules import FORWARD as AHEAD
from ..schedules import WEIGHT as WEIGHTS
from ..taskgraph import Ints
from ..units import format_seconds
from .pipeline import GREY, HUES, IDLE_FILL, IDLE_HATCH, LABELS, fitting, shade
from .style import MARGIN, WIDTH, new_figure, plain, time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# from the middle of a row, downwards
WHOLE_ROW, COMPUTING, WAITING = (-0.44, 0.44), (-0.44, 0.20), (0.22, 0.44)
# parts of a step: gaps between tasks of one look that are shorter than one are drawn over
VISIBLE = 1_500
COMMUNICATION = dict(
    zip(
        (ROLES[role] for role in EXPOSED),
        ("#E69F00", "#CC79A7", "#000000", "#8C564B", "#56B4E9"),
        strict=True,
    )
)
UPDATE_COLOUR = "#B00020"
LEGEND = 7  # entries in a line
ROWS = 64


@dataclass(frozen=True, slots=True)
class Spans:
    """Bars of one look: ``what`` a role or the bubble, ``hue`` the microbatch's (-1: none); row,
    start, finish (ps).
    """

    what: str
    hue: int
    row: Ints
    start: Ints
    finish: Ints


def _section(report: Report) -> Training:
    """What only a large model's step has. Raises ValueError where there is none."""
    if report.training is None:
        raise ValueError(
            "report: is not that of a large model's step; gantt_figure draws any trace"
        )
    return report.training


def training_spans(report: Report) -> tuple[Spans, ...]:
    """Everything that is drawn, by look: what each rank computes, layer by layer, and what its gaps
    go to.
    """
    plan, trace = _section(report).plan, report.trace
    found: dict[tuple[str, int], list[Ints]] = {}
    for rank, device in enumerate(plan.first[:ROWS]):
        rows = np.flatnonzero((trace.task_graph.tasks.source == device) & (plan.role < COMPUTES))
        hues = np.where(plan.microbatch[rows] < 0, -1, plan.microbatch[rows] % len(HUES))
        for role in range(COMPUTES):
            for hue in range(-1, len(HUES)):
                own = rows[(plan.role[rows] == role) & (hues == hue)]
                if len(own):
                    joined = _joined(trace.start[own], trace.finish[own], trace.end_ps // VISIBLE)
                    found.setdefault((ROLES[role], hue), []).append(_table(rank, *joined))
        label, start, finish = tiles(trace, plan, rank)
        for one in (*EXPOSED, TERMS.index(BUBBLE)):
            own = label == one
            if own.any():
                found.setdefault((TERMS[one], -1), []).append(_table(rank, start[own], finish[own]))
    return tuple(
        Spans(what, hue, *np.concatenate(pieces, axis=1)) for (what, hue), pieces in found.items()
    )


def _actions(report: Report) -> Iterator[tuple[str, bool, int, int, int]]:
    """What each rank computes for a microbatch, no other between: its number, whether light, row,
    start, finish.
    """
    plan, trace = _section(report).plan, report.trace
    for rank, device in enumerate(plan.first[:ROWS]):
        here = (
            (trace.task_graph.tasks.source == device)
            & (plan.role < COMPUTES)
            & (plan.microbatch >= 0)
        )
        rows = np.flatnonzero(here & (trace.finish > trace.start))
        rows = rows[np.argsort(trace.start[rows], kind="stable")]
        role, microbatch = plan.role[rows], plan.microbatch[rows]
        kind = np.where((role == FORWARD) | (role == WEIGHT), role, BACKWARD)
        light = (kind == FORWARD) | ((kind == BACKWARD) & (role == RECOMPUTE).any())
        changes = (kind[1:] != kind[:-1]) | (microbatch[1:] != microbatch[:-1])
        borders = [0, *(np.flatnonzero(changes) + 1).tolist(), len(rows)] if len(rows) else []
        for i, after in pairwise(borders):
            start, finish = trace.start[rows[i]], trace.finish[rows[after - 1]]
            yield str(microbatch[i]), bool(light[i]), rank, int(start), int(finish)


def _joined(start: Ints, finish: Ints, gap: int) -> tuple[Ints, Ints]:
    """Spans with no more than a gap between them are one."""
    order = np.argsort(start, kind="stable")
    start, finish = start[order], finish[order]
    first = np.flatnonzero(np.concatenate(([True], start[1:] - finish[:-1] > gap)))
    return start[first], finish[np.append(first[1:] - 1, len(finish) - 1)]


def _table(rank: int, start: Ints, finish: Ints) -> Ints:
    return np.stack((np.full(len(start), rank, np.int64), start, finish))


def training_figure(report: Report) -> Figure:
    """The chart on a figure of its own; save it with ``figure.savefig(path)``."""
    ranks = min(len(_section(report).stages), ROWS)
    figure = new_figure(WIDTH, min(1.9 + 0.5 * max(ranks, 2), 40.0))
    plot_training(report, figure.add_subplot())
    return figure


def plot_training(report: Report, ax: Axes | None = None) -> Axes:
    """Draw the chart on ``ax`` (None: on a figure of its own) and return the axes."""
    if ax is None:
        return training_figure(report).axes[0]
    _draw_axes(ax, report)
    spans = training_spans(report)
    for one in spans:
        _draw(ax, one, time_unit(report.step_ps)[1])
    _draw_labels(ax, report)
    training = _section(report)
    lines = _draw_legend(ax, spans, training.plan.parallelism.microbatches)
    title = (
        f"{training.plan.model.name}, {training.plan.schedule.name}: step "
        f"{format_seconds(report.seconds)}"
    )
    told = (
        f"MFU {training.mfu:.1%}, bubble {report.bubble:.1%}, exposed communication "
        f"{report.exposed:.1%}"
    )
    ax.set_title(f"{plain(title, 90)}, {told}", loc="left", pad=10 + 16 * lines, fontsize=11)
    return ax


def _draw_axes(ax: Axes, report: Report) -> None:
    unit, scale = time_unit(report.step_ps)
    stages = _section(report).stages[:ROWS]
    ax.set_xlim(0, report.step_ps / scale * MARGIN or 1)
    ax.set_ylim(len(stages) - 0.4, -0.6)
    size = min(9.0, max(4.0, 500.0 / len(stages)))
    ax.set_yticks(range(len(stages)), [plain(stage.device, 24) for stage in stages], fontsize=size)
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel(f"time ({unit})")
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    right = ax.secondary_yaxis("right")
    peaks = [f"peak {stage.memory.peak / 2**30:.1f} GiB" for stage in stages]
    right.set_yticks(range(len(stages)), peaks, fontsize=size, color="#555555")
    right.tick_params(axis="y", length=0)
    right.spines["right"].set_visible(False)


def _colour(what: str, hue: int) -> tuple[float, float, float]:
    from matplotlib.colors import to_rgb

    if what in COMMUNICATION:
        return to_rgb(COMMUNICATION[what])
    if what == ROLES[UPDATE]:
        return to_rgb(UPDATE_COLOUR)
    kind = (
        WEIGHTS
        if what == ROLES[WEIGHT]
        else AHEAD
        if what in (ROLES[FORWARD], ROLES[RECOMPUTE])
        else WHOLE
    )
    return shade(HUES[hue] if hue >= 0 else GREY, kind)


def _draw(ax: Axes, spans: Spans, scale: int) -> None:
    from matplotlib.collections import PolyCollection

    above, below = (
        WHOLE_ROW if spans.what == BUBBLE else WAITING if spans.what in COMMUNICATION else COMPUTING
    )
    left, right, upper, lower = (
        spans.start / scale,
        spans.finish / scale,
        spans.row + above,
        spans.row + below,
    )
    corners = ((left, lower), (left, upper), (right, upper), (right, lower))
    boxes = list(np.stack([np.stack(corner, axis=-1) for corner in corners], axis=1))
    if spans.what == BUBBLE:
        drawn = PolyCollection(
            boxes,
            facecolors=IDLE_FILL,
            edgecolors=IDLE_HATCH,
            linewidths=0.0,
            hatch="/////",
            zorder=1,
        )
    else:
        # Moved to whole pixels, thin bars would show patterns that are not there.
        colour = _colour(spans.what, spans.hue)
        drawn = PolyCollection(boxes, facecolors=colour, linewidths=0.0, zorder=2, snap=False)
    ax.add_collection(drawn, autolim=False)


def _draw_labels(ax: Axes, report: Report) -> None:
    """The microbatch inside the bars that have room."""
    points, scale = ax.get_window_extent().width * 72 / ax.figure.dpi, time_unit(report.step_ps)[1]
    drawn = 0
    for text, light, row, start, finish in _actions(report):
        fits, size = fitting((text,), (finish - start) * points / report.step_ps)
        if fits and drawn < LABELS:
            colour, height = "#1A1A1A" if light else "white", row + sum(COMPUTING) / 2
            middle = (start + finish) / 2 / scale
            ax.text(
                middle,
                height,
                text,
                color=colour,
                fontsize=size,
                ha="center",
                va="center",
                zorder=3,
            )
            drawn += 1


def _draw_legend(ax: Axes, spans: tuple[Spans, ...], microbatches: int) -> int:
    """The number of its lines."""
    from matplotlib.legend_handler import HandlerTuple
    from matplotlib.patches import Patch

    present = {one.what for one in spans}
    ahead = [ROLES[role] for role in (FORWARD, RECOMPUTE) if ROLES[role] in present]
    others = [
        ROLES[role]
        for role in range(COMPUTES)
        if role not in (FORWARD, RECOMPUTE) and ROLES[role] in present
    ]
    handles: list[Any] = [Patch(facecolor=_colour(one, -1)) for one in (*ahead[:1], *others)]
    labels = [" and ".join(ahead), *others]
    for role in COMMUNICATION:
        if role in present:
            handles.append(Patch(facecolor=_colour(role, -1)))
            labels.append(f"{role}, exposed")
    if BUBBLE in present:
        handles.append(
            Patch(facecolor=IDLE_FILL, edgecolor=IDLE_HATCH, linewidth=0.0, hatch="/////")
        )
        labels.append(BUBBLE)
    handles.append(tuple(Patch(facecolor=colour) for colour in HUES[:microbatches]))
    labels.append(
        "microbatches" + f" (colours repeat every {len(HUES)})" * (microbatches > len(HUES))
    )
    lines = -(-len(labels) // LEGEND)
    ax.legend(
        handles, labels, loc="lower left", bbox_to_anchor=(0.0, 1.0), borderaxespad=0.2,
        ncols=-(-len(labels) // lines),
        frameon=False, fontsize=9, handlelength=1.8, columnspacing=1.6,
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0.0)},
    )  # fmt: skip
    return lines
