"""The section of a report on memory, where a scenario counts it in another way than rule 7 of
ARCHITECTURE.md; and a replay of PyTorch's caching allocators over the step of a trace.

Where memory is counted as PyTorch counts it (``MemoryModel.framework``), steps are replayed one
after another until two successive steps are alike. Buffers live as in a training loop. Parameters,
the batch and workspaces of BLAS are allocated once, the optimizer's state at the first update.
Gradients live until ``zero_grad`` drops them all, before the next step. Half of an update's
temporaries live longer: a variable of the optimizer's loop keeps them until the next update has
made its own (torch/optim/adam.py, ``_single_tensor_adam``). Under every other way of counting a
single step is replayed, from an empty cache.

``report/report.py`` makes the section; only tests call ``allocator_use`` beside it. The buffers and
their bytes are decided earlier, by ``nouns/memory.py`` (``MemoryModel``) and ``lowering/build.py``.
Only PyTorch's rounding and its cache are added here.
Guarded by ``tests/memory/test_memory_allocator.py`` (the allocator), and there
``test_memory_framework.py``, ``test_memory_model.py`` and ``test_memory_files.py``.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from ...ground.units import format_bytes, format_ps
from ...nouns.graph import PHASES
from ...nouns.memory import MemoryModel
from ...nouns.taskgraph import BUFFER_KINDS, DISPATCH, OUTSIDE, PERSISTENT, Bools, Ints, TaskGraph
from ...nouns.trace import Trace
from ..table import BYTES, NUMBER, TEXT, Json, Table
from .section import Places, Section, Step
from .usage import DEVICES_SHOWN

# PyTorch's caching allocator for CUDA, for one device and one stream.
# The rules are those of c10/cuda/CUDACachingAllocator.cpp with its default settings (or with
# expandable segments). Sizes round up to 512 bytes. Up to 1 MiB they come from segments of 2 MiB;
# larger ones from segments of 20 MiB or, from 10 MiB on, of their own size rounded up to 2 MiB.
# A request is served by the smallest free block that is large enough, on a tie by the block at the
# lowest address. The block is split where the rest is large enough to keep: 512 bytes in small
# segments, more than 1 MiB in large ones. A block that is freed merges with its free neighbours;
# segments stay reserved. Where memory runs out, segments that are free as a whole are given back,
# and the request is tried again.

BLOCK = 512  # bytes; every size is a multiple of it
SMALL = 2**20  # the largest size served from small segments
SMALL_SEGMENT, LARGE_SEGMENT, ROUND_LARGE = 2 * 2**20, 20 * 2**20, 2 * 2**20
OWN_SEGMENT = 10 * 2**20  # a request from this size on gets a segment of its own size
ADDRESSES = 2**63  # addresses of each pool, far more than any device reserves


class _Pool:
    """The segments of small or of large blocks, and the free blocks in them.

    Segments lie apart, so that blocks whose addresses meet are neighbours in one segment.
    """

    def __init__(self, base: int, small: bool) -> None:
        self.base, self.small = base, small
        self.least_rest = BLOCK if small else SMALL + 1
        self.free: list[tuple[int, int]] = []  # (size, address), sorted
        # Free blocks by both ends, so that a freed block finds its neighbours at once.
        self.size_at: dict[int, int] = {}
        self.start_of: dict[int, int] = {}  # of the free block that ends there
        self.segments: dict[int, int] = {}
        self.top = base

    def put(self, address: int, size: int) -> None:
        """Adds a free block, merged with its free neighbours."""
        before = self.start_of.get(address)
        if before is not None:
            size += self.remove(before)
            address = before
        if address + size in self.size_at:
            size += self.remove(address + size)
        insort(self.free, (size, address))
        self.size_at[address], self.start_of[address + size] = size, address

    def remove(self, address: int) -> int:
        """Removes a block from the free ones; returns its size."""
        size = self.size_at.pop(address)
        del self.start_of[address + size]
        del self.free[bisect_left(self.free, (size, address))]
        return size

    def best(self, size: int) -> int | None:
        """The place in ``free`` of the block that serves a request (None: there is none)."""
        # No address is below 0, so this is the first block of the size, with the lowest address.
        place = bisect_left(self.free, (size, -1))
        return place if place < len(self.free) else None

    def take(self, size: int) -> tuple[int, int] | None:
        """Takes a free block that is large enough: (address, size), or None."""
        place = self.best(size)
        if place is None:
            return None
        size, address = self.free[place]
        self.remove(address)
        return address, size

    def cut(self, address: int, block: int, size: int) -> int:
        """Split a block where the rest is large enough to keep; returns the size that is used."""
        if block - size < self.least_rest:
            return block
        self.put(address + size, block - size)
        return size

    def grow(self, size: int, room: int) -> tuple[int, int, int] | None:
        """(address, size, bytes newly reserved) of a new block; None where it needs more than
        ``room``.
        """
        segment = SMALL_SEGMENT if self.small else LARGE_SEGMENT
        if not self.small and size >= OWN_SEGMENT:
            segment = -(-size // ROUND_LARGE) * ROUND_LARGE
        if segment > room:
            return None
        address = self.top
        self.segments[address] = segment
        self.top += segment + BLOCK  # a gap: blocks of two segments must never merge
        return address, segment, segment

    def release(self) -> int:
        """Give back every segment that is entirely free; returns their bytes."""
        # A segment is entirely free where a free block begins with it and has its size.
        idle = [start for start, size in self.segments.items() if self.size_at.get(start) == size]
        for start in idle:
            self.remove(start)
        return sum(self.segments.pop(start) for start in idle)


class _Expandable(_Pool):
    """A pool with a single segment that grows by pages of 2 MiB (small blocks) or 20 MiB. Pages can
    be unmapped anywhere in it.
    """

    def __init__(self, base: int, small: bool) -> None:
        super().__init__(base, small)
        self.least_rest = BLOCK
        self.page = SMALL_SEGMENT if small else LARGE_SEGMENT
        self.unmapped = {base: base + ADDRESSES}  # start: end

    def reach(self, place: int) -> int:
        """The size to which a free block could grow."""
        size, address = self.free[place]
        end = address + size
        return size + self.unmapped.get(end, end) - end

    def best(self, size: int) -> int | None:
        """The place of the smallest block that serves. A block that could grow counts with the size
        to which it could grow, so it is the last choice.
        """
        place = super().best(size)
        while (
            place is not None
            and place + 1 < len(self.free)
            and self.reach(place + 1) < self.reach(place)
        ):
            place += 1
        return place

    def grow(self, size: int, room: int) -> tuple[int, int, int] | None:
        """Map pages at the lowest address where, with the free blocks around, they make a block
        that is large enough.
        """
        begin = next(begin for begin in self._begins() if self._span(begin, size) >= size)
        at, holes = begin, []
        while at - begin < size:
            if at in self.size_at:
                at += self.size_at[at]
            else:
                pages = -(-(size - (at - begin)) // self.page) * self.page
                holes.append((at, min(at + pages, self.unmapped[at])))
                at = holes[-1][1]
        mapped = sum(end - start for start, end in holes)
        if mapped > room:
            return None
        for start, end in holes:
            last = self.unmapped.pop(start)
            if end < last:
                self.unmapped[end] = last
            self.put(start, end - start)
        return begin, self.remove(begin), mapped

    def _begins(self) -> list[int]:
        """The addresses where a grown block could begin: each hole, or the free block before it."""
        return [self.start_of.get(start, start) for start in sorted(self.unmapped)]

    def _span(self, begin: int, size: int) -> int:
        """The contiguous free and unmapped bytes from ``begin`` on, counted up to ``size``."""
        at = begin
        while at - begin < size and (at in self.size_at or at in self.unmapped):
            at = at + self.size_at[at] if at in self.size_at else self.unmapped[at]
        return at - begin

    def release(self) -> int:
        """Unmap every page that is entirely free; returns their bytes."""
        given = 0
        for size, address in list(self.free):
            start = self.base - (self.base - address) // self.page * self.page
            end = self.base + (address + size - self.base) // self.page * self.page
            if start < end:
                self.remove(address)
                for left, right in ((address, start), (end, address + size)):
                    if left < right:
                        self.put(left, right - left)
                last = self.unmapped.pop(end, end)
                first = next((hole for hole, edge in self.unmapped.items() if edge == start), start)
                self.unmapped[first] = last
                given += end - start
        return given


class Allocator:
    """One device's caching allocator; all sizes are bytes.

    ``limit`` is the most that it may reserve (None: no limit). ``requested``, ``allocated`` (whole
    blocks, like torch.cuda.memory_allocated) and ``reserved`` are current levels. ``flushes``
    counts how often it gave its cache back for lack of memory, ``failures`` the requests that still
    exceeded the limit, which are served all the same.
    """

    def __init__(self, limit: int | None = None, expandable: bool = False) -> None:
        kind = _Expandable if expandable else _Pool
        self._small, self._large = kind(0, True), kind(2 * ADDRESSES, False)
        self._limit = ADDRESSES if limit is None else limit
        self._live: dict[int, tuple[int, int]] = {}
        self.requested = self.allocated = self.reserved = self.flushes = self.failures = 0

    def allocate(self, size: int) -> int:
        """Serve a request of ``size`` > 0 bytes; returns the address."""
        # The size rounded up to whole blocks chooses the pool, as in get_pool of the original.
        need = -(-size // BLOCK) * BLOCK
        pool = self._small if need <= SMALL else self._large
        address, block = pool.take(need) or self._grown(pool, need)
        used = pool.cut(address, block, need)
        self._live[address] = size, used
        self.requested, self.allocated = self.requested + size, self.allocated + used
        return address

    def _grown(self, pool: _Pool, need: int) -> tuple[int, int]:
        grown = pool.grow(need, self._limit - self.reserved)
        if grown is None:
            self.flushes += 1
            self.reserved -= self._small.release() + self._large.release()
            grown = pool.grow(need, self._limit - self.reserved)
        # Served all the same, so that the replay can go on; the failure is counted.
        if grown is None:
            self.failures += 1
            grown = pool.grow(need, ADDRESSES)
        assert grown is not None
        self.reserved += grown[2]
        return grown[:2]

    def free(self, address: int) -> None:
        """Take back the block at an address."""
        size, used = self._live.pop(address)
        self.requested, self.allocated = self.requested - size, self.allocated - used
        (self._small if address < 2 * ADDRESSES else self._large).put(address, used)


# The most steps that are replayed. A cache may never settle: then the peaks are the last step's,
# and the report does not say so.
MOST_STEPS = 8
# The most tensors that an optimizer keeps for a parameter (Adam's two moments). A state with more
# bytes has another dtype, so it counts as a single tensor.
MOST_TENSORS = 2
UPDATE = PHASES[-1]
KIND = {name: row for row, name in enumerate(BUFFER_KINDS)}
Event = tuple[int, bool, int]
"""(ps, whether the event allocates or frees, buffer)."""


@dataclass(frozen=True, slots=True)
class AllocatorUse:
    """The caching allocator of one device over a step: peaks in bytes.

    ``requested`` <= ``allocated`` (whole blocks) <= ``reserved``; ``outside`` is memory outside the
    allocator (context, communication). ``flushes`` as in Allocator; ``failed`` is the first request
    beyond the limit, as (ps, buffer, bytes). ``between`` is the memory that stays allocated from
    step to step (None: a single step was replayed, from an empty cache).
    """

    device: str
    requested: int
    allocated: int
    reserved: int
    outside: int
    flushes: int
    failed: tuple[int, str, int] | None
    between: int | None = None

    def to_json(self) -> Json:
        """The peaks of one device."""
        failed = self.failed and dict(zip(("time_ps", "buffer", "bytes"), self.failed, strict=True))
        between = {} if self.between is None else {"between_steps_bytes": self.between}
        sizes = ("requested", "allocated", "reserved", "outside")
        peaks = {f"{name}_bytes": getattr(self, name) for name in sizes}
        return between | peaks | {"flushes": self.flushes, "failed": failed}


def allocator_use(
    trace: Trace, expandable: bool = False, steady: bool = False
) -> tuple[AllocatorUse, ...]:
    """The use of the allocators of all devices, in the order of the cluster; ``steady`` replays
    several steps in a row.

    At an instant frees come before allocations, and allocations in the order of the tasks that fill
    the buffers.
    """
    replay = _StepsInARow if steady else _OneStep
    buffers, (begin, end) = trace.task_graph.buffers, trace.lifetimes
    counted = np.flatnonzero((end > begin) & (buffers.bytes > 0))
    counted = counted[np.argsort(buffers.device[counted], kind="stable")]
    devices = np.arange(len(trace.task_graph.devices) + 1)
    edges = np.searchsorted(buffers.device[counted], devices)
    parts = [counted[i:j] for i, j in pairwise(edges)]
    return tuple(replay(trace, i, rows, expandable).use() for i, rows in enumerate(parts))


class _OneStep:
    """The allocator of one device over a step, from an empty cache; ``rows`` are the buffers that
    take memory there.
    """

    def __init__(self, trace: Trace, device: int, rows: Ints, expandable: bool) -> None:
        self.trace, self.device = trace, device
        self.buffers, capacity = trace.task_graph.buffers, int(trace.task_graph.capacity[device])
        beside = np.isin(self.buffers.kind[rows], [KIND[kind] for kind in OUTSIDE])
        self.outside = int(self.buffers.bytes[rows[beside]].sum())
        self.rows = rows[~beside]
        # The allocator rounds sizes itself, so it gets the exact sizes of the tensors.
        sizes = self.buffers.requested_bytes[self.rows].tolist()
        self.size_of = dict(zip(self.rows.tolist(), sizes, strict=True))
        room = None if capacity < 0 else max(capacity - self.outside, 0)
        self.allocator = Allocator(room, expandable)
        self.address: dict[int, list[int]] = {}
        self.failed: tuple[int, str, int] | None = None
        self.requested = self.allocated = self.reserved = 0
        self.between: int | None = None

    def use(self) -> AllocatorUse:
        """Replays the step and returns the peaks."""
        self.replay()
        name, flushes = self.trace.task_graph.devices[self.device], self.allocator.flushes
        peaks = self.requested, self.allocated, self.reserved, self.outside
        return AllocatorUse(name, *peaks, flushes, self.failed, self.between)

    def replay(self) -> None:
        """Runs all allocations and frees of the step."""
        for time, allocates, row in self.events(self.rows):
            if allocates:
                self.take(row, time)
            else:
                self.give(row)

    def events(self, rows: Ints) -> list[Event]:
        """The events in their order; a task's workspace comes after its outputs, as in PyTorch's
        operators.
        """
        begin, end = self.trace.lifetimes
        times = np.concatenate((end[rows], begin[rows]))
        both, allocates = np.concatenate((rows, rows)), np.arange(2 * len(rows)) >= len(rows)
        space = self.buffers.kind[both] == KIND["workspace"]
        order = np.lexsort((both, space, self.buffers.filler[both], allocates, times))
        columns = times[order].tolist(), allocates[order].tolist(), both[order].tolist()
        return list(zip(*columns, strict=True))

    def take(self, row: int, time: int, pieces: Sequence[int] = ()) -> None:
        """Allocate a buffer, in several pieces where ``pieces`` has their sizes."""
        allocator, sizes = self.allocator, pieces or (self.size_of[row],)
        self.address[row] = [allocator.allocate(size) for size in sizes if size]
        if allocator.failures and self.failed is None:
            self.failed = max(time, 0), self.buffers.name[row], sum(sizes)
        self.requested = max(self.requested, allocator.requested)
        self.allocated = max(self.allocated, allocator.allocated)
        self.reserved = max(self.reserved, allocator.reserved)

    def give(self, row: int) -> None:
        """Free a buffer."""
        for address in self.address.pop(row, ()):
            self.allocator.free(address)


@dataclass(frozen=True, slots=True)
class _Step:
    """The buffers of a device in one step of a training loop, by how long they live.

    ``lasting`` buffers exist before the first step and stay, in the order in which they are made.
    ``states`` (buffers with the sizes of their pieces) exist from the first update on, which starts
    at ``first_update`` (ps). ``passing`` buffers live within a step; among them ``gradients``,
    which are freed when the next step begins, and the ``temporaries`` of updates.
    """

    lasting: tuple[int, ...]
    states: Mapping[int, tuple[int, ...]]
    first_update: int
    passing: Ints
    gradients: frozenset[int]
    temporaries: frozenset[int]

    @classmethod
    def of(cls, trace: Trace, device: int, rows: Ints) -> _Step:
        """``rows`` are the device's buffers that count."""
        tasks, buffers = trace.task_graph.tasks, trace.task_graph.buffers
        updates = trace.task_graph.of_kind(UPDATE)
        sent = trace.task_graph.of_kind(DISPATCH)
        # From a trace of several steps the first step (or round) suffices.
        rows = rows[buffers.filler[rows] < int((~sent).sum()) // trace.task_graph.rounds]
        filler, kind = buffers.filler[rows], buffers.kind[rows]
        held = filler == PERSISTENT
        leaf = ~held & _given(trace.task_graph, sent)[filler]
        state = held & (kind == KIND["optimizer state"])
        space = held & (kind == KIND["workspace"])
        lasting = np.concatenate((rows[held & ~state & ~space], rows[leaf], rows[space]))
        passing = rows[~held & ~leaf]
        read = buffers.readers.owners()[updates[buffers.readers.ids]]
        starts = trace.start[updates & (tasks.source == device)]
        return cls(
            tuple(lasting.tolist()),
            {row: _tensors(trace.task_graph, row) for row in rows[state].tolist()},
            int(starts.min(initial=trace.end_ps)),
            passing,
            frozenset(np.intersect1d(read, passing).tolist()),
            frozenset(passing[updates[buffers.filler[passing]]].tolist()),
        )


def _given(task_graph: TaskGraph, sent: Bools) -> Bools:
    """A mask of the tasks of the batch, whose buffers exist before the step and stay. Such a task
    takes no time and waits for nothing but its dispatch; ``sent`` marks the tasks that dispatch.
    """
    tasks = task_graph.tasks
    waits = tasks.successors.ids[~sent[tasks.successors.owners()]]
    given: Bools = np.bincount(waits, minlength=len(tasks)) == 0
    given &= (tasks.duration == 0) & ~sent
    return given


def _tensors(task_graph: TaskGraph, state: int) -> tuple[int, ...]:
    """The bytes of each tensor of an optimizer's state: several tensors as large as the parameter,
    whose buffer comes just before the state's, or a single tensor.
    """
    sizes = task_graph.buffers.requested_bytes
    whole, parameter = int(sizes[state]), int(sizes[state - 1]) if state else 0
    count, rest = divmod(whole, parameter) if parameter else (1, 0)
    return (parameter,) * count if not rest and count <= MOST_TENSORS else (whole,)


class _StepsInARow(_OneStep):
    """The allocator of one device over steps of a training loop, until a step repeats the last."""

    def replay(self) -> None:
        """Allocate the lasting buffers, then replay step after step."""
        if not len(self.rows):  # saves a look at all tasks for each of thousands of idle devices
            self.between = 0
            return
        step, before = _Step.of(self.trace, self.device, self.rows), None
        events = self.events(step.passing)
        for row in step.lasting:
            self.take(row, 0)
        for _ in range(MOST_STEPS):
            # Peaks are per step, as after torch.cuda.reset_peak_memory_stats.
            self.between = self.allocated = self.allocator.allocated
            self.requested = self.allocator.requested
            self._run(step, events)
            after = self.between, self.requested, self.allocated, self.reserved
            if after == before:
                break
            before = after

    def _run(self, step: _Step, events: Sequence[Event]) -> None:
        """Replays one step of several."""
        kept: list[int] = []
        for time, allocates, row in events:
            if (time, allocates) >= (step.first_update, True):
                self._make_states(step)
            if row in step.temporaries:
                kept = self._update(row, time, allocates, kept)
            elif allocates:
                self.take(row, time)
            elif row not in step.gradients:
                self.give(row)
        self._make_states(step)
        for address in kept:
            self.allocator.free(address)
        for row in step.gradients:
            self.give(row)

    def _make_states(self, step: _Step) -> None:
        for row, tensors in step.states.items():
            if row not in self.address:
                self.take(row, step.first_update, tensors)

    def _update(self, row: int, time: int, begins: bool, kept: list[int]) -> list[int]:
        """Allocates or frees the temporaries of an update; returns the addresses that its loop
        keeps.
        """
        if begins:
            half = self.size_of[row] // 2
            self.take(row, time, (self.size_of[row] - half, half))
            return kept
        # The loop's variable now keeps the new tensor and frees the previous one.
        first, *others = self.address.pop(row)
        for address in (first, *kept):
            self.allocator.free(address)
        return others


@dataclass(frozen=True, slots=True)
class Footprint(Section):
    """The way memory was counted; where that includes PyTorch's rounding, the memory that its
    allocator reserves, by device.
    """

    name = "memory"
    places = Places(entries=70, tables=40, notes=50)

    memory: MemoryModel
    allocators: tuple[AllocatorUse, ...]

    @classmethod
    def of_step(cls, step: Step) -> Footprint | None:
        """The section, None where memory is counted by rule 7. There is an allocator for every
        device, also where another device was simulated in its place.
        """
        memory = step.outcome.memory
        if not memory.changes:
            return None
        if memory.unit == 1 or not step.replays:
            return cls(memory, ())
        uses = allocator_use(step.trace, memory.expandable, memory.is_pytorch)
        if step.alike is not None:
            uses = tuple(replace(use, device=name) for name, use in step.alike.spread(uses))
        return cls(memory, uses)

    @property
    def options(self) -> Json:
        """The options that differ from the defaults, ready for JSON."""
        return {
            name: value if isinstance(value, (str, int)) else _plain(value)
            for name, value in self.memory.changes.items()
        }

    def to_json(self) -> Json:
        """The options, and the allocators' peaks by device."""
        devices = {use.device: use.to_json() for use in self.allocators}
        return {"options": self.options} | ({"allocator": devices} if devices else {})

    def entries(self) -> Json:
        """The entry of the section, and the bytes that the allocator of each device holds."""
        devices = {
            use.device: {"allocated_bytes": use.allocated, "reserved_bytes": use.reserved}
            for use in self.allocators
        }
        return {self.name: self.to_json(), "devices": devices}

    def tables(self) -> Iterator[Table]:
        """The peaks of allocators that reserve memory, a row each."""
        rows = tuple(
            (
                use.device, use.requested, use.allocated, use.reserved, use.outside,
                use.reserved + use.outside, use.flushes,
            )
            for use in self.allocators
            if use.reserved
        )  # fmt: skip
        sizes = dict.fromkeys(("requested", "allocated", "reserved", "outside", "in all"), BYTES)
        title = f"PyTorch's caching allocator, peaks (outside it: {', '.join(OUTSIDE)})"
        yield Table(title, {"device": TEXT} | sizes | {"flushes": NUMBER}, rows)

    def notes(self) -> Iterator[str]:
        """The way memory was counted, and the allocators that reached their limit."""
        options = ", ".join(f"{name} {value}" for name, value in self.options.items())
        yield f"Memory is counted with {options}."
        troubled = [use for use in self.allocators if use.failed is not None or use.flushes]
        for use in troubled[:DEVICES_SHOWN]:
            if use.failed is not None:
                time_ps, buffer, size = use.failed
                yield (
                    f"{use.device}: at {format_ps(time_ps)} its allocator "
                    f"cannot serve {format_bytes(size)} for {buffer}, though cached segments were "
                    "given back."
                )
            else:
                yield (
                    f"{use.device}: its allocator gives cached segments back {use.flushes} times "
                    "for want of memory."
                )
        if len(troubled) > DEVICES_SHOWN:
            yield f"... and {len(troubled) - DEVICES_SHOWN:,} more devices."


def _plain(value: Any) -> Any:
    """A quantity (or quantities by kind of device) as text, ready for JSON."""
    if hasattr(value, "items"):
        return {kind: _plain(amount) for kind, amount in value.items()}
    return str(value)
