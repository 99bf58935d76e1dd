"""The asks of the readers of an op: pieces of its parts, views, and sums of its partial results.

Asks have the order of ``lowering.partition``: readers in program order, then their parts, operands,
and the places of the grid; a sum is written when it is first read. A change of the reading rules
there must be made here too. ``fan.py`` calls ``ask``.
"""

from __future__ import annotations

from typing import NamedTuple

from ...ground.jit import jitable
from ...nouns.taskgraph import Ints
from ..heap import NONE
from .columns import (
    ADDENDS,
    ADDENDS_OF,
    ANY_PART,
    ASKS,
    BEGUN,
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
    MANY_ASKS,
    NEEDS,
    OF_SUMS,
    PART_BITS,
    RANK,
    REGIONS,
    ROW,
    SHAPE,
    STATISTICS,
    SUM_GRID,
    UNKNOWN,
    VIEWS,
    WHAT,
    WRONG,
    Columns,
    FanWork,
)

# Regions of tensors, and the places that they touch in the grids that blocks.py writes.


class Output(NamedTuple):
    """An output of the current op."""

    op: int
    sums: int  # the slot of its sums
    first: int  # the source number of its first sum
    number: int
    layout: int  # the arena offset of its layout
    rank: int


class Reading(NamedTuple):
    """A part that reads an output."""

    op: int
    ref: int  # the reference of the part
    place: int  # part << PART_BITS | operand
    to: int  # the device of the part
    need: int  # the arena offset of the region that it reads


@jitable
def output_of(t: Columns, w: FanWork, op: int, number: int) -> Output:
    """The output ``number`` of the current op."""
    layout = t.arena[t.arena[t.block[op] + LAYOUTS] + number]
    sums = t.ops + t.tensor_ptr[op] + number
    return Output(op, sums, w.source_ptr[number], number, layout, t.arena[layout + RANK])


