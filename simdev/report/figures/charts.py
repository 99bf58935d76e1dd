"""The charts of any trace, of the messages of a policy of synchronisation, and of pipelines.

The chart of a pipeline has a row a rank, a colour a microbatch, a shade a kind of work: forwards
are light, backwards full, gradients of weights dark; idle time is hatched. In the chart of a large
model's step a row has two parts: computing above, and exposed communication below in colours of its
own. Spans that are too short to be seen one by one share a pixel: the less of it they cover, the
paler it is (``rows.coverage``).

``chart_of`` of the package (``report/figures/__init__.py``) chooses among these charts by the
sections of a report, and ``gantt.py`` draws them. ``commands/simulate.py`` and
``commands/pipeline.py`` write the pictures to files (``--gantt``). ``plot_gains`` is no Gantt
chart; notebooks and users call it.

The rows of any trace are those of ``timeline_rows`` (``report/measures/spans.py``). ``sync_chart``
and the export for Perfetto (``report/export.py``) take them as they are. ``trace_rows`` here puts
the critical path above them, for ``trace_chart`` and the page (``report/page/timeline.py``, drawn
by ``assets/gantt.js``). Charts of pipelines and of large models make rows of their own, a row a
rank.

Colours and their turn for dark paper (``Theme``) are in ``style.py``; SCALE is the colour map of
layers, of which ``gantt.py`` draws the bar; the critical path has ALARM; the page has its own in
``page/assets/theme.js``. Very large charts: ``rows.py`` folds devices that do the same where more
than MANY_ROWS rows would stay, keeps MOST_LINKS links and MOST_ROWS rows; ``gantt.py`` draws no
more than LABELS labels and NAMED_ROWS names; large models show ROWS ranks; the page has MOST_SPANS.
A row of ``trace_rows`` with times of its own needs ``timed`` in ``page/timeline.py``.

Guarded by ``tests/report/test_plot.py``, ``test_figures_rows.py`` and ``test_figures_themes.py``
there; of pipelines by ``tests/schedules/test_schedules_cli.py``, of large models by
``tests/lowering/test_hybrid_report.py``, of gains by ``test_sync_p3.py`` there, of the page by
``tests/report/test_page_timeline.py`` and ``tests/browser/test_ink.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ...execution.period import Steady
from ...ground.errors import InputError
from ...ground.units import format_bytes, format_ps
from ...lowering.sync import FIRST

# Roles of tasks have the names of a schedule's actions (below), so they get other names here.
from ...nouns.models.large.roles import BACKWARD as WHOLE
from ...nouns.models.large.roles import COMPUTES, RECOMPUTE, ROLES, UPDATE, LargeStep
from ...nouns.models.large.roles import FORWARD as AHEAD
from ...nouns.models.large.roles import WEIGHT as WEIGHTS
from ...nouns.schedules import BACKWARD, FORWARD, INPUT, WEIGHT, Schedule
from ...nouns.taskgraph import SYNC, TRANSFER, Ints
from ...nouns.trace import Trace
from ..measures.path import Segment, critical_path
from ..measures.pipeline import PipelineUse
from ..measures.spans import timeline_rows
from ..measures.training import BUBBLE, WAITED_FOR, Training, tiles
from .gantt import IDLE, Colour, Gantt, Label, Look
from .rows import GanttRow, folded, merge_neighbours
from .style import DEVICES, SCALE, dress, kind_colours, new_figure

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

PATH = -2  # the device of the row that belongs to no device: the critical path
SEEN = 4_000  # parts of a step: rows that differ by less look the same on paper
LABELLED = 150  # parts of a step: no name fits into less
WAITS = ("queueing", "launch", "latency")  # blames that the path's row shows by their own names


PERIODS = 2  # shown, of the steady state
MOST_OF_ROUND = 16  # steps of a round that are drawn: of more no message could be told apart
POLICY, BANDWIDTH = "strategy.sync.policy", "cluster.bandwidth_bytes_per_s"
PUBLISHED: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]] = {
    "resnet-50": {"p3": ((4.0, 26.0),)},
    "vgg-19": {"p3": ((15.0, 66.0),), "sliced": ((30.0, 49.0),)},
}
"""Gains over the parameter server that P3 reports (Jayarajan et al., MLSys 2019): (Gbit/s, %), by
model and policy.
"""


# Microbatches take these in turn. They differ in hue, kinds of actions in lightness.
HUES = (
    "#0072B2", "#D55E00", "#009E73", "#B2569B", "#9A7D00", "#5B4FBF", "#0097A7", "#8C564B",
)  # fmt: skip
GREY = "#757575"  # of work in the legend, and of work for no microbatch
LIGHT, DARK = 0.62, 0.42  # how far forwards go towards white and gradients of weights towards black
NAMES = {
    FORWARD: "forward", BACKWARD: "backward", INPUT: "input gradient", WEIGHT: "weight gradient",
}  # fmt: skip
LOW = 0.7  # of a row: gradients of weights are lower, so that they differ without colours too
MANY = 3_000  # actions: beyond, single microbatches cannot be seen, and neighbours share a hue
MANY_IN_A_ROW = 300  # actions of a rank of a large model's step: beyond, they share hues, too
COMPUTING, WAITING = (-1.0, 0.45), (0.5, 1.0)  # of a row: what computes, what is waited for
EXPOSED_COLOURS = dict(
    zip(WAITED_FOR, ("#E69F00", "#CC79A7", "#000000", "#8C564B", "#56B4E9", "#7FB800"), strict=True)
)
UPDATE_COLOUR = "#B00020"
SYNCHRONISING = Look("#000000", (-0.7, 0.7))
# Ranks of a large model that are drawn, the first ones: a chart is at most TALLEST (gantt.py) high,
# so with more ranks each row would be too low to be read. The title tells how many are left out;
# the JSON of the report has them all.
ROWS = 64
Legend = dict[str, Look | Sequence[Colour]]


def trace_chart(trace: Trace) -> Gantt:
    """The chart of a trace.

    Bars are coloured by kind; transfers are named by their source and destination. The critical
    path is a row of its own, on top, with what its waiting is blamed on, and its tasks are
    underlined in red below. Rows that show the same are drawn once (``rows.folded``).
    """
    rows, colours = trace_rows(trace)
    looks = {kind: Look(colour) for kind, colour in colours.items()}
    rows = folded(rows, trace.end_ps / SEEN)
    verdict = "fits"
    if not trace.feasible:
        verdict = f"DOES NOT FIT: {format_bytes(trace.memory_excess)} over"
    steps = trace.task_graph.steps
    length = "step" if steps == 1 else f"{steps} steps"
    title = f"{length} {format_ps(trace.end_ps)}, {verdict}"
    return Gantt(
        rows, tuple(looks.values()), trace.end_ps, title,
        labels=tuple(_labels(trace, rows, tuple(colours))), legend=looks, alarm=not trace.feasible,
    )  # fmt: skip


def trace_rows(
    trace: Trace, path: Sequence[Segment] | None = None
) -> tuple[tuple[GanttRow, ...], Mapping[str, str]]:
    """(the critical path, then a row for each compute stream, queue and lane, in the order of the
    cluster, links last; the colour of each kind, in the order that the looks of the rows index).
    ``path`` is the critical path of the whole trace where it is at hand.

    Row 0 must stay the critical path. Its spans are the parts of the step that a task is blamed
    for, in all other rows a span lasts from the start of its task to the finish; the page
    (``page/timeline.py``, ``assets/gantt.js``) knows this exception by the number of the row.
    """
    rows, path = timeline_rows(trace), critical_path(trace) if path is None else path
    codes, labels = trace.task_graph.kinds.codes, trace.task_graph.kinds.labels
    kinds = codes.tolist()
    on_path = [s.blame if s.blame in WAITS else labels[kinds[s.task]] for s in path]
    drawn = np.unique(codes[np.concatenate([row.tasks for row in rows])]) if rows else ()
    colours = kind_colours({labels[number] for number in drawn} | {*on_path})
    code = {kind: number for number, kind in enumerate(colours)}
    look = np.array([code.get(label, -1) for label in labels], np.int64)[codes]
    critical = np.zeros(len(codes), np.bool_)
    critical[[segment.task for segment in path]] = True
    # The critical path as a row that tiles the step.
    spans = [
        (s.task, s.start_ps, s.finish_ps, code[kind]) for s, kind in zip(path, on_path, strict=True)
    ]
    charted = [GanttRow.of("critical path", np.array(spans, np.int64).reshape(-1, 4).T, PATH)]
    for row in rows:
        ids = row.tasks
        place = row.device, row.computes
        charted.append(GanttRow.of(row.name, _ran(trace, ids, look), *place, critical[ids]))
    return tuple(charted), colours


def _ran(trace: Trace, tasks: Ints, look: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """The spans of tasks, in the looks that they have by task."""
    return tasks, trace.start[tasks], trace.finish[tasks], look[tasks]


def _labels(trace: Trace, rows: Sequence[GanttRow], kinds: Sequence[str]) -> Iterator[Label]:
    for number, row in enumerate(rows):
        long = row.chosen(row.finish - row.start >= trace.end_ps / LABELLED)
        for task, start, finish, look in long.spans():
            yield Label(number, start, finish, look, tuple(_names(trace, row, task, kinds[look])))


def _names(trace: Trace, row: GanttRow, task: int, kind: str) -> Iterator[str]:
    """The texts that a bar may bear, the longest first."""
    tasks, devices = trace.task_graph.tasks, trace.task_graph.devices
    name = tasks.name[task]
    if row.device == PATH and kind in WAITS:
        yield kind
    elif tasks.kind[task] != TRANSFER:
        yield name
    else:
        source, destination = devices[tasks.source[task]], devices[tasks.destination[task]]
        yield f"{name.removesuffix(f'>{destination}')}  {source} → {destination}"
        yield f"{source} → {destination}"
        yield f"→ {destination}"
        yield f"→{destination}"


def sync_chart(trace: Trace, steady: Steady) -> Gantt:
    """Two periods of the steady state, up to the end of the last step that is counted; of steps
    that come in rounds the last round, at most MOST_OF_ROUND steps of it.

    A row for each compute stream and queue in which anything takes time. Messages and sums are
    coloured by their priority (dark goes first) and bear its number where there is room; what
    computes is coloured by its kind.
    """
    from matplotlib import colormaps

    ends = np.cumsum((steady.first_ps, *steady.periods_ps))
    count = min(steady.round, MOST_OF_ROUND) if steady.round > 1 else PERIODS
    begin, end = int(ends[max(0, len(ends) - 1 - count)]), int(ends[-1])
    part = "" if count == steady.round else f"the last {count} of "
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
    shades = colormaps[SCALE](np.linspace(0, 1, most + 1))[:, :3].tolist()
    rows = []
    for row in timeline_rows(trace):
        ids = row.tasks[seen[row.tasks]]
        if not lasts[row.tasks].any():
            continue  # points that only wait for others
        start, finish = (np.clip(ps[ids], begin, end) for ps in (trace.start, trace.finish))
        rows.append(GanttRow.of(row.name, (ids, start, finish, look[ids]), 0, row.computes))
    labels = tuple(
        Label(number, start, finish, look, (str(ranks[task]),))
        for number, row in enumerate(rows)
        for task, start, finish, look in row.spans()
        if ranks[task] >= 0
    )
    return Gantt(
        tuple(rows), (*looks.values(), *(Look(tuple(shade)) for shade in shades)), end,
        f"step time (period) {format_ps(steady.step_ps)}"
        + (f", {part}a round of {steady.round} steps" if steady.round > 1 else ""),
        begin,
        labels, looks,
        scale=("priority: 0 is needed first", most) if most >= 0 else None,
        since=" from the end of a step",
    )  # fmt: skip


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
            label = f"{policy}, published"
            ax.plot([x], [y], marker="*", markersize=12, ls="none", color=colour, label=label)
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


def shade(colour: str, kind: str) -> tuple[float, float, float]:
    """The colour of a kind of action: lighter for forwards, darker for gradients of weights."""
    from matplotlib.colors import to_rgb

    red, green, blue = to_rgb(colour)
    if kind == FORWARD:
        return (red + (1 - red) * LIGHT, green + (1 - green) * LIGHT, blue + (1 - blue) * LIGHT)
    keep = 1 - DARK if kind == WEIGHT else 1.0
    return (red * keep, green * keep, blue * keep)


def _microbatches(count: int, shared: int = 1) -> Legend:
    """The entry of the legend; ``shared`` microbatches in a row have one hue."""
    hues = -(-count // shared)
    notes = [f"{shared} of one colour"] * (shared > 1)
    notes += [f"colours repeat every {shared * len(HUES)}"] * (hues > len(HUES))
    title = f"microbatches ({', '.join(notes)})" if notes else "microbatches"
    return {title: HUES[:hues]}


def pipeline_chart(pipeline: PipelineUse, trace: Trace) -> Gantt:
    """The chart of a pipeline from the times of its stages.

    The right margin shows the activations that live at most at once on each rank. Labels are
    microbatches, whole actions where a rank runs several stages; actions of no length are left out.
    """
    schedule, period = pipeline.schedule, pipeline.period_ps
    shared = 1
    if len(schedule.actions) > MANY:
        shared = -(-schedule.microbatches // (2 * len(HUES)))
    code = {kind: number * len(HUES) for number, kind in enumerate(NAMES)}
    looks = [
        Look(shade(hue, kind), (-LOW, LOW) if kind == WEIGHT else (-1.0, 1.0))
        for kind in NAMES
        for hue in HUES
    ]
    hues = [action.microbatch // shared % len(HUES) for action in schedule.actions]
    look = np.full(len(trace.start), len(looks))  # what is no action of one rank synchronises
    look[: len(hues)] = [code[a.kind] + hue for a, hue in zip(schedule.actions, hues, strict=True)]
    looks += [SYNCHRONISING, IDLE]
    rows, labels, first = [], list[Label](), 0
    for number, (rank, actions) in enumerate(zip(pipeline.ranks, schedule.rows, strict=True)):
        last = first + sum(action is not None for action in actions)
        queue = trace.task_graph.resources[int(trace.task_graph.tasks.source[first])]
        tasks = np.array(queue.sequence, np.int64)
        tasks = tasks[(trace.finish > trace.start)[tasks]]
        row = GanttRow.of(rank.name, _ran(trace, tasks, look), note=f"live {rank.live}")
        rows.append(_with_idle(row, trace.end_ps, len(looks) - 1))
        labels += _action_labels(schedule, number, row)
        first = last
    time = f"step {format_ps(pipeline.step_ps)}"
    if period is not None:
        time += f", steady period {format_ps(period)}"
    used = {action.kind for action in schedule.actions}
    kinds: Legend = {NAMES[kind]: Look(shade(GREY, kind)) for kind in NAMES if kind in used}
    if any(rank.sync_ps for rank in pipeline.ranks):
        kinds["synchronising"] = SYNCHRONISING
    return Gantt(
        tuple(rows), tuple(looks), trace.end_ps,
        f"{schedule.name}: {schedule.stages} stages, {schedule.microbatches} microbatches, "
        f"{time}, bubble rate {float(pipeline.bubble_rate):.2%}",
        labels=tuple(labels), row_height=0.42,
        legend=kinds | {"idle": IDLE} | _microbatches(schedule.microbatches, shared),
    )  # fmt: skip


def _action_labels(schedule: Schedule, number: int, row: GanttRow) -> Iterator[Label]:
    """Which microbatch, or where a rank runs several stages which action, each span is of."""
    for task, start, finish, look in row.spans():
        if task < len(schedule.actions):
            action = schedule.actions[task]
            names = [str(action)] * (max(schedule.chunks) > 1) + [str(action.microbatch)]
            yield Label(number, start, finish, look, tuple(names))


def _with_idle(row: GanttRow, end_ps: int, look: int) -> GanttRow:
    """The row of a rank, its gaps filled with spans of this look."""
    begin, end = np.append(0, row.finish), np.append(row.start, end_ps)
    gaps = begin < end
    count = int(gaps.sum())
    return _with_spans(row, np.full(count, look), begin[gaps], end[gaps])


def _with_spans(row: GanttRow, look: Ints, start: Ints, finish: Ints) -> GanttRow:
    """The row with more spans, of no task."""
    more = np.full(len(look), -1), start, finish, look
    columns = (np.concatenate(both) for both in zip(row.columns, more, strict=True))
    every = GanttRow.of(row.name, columns, row.device, row.computes, note=row.note)
    return every.chosen(np.argsort(every.start, kind="stable"))


def training_chart(training: Training, trace: Trace, bubble: float, exposed: float) -> Gantt:
    """The chart of a large model's step; ``bubble`` and ``exposed`` are shares of the devices'
    time. Of more than ROWS ranks it shows the first, and its title says so.
    """
    large, ranks = training.large, len(training.stages)
    cut = f", the first {ROWS} of {ranks} ranks" if ranks > ROWS else ""
    looks = _training_looks()
    rows, labels = [], list[Label]()
    for rank, stage in enumerate(training.stages[:ROWS]):
        note = f"peak {stage.memory.peak / 2**30:.1f} GiB"
        rows.append(_rank_row(trace, large, rank, stage.device, note))
        labels += _work_labels(trace, large, rank)
    seconds = format_ps(trace.end_ps)
    return Gantt(
        tuple(rows), looks, trace.end_ps,
        f"{large.model.name}, {large.schedule.name}: step {seconds}, MFU {training.mfu:.1%} "
        f"({large.peak_dtype}), bubble {bubble:.1%}, exposed communication {exposed:.1%}{cut}",
        labels=tuple(labels), row_height=0.5,
        legend=_training_legend(rows, large, looks),
    )  # fmt: skip


def _code(role: Ints | int, hue: Ints | int = -1) -> Ints:
    """The look of a role, or of many: of what computes a look a hue, the last (-1) for no
    microbatch.
    """
    hues = len(HUES) + 1
    return np.where(role < COMPUTES, role * hues + hue % hues, COMPUTES * (hues - 1) + role)


def _training_looks() -> tuple[Look, ...]:
    """By ``_code``: what computes, then communication, then the bubble."""
    kinds = {AHEAD: FORWARD, RECOMPUTE: FORWARD, WEIGHTS: WEIGHT}
    computing = (
        Look(UPDATE_COLOUR if role == UPDATE else shade(hue, kinds.get(role, BACKWARD)), COMPUTING)
        for role in range(COMPUTES)
        for hue in (*HUES, GREY)
    )
    waiting = (Look(EXPOSED_COLOURS[role], WAITING) for role in range(COMPUTES, len(ROLES)))
    return (*computing, *waiting, IDLE)


def _rank_row(trace: Trace, large: LargeStep, rank: int, name: str, note: str) -> GanttRow:
    """The row of a rank: its computing, layer by layer, and the waiting between."""
    tasks = _computing(trace, large, rank)
    microbatch = large.microbatch[tasks]
    hues = np.where(microbatch < 0, -1, microbatch // _shared(large) % len(HUES))
    look = _code(large.role[tasks].astype(np.int64), hues)
    spans = tasks, trace.start[tasks], trace.finish[tasks], look
    row = merge_neighbours(GanttRow.of(name, spans, note=note), 0)
    term, start, finish = tiles(trace, large, rank)
    waits = term >= COMPUTES
    return _with_spans(row, _code(term[waits]), start[waits], finish[waits])


def _computing(trace: Trace, large: LargeStep, rank: int) -> Ints:
    """The tasks that compute on a rank, by their starts."""
    here = trace.task_graph.tasks.source == large.first[rank]
    tasks = np.flatnonzero(here & (large.role < COMPUTES))
    return tasks[np.argsort(trace.start[tasks], kind="stable")]


def _work_labels(trace: Trace, large: LargeStep, rank: int) -> Iterator[Label]:
    """A label for all that a rank computes in a row for one microbatch, its number."""
    rows = _computing(trace, large, rank)
    rows = rows[(large.microbatch >= 0)[rows] & (trace.finish > trace.start)[rows]]
    role, microbatch = large.role[rows], large.microbatch[rows]
    kind = np.where((role == AHEAD) | (role == WEIGHTS), role, WHOLE)
    # A backward begins with its recomputing, where there is any, and both have one label. Its look
    # is that of recomputing, the lighter one.
    shown = np.where((kind == WHOLE) & (role == RECOMPUTE).any(), RECOMPUTE, kind)
    changes = (kind[1:] != kind[:-1]) | (microbatch[1:] != microbatch[:-1])
    borders = [0, *(np.flatnonzero(changes) + 1).tolist(), len(rows)] if len(rows) else []
    for i, after in pairwise(borders):
        start, finish = int(trace.start[rows[i]]), int(trace.finish[rows[after - 1]])
        look = int(_code(int(shown[i]), int(microbatch[i]) // _shared(large) % len(HUES)))
        yield Label(rank, start, finish, look, (str(microbatch[i]),))


def _training_legend(rows: Sequence[GanttRow], large: LargeStep, looks: Sequence[Look]) -> Legend:
    """The legend of the rows, computing in greys; roles of one grey share an entry."""
    present = {code for row in rows for code in row.look.tolist()}
    names: dict[Look, list[str]] = {}
    for role, name in enumerate(ROLES):
        if not present.isdisjoint(_code(role, np.arange(len(HUES) + 1)).tolist()):
            title = name if role < COMPUTES else f"{name}, exposed"
            names.setdefault(looks[int(_code(role))], []).append(title)
    legend: Legend = {" and ".join(shared): look for look, shared in names.items()}
    legend |= {BUBBLE: IDLE} if len(looks) - 1 in present else {}
    return legend | _microbatches(large.parallelism.microbatches, _shared(large))


def _shared(large: LargeStep) -> int:
    """How many microbatches in a row have one hue: of thin actions of many hues all would look
    grey.
    """
    if max(map(len, large.schedule.rows)) <= MANY_IN_A_ROW:
        return 1
    # At least as many as pass through a chunk one after another.
    several = -(-large.parallelism.microbatches // (2 * len(HUES)))
    return max(several, large.parallelism.pp)
