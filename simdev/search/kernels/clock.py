"""The clock of m-ETF and m-SCT: ops are taken one by one, and transfers are booked when their
reader is taken (pull).

``search.baechi`` fills its columns and calls ``schedule``. The rules are Baechi's, not those of the
engines: the resulting placement is simulated like any other. Columns are flat, with index ``t *
devices + d`` for two dimensions. Times are ps, sizes bytes.
"""

from __future__ import annotations

from typing import NamedTuple

from ...nouns.taskgraph import Ints
from . import kernel, opener, part

NEVER = 1 << 62
UNKNOWN = -1
# Indices of Clock.cell: the last finish; the number of booked transfers; the instant of the next
# possible event; the instant at which the op just proposed could start.
DONE, BOOKED, NEXT, WHEN = range(4)


class Lists(NamedTuple):
    """The ops and tensors that are placed, the devices and the routes.

    An edge joins two ops and carries tensors; a tensor may be carried by several edges.
    """

    ops: int
    devices: int
    duration: Ints  # by op and device, -1: its group cannot stand there
    in_ptr: Ints  # edges into each op, by their producers in order
    producer: Ints  # of each edge
    out_ptr: Ints
    consumer: Ints
    carried_ptr: Ints  # tensors of each edge
    carried: Ints
    classes: int
    sending: Ints  # by tensor and class of route: ps in which queues are held
    lag: Ints  # by class
    class_of: Ints  # by source and destination, -1: no route
    held_ptr: Ints  # queues that a transfer holds, by source and destination
    held: Ints
    # 1: queues belong to devices, and the two ends of a transfer are booked one after the other, as
    # in Baechi; 0: queues are links, which other pairs share, and are booked together
    apart: int
    member_ptr: Ints  # ops of each colocation group
    member: Ints
    group: Ints
    made: Ints  # bytes of each op's outputs
    size: Ints  # bytes by tensor
    at_home: Ints  # bytes by tensor that count at its producer (0: a view, or a parameter)
    home: Ints  # producer of each tensor
    kept: Ints  # 1: read after all planned ops, so it is never freed
    persistent: Ints  # bytes by group
    reserve: Ints  # bytes that a group needs to run, beside the persistent
    capacity: Ints  # by device, -1: unlimited
    number: Ints  # topological number: breaks ties
    favourite: Ints  # child that should run right after, on the same device; -1: none


class Clock(NamedTuple):
    """The columns that a run writes."""

    device: Ints  # by op, -1: not placed
    end: Ints
    missing: Ints  # edges into an op whose producers have not finished
    ready: Ints
    data: Ints  # by op and device: when its inputs would be there, as of ``known_at``
    known_at: Ints  # by op and device: the booking after which ``data`` was computed
    touched: Ints  # by device: the last booking of its queues
    free: Ints  # by device
    running: Ints
    last: Ints
    queue: Ints  # by queue: free from
    arrival: Ints  # by tensor and device, -1: not there
    left: Ints  # edges that still have to read each tensor
    used: Ints  # bytes by device
    cell: Ints


open_lists, open_clock = opener(Lists), opener(Clock)


@part
def booked(
    p: Lists, c: Clock, source: int, destination: int, begin: int, length: int, commit: bool
) -> int:
    """The end of a transfer that could begin at ``begin``; ``commit`` books its queues."""
    pair = source * p.devices + destination
    for e in range(p.held_ptr[pair], p.held_ptr[pair + 1]):
        begin = max(begin, c.queue[p.held[e]])
        # Baechi books the sender before it looks at the receiver: the sender may be free earlier.
        if commit and p.apart:
            c.queue[p.held[e]] = begin + length
    if commit and not p.apart:
        for e in range(p.held_ptr[pair], p.held_ptr[pair + 1]):
            c.queue[p.held[e]] = begin + length
    return begin + length


@part
def data_there(p: Lists, c: Clock, op: int, device: int) -> int:
    """The instant when the inputs of an op would be on a device: each edge's missing tensors count
    as one transfer, and nothing is booked.
    """
    ready = 0
    for e in range(p.in_ptr[op], p.in_ptr[op + 1]):
        producer = p.producer[e]
        source = c.device[producer]
        if source == device:
            ready = max(ready, c.end[producer])
            continue
        kind = p.class_of[source * p.devices + device]
        if kind < 0:
            return NEVER
        length = UNKNOWN
        for k in range(p.carried_ptr[e], p.carried_ptr[e + 1]):
            there = c.arrival[p.carried[k] * p.devices + device]
            if there < 0:
                length = max(length, 0) + p.sending[p.carried[k] * p.classes + kind]
            else:
                ready = max(ready, there)
        if length >= 0:
            ready = max(
                ready, booked(p, c, source, device, c.end[producer], length, False) + p.lag[kind]
            )
    return ready