@jitable
def size_of(t: Columns, layout: int, volume: int) -> int:
    """The bytes of ``volume`` elements of a tensor, rounded up."""
    return -(-t.arena[layout + BYTES] * volume // t.arena[layout + ELEMENTS])


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
    """Set ``low``, ``at`` and ``high`` to the places of a grid that share a point with a region, by
    dimension; returns whether there are any.
    """
    arena = t.arena
    for d in range(arena[layout + RANK]):
        dim = layout + DIMS + 4 * d
        n, starts, stops = arena[dim], arena[dim + 1], arena[dim + 2]
        begin, end = arena[need + 2 * d], arena[need + 2 * d + 1]
        low = first_above(t, stops, 0, n, begin)
        high = first_above(t, starts, low, n, end - 1)
        if begin == end:
            # A region without elements is read and sent all the same.
            at = first_above(t, stops, 0, n, begin - 1)
            if at < n and arena[starts + at] == begin and arena[stops + at] == end:
                low, high = at, at + 1
        w.low[d], w.at[d], w.high[d] = low, low, high
        if low >= high:
            return False
    return True


@jitable
def next_place(w: FanWork, rank: int) -> bool:
    """Go to the next touched place, the last dimension fastest; returns whether there is any."""
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
    """Set the current piece to the intersection of a region with the current place; returns whether
    it is the whole place.
    """
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
    """The arena offset of the cell of the current place, or NONE."""
    cell = t.arena[layout + CELLS]
    for d in range(t.arena[layout + RANK]):
        cell += w.at[d] * t.arena[layout + DIMS + 4 * d + 3]
    return t.arena[cell]


@jitable
def is_inside(t: Columns, need: int, region: int, rank: int) -> bool:
    """Whether the region ``need`` is inside the region ``region``."""
    for d in range(rank):
        if (
            t.arena[need + 2 * d] < t.arena[region + 2 * d]
            or t.arena[need + 2 * d + 1] > t.arena[region + 2 * d + 1]
        ):
            return False
    return True


HERE = -1
VIEW = 1 << 20
"""The number of the first view of a source, above the numbers of all outputs."""


@jitable
def view_of(w: FanWork, source: int, base: int, rank: int) -> int:
    """The number of the view of ``base`` that covers the current piece; where the source has no
    such view, a new one.
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
    v, at = w.cell[VIEWS], keep_piece(w, rank)
    w.cell[VIEWS] = v + 1
    number = VIEW + w.source_views[source]
    w.source_views[source] += 1
    w.view_base[v], w.view_number[v], w.view_region[v] = base, number, at
    w.view_next[v], w.source_view[source] = w.source_view[source], v
    return number


@jitable
def keep_piece(w: FanWork, rank: int) -> int:
    """Copy the current piece to ``region``; returns its place there."""
    at = w.cell[REGIONS]
    w.cell[REGIONS] = at + 2 * rank
    for d in range(2 * rank):
        w.region[at + d] = w.piece[d]
    return at


@jitable
def take_piece(w: FanWork, rank: int, words: Ints, at: int) -> None:
    """Set the current piece to the region at the place ``at`` of ``words``."""
    for d in range(2 * rank):
        w.piece[d] = words[at + d]


@jitable
def sum_row(t: Columns, x: Output, row: int) -> int:
    """The arena offset of a sum of a tensor."""
    return t.arena[t.block[x.sums] + ROW + row]


@jitable
def lies_on(t: Columns, x: Output, copy: int) -> int:
    """The device of a copy, whose row and base are at the arena offset ``copy``."""
    row, base = t.arena[copy], t.arena[copy + 1]
    if row >= OF_SUMS:
        return t.arena[sum_row(t, x, row - OF_SUMS) + DEVICES + base]
    return t.arena[t.devices_of[x.op] + row]


@jitable
def source_of(t: Columns, x: Output, copy: int) -> int:
    """The number of the source that makes a copy."""
    row = t.arena[copy]
    return x.first + row - OF_SUMS if row >= OF_SUMS else row


@jitable
def hand(
    t: Columns,
    w: FanWork,
    x: Output,
    source: int,
    base: int,
    is_base: bool,
    here: int,
    to: int,
    ref: int,
) -> None:
    """Add an ask: a reader on device ``to`` (HERE: any device) needs the current piece from a
    source on device ``here``. ``is_base``: the piece is the whole output ``base``.
    """
    e = w.cell[ASKS]
    if e >= w.most_asks:
        w.cell[WRONG] = MANY_ASKS
        return
    w.cell[ASKS] = e + 1
    volume = 1
    for d in range(x.rank):
        volume *= w.piece[2 * d + 1] - w.piece[2 * d]
    w.ask_source[e], w.ask_base[e], w.ask_ref[e] = source, base, ref
    w.ask_out[e] = base if is_base else view_of(w, source, base, x.rank)
    w.ask_bytes[e] = size_of(t, x.layout, volume)
    w.ask_to[e] = HERE if to in (HERE, here) else here * t.devices + to


@jitable
def begin_sum(t: Columns, w: FanWork, x: Output, row: int, a: Reading) -> None:
    """Write a sum before the part ``a`` that first reads it: add the asks for its inputs."""
    arena, where, summed = t.arena, sum_row(t, x, row), x.first + row
    inputs = arena[where + INPUTS]
    to = HERE if arena[where + WHAT] == COLLECTIVE else arena[where + DEVICES]
    for n in range(arena[inputs]):
        at = inputs + 2 + n * (3 + 2 * arena[inputs + 1])
        source = source_of(t, x, at)
        if arena[at] >= OF_SUMS and w.source_written[source] == 0:
            w.cell[WRONG] = UNKNOWN
        take_piece(w, x.rank, arena, at + 3)
        w.source_waits[summed] += 1
        is_base, ref = arena[at + 2] != 0, x.sums << PART_BITS | row
        hand(t, w, x, source, arena[at + 1], is_base, lies_on(t, x, at), to, ref)
    n = 4 * w.cell[BEGUN]
    w.cell[BEGUN] += 1
    w.source_written[summed] = 1
    w.begun[n], w.begun[n + 1], w.begun[n + 2], w.begun[n + 3] = x.number, row, a.op, a.place


@jitable
def need_sum(t: Columns, w: FanWork, x: Output, row: int, a: Reading) -> None:
    """Write a sum, and before it the sums that it reads, unless they are written already. The
    current piece does not change.
    """
    if w.source_written[x.first + row]:
        return
    kept = keep_piece(w, x.rank)
    inputs = t.arena[sum_row(t, x, row) + INPUTS]
    count, stride = t.arena[inputs], 3 + 2 * t.arena[inputs + 1]
    for n in range(count + 1):  # inputs, then the sum: a single call site, since it is inlined
        other = row
        if n < count:
            other = t.arena[inputs + 2 + n * stride] - OF_SUMS
            if other < 0 or w.source_written[x.first + other]:
                continue
        begin_sum(t, w, x, other, a)
    take_piece(w, x.rank, w.region, kept)


@jitable
def nearest(t: Columns, x: Output, copies: int, to: int) -> int:
    """The arena offset of the copy on a device, or else of the first copy."""
    for at in range(copies + 1, copies + 1 + 2 * t.arena[copies], 2):
        if lies_on(t, x, at) == to:
            return at
    return copies + 1


@jitable
def read_grid(t: Columns, w: FanWork, x: Output, addend: int, a: Reading) -> int:
    """Add the asks of a part that reads a region of a tensor in a grid: of the partial result
    ``addend``, or (addend -1) of the summed values. Returns the number of pieces.
    """
    arena, layout = t.arena, x.layout
    if addend < 0:
        layout, addend = arena[t.block[x.sums] + SUM_GRID], 0
    pieces, more = 0, touch(t, w, layout, a.need)
    while more:
        cell = cell_at(t, w, layout)
        if cell != NONE:
            if addend >= arena[cell]:
                w.cell[WRONG] = UNKNOWN
                return 0
            is_base = cut(t, w, layout, a.need)
            at = nearest(t, x, arena[cell + 1 + addend], a.to)
            if arena[at] >= OF_SUMS:
                need_sum(t, w, x, arena[at] - OF_SUMS, a)
            source, here = source_of(t, x, at), lies_on(t, x, at)
            hand(t, w, x, source, arena[at + 1], is_base, here, a.to, a.ref)
            pieces += 1
        more = next_place(w, x.rank)
    return pieces


@jitable
def read_shape(t: Columns, w: FanWork, x: Output, any_part: bool, a: Reading) -> int:
    """Add the asks of a part that needs only the shape of a region, from any of the partial
    results. Returns the number of pieces.

    ``any_part``: a single piece suffices, one on the part's device if there is any, else the first.
    """
    arena, pieces = t.arena, 0
    for here_only in range(1 if any_part else 0, -1, -1):
        more = pieces == 0 and touch(t, w, x.layout, a.need)
        while more:
            cell = cell_at(t, w, x.layout)
            if cell != NONE:
                at = nearest(t, x, arena[cell + 1], a.to)
                for addend in range(1, arena[cell]):
                    other = nearest(t, x, arena[cell + 1 + addend], a.to)
                    if lies_on(t, x, at) != a.to and lies_on(t, x, other) == a.to:
                        at = other
                here = lies_on(t, x, at)
                if (not any_part or pieces == 0) and (not here_only or here == a.to):
                    is_base = cut(t, w, x.layout, a.need)
                    hand(t, w, x, arena[at], arena[at + 1], is_base, here, a.to, a.ref)
                    pieces += 1
            more = next_place(w, x.rank)
    return pieces


@jitable
def own_addend(t: Columns, x: Output, box: int, device: int) -> int:
    """The number of the partial result of a statistic that was made on this device, by the part
    with this box if there is one, else by another part; NONE where there is none.
    """
    arena, places, best, differs = t.arena, 1, NONE, True
    for d in range(x.rank):
        places *= arena[x.layout + DIMS + 4 * d]
    cells, boxes = arena[x.layout + CELLS], arena[t.block[x.op] + BOXES]
    for place in range(places):
        cell = arena[cells + place]
        if cell == NONE:
            continue
        for addend in range(arena[cell]):
            row = arena[arena[cell + 1 + addend] + 1]
            if arena[t.devices_of[x.op] + row] == device:
                other = arena[boxes + row] != box
                if best == NONE or (differs and not other) or (differs == other and addend < best):
                    best, differs = addend, other
    return best


@jitable
def read_local(t: Columns, w: FanWork, x: Output, any_part: bool, a: Reading) -> None:
    """Add the ask of a part that reads a region of an op available on demand: from the first copy
    on its device that contains the region. ``any_part``: from the first copy on its device, or else
    the first copy of all.
    """
    arena, devices, count = t.arena, t.devices_of[x.op], t.parts[x.op]
    regions, stride = arena[x.layout + CELLS], 1 + 2 * x.rank
    row, source = w.on_device[a.to], NONE
    while row != NONE and row < count and arena[devices + row] == a.to:
        region = regions + row * stride
        if arena[region] >= 0 and (any_part or is_inside(t, a.need, region + 1, x.rank)):
            source = row
            break
        row += 1
    if source == NONE and any_part and count > 0 and arena[regions] >= 0:
        source = 0
    if source == NONE:
        w.cell[WRONG] = UNKNOWN
        return
    held = regions + source * stride
    take_piece(w, x.rank, arena, held + 1 if any_part else a.need)
    hand(t, w, x, source, arena[held], True, arena[devices + source], a.to, a.ref)


@jitable
def clear(t: Columns, w: FanWork, op: int) -> int:
    """Remove all asks. Returns the number of sources: the op's parts, then its outputs' sums."""
    cell = w.cell
    cell[ASKS], cell[VIEWS], cell[REGIONS], cell[BEGUN] = 0, 0, 0, 0
    sources = t.parts[op]
    for tensor in range(t.tensor_ptr[op], t.tensor_ptr[op + 1]):
        w.source_ptr[tensor - t.tensor_ptr[op]] = sources
        sources += t.parts[t.ops + tensor]
    if sources + 1 >= w.most_sources:
        cell[WRONG] = MANY_ASKS
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
    """Add the asks of a part of a reader for one operand; returns the number of pieces."""
    arena = t.arena
    operand, how, block = t.entry_operand[entry], t.entry_how[entry], t.block[reader]
    rank = arena[arena[arena[block + NEEDS] + operand]]
    need = arena[arena[block + NEEDS] + operand] + 1 + part * (1 + 2 * rank)
    if arena[need] == 0:
        return 0
    x, to = output_of(t, w, op, t.entry_output[entry]), arena[t.devices_of[reader] + part]
    ref, place = reader << PART_BITS | part, part << PART_BITS | operand
    a = Reading(reader, ref, place, to, need + 1)
    if arena[x.layout + KIND] == LOCAL:
        read_local(t, w, x, how == ANY_PART, a)
        return 1
    if how in (SHAPE, ANY_PART):
        return read_shape(t, w, x, how == ANY_PART, a)
    addend = 0
    if arena[x.layout + ADDENDS_OF] > 1:
        addend = arena[arena[block + ADDENDS] + part]
        if addend < 0 and how == STATISTICS:
            addend = own_addend(t, x, arena[arena[block + BOXES] + part], to)
        if addend < 0 and t.block[x.sums] == 0:
            w.cell[WRONG] = UNKNOWN
            return 0
    return read_grid(t, w, x, addend, a)


@jitable
def ask(t: Columns, w: FanWork, op: int) -> int:
    """Add the asks of all readers of an op, in order; returns the number of their parts."""
    parts = 0
    for group in range(t.group_ptr[op], t.group_ptr[op + 1]):
        reader = t.group_reader[group]
        if parts + t.parts[reader] >= w.most_asks:
            w.cell[WRONG] = MANY_ASKS
            return 0
        for part in range(t.parts[reader]):
            pieces = 0
            for entry in range(t.entry_ptr[group], t.entry_ptr[group + 1]):
                pieces += read_one(t, w, op, entry, reader, part)
            if w.cell[WRONG]:
                return 0
            w.given[parts + part] = pieces
        parts += t.parts[reader]
    return parts
