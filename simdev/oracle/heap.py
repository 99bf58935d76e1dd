"""The common ground of the oracle's two kernels: instants, the heap of events, queues, transfers.

An instant is one integer for the pair (time, round) of the execution contract: ``first + (ps <<
bits | round)``, and below ``first`` a round of time 0, where all leaves of a graph lie. A key is an
instant, counted from an epoch, with an entry in its low ``id_bits``: a task that is ready, or
(``tasks`` + its number) a task whose transfers are due. A *task* is an op of a placement, or a part
or sum of a split op. Every kernel has a named tuple of its own with the columns of ``Heap`` among
others; numba compiles these functions into each of them.

Rules 2 to 4 of the contract (lags, gaps, rounds, queues) are those of ``execution.engine`` and of
``execution.check``, which share no code with this module. How a queue is served (``serve``,
``send``) changes here for both kernels, but for a multicast and a collective: each of the kernels
has one of these.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from ..ground.jit import jitable
from ..nouns.taskgraph import Ints

LATE, NONE = 2**63 - 1, -1
KEY_BITS = 62
# Cells of a heap: its size, the key beside it, the instant from which keys count, the key taken
# last, and whether instants were too far apart for keys. A kernel may have more cells.
SIZE, BESIDE, EPOCH, KEY, FAULT, CELLS = range(6)
FAR = 1  # the fault
NOTHING, PAIRS, SEVERAL = range(3)  # queues that every transfer holds: none; one or two; others
# In ``missing``: the task has its start; it is the last of a line; LAST - 1 - task: that task is
# behind it in the line.
TAKEN, LAST = -1, -2


class Keys(Protocol):
    """The columns of a heap of keys alone."""

    @property
    def cell(self) -> Ints:
        """The scalars."""

    @property
    def heap(self) -> Ints:
        """The keys; room for one more than ever wait together."""


class Heap(Keys, Protocol):
    """The columns that the heap of a run's events needs."""

    @property
    def id_bits(self) -> int:
        """Bits of a key for the entry."""

    @property
    def horizon(self) -> int:
        """How far apart instants may be that wait together: what fits a key beside an entry."""

    @property
    def bits(self) -> int:
        """Bits of an instant for its round."""

    @property
    def first(self) -> int:
        """The first instant after the rounds of time 0; a multiple of ``1 << bits``."""

    @property
    def missing(self) -> Ints:
        """By task: waits that it still has, or its place by now (TAKEN, LAST)."""

    @property
    def when(self) -> Ints:
        """By task: when it is ready, as far as known; its finish while its transfers are due."""

    @property
    def line_end(self) -> Ints:
        """By device: the last task whose transfers are due, or NONE."""

    @property
    def free(self) -> Ints:
        """By queue: the instant from which it is free."""


def room(*sizes: int) -> list[Ints]:
    """Columns of zeros, of these lengths."""
    return [np.zeros(size, np.int64) for size in sizes]


def horizon_of(id_bits: int) -> int:
    """How far apart instants may be beside entries of so many bits."""
    return 1 << (KEY_BITS - id_bits)


@jitable
def clear(h: Keys) -> None:
    """Nothing waits, and no time has passed."""
    cell = h.cell
    cell[SIZE], cell[BESIDE], cell[EPOCH], cell[KEY], cell[FAULT] = 0, LATE, 0, 0, 0


@jitable
def rise(h: Keys, at: int, key: int) -> None:
    """Let a key rise from a hole to its place."""
    while at > 0:
        parent = (at - 1) >> 1
        above = h.heap[parent]
        if above < key:
            break
        h.heap[at] = above
        at = parent
    h.heap[at] = key


@jitable
def drop_top(h: Keys) -> None:
    """Take the first key off: walk the hole down, then the last key up (it belongs near the
    leaves; Wegener, Theoretical Computer Science 118, 1993).
    """
    heap = h.heap
    size = h.cell[SIZE] - 1
    h.cell[SIZE] = size
    key = heap[size]
    heap[size] = LATE  # so that the hole may look at one child too many
    at, child = 0, 1
    while child < size:
        child += heap[child + 1] < heap[child]
        heap[at] = heap[child]
        at, child = child, 2 * child + 1
    rise(h, at, key)


@jitable
def add(h: Keys, key: int) -> None:
    """Put a key on the heap, or beside it where it is the smallest: often it is the next one taken,
    and then the heap is not touched at all.
    """
    beside = h.cell[BESIDE]
    if key < beside:
        h.cell[BESIDE] = key
        key = beside
        if key == LATE:
            return
    at = h.cell[SIZE]
    h.cell[SIZE] = at + 1
    rise(h, at, key)


@jitable
def take(h: Keys) -> int:
    """The next key, off the heap or from beside it; LATE where nothing is left."""
    key = h.cell[BESIDE]
    if h.cell[SIZE] > 0 and h.heap[0] < key:
        key = h.heap[0]
        drop_top(h)
    else:
        h.cell[BESIDE] = LATE
    h.cell[KEY] = key
    return key


