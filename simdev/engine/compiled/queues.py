"""Kernels of the serial queues: who joins, whose turn it is, who leaves."""

from __future__ import annotations

from ...jit import jitable
from .state import FIXED, PRIORITY, Program, State


@jitable
def before(p: Program, s: State, a: int, b: int) -> bool:
    """Whether task ``a`` stands before ``b`` in a priority queue."""
    if p.priority[a] != p.priority[b]:
        return p.priority[a] < p.priority[b]
    return s.number[a] < s.number[b]


@jitable
def join(p: Program, s: State, resource: int, task: int) -> None:
    """A ready task joins a queue (a fixed queue knows its tasks already)."""
    if p.policy[resource] == FIXED:
        return
    base, at = p.queue_ptr[resource], s.tail[resource]
    s.tail[resource] = at + 1
    if p.policy[resource] == PRIORITY:
        while at > 0 and before(p, s, task, p.queue[base + ((at - 1) >> 1)]):
            p.queue[base + at] = p.queue[base + ((at - 1) >> 1)]
            at = (at - 1) >> 1
    p.queue[base + at] = task


@jitable
def turn(p: Program, s: State, resource: int) -> int:
    """The task whose turn it is, or -1."""
    base, at = p.queue_ptr[resource], s.head[resource]
    if p.policy[resource] == FIXED:
        if base + at == p.queue_ptr[resource + 1] or not s.ready[p.queue[base + at]]:
            return -1
    elif at == s.tail[resource]:
        return -1
    return p.queue[base + at]


@jitable
def leave(p: Program, s: State, resource: int) -> None:
    """The head of a queue leaves it."""
    if p.policy[resource] != PRIORITY:
        s.head[resource] += 1
        return
    base, size = p.queue_ptr[resource], s.tail[resource] - 1
    s.tail[resource] = size
    task, at, child = p.queue[base + size], 0, 1
    while child < size:
        if child + 1 < size and before(p, s, p.queue[base + child + 1], p.queue[base + child]):
            child += 1
        if not before(p, s, p.queue[base + child], task):
            break
        p.queue[base + at] = p.queue[base + child]
        at, child = child, 2 * child + 1
    p.queue[base + at] = task


@jitable
def may_start(p: Program, s: State, task: int) -> bool:
    """Every resource idle, and no waiting task before it on any."""
    for e in range(p.held_ptr[task], p.held_ptr[task + 1]):
        if not s.idle[p.held[e]] or turn(p, s, p.held[e]) != task:
            return False
    return True
