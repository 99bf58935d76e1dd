"""The drawing of Gantt charts from rows of spans and their looks.

A Gantt is plain data. ``charts`` makes the charts of traces, of the messages of a policy and of the
microbatches of pipelines. To add a row, make a GanttRow where the chart is made (for any trace:
``charts.trace_rows``, from the rows of ``measures.spans.timeline_rows``); to add a colour, add a
Look.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...nouns.taskgraph import Floats
from ..measures.spans import runs
from .rows import GanttRow, coverage, critical_marks, long_borders, merge_neighbours
from .style import (
    MARGIN,
    SCALE,
    WIDTH,
    Colour,
    Theme,
    draw_legend,
    dress,
    luminance,
    new_figure,
    plain,
    text_width,
    time_unit,
)

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "IDLE", "Colour", "Gantt", "GanttRow", "Label", "Look", "draw_gantt", "gantt_figure",
    "merge_neighbours",
]  # fmt: skip

MARK = 2.2  # points: how thick the line under a bar is that marks the critical path
MARK_GAP = 3.0  # points: for less the line is not interrupted, nor is it ever shorter than a pixel
BORDER = 0.4  # of ink in the pixel that tells a long bar from the next of its look
LABELS = 1_000  # the longest spans
SIZES = (8.0, 7.0, 6.0, 5.0)  # points, of the labels inside the bars: the largest that fits
LINE, BREAKS = 1.2, "/_.: "  # of its size: the height of a line; after these a name may go on below
PADDING = 1.0  # points, beside a label
GROUP_SPACE = 0.35  # rows left free between devices
NAMED_ROWS = 110  # beyond, rows are thinner than their names, and only those that compute are named
TALLEST = 14.0  # inches: rows of a higher chart are thinner


@dataclass(frozen=True, slots=True)
class Look:
    """The look of spans: their colour, their top and bottom around the middle of their row (-1 to
    1, downwards), and whether they are hatched, as idle time is.
    """

    colour: Colour
    reach: tuple[float, float] = (-1.0, 1.0)
    hatched: bool = False


IDLE = Look("#F4F4F4", hatched=True)
HATCH = "#C9C9C9"


class Label(NamedTuple):
    """The text of a span: the first of ``names`` that fits whole, else nothing.

    ``row`` and ``look`` index the chart's rows and looks.
    """

    row: int
    start: int
    finish: int
    look: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Gantt:
    """The content of a chart from ``begin_ps`` to ``end_ps``.

    ``legend`` has a look, or several colours side by side, by label. ``alarm`` makes the title red.
    ``scale`` is the title of a colour bar and its largest number (None: no bar).
    ``row_height`` is in inches. ``since`` is appended to the label of the time axis.
    """

    rows: tuple[GanttRow, ...]
    looks: tuple[Look, ...]
    end_ps: int
    title: str
    begin_ps: int = 0
    labels: tuple[Label, ...] = ()
    legend: Mapping[str, Look | Sequence[Colour]] = field(default_factory=dict)
    alarm: bool = False
    scale: tuple[str, int] | None = None
    since: str = ""
    row_height: float = 0.36

    @property
    def length_ps(self) -> int:
        """How long the time axis is, in ps."""
        return self.end_ps - self.begin_ps

    @property
    def height(self) -> float:
        """A readable height in inches."""
        return min(1.9 + self.row_height * max(len(self.rows), 2), TALLEST)


def gantt_figure(chart: Gantt, theme: str | None = None) -> Figure:
    """The chart on a figure of its own; save it with ``figure.savefig(path)``."""
    figure = new_figure(WIDTH, chart.height)
    draw_gantt(chart, figure.add_subplot(), theme)
    return figure


def draw_gantt(chart: Gantt, ax: Axes | None = None, theme: str | None = None) -> Axes:
    """Draw the chart on ``ax`` (None: on a figure of its own) and return the axes; nothing is shown
    or saved.

    ``theme`` is "light", "dark" or a style of matplotlib (None: what suits the paper of the axes).
    A pixel is as strong as the share of it that spans cover, and a line below the bars marks the
    critical path.
    """
    if ax is None:
        return gantt_figure(chart, theme).axes[0]
    look, places = dress(ax, theme), list(_places(chart.rows))
    _draw_axes(ax, chart, places, look)
    _draw_legend(ax, chart, look)
    _lay_out(ax)
    _draw_spans(ax, chart, places, look)
    _draw_critical(ax, chart, places, look)
    _draw_labels(ax, chart, places, look)
    return ax


def _lay_out(ax: Axes) -> None:
    """Let the axes take their final size, on which visible spans and fitting labels depend."""
    from matplotlib.figure import Figure

    figure = ax.figure
    if isinstance(figure, Figure) and (engine := figure.get_layout_engine()) is not None:
        engine.execute(figure)


def _places(rows: Sequence[GanttRow]) -> Iterator[float]:
    """The middle of each row, downwards, with some space between devices."""
    place, device = 0.0, None
    for row in rows:
        place += 1.0 + (GROUP_SPACE if device not in (None, row.device) else 0.0)
        device = row.device
        yield place


def _half(row: GanttRow) -> float:
    return 0.43 if row.computes else 0.34


def _scale(chart: Gantt) -> int:
    return time_unit(chart.length_ps)[1]


def _points(ax: Axes) -> tuple[float, float]:
    """The width and the height of the axes in points."""
    extent = ax.get_window_extent()
    scale = 72 / ax.figure.dpi
    return max(float(extent.width) * scale, 1.0), max(float(extent.height) * scale, 1.0)


def _points_per_ps(ax: Axes, chart: Gantt) -> float:
    return _points(ax)[0] / max(chart.length_ps, 1) / MARGIN


def _row_points(ax: Axes) -> float:
    """The height of a row in points."""
    low, high = ax.get_ylim()
    return _points(ax)[1] / abs(high - low)


def _draw_spans(ax: Axes, chart: Gantt, places: Sequence[float], theme: Theme) -> None:
    """Draw two collections, one of hatched (idle) spans and one of painted pixels: an artist a bar
    would take 45 times as long.
    """
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import to_rgba_array

    edges = _pixel_edges(ax, chart)
    shown = to_rgba_array([theme.shown(look.colour) for look in chart.looks])[:, :3]
    hatched = np.array([look.hatched for look in chart.looks], np.bool_)
    idle, boxes, colours = [], [np.zeros((0, 4, 2))], [np.zeros((0, 4))]
    for row, place in zip(chart.rows, places, strict=True):
        # Idle time is drawn first, as the ground of the rest.
        gaps = merge_neighbours(row.chosen(hatched[row.look]), float(edges[1] - edges[0]))
        reach = place - _half(row), place + _half(row)
        idle += list(_boxes(chart, gaps.start, gaps.finish, reach))
        for top, bottom, band in _bands(row.chosen(~hatched[row.look]), chart.looks):
            reach = place + _half(row) * top, place + _half(row) * bottom
            first, last, painted = _runs(_painted(band, edges, shown, theme))
            boxes.append(_boxes(chart, edges[first], edges[last], reach))
            colours.append(painted)
    ax.add_collection(PolyCollection(idle, zorder=1, **_idle(theme)), autolim=False)
    # On whole pixels, or neighbours would let the paper through.
    bars = PolyCollection(
        list(np.concatenate(boxes)), facecolors=np.concatenate(colours), linewidth=0.0, zorder=2,
        antialiased=False, snap=True,
    )  # fmt: skip
    ax.add_collection(bars, autolim=False)


def _pixel_edges(ax: Axes, chart: Gantt) -> Floats:
    """When the pixels of the axes begin and end, in ps."""
    extent, scale = ax.get_window_extent(), ax.figure.dpi / 72
    left, per_ps = float(extent.x0), _points_per_ps(ax, chart) * scale
    last = math.ceil(left + chart.length_ps * per_ps)
    pixels = np.arange(math.floor(left), max(last, math.floor(left) + 1) + 1)
    return np.asarray(chart.begin_ps + (pixels - left) / per_ps)


def _boxes(chart: Gantt, start: Any, finish: Any, reach: tuple[float, float]) -> Any:
    """The four corners of boxes that begin and end at times in ps: (boxes, 4, 2)."""
    scale, (top, bottom) = _scale(chart), reach
    left, right = ((time - chart.begin_ps) / scale for time in (start, finish))
    boxes = np.empty((len(left), 4, 2))
    boxes[:, :2, 0], boxes[:, 2:, 0] = left[:, None], right[:, None]
    boxes[:, :, 1] = bottom, top, top, bottom
    return boxes


def _bands(row: GanttRow, looks: Sequence[Look]) -> Iterator[tuple[float, float, GanttRow]]:
    """(top, bottom, spans there) of the horizontal bands into which the looks divide a row."""
    reach = np.array([look.reach for look in looks]).reshape(-1, 2)
    for top, bottom in pairwise(np.unique(reach[row.look]).tolist()):
        there = (reach[row.look, 0] <= top) & (reach[row.look, 1] >= bottom)
        yield top, bottom, row.chosen(there)


def _painted(band: GanttRow, edges: Any, shown: Any, theme: Theme) -> Floats:
    """Red, green, blue and opacity of the pixels between the edges."""
    from matplotlib.colors import to_rgb

    looks, shares = coverage(band, edges)
    opacity = np.minimum(shares.sum(axis=0), 1.0)
    mean = shares.T @ shown[looks] / np.maximum(shares.sum(axis=0), 1e-12)[:, None]
    borders = np.searchsorted(edges, long_borders(band, float(edges[1] - edges[0]))) - 1
    mean[borders] = BORDER * np.array(to_rgb(theme.ink)) + (1 - BORDER) * mean[borders]
    return np.column_stack((mean, opacity))


def _runs(painted: Any) -> tuple[Any, Any, Any]:
    """(the first, the one after the last, the colour) of pixels in a row of one colour."""
    tones = np.rint(painted * 255)
    first, last = runs((tones[1:] != tones[:-1]).any(axis=1))
    visible = tones[first, 3] > 0
    return first[visible], last[visible] + 1, tones[first[visible]] / 255


def _idle(theme: Theme) -> dict[str, Any]:
    """How patches look that are hatched."""
    paper, lines = theme.shown(IDLE.colour), theme.shown(HATCH)
    return {"facecolor": paper, "edgecolor": lines, "linewidth": 0.0, "hatch": "/////"}


def _draw_critical(ax: Axes, chart: Gantt, places: Sequence[float], theme: Theme) -> None:
    """A thin line under the bars of the critical path: outlines would hide short ones."""
    from matplotlib.collections import LineCollection

    scale, per_ps = _scale(chart), _points_per_ps(ax, chart)
    lines: list[list[tuple[float, float]]] = []
    for row, place in zip(chart.rows, places, strict=True):
        y = place + _half(row) + MARK / 2 / _row_points(ax)
        for start, finish in np.transpose(critical_marks(row, MARK_GAP / per_ps)).tolist():
            least = (0.72 / per_ps - (finish - start)) / 2  # half of what is missing to a pixel
            ends = (start - max(least, 0), finish + max(least, 0))
            lines.append([((end - chart.begin_ps) / scale, y) for end in ends])
    marks = LineCollection(
        lines, colors=theme.alarm, linewidths=MARK, capstyle="butt", zorder=3, label="critical path"
    )
    ax.add_collection(marks, autolim=False)


def _draw_axes(ax: Axes, chart: Gantt, places: Sequence[float], theme: Theme) -> None:
    unit, scale = time_unit(chart.length_ps)
    end = chart.length_ps / scale
    ax.set_xlabel(f"time ({unit}){chart.since}")
    ax.set_xlim(0, end * MARGIN or 1)
    ax.set_ylim(places[-1] + 0.7 if places else 1.0, 0.3)
    ax.axvline(end, color=theme.faint, linewidth=0.8, zorder=0)
    rows = [
        (place, row) for place, row in zip(places, chart.rows, strict=True)
        if len(places) <= NAMED_ROWS or row.computes
    ]  # fmt: skip
    size = min(9.0, max(4.0, 500.0 / max(len(rows), 1)))
    ticks = [place for place, _ in rows]
    ax.set_yticks(ticks, [plain(row.name, 40) for _, row in rows], fontsize=size)
    for label, (_, row) in zip(ax.get_yticklabels(), rows, strict=True):
        label.set_color(theme.ink if row.computes else theme.faint)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x", color=theme.grid, linewidth=0.6)
    ax.spines[["top", "right", "left"]].set_visible(False)
    if any(row.note for _, row in rows):
        right = ax.secondary_yaxis("right")
        right.set_yticks(ticks, [row.note for _, row in rows], fontsize=size, color=theme.faint)
        right.tick_params(axis="y", length=0)
        right.spines["right"].set_visible(False)
    for place, row, above in zip(places[1:], chart.rows[1:], chart.rows, strict=False):
        if row.device != above.device:
            ax.axhline(place - 0.5 - GROUP_SPACE / 2, color=theme.rule, linewidth=0.6, zorder=0)


def _draw_labels(ax: Axes, chart: Gantt, places: Sequence[float], theme: Theme) -> None:
    """Texts inside the spans that have room for the whole of them, the longest spans first."""
    scale, per_ps = _scale(chart), _points_per_ps(ax, chart)
    room = [(label.finish - label.start) * per_ps - PADDING for label in chart.labels]
    # Under three points no digit can be read.
    wide = (i for i in np.argsort(room, kind="stable")[::-1].tolist() if room[i] > 3)
    high, drawn = _row_points(ax), 0
    for i in wide:
        row, start, finish, number, names = chart.labels[i]
        look, half = chart.looks[number], _half(chart.rows[row])
        text, size = fitted(names, room[i], high * half * (look.reach[1] - look.reach[0]))
        if not text or drawn == LABELS:
            continue
        drawn += 1
        colour = "white" if luminance(theme.shown(look.colour)) < 0.5 else "black"
        middle = (
            ((start + finish) / 2 - chart.begin_ps) / scale,
            places[row] + half * sum(look.reach) / 2,
        )
        note = ax.text(*middle, text, color=colour, fontsize=size)
        note.set(ha="center", va="center", zorder=4, clip_on=True, linespacing=1.0)


def fitted(names: Sequence[str], width: float, height: float) -> tuple[str, float]:
    """(the first of the names that fits whole into ``width`` x ``height`` points, on one line or
    two; its size in points); "" where none fits.
    """
    for name in names:
        for lines in _on_lines(plain(name, 80)):
            widest = max(map(text_width, lines))
            for size in SIZES:
                if size * LINE * len(lines) <= height and widest * size <= width:
                    return "\n".join(lines), size
    return "", SIZES[0]


def _on_lines(name: str) -> Iterator[tuple[str, ...]]:
    """The name on one line, then on two, broken where its halves are most alike."""
    yield (name,)
    breaks = [i + 1 for i, character in enumerate(name[:-1]) if character in BREAKS]
    if breaks:
        middle = min(breaks, key=lambda at: abs(2 * at - len(name)))
        yield name[:middle], name[middle:]


def _draw_legend(ax: Axes, chart: Gantt, theme: Theme) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    def patch(colour: Colour) -> Patch:
        return Patch(facecolor=theme.shown(colour))

    entries: dict[str, Artist | tuple[Artist, ...]] = {}
    for label, shown in chart.legend.items():
        if not isinstance(shown, Look):
            entries[plain(label, 60)] = tuple(patch(colour) for colour in shown)
        else:
            idle = Patch(**_idle(theme)) if shown.hatched else patch(shown.colour)
            entries[plain(label, 60)] = idle
    if any(row.critical.any() for row in chart.rows):
        entries["critical path"] = Line2D([], [], color=theme.alarm, linewidth=MARK)
    draw_legend(ax, 9.5, plain(chart.title, 160), chart.alarm, entries, theme)
    if chart.scale is not None:
        _draw_scale(ax, *chart.scale, theme)


def _draw_scale(ax: Axes, title: str, most: int, theme: Theme) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.ticker import MaxNLocator

    colours = ScalarMappable(Normalize(0, most), SCALE)
    bar = ax.figure.colorbar(colours, ax=ax, pad=0.01, ticks=MaxNLocator(integer=True))
    bar.set_label(title, color=theme.ink)
    bar.ax.tick_params(colors=theme.ink)
