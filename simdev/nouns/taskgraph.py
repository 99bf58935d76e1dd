"""The intermediate form between lowering and the engines: tasks, the serial resources that they
hold, their dependencies, and the buffers that they fill and read.

Large tables are numpy columns; a task, resource or buffer is a row number. Times are int64
picoseconds, sizes int64 bytes. Lists of rows are stored as CSR: the list of row i is
``ids[ptr[i]:ptr[i + 1]]``.

Lowering makes task graphs, both engines execute them, the checker and the report read them, and
``simdev/files/run.py`` saves them column by column. A new column is needed there too. One that
changes timing is needed in both engines (``simdev/execution/engine``) and, written independently,
in ``simdev/execution/check``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from ..ground.errors import refuse
from ..ground.frozen import FrozenDict
from ..ground.units import MAX_PS, PS_PER_SECOND

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

# Kinds of tasks that send. The kind of a task that computes is its op's phase.
TRANSFER = "transfer"
# one task on several devices, each of which sends ``bytes``; its buffers lie on all of them
COLLECTIVE = "collective"
# parts of gradient synchronisation that send nothing: a server's sums, and joining points
SYNC = "sync"
DISPATCH = "dispatch"  # a host's work before its device runs an op
THREAD_PREFIX = "thread "  # of the names of the queues of dispatches
STREAM_PREFIX = "stream "  # of the names of the queues of streams
BUFFER_KINDS = (
    "parameters",
    "gradients",
    "optimizer state",
    "activations",
    "received copies",
    "workspace",
    "staging",
    "context",
    "communication",
)
OUTSIDE = ("context", "communication")  # kinds of buffers that no framework's allocator hands out
MAX_TASKS = 10_000_000
"""The most tasks that a task graph may have."""
PERSISTENT = -1  # filler of a buffer that lives throughout


def distinct(numbers: Ints) -> Ints:
    """The distinct numbers, ascending."""
    # Faster than np.unique, which hashes: ten times and more for a hundred thousand numbers.
    ordered = np.sort(numbers)
    return ordered[np.diff(ordered, prepend=ordered[:1] - 1) > 0]


def distinct_rows(rows: Ints) -> tuple[Ints, Ints]:
    """The distinct rows of a table, ascending, and the position of each row among them."""
    # Five times faster than np.unique, which compares rows as structures.
    order = np.lexsort(rows.T[::-1])
    ordered, which = rows[order], np.empty(len(rows), np.int64)
    is_new = np.ones(len(rows), np.bool_)
    is_new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    which[order] = np.cumsum(is_new) - 1
    return ordered[is_new], which


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """A list of row numbers for each row (CSR)."""

    ptr: Ints
    ids: Ints

    @classmethod
    def of(cls, lists: Iterable[Sequence[int]]) -> Rows:
        """Rows from a sequence of numbers for each row."""
        lists = list(lists)
        ptr = np.zeros(len(lists) + 1, np.int64)
        np.cumsum([len(row) for row in lists], out=ptr[1:])
        return cls(ptr, np.fromiter(chain.from_iterable(lists), np.int64, int(ptr[-1])))

    @classmethod
    def of_pairs(cls, rows: Ints, entries: Ints, count: int) -> Rows:
        """``count`` rows from pairs (row, entry) in any order, sorted, without repetitions."""
        # One key for each pair: sorting keys is several times faster than sorting by two columns.
        width = int(entries.max(initial=0)) + 1
        rows, entries = np.divmod(distinct(rows * width + entries), width)
        ptr = np.zeros(count + 1, np.int64)
        np.cumsum(np.bincount(rows, minlength=count), out=ptr[1:])
        return cls(ptr, entries)

    def __len__(self) -> int:
        return len(self.ptr) - 1

    def __getitem__(self, row: int) -> Ints:
        return self.ids[self.ptr[row] : self.ptr[row + 1]]

    def owners(self) -> Ints:
        """The row of each entry of ``ids``."""
        return np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.ptr))

    def each(self) -> Iterator[list[int]]:
        """The rows one after another as plain lists: numpy's scalars are slow in Python loops."""
        flat, ends = self.ids.tolist(), self.ptr.tolist()
        # A generator: the garbage collector would walk tens of thousands of live lists.
        return (flat[a:b] for a, b in pairwise(ends))

    def lists(self) -> list[list[int]]:
        """All rows as plain lists, for lookups by number."""
        return list(self.each())


