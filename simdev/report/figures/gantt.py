"""The Gantt chart: it draws the rows of spans that it is given, in the looks that it is given.

Whoever wants another chart makes a Gantt, which is plain data: ``trace`` of any trace, ``sync`` of
a policy's messages, ``microbatches`` of pipelines. To add a row, make a GanttRow where the chart is
made (for any trace: ``trace.trace_rows``, of the rows of ``measures.spans.timeline_rows``); to add
a colour, add a Look.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...taskgraph import Ints
from ..measures.spans import Bools
from ..table import shorten
from .style import ALARM, MARGIN, WIDTH, draw_legend, new_figure, plain, time_unit

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Colour = str | tuple[float, float, float]

OUTLINE_BELOW = (
    500  # spans: beyond, a strip under the bar marks the critical path: an outline hides it
)
STRIP = 0.14  # rows: the height of that strip
LABELS = 1_000  # the longest spans
SIZES = (8.0, 7.0, 6.0, 5.0)  # points, of the labels inside the bars: the largest that fits
LETTER = 0.6  # of its size: a character's width
GROUP_SPACE = 0.35  # rows left free between devices
NAMED_ROWS = 110  # beyond, rows are thinner than their names, and only those that compute are named


@dataclass(frozen=True, slots=True)
class Look:
    """How spans are drawn: their colour, how far they reach from the middle of their row (-1 to 1,
    downwards), and whether they are hatched, as what is idle.
    """

    colour: Colour
    reach: tuple[float, float] = (-1.0, 1.0)
    hatched: bool = False


IDLE = Look("#F4F4F4", hatched=True)
_HATCH: Mapping[str, Any] = {"edgecolor": "#C9C9C9", "linewidth": 0.0, "hatch": "/////"}


@dataclass(frozen=True, slots=True, eq=False)
class GanttRow:
    """One row of spans; of each the ``start`` and ``finish`` in ps, and the ``look``, an index into
    the looks of the chart.

    ``tasks`` are the ids of the tasks that the spans show (-1: none), ``critical`` marks those on
    the critical path. Rows of another ``device`` stand a little apart (a link: -1); the names of
    rows that do not ``computes`` are grey, their bars lower. ``note`` stands right of the row.
    """

    name: str
    device: int
    computes: bool
    tasks: Ints
    start: Ints
    finish: Ints
    look: Ints
    critical: Bools
    note: str = ""

    def __len__(self) -> int:
        return len(self.start)

    def chosen(self, spans: Any) -> GanttRow:
        """The row with some of its spans only: an index or a mask."""
        columns = ("tasks", "start", "finish", "look", "critical")
        return replace(self, **{name: getattr(self, name)[spans] for name in columns})


class Label(NamedTuple):
    """What may be written into a span, the first that fits of ``names``; where none fits, the first
    one cut short, if it may be (``cut``). ``row`` and ``look`` index the chart's rows and looks.
    """

    row: int
    start: int
    finish: int
    look: int
    names: tuple[str, ...]
    cut: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Gantt:
    """All that a chart shows from ``begin_ps`` to ``end_ps``.

    ``legend`` has a look, or several colours side by side, by label. ``blend`` leaves what is
    thinner than a pixel as pale as its share of it; else an edge keeps it visible. ``alarm`` makes
    the title red. ``scale`` is the title of a colour bar and its largest number (None: no bar).
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
    blend: bool = False
    scale: tuple[str, int] | None = None
    since: str = ""
    row_height: float = 0.36

    @property
    def height(self) -> float:
        """A readable height in inches."""
        return min(1.9 + self.row_height * max(len(self.rows), 2), 40.0)


def merge_neighbours(row: GanttRow, resolution_ps: float) -> GanttRow:
    """The row with neighbours of one look made one span where they lie closer than
    ``resolution_ps``.

    A merged span carries the id of its first task. Spans on and off the critical path are not
    merged.
    """
    if not len(row):
        return row
    apart = row.start[1:] - row.finish[:-1] > resolution_ps
    apart |= (row.look[1:] != row.look[:-1]) | (row.critical[1:] != row.critical[:-1])
    first = np.flatnonzero(np.concatenate(([True], apart)))
    last = np.append(first[1:], len(row)) - 1
    return replace(row.chosen(first), finish=row.finish[last])


