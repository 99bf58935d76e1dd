"""When a step is sure to take longer than a limit.

What starts on a queue now, plus all else that the queue still has to hold, ends no later than the
step: device by device, link by link. How much that is in all changes with the fans of a few ops, so
it is kept from one evaluation to the next; to know paths as well takes a third of a run, and they
tell no more (measured).
"""

from __future__ import annotations

from ...ground.jit import bare, jit, jitable
from ...nouns.taskgraph import Ints
from ..heap import FAULT
from .arena import QUEUES, ROW
from .columns import LIMIT, NONE, Columns, Rules, Work, open_columns, open_rules
from .instants import WORSE, ps_of
from .rows import device_of, length_of, sending_ps

NEVER = 1 << 62
"""A limit that no step exceeds."""
# Cells behind the ps by queue: how many transfers there are, and how many that cannot be.
SENT, STUCK, MORE = range(3)


@jitable
def add_row(t: Columns, q: Rules, loads: Ints, slot: int, part: int, sign: int) -> None:
    """What a row and its transfers hold their queues for."""
    fans, device, length = t.fans, device_of(t, slot, part), sign * length_of(t, slot, part)
    if device != NONE:
        loads[device] += length
    else:
        queues = t.arena[t.arena[t.block[slot] + ROW + part] + QUEUES]
        for e in range(queues + 1, queues + 1 + t.arena[queues]):
            loads[t.arena[e]] += length
    fan = t.fan[slot] + t.parts[slot] + 1 + part
    at, end = fans[fan], fans[fan + 1]
    while at < end:
        route, size, count = fans[at], fans[at + 1], fans[at + 3]
        loads[q.queues + SENT] += sign
        if size > q.most_bytes or q.route_class[route] < 0:
            loads[q.queues + STUCK] += sign
        else:
            length = sign * sending_ps(q, route, size)
            for e in range(q.queue_ptr[route], q.queue_ptr[route + 1]):
                loads[q.queue[e]] += length
        at += 4 + count


@jit
def add_loads(columns: Ints, rules: Ints, loads: Ints, ops: Ints, sign: int) -> None:
    """Add (or, with a negative sign, take off) the ps for which the parts and sums of some ops, and
    their transfers, hold each queue.
    """
    t, q, loads = open_columns(columns), open_rules(rules), bare(loads)
    for n in range(len(ops)):
        op = ops[n]
        for part in range(t.parts[op]):
            add_row(t, q, loads, op, part, sign)
        for slot in range(t.ops + t.tensor_ptr[op], t.ops + t.tensor_ptr[op + 1]):
            if t.parts[slot] > 0:
                begun = t.first[slot]
                for at in range(begun + 1, begun + 1 + 3 * t.fans[begun], 3):
                    add_row(t, q, loads, slot, t.fans[at], sign)


@jitable
def begin_bounds(q: Rules, w: Work, most: int) -> None:
    """Nothing has started. There is no limit where a run may have ``most`` tasks, or cannot be: it
    has to say so itself.
    """
    longest = 0
    for queue in range(q.queues):
        w.left[queue] = w.loads[queue]
        longest = max(longest, w.loads[queue])
    if w.loads[q.queues + STUCK] or w.loads[q.queues + SENT] >= most:
        w.cell[LIMIT] = NEVER
    elif longest > w.cell[LIMIT]:
        w.cell[FAULT] = WORSE


@jitable
def take_off(w: Work, queue: int, length: int) -> int:
    """What a queue has left, before something of it begins."""
    left = w.left[queue]
    w.left[queue] = left - length
    return left


@jitable
def check(w: Work, start: int, left: int) -> None:
    """What has so much left starts something at an instant."""
    if ps_of(w, start) + left > w.cell[LIMIT] and w.cell[FAULT] == 0:
        w.cell[FAULT] = WORSE