class Lazy(Sequence[str]):
    """A sequence of ``size`` texts, each made on access: names of millions of tasks are seldom
    read.
    """

    __slots__ = ("make", "size")

    def __init__(self, size: int, make: Callable[[int], str]) -> None:
        self.size, self.make = size, make

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        if isinstance(index, slice):
            return tuple(map(self.make, range(self.size)[index]))
        return self.make(range(self.size)[index])

    def __iter__(self) -> Iterator[str]:
        return map(self.make, range(self.size))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Sequence)
            and len(self) == len(other)
            and all(a == b for a, b in zip(self, other, strict=True))
        )

    __hash__ = None  # type: ignore[assignment]


class Coded(Lazy):
    """A sequence of texts with few distinct values: ``labels[codes[i]]``."""

    __slots__ = ("codes", "labels")

    def __init__(self, codes: NDArray[np.unsignedinteger[Any]], labels: tuple[str, ...]) -> None:
        super().__init__(len(codes), lambda i: labels[codes[i]])
        self.codes, self.labels = codes, labels

    @classmethod
    def of(cls, texts: Sequence[str]) -> Coded:
        """A Coded of these texts; a Coded is returned unchanged."""
        if isinstance(texts, Coded):
            return texts
        code = {label: number for number, label in enumerate(dict.fromkeys(texts))}
        # One byte a task is enough for up to 255 kinds; a saved run may name more.
        width = np.min_scalar_type(len(code))
        codes = np.fromiter((code[text] for text in texts), width, len(texts))
        return cls(codes, tuple(code))

    def __iter__(self) -> Iterator[str]:
        return map(self.labels.__getitem__, self.codes.tolist())

    def __reduce__(self) -> Any:
        return Coded, (self.codes, self.labels)

    def count(self, value: Any) -> int:
        """The number of times that a text occurs."""
        codes = [code for code, label in enumerate(self.labels) if label == value]
        return int(np.isin(self.codes, codes).sum())


@dataclass(frozen=True, slots=True)
class Resource:
    """A serial queue: one task at a time, in the order of its policy (fifo, priority or fixed).

    ``sequence`` holds the tasks of a fixed queue in their order; ``device`` is the index of the
    device to which the queue belongs (-1: a link).
    """

    name: str
    policy: str = "fifo"
    sequence: tuple[int, ...] = ()
    device: int = -1


NUMBERS = ("op", "output", "source", "destination", "duration", "lag", "gap", "priority", "bytes")
"""The names of the integer columns of Tasks."""


@dataclass(frozen=True, slots=True, eq=False)
class Tasks:
    """Columns of all tasks, one row each. The row number is the task's id, which breaks ties.

    ``duration``, ``lag`` and ``gap`` are in ps. ``resources`` are the queues held, ``successors``
    the tasks released at finish + lag. A flow (``flow`` true) holds no resource: ``duration`` is
    its latency before its ``bytes`` enter the half-links ``links``. ``op`` is the row of the op
    that runs or whose output is sent (-1: none), ``output`` the number of that output (-1: a
    control input). ``source`` and ``destination`` are device indices (equal for compute; the first
    of several destinations for a multicast). ``load`` holds the bytes by which noise has a flow
    keep its links busy instead of its own ``bytes`` (None: there is no noise).
    """

    name: Sequence[str]
    kind: Sequence[str]
    op: Ints
    output: Ints
    source: Ints
    destination: Ints
    duration: Ints
    lag: Ints
    gap: Ints
    priority: Ints
    bytes: Ints
    flow: NDArray[np.bool_]
    resources: Rows
    links: Rows
    successors: Rows
    load: Ints | None = None

    def __len__(self) -> int:
        return len(self.name)

    @property
    def carried(self) -> Ints:
        """The bytes with which each flow keeps its links busy."""
        return self.bytes if self.load is None else self.load


@dataclass(frozen=True, slots=True, eq=False)
class Buffers:
    """Columns of all buffers, one row each.

    A buffer lives on ``device`` from the start of its ``filler`` (PERSISTENT: from the beginning to
    the end) to the last finish of its ``readers``, or of its filler where it has none. ``kind``
    indexes BUFFER_KINDS. ``bytes`` is the size that counts, ``requested`` the size of the tensor
    itself where a memory model rounds it (None: all are equal).
    """

    name: Sequence[str]
    device: Ints
    bytes: Ints
    kind: Ints
    filler: Ints
    readers: Rows
    requested: Ints | None = None

    @property
    def requested_bytes(self) -> Ints:
        """The sizes of the tensors themselves, before any rounding."""
        return self.bytes if self.requested is None else self.requested

    def __len__(self) -> int:
        return len(self.name)


