"""Tasks, edges and buffers that the synchronisation adds to the task graph of a step, while they
are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ...memory import MemoryModel
from ...taskgraph import BUFFER_KINDS, NUMBERS, Buffers, Ints, Resource, Rows, TaskGraph, Tasks

_KIND = {name: row for row, name in enumerate(BUFFER_KINDS)}
Numbers = tuple[int, int, int, int, int, int, int, int, int]


@dataclass(slots=True)
class Draft:
    """What is added to ``base``. Rows go on where those of ``base`` end."""

    base: TaskGraph
    memory: MemoryModel
    names: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    # op, output, source, destination, duration, lag, gap, priority, bytes
    numbers: list[Numbers] = field(default_factory=list)
    flow: list[bool] = field(default_factory=list)
    held: list[Sequence[int]] = field(default_factory=list)
    links: list[Sequence[int]] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)
    queues: list[Resource] = field(default_factory=list)
    buffer_names: list[str] = field(default_factory=list)
    # device, bytes counted, kind, filler, bytes requested
    buffer_numbers: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    readers: list[list[int]] = field(default_factory=list)
    reads: list[tuple[int, int]] = field(default_factory=list)  # (buffer of the base, reader)

    def task(
        self,
        name: str,
        kind: str,
        ends: tuple[int, int],
        *,
        op: int = -1,
        output: int = -1,
        duration: int = 0,
        lag: int = 0,
        gap: int = 0,
        priority: int = 0,
        size: int = 0,
        held: Sequence[int] = (),
        links: Sequence[int] = (),
        flow: bool = False,
    ) -> int:
        """One more task; returns its row."""
        self.names.append(name)
        self.kinds.append(kind)
        self.numbers.append((op, output, *ends, duration, lag, gap, priority, size))
        self.held.append(held)
        self.links.append(links)
        self.flow.append(flow)
        return len(self.base.tasks) + len(self.names) - 1

    def queue(self, name: str, device: int) -> int:
        """One more queue; returns its row."""
        self.queues.append(Resource(name, "priority", device=device))
        return len(self.base.resources) + len(self.queues) - 1

    def buffer(
        self, name: str, device: int, size: int, kind: str, filler: int, readers: list[int]
    ) -> None:
        """One more buffer.

        A memory model of outputs alone counts none of its bytes: gates have the outputs.
        """
        if not size:
            return
        counted = 0 if self.memory.model == "outputs_only" else self.memory.rounded(size)
        self.buffer_names.append(name)
        self.buffer_numbers.append((device, counted, _KIND[kind], filler, size))
        self.readers.append(readers)

    def finished(self) -> TaskGraph:
        """The base with all that was added."""
        base = self.base
        queues = (*base.resources, *self.queues)
        return replace(base, tasks=self._tasks(), resources=queues, buffers=self._buffers())

    def _tasks(self) -> Tasks:
        old, table = self.base.tasks, np.array(self.numbers, np.int64).reshape(-1, len(NUMBERS))
        joined = {
            name: np.concatenate((getattr(old, name), table[:, k]))
            for k, name in enumerate(NUMBERS)
        }
        return Tasks(
            name=(*old.name, *self.names),
            kind=(*old.kind, *self.kinds),
            flow=np.concatenate((old.flow, np.array(self.flow, np.bool_))),
            resources=_longer(old.resources, Rows.of(self.held)),
            links=_longer(old.links, Rows.of(self.links)),
            successors=with_edges(
                old.successors, np.array(self.edges, np.int64).reshape(-1, 2), len(self.names)
            ),
            **joined,
        )

    def _buffers(self) -> Buffers:
        old, table = self.base.buffers, np.array(self.buffer_numbers, np.int64).reshape(-1, 5)
        columns = old.device, old.bytes, old.kind, old.filler, old.asked
        device, size, kind, filler, asked = (
            np.concatenate((one, table[:, k])) for k, one in enumerate(columns)
        )
        readers = with_edges(old.readers, np.array(self.reads, np.int64).reshape(-1, 2), 0)
        requested = None if (asked == size).all() else asked
        names = (*old.name, *self.buffer_names)
        return Buffers(
            names, device, size, kind, filler, _longer(readers, Rows.of(self.readers)), requested
        )


def _longer(first: Rows, second: Rows) -> Rows:
    return Rows(
        np.concatenate((first.ptr, second.ptr[1:] + first.ptr[-1])),
        np.concatenate((first.ids, second.ids)),
    )


def with_edges(rows: Rows, edges: Ints, more: int) -> Rows:
    """The lists with ``edges`` (row, entry) added, ``more`` rows longer; every list ascending,
    without repetitions.
    """
    count = len(rows) + more
    owner = np.concatenate((rows.owners(), edges[:, 0]))
    entry = np.concatenate((rows.ids, edges[:, 1]))
    width = int(entry.max(initial=0)) + 1
    keys = np.unique(owner * width + entry)
    owner, entry = np.divmod(keys, width)
    ptr = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(owner, minlength=count), out=ptr[1:])
    return Rows(ptr, entry.astype(np.int64))
