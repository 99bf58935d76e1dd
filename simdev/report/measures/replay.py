"""What PyTorch's caching allocators hand out over a step, from a trace.

Counted as PyTorch counts (``MemoryModel.framework``) steps are replayed in a row until nothing
changes any more, in the order in which a training loop allocates: parameters, the batch and BLAS's
workspaces once; the optimizer's state at the first update; gradients until ``zero_grad`` drops them
all, before the next step; an update's temporaries, the second half of which a variable of the
optimizer's loop keeps until the next update has made its own (torch/optim/adam.py,
``_single_tensor_adam``). Otherwise one step is replayed, from an empty cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...nouns.graph import PHASES
from ...nouns.taskgraph import BUFFER_KINDS, DISPATCH, OUTSIDE, PERSISTENT, Ints, TaskGraph
from ...nouns.trace import Trace
from .allocator import Allocator

MOST_STEPS = 8  # of a cache that does not settle
MOST_TENSORS = 2  # of a state that has the dtype of its parameter
UPDATE = PHASES[-1]
KIND = {name: row for row, name in enumerate(BUFFER_KINDS)}
Event = tuple[int, bool, int]
"""(ps, whether it allocates, buffer)."""


@dataclass(frozen=True, slots=True)
class AllocatorUse:
    """The caching allocator of one device over a step: peaks in bytes.

    ``requested`` <= ``allocated`` (whole blocks) <= ``reserved``; ``outside`` is what no allocator
    hands out (context, communication). ``flushes`` as in Allocator; ``failed`` is the first request
    that it could not serve, as (ps, buffer, bytes). ``between`` is what stays allocated from one
    step to the next (None: one step was replayed, from an empty cache).
    """

    device: str
    requested: int
    allocated: int
    reserved: int
    outside: int
    flushes: int
    failed: tuple[int, str, int] | None
    between: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The peaks of one device."""
        failed = self.failed and dict(zip(("time_ps", "buffer", "bytes"), self.failed, strict=True))
        between = {} if self.between is None else {"between_steps_bytes": self.between}
        return between | {
            "requested_bytes": self.requested,
            "allocated_bytes": self.allocated,
            "reserved_bytes": self.reserved,
            "outside_bytes": self.outside,
            "flushes": self.flushes,
            "failed": failed,
        }


def allocator_use(
    trace: Trace, expandable: bool = False, steady: bool = False
) -> tuple[AllocatorUse, ...]:
    """The allocators of all devices, in the order of the cluster; ``steady``: of steps in a row.

    At an instant frees come before allocations, and these in the order of the tasks that fill the
    buffers.
    """
    replay = _StepsInARow if steady else _OneStep
    devices = range(len(trace.task_graph.devices))
    return tuple(replay(trace, device, expandable).use() for device in devices)