@dataclass(frozen=True, slots=True, eq=False)
class Sharing:
    """Two sets of tasks that slow each other down: a task of one takes ``slowdown`` times longer
    while a task of the other runs at one of the same places.

    ``first`` and ``second`` list for each task its places as a member of that set (devices or
    links; both sets number them in the same way). Tasks beyond the end of the lists are in neither.
    """

    slowdown: Fraction
    first: Rows
    second: Rows


@dataclass(frozen=True, slots=True, eq=False)
class Stalls:
    """Pauses of devices. The pauses of device d begin at ``begins[d]`` ps and every ``every`` ps
    after that, and each lasts ``lasts`` ps. ``pausing`` marks the devices that pause at all.
    """

    begins: Ints
    every: int
    lasts: int
    pausing: NDArray[np.bool_]

    def finish(self, start: Ints, work: Ints, device: Ints) -> Ints:
        """The finish (ps) of ``work`` ps begun at ``start`` on ``device``, which rests in its
        pauses.
        """
        begins, moving = self.begins[device], self.every - self.lasts
        # ``until``: the moving time of the device first until ``start``, then until the end of
        # work.
        passed, into = np.divmod(np.maximum(start - begins, 0), self.every)
        until = np.where(start <= begins, start, begins + passed * moving)
        until = np.where(start > begins, until + np.maximum(into - self.lasts, 0), until) + work
        # Work that ends just as a pause begins does not wait for the pause.
        rests = np.maximum(-((begins - until) // moving), 0)
        return np.where(self.pausing[device], until + rests * self.lasts, start + work)


@dataclass(frozen=True, eq=False)
class TaskGraph:
    """The input of an engine.

    ``capacity`` is in bytes by device (-1: unlimited), ``bandwidth`` in bytes/s by half-link.

    With ``sharing`` or ``stalls``, ``duration`` holds the times of tasks alone and undisturbed; the
    executed tasks last longer (``slowed`` of ``simdev/execution/engine``).

    The tasks of ``steps`` training steps follow one another; dispatches of hosts come after all
    other tasks, equally many for each step. Either all steps have the same tasks in the same order,
    or they come in rounds of steps that differ: ``round`` is then the number of tasks of each step
    of a round, and all steps begin with the same tasks. ``groups`` holds, by op, the size of the
    group of a collective that joins more ranks than are simulated. Raises InputError where columns
    do not fit together or times could overflow.
    """

    tasks: Tasks
    resources: tuple[Resource, ...]
    buffers: Buffers
    devices: tuple[str, ...]
    capacity: Ints
    links: tuple[str, ...] = ()
    bandwidth: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    sharing: tuple[Sharing, ...] = ()
    stalls: Stalls | None = None
    steps: int = 1
    round: tuple[int, ...] = ()
    groups: Mapping[int, int] = FrozenDict()

    def __post_init__(self) -> None:
        refuse(self._problems())

    def _problems(self) -> Iterable[str]:
        tasks, count = self.tasks, len(self.tasks)
        for name in ("duration", "lag", "gap", "bytes"):
            column = getattr(tasks, name)
            if len(column) != count or (column < 0).any():
                yield f"tasks.{name}: must hold {count} numbers >= 0"
        limits = (
            ("resources", len(self.resources)),
            ("links", len(self.links)),
            ("successors", count),
        )
        for name, limit in limits:
            rows = getattr(tasks, name)
            if len(rows) != count or ((rows.ids < 0) | (rows.ids >= limit)).any():
                yield f"tasks.{name}: must hold {count} lists of numbers under {limit}"
        requested = self.buffers.requested_bytes
        if len(requested) != len(self.buffers) or (requested < 0).any():
            yield f"buffers.requested: must hold {len(self.buffers)} numbers >= 0"
        if self.total_ps >= MAX_PS:
            yield "tasks: all times together exceed 53 days"
        if _total(self.buffers.bytes) >= 2**62:
            yield "buffers: all sizes together exceed 2^62 bytes"
        yield from self._order_problems()

    @cached_property
    def total_ps(self) -> float:
        """Picoseconds of all tasks one after another, which no schedule exceeds."""
        tasks = self.tasks
        return _total(tasks.duration, tasks.lag, tasks.gap) + self._flow_ps()

    def _flow_ps(self) -> float:
        """The sum in ps of the durations of all flows, each alone on its links. Sharing links never
        makes all flows together last longer than this.
        """
        links = self.tasks.links
        owners, ids = links.owners(), links.ids
        if not len(ids) or ids.max() >= len(self.bandwidth):
            return 0.0
        slowest = np.full(len(self.tasks), np.inf)
        np.minimum.at(slowest, owners, self.bandwidth[ids])
        return float((self.tasks.carried / slowest)[self.tasks.flow].sum()) * PS_PER_SECOND

    def _order_problems(self) -> Iterable[str]:
        count = len(self.tasks)
        if self.round and (self.steps < 1 or self.steps % len(self.round)):
            yield f"round: {self.steps} steps are no rounds of {len(self.round)} steps"
        elif self.round and self.rounds * sum(self.round) != self.first_dispatch:
            yield (
                f"round: {self.first_dispatch} tasks are no {self.rounds} rounds of "
                f"{sum(self.round)} tasks each"
            )
        elif self.steps < 1 or (count - (self.first_dispatch if self.round else 0)) % self.steps:
            yield f"steps: {count} tasks are no {self.steps} steps of as many tasks each"
        for resource in self.resources:
            if resource.policy == "fixed" and len(set(resource.sequence)) != len(resource.sequence):
                yield f'resources["{resource.name}"]: a task stands twice in the sequence'

    @property
    def is_stretched(self) -> bool:
        """Whether tasks may last longer than their ``duration``."""
        return bool(self.sharing) or self.stalls is not None

    @cached_property
    def kinds(self) -> Coded:
        """The kinds of the tasks as a Coded, since a report reads them dozens of times."""
        return Coded.of(self.tasks.kind)

    def of_kind(self, *wanted: str) -> NDArray[np.bool_]:
        """True for each task of these kinds."""
        is_wanted = np.array([label in wanted for label in self.kinds.labels], np.bool_)
        chosen: NDArray[np.bool_] = is_wanted[self.kinds.codes]
        return chosen

    @cached_property
    def first_dispatch(self) -> int:
        """The row of the first dispatch; the number of tasks where no host dispatches."""
        kind = self.tasks.kind
        # Dispatches come last, so in most graphs the last task settles it.
        if not len(kind) or kind[-1] != DISPATCH:
            return len(kind)
        return len(kind) - kind.count(DISPATCH)

    @property
    def rounds(self) -> int:
        """The number of rounds; where all steps are equal, each step is a round."""
        return self.steps // max(len(self.round), 1)

    @cached_property
    def step_begins(self) -> Ints:
        """The row at which each step begins, and the row after the last step, dispatches aside."""
        sizes = self.round or (self.first_dispatch // self.steps,)
        return np.cumsum((0, *sizes * self.rounds))

    @property
    def whole_step(self) -> slice:
        """The rows of a step that has all kinds of tasks: the last step of the first round."""
        length = self.steps // self.rounds
        return slice(*self.step_begins[length - 1 : length + 1].tolist())

    def by_round(self, column: Ints) -> Ints:
        """A column of the tasks with one row for each round; dispatches come behind other tasks."""
        first = self.first_dispatch
        parts = column[:first].reshape(self.rounds, -1), column[first:].reshape(self.rounds, -1)
        return np.concatenate(parts, axis=1) if parts[1].size else parts[0]

    @cached_property
    def predecessor_count(self) -> Ints:
        """The number of tasks that each task waits for."""
        return np.bincount(self.tasks.successors.ids, minlength=len(self.tasks)).astype(np.int64)

    @cached_property
    def predecessors(self) -> Rows:
        """The reverse of ``successors``."""
        successors = self.tasks.successors
        order = np.argsort(successors.ids, kind="stable")
        ptr = np.concatenate(([0], np.cumsum(self.predecessor_count))).astype(np.int64)
        return Rows(ptr, successors.owners()[order])

    def __repr__(self) -> str:
        return (
            f"TaskGraph({len(self.tasks)} tasks, {len(self.resources)} resources, "
            f"{len(self.buffers)} buffers)"
        )


def _total(*columns: Ints) -> int:
    """The sum of all numbers in the columns. Small sums are approximate; where int64 could overflow
    the sum is exact, which takes long for millions of numbers.
    """
    about = sum(float(column.sum(dtype=np.float64)) for column in columns)
    return int(about) if about < 2**61 else sum(sum(column.tolist()) for column in columns)
