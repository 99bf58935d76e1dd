"""A trace for other tools: Chrome Trace Event JSON (Perfetto, chrome://tracing), and the task graph
for Graphviz.

In the JSON a process is a device (or the links) and a thread a stream, queue or lane, so that
slices of one thread never overlap. Timestamps are microseconds with six decimals, written from the
integer picoseconds: they read back exactly. Perfetto itself shows whole nanoseconds.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TextIO

import numpy as np

from ..taskgraph import Ints, TaskGraph
from ..trace import Trace
from .measures.spans import Row, timeline_rows, transfer_mask

PS_PER_US = 10**6
CHUNK = 20_000  # events joined before they are written


def export_chrome_trace(trace: Trace, file: str | os.PathLike[str] | TextIO) -> int:
    """Write the trace as Chrome Trace Event JSON to a path (``.gz``: compressed) or a text file;
    the number of events.

    Each task is a complete slice ("X") in the row of every queue that it holds, with its ``task``
    id, and for a transfer its ``bytes``; arrows ("s", "f") lead from producer to transfer to
    consumer; "C" counts each device's bytes over time. The same trace gives the same bytes. Raises
    OSError.
    """
    rows = timeline_rows(trace)
    events = 0
    with _opened(file) as write:
        write('{"displayTimeUnit":"ns","traceEvents":[\n')
        parts = (
            _metadata(trace, rows),
            _slices(trace, rows),
            _arrows(trace, rows),
            _counters(trace),
        )
        stream = (event for part in parts for event in part)
        separator = ""
        while chunk := list(islice(stream, CHUNK)):
            write(separator + ",\n".join(chunk))
            separator = ",\n"
            events += len(chunk)
        write("\n]}\n")
    return events


@contextmanager
def _opened(file: str | os.PathLike[str] | TextIO) -> Iterator[Callable[[str], object]]:
    if not isinstance(file, (str, os.PathLike)):
        yield file.write
    elif Path(file).suffix != ".gz":
        with open(file, "w", encoding="ascii") as text:
            yield text.write
    else:
        # Neither name nor time go into the header: the same trace gives the same bytes.
        with (
            open(file, "wb") as raw,
            gzip.GzipFile("", "wb", compresslevel=3, fileobj=raw, mtime=0) as packed,
        ):
            yield lambda text: packed.write(text.encode("ascii"))


def _microseconds(times_ps: Ints) -> list[str]:
    """Exact decimals: 1234567 ps is 1.234567 us."""
    whole, rest = np.divmod(times_ps, PS_PER_US)
    return [f"{a}.{b:06d}" for a, b in zip(whole.tolist(), rest.tolist(), strict=True)]


def _process(row: Row, devices: int) -> int:
    return (row.device if row.device >= 0 else devices) + 1


def _thread(number: int, devices: int) -> int:
    """Beyond all process numbers: a thread with the number of its process would pass for the main
    thread.
    """
    return devices + 2 + number


def _metadata(trace: Trace, rows: tuple[Row, ...]) -> Iterator[str]:
    devices = len(trace.task_graph.devices)
    names = {d + 1: name for d, name in enumerate(trace.task_graph.devices)}
    if any(row.device < 0 for row in rows):
        names[devices + 1] = "links"
    for process, name in names.items():
        yield _named("process_name", process, 0, "name", name)
        yield _named("process_sort_index", process, 0, "sort_index", process)
    for number, row in enumerate(rows):
        process, thread = _process(row, devices), _thread(number, devices)
        yield _named("thread_name", process, thread, "name", row.name)
        yield _named("thread_sort_index", process, thread, "sort_index", number)


def _named(what: str, process: int, thread: int, key: str, value: object) -> str:
    return json.dumps(
        {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {key: value}}
    )


def _slices(trace: Trace, rows: tuple[Row, ...]) -> Iterator[str]:
    """Plain formatting with every name escaped once: ten times faster than json.dumps of each
    event.
    """
    tasks, devices = trace.task_graph.tasks, len(trace.task_graph.devices)
    escape = json.JSONEncoder().encode
    escaped = {text: escape(text) for text in (*tasks.name, *tasks.kind)}
    sizes = np.where(transfer_mask(trace.task_graph), tasks.bytes, -1).tolist()
    begin, length = _microseconds(trace.start), _microseconds(trace.finish - trace.start)
    heads = [
        f'{{"ph":"X","name":{escaped[n]},"cat":{escaped[k]},'
        for n, k in zip(tasks.name, tasks.kind, strict=True)
    ]
    for number, row in enumerate(rows):
        place = f'"pid":{_process(row, devices)},"tid":{_thread(number, devices)},"ts":'
        for task in row.tasks.tolist():
            size = f',"bytes":{sizes[task]}' if sizes[task] >= 0 else ""
            args = f'{{"task":{task}{size}}}'
            yield f'{heads[task]}{place}{begin[task]},"dur":{length[task]},"args":{args}}}'


def _arrows(trace: Trace, rows: tuple[Row, ...]) -> Iterator[str]:
    """Both ends carry the start of their slice, where every viewer finds it; they draw from its end
    all the same.
    """
    task_graph, devices = trace.task_graph, len(trace.task_graph.devices)
    begin = _microseconds(trace.start)
    where = _rows_of_tasks(len(task_graph.tasks), rows)
    device_of = [row.device for row in rows]
    places = [
        f'"pid":{_process(row, devices)},"tid":{_thread(i, devices)},"ts":'
        for i, row in enumerate(rows)
    ]
    for number, (before, after) in enumerate(_links(task_graph, where)):
        if before == after:
            leave, enter = where[before][0], where[before][-1]
        else:
            leave, enter = _nearest(where[before], where[after], device_of)
        head = f'"name":"data","cat":"data","id":{number},'
        yield f'{{"ph":"s",{head}{places[leave]}{begin[before]}}}'
        yield f'{{"ph":"f","bp":"e",{head}{places[enter]}{begin[after]}}}'


def _links(task_graph: TaskGraph, where: list[list[int]]) -> Iterator[tuple[int, int]]:
    """(producer, transfer), (transfer, transfer) from its first row to its last, (transfer,
    consumer).
    """
    successors, moves = task_graph.tasks.successors, transfer_mask(task_graph)
    before, after = successors.owners(), successors.ids
    touching = moves[before] | moves[after]
    yield from zip(before[touching].tolist(), after[touching].tolist(), strict=True)
    yield from ((task, task) for task in np.flatnonzero(moves).tolist() if len(where[task]) > 1)


def _rows_of_tasks(count: int, rows: tuple[Row, ...]) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(count)]
    for number, row in enumerate(rows):
        for task in row.tasks.tolist():
            found[task].append(number)
    return found


def _nearest(before: list[int], after: list[int], device_of: list[int]) -> tuple[int, int]:
    """The rows of two tasks between which an arrow goes: of one device where there are such, else
    first and last.
    """
    if len(before) > 1 or len(after) > 1:
        for leave in before:
            for enter in after:
                if device_of[leave] == device_of[enter]:
                    return leave, enter
    return before[-1], after[0]


def _counters(trace: Trace) -> Iterator[str]:
    for device, memory in enumerate(trace.memory):
        head = f'{{"ph":"C","name":"memory","pid":{device + 1},"ts":'
        for time, level in zip(_microseconds(memory.time), memory.level.tolist(), strict=True):
            yield f'{head}{time},"args":{{"bytes":{level}}}}}'


def to_graphviz(task_graph: TaskGraph) -> str:
    """The task graph in the DOT language: a box a compute task, an ellipse a transfer, a cluster a
    device.
    """
    moves = transfer_mask(task_graph).tolist()
    lines = ["digraph tasks {", "  rankdir=LR;", '  node [fontname="Helvetica"];']
    source = task_graph.tasks.source.tolist()
    for device, name in enumerate(task_graph.devices):
        lines += [f"  subgraph cluster_{device} {{", f"    label={_quoted(name)};"]
        members = (t for t in range(len(moves)) if source[t] == device and not moves[t])
        lines += [f"    {_node(task_graph, task, 'box')}" for task in members]
        lines.append("  }")
    lines += [f"  {_node(task_graph, task, 'ellipse')}" for task, move in enumerate(moves) if move]
    lines += _edges(task_graph)
    return "\n".join([*lines, "}\n"])


def _node(task_graph: TaskGraph, task: int, shape: str) -> str:
    return f"t{task} [shape={shape}, label={_quoted(task_graph.tasks.name[task])}];"


def _edges(task_graph: TaskGraph) -> Iterable[str]:
    successors = task_graph.tasks.successors
    pairs = zip(successors.owners().tolist(), successors.ids.tolist(), strict=True)
    return (f"  t{before} -> t{after};" for before, after in pairs)


def _quoted(name: str) -> str:
    """A DOT string; backslashes are doubled, since DOT labels give them meanings of their own."""
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
