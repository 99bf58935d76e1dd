"""What the readers of one op ask of its parts: pieces, views, and the sums of its partial results.

The order of everything is that of ``lowering.partition``: readers in program order, their parts,
operands, and the grid's places; a sum is written when it is first read.
"""

from __future__ import annotations

from ...ground.jit import jit, jitable
from ...nouns.taskgraph import Ints
from .columns import (
    ADDENDS,
    ADDENDS_OF,
    ANY_PART,
    BOXES,
    BYTES,
    CELLS,
    COLLECTIVE,
    DEVICES,
    DIMS,
    ELEMENTS,
    INPUTS,
    KIND,
    LAYOUTS,
    LOCAL,
    NEEDS,
    NONE,
    OF_SUMS,
    PART_BITS,
    RANK,
    REF_BITS,
    ROW,
    SHAPE,
    STATISTICS,
    SUM_GRID,
    UNIT,
    WHAT,
    Columns,
    FanWork,
    open_columns,
    open_fan_work,
)

# Regions of tensors in the layouts that blocks.py writes: the places of a grid that they touch.


@jitable
def layout_of(t: Columns, op: int, output: int) -> int:
    """Where the layout of an output begins."""
    return t.arena[t.arena[t.block[op] + LAYOUTS] + output]


@jitable
def size_of(t: Columns, layout: int, volume: int) -> int:
    """Bytes of a part of a tensor, rounded up."""
    if t.arena[layout + UNIT] > 0:
        return t.arena[layout + UNIT] * volume
    count = t.arena[layout + ELEMENTS]
    return (t.arena[layout + BYTES] * volume + count - 1) // count if count > 0 else 0


@jitable
def first_above(t: Columns, column: int, low: int, high: int, value: int) -> int:
    """The first place in [low, high) of a sorted column whose entry is above a value, or high."""
    while low < high:
        middle = (low + high) >> 1
        if t.arena[column + middle] > value:
            high = middle
        else:
            low = middle + 1
    return low


@jitable
def touch(t: Columns, w: FanWork, layout: int, need: int) -> bool:
    """Set the places of a grid that share a point with a region, by dimension; whether there are
    any.
    """
    arena = t.arena
    for d in range(arena[layout + RANK]):
        dim = layout + DIMS + 4 * d
        n, starts, stops = arena[dim], arena[dim + 1], arena[dim + 2]
        begin, end = arena[need + 2 * d], arena[need + 2 * d + 1]
        low = first_above(t, stops, 0, n, begin)
        high = first_above(t, starts, low, n, end - 1)
        if begin == end:
            # A tensor without elements is read and sent all the same.
            at = first_above(t, stops, 0, n, begin - 1)
            if at < n and arena[starts + at] == begin and arena[stops + at] == end:
                low, high = at, at + 1
        w.low[d], w.at[d], w.high[d] = low, low, high
        if low >= high:
            return False
    return True


@jitable
def next_place(w: FanWork, rank: int) -> bool:
    """Go to the next of the places that are touched, the last dimension fastest; whether there is
    one.
    """
    d = rank - 1
    while d >= 0:
        w.at[d] += 1
        if w.at[d] < w.high[d]:
            return True
        w.at[d] = w.low[d]
        d -= 1
    return False


@jitable
def cut(t: Columns, w: FanWork, layout: int, need: int) -> bool:
    """Take the piece of a region at the place in hand; whether it is all that stands there."""
    arena = t.arena
    is_all = True
    for d in range(arena[layout + RANK]):
        dim, k = layout + DIMS + 4 * d, w.at[d]
        begin, end = arena[arena[dim + 1] + k], arena[arena[dim + 2] + k]
        w.piece[2 * d] = max(begin, arena[need + 2 * d])
        w.piece[2 * d + 1] = min(end, arena[need + 2 * d + 1])
        is_all = is_all and w.piece[2 * d] == begin and w.piece[2 * d + 1] == end
    return is_all