def gantt_figure(chart: Gantt) -> Figure:
    """The chart on a figure of its own; save it with ``figure.savefig(path)``."""
    figure = new_figure(WIDTH, chart.height)
    draw_gantt(chart, figure.add_subplot())
    return figure


def draw_gantt(chart: Gantt, ax: Axes | None = None) -> Axes:
    """Draw the chart on ``ax`` (None: on a figure of its own) and return the axes; nothing is shown
    or saved.
    """
    if ax is None:
        return gantt_figure(chart).axes[0]
    places = list(_places(chart.rows))
    _draw_axes(ax, chart, places)
    _draw_spans(ax, chart, places)
    _draw_critical(ax, chart, places)
    _draw_labels(ax, chart, places)
    _draw_legend(ax, chart)
    return ax


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
    return time_unit(chart.end_ps - chart.begin_ps)[1]


def _points_per_ps(ax: Axes, chart: Gantt) -> float:
    points = float(ax.get_window_extent().width) * 72 / ax.figure.dpi
    return points / max(chart.end_ps - chart.begin_ps, 1)


def _boxes(chart: Gantt, places: Sequence[float], rows: Sequence[GanttRow]) -> NDArray[np.float64]:
    """The four corners of each span of the rows: (spans, 4, 2)."""
    scale, reach = _scale(chart), np.array([look.reach for look in chart.looks]).reshape(-1, 2)
    boxes = [np.zeros((0, 4, 2))]
    for row, place in zip(rows, places, strict=True):
        left, right = ((time - chart.begin_ps) / scale for time in (row.start, row.finish))
        top, bottom = (place + _half(row) * reach[row.look].T)[:2]
        corners = ((left, bottom), (left, top), (right, top), (right, bottom))
        boxes.append(np.stack([np.stack(corner, axis=-1) for corner in corners], axis=1))
    return np.concatenate(boxes)


def _draw_spans(ax: Axes, chart: Gantt, places: Sequence[float]) -> None:
    """Two collections, of what is hatched and of all else: an artist a bar would take 45 times as
    long.
    """
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import to_rgba_array

    boxes = _boxes(chart, places, chart.rows)
    look = np.concatenate([np.zeros(0, np.int64), *(row.look for row in chart.rows)])
    hatched = np.array([look.hatched for look in chart.looks], np.bool_)[look]
    colours = to_rgba_array([look.colour for look in chart.looks])[look]
    idle = PolyCollection(list(boxes[hatched]), facecolors=IDLE.colour, zorder=1, **_HATCH)
    bars = PolyCollection(list(boxes[~hatched]), facecolors=colours[~hatched], zorder=2)
    lengths = (boxes[~hatched, 2, 0] - boxes[~hatched, 0, 0]) * _scale(chart)
    wide = bool(len(lengths)) and float(np.median(lengths)) * _points_per_ps(ax, chart) > 4
    if chart.blend:
        # Moved to whole pixels, thin bars would show patterns that are not there.
        bars.set(linewidth=0.0, snap=False)
    elif wide or len(lengths) <= OUTLINE_BELOW:
        bars.set(edgecolor="white", linewidth=0.5)
    else:
        # An edge of its own colour keeps a bar visible that is thinner than a pixel.
        bars.set(edgecolor="face", linewidth=0.2)
    for drawn in (idle, bars):
        ax.add_collection(drawn, autolim=False)


def _draw_critical(ax: Axes, chart: Gantt, places: Sequence[float]) -> None:
    """Mark the critical path: red outlines, or strips below the bars beyond OUTLINE_BELOW spans."""
    from matplotlib.collections import PolyCollection

    boxes = _boxes(chart, places, [row.chosen(row.critical) for row in chart.rows])
    outlined = sum(map(len, chart.rows)) <= OUTLINE_BELOW
    if not outlined:
        boxes[:, 1:3, 1] = boxes[:, :1, 1] - STRIP
    face, width = ("none", 1.6) if outlined else (ALARM, 1.0)
    marks = PolyCollection(
        list(boxes), facecolors=face, edgecolors=ALARM, linewidths=width, zorder=3
    )
    ax.add_collection(marks, autolim=False)


