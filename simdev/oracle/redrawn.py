"""A task graph executed many times with different durations: step times and peaks in compiled code.

``draws.py`` has a ``Redrawn`` for each of its threads. Times equal those of the compiled engine,
peaks those of ``Trace.memory``.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

import numpy as np

from ..execution.engine.compiled import program_of, run, state_for
from ..execution.factors import scaled
from ..ground.jit import Table, bare, jit, jitable, opener
from ..ground.units import MAX_PS
from ..lowering.copies import taken
from ..nouns.taskgraph import PERSISTENT, Floats, Ints, TaskGraph
from .peaks import Events, add_peaks, buffer, clear, events_for, open_events

AT_ONCE = 1 << 20  # most times in a call of the kernel, unless a single draw has more
UNTOLD = -1  # in place of the time of a step that does not end, or is too long for keys of events


class Step(NamedTuple):
    """The columns that draws change and the results, with the buffers that are filled and freed in
    the step.
    """

    tasks: int
    drawn_times: int
    buffers: int
    devices: int
    drawn: Ints  # times that each draw changes: columns of the engine's program, end to end
    lag: Ints
    start: Ints
    finish: Ints
    held: Ints  # by device: bytes of persistent buffers
    peak: Ints
    device: Ints  # by buffer, as are the next two
    bytes: Ints
    filler: Ints
    reader_ptr: Ints
    reader: Ints


_open_step = opener(Step)


@jitable
def _end_ps(x: Step) -> int:
    """The last release in ps; UNTOLD where a task never starts."""
    end = 0
    for task in range(x.tasks):
        if x.start[task] < 0:
            return UNTOLD
        end = max(end, x.finish[task] + x.lag[task])
    return end


@jitable
def _fill_peaks(x: Step, v: Events) -> None:
    """Write the peak of each device; ``v`` must be cleared."""
    for row in range(x.buffers):
        end = x.finish[x.filler[row]]
        for e in range(x.reader_ptr[row], x.reader_ptr[row + 1]):
            end = max(end, x.finish[x.reader[e]])
        buffer(v, row, x.device[row], x.bytes[row], x.start[x.filler[row]], end)
    for device in range(x.devices):
        x.peak[device] = x.held[device]
    add_peaks(v, x.devices, x.peak)


@jit
def _execute_each(
    program: Ints, state: Ints, step: Ints, events: Ints, times: Ints, ends: Ints, peaks: Ints
) -> int:
    """Execute several draws one after another. ``times`` has their times, draw by draw; the end of
    each is written to ``ends``, its peak bytes by device to ``peaks``. Returns their number.
    """
    x, v = _open_step(step), open_events(events)
    time, peak = bare(times), bare(peaks)
    for k in range(len(ends)):
        for i in range(x.drawn_times):
            x.drawn[i] = time[k * x.drawn_times + i]
        run(program, state)
        ends[k] = _end_ps(x)
        if ends[k] == UNTOLD or not clear(v, x.devices, ends[k]):
            ends[k] = UNTOLD
            continue
        _fill_peaks(x, v)
        for device in range(x.devices):
            peak[k * x.devices + device] = x.peak[device]
    return len(ends)


class Redrawn:
    """The executions of a task graph by one thread."""

    def __init__(self, task_graph: TaskGraph) -> None:
        program, tasks = program_of(task_graph), task_graph.tasks
        changed = {"duration": True, "lag": tasks.lag.any(), "bytes": tasks.flow.any()}
        names = [name for name, is_changed in changed.items() if is_changed]
        self._columns = [getattr(tasks, "carried" if name == "bytes" else name) for name in names]
        # The kernel writes times and queues, so each thread has copies of these columns.
        drawn = np.array(self._columns)
        columns = dict(zip(names, drawn, strict=True))
        program = program._replace(queue=program.queue.copy(), **columns)
        state = state_for(program)
        buffers, devices = task_graph.buffers, len(task_graph.devices)
        lasting = buffers.filler == PERSISTENT
        held = np.zeros(devices, np.int64)
        np.add.at(held, buffers.device[lasting], buffers.bytes[lasting])
        rows = np.flatnonzero(~lasting & (buffers.bytes > 0))
        readers = taken(buffers.readers, rows)
        step = Step(
            len(tasks), drawn.size, len(rows), devices, drawn.ravel(), program.lag,
            state.start, state.finish, held, held.copy(),
            buffers.device[rows], buffers.bytes[rows], buffers.filler[rows],
            readers.ptr, readers.ids,
        )  # fmt: skip
        events = events_for(len(rows), devices, 1, 1)
        self._devices, self._at_once = devices, max(AT_ONCE // max(drawn.size, 1), 1)
        # Factors are below this where no sum of times leaves int64; each time is rounded up.
        self._most = (MAX_PS - drawn.size) / max(task_graph.total_ps, 1)
        self._tables = [Table.of(columns) for columns in (program, state, step, events)]

    def answers(self, factors: Iterable[Floats | None]) -> list[tuple[int, Ints] | None]:
        """For each draw, the step time in ps and the peak bytes of every device; ``factors`` has
        the factors of all tasks for each draw (None: durations as lowered). An answer is None where
        the step does not end or is too long for the kernel: an engine must execute it.
        """
        answers = list[tuple[int, Ints] | None]()
        each = iter(factors)
        # Rows are made as they are used: all rows of a large model would take gigabytes.
        while batch := list(islice(each, self._at_once)):
            short = [factor is None or factor.max(initial=1) < self._most for factor in batch]
            given = (f if is_short else None for f, is_short in zip(batch, short, strict=True))
            rows = [self._times(factor) for factor in given]
            times, ends = np.array(rows), np.empty(len(rows), np.int64)
            peaks = np.empty((len(rows), self._devices), np.int64)
            program, state, step, events = (table.words for table in self._tables)
            _execute_each(program, state, step, events, times.ravel(), ends, peaks.ravel())
            answers += [
                (end, peak) if is_short and end != UNTOLD else None
                for end, peak, is_short in zip(ends.tolist(), peaks, short, strict=True)
            ]
        return answers

    def _times(self, factor: Floats | None) -> list[Ints]:
        return self._columns if factor is None else [scaled(c, factor) for c in self._columns]