class _OneStep:
    """The allocator of one device over a step, from an empty cache."""

    def __init__(self, trace: Trace, device: int, expandable: bool) -> None:
        self.trace, self.device = trace, device
        self.buffers, capacity = trace.task_graph.buffers, int(trace.task_graph.capacity[device])
        begin, end = trace.lifetimes
        here = (self.buffers.device == device) & (end > begin) & (self.buffers.bytes > 0)
        beside = np.isin(self.buffers.kind, [KIND[kind] for kind in OUTSIDE])
        self.outside = int(self.buffers.bytes[here & beside].sum())
        self.rows = np.flatnonzero(here & ~beside)
        # The allocator rounds sizes itself, so it is asked for what the tensors have.
        self.size_of = self.buffers.requested_bytes.tolist()
        self.allocator = Allocator(
            None if capacity < 0 else max(capacity - self.outside, 0), expandable
        )
        self.address: dict[int, list[int]] = {}
        self.failed: tuple[int, str, int] | None = None
        self.requested = self.allocated = self.reserved = 0
        self.between: int | None = None

    def use(self) -> AllocatorUse:
        """Replays, and tells the peaks."""
        self.replay()
        return AllocatorUse(
            self.trace.task_graph.devices[self.device],
            self.requested,
            self.allocated,
            self.reserved,
            self.outside,
            self.allocator.flushes,
            self.failed,
            self.between,
        )

    def replay(self) -> None:
        """All that the step allocates and frees."""
        for time, allocates, row in self.events(self.rows):
            if allocates:
                self.take(row, time)
            else:
                self.give(row)

    def events(self, rows: Ints) -> list[Event]:
        """In order: a task's workspace comes after its outputs, as PyTorch's operators allocate."""
        begin, end = self.trace.lifetimes
        times = np.concatenate((end[rows], begin[rows]))
        both, allocates = np.concatenate((rows, rows)), np.arange(2 * len(rows)) >= len(rows)
        space = self.buffers.kind[both] == KIND["workspace"]
        order = np.lexsort((both, space, self.buffers.filler[both], allocates, times))
        columns = times[order].tolist(), allocates[order].tolist(), both[order].tolist()
        return list(zip(*columns, strict=True))

    def take(self, row: int, time: int, pieces: Sequence[int] = ()) -> None:
        """Serve a buffer, in several pieces where these are told."""
        allocator, sizes = self.allocator, pieces or (self.size_of[row],)
        self.address[row] = [allocator.allocate(size) for size in sizes if size]
        if allocator.failures and self.failed is None:
            self.failed = max(time, 0), self.buffers.name[row], sum(sizes)
        self.requested = max(self.requested, allocator.requested)
        self.allocated = max(self.allocated, allocator.allocated)
        self.reserved = max(self.reserved, allocator.reserved)

    def give(self, row: int) -> None:
        """Take a buffer back."""
        for address in self.address.pop(row, ()):
            self.allocator.free(address)


@dataclass(frozen=True, slots=True)
class _Step:
    """What the buffers of a device are in one step of a training loop.

    ``lasting`` are there before the first step and stay, in the order in which they are made;
    ``states`` from the first update on, with the pieces of each, which starts at ``first_update``
    (ps); ``passing`` come and go in the step: ``gradients`` when the next one begins,
    ``temporaries`` of updates.
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
        # Of a trace of several steps the first will do; dispatches stand behind all steps.
        rows = rows[buffers.filler[rows] < int((~sent).sum()) // trace.task_graph.steps]
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


def _given(task_graph: TaskGraph, sent: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The tasks that stand for the batch, which is there before the step and stays: they take no
    time and wait for nothing but their dispatch (those that are ``sent``).
    """
    tasks = task_graph.tasks
    waits = tasks.successors.ids[~sent[tasks.successors.owners()]]
    given: NDArray[np.bool_] = np.bincount(waits, minlength=len(tasks)) == 0
    given &= (tasks.duration == 0) & ~sent
    return given


def _tensors(task_graph: TaskGraph, state: int) -> tuple[int, ...]:
    """The bytes of each tensor of an optimizer's state: several of the size of their parameter,
    whose buffer stands before it, or one.
    """
    sizes = task_graph.buffers.requested_bytes
    whole, parameter = int(sizes[state]), int(sizes[state - 1]) if state else 0
    count, rest = divmod(whole, parameter) if parameter else (1, 0)
    return (parameter,) * count if not rest and count <= MOST_TENSORS else (whole,)


class _StepsInARow(_OneStep):
    """The allocator of one device over steps of a training loop, until a step is like the last."""

    def replay(self) -> None:
        """What lasts, then step after step."""
        step, before = _Step.of(self.trace, self.device, self.rows), None
        events = self.events(step.passing)
        for row in step.lasting:
            self.take(row, 0)
        for _ in range(MOST_STEPS):
            # Peaks are those of one step, as after torch.cuda.reset_peak_memory_stats.
            self.between = self.allocated = self.allocator.allocated
            self.requested = self.allocator.requested
            self._run(step, events)
            after = self.between, self.requested, self.allocated, self.reserved
            if after == before:
                break
            before = after

    def _run(self, step: _Step, events: Sequence[Event]) -> None:
        """One step of several."""
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
        """The temporaries of an update; returns those that its loop keeps."""
        if begins:
            half = self.size_of[row] // 2
            self.take(row, time, (self.size_of[row] - half, half))
            return kept
        # The variable takes the new tensor, and lets go of the one before.
        first, *others = self.address.pop(row)
        for address in (first, *kept):
            self.allocator.free(address)
        return others