def _draw_axes(ax: Axes, chart: Gantt, places: Sequence[float]) -> None:
    unit, scale = time_unit(chart.end_ps - chart.begin_ps)
    end = (chart.end_ps - chart.begin_ps) / scale
    ax.set_xlabel(f"time ({unit}){chart.since}")
    ax.set_xlim(0, end * MARGIN or 1)
    ax.set_ylim(places[-1] + 0.7 if places else 1.0, 0.3)
    ax.axvline(end, color="#888888", linewidth=0.8, zorder=0)
    rows = [
        (place, row) for place, row in zip(places, chart.rows, strict=True)
        if len(places) <= NAMED_ROWS or row.computes
    ]  # fmt: skip
    size = min(9.0, max(4.0, 500.0 / max(len(rows), 1)))
    ticks = [place for place, _ in rows]
    ax.set_yticks(ticks, [plain(row.name, 32) for _, row in rows], fontsize=size)
    for label, (_, row) in zip(ax.get_yticklabels(), rows, strict=True):
        label.set_color("black" if row.computes else "#666666")
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x", color="#DDDDDD", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right", "left"]].set_visible(False)
    if any(row.note for _, row in rows):
        right = ax.secondary_yaxis("right")
        right.set_yticks(ticks, [row.note for _, row in rows], fontsize=size, color="#555555")
        right.tick_params(axis="y", length=0)
        right.spines["right"].set_visible(False)
    for place, row, above in zip(places[1:], chart.rows[1:], chart.rows, strict=False):
        if row.device != above.device:
            ax.axhline(place - 0.5 - GROUP_SPACE / 2, color="#BBBBBB", linewidth=0.6, zorder=0)


def _draw_labels(ax: Axes, chart: Gantt, places: Sequence[float]) -> None:
    """Texts inside the spans that have room, the longest spans first."""
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Rectangle

    scale, per_ps = _scale(chart), _points_per_ps(ax, chart)
    room = [(label.finish - label.start) * per_ps for label in chart.labels]
    # Under three points no digit can be read.
    fitting = (i for i in np.argsort(room, kind="stable")[::-1].tolist() if room[i] > 3)
    drawn = 0
    for i in fitting:
        row, start, finish, number, names, cut = chart.labels[i]
        text, size = fitted(names, room[i], cut)
        if not text or drawn == LABELS:
            continue
        drawn += 1
        look = chart.looks[number]
        red, green, blue = to_rgb(look.colour)
        # Brightness as ITU-R BT.709 weighs it.
        colour = "white" if 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.5 else "black"
        left, right = ((time - chart.begin_ps) / scale for time in (start, finish))
        middle = places[row] + _half(chart.rows[row]) * sum(look.reach) / 2
        note = ax.text((left + right) / 2, middle, plain(text, 80), color=colour, fontsize=size)
        note.set(ha="center", va="center", zorder=4, clip_on=True)
        box = (left, places[row] - 0.5), right - left, 1.0
        note.set_clip_path(Rectangle(*box, transform=ax.transData))


def fitted(names: Sequence[str], room: float, cut: bool = False) -> tuple[str, float]:
    """The first of the names that fits so many points, and its size in points; else, where it may
    be cut, both ends of the first.
    """
    for name in names:
        for size in SIZES[:2] if cut else SIZES:
            if len(name) * size * LETTER <= room:
                return name, size
    most = int(room / (SIZES[1] * LETTER))
    return (shorten(names[0], most) if cut and most >= 5 else ""), SIZES[1]


def _draw_legend(ax: Axes, chart: Gantt) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    entries: dict[str, Artist | tuple[Artist, ...]] = {}
    for label, shown in chart.legend.items():
        if isinstance(shown, Look):
            style = _HATCH if shown.hatched else {}
            entries[plain(label, 60)] = Patch(facecolor=shown.colour, **style)
        else:
            entries[plain(label, 60)] = tuple(Patch(facecolor=colour) for colour in shown)
    if any(row.critical.any() for row in chart.rows):
        entries["critical path"] = Patch(facecolor="none", edgecolor=ALARM, linewidth=1.6)
    draw_legend(ax, 9.5, plain(chart.title, 160), chart.alarm, entries)
    if chart.scale is not None:
        title, most = chart.scale
        colours = ScalarMappable(Normalize(0, most), "viridis")
        ticks = MaxNLocator(integer=True)
        ax.figure.colorbar(colours, ax=ax, label=title, pad=0.01, ticks=ticks)
