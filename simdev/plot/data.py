"""What a Gantt chart shows, as plain arrays: rows of spans, with no drawing library near."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..analysis import critical_path, path_tasks, timeline_rows
from ..taskgraph import Ints
from ..trace import Trace

PATH = -2  # the device of the row that is no device's: the critical path


@dataclass(frozen=True, slots=True)
class GanttRow:
    """One row of spans that do not overlap, in the order of time; a column an attribute.

    ``device`` is the index of the device (-1: a link), ``computes`` tells a compute stream from a
    queue. ``tasks`` are ids, ``start`` and ``finish`` ps, ``kind`` the tasks' kinds, ``critical``
    marks the critical path.
    """

    name: str
    device: int
    computes: bool
    tasks: Ints
    start: Ints
    finish: Ints
    kind: NDArray[np.object_]
    critical: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.tasks)


def gantt_rows(trace: Trace) -> tuple[GanttRow, ...]:
    """A row for each compute stream, queue and lane, in the order of the cluster, links last
    (``timeline_rows``).
    """
    kinds = np.array(trace.task_graph.tasks.kind, dtype=object)
    critical = np.zeros(len(kinds), np.bool_)
    critical[path_tasks(trace)] = True
    rows = []
    for row in timeline_rows(trace):
        ids = row.tasks
        columns = (ids, trace.start[ids], trace.finish[ids], kinds[ids], critical[ids])
        rows.append(GanttRow(row.name, row.device, row.computes, *columns))
    return tuple(rows)


def path_row(trace: Trace) -> GanttRow:
    """The critical path as a row that tiles the step: the kind of the task that runs, else the
    blame of the wait.
    """
    kinds, path = trace.task_graph.tasks.kind, critical_path(trace)
    ids = np.array([segment.task for segment in path], np.int64)
    start = np.array([segment.start_ps for segment in path], np.int64)
    finish = np.array([segment.finish_ps for segment in path], np.int64)
    runs = ("compute", "transfer")
    kind = np.array([kinds[s.task] if s.blame in runs else s.blame for s in path], dtype=object)
    return GanttRow(
        "critical path", PATH, False, ids, start, finish, kind, np.zeros(len(path), np.bool_)
    )


def merge_neighbours(row: GanttRow, resolution_ps: float) -> GanttRow:
    """The row with neighbours of one kind made one span where they lie closer than
    ``resolution_ps``.

    A merged span carries the id of its first task. Spans on and off the critical path are not
    merged.
    """
    if not len(row):
        return row
    apart = row.start[1:] - row.finish[:-1] > resolution_ps
    apart |= (row.kind[1:] != row.kind[:-1]).astype(np.bool_)
    apart |= row.critical[1:] != row.critical[:-1]
    first = np.flatnonzero(np.concatenate(([True], apart)))
    last = np.append(first[1:], len(row)) - 1
    columns = (
        row.tasks[first],
        row.start[first],
        row.finish[last],
        row.kind[first],
        row.critical[first],
    )
    return GanttRow(row.name, row.device, row.computes, *columns)
