"""Figures of synchronisation policies: slices by their priority over time, and gains over the
bandwidth.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...execution.period import Steady
from ...ground.errors import InputError
from ...ground.units import PS_PER_SECOND, format_seconds
from ...lowering.sync import FIRST
from ...nouns.taskgraph import SYNC, TRANSFER, Ints
from ...nouns.trace import Trace
from ..measures.spans import timeline_rows
from .gantt import Gantt, GanttRow, Label, Look
from .style import DEVICES, dress, kind_colours, new_figure

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

PERIODS = 2  # shown, of the steady state
POLICY, BANDWIDTH = "strategy.sync.policy", "cluster.bandwidth_bytes_per_s"
PUBLISHED: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]] = {
    "resnet-50": {"p3": ((4.0, 26.0),)},
    "vgg-19": {"p3": ((15.0, 66.0),), "sliced": ((30.0, 49.0),)},
}
"""Gains over the parameter server that P3 reports (Jayarajan et al., MLSys 2019): (Gbit/s, %), by
model and policy.
"""


def sync_chart(trace: Trace, steady: Steady) -> Gantt:
    """Two periods of the steady state, up to the end of the last step that is counted.

    A row for each compute stream and queue in which anything takes time. Messages and sums are
    coloured by their priority (dark goes first) and bear its number where there is room; what
    computes is coloured by its kind.
    """
    from matplotlib import colormaps

    ends = np.cumsum((steady.first_ps, *steady.periods_ps))
    begin, end = int(ends[max(0, len(ends) - 1 - PERIODS)]), int(ends[-1])
    ranks, kinds = ranks_of(trace), trace.task_graph.tasks.kind
    lasts = trace.finish > trace.start
    seen = lasts & (trace.finish > begin) & (trace.start < end)
    colours = kind_colours(kinds[task] for task in np.flatnonzero(seen & (ranks < 0)).tolist())
    looks = {kind: Look(colour) for kind, colour in colours.items()}
    code = {kind: number for number, kind in enumerate(colours)}
    # Kinds first, then a look for each priority.
    by_kind = np.fromiter((code.get(kind, -1) for kind in kinds), np.int64, len(kinds))
    look = np.where(ranks < 0, by_kind, ranks + len(looks))
    most = int(ranks.max(initial=-1))
    shades = colormaps["viridis"](np.linspace(0, 1, most + 1))[:, :3].tolist()
    rows = []
    for row in timeline_rows(trace):
        ids = row.tasks[seen[row.tasks]]
        if not lasts[row.tasks].any():
            continue  # points that only wait for others
        start, finish = (np.clip(ps[ids], begin, end) for ps in (trace.start, trace.finish))
        unmarked = np.zeros(len(ids), np.bool_)
        rows.append(GanttRow(row.name, 0, row.computes, ids, start, finish, look[ids], unmarked))
    return Gantt(
        tuple(rows), (*looks.values(), *(Look(tuple(shade)) for shade in shades)), end,
        f"step time (period) {format_seconds(steady.step_ps / PS_PER_SECOND)}", begin,
        tuple(_labels(rows, ranks)), looks,
        scale=("priority: 0 is needed first", most) if most >= 0 else None,
        since=" from the end of a step",
    )  # fmt: skip


def _labels(rows: Sequence[GanttRow], ranks: Ints) -> Iterator[Label]:
    for number, row in enumerate(rows):
        spans = (row.start, row.finish, row.look, ranks[row.tasks])
        for start, finish, look, rank in zip(*(s.tolist() for s in spans), strict=True):
            if rank >= 0:
                yield Label(number, start, finish, look, (str(rank),))


def ranks_of(trace: Trace) -> Ints:
    """By task the place of what it sends in the order of priority, 0 first; -1 where it sends
    nothing that has one.

    It is the place within its step: what an earlier step still has to send goes before it in any
    case.
    """
    tasks, rounds = trace.task_graph.tasks, trace.task_graph.rounds
    step = trace.task_graph.first_dispatch // rounds
    sends = [row for row in range(step) if tasks.kind[row] in (TRANSFER, SYNC)]
    first = tasks.priority[:step].tolist()
    # Further segments and further queues have priorities of their own: the message's is that of
    # its first task.
    named = {tasks.name[row]: first[row] - FIRST for row in reversed(sends) if first[row] >= FIRST}
    named |= {
        name.rpartition(" ")[0]: place
        for name, place in named.items()
        if name.rpartition(" ")[2][:2] == "1/"
    }
    ranks = np.full(step, -1, np.int64)
    for row in sends:
        name = tasks.name[row]
        ranks[row] = named.get(name, named.get(name.rpartition(" ")[0], -1))
    none = np.full(len(tasks) - step * rounds, -1, np.int64)  # hosts send nothing
    return np.concatenate((np.tile(ranks, rounds), none))


def plot_gains(
    results: pd.DataFrame,
    base: str = "parameter-server",
    published: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    ax: Axes | None = None,
    theme: str | None = None,
) -> Axes:
    """Draw how much faster each policy is than ``base``, in %, over the bandwidth in Gbit/s; return
    the axes.

    ``results`` is the table of a sweep over ``strategy.sync.policy`` and ``cluster.bandwidth``;
    ``published`` has points (Gbit/s, %) by policy to set beside it, as ``PUBLISHED["resnet-50"]``.
    ``theme`` is "light", "dark" or a style of matplotlib (None: what suits the paper of the axes).
    """
    if ax is None:
        ax = new_figure(8.0, 4.5).add_subplot()
    look, gains = dress(ax, theme), gains_of(results, base)
    for hue, policy in zip(DEVICES, gains, strict=False):
        colour = str(look.shown(hue))
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
    ax.axhline(0, color=look.faint, linewidth=0.8)
    ax.grid(color=look.grid, linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_xlabel("bandwidth (Gbit/s)")
    ax.set_ylabel(f"faster than {base} (%)")
    ax.legend(frameon=False, labelcolor=look.ink)
    return ax


def gains_of(results: pd.DataFrame, base: str = "parameter-server") -> pd.DataFrame:
    """How much faster each policy is than ``base``, in %: a row a bandwidth (Gbit/s), a column a
    policy.

    Raises InputError for a table of something else, or without ``base``.
    """
    missing = [name for name in (POLICY, BANDWIDTH, "step_time_s") if name not in results.columns]
    if missing:
        columns = " and no column ".join(missing)
        raise InputError(
            "results: is no sweep over strategy.sync.policy and cluster.bandwidth: it "
            f"has no column {columns}"
        )
    if not (results["step_time_s"].notna() & (results[POLICY] == base)).any():
        raise InputError(f'base: no result of the policy "{base}"')
    # Results are bytes/s, networks are sold by Gbit/s.
    table = results.assign(bandwidth=results[BANDWIDTH] * 8 / 1e9)
    periods = table.pivot_table(index="bandwidth", columns=POLICY, values="step_time_s", sort=False)
    return periods.rdiv(periods[base], axis=0).sub(1).mul(100).drop(columns=base)
