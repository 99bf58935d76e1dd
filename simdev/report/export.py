"""A trace for other tools: Chrome Trace Event JSON (Perfetto, chrome://tracing), and the task graph
for Graphviz.

In the JSON a process is a device (or the links) and a thread a stream, queue or lane, so that
slices of one thread never overlap. Timestamps are microseconds with six decimals, written from the
integer picoseconds: they read back exactly. Perfetto itself shows whole nanoseconds.

``--trace`` of the command line writes it (``commands/outputs.py``). Rows are those of
``measures/spans.py`` (``timeline_rows``), which pictures and the page share;
``measure/calibrate/observe.py`` reads such traces back and knows their names.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain, islice, product
from typing import Any, TextIO

import numpy as np

from ..files.reading import PathLike
from ..nouns.taskgraph import Ints, TaskGraph
from ..nouns.trace import Trace
from .measures.spans import Row, timeline_rows, transfer_mask

PS_PER_US = 10**6
CHUNK = 20_000  # events joined before they are written


def export_chrome_trace(trace: Trace, file: PathLike | TextIO, notes: Sequence[str] = ()) -> int:
    """Write the trace as Chrome Trace Event JSON to a path (``.gz``: compressed) or a text file;
    the number of events.

    Each task is a complete slice ("X") in the row of every queue that it holds, with its ``task``
    id, and for a transfer its ``bytes``; arrows ("s", "f") lead from producer to transfer to
    consumer; "C" counts each device's bytes over time. ``notes`` are written to ``otherData``.
    Equal traces give equal bytes. Raises OSError.
    """
    task_graph, rows = trace.task_graph, timeline_rows(trace)
    devices = len(task_graph.devices)
    # A thread with the number of its process would pass for the main thread.
    threads = [
        ((row.device if row.device >= 0 else devices) + 1, devices + 2 + number)
        for number, row in enumerate(rows)
    ]
    places = [f'"pid":{process},"tid":{thread},"ts":' for process, thread in threads]
    begin, events, separator = _microseconds(trace.start), 0, ""
    stream = chain(
        _metadata(trace, rows, threads), _slices(trace, rows, places, begin),
        _arrows(task_graph, rows, places, begin), _counters(trace),
    )  # fmt: skip
    with _opened(file) as write:
        others = f'"otherData":{json.dumps({"notes": list(notes)})},' if notes else ""
        write(f'{{"displayTimeUnit":"ns",{others}"traceEvents":[\n')
        while chunk := list(islice(stream, CHUNK)):
            write(separator + ",\n".join(chunk))
            separator = ",\n"
            events += len(chunk)
        write("\n]}\n")
    return events


@contextmanager
def _opened(file: PathLike | TextIO) -> Iterator[Callable[[str], object]]:
    if not isinstance(file, (str, os.PathLike)):
        yield file.write
        return
    with open(file, "wb") as raw, ExitStack() as stack:
        packed: Any = raw
        if os.fspath(file).endswith(".gz"):
            # Neither name nor time go into the header: the same trace gives the same bytes.
            packed = stack.enter_context(gzip.GzipFile("", "wb", 3, raw, 0))
        yield lambda text: packed.write(text.encode("ascii"))


def _microseconds(times_ps: Ints) -> list[str]:
    """Exact decimals: 1234567 ps is 1.234567 us."""
    whole, rest = np.divmod(times_ps, PS_PER_US)
    return [f"{a}.{b:06d}" for a, b in zip(whole.tolist(), rest.tolist(), strict=True)]


def _metadata(
    trace: Trace, rows: Sequence[Row], threads: Sequence[tuple[int, int]]
) -> Iterator[str]:
    """Names and order of processes, then of threads."""
    names = [*trace.task_graph.devices]
    names += ["links"] if any(row.device < 0 for row in rows) else []
    for process, name in enumerate(names, 1):
        yield _metadatum("process_name", process, 0, name=name)
        yield _metadatum("process_sort_index", process, 0, sort_index=process)
    for number, (row, place) in enumerate(zip(rows, threads, strict=True)):
        yield _metadatum("thread_name", *place, name=row.name)
        yield _metadatum("thread_sort_index", *place, sort_index=number)


def _metadatum(title: str, process: int, thread: int, **args: object) -> str:
    return json.dumps({"ph": "M", "name": title, "pid": process, "tid": thread, "args": args})


def _slices(
    trace: Trace, rows: Sequence[Row], places: Sequence[str], begin: Sequence[str]
) -> Iterator[str]:
    """A slice for every task in each of its rows."""
    tasks, length = trace.task_graph.tasks, _microseconds(trace.finish - trace.start)
    # Plain formatting, every name escaped once: ten times faster than json.dumps of each event.
    escape = json.JSONEncoder().encode
    escaped = {text: escape(text) for text in (*tasks.name, *tasks.kind)}
    sizes = np.where(transfer_mask(trace.task_graph), tasks.bytes, -1).tolist()
    heads = [
        f'{{"ph":"X","name":{escaped[n]},"cat":{escaped[k]},'
        for n, k in zip(tasks.name, tasks.kind, strict=True)
    ]
    for row, place in zip(rows, places, strict=True):
        for task in row.tasks.tolist():
            size = f',"bytes":{sizes[task]}' if sizes[task] >= 0 else ""
            args = f'{{"task":{task}{size}}}'
            yield f'{heads[task]}{place}{begin[task]},"dur":{length[task]},"args":{args}}}'


def _arrows(
    task_graph: TaskGraph, rows: Sequence[Row], places: Sequence[str], begin: Sequence[str]
) -> Iterator[str]:
    """From producer to transfer, from its first row to its last, from transfer to consumer.

    Both ends carry the start of their slice, where every viewer finds it; they draw from its end
    all the same.
    """
    rows_of: list[list[int]] = [[] for _ in range(len(task_graph.tasks))]
    for number, row in enumerate(rows):
        for task in row.tasks.tolist():
            rows_of[task].append(number)
    successors, moves = task_graph.tasks.successors, transfer_mask(task_graph)
    before, after = successors.owners(), successors.ids
    # A parameter that waits for its average holds no queue, and so has no row.
    drawn = np.array([bool(numbers) for numbers in rows_of], np.bool_)
    touching = (moves[before] | moves[after]) & drawn[before] & drawn[after]
    held = [task for task in np.flatnonzero(moves).tolist() if len(rows_of[task]) > 1]
    arrows = zip(before[touching].tolist() + held, after[touching].tolist() + held, strict=True)
    for number, (leaving, entering) in enumerate(arrows):
        # An arrow goes between rows of one device where there are such, else from last to first.
        near = (
            pair
            for pair in product(rows_of[leaving], rows_of[entering])
            if rows[pair[0]].device == rows[pair[1]].device
        )
        leave, enter = next(near, (rows_of[leaving][-1], rows_of[entering][0]))
        if leaving == entering:
            leave, enter = rows_of[leaving][0], rows_of[leaving][-1]
        head = f'"name":"data","cat":"data","id":{number},'
        yield f'{{"ph":"s",{head}{places[leave]}{begin[leaving]}}}'
        yield f'{{"ph":"f","bp":"e",{head}{places[enter]}{begin[entering]}}}'


def _counters(trace: Trace) -> Iterator[str]:
    for device, memory in enumerate(trace.memory):
        head = f'{{"ph":"C","name":"memory","pid":{device + 1},"ts":'
        for time, level in zip(_microseconds(memory.time), memory.level.tolist(), strict=True):
            yield f'{head}{time},"args":{{"bytes":{level}}}}}'
