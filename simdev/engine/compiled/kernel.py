"""Kernels of the execution: an agenda of what is due, and for each round the two steps of the
contract.

The agenda is a binary heap by instant alone: what is due within one instant needs no order, since
the settle that follows numbers the ready tasks by id.
"""

from __future__ import annotations

from ...jit import jit, jitable, opener
from ...taskgraph import Ints
from .. import fair
from .queues import join, leave, may_start, turn
from .state import (
    ACTIVE,
    ARRIVED,
    CHANGED,
    DUE,
    FLOWS_END,
    NEVER,
    NUMBER,
    SINCE,
    TOUCHED,
    ZERO,
    Program,
    State,
)

FINISH, RELEASE, FREE, ENTER = 0, 1, 2, 3

_open_program, _open_state = opener(Program), opener(State)

_max_min_rates = jitable(fair.max_min_rates, fair.smallest_share, fair.crosses)
_advance, _time_left = jitable(fair.advance), jitable(fair.time_left)


@jitable
def _post(s: State, time: int, code: int) -> None:
    """Put something on the agenda."""
    at = s.cell[DUE]
    s.cell[DUE] = at + 1
    while at > 0 and s.due_time[(at - 1) >> 1] > time:
        parent = (at - 1) >> 1
        s.due_time[at], s.due_code[at] = s.due_time[parent], s.due_code[parent]
        at = parent
    s.due_time[at], s.due_code[at] = time, code


@jitable
def _take(s: State) -> int:
    """Take the first entry off the agenda: its code."""
    code = s.due_code[0]
    size = s.cell[DUE] - 1
    s.cell[DUE] = size
    time, moved = s.due_time[size], s.due_code[size]
    at, child = 0, 1
    while child < size:
        if child + 1 < size and s.due_time[child + 1] < s.due_time[child]:
            child += 1
        if s.due_time[child] >= time:
            break
        s.due_time[at], s.due_code[at] = s.due_time[child], s.due_code[child]
        at, child = child, 2 * child + 1
    s.due_time[at], s.due_code[at] = time, moved
    return code


@jitable
def _release(p: Program, s: State, task: int) -> None:
    """One predecessor less for each successor."""
    for e in range(p.successor_ptr[task], p.successor_ptr[task + 1]):
        successor = p.successor[e]
        s.missing[successor] -= 1
        if s.missing[successor] == 0:
            s.arrived[s.cell[ARRIVED]] = successor
            s.cell[ARRIVED] += 1


@jitable
def _free(p: Program, s: State, task: int) -> None:
    """All resources of a task become idle."""
    for e in range(p.held_ptr[task], p.held_ptr[task + 1]):
        s.idle[p.held[e]] = True
        s.touched[s.cell[TOUCHED]] = p.held[e]
        s.cell[TOUCHED] += 1


@jitable
def _finish(p: Program, s: State, task: int, now: int) -> None:
    """A finish, with the release and the end of the gap where these fall on the same instant."""
    s.finish[task] = now
    if p.lag[task] > 0:
        _post(s, now + p.lag[task], task * 4 + RELEASE)
    else:
        _release(p, s, task)
    if p.gap[task] > 0 and p.held_ptr[task + 1] > p.held_ptr[task]:
        _post(s, now + p.gap[task], task * 4 + FREE)
    else:
        _free(p, s, task)


@jitable
def _begin(p: Program, s: State, task: int, now: int) -> None:
    """The task starts; one of no length is finished in the next round."""
    s.start[task] = now
    length = p.duration[task]
    if p.flow[task] and p.bytes[task] > 0:
        if length > 0:
            _post(s, now + length, task * 4 + ENTER)
        else:
            _enter(p, s, task)
    elif length > 0:
        _post(s, now + length, task * 4 + FINISH)
    else:
        s.zero[s.cell[ZERO]] = task
        s.cell[ZERO] += 1


@jitable
def _enter(p: Program, s: State, task: int) -> None:
    """A flow joins those that share its links, which are kept in the order of their ids."""
    at = s.cell[ACTIVE]
    while at > 0 and s.active[at - 1] > task:
        s.active[at] = s.active[at - 1]
        at -= 1
    s.active[at] = task
    s.cell[ACTIVE] += 1
    s.remaining[task] = p.bytes[task]
    s.cell[CHANGED] = 1