@jitable
def cell_at(t: Columns, w: FanWork, layout: int) -> int:
    """What holds the place in hand, or NONE."""
    cell = t.arena[layout + CELLS]
    for d in range(t.arena[layout + RANK]):
        cell += w.at[d] * t.arena[layout + DIMS + 4 * d + 3]
    return t.arena[cell]


@jitable
def is_inside(t: Columns, need: int, region: int, rank: int) -> bool:
    """Whether one region is a part of another one."""
    for d in range(rank):
        if (
            t.arena[need + 2 * d] < t.arena[region + 2 * d]
            or t.arena[need + 2 * d + 1] > t.arena[region + 2 * d + 1]
        ):
            return False
    return True


# Cells of FanWork: asks, views, words of regions, sums begun, the end of the fans, what went wrong.
ASKS, VIEWS, REGIONS, BEGUN, END, FAULT = range(6)
FULL, UNKNOWN = 1, 2
"""Faults: no room (try again with more); something that is not known here."""
HERE = -1
VIEW = 1 << 20
"""Numbers of views, after all outputs that are made."""


@jitable
def view_of(w: FanWork, source: int, base: int, rank: int) -> int:
    """The number of the output of a source that holds the piece in hand, a view of ``base``; a new
    one where needed.
    """
    v = w.source_view[source]
    while v != NONE:
        if w.view_base[v] == base:
            at, d = w.view_region[v], 0
            while d < 2 * rank and w.region[at + d] == w.piece[d]:
                d += 1
            if d == 2 * rank:
                return w.view_number[v]
        v = w.view_next[v]
    v, at = w.cell[VIEWS], w.cell[REGIONS]
    w.cell[VIEWS], w.cell[REGIONS] = v + 1, at + 2 * rank
    for d in range(2 * rank):
        w.region[at + d] = w.piece[d]
    number = VIEW + w.source_views[source]
    w.source_views[source] += 1
    w.view_base[v], w.view_number[v], w.view_region[v] = base, number, at
    w.view_next[v], w.source_view[source] = w.source_view[source], v
    return number


@jitable
def hand(
    t: Columns,
    w: FanWork,
    layout: int,
    source: int,
    base: int,
    is_base: bool,
    rank: int,
    here: int,
    to: int,
    ref: int,
) -> None:
    """One piece, held by a source on device ``here``, for a reader on device ``to`` (HERE: wherever
    it lies).
    """
    e = w.cell[ASKS]
    if e >= w.most_asks:
        w.cell[FAULT] = FULL
        return
    w.cell[ASKS] = e + 1
    volume = 1
    for d in range(rank):
        volume *= w.piece[2 * d + 1] - w.piece[2 * d]
    w.ask_source[e], w.ask_base[e], w.ask_ref[e] = source, base, ref
    w.ask_out[e] = base if is_base else view_of(w, source, base, rank)
    w.ask_bytes[e] = size_of(t, layout, volume)
    w.ask_to[e] = HERE if to in (HERE, here) else here * t.devices + to


@jitable
def sum_row(t: Columns, op: int, output: int, row: int) -> int:
    """Where one of the sums of a tensor is told."""
    return t.arena[t.block[t.ops + t.tensor_ptr[op] + output] + ROW + row]


@jitable
def lies_on(t: Columns, op: int, output: int, row: int, base: int) -> int:
    """The device of a copy."""
    if row >= OF_SUMS:
        return t.arena[sum_row(t, op, output, row - OF_SUMS) + DEVICES + base]
    return t.arena[t.devices_of[op] + row]


