"""A trace: the start and finish of every task, and the memory of every device over time.

Memory follows from the spans alone (it never changes timing), so it is computed here, once, for
every engine. At any instant frees come before allocations, and a buffer with an empty lifetime does
not count.

Engines make traces; reports read them. Two other modules count memory in their own way on purpose:
``simdev/execution/check/claims.py`` replays it event by event to check this module, and
``simdev/oracle/peaks.py`` finds the peaks alone, without a task graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from .taskgraph import BUFFER_KINDS, PERSISTENT, Ints, TaskGraph

if TYPE_CHECKING:
    import pandas as pd

# Overflow.task where the persistent buffers alone exceed the capacity
PERSISTENT_BUFFERS = "the persistent buffers"


@dataclass(frozen=True, slots=True)
class Overflow:
    """The first moment when memory exceeds a capacity: the time (ps), the task whose buffer did it,
    the bytes in excess, and the live buffers with their sizes.
    """

    device: str
    time_ps: int
    task: str
    excess: int
    live: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class DeviceMemory:
    """The memory of one device: ``level[i]`` bytes from ``time[i]`` ps to the next time.

    ``peak`` bytes are first reached at ``peak_ps``; ``at_peak`` splits them by kind,
    ``live_at_peak`` by buffer, largest first. ``excess`` is the peak minus the capacity (<= 0 fits;
    None without a capacity).
    """

    device: str
    capacity: int | None
    time: Ints
    level: Ints
    peak: int
    peak_ps: int
    at_peak: Mapping[str, int]
    live_at_peak: tuple[tuple[str, int], ...]
    overflow: Overflow | None

    @property
    def excess(self) -> int | None:
        """Bytes of the peak beyond the capacity; negative where there is room."""
        return None if self.capacity is None else self.peak - self.capacity


@dataclass(frozen=True, eq=False)
class Trace:
    """The answer of an engine: ``start`` and ``finish`` in ps by task of ``task_graph``."""

    task_graph: TaskGraph
    start: Ints
    finish: Ints
    engine: str

    @cached_property
    def end_ps(self) -> int:
        """The last finish or release in ps, without trailing gaps: the time of one step, or the end
        of several.
        """
        return int((self.finish + self.task_graph.tasks.lag).max(initial=0))

    @cached_property
    def lifetimes(self) -> tuple[Ints, Ints]:
        """The times (ps) at which each buffer is filled and freed; persistent buffers live from
        before the step until after it.
        """
        buffers = self.task_graph.buffers
        begin = np.full(len(buffers), -1, np.int64)
        end = np.full(len(buffers), self.end_ps + 1, np.int64)
        filled = np.flatnonzero(buffers.filler != PERSISTENT)
        filler = buffers.filler[filled]
        begin[filled], end[filled] = self.start[filler], self.finish[filler]
        # The end of a persistent buffer stays behind every reader's finish.
        np.maximum.at(end, buffers.readers.owners(), self.finish[buffers.readers.ids])
        return begin, end

    @cached_property
    def memory(self) -> tuple[DeviceMemory, ...]:
        """The memory of every device, in the order of the cluster."""
        # One sort for all devices: scanning all buffers for each of a thousand devices takes long.
        rows, on = self._counted, self.task_graph.buffers.device
        rows = rows[np.argsort(on[rows], kind="stable")]
        borders = np.searchsorted(on[rows], np.arange(len(self.task_graph.devices) + 1))
        return tuple(
            self._device_memory(d, rows[a:b]) for d, (a, b) in enumerate(pairwise(borders))
        )

    def memory_of(self, device: int) -> DeviceMemory:
        """The memory of one device, where the others are not needed."""
        if "memory" in self.__dict__:  # already known for all devices
            return self.memory[device]
        rows = self._counted
        return self._device_memory(device, rows[self.task_graph.buffers.device[rows] == device])

    @cached_property
    def _counted(self) -> Ints:
        """The buffers that hold bytes for some time."""
        begin, end = self.lifetimes
        return np.flatnonzero((end > begin) & (self.task_graph.buffers.bytes > 0))

    def _device_memory(self, device: int, rows: Ints) -> DeviceMemory:
        """The memory of a device, given its buffers of ``_counted``."""
        buffers = self.task_graph.buffers
        begin, end = self.lifetimes
        # Frees and allocations of one instant are summed first: only the level after both counts.
        times = np.concatenate((np.maximum(begin[rows], 0), end[rows]))
        change = np.concatenate((buffers.bytes[rows], -buffers.bytes[rows]))
        time, where = np.unique(times, return_inverse=True)
        level = np.zeros(len(time), np.int64)
        np.add.at(level, where, change)
        level = np.cumsum(level)
        inside = time <= self.end_ps
        time, level = time[inside], level[inside]
        top = int(level.argmax()) if len(level) else 0
        peak, peak_ps = (int(level[top]), int(time[top])) if len(level) else (0, 0)
        live = self._live(rows, peak_ps)
        at_peak = {
            kind: int(buffers.bytes[live[buffers.kind[live] == k]].sum())
            for k, kind in enumerate(BUFFER_KINDS)
        }
        capacity = int(self.task_graph.capacity[device])
        over = 0 <= capacity < peak
        overflow = self._overflow(device, capacity, rows, time, level) if over else None
        name, limit = self.task_graph.devices[device], None if capacity < 0 else capacity
        largest = self._largest(live)
        return DeviceMemory(name, limit, time, level, peak, peak_ps, at_peak, largest, overflow)

    def _live(self, rows: Ints, now: int) -> Ints:
        """The rows of the buffers that are live at ``now`` ps."""
        begin, end = self.lifetimes
        return rows[(np.maximum(begin[rows], 0) <= now) & (now < end[rows])]

    def _largest(self, rows: Ints) -> tuple[tuple[str, int], ...]:
        buffers = self.task_graph.buffers
        order = rows[np.argsort(-buffers.bytes[rows], kind="stable")]
        return tuple((buffers.name[b], int(buffers.bytes[b])) for b in order.tolist())

    def _overflow(
        self, device: int, capacity: int, rows: Ints, time: Ints, level: Ints
    ) -> Overflow:
        """The first overflow of a device. To find the buffer that no longer fits, allocations of
        one instant are taken in the order of their tasks.
        """
        buffers = self.task_graph.buffers
        begin, _ = self.lifetimes
        at = int(np.argmax(level > capacity))
        now = int(time[at])
        # Elsewhere only sums at an instant count; here the order of the buffers matters.
        live = self._live(rows, now)
        order = live[np.lexsort((live, buffers.filler[live], begin[live]))]
        total = np.cumsum(buffers.bytes[order])
        culprit = int(buffers.filler[order[int(np.argmax(total > capacity))]])
        name = PERSISTENT_BUFFERS if culprit == PERSISTENT else self.task_graph.tasks.name[culprit]
        excess = int(level[at]) - capacity
        return Overflow(self.task_graph.devices[device], now, name, excess, self._largest(live))

    @property
    def feasible(self) -> bool:
        """Whether every device stays within its capacity."""
        return all(memory.overflow is None for memory in self.memory)

    @property
    def memory_excess(self) -> int:
        """The largest excess over a capacity in bytes, 0 where everything fits."""
        return max([0, *(memory.excess or 0 for memory in self.memory)])

    def to_frame(self) -> pd.DataFrame:
        """One row a task: task, op, kind, resources, source, destination, nbytes, start_s, finish_s
        (seconds).

        ``op`` is the op that runs, or whose output is sent.
        """
        import pandas as pd

        tasks, devices = self.task_graph.tasks, np.array(self.task_graph.devices, dtype=object)
        names = [resource.name for resource in self.task_graph.resources]
        return pd.DataFrame(
            {
                "task": tasks.name,
                "op": [tasks.name[op] if op >= 0 else "" for op in tasks.op.tolist()],
                "kind": tasks.kind,
                "resources": [
                    ", ".join(names[r] for r in held) for held in tasks.resources.lists()
                ],
                "source": devices[tasks.source],
                "destination": devices[tasks.destination],
                "nbytes": tasks.bytes,
                "start_s": self.start / 1e12,
                "finish_s": self.finish / 1e12,
            }
        )

    def __repr__(self) -> str:
        return (
            f"Trace({len(self.start)} tasks, step {self.end_ps / 1e12:.9g} s, engine "
            f"{self.engine!r})"
        )