@part
def refresh(p: Lists, c: Clock, op: int) -> None:
    """Bring ``data`` of a ready op up to date."""
    touched = 0
    for e in range(p.in_ptr[op], p.in_ptr[op + 1]):
        touched = max(touched, c.touched[c.device[p.producer[e]]])
    for d in range(p.devices):
        at = op * p.devices + d
        if c.known_at[at] < max(touched, c.touched[d]):
            c.data[at] = data_there(p, c, op, d)
            c.known_at[at] = c.cell[BOOKED]


@part
def fits(p: Lists, c: Clock, op: int, device: int) -> bool:
    """Whether an op, with its group, has room on a device; always true for a placed op."""
    limit = p.capacity[device]
    if limit < 0 or c.device[op] >= 0:
        return True
    group = p.group[op]
    need = c.used[device] + p.persistent[group] + p.reserve[group]
    for k in range(p.carried_ptr[p.in_ptr[op]], p.carried_ptr[p.in_ptr[op + 1]]):
        tensor = p.carried[k]
        if c.device[p.home[tensor]] != device and c.arrival[tensor * p.devices + device] < 0:
            need += p.size[tensor]
    return bool(need <= limit)


@part
def estimate(p: Lists, c: Clock, op: int, device: int, now: int) -> int:
    """The instant when an op could start on a device; NEVER where it may not."""
    placed = c.device[op]
    if placed >= 0 and placed != device:
        return NEVER
    if p.duration[op * p.devices + device] < 0:
        return NEVER
    data = c.data[op * p.devices + device]
    if data == NEVER or not fits(p, c, op, device):
        return NEVER
    begin: int = max(data, c.free[device], now)
    return begin


@part
def urgent(p: Lists, c: Clock, op: int, now: int) -> int:
    """The latest start of an op over all devices that may run it."""
    latest = UNKNOWN
    for d in range(p.devices):
        at = estimate(p, c, op, d, now)
        if at != NEVER:
            latest = max(latest, at)
    return NEVER if latest == UNKNOWN else latest


@part
def awaited(p: Lists, c: Clock, device: int, now: int) -> int:
    """The favourite child for which an idle device stays awake: ready, not placed, and not earlier
    elsewhere; -1: none.
    """
    last = c.last[device]
    if last < 0 or p.favourite[last] < 0:
        return -1
    child: int = p.favourite[last]
    if c.device[child] >= 0 or c.missing[child] > 0:
        return -1
    here = estimate(p, c, child, device, now)
    if here == NEVER:
        return -1
    for d in range(p.devices):
        if estimate(p, c, child, d, now) < here:
            return -1
    return child


@part
def proposal(p: Lists, c: Clock, device: int, count: int, now: int) -> int:
    """The op that an idle device would run next (-1: none); its start is left in ``cell[WHEN]``."""
    child = awaited(p, c, device, now)
    chosen, when = -1, NEVER
    for k in range(count):
        op = c.ready[k]
        at = estimate(p, c, op, device, now)
        if at != NEVER and child >= 0:
            at = urgent(p, c, op, now)
        if at < when or (at == when and at != NEVER and p.number[op] < p.number[chosen]):
            chosen, when = op, at
    if child >= 0:
        here = estimate(p, c, child, device, now)
        if when > now and here < when:
            chosen, when = child, here
        elif when <= now:
            when = estimate(p, c, chosen, device, now)
    c.cell[WHEN] = when
    return chosen


@part
def fetch(p: Lists, c: Clock, op: int, device: int) -> int:
    """Book the missing inputs of an op on a device, tensor by tensor; returns when all
    are there.
    """
    ready = 0
    for k in range(p.carried_ptr[p.in_ptr[op]], p.carried_ptr[p.in_ptr[op + 1]]):
        tensor = p.carried[k]
        end, source = c.end[p.home[tensor]], c.device[p.home[tensor]]
        if source == device:
            ready = max(ready, end)
            continue
        pair, at = source * p.devices + device, tensor * p.devices + device
        if c.arrival[at] < 0:
            kind = p.class_of[pair]
            length = p.sending[tensor * p.classes + kind]
            c.arrival[at] = booked(p, c, source, device, end, length, True) + p.lag[kind]
            c.used[device] += p.size[tensor]
            if p.held_ptr[pair + 1] > p.held_ptr[pair]:
                c.cell[BOOKED] += 1
                for d in range(p.devices):
                    if not p.apart or d in (source, device):
                        c.touched[d] = c.cell[BOOKED]
        ready = max(ready, c.arrival[at])
    return ready