@jitable
def begin_sum(
    t: Columns, w: FanWork, op: int, output: int, row: int, reader: int, place: int
) -> None:
    """A sum asks for what it reads, and is written before the part that first reads it."""
    arena = t.arena
    layout = layout_of(t, op, output)
    where, slot = sum_row(t, op, output, row), t.ops + t.tensor_ptr[op] + output
    inputs, summed = arena[where + INPUTS], w.source_ptr[output] + row
    count, rank = arena[inputs], arena[inputs + 1]
    to = HERE if arena[where + WHAT] == COLLECTIVE else arena[where + DEVICES]
    for n in range(count):
        at = inputs + 2 + n * (3 + 2 * rank)
        source, base = arena[at], arena[at + 1]
        here = lies_on(t, op, output, source, base)
        if source >= OF_SUMS:
            source += w.source_ptr[output] - OF_SUMS
            if w.source_written[source] == 0:
                w.cell[FAULT] = UNKNOWN
        for d in range(2 * rank):
            w.piece[d] = arena[at + 3 + d]
        w.source_waits[summed] += 1
        hand(
            t,
            w,
            layout,
            source,
            base,
            arena[at + 2] != 0,
            rank,
            here,
            to,
            slot << PART_BITS | row,
        )
    n = 4 * w.cell[BEGUN]
    w.cell[BEGUN] += 1
    w.source_written[summed] = 1
    w.begun[n], w.begun[n + 1], w.begun[n + 2], w.begun[n + 3] = output, row, reader, place


@jitable
def need_sum(
    t: Columns, w: FanWork, op: int, output: int, row: int, reader: int, place: int
) -> None:
    """Write a sum that is not written yet, and before it those that it reads."""
    first = w.source_ptr[output]
    if w.source_written[first + row]:
        return
    inputs = t.arena[sum_row(t, op, output, row) + INPUTS]
    count, stride, last = t.arena[inputs], 3 + 2 * t.arena[inputs + 1], NONE
    for n in range(count + 1):  # those that it reads, then itself: one call, since it is inlined
        other = row
        if n < count:
            other = t.arena[inputs + 2 + n * stride] - OF_SUMS
            if other < 0 or w.source_written[first + other]:
                continue
        last = other
        begin_sum(t, w, op, output, last, reader, place)


@jitable
def nearest(t: Columns, op: int, output: int, copies: int, to: int) -> int:
    """Where the copy on a device is told, or the first one."""
    for c in range(t.arena[copies]):
        at = copies + 1 + 2 * c
        if lies_on(t, op, output, t.arena[at], t.arena[at + 1]) == to:
            return at
    return copies + 1


@jitable
def need_of(
    t: Columns, w: FanWork, op: int, output: int, row: int, rank: int, reader: int, place: int
) -> None:
    """A reader needs a sum; the piece in hand stays what it is."""
    # The piece is kept beside the regions of views: the sum's own asks overwrite it.
    at = w.cell[REGIONS]
    w.cell[REGIONS] += 2 * rank
    for d in range(2 * rank):
        w.region[at + d] = w.piece[d]
    need_sum(t, w, op, output, row, reader, place)
    for d in range(2 * rank):
        w.piece[d] = w.region[at + d]


@jitable
def read_grid(
    t: Columns,
    w: FanWork,
    op: int,
    output: int,
    addend: int,
    need: int,
    to: int,
    reader: int,
    place: int,
    part: int,
) -> int:
    """A part reads a region from the grid in which a tensor, or (addend -1) its values, lie; how
    many pieces.
    """
    arena = t.arena
    units = layout_of(t, op, output)
    layout = units
    if addend < 0:
        layout, addend = arena[t.block[t.ops + t.tensor_ptr[op] + output] + SUM_GRID], 0
    rank, pieces, more = arena[layout + RANK], 0, touch(t, w, layout, need)
    while more:
        cell = cell_at(t, w, layout)
        if cell != NONE:
            if addend >= arena[cell]:
                w.cell[FAULT] = UNKNOWN
                return 0
            is_base = cut(t, w, layout, need)
            at = nearest(t, op, output, arena[cell + 1 + addend], to)
            source, base = arena[at], arena[at + 1]
            here = lies_on(t, op, output, source, base)
            if source >= OF_SUMS:
                need_of(t, w, op, output, source - OF_SUMS, rank, reader, place)
                source += w.source_ptr[output] - OF_SUMS
            hand(t, w, units, source, base, is_base, rank, here, to, reader << PART_BITS | part)
            pieces += 1
        more = next_place(w, rank)
    return pieces


