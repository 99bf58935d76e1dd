"""The charts of pipelines: a row a rank, a colour a microbatch, a shade a kind of work.

Forwards are light, backwards full, gradients of weights dark; what is idle is hatched. In the chart
of a large model's step what a rank computes stands above, and below it what nothing hides of
communication, in colours of its own: the paler, the smaller its share of what is too short to be
seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from ...ground.units import PS_PER_SECOND, format_seconds
from ...nouns.models.large.roles import BACKWARD as WHOLE
from ...nouns.models.large.roles import COMPUTES, RECOMPUTE, ROLES, UPDATE, LargeStep
from ...nouns.models.large.roles import FORWARD as AHEAD
from ...nouns.models.large.roles import WEIGHT as WEIGHTS
from ...nouns.schedules import BACKWARD, FORWARD, INPUT, WEIGHT, Schedule
from ...nouns.taskgraph import Ints
from ...nouns.trace import Trace
from ..measures.pipeline import PipelineUse
from ..measures.training import BUBBLE, WAITED_FOR, Training, tiles
from .gantt import IDLE, Colour, Gantt, GanttRow, Label, Look, merge_neighbours

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
ROWS = 64
Legend = dict[str, Look | Sequence[Colour]]


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
        row = _row(rank.name, f"live {rank.live}", tasks, trace, look[tasks])
        rows.append(_with_idle(row, trace.end_ps, len(looks) - 1))
        labels += _action_labels(schedule, number, row)
        first = last
    time = f"step {format_seconds(pipeline.step_ps / PS_PER_SECOND)}"
    if period is not None:
        time += f", steady period {format_seconds(float(period / PS_PER_SECOND))}"
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
    columns = (row.tasks, row.start, row.finish, row.look)
    for task, start, finish, look in zip(*(column.tolist() for column in columns), strict=True):
        if task < len(schedule.actions):
            action = schedule.actions[task]
            names = [str(action)] * (max(schedule.chunks) > 1) + [str(action.microbatch)]
            yield Label(number, start, finish, look, tuple(names))


def _row(name: str, note: str, tasks: Ints, trace: Trace, look: Ints) -> GanttRow:
    spans = tasks, trace.start[tasks], trace.finish[tasks], look
    return GanttRow(name, 0, True, *spans, np.zeros(len(tasks), np.bool_), note)


def _with_idle(row: GanttRow, end_ps: int, look: int) -> GanttRow:
    """The row of a rank, its gaps filled with spans of this look."""
    begin, end = np.append(0, row.finish), np.append(row.start, end_ps)
    gaps = begin < end
    count = int(gaps.sum())
    return _joined_rows(row, np.full(count, look), begin[gaps], end[gaps])


def _joined_rows(row: GanttRow, look: Ints, start: Ints, finish: Ints) -> GanttRow:
    """The row with more spans, of no task."""
    tasks = np.concatenate((row.tasks, np.full(len(look), -1)))
    every = replace(
        row,
        tasks=tasks,
        start=np.concatenate((row.start, start)),
        finish=np.concatenate((row.finish, finish)),
        look=np.concatenate((row.look, look)),
        critical=np.zeros(len(tasks), np.bool_),
        covered=None,
    )
    return every.chosen(np.argsort(every.start, kind="stable"))


def training_chart(training: Training, trace: Trace, bubble: float, exposed: float) -> Gantt:
    """The chart of a large model's step; ``bubble`` and ``exposed`` are shares of the devices'
    time.
    """
    large = training.large
    looks = _training_looks()
    rows, labels = [], list[Label]()
    for rank, stage in enumerate(training.stages[:ROWS]):
        note = f"peak {stage.memory.peak / 2**30:.1f} GiB"
        rows.append(_rank_row(trace, large, rank, stage.device, note))
        labels += _work_labels(trace, large, rank)
    seconds = format_seconds(trace.end_ps / PS_PER_SECOND)
    return Gantt(
        tuple(rows), looks, trace.end_ps,
        f"{large.model.name}, {large.schedule.name}: step {seconds}, MFU {training.mfu:.1%} "
        f"({large.peak_dtype}), bubble {bubble:.1%}, exposed communication {exposed:.1%}",
        labels=tuple(labels), row_height=0.5,
        legend=_training_legend(rows, large, looks),
    )  # fmt: skip


def _code(role: int, hue: int = -1) -> int:
    """The look of a role: of what computes a look a hue, the last (-1) for no microbatch."""
    if role < COMPUTES:
        return int(role * (len(HUES) + 1) + hue % (len(HUES) + 1))
    return COMPUTES * (len(HUES) + 1) + role - COMPUTES


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
    """What the rank computes, layer by layer, and what its gaps go to."""
    here = trace.task_graph.tasks.source == large.first[rank]
    tasks = np.flatnonzero(here & (large.role < COMPUTES))
    tasks = tasks[np.argsort(trace.start[tasks], kind="stable")]
    turns = large.microbatch[tasks] // _shared(large) % len(HUES)
    # The looks of a role are those of its hues, then that of no microbatch.
    hues = np.where(large.microbatch[tasks] < 0, len(HUES), turns)
    look = large.role[tasks].astype(np.int64) * (len(HUES) + 1) + hues
    row = merge_neighbours(_row(name, note, tasks, trace, look), 0)
    term, start, finish = tiles(trace, large, rank)
    waits = term >= COMPUTES
    codes = _code(COMPUTES) + term[waits] - COMPUTES
    return _joined_rows(row, codes, start[waits], finish[waits])


def _work_labels(trace: Trace, large: LargeStep, rank: int) -> Iterator[Label]:
    """What a rank computes for a microbatch without another between, by its number."""
    here = (trace.task_graph.tasks.source == large.first[rank]) & (large.role < COMPUTES)
    rows = np.flatnonzero(here & (large.microbatch >= 0) & (trace.finish > trace.start))
    rows = rows[np.argsort(trace.start[rows], kind="stable")]
    role, microbatch = large.role[rows], large.microbatch[rows]
    kind = np.where((role == AHEAD) | (role == WEIGHTS), role, WHOLE)
    # What is made again stands before its backward: its light half bears the number.
    shown = np.where((kind == WHOLE) & (role == RECOMPUTE).any(), RECOMPUTE, kind)
    changes = (kind[1:] != kind[:-1]) | (microbatch[1:] != microbatch[:-1])
    borders = [0, *(np.flatnonzero(changes) + 1).tolist(), len(rows)] if len(rows) else []
    for i, after in pairwise(borders):
        start, finish = int(trace.start[rows[i]]), int(trace.finish[rows[after - 1]])
        look = _code(int(shown[i]), int(microbatch[i]) // _shared(large) % len(HUES))
        yield Label(rank, start, finish, look, (str(microbatch[i]),))


def _training_legend(rows: Sequence[GanttRow], large: LargeStep, looks: Sequence[Look]) -> Legend:
    """What is in the rows, greys for what computes; roles of one grey share an entry."""
    present = {code for row in rows for code in row.look.tolist()}
    hues = len(HUES) + 1
    names: dict[Look, list[str]] = {}
    for role, name in enumerate(ROLES):
        if role >= COMPUTES and _code(role) in present:
            names[looks[_code(role)]] = [f"{name}, exposed"]
        elif role < COMPUTES and present & set(range(role * hues, (role + 1) * hues)):
            names.setdefault(looks[_code(role)], []).append(name)
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