@jitable
def recount(h: Heap, instant: int) -> int:
    """Count instants from that of the key in hand on; returns ``instant``, so counted.

    Where even that is too far, FAULT is set and the run goes on in a wrong order, to an end that is
    not used: a test in every loop would cost more than the rest of such a run.
    """
    cell = h.cell
    shift = cell[KEY] >> h.id_bits
    cell[EPOCH], cell[KEY] = cell[EPOCH] + shift, cell[KEY] - (shift << h.id_bits)
    for at in range(cell[SIZE]):
        h.heap[at] -= shift << h.id_bits
    if cell[BESIDE] != LATE:
        cell[BESIDE] -= shift << h.id_bits
    since = instant - cell[EPOCH]
    if since >= h.horizon:
        cell[FAULT], since = FAR, h.horizon - 1
    return since


@jitable
def push(h: Heap, instant: int, entry: int) -> None:
    """Let an entry wait for an instant."""
    since = instant - h.cell[EPOCH]
    if since >= h.horizon:
        since = recount(h, instant)
    add(h, since << h.id_bits | entry)


@jitable
def now(h: Heap) -> int:
    """The instant of the key in hand."""
    return h.cell[EPOCH] + (h.cell[KEY] >> h.id_bits)


@jitable
def after(h: Heap, instant: int, length: int) -> int:
    """The instant ``length`` ps later: the first round of another time, or the next round of this
    one. FAULT is set where rounds do not fit their bits.
    """
    if length > 0:
        return (max(instant, h.first) >> h.bits << h.bits) + (length << h.bits)
    following = instant + 1
    if following >= h.first and following & ((1 << h.bits) - 1) == 0:
        h.cell[FAULT] = FAR
    return following


@jitable
def later(h: Heap, instant: int, length: int) -> int:
    """The instant a lag or gap of ``length`` ps later: unchanged where there is none."""
    return after(h, instant, length) if length > 0 else instant


@jitable
def ps_of(h: Heap, instant: int) -> int:
    """The time of an instant in ps."""
    return max(instant - h.first, 0) >> h.bits


@jitable
def serve(h: Heap, device: int, now: int, length: int, gap: int) -> tuple[int, int]:
    """A task of ``length`` ps that is ready ``now`` holds its device: its start and its finish."""
    start = max(now, h.free[device])
    finish = after(h, start, length)
    h.free[device] = later(h, finish, gap) if length > 0 else finish
    return start, finish


# What a transfer holds. ``q`` has the columns of ``cluster.Routes`` among others.


@jitable
def take_off(left: Ints | None, queue: int, length: int) -> int:
    """The ps that a queue has left (0: nobody counts them), before ``length`` of them begin."""
    if left is None:
        return 0
    before = left[queue]
    left[queue] = before - length
    return before


@jitable
def send(
    h: Heap, q: Any, left: Ints | None, route: int, length: int, now: int
) -> tuple[int, int, int, int]:
    """A transfer of ``length`` ps, ready ``now``, goes over a route: start, finish and release, and
    the most load that one of its queues has ``left``.
    """
    start, most = now, 0
    if q.holding == PAIRS:
        first, second = q.pair[2 * route], q.pair[2 * route + 1]
        start = max(start, h.free[first], h.free[second])
        finish = after(h, start, length)
        h.free[first] = h.free[second] = later(h, finish, q.route_gap[route])
        most = take_off(left, first, length)
        if left is not None and first != second:
            most = max(most, take_off(left, second, length))
    elif q.holding == NOTHING:
        finish = after(h, start, length)
    else:
        begin, end = q.queue_ptr[route], q.queue_ptr[route + 1]
        for e in range(begin, end):
            start = max(start, h.free[q.queue[e]])
        finish = after(h, start, length)
        free = later(h, finish, q.route_gap[route])
        for e in range(begin, end):
            h.free[q.queue[e]] = free
            most = max(most, take_off(left, q.queue[e], length))
    return start, finish, later(h, finish, q.route_lag[route]), most


# Tasks that wait.


@jitable
def release(h: Heap, task: int, instant: int) -> None:
    """One wait less for a task; the last one makes it ready."""
    ready = max(h.when[task], instant)
    h.when[task] = ready
    missing = h.missing[task] - 1
    h.missing[task] = missing
    if missing == 0:
        push(h, ready, task)


@jitable
def wait_to_send(h: Heap, tasks: int, task: int, device: int, finish: int) -> None:
    """A task's transfers are due when it finishes.

    The tasks of a device finish in the order in which they are taken up: they line up, and only the
    first of the line is on the heap: so it stays small (a graph may have a thousand roots).
    """
    h.when[task], h.missing[task] = finish, LAST
    last = h.line_end[device]
    if last == NONE:
        push(h, finish, tasks + task)
    else:
        h.missing[last] = LAST - 1 - task
    h.line_end[device] = task


@jitable
def next_to_send(h: Heap, tasks: int, task: int, device: int) -> None:
    """The first of a device's line is dealt with: the one behind it comes to the heap."""
    other = LAST - 1 - h.missing[task]
    h.missing[task] = TAKEN
    if other < 0:
        h.line_end[device] = NONE
    else:
        push(h, h.when[other], tasks + other)