@jitable
def _share(p: Program, s: State, now: int) -> None:
    """New rates for the flows, and the instant at which the first of them ends."""
    elapsed, active = now - s.cell[SINCE], s.cell[ACTIVE]
    s.cell[SINCE], s.cell[CHANGED], s.cell[FLOWS_END] = now, 0, NEVER
    for k in range(active):
        flow = s.active[k]
        s.remaining[flow] = _advance(s.remaining[flow], s.rate[flow], elapsed)
    _max_min_rates(
        s.active, active, p.link_ptr, p.link, p.capacity, s.rate, s.left, s.waiting, s.used
    )
    for k in range(active):
        flow = s.active[k]
        s.end[flow] = now + _time_left(s.remaining[flow], s.rate[flow])
        s.cell[FLOWS_END] = min(s.cell[FLOWS_END], s.end[flow])


@jitable
def _end_flows(p: Program, s: State, now: int) -> None:
    """Every flow that ends now leaves its links."""
    kept = 0
    for k in range(s.cell[ACTIVE]):
        flow = s.active[k]
        if s.end[flow] == now:
            _finish(p, s, flow, now)
        else:
            s.active[kept] = flow
            kept += 1
    s.cell[ACTIVE], s.cell[CHANGED], s.cell[FLOWS_END] = kept, 1, NEVER


@jitable
def _sift(ids: Ints, at: int, size: int) -> None:
    """Let ``ids[at]`` sink to its place in a heap with the largest on top."""
    moved, child = ids[at], 2 * at + 1
    while child < size:
        if child + 1 < size and ids[child + 1] > ids[child]:
            child += 1
        if ids[child] <= moved:
            break
        ids[at] = ids[child]
        at, child = child, 2 * child + 1
    ids[at] = moved


@jitable
def sort(ids: Ints, size: int) -> None:
    """Sort the first ``size`` ids in place (numpy's sort needs Numba's memory runtime, see
    jit.py).
    """
    for at in range(size // 2 - 1, -1, -1):
        _sift(ids, at, size)
    for end in range(size - 1, 0, -1):
        ids[0], ids[end] = ids[end], ids[0]
        _sift(ids, 0, end)


@jitable
def _settle(p: Program, s: State, now: int) -> None:
    """Ready numbers in the order of ids, then starts."""
    arrived = s.cell[ARRIVED]
    s.cell[ARRIVED] = 0
    sort(s.arrived, arrived)
    for k in range(arrived):
        task = s.arrived[k]
        s.ready[task] = True
        s.number[task] = s.cell[NUMBER]
        s.cell[NUMBER] += 1
        for e in range(p.held_ptr[task], p.held_ptr[task + 1]):
            join(p, s, p.held[e], task)
            s.touched[s.cell[TOUCHED]] = p.held[e]
            s.cell[TOUCHED] += 1
        if p.held_ptr[task] == p.held_ptr[task + 1]:
            _begin(p, s, task, now)
    for k in range(s.cell[TOUCHED]):
        head = turn(p, s, s.touched[k]) if s.idle[s.touched[k]] else -1
        if head >= 0 and may_start(p, s, head):
            for e in range(p.held_ptr[head], p.held_ptr[head + 1]):
                s.idle[p.held[e]] = False
                leave(p, s, p.held[e])
            _begin(p, s, head, now)
    s.cell[TOUCHED] = 0
    if s.cell[CHANGED]:
        _share(p, s, now)


@jitable
def _apply(p: Program, s: State, code: int, now: int) -> None:
    """What was due: a finish, a release, the end of a gap, or a flow that enters its links."""
    task, what = code >> 2, code & 3
    if what == FINISH:
        _finish(p, s, task, now)
    elif what == RELEASE:
        _release(p, s, task)
    elif what == FREE:
        _free(p, s, task)
    else:
        _enter(p, s, task)


@jit
def run(program: Ints, state: Ints) -> None:
    """Rounds until nothing more happens."""
    p, s = _open_program(program), _open_state(state)
    for task in range(p.tasks):
        if s.missing[task] == 0:
            s.arrived[s.cell[ARRIVED]] = task
            s.cell[ARRIVED] += 1
    now = 0
    _settle(p, s, now)
    while True:
        zero = s.cell[ZERO]
        if zero:  # the next round of this instant
            s.cell[ZERO] = 0
            for k in range(zero):
                _finish(p, s, s.zero[k], now)
        else:
            now = s.cell[FLOWS_END]
            if s.cell[DUE]:
                now = min(now, s.due_time[0])
            if now == NEVER:
                return
            while s.cell[DUE] and s.due_time[0] == now:
                _apply(p, s, _take(s), now)
            if s.cell[FLOWS_END] == now:
                _end_flows(p, s, now)
        _settle(p, s, now)
