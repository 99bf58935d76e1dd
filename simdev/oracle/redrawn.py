"""One task graph, executed again and again with other durations: times and peaks in compiled code.

``draws.py`` has one for each of its threads. Times are those of the compiled engine, peaks those of
``Trace.memory``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..execution.engine import require_finished
from ..execution.engine.compiled import program_of, run, state_for
from ..execution.factors import scaled, with_factors
from ..ground.jit import Table, bare, jit, opener
from ..lowering.copies import taken
from ..nouns.taskgraph import PERSISTENT, Floats, Ints, TaskGraph
from ..nouns.trace import Trace
from .peaks import add_peaks, buffer, clear, events_for, open_events


class Lives(NamedTuple):
    """The buffers that are filled and freed in a step, the devices aside."""

    buffers: int
    devices: int
    device: Ints
    bytes: Ints
    filler: Ints
    reader_ptr: Ints
    reader: Ints


_open_lives = opener(Lives)


@jit
def _fill_peaks(
    lives: Ints, events: Ints, starts: Ints, finishes: Ints, peaks: Ints, step_ps: int
) -> bool:
    """Raise what each device holds throughout (``peaks``) to its peak; False where the step is too
    long for the keys of events.
    """
    b, v = _open_lives(lives), open_events(events)
    start, finish, peak = bare(starts), bare(finishes), bare(peaks)
    if not clear(v, b.devices, step_ps):
        return False
    for row in range(b.buffers):
        end = finish[b.filler[row]]
        for e in range(b.reader_ptr[row], b.reader_ptr[row + 1]):
            end = max(end, finish[b.reader[e]])
        buffer(v, row, b.device[row], b.bytes[row], start[b.filler[row]], end)
    add_peaks(v, b.devices, peak)
    return True


class Redrawn:
    """The executions of a task graph by one thread."""

    def __init__(self, task_graph: TaskGraph) -> None:
        self.task_graph, tasks = task_graph, task_graph.tasks
        program = program_of(task_graph)
        # Columns of this thread: durations are written for each draw, queues by the kernel.
        names = "duration", "lag", "bytes", "queue"
        self._program = Table.of(
            program._replace(**{name: getattr(program, name).copy() for name in names})
        )
        self._state = Table.of(state_for(program))
        buffers, devices = task_graph.buffers, len(task_graph.devices)
        lasting = buffers.filler == PERSISTENT
        self._held = np.zeros(devices, np.int64)
        np.add.at(self._held, buffers.device[lasting], buffers.bytes[lasting])
        rows = np.flatnonzero(~lasting & (buffers.bytes > 0))
        readers = taken(buffers.readers, rows)
        device, size, filler = (
            column[rows] for column in (buffers.device, buffers.bytes, buffers.filler)
        )
        lives = Lives(len(rows), devices, device, size, filler, readers.ptr, readers.ids)
        self._lives = Table.of(lives)
        self._events = Table.of(events_for(len(rows), devices, 1, 1))
        self._flows, self._lag = bool(tasks.flow.any()), bool(tasks.lag.any())

    def answer(self, factor: Floats | None) -> tuple[int, Ints]:
        """The step time in ps and the peak bytes of every device, where each task takes ``factor``
        times as long (None: as long as it does).

        Raises DeadlockError.
        """
        tasks, columns = self.task_graph.tasks, self._program.columns
        for name in ("duration", *["lag"] * self._lag, *["bytes"] * self._flows):
            column = getattr(tasks, name)
            getattr(columns, name)[:] = column if factor is None else scaled(column, factor)
        start, finish = run(self._program, self._state, self.task_graph.predecessor_count)
        require_finished(self.task_graph, start)
        end_ps = int((finish + columns.lag).max(initial=0))
        peaks = self._held.copy()
        words = self._lives.words, self._events.words
        if not _fill_peaks(*words, start, finish, peaks, end_ps):
            graph = self.task_graph if factor is None else with_factors(self.task_graph, factor)
            memory = Trace(graph, start, finish, "compiled").memory
            peaks = np.array([device.peak for device in memory], np.int64)
        return end_ps, peaks
