"""The heap of what is ready and what is due to send, and the instants of its keys.

An instant is ``ps << ROUND_BITS | round``. On the heap it has fewer bits for rounds, of which only
the first instant has many: there all leaves lie. What does not fit ends the run with a fault.
"""

from __future__ import annotations

from ...jit import jitable
from .columns import Work

ROUND_BITS = 16
ROUND_MASK, FIRST = (1 << ROUND_BITS) - 1, 1 << ROUND_BITS
LATE = 2**63 - 1
TOO_LONG = 1 << 61
MOST_TASKS = 1 << 20
# Cells of Work: rows; the heap's size and the key beside it; the ps from which keys count, those of
# the key in hand; bits of rounds and of ids on the heap; how far apart instants may be; what went
# wrong; transfers; roots.
ROWS, SIZE, BESIDE, EPOCH, NOW, BITS, ID_BITS, HORIZON, FAULT, SENT, ROOTS = range(11)
CELLS = 11
TAKEN, LAST = -1, -2
FULL, FAR, LONG = 1, 2, 3
"""Faults: no room; instants too far apart for the bits of keys; too long."""


@jitable
def rise(w: Work, at: int, key: int) -> None:
    """Let a key rise from a hole to its place."""
    while at > 0:
        parent = (at - 1) >> 1
        above = w.heap[parent]
        if above < key:
            break
        w.heap[at] = above
        at = parent
    w.heap[at] = key


@jitable
def drop_top(w: Work) -> None:
    """Take the first key off the heap: walk the hole down, then the last key up (it belongs near
    the leaves).
    """
    size = w.cell[SIZE] - 1
    w.cell[SIZE] = size
    key = w.heap[size]
    w.heap[size] = LATE  # so that the hole may look at one child too many
    at, child = 0, 1
    while child < size:
        child += w.heap[child + 1] < w.heap[child]
        w.heap[at] = w.heap[child]
        at, child = child, 2 * child + 1
    rise(w, at, key)


@jitable
def since(w: Work, instant: int) -> int:
    """An instant as keys have it."""
    ps, turn = instant >> ROUND_BITS, instant & ROUND_MASK
    if ps == 0:
        return turn
    if turn >> w.cell[BITS]:
        w.cell[FAULT] = FAR
    return ((ps - w.cell[EPOCH]) << w.cell[BITS]) + FIRST + turn


@jitable
def rebase(w: Work, instant: int) -> int:
    """Count the keys' instants from now on; an instant, so counted.

    Where even that is too far, a fault.
    """
    shift = (w.cell[NOW] - w.cell[EPOCH]) << (w.cell[BITS] + w.cell[ID_BITS])
    w.cell[EPOCH] = w.cell[NOW]
    for at in range(w.cell[SIZE]):
        w.heap[at] -= shift
    if w.cell[BESIDE] != LATE:
        w.cell[BESIDE] -= shift
    found = since(w, instant)
    if found >= w.cell[HORIZON]:
        w.cell[FAULT], found = FAR, w.cell[HORIZON] - 1
    return found


@jitable
def push(w: Work, instant: int, task: int) -> None:
    """Put a task on the heap, or at its side where the smallest of the newest waits."""
    at = since(w, instant)
    if at >= w.cell[HORIZON]:
        at = rebase(w, instant)
    key, beside = at << w.cell[ID_BITS] | task, w.cell[BESIDE]
    if key < beside:
        w.cell[BESIDE] = key
        key = beside
        if key == LATE:
            return
    at = w.cell[SIZE]
    w.cell[SIZE] = at + 1
    rise(w, at, key)


@jitable
def take(w: Work) -> int:
    """The next key, off the heap or from beside it; LATE where nothing is left."""
    key = w.cell[BESIDE]
    if w.cell[SIZE] > 0 and w.heap[0] < key:
        key = w.heap[0]
        drop_top(w)
    else:
        w.cell[BESIDE] = LATE
    return key


@jitable
def after(w: Work, instant: int, length: int) -> int:
    """The instant ``length`` (as an instant) later: the first round of another one, or the next
    round of this.
    """
    if length > 0:
        return (instant & ~ROUND_MASK) + length
    if instant & ROUND_MASK == ROUND_MASK:
        w.cell[FAULT] = LONG
    return instant + 1


@jitable
def later(instant: int, length: int) -> int:
    """The instant a lag or gap later: the same where there is none."""
    return (instant & ~ROUND_MASK) + length if length > 0 else instant
