"""The code shared by the oracle's two kernels: instants, the heap of events, queues, transfers.

An instant is an integer for the pair (time, round) of the execution contract: ``first + (ps << bits
| round)``; integers below ``first`` are the rounds of time 0, in which all leaves of a graph run. A
key is an instant, counted from an epoch, with an entry in its low ``id_bits``: a ready task, or
(``tasks`` + its number) a task whose transfers are due. A *task* is an op of a placement, or a part
or sum of a split op. Each kernel has a named tuple with the columns of ``Heap`` among others; Numba
compiles these functions for each kernel.

Rules 2 to 4 of the contract (lags, gaps, rounds, queues) are also implemented in
``execution.engine`` and ``execution.check``, without shared code. ``serve`` and ``send`` serve the
queues of both kernels; only multicasts (``placements/step.py``) and collectives (``splits/run.py``)
are served elsewhere.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from ..ground.jit import jitable
from ..nouns.taskgraph import Ints

LATE, NONE = 2**63 - 1, -1
KEY_BITS = 62
# Cells of a heap: its size, a key kept beside it, the instant from which keys count, the key taken
# last (the current key), and whether instants were too far apart for keys. A kernel may have more.
SIZE, BESIDE, EPOCH, KEY, FAULT, CELLS = range(6)
FAR = 1  # the value of FAULT for instants too far apart
NOTHING, PAIRS, SEVERAL = range(3)  # queues that a transfer holds: none; one or two; any number
# Values of ``missing`` for a task that was taken up: TAKEN, and while it waits in a line to send,
# LAST (it is the last of the line) or LAST - 1 - (the task behind it).
TAKEN, LAST = -1, -2


class Keys(Protocol):
    """The columns of a heap of keys alone."""

    @property
    def cell(self) -> Ints:
        """The scalars of a run."""

    @property
    def heap(self) -> Ints:
        """The keys, with room for one more than ever wait together."""


class Heap(Keys, Protocol):
    """The columns that the heap of a run's events needs."""

    @property
    def id_bits(self) -> int:
        """Bits of a key for the entry."""

    @property
    def horizon(self) -> int:
        """The difference that instants on the heap must stay below, to fit a key with an entry."""

    @property
    def bits(self) -> int:
        """Bits of an instant for its round."""

    @property
    def first(self) -> int:
        """The first instant after the rounds of time 0; a multiple of ``1 << bits``."""

    @property
    def missing(self) -> Ints:
        """By task: the number of releases that it still waits for; once taken up, TAKEN or its
        place in a line.
        """

    @property
    def when(self) -> Ints:
        """By task: the instant at which it is ready, as far as known; once taken up, its finish
        while its transfers are due.
        """

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
    """The difference that instants must stay below in keys with entries of ``id_bits`` bits."""
    return 1 << (KEY_BITS - id_bits)


@jitable
def clear(h: Keys) -> None:
    """Empty the heap, at time 0."""
    cell = h.cell
    cell[SIZE], cell[BESIDE], cell[EPOCH], cell[KEY], cell[FAULT] = 0, LATE, 0, 0, 0


@jitable
def rise(h: Keys, at: int, key: int) -> None:
    """Move a key up from the hole at ``at`` to its place."""
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
    """Remove the smallest key: move the hole down to a leaf, then the last key up from there, for
    it belongs near the leaves (Wegener, Theoretical Computer Science 118, 1993).
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
    """Put a key on the heap; the smallest key so far stays beside the heap, for it is often the
    next one taken, and then the heap needs no change.
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
    """Remove and return the smallest key, which becomes the current one; LATE if there is none."""
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
    """Move the epoch to the instant of the current key; returns ``instant`` counted from there.

    Where even this is too far, FAULT is set and the run goes on in a wrong order, to a result that
    is not used: a test in every loop would cost more than the rest of such a run.
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
    """Put an entry on the heap for an instant."""
    since = instant - h.cell[EPOCH]
    if since >= h.horizon:
        since = recount(h, instant)
    add(h, since << h.id_bits | entry)


@jitable
def now(h: Heap) -> int:
    """The instant of the current key."""
    return h.cell[EPOCH] + (h.cell[KEY] >> h.id_bits)


@jitable
def after(h: Heap, instant: int, length: int) -> int:
    """The instant ``length`` ps later: the first round of the later time, or for 0 ps the next
    round of this time. FAULT is set where rounds do not fit their bits.
    """
    if length > 0:
        return (max(instant, h.first) >> h.bits << h.bits) + (length << h.bits)
    following = instant + 1
    if following >= h.first and following & ((1 << h.bits) - 1) == 0:
        h.cell[FAULT] = FAR
    return following


@jitable
def later(h: Heap, instant: int, length: int) -> int:
    """The instant a lag or gap of ``length`` ps later: the instant itself where it is 0."""
    return after(h, instant, length) if length > 0 else instant


@jitable
def ps_of(h: Heap, instant: int) -> int:
    """The time of an instant in ps."""
    return max(instant - h.first, 0) >> h.bits


@jitable
def serve(h: Heap, device: int, now: int, length: int, gap: int) -> tuple[int, int]:
    """Let a task of ``length`` ps, ready ``now``, hold its device; returns its start and finish."""
    start = max(now, h.free[device])
    finish = after(h, start, length)
    h.free[device] = later(h, finish, gap) if length > 0 else finish
    return start, finish


# Transfers. ``q`` has the columns of ``cluster.Routes`` among others.


@jitable
def take_off(left: Ints | None, queue: int, length: int) -> int:
    """Subtract ``length`` from the ps of tasks that a queue has still to serve; returns the ps
    before (0 where ``left`` is None: they are not counted).
    """
    if left is None:
        return 0
    before = left[queue]
    left[queue] = before - length
    return before


@jitable
def send(
    h: Heap, q: Any, left: Ints | None, route: int, length: int, now: int
) -> tuple[int, int, int, int]:
    """Let a transfer of ``length`` ps, ready ``now``, go over a route; returns its start, finish
    and release, and the most ps that one of its queues has ``left``.
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
    """Release a task at an instant; its last release makes it ready."""
    ready = max(h.when[task], instant)
    h.when[task] = ready
    missing = h.missing[task] - 1
    h.missing[task] = missing
    if missing == 0:
        push(h, ready, task)


@jitable
def wait_to_send(h: Heap, tasks: int, task: int, device: int, finish: int) -> None:
    """Let a task send its transfers when it finishes.

    The tasks of a device finish in the order in which they are taken up. So they form a line, of
    which only the first is on the heap, which stays small (a graph may have a thousand roots).
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
    """Remove the first task of a device's line, and put the task behind it on the heap."""
    other = LAST - 1 - h.missing[task]
    h.missing[task] = TAKEN
    if other < 0:
        h.line_end[device] = NONE
    else:
        push(h, h.when[other], tasks + other)
