"""The pictures of a page as plain data: spans by row, memory over time, and busy shares.

Times are ps from the begin of the step. A trace of very many spans is made coarser, so that a page
stays small enough to open: neighbours in a row become one span, and of neighbouring memory levels
the highest is kept.

``step`` puts them on pages of one step and of two. Rows and colours come from
``figures/charts.trace_rows``; the scripts ``assets/gantt.js``, ``bars.js`` and ``charts.js`` read
its keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from ...nouns.taskgraph import Floats, Ints
from ...nouns.trace import DeviceMemory, Trace
from ..figures.charts import trace_rows
from ..figures.rows import LINK, GanttRow, merge_neighbours, together
from ..measures.path import Segment
from ..measures.spans import (
    apart,
    computing,
    envelope,
    shares_between,
    shown_devices,
    step_parts,
)
from ..measures.usage import carriers
from ..table import Json

MOST_SPANS = 100_000
MOST_LEVELS = 4_000  # levels of one device's memory
MOST_PANELS, FULLEST = 8, 3  # devices with a memory panel each; of more devices, the 3 fullest
BINS = 400  # parts of the step, for the load
MOST_EDGES = 400_000
FOLDED_LINKS, FOLDED_LANES = 12, 3  # the fewest rows beside the first that are folded


def timeline(trace: Trace, path: Sequence[Segment] | None = None) -> Json:
    """The data of the Gantt chart (columns of tasks, rows, and the critical path, which is
    ``path`` if given), of memory and of load.
    """
    rows, colours = trace_rows(trace, path)
    rows = _once(rows)
    folds = list(_folds(rows, trace))
    merged = sum(map(len, rows)) > MOST_SPANS
    if merged:
        resolution = trace.end_ps * len(rows) / MOST_SPANS
        # Folds are made from whole spans, before these are merged.
        for fold in folds:
            members = rows[fold["first"] : fold["first"] + fold["count"]]
            fold["row"] = merge_neighbours(together(members, fold["name"]), resolution)
        rows = tuple(merge_neighbours(row, resolution) for row in rows)
    every = (*rows, *(fold["row"] for fold in folds if "row" in fold))
    used = np.unique(np.concatenate([row.tasks for row in every])).astype(np.int64)
    place = np.zeros(len(trace.start), np.int64)
    place[used] = np.arange(len(used))
    # Where a span covers several tasks, the page cannot show what each of them waits for.
    whole = len(used) == len(place)
    shown = np.flatnonzero(shown_devices(trace.task_graph)).tolist()
    return {
        "step": trace.end_ps,
        "merged": merged,
        "kinds": list(colours),
        "colours": list(colours.values()),
        "devices": list(trace.task_graph.devices),
        "tasks": _tasks(trace, used),
        "rows": [_row(row, place, timed=merged or i == 0) for i, row in enumerate(rows)],
        "folds": [fold | _folded_row(fold, place) for fold in folds],
        "before": _before(trace) if whole else None,
        "memory": _memories([trace.memory[device] for device in shown], trace.end_ps),
        "load": list(_load(trace)),
    }


def _tasks(trace: Trace, used: Ints) -> Json:
    tasks = trace.task_graph.tasks
    columns = {
        "start": trace.start, "length": trace.finish - trace.start, "source": tasks.source,
        "destination": tasks.destination, "bytes": tasks.bytes,
    }  # fmt: skip
    numbers = {name: column[used].tolist() for name, column in columns.items()}
    return {"name": [tasks.name[i] for i in used.tolist()]} | numbers


def _row(row: GanttRow, place: Ints, timed: bool) -> Json:
    """A row in the form that the page reads: with ``start`` and ``length`` only where spans differ
    from their tasks, and ``busy`` (ps) where spans were merged.
    """
    columns: Json = {"name": row.name, "device": row.device, "computes": row.computes}
    columns |= {"tasks": place[row.tasks].tolist(), "kind": row.look.tolist()}
    columns["critical"] = np.flatnonzero(row.critical).tolist()
    if timed:
        columns |= {"start": row.start.tolist(), "length": (row.finish - row.start).tolist()}
    return columns | ({} if row.covered is None else {"busy": row.covered.tolist()})


def _folded_row(fold: Json, place: Ints) -> Json:
    return {"row": _row(fold["row"], place, timed=True)} if "row" in fold else {}


def _once(rows: Sequence[GanttRow]) -> tuple[GanttRow, ...]:
    """The rows, with only the first of links that carry the same tasks."""
    alike: dict[object, list[int]] = {}
    for number, row in enumerate(rows):
        key = row.tasks.tobytes() if row.device == LINK else number
        alike.setdefault(key, []).append(number)
    return tuple(
        replace(rows[first], name=f"{rows[first].name} and {len(others)} alike")
        if others
        else rows[first]
        for first, *others in alike.values()
    )


def _folds(rows: Sequence[GanttRow], trace: Trace) -> Iterator[Json]:
    """Neighbouring rows that are shown as one row until a reader unfolds them: ``first``, ``count``
    and a name for all. They are the lanes of one device after the first, and many links.
    """
    held = np.diff(trace.task_graph.tasks.resources.ptr)

    def family(number: int) -> object:
        row = rows[number]
        if row.device == LINK:
            return LINK
        is_lane = row.device >= 0 and len(row) and not held[row.tasks[0]]
        return (row.device, row.computes) if is_lane else (number, None)

    for key, members in groupby(range(len(rows)), key=family):
        first, *others = members
        if key == LINK and len(others) >= FOLDED_LINKS:
            yield {"first": first, "count": len(others) + 1, "name": f"{len(others) + 1} links"}
        elif key != LINK and len(others) >= FOLDED_LANES:
            name = f"{len(others)} more lanes"
            yield {"first": first + 1, "count": len(others), "name": name}


def _before(trace: Trace) -> Json | None:
    """The tasks that each task waits for, as concatenated lists; None where there are too many."""
    rows = trace.task_graph.predecessors
    if len(rows.ids) > MOST_EDGES:
        return None
    return {"count": np.diff(rows.ptr).tolist(), "ids": rows.ids.tolist()}


def _memories(memories: Sequence[DeviceMemory], step_ps: int) -> Json:
    """Panels of the devices that hold memory; of many devices the fullest and the range of all."""
    held = [memory for memory in memories if memory.peak]
    if len(held) <= MOST_PANELS:
        return {"panels": [_panel(memory) for memory in held], "range": None}
    fullest = sorted(held, key=lambda memory: -memory.peak)[:FULLEST]
    return {"panels": [_panel(memory) for memory in fullest], "range": _range(held, step_ps)}


def _panel(memory: DeviceMemory) -> Json:
    """The level of a device from each time on."""
    time, level = coarser(memory.time, memory.level, MOST_LEVELS)
    return {
        "name": memory.device,
        "capacity": memory.capacity,
        "peak": memory.peak,
        "time": time.tolist(),
        "level": level.tolist(),
    }


def _range(memories: Sequence[DeviceMemory], step_ps: int) -> Json:
    """The lowest and the highest level of all devices in each of BINS equal parts of the step."""
    edges = step_parts(step_ps, BINS)
    lowest, highest = envelope(memories, edges)
    capacities = {memory.capacity for memory in memories}
    return {
        "name": f"all {len(memories):,} devices",
        "capacity": capacities.pop() if len(capacities) == 1 else None,
        "peak": max(memory.peak for memory in memories),
        "time": edges[:-1].tolist(),
        "level": highest.tolist(),
        "lowest": lowest.tolist(),
    }


def coarser(time: Ints, level: Ints, most: int) -> tuple[Ints, Ints]:
    """At most ``most`` levels; merged neighbours keep the highest level, so that peaks stay."""
    if len(time) <= most:
        return time, level
    first = np.linspace(0, len(time), most // 2 + 1).astype(np.int64)[:-1]
    highest = np.maximum.reduceat(level, first)
    last = np.append(first[1:], len(time)) - 1
    # The highest from the first time of a group on, then what it ends with.
    times = np.stack((time[first], time[last]), axis=1).reshape(-1)
    levels = np.stack((highest, level[last]), axis=1).reshape(-1)
    return times, levels


def _load(trace: Trace) -> Iterator[Json]:
    """The busy percentage in each of BINS parts of the step, for each device that computes and each
    queue or link that carries.
    """
    graph, spans = trace.task_graph, list[tuple[str, Ints, Ints]]()
    for name, tasks in zip(graph.devices, computing(graph), strict=True):
        spans.append((name, trace.start[tasks], trace.finish[tasks]))
    spans += [(each.name, each.start, trace.finish[each.tasks]) for each in carriers(trace)]
    for name, start, finish in spans:
        if len(start):
            shares = busy_shares(start, finish, trace.end_ps, BINS)
            yield {"name": name, "percent": np.rint(shares * 100).astype(np.int64).tolist()}


def busy_shares(start: Ints, finish: Ints, step_ps: int, bins: int) -> Floats:
    """The share of each of ``bins`` equal parts of the step in which any of the spans is under
    way.
    """
    if not step_ps:
        return np.zeros(bins)
    _, begin, length = apart(start, finish)
    return shares_between(np.linspace(0, step_ps, bins + 1), begin, length, length)