@part
def release(p: Lists, c: Clock, op: int, device: int) -> None:
    """Free each tensor that an op was the last to read, with its copies."""
    for k in range(p.carried_ptr[p.in_ptr[op]], p.carried_ptr[p.in_ptr[op + 1]]):
        tensor = p.carried[k]
        c.left[tensor] -= 1
        if c.left[tensor] == 0:
            c.used[c.device[p.home[tensor]]] -= p.at_home[tensor]
            for d in range(p.devices):
                if c.arrival[tensor * p.devices + d] >= 0:
                    c.used[d] -= p.size[tensor]


@part
def run(p: Lists, c: Clock, op: int, device: int, now: int) -> None:
    """Run an op: book its transfers, place its group, set its end."""
    begin = max(fetch(p, c, op, device), c.free[device], now)
    if c.device[op] < 0:
        group = p.group[op]
        for k in range(p.member_ptr[group], p.member_ptr[group + 1]):
            c.device[p.member[k]] = device
        c.used[device] += p.persistent[group]
    end = begin + p.duration[op * p.devices + device]
    c.end[op], c.free[device] = end, end
    c.running[device], c.last[device] = op, op
    c.used[device] += p.made[op]
    release(p, c, op, device)
    c.cell[DONE] = max(c.cell[DONE], end)


@part
def finish(p: Lists, c: Clock, count: int, now: int) -> int:
    """Release the successors of ops that end now; returns the number of ready ops."""
    for d in range(p.devices):
        op = c.running[d]
        if op < 0 or c.free[d] > now:
            continue
        c.running[d] = -1
        for e in range(p.out_ptr[op], p.out_ptr[op + 1]):
            after = p.consumer[e]
            c.missing[after] -= 1
            if c.missing[after] == 0:
                c.ready[count] = after
                count += 1
                refresh(p, c, after)
    return count


@part
def take(p: Lists, c: Clock, count: int, chosen: int, device: int, now: int) -> int:
    """Run a ready op; returns the number of ready ops after it."""
    for k in range(count):
        if c.ready[k] == chosen:
            c.ready[k] = c.ready[count - 1]
            break
    count -= 1
    before = c.cell[BOOKED]
    run(p, c, chosen, device, now)
    if c.cell[BOOKED] > before:
        for k in range(count):
            refresh(p, c, c.ready[k])
    return count


@part
def start_some(p: Lists, c: Clock, count: int, now: int) -> int:
    """Start all ops that can start now, the earliest first, and set ``cell[NEXT]`` to the instant
    of the next possible event. Returns the number of ready ops.
    """
    while True:
        chosen, where, when = -1, -1, NEVER
        c.cell[NEXT] = NEVER
        for d in range(p.devices):
            if c.running[d] >= 0:
                c.cell[NEXT] = min(c.cell[NEXT], c.free[d])
                continue
            op = proposal(p, c, d, count, now)
            at = c.cell[WHEN]
            if op < 0:
                continue
            if at > now:
                c.cell[NEXT] = min(c.cell[NEXT], at)
            elif at < when or (at == when and p.number[op] < p.number[chosen]):
                chosen, where, when = op, d, at
        if chosen < 0:
            return count
        count = take(p, c, count, chosen, where, now)


@part
def forced(p: Lists, c: Clock, count: int) -> int:
    """The choice where no ready op has room anywhere: the first ready op, on the device with the
    most room. Returns op * devices + device, or -1 where no device can run it.
    """
    chosen = c.ready[0]
    for k in range(1, count):
        if p.number[c.ready[k]] < p.number[chosen]:
            chosen = c.ready[k]
    where, room = -1, -NEVER
    for d in range(p.devices):
        if c.device[chosen] >= 0 and c.device[chosen] != d:
            continue
        at = chosen * p.devices + d
        if c.data[at] == NEVER or p.duration[at] < 0:
            continue
        left = NEVER if p.capacity[d] < 0 else p.capacity[d] - c.used[d]
        if left > room:
            where, room = d, left
    return chosen * p.devices + where if where >= 0 else -1


@kernel
def schedule(lists: object, clock: object) -> int:
    """Place and run all ops; returns the last finish in ps, or -1 where no device can run an op."""
    p, c = open_lists(lists), open_clock(clock)
    count, now = 0, 0
    for op in range(p.ops):
        if c.missing[op] == 0:
            c.ready[count] = op
            count += 1
            refresh(p, c, op)
    while True:
        count = finish(p, c, count, now)
        count = start_some(p, c, count, now)
        if c.cell[NEXT] != NEVER:
            now = c.cell[NEXT]
        elif count == 0:
            return int(c.cell[DONE])
        else:
            pair = forced(p, c, count)
            if pair < 0:
                return -1
            count = take(p, c, count, pair // p.devices, pair % p.devices, now)