@jitable
def read_shape(
    t: Columns,
    w: FanWork,
    op: int,
    output: int,
    any_part: bool,
    need: int,
    to: int,
    ref: int,
) -> int:
    """A part looks at the shape of a region, in any of the partial results; how many pieces.

    ``any_part``: one piece will do, on its device if there is one, else the first.
    """
    arena = t.arena
    layout = layout_of(t, op, output)
    rank, pieces = arena[layout + RANK], 0
    for here_only in range(1 if any_part else 0, -1, -1):
        more = pieces == 0 and touch(t, w, layout, need)
        while more:
            cell = cell_at(t, w, layout)
            if cell != NONE:
                at = nearest(t, op, output, arena[cell + 1], to)
                for addend in range(1, arena[cell]):
                    other = nearest(t, op, output, arena[cell + 1 + addend], to)
                    if (
                        lies_on(t, op, output, arena[at], arena[at + 1]) != to
                        and lies_on(t, op, output, arena[other], arena[other + 1]) == to
                    ):
                        at = other
                here = lies_on(t, op, output, arena[at], arena[at + 1])
                if (not any_part or pieces == 0) and (not here_only or here == to):
                    is_base = cut(t, w, layout, need)
                    hand(t, w, layout, arena[at], arena[at + 1], is_base, rank, here, to, ref)
                    pieces += 1
            more = next_place(w, rank)
    return pieces


@jitable
def own_addend(t: Columns, op: int, output: int, box: int, device: int) -> int:
    """Which partial result of a statistic is that of a part with this box on this device, or
    NONE.
    """
    arena = t.arena
    layout = layout_of(t, op, output)
    cells, places, best = arena[layout + CELLS], 1, NONE
    for d in range(arena[layout + RANK]):
        places *= arena[layout + DIMS + 4 * d]
    boxes, differs = arena[t.block[op] + BOXES], True
    for place in range(places):
        cell = arena[cells + place]
        if cell != NONE:
            for addend in range(arena[cell]):
                row = arena[arena[cell + 1 + addend] + 1]
                if arena[t.devices_of[op] + row] == device:
                    other = arena[boxes + row] != box
                    if (
                        best == NONE
                        or (differs and not other)
                        or (differs == other and addend < best)
                    ):
                        best, differs = addend, other
    return best


@jitable
def read_local(
    t: Columns, w: FanWork, op: int, output: int, any_part: bool, need: int, to: int, ref: int
) -> None:
    """A part reads a region of what is there on demand: of the first copy on its device that holds
    it. ``any_part``: what the first copy there holds, or the first of all.
    """
    arena = t.arena
    layout, devices = layout_of(t, op, output), t.devices_of[op]
    rank, regions, count = arena[layout + RANK], arena[layout + CELLS], t.parts[op]
    row, source = w.on_device[to], NONE
    while row != NONE and row < count and arena[devices + row] == to:
        region = regions + row * (1 + 2 * rank)
        if arena[region] >= 0 and (any_part or is_inside(t, need, region + 1, rank)):
            source = row
            break
        row += 1
    if source == NONE and any_part and count > 0 and arena[regions] >= 0:
        source = 0
    if source == NONE:
        w.cell[FAULT] = UNKNOWN
        return
    held = regions + source * (1 + 2 * rank)
    for d in range(2 * rank):
        w.piece[d] = arena[(held + 1 if any_part else need) + d]
    here = arena[devices + source]
    hand(t, w, layout, source, arena[held], True, rank, here, to, ref)


@jitable
def clear(t: Columns, w: FanWork, op: int) -> int:
    """Nobody has asked yet.

    Returns how many sources there are: the op's parts, then the sums of its outputs.
    """
    cell = w.cell
    cell[ASKS], cell[VIEWS], cell[REGIONS], cell[BEGUN], cell[FAULT] = 0, 0, 0, 0, 0
    sources = t.parts[op]
    for tensor in range(t.tensor_ptr[op], t.tensor_ptr[op + 1]):
        w.source_ptr[tensor - t.tensor_ptr[op]] = sources
        sources += t.parts[t.ops + tensor]
    if sources + 1 >= w.most_sources:
        cell[FAULT] = FULL
        return 0
    for source in range(sources):
        w.source_view[source], w.source_views[source] = NONE, 0
        w.source_written[source], w.source_waits[source] = 0, 0
    for device in range(t.devices):
        w.on_device[device] = NONE
    for row in range(t.parts[op] - 1, -1, -1):
        w.on_device[t.arena[t.devices_of[op] + row]] = row
    return sources


