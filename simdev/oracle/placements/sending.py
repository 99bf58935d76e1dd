"""What a finished producer sends, in the order of the execution contract: by tensor, then by
destination.
"""

from __future__ import annotations

from ...ground.jit import jitable, lowest
from ...lowering.transfer import destinations
from ...nouns.taskgraph import Ints
from ..heap import after, later, release
from .problem import MULTICAST, NOTHING, PAIRS, PER_CONSUMER, PlacementProblem, Record, Work
from .totals import Totals, arrive

jitable(destinations)
BITS = 62  # devices that an integer has a bit for


@jitable
def send(p: PlacementProblem, w: Work, tensor: int, route: int, now: int) -> tuple[int, int, int]:
    """One transfer over one route: its start, finish and release."""
    inverse, start = ~((1 << p.round_bits) - 1), now
    lasting = p.sending[tensor * p.classes + p.route_class[route]] + p.route_held[route]
    if p.holding == PAIRS:
        first, second = p.pair[2 * route], p.pair[2 * route + 1]
        start = max(start, w.free[first], w.free[second])
        finish = after(start, lasting, inverse)
        w.free[first] = w.free[second] = later(finish, p.route_gap[route], inverse)
    elif p.holding == NOTHING:
        finish = after(start, lasting, inverse)
    else:
        begin, end = p.queue_ptr[route], p.queue_ptr[route + 1]
        for e in range(begin, end):
            start = max(start, w.free[p.queue[e]])
        finish = after(start, lasting, inverse)
        free = later(finish, p.route_gap[route], inverse)
        for e in range(begin, end):
            w.free[p.queue[e]] = free
    return start, finish, later(finish, p.route_lag[route], inverse)


@jitable
def few_destinations(
    consumers: Ints, begin: int, end: int, placement: Ints, source: int, targets: Ints
) -> int:
    """``destinations`` where every device has a bit: nothing is sorted, so no branch is a guess."""
    devices, count = 0, 0
    for e in range(begin, end):
        devices |= 1 << placement[consumers[e]]
    devices &= ~(1 << source)
    while devices:
        targets[count] = lowest(devices)
        devices &= devices - 1
        count += 1
    return count


@jitable
def multicast(
    p: PlacementProblem, w: Work, tensor: int, source: int, now: int, count: int
) -> tuple[int, int, int]:
    """One transfer to all devices found: every queue, the smallest bandwidth, the largest latency
    and gap.
    """
    inverse = ~((1 << p.round_bits) - 1)
    start, sending, held, lag, gap = now, 0, 0, 0, 0
    for k in range(count):
        route = source * p.devices + w.targets[k]
        for e in range(p.queue_ptr[route], p.queue_ptr[route + 1]):
            start = max(start, w.free[p.queue[e]])
        sending = max(sending, p.sending[tensor * p.classes + p.route_class[route]])
        held, lag, gap = (
            max(held, p.route_held[route]),
            max(lag, p.route_lag[route]),
            max(gap, p.route_gap[route]),
        )
    finish = after(start, sending + held, inverse)
    free = later(finish, gap, inverse)
    for k in range(count):
        route = source * p.devices + w.targets[k]
        for e in range(p.queue_ptr[route], p.queue_ptr[route + 1]):
            w.free[p.queue[e]] = free
    return start, finish, later(finish, lag, inverse)


@jitable
def send_for(
    p: PlacementProblem,
    w: Work,
    r: Record | None,
    m: Totals | None,
    e: int,
    tensor: int,
    source: int,
    device: int,
    now: int,
) -> None:
    """A transfer for the one read ``e``."""
    if m is not None:
        arrive(m, tensor, device)
    start, finish, arrival = send(p, w, tensor, source * p.devices + device, now)
    if r is not None:
        r.sent[e], r.received[e] = start >> p.round_bits, finish >> p.round_bits
    release(w, p.consumer[e], arrival)


@jitable
def send_each(
    p: PlacementProblem,
    w: Work,
    r: Record | None,
    m: Totals | None,
    placement: Ints,
    tensor: int,
    source: int,
    now: int,
    count: int,
) -> None:
    """A transfer for each remote read, by device and then by consumer."""
    for k in range(count):
        for e in range(p.consumer_ptr[tensor], p.consumer_ptr[tensor + 1]):
            if placement[p.consumer[e]] == w.targets[k]:
                send_for(p, w, r, m, e, tensor, source, w.targets[k], now)


@jitable
def send_shared(
    p: PlacementProblem,
    w: Work,
    r: Record | None,
    m: Totals | None,
    placement: Ints,
    tensor: int,
    source: int,
    now: int,
    count: int,
) -> None:
    """A transfer for each device, or one for all, that serves all reads there."""
    start, finish, arrival = (
        multicast(p, w, tensor, source, now, count) if p.mode == MULTICAST else (0, 0, 0)
    )
    for k in range(count):
        device = w.targets[k]
        if p.mode != MULTICAST:
            start, finish, arrival = send(p, w, tensor, source * p.devices + device, now)
        w.arrival[device] = arrival
        if m is not None:
            arrive(m, tensor, device)
        if r is not None:
            r.sent_to[device], r.received_by[device] = start >> p.round_bits, finish >> p.round_bits
    for e in range(p.consumer_ptr[tensor], p.consumer_ptr[tensor + 1]):
        device = placement[p.consumer[e]]
        if device != source:
            if r is not None:
                r.sent[e], r.received[e] = r.sent_to[device], r.received_by[device]
            release(w, p.consumer[e], w.arrival[device])


@jitable
def send_all(
    p: PlacementProblem,
    w: Work,
    r: Record | None,
    m: Totals | None,
    placement: Ints,
    op: int,
    now: int,
) -> None:
    """The transfers of a finished producer."""
    source = placement[op]
    for tensor in range(p.tensor_ptr[op], p.tensor_ptr[op + 1]):
        begin, end = p.consumer_ptr[tensor], p.consumer_ptr[tensor + 1]
        if end == begin + 1:  # most tensors have one reader, and every mode is the same for it
            device = placement[p.consumer[begin]]
            if device != source:
                send_for(p, w, r, m, begin, tensor, source, device, now)
            continue
        if p.devices <= BITS:
            count = few_destinations(p.consumer, begin, end, placement, source, w.targets)
        else:
            count = destinations(p.consumer, begin, end, placement, source, w.targets)
        if count == 0:
            continue
        if p.mode == PER_CONSUMER:
            send_each(p, w, r, m, placement, tensor, source, now, count)
        else:
            send_shared(p, w, r, m, placement, tensor, source, now, count)
