"""The Gantt chart: a row for each compute stream and queue, the critical path marked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..analysis import shorten
from ..taskgraph import TRANSFER
from ..trace import Trace
from ..units import format_bytes, format_seconds
from .data import PATH, GanttRow, gantt_rows, merge_neighbours, path_row
from .style import (
    ALARM,
    DARK,
    MARGIN,
    WIDTH,
    draw_legend,
    kind_colours,
    new_figure,
    plain,
    time_unit,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

MERGE_ABOVE = 5_000  # spans: beyond, neighbours that no pixel separates are drawn as one
# spans: beyond, a strip under the bar marks the critical path, an outline would hide it
OUTLINE_BELOW = 500
LABELS = 400
STRIP = 0.14  # rows: the height of that strip
WAITS = ("queueing", "launch", "latency")  # what the row of the critical path tells by its blame
DEVICE_SPACE = 0.35  # rows left free between devices


def gantt_height(rows: int) -> float:
    """A readable height in inches for this many rows."""
    return min(1.9 + 0.36 * max(rows, 2), 40.0)


def plot_gantt(trace: Trace, ax: Axes | None = None) -> Axes:
    """Draw the Gantt chart on ``ax`` (None: on a figure of its own) and return the axes.

    Bars are coloured by kind; transfers tell their source and destination. The critical path is a
    row of its own, on top, with what its waiting is blamed on, and its tasks are outlined in red
    below (in large charts underlined). The time axis is in the unit of the step time; nothing is
    shown or saved.
    """
    rows = gantt_rows(trace)
    if ax is None:
        ax = new_figure(WIDTH, gantt_height(len(rows))).add_subplot()
    spans = sum(map(len, rows))
    rows = (path_row(trace), *rows)
    if spans > MERGE_ABOVE:
        rows = tuple(merge_neighbours(row, trace.end_ps / 4_000) for row in rows)
    unit, scale = time_unit(trace.end_ps)
    places = _places(rows)
    _draw_axes(ax, trace, rows, places)
    _draw_bars(ax, rows, places, scale)
    _draw_critical(ax, rows, places, scale, outlined=spans <= OUTLINE_BELOW)
    verdict = (
        "fits" if trace.feasible else f"DOES NOT FIT: {format_bytes(trace.memory_excess)} over"
    )
    steps = trace.task_graph.steps
    what = "step" if steps == 1 else f"{steps} steps"
    draw_legend(
        ax,
        10.0,
        f"{what} {format_seconds(trace.end_ps / 1e12)}, {verdict}",
        alarm=not trace.feasible,
    )
    if spans <= MERGE_ABOVE:
        _draw_labels(ax, trace, rows, places, scale)
    ax.set_xlabel(f"time ({unit})")
    return ax


def _places(rows: Sequence[GanttRow]) -> list[float]:
    """The middle of each row, downwards, with some space between devices."""
    places, at = [], 0.0
    for before, row in zip([None, *rows], rows, strict=False):
        at += 1.0 + (DEVICE_SPACE if before is not None and before.device != row.device else 0.0)
        places.append(at)
    return places


def _half(row: GanttRow) -> float:
    return 0.42 if row.computes else 0.34


def _polygons(
    rows: Sequence[GanttRow], places: Sequence[float], scale: int, chosen: list[Bools]
) -> list[Floats]:
    """The four corners of each chosen span of each row."""
    found: list[Floats] = []
    for row, place, mask in zip(rows, places, chosen, strict=True):
        left, right = row.start[mask] / scale, row.finish[mask] / scale
        top, bottom = np.full(len(left), place - _half(row)), np.full(len(left), place + _half(row))
        corners = ((left, bottom), (left, top), (right, top), (right, bottom))
        found += list(np.stack([np.stack(corner, axis=-1) for corner in corners], axis=1))
    return found


def _draw_bars(ax: Axes, rows: Sequence[GanttRow], places: Sequence[float], scale: int) -> None:
    """One collection a kind: one artist a bar would take 45 times as long."""
    from matplotlib.collections import PolyCollection

    few = sum(map(len, rows)) <= OUTLINE_BELOW
    for kind, colour in kind_colours(kind for row in rows for kind in row.kind.tolist()).items():
        boxes = _polygons(
            rows, places, scale, [(row.kind == kind).astype(np.bool_) for row in rows]
        )
        # An edge of its own colour keeps a bar visible that is thinner than a pixel.
        edge, width = ("white", 0.6) if few else (colour, 0.2)
        bars = PolyCollection(
            boxes, facecolors=colour, edgecolors=edge, linewidths=width, label=plain(kind, 20)
        )
        ax.add_collection(bars, autolim=False)


def _draw_critical(
    ax: Axes, rows: Sequence[GanttRow], places: Sequence[float], scale: int, outlined: bool
) -> None:
    from matplotlib.collections import PolyCollection

    boxes = _polygons(rows, places, scale, [row.critical for row in rows])
    if not boxes:
        return
    if outlined:
        marks = PolyCollection(boxes, facecolors="none", edgecolors=ALARM, linewidths=1.6, zorder=3)
    else:
        for box in boxes:
            box[1:3, 1] = box[0, 1] - STRIP
        marks = PolyCollection(boxes, facecolors=ALARM, edgecolors=ALARM, linewidths=1.0, zorder=3)
    marks.set_label("critical path")
    ax.add_collection(marks, autolim=False)


def _draw_axes(ax: Axes, trace: Trace, rows: Sequence[GanttRow], places: Sequence[float]) -> None:
    step = trace.end_ps / time_unit(trace.end_ps)[1]
    ax.set_xlim(0, step * MARGIN or 1)
    ax.axvline(step, color="#888888", linewidth=0.8, zorder=0)
    low = places[-1] + 0.7 if places else 1.0
    ax.set_ylim(low, 0.3)
    # Rows thinner than their names keep only the names of the compute streams.
    named = [
        i for i, row in enumerate(rows) if len(rows) <= 110 or row.computes or row.device == PATH
    ]
    size = min(9.0, max(4.0, 500.0 / max(len(named), 1)))
    ax.set_yticks(
        [places[i] for i in named], [plain(rows[i].name, 32) for i in named], fontsize=size
    )
    for i, label in zip(named, ax.get_yticklabels(), strict=True):
        label.set_color("black" if rows[i].computes else "#666666")
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x", color="#DDDDDD", linewidth=0.6)
    ax.set_axisbelow(True)
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    for place, row, above in zip(places[1:], rows[1:], rows, strict=False):
        if row.device != above.device:
            ax.axhline(place - 0.5 - DEVICE_SPACE / 2, color="#BBBBBB", linewidth=0.6, zorder=0)


def _draw_labels(
    ax: Axes, trace: Trace, rows: Sequence[GanttRow], places: Sequence[float], scale: int
) -> None:
    """Names inside the bars that have room, the widest bars first."""
    from matplotlib.patches import Rectangle

    points = ax.get_window_extent().width * 72 / ax.figure.dpi
    per_ps = points / max(trace.end_ps, 1)
    found = [
        (int(row.finish[i] - row.start[i]), row, place, i)
        for row, place in zip(rows, places, strict=True)
        for i in np.flatnonzero((row.finish - row.start) * per_ps > 14).tolist()
    ]
    for length, row, place, i in sorted(found, key=lambda one: -one[0])[:LABELS]:
        size = 8.0 if row.computes else 7.0
        text = _fitting(
            _names(trace, row, i), int(length * per_ps / (size * 0.57)), row.kind[i] != TRANSFER
        )
        if text:
            left, right = row.start[i] / scale, row.finish[i] / scale
            box = Rectangle((left, place - 0.5), right - left, 1.0, transform=ax.transData)
            colour = "white" if row.kind[i] in DARK else "black"
            drawn = ax.text(
                (left + right) / 2, place, plain(text, 80), color=colour, fontsize=size, zorder=4
            )
            drawn.set(ha="center", va="center", clip_on=True)
            drawn.set_clip_path(box)


def _names(trace: Trace, row: GanttRow, i: int) -> Iterator[str]:
    """What may be written into a bar, the longest first."""
    task_graph, task = trace.task_graph, int(row.tasks[i])
    name = task_graph.tasks.name[task]
    if row.device == PATH and row.kind[i] in WAITS:
        yield str(row.kind[i])
        return
    if row.computes or task_graph.tasks.kind[task] != TRANSFER:
        yield name
        return
    ends = (
        task_graph.devices[d]
        for d in (task_graph.tasks.source[task], task_graph.tasks.destination[task])
    )
    source, destination = ends
    tensor = name.removesuffix(f">{destination}")
    yield f"{tensor}  {source} → {destination}"
    yield f"{source} → {destination}"
    yield f"→ {destination}"
    yield f"→{destination}"


def _fitting(names: Iterator[str], room: int, cut: bool) -> str:
    """The longest of the names that fits ``room`` characters; else, where it may be cut, both ends
    of the first.
    """
    wanted = list(names)
    for name in wanted:
        if len(name) <= room:
            return name
    return shorten(wanted[0], room) if cut and room >= 5 else ""
