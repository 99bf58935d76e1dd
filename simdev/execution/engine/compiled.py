"""The compiled engine: the execution contract as Numba kernels, with the same integers as the
reference engine.

``engine.simulate`` runs it for large graphs. A change of a rule here also belongs in
``simpy_engine``, in ``execution/check`` (which judges in another way), and in the oracle's kernels
(``oracle/placements`` and ``oracle/splits``), which walk op graphs to the same integers.

An agenda holds the events that are due, and each round takes the two steps of the contract. The
agenda is ordered by instant alone: events of one instant need no order, since the settle that
follows numbers the ready tasks by id.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...ground.jit import Table, jit, jitable, opener
from ...nouns.taskgraph import Floats, Ints, TaskGraph
from . import fair

POLICIES = "fifo", "priority", "fixed"
FIFO, PRIORITY, FIXED = range(3)
FINISH, RELEASE, FREE, ENTER = range(4)
# Cells of EngineState. Numbers of: agenda entries (DUE); tasks that became ready, resources freed
# and tasks of no length in this round (ARRIVED, TOUCHED, ZERO); ready numbers given (NUMBER); flows
# in their links (ACTIVE). Of these flows: since when their rates hold (SINCE), whether their set
# has changed since (CHANGED), and when the first ends (FLOWS_END).
DUE, ARRIVED, TOUCHED, ZERO, NUMBER, ACTIVE, SINCE, CHANGED, FLOWS_END, CELLS = range(10)
NEVER, LAST = 2**62, 2**63 - 1


class Program(NamedTuple):
    """The columns of a TaskGraph that an execution reads."""

    tasks: int
    resources: int
    number_bits: int  # of a ready number
    predecessors: Ints  # number of tasks that each task waits for
    duration: Ints
    lag: Ints
    gap: Ints
    rank: Ints  # priorities, numbered from 0 where some queue serves by priority
    flow: Ints
    bytes: Ints
    held_ptr: Ints
    held: Ints
    successor_ptr: Ints
    successor: Ints
    link_ptr: Ints
    link: Ints
    capacity: Floats
    policy: Ints
    queue_ptr: Ints  # the start of each resource's part of ``queue``
    queue: Ints  # waiting tasks of each resource, or its fixed sequence


class EngineState(NamedTuple):
    """The state of an execution; ``cell`` holds the scalars."""

    cell: Ints
    start: Ints
    finish: Ints
    missing: Ints
    ready: Ints
    number: Ints
    zero: Ints
    arrived: Ints  # a heap of ids
    due_time: Ints  # the agenda, a heap by time
    due_code: Ints
    touched: Ints
    key: Ints  # by place in ``queue``: the sort key of a task in a priority queue
    idle: Ints
    head: Ints
    tail: Ints
    active: Ints
    end: Ints
    waiting: Ints
    used: Ints
    remaining: Floats
    rate: Floats
    left: Floats


_open_program, _open_state = opener(Program), opener(EngineState)

_max_min_rates = jitable(fair.max_min_rates, fair.smallest_share, fair.crosses)
_advance, _time_left = jitable(fair.advance), jitable(fair.time_left)


def program_of(task_graph: TaskGraph) -> Program:
    """The columns of a task graph, with the storage of each queue."""
    tasks, resources = task_graph.tasks, task_graph.resources
    policy = np.array([POLICIES.index(resource.policy) for resource in resources], np.int64)
    rank = tasks.priority
    if (policy == PRIORITY).any():
        rank = np.unique(rank, return_inverse=True)[1].astype(np.int64)
    sizes = np.bincount(tasks.resources.ids, minlength=len(resources)).astype(np.int64)
    fixed = np.flatnonzero(policy == FIXED).tolist()
    for row in fixed:
        sizes[row] = len(resources[row].sequence)
    queue_ptr = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))
    queue = np.zeros(int(queue_ptr[-1]), np.int64)
    for row in fixed:
        queue[queue_ptr[row] : queue_ptr[row + 1]] = resources[row].sequence
    return Program(
        len(tasks),
        len(resources),
        len(tasks).bit_length(),
        task_graph.predecessor_count,
        tasks.duration,
        tasks.lag,
        tasks.gap,
        rank,
        tasks.flow.astype(np.int64),
        tasks.carried,
        tasks.resources.ptr,
        tasks.resources.ids,
        tasks.successors.ptr,
        tasks.successors.ids,
        tasks.links.ptr,
        tasks.links.ids,
        task_graph.bandwidth / fair.RATE_UNIT,
        policy,
        queue_ptr,
        queue,
    )


def state_for(program: Program) -> EngineState:
    """An EngineState with room for an execution of ``program``."""
    tasks, queues, links = program.tasks, len(program.policy), len(program.capacity)
    flows, held = tasks if program.flow.any() else 0, len(program.held)
    # A task has at most a finish or entry, a release and an end of a gap on the agenda at a time.
    ints = (CELLS, *[tasks] * 7, *[3 * tasks + 1] * 2, 2 * held + 1, len(program.queue))
    sizes = (*ints, *[queues] * 3, flows, flows, links, links)
    floats = (np.zeros(size) for size in (flows, flows, links))
    return EngineState._make((*(np.zeros(size, np.int64) for size in sizes), *floats))


def execute(task_graph: TaskGraph) -> tuple[Ints, Ints]:
    """Start and finish of every task in ps; -1 of those that never started."""
    program = program_of(task_graph)
    state = state_for(program)
    run(Table.of(program).words, Table.of(state).words)
    return state.start, state.finish


# Heaps: an entry has a key and a value, in two columns (for arrived tasks both are the id).


@jitable
def _push(keys: Ints, values: Ints, base: int, size: int, key: int, value: int) -> None:
    """Put an entry on a heap of ``size`` entries."""
    _rise(keys, values, base, size, key, value)


@jitable
def _rise(keys: Ints, values: Ints, base: int, at: int, key: int, value: int) -> None:
    """Move an entry up from the hole at ``at`` to its place."""
    while at > 0 and keys[base + ((at - 1) >> 1)] > key:
        parent = (at - 1) >> 1
        keys[base + at], values[base + at] = keys[base + parent], values[base + parent]
        at = parent
    keys[base + at], values[base + at] = key, value


@jitable
def _pop(keys: Ints, values: Ints, base: int, size: int) -> int:
    """Remove the entry of the smallest key and return its value; ``size`` entries remain."""
    first, key, value = values[base], keys[base + size], values[base + size]
    keys[base + size] = LAST  # so that the hole may look at one child too many
    at, child = 0, 1
    while child < size:
        child += keys[base + child + 1] < keys[base + child]
        keys[base + at], values[base + at] = keys[base + child], values[base + child]
        at, child = child, 2 * child + 1
    _rise(keys, values, base, at, key, value)
    return first


@jitable
def _post(s: EngineState, time: int, code: int) -> None:
    """Put an event on the agenda; ``code`` is 4 x task + FINISH, RELEASE, FREE or ENTER."""
    _push(s.due_time, s.due_code, 0, s.cell[DUE], time, code)
    s.cell[DUE] += 1


@jitable
def _arrive(s: EngineState, task: int) -> None:
    """A task has no more predecessors to wait for: it becomes ready in this round."""
    _push(s.arrived, s.arrived, 0, s.cell[ARRIVED], task, task)
    s.cell[ARRIVED] += 1


# The queues of resources


@jitable
def _join(p: Program, s: EngineState, resource: int, task: int) -> None:
    """A ready task joins a queue (a fixed queue has its sequence from the beginning)."""
    if p.policy[resource] == FIXED:
        return
    base, size = p.queue_ptr[resource], s.tail[resource]
    s.tail[resource] = size + 1
    if p.policy[resource] == PRIORITY:
        key = p.rank[task] << p.number_bits | s.number[task]
        _push(s.key, p.queue, base, size, key, task)
    else:
        p.queue[base + size] = task


@jitable
def _turn(p: Program, s: EngineState, resource: int) -> int:
    """The ready task that a queue serves next, or -1."""
    base, at = p.queue_ptr[resource], s.head[resource]
    if p.policy[resource] == FIXED:
        if base + at == p.queue_ptr[resource + 1] or not s.ready[p.queue[base + at]]:
            return -1
    elif at == s.tail[resource]:
        return -1
    return p.queue[base + at]


@jitable
def _leave(p: Program, s: EngineState, resource: int) -> None:
    """The head of a queue leaves it."""
    if p.policy[resource] != PRIORITY:
        s.head[resource] += 1
        return
    s.tail[resource] -= 1
    _pop(s.key, p.queue, p.queue_ptr[resource], s.tail[resource])


@jitable
def _may_start(p: Program, s: EngineState, task: int) -> bool:
    """Whether all resources of a task are idle and it is the next in each of their queues."""
    for e in range(p.held_ptr[task], p.held_ptr[task + 1]):
        if not s.idle[p.held[e]] or _turn(p, s, p.held[e]) != task:
            return False
    return True


# Events


@jitable
def _release(p: Program, s: EngineState, task: int) -> None:
    """One predecessor less for each successor."""
    for e in range(p.successor_ptr[task], p.successor_ptr[task + 1]):
        successor = p.successor[e]
        s.missing[successor] -= 1
        if s.missing[successor] == 0:
            _arrive(s, successor)


@jitable
def _free(p: Program, s: EngineState, task: int) -> None:
    """All resources of a task become idle."""
    for e in range(p.held_ptr[task], p.held_ptr[task + 1]):
        s.idle[p.held[e]] = 1
        s.touched[s.cell[TOUCHED]] = p.held[e]
        s.cell[TOUCHED] += 1


@jitable
def _finish(p: Program, s: EngineState, task: int, now: int) -> None:
    """A task finishes; its release and the end of its gap follow, at once or on the agenda."""
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
def _begin(p: Program, s: EngineState, task: int, now: int) -> None:
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
def _enter(p: Program, s: EngineState, task: int) -> None:
    """A flow joins the active ones, which are kept in the order of their ids."""
    at = s.cell[ACTIVE]
    while at > 0 and s.active[at - 1] > task:
        s.active[at] = s.active[at - 1]
        at -= 1
    s.active[at] = task
    s.cell[ACTIVE] += 1
    # Until rates are shared it has no rate and no end; a state used again has those of before.
    s.remaining[task], s.rate[task], s.end[task] = p.bytes[task], 0.0, NEVER
    s.cell[CHANGED] = 1


@jitable
def _share(p: Program, s: EngineState, now: int) -> None:
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
def _end_flows(p: Program, s: EngineState, now: int) -> None:
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
def _settle(p: Program, s: EngineState, now: int) -> None:
    """Give ready numbers in the order of ids, then start tasks."""
    while s.cell[ARRIVED]:
        s.cell[ARRIVED] -= 1
        task = _pop(s.arrived, s.arrived, 0, s.cell[ARRIVED])
        s.ready[task], s.number[task] = 1, s.cell[NUMBER]
        s.cell[NUMBER] += 1
        for e in range(p.held_ptr[task], p.held_ptr[task + 1]):
            _join(p, s, p.held[e], task)
            s.touched[s.cell[TOUCHED]] = p.held[e]
            s.cell[TOUCHED] += 1
        if p.held_ptr[task] == p.held_ptr[task + 1]:
            _begin(p, s, task, now)
    while s.cell[TOUCHED]:
        s.cell[TOUCHED] -= 1
        queue = s.touched[s.cell[TOUCHED]]
        head = _turn(p, s, queue) if s.idle[queue] else -1
        if head >= 0 and _may_start(p, s, head):
            for e in range(p.held_ptr[head], p.held_ptr[head + 1]):
                s.idle[p.held[e]] = 0
                _leave(p, s, p.held[e])
            _begin(p, s, head, now)
    if s.cell[CHANGED]:
        _share(p, s, now)


@jitable
def _apply(p: Program, s: EngineState, code: int, now: int) -> None:
    """Apply an event: a finish, a release, the end of a gap, or a flow that enters its links."""
    task, event = code >> 2, code & 3
    if event == FINISH:
        _finish(p, s, task, now)
    elif event == RELEASE:
        _release(p, s, task)
    elif event == FREE:
        _free(p, s, task)
    else:
        _enter(p, s, task)


@jitable
def _reset(p: Program, s: EngineState) -> None:
    """Set the state before the first round: only tasks without predecessors are ready."""
    for cell in range(CELLS):
        s.cell[cell] = 0
    s.cell[FLOWS_END] = NEVER
    for resource in range(p.resources):
        s.idle[resource], s.head[resource], s.tail[resource] = 1, 0, 0
    for task in range(p.tasks):
        s.start[task], s.finish[task], s.ready[task] = -1, -1, 0
        s.missing[task] = p.predecessors[task]
        if s.missing[task] == 0:
            _arrive(s, task)


@jit
def run(program: Ints, state: Ints) -> None:
    """Execute rounds until no event is left. ``program`` and ``state`` are the words (``Table``) of
    a Program and of an EngineState, which may be used again. The state's ``start`` and ``finish``
    then hold the ps of every task; -1 where it never started.
    """
    p, s = _open_program(program), _open_state(state)
    _reset(p, s)
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
                s.cell[DUE] -= 1
                _apply(p, s, _pop(s.due_time, s.due_code, 0, s.cell[DUE]), now)
            if s.cell[FLOWS_END] == now:
                _end_flows(p, s, now)
        _settle(p, s, now)
