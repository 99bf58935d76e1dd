"""Figures of synchronisation policies: slices by their priority over time, and gains over the
bandwidth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..analysis import Row, Steady, timeline_rows
from ..errors import InputError
from ..lowering.sync import FIRST
from ..taskgraph import SYNC, TRANSFER, Ints
from ..trace import Trace
from ..units import PS_PER_SECOND, format_seconds
from .style import DEVICES, WIDTH, draw_legend, kind_colours, new_figure, plain, time_unit

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
PERIODS = 2  # shown, of the steady state
LABELS = 300
POLICY, BANDWIDTH = "strategy.sync.policy", "cluster.bandwidth_bytes_per_s"
PUBLISHED: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]] = {
    "resnet-50": {"p3": ((4.0, 26.0),)},
    "vgg-19": {"p3": ((15.0, 66.0),), "sliced": ((30.0, 49.0),)},
}
"""Gains over the parameter server that P3 tells of (Jayarajan et al., MLSys 2019): (Gbit/s, %), by
model and policy.
"""


def ranks_of(trace: Trace) -> Ints:
    """By task the place of what it sends in the order of priority, 0 first; -1 where it sends
    nothing that has one.

    It is the place within its step: what an earlier step still has to send goes before it in any
    case.
    """
    tasks, steps = trace.task_graph.tasks, trace.task_graph.steps
    step = len(tasks) // steps
    sends = [row for row in range(step) if tasks.kind[row] in (TRANSFER, SYNC)]
    first = tasks.priority[:step].tolist()
    # Further segments and further queues have priorities of their own: the message's is that of its
    # first task.
    named = {tasks.name[row]: first[row] - FIRST for row in reversed(sends) if first[row] >= FIRST}
    named |= {
        name.rpartition(" ")[0]: place
        for name, place in named.items()
        if name.rpartition(" ")[2][:2] == "1/"
    }
    found = np.full(step, -1, np.int64)
    for row in sends:
        name = tasks.name[row]
        found[row] = named.get(name, named.get(name.rpartition(" ")[0], -1))
    return np.tile(found, steps)


def sync_figure(trace: Trace, steady: Steady) -> Figure:
    """Two periods of the steady state on a figure of its own (``plot_slices``)."""
    rows = _rows(trace)
    figure = new_figure(WIDTH, min(2.2 + 0.36 * len(rows), 40.0))
    plot_slices(trace, steady, figure.add_subplot())
    return figure


def plot_slices(trace: Trace, steady: Steady, ax: Axes | None = None) -> Axes:
    """Draw two periods of the steady state on ``ax`` (None: on a figure of its own) and return the
    axes.

    A row for each compute stream and queue. Messages and sums are coloured by their priority (dark
    goes first) and bear its number where there is room; what computes is coloured by its kind.
    """
    from matplotlib.collections import PolyCollection
    from matplotlib.ticker import MaxNLocator

    if ax is None:
        ax = new_figure(WIDTH, 6.0).add_subplot()
    begin, end = _window(trace, steady)
    unit, scale = time_unit(end - begin)
    rows = _rows(trace)
    bars = _bars(trace, rows, (begin, end), scale)
    colours = kind_colours(bars.boxes)
    for kind, parts in bars.boxes.items():
        found = PolyCollection(
            list(np.concatenate(parts)), facecolors=colours[kind], label=plain(kind, 20)
        )
        ax.add_collection(found, autolim=False)
    ranks, sent = np.concatenate(bars.ranks), list(np.concatenate(bars.sent))
    # An edge of its own colour keeps a bar visible that is thinner than a pixel.
    slices = PolyCollection(sent, array=ranks, cmap="viridis", linewidths=0.2, edgecolors="face")
    ax.add_collection(slices, autolim=False)
    ax.set_xlim(0, (end - begin) / scale)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_yticks(range(len(rows)), [plain(row.name, 32) for row in rows], fontsize=8)
    if len(ranks):
        ticks = MaxNLocator(integer=True)
        ax.figure.colorbar(
            slices, ax=ax, label="priority: 0 is needed first", pad=0.01, ticks=ticks
        )
    _label(ax, bars.labels, end - begin)
    draw_legend(ax, 9.0, f"step time (period) {format_seconds(steady.step_ps / PS_PER_SECOND)}")
    ax.set_xlabel(f"time ({unit}) from the end of a step")
    return ax


@dataclass(slots=True)
class _Bars:
    """The corners of what is drawn, by row: by kind, and of what has a priority, with its rank.

    ``labels`` are (length in ps, middle, row, text).
    """

    boxes: dict[str, list[Floats]] = field(default_factory=dict)
    sent: list[Floats] = field(default_factory=list)
    ranks: list[Ints] = field(default_factory=list)
    labels: list[tuple[int, float, float, str]] = field(default_factory=list)


def _bars(trace: Trace, rows: Sequence[Row], window: tuple[int, int], scale: int) -> _Bars:
    """What stands in the rows between two instants (ps)."""
    rank, found = ranks_of(trace), _Bars()
    kinds = trace.task_graph.tasks.kind
    for place, row in enumerate(rows):
        ids = row.tasks[
            (trace.finish[row.tasks] > window[0]) & (trace.start[row.tasks] < window[1])
        ]
        ids = ids[trace.finish[ids] > trace.start[ids]]
        left, right = (
            np.clip(one[ids], *window) - window[0] for one in (trace.start, trace.finish)
        )
        corners, own = _corners(left / scale, right / scale, place), rank[ids]
        told = np.array([kinds[task] for task in ids.tolist()], dtype=object)
        for kind in dict.fromkeys(told[own < 0].tolist()):
            found.boxes.setdefault(kind, []).append(corners[(told == kind) & (own < 0)])
        found.sent.append(corners[own >= 0])
        found.ranks.append(own[own >= 0])
        spans = zip(left.tolist(), right.tolist(), own.tolist(), strict=True)
        found.labels += [(b - a, (a + b) / 2 / scale, place, str(r)) for a, b, r in spans if r >= 0]
    return found


def _rows(trace: Trace) -> list[Row]:
    """The rows in which anything takes time: not those of points that only wait for others."""
    lasts = trace.finish > trace.start
    return [row for row in timeline_rows(trace) if lasts[row.tasks].any()]


def _window(trace: Trace, steady: Steady) -> tuple[int, int]:
    """Two periods up to the end of the last step that is counted, in ps."""
    ends = np.cumsum((steady.first_ps, *steady.periods_ps))
    return int(ends[max(0, len(ends) - 1 - PERIODS)]), int(ends[-1])


def _corners(left: Floats, right: Floats, place: float) -> Floats:
    """The four corners of each bar of a row."""
    top, bottom = np.full(len(left), place - 0.4), np.full(len(left), place + 0.4)
    corners = ((left, bottom), (left, top), (right, top), (right, bottom))
    return np.stack([np.stack(corner, axis=-1) for corner in corners], axis=1)


def _label(ax: Axes, labels: list[tuple[int, float, float, str]], length: int) -> None:
    """Priorities inside the bars that have room, the widest first."""
    points = ax.get_window_extent().width * 72 / ax.figure.dpi
    for span, at, place, text in sorted(labels, reverse=True)[:LABELS]:
        if span / max(length, 1) * points > 4.5 * len(text):
            drawn = ax.text(at, place, text, fontsize=6, ha="center", va="center", clip_on=True)
            drawn.set_bbox({"facecolor": "white", "alpha": 0.6, "linewidth": 0, "pad": 0.5})


def plot_gains(
    results: pd.DataFrame,
    base: str = "parameter-server",
    published: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw how much faster each policy is than ``base``, in %, over the bandwidth in Gbit/s; return
    the axes.

    ``results`` is the table of a sweep over ``strategy.sync.policy`` and ``cluster.bandwidth``;
    ``published`` has points (Gbit/s, %) by policy to set beside it, as ``PUBLISHED["resnet-50"]``.
    """
    if ax is None:
        ax = new_figure(8.0, 4.5).add_subplot()
    gains = gains_of(results, base)
    for colour, policy in zip(DEVICES, gains, strict=False):
        ax.plot(gains.index, gains[policy], marker="o", markersize=3, color=colour, label=policy)
        for x, y in (published or {}).get(str(policy), ()):
            ax.plot(
                [x],
                [y],
                marker="*",
                markersize=12,
                linestyle="none",
                color=colour,
                label=f"{policy}, published",
            )
    ax.axhline(0, color="#888888", linewidth=0.8)
    ax.set_xlabel("bandwidth (Gbit/s)")
    ax.set_ylabel(f"faster than {base} (%)")
    ax.legend(frameon=False)
    return ax


def gains_of(results: pd.DataFrame, base: str = "parameter-server") -> pd.DataFrame:
    """How much faster each policy is than ``base``, in %: a row a bandwidth (Gbit/s), a column a
    policy.

    Raises InputError for a table of something else, or without ``base``.
    """
    missing = [name for name in (POLICY, BANDWIDTH, "step_time_s") if name not in results.columns]
    if missing:
        told = " and no column ".join(missing)
        raise InputError(
            "results: is no sweep over strategy.sync.policy and cluster.bandwidth: it "
            f"has no column {told}"
        )
    if not (results["step_time_s"].notna() & (results[POLICY] == base)).any():
        raise InputError(f'base: no result of the policy "{base}"')
    table = results.assign(bandwidth=results[BANDWIDTH] * 8 / 1e9)
    periods = table.pivot_table(index="bandwidth", columns=POLICY, values="step_time_s", sort=False)
    return periods.rdiv(periods[base], axis=0).sub(1).mul(100).drop(columns=base)
