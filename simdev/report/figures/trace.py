"""The chart of any trace: a row for each compute stream and queue, the critical path on top."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ...ground.units import PS_PER_SECOND, format_bytes, format_seconds
from ...nouns.taskgraph import TRANSFER
from ...nouns.trace import Trace
from ..measures.path import Segment, critical_path
from ..measures.spans import timeline_rows
from .gantt import Gantt, Label, Look
from .rows import GanttRow, folded
from .style import kind_colours

PATH = -2  # the device of the row that belongs to no device: the critical path
SEEN = 4_000  # parts of a step: rows that differ by less look the same on paper
LABELLED = 150  # parts of a step: no name fits into less
WAITS = ("queueing", "launch", "latency")  # blames that the path's row shows by their own names


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
    title = f"{length} {format_seconds(trace.end_ps / PS_PER_SECOND)}, {verdict}"
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

    Row 0 must stay the critical path: the page (page/timeline.py, assets/gantt.js) takes only that
    row's spans to differ from those of its tasks.
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
    path_look = [code[kind] for kind in on_path]
    charted = [_path_row(path, path_look)]
    for row in rows:
        ids = row.tasks
        spans = ids, trace.start[ids], trace.finish[ids], look[ids], critical[ids]
        charted.append(GanttRow(row.name, row.device, row.computes, *spans))
    return tuple(charted), colours


def _path_row(path: Sequence[Segment], looks: Sequence[int]) -> GanttRow:
    """The critical path as a row that tiles the step."""
    spans = [(segment.task, segment.start_ps, segment.finish_ps) for segment in path]
    tasks, start, finish = np.array(spans, np.int64).reshape(-1, 3).T
    look, unmarked = np.array(looks, np.int64), np.zeros(len(path), np.bool_)
    return GanttRow("critical path", PATH, True, tasks, start, finish, look, unmarked)


def _labels(trace: Trace, rows: Sequence[GanttRow], kinds: Sequence[str]) -> Iterator[Label]:
    for number, row in enumerate(rows):
        long = row.chosen(row.finish - row.start >= trace.end_ps / LABELLED)
        columns = (column.tolist() for column in (long.tasks, long.start, long.finish, long.look))
        for task, start, finish, look in zip(*columns, strict=True):
            yield Label(number, start, finish, look, tuple(_names(trace, row, task, kinds[look])))


def _names(trace: Trace, row: GanttRow, task: int, kind: str) -> Iterator[str]:
    """What may be written into a bar, the longest first."""
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
