"""The builder of task graphs: tasks, queues and buffers as columns while a pass writes them.

Every pass that adds tasks writes through ``Columns``, except large models (hybrid/expand.py), hosts
(hosts.py) and copies (copies.py), which make millions of rows at once. A new column of
``nouns.taskgraph.Tasks`` needs an argument of ``Columns.task``, and must be filled in by these
three.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from itertools import chain
from typing import Any

import numpy as np

from ..ground.errors import InputError
from ..nouns.memory import MemoryModel
from ..nouns.taskgraph import (
    BUFFER_KINDS,
    MAX_TASKS,
    NUMBERS,
    OUTSIDE,
    Buffers,
    Ints,
    Resource,
    Rows,
    TaskGraph,
    Tasks,
)

NONE = -1
_KIND = {name: row for row, name in enumerate(BUFFER_KINDS)}


class Columns:
    """Rows that a pass writes, after those of ``base`` if given.

    ``memory`` decides how many bytes of a buffer are counted.
    """

    def __init__(
        self, memory: MemoryModel, resources: Sequence[Resource] = (), base: TaskGraph | None = None
    ) -> None:
        self.memory, self.resources, self.base = memory, list(resources), base
        # A tuple for each row, and flat lists of edges and reads: with thousands of small lists the
        # garbage collector would walk the heap while a pass writes.
        self._tasks: list[tuple[Any, ...]] = []
        self._buffers: list[tuple[Any, ...]] = []
        self._before, self._after = list[int](), list[int]()
        self._read, self._reader = list[int](), list[int]()
        self._first_task = 0 if base is None else len(base.tasks)
        self._first_buffer = 0 if base is None else len(base.buffers)

    @property
    def next_task(self) -> int:
        """The row of the task that is written next."""
        return self._first_task + len(self._tasks)

    def task(
        self,
        name: str,
        kind: str,
        ends: tuple[int, int],
        *,
        op: int = NONE,
        output: int = NONE,
        duration: int = 0,
        lag: int = 0,
        gap: int = 0,
        priority: int = 0,
        size: int = 0,
        held: Sequence[int] = (),
        links: Sequence[int] = (),
        flow: bool = False,
    ) -> int:
        """Write a task with the fields of ``Tasks``; ``ends`` are source and destination, ``held``
        its queues. Returns its row.

        Raises InputError for more than ten million tasks.
        """
        row = self._first_task + len(self._tasks)
        # Checked at each task: chunks times hops could fill the memory before the end.
        if row >= MAX_TASKS:
            raise InputError(f"the step lowers to more than {MAX_TASKS} tasks")
        numbers = (op, output, *ends, duration, lag, gap, priority, size)
        self._tasks.append((name, kind, flow, held, links, *numbers))
        return row

    def release(self, before: int, after: Sequence[int]) -> None:
        """Let a task release others, in any order; repeated pairs count once."""
        self._before.extend([before] * len(after))
        self._after.extend(after)

    def wait(self, after: int, before: Sequence[int]) -> None:
        """Let a task wait for others."""
        self._before.extend(before)
        self._after.extend([after] * len(before))

    def chain(self, tasks: Sequence[int]) -> None:
        """Let each task release the next one."""
        self._before.extend(tasks[:-1])
        self._after.extend(tasks[1:])

    def queue(self, name: str, policy: str = "fifo", device: int = NONE) -> int:
        """Add a queue. Returns its row."""
        self.resources.append(Resource(name, policy, device=device))
        return len(self.resources) - 1

    def buffer(
        self,
        name: str,
        device: int,
        size: int,
        kind: str,
        filler: int,
        readers: Sequence[int] = (),
        requested: int | None = None,
    ) -> int:
        """Write a buffer of ``size`` bytes, of which its task itself requests ``requested`` (None:
        all). Returns its row; NONE where it has no bytes.
        """
        # Many outputs have no bytes; empty buffers would only slow the engines.
        if not size:
            return NONE
        row = self._first_buffer + len(self._buffers)
        requested = size if requested is None else requested
        self._buffers.append((name, device, size, _KIND[kind], filler, requested))
        if readers:
            self.read(row, readers)
        return row

    def read(self, buffer: int, readers: Sequence[int]) -> None:
        """Let these tasks read a buffer (NONE: there is none)."""
        if buffer != NONE:
            self._read.extend([buffer] * len(readers))
            self._reader.extend(readers)

    def _counted(self, size: Ints, kind: Ints) -> Ints:
        if self.memory.model == "outputs_only":
            # A pass on top of a base adds no outputs of ops.
            outputs = (kind == _KIND["activations"]) & (self.base is None)
            return np.where(outputs, size, 0)
        outside = np.isin(kind, [_KIND[name] for name in OUTSIDE])
        return np.where(outside, size, -(-size // self.memory.unit) * self.memory.unit)

    def task_columns(self) -> Tasks:
        """The tasks, those of the base first."""
        base = [] if self.base is None else [self.base.tasks]
        name, kind, flow, held, links, *numbers = _transposed(self._tasks, 5 + len(NUMBERS))
        columns = {
            column: np.concatenate(
                [*(getattr(tasks, column) for tasks in base), np.array(values, np.int64)]
            )
            for column, values in zip(NUMBERS, numbers, strict=True)
        }
        return Tasks(
            name=tuple(chain(*(tasks.name for tasks in base), name)),
            kind=tuple(chain(*(tasks.kind for tasks in base), kind)),
            flow=np.concatenate([*(tasks.flow for tasks in base), np.array(flow, np.bool_)]),
            resources=reduce(stacked, [*(tasks.resources for tasks in base), Rows.of(held)]),
            links=reduce(stacked, [*(tasks.links for tasks in base), Rows.of(links)]),
            successors=with_pairs(
                [tasks.successors for tasks in base], self._before, self._after, self.next_task
            ),
            **columns,
        )

    def buffer_columns(self) -> Buffers:
        """The buffers, those of the base first."""
        base = [] if self.base is None else [self.base.buffers]
        name, *numbers = _transposed(self._buffers, 6)
        device, size, kind, filler, requested = (np.array(values, np.int64) for values in numbers)
        columns = zip(
            ("device", "bytes", "requested_bytes", "kind", "filler"),
            (device, self._counted(size, kind), requested, kind, filler),
            strict=True,
        )
        device, counted, requested, kind, filler = (
            np.concatenate([*(getattr(buffers, column) for buffers in base), values])
            for column, values in columns
        )
        return Buffers(
            tuple(chain(*(buffers.name for buffers in base), name)),
            device,
            counted,
            kind,
            filler,
            with_pairs(
                [buffers.readers for buffers in base], self._read, self._reader, len(device)
            ),
            None if (requested == counted).all() else requested,
        )

    def on_base(self) -> TaskGraph:
        """The base with all rows that were written."""
        assert self.base is not None
        return replace(
            self.base,
            tasks=self.task_columns(),
            resources=tuple(self.resources),
            buffers=self.buffer_columns(),
        )


def _transposed(rows: Sequence[tuple[Any, ...]], width: int) -> Iterable[Sequence[Any]]:
    return zip(*rows, strict=True) if rows else [()] * width


def stacked(above: Rows, below: Rows) -> Rows:
    """The lists of both, those of ``above`` first."""
    ptr = np.concatenate((above.ptr, below.ptr[1:] + above.ptr[-1]))
    return Rows(ptr, np.concatenate((above.ids, below.ids)))


def with_pairs(
    base: Sequence[Rows], rows: Sequence[int] | Ints, entries: Sequence[int] | Ints, count: int
) -> Rows:
    """``count`` lists: those of the base, with ``entries`` added to the lists ``rows``."""
    return Rows.of_pairs(
        np.concatenate([*(lists.owners() for lists in base), np.array(rows, np.int64)]),
        np.concatenate([*(lists.ids for lists in base), np.array(entries, np.int64)]),
        count,
    )
