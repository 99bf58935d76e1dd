"""A trace: the start and finish of every task, and the memory of every device over time.

Memory follows from the spans alone (it never changes timing), so it is computed here, once, for
every engine. Frees at an instant come before allocations at it, and a buffer of no lifetime counts
nothing.

Engines make traces; reports read them. Two other places count memory on purpose in their own way:
``simdev/execution/check/claims.py`` replays it event by event to check this one, and
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

# in place of a task, where the persistent buffers alone are too much
PERSISTENT_BUFFERS = "the persistent buffers"


@dataclass(frozen=True, slots=True)
class Overflow:
    """The first moment over a capacity: when (ps), which task's buffer did it, and by how many
    bytes.
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
    """The answer of an engine: ``start`` and ``finish`` in ps, a row a task of ``task_graph``."""

    task_graph: TaskGraph
    start: Ints
    finish: Ints
    engine: str

    @cached_property
    def end_ps(self) -> int:
        """The last finish or release in ps (trailing gaps do not count): of one step its time, of
        several their end.
        """
        return int((self.finish + self.task_graph.tasks.lag).max(initial=0))

    @cached_property
    def lifetimes(self) -> tuple[Ints, Ints]:
        """When each buffer is filled and freed, in ps; a persistent one lives beyond both ends of
        the step.
        """
        buffers = self.task_graph.buffers
        begin = np.full(len(buffers), -1, np.int64)
        end = np.full(len(buffers), self.end_ps + 1, np.int64)
        filled = np.flatnonzero(buffers.filler != PERSISTENT)
        filler = buffers.filler[filled]
        begin[filled], end[filled] = self.start[filler], self.finish[filler]
        # What is persistent stays beyond the end, which no reader's finish reaches.
        np.maximum.at(end, buffers.readers.owners(), self.finish[buffers.readers.ids])
        return begin, end

    @cached_property
    def memory(self) -> tuple[DeviceMemory, ...]:
        """The memory of every device, in the order of the cluster."""
        # One sort for all: a look through all buffers for each of a thousand devices takes long.
        rows, on = self._counted, self.task_graph.buffers.device
        rows = rows[np.argsort(on[rows], kind="stable")]
        borders = np.searchsorted(on[rows], np.arange(len(self.task_graph.devices) + 1))
        return tuple(
            self._device_memory(d, rows[a:b]) for d, (a, b) in enumerate(pairwise(borders))
        )

    def memory_of(self, device: int) -> DeviceMemory:
        """The memory of one device: of many alike one is enough."""
        if "memory" in self.__dict__:  # that of all is known
            return self.memory[device]
        rows = self._counted
        return self._device_memory(device, rows[self.task_graph.buffers.device[rows] == device])

    @cached_property
    def _counted(self) -> Ints:
        """The buffers that hold bytes for some time."""
        begin, end = self.lifetimes
        return np.flatnonzero((end > begin) & (self.task_graph.buffers.bytes > 0))

    def _device_memory(self, device: int, rows: Ints) -> DeviceMemory:
        """The memory of a device; ``rows`` are those of its buffers that count."""
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
        """Allocations of one instant are taken in the order of their tasks, to find the one that no
        longer fits.
        """
        buffers = self.task_graph.buffers
        begin, _ = self.lifetimes
        at = int(np.argmax(level > capacity))
        now = int(time[at])
        # Levels are sums at an instant: only here does it matter whose buffer came first.
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
