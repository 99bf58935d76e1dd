"""Fans: the readers of the parts of an op on their own devices, the transfers to other devices, and
the number of pieces that each reader waits for.

A fan describes some sources (parts of an op, or sums of a tensor). First it has, for each source,
the places where its local readers and where its transfers begin; then the readers and transfers
themselves. A reader is ``base << REF_BITS | reference``; a transfer is its route, bytes, base, the
number of readers that it serves, and their references. A base is the number of an output among the
outputs of its source.
"""

from __future__ import annotations

from ...ground.jit import jit, jitable
from ...nouns.taskgraph import Ints
from ..heap import NONE
from .columns import (
    ASKS,
    BEGUN,
    END,
    MANY_FANS,
    REF_BITS,
    WRONG,
    Columns,
    FanWork,
    open_columns,
    open_fan_work,
)
from .pieces import HERE, ask, clear


@jitable
def emit(t: Columns, w: FanWork, first: int, count: int) -> int:
    """Write the fan of ``count`` sources from ``first`` on (see the top of the module); returns
    where it begins.
    """
    fans = t.fans
    fan = w.cell[END]
    at = fan + 2 * (count + 1)
    for source in range(first, first + count):
        fans[fan + source - first] = at
        e = w.source_local[source]
        while e != NONE:
            fans[at] = w.ask_base[e] << REF_BITS | w.ask_ref[e]
            at, e = at + 1, w.ask_next[e]
    fans[fan + count] = at
    for source in range(first, first + count):
        fans[fan + count + 1 + source - first] = at
        e, last = w.source_sent[source], NONE
        while e != NONE:
            if last == NONE or w.ask_out[e] != w.ask_out[last] or w.ask_to[e] != w.ask_to[last]:
                fans[at], fans[at + 1], fans[at + 2] = (
                    w.ask_to[e],
                    w.ask_bytes[e],
                    w.ask_base[e],
                )
                counter, at = at + 3, at + 4
                fans[counter] = 0
            fans[counter] += 1
            fans[at] = w.ask_ref[e]
            last, at, e = e, at + 1, w.ask_next[e]
    fans[fan + 2 * count + 1] = at
    w.cell[END] = at
    return fan


@jitable
def line_up(w: FanWork, sources: int) -> None:
    """Make the lists of each source's asks: those on its device in their order, those on other
    devices by output, then device, then order.
    """
    for source in range(sources):
        w.source_local[source], w.source_sent[source] = NONE, NONE
    # Backwards, since asks are inserted in front: so equal ones stay in their order.
    for e in range(w.cell[ASKS] - 1, -1, -1):
        source = w.ask_source[e]
        if w.ask_to[e] == HERE:
            w.ask_next[e], w.source_local[source] = w.source_local[source], e
            continue
        before, after, key = NONE, w.source_sent[source], w.ask_out[e] << 32 | w.ask_to[e]
        # Insertion into a list: an output is sent to few devices, and most asks come in order.
        while after != NONE and (w.ask_out[after] << 32 | w.ask_to[after]) < key:
            before, after = after, w.ask_next[after]
        w.ask_next[e] = after
        if before == NONE:
            w.source_sent[source] = e
        else:
            w.ask_next[before] = e


@jitable
def emit_sums(t: Columns, w: FanWork, op: int, output: int) -> None:
    """Write the fan of the sums of a tensor, the pieces they wait for, and their first readers."""
    cell, fans = w.cell, t.fans
    slot, first = t.ops + t.tensor_ptr[op] + output, w.source_ptr[output]
    if t.parts[slot] == 0:
        return
    t.fan[slot] = emit(t, w, first, t.parts[slot])
    t.wait[slot] = cell[END]
    for row in range(t.parts[slot]):
        fans[cell[END] + row] = w.source_waits[first + row]
    cell[END] += t.parts[slot]
    begun = cell[END]
    t.first[slot], at = begun, begun + 1
    for n in range(cell[BEGUN]):
        if w.begun[4 * n] == output:
            fans[at], fans[at + 1], fans[at + 2] = (
                w.begun[4 * n + 1],
                w.begun[4 * n + 2],
                w.begun[4 * n + 3],
            )
            at += 3
    fans[begun] = (at - begun) // 3
    cell[END] = at


@jitable
def fan_out(t: Columns, w: FanWork, op: int, most: int) -> None:
    """Write the fans of an op and of its sums, into at most ``most`` words of fans."""
    cell = w.cell
    sources, parts, tensors = clear(t, w, op), 0, t.tensor_ptr[op + 1] - t.tensor_ptr[op]
    if cell[WRONG] == 0:
        parts = ask(t, w, op)
    if cell[WRONG]:
        return
    words = 3 * (sources + tensors + cell[BEGUN]) + 5 * cell[ASKS] + parts + 2
    if cell[END] + words > most:
        cell[WRONG] = MANY_FANS
        return
    # All asks of all readers are known now: a transfer that serves several is written once.
    line_up(w, sources)
    t.fan[op] = emit(t, w, 0, t.parts[op])
    t.given[op] = cell[END]
    for k in range(parts):
        t.fans[cell[END] + k] = w.given[k]
    cell[END] += parts
    for output in range(tensors):
        emit_sums(t, w, op, output)


@jitable
def count_waits(t: Columns, w: FanWork, op: int) -> None:
    """Write the number of pieces that each part of an op waits for, over all its operands."""
    at, parts = w.cell[END], t.parts[op]
    t.wait[op], w.cell[END] = at, at + parts
    for part in range(parts):
        t.fans[at + part] = 0
    for f in range(t.feed_ptr[op], t.feed_ptr[op + 1]):
        given = t.given[t.feed_op[f]]
        for group in range(t.group_ptr[t.feed_op[f]], t.feed_group[f]):
            given += t.parts[t.group_reader[group]]
        for part in range(parts):
            t.fans[at + part] += t.fans[given + part]


@jit
def fans(columns: Ints, work: Ints, dirty: Ints, waiting: Ints, end: int, most: int) -> int:
    """Write the fans of the ops ``dirty``, and the waits of the ops ``waiting``, from ``end`` on;
    returns the new end. Where the cell WRONG is set, they are incomplete.
    """
    t, w = open_columns(columns), open_fan_work(work)
    w.cell[END], w.cell[WRONG] = end, 0
    for n in range(len(dirty)):
        fan_out(t, w, dirty[n], most)
        if w.cell[WRONG]:
            return end
    for n in range(len(waiting)):
        if w.cell[END] + t.parts[waiting[n]] > most:
            w.cell[WRONG] = MANY_FANS
            return end
        count_waits(t, w, waiting[n])
    return w.cell[END]