@jitable
def read_one(t: Columns, w: FanWork, op: int, entry: int, reader: int, part: int) -> int:
    """A part of a reader reads one operand; how many pieces."""
    arena = t.arena
    operand, output, block = t.entry_operand[entry], t.entry_output[entry], t.block[reader]
    need, to = arena[arena[block + NEEDS] + operand], arena[t.devices_of[reader] + part]
    rank = arena[need]
    need += 1 + part * (1 + 2 * rank)
    if arena[need] == 0:
        return 0
    layout, how, ref = layout_of(t, op, output), t.entry_how[entry], reader << PART_BITS | part
    if arena[layout + KIND] == LOCAL:
        read_local(t, w, op, output, how == ANY_PART, need + 1, to, ref)
        return 1
    if how in (SHAPE, ANY_PART):
        return read_shape(t, w, op, output, how == ANY_PART, need + 1, to, ref)
    addend = 0
    if arena[layout + ADDENDS_OF] > 1:
        addend = arena[arena[block + ADDENDS] + part]
        if addend < 0 and how == STATISTICS:
            addend = own_addend(t, op, output, arena[arena[block + BOXES] + part], to)
        if addend < 0 and t.block[t.ops + t.tensor_ptr[op] + output] == 0:
            w.cell[FAULT] = UNKNOWN
            return 0
    return read_grid(
        t, w, op, output, addend, need + 1, to, reader, part << PART_BITS | operand, part
    )


@jitable
def ask(t: Columns, w: FanWork, op: int) -> int:
    """Everything that the readers of an op ask for, in order; how many parts they have together."""
    parts = 0
    for group in range(t.group_ptr[op], t.group_ptr[op + 1]):
        reader = t.group_reader[group]
        if parts + t.parts[reader] >= w.most_asks:
            w.cell[FAULT] = FULL
            return 0
        for part in range(t.parts[reader]):
            pieces = 0
            for entry in range(t.entry_ptr[group], t.entry_ptr[group + 1]):
                pieces += read_one(t, w, op, entry, reader, part)
            if w.cell[FAULT]:
                return 0
            w.given[parts + part] = pieces
        parts += t.parts[reader]
    return parts


# Fans: who is handed what.


@jitable
def emit(t: Columns, w: FanWork, first: int, count: int) -> int:
    """Write the fan of some sources: for each where its readers here begin, then where its
    transfers do, then all.
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
    """The asks of each source: those where it lies, in order; those of others by output, device,
    then order.
    """
    for source in range(sources):
        w.source_local[source], w.source_sent[source] = NONE, NONE
    # Backwards, so that pushing each in front leaves equal ones in the order of asking.
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
    """Write the fan of the sums of a tensor, what they wait for, and who reads them first."""
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
    """Write the fans of an op and of its sums; ``most`` words of fans may be used."""
    cell = w.cell
    sources, parts, tensors = clear(t, w, op), 0, t.tensor_ptr[op + 1] - t.tensor_ptr[op]
    if cell[FAULT] == 0:
        parts = ask(t, w, op)
    if cell[END] + 4 * (sources + tensors) + 5 * cell[ASKS] + parts + 3 * cell[BEGUN] + 64 > most:
        cell[FAULT] = max(cell[FAULT], FULL)
    if cell[FAULT]:
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
    """What the parts of an op wait for, over all that it reads."""
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
    """Write the fans of some ops, and the waits of others, from ``end`` on; the new end, or minus a
    fault.
    """
    t, w = open_columns(columns), open_fan_work(work)
    w.cell[END] = end
    for n in range(len(dirty)):
        fan_out(t, w, dirty[n], most)
        if w.cell[FAULT]:
            return -w.cell[FAULT]
    for n in range(len(waiting)):
        if w.cell[END] + t.parts[waiting[n]] > most:
            return -FULL
        count_waits(t, w, waiting[n])
    return w.cell[END]
