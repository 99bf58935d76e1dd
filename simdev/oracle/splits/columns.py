"""What the kernels of split ops read and write."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...ground.jit import opener
from ...lowering import Prepared
from ...nouns.taskgraph import Ints
from ..heap import FAULT as HEAP_FAULT
from ..heap import horizon_of
from ..routing import rates_of, route_columns, segments_of

PART_BITS = 20
REF_BITS = 52
PART_MASK, REF_MASK = (1 << PART_BITS) - 1, (1 << REF_BITS) - 1
NONE = -1
MOST_PS = 1 << 42
"""No single task takes longer (4.4 s); so a million tasks stay within 53 days."""
# Cells of Work beside the heap's: rows, bits of rounds, transfers, roots, and the ps beyond which
# nobody wants to know more.
ROWS, BITS, SENT, ROOTS, LIMIT, CELLS = range(HEAP_FAULT + 1, HEAP_FAULT + 7)
# How a part reads an operand: its values; the statistics of its own part, where they are partial
# results; the shape alone, of its region or of any.
VALUES, STATISTICS, SHAPE, ANY_PART = range(4)


class NotCoveredError(Exception):
    """Lowering has to answer for this strategy."""


class Columns(NamedTuple):
    """A strategy as blocks (blocks.py) and fans (fan.py).

    A slot is an op, or ``ops`` + a tensor: the sums of it.

    A reference is ``slot << PART_BITS | part``. ``groups`` of an op are its readers in program
    order, their ``entries`` the operands with which they read it; ``feed`` tells for each op whose
    groups it is.
    """

    ops: int
    slots: int
    devices: int
    arena: Ints
    fans: Ints
    block: Ints  # by slot: its geometry (sums: all of it); of ops: devices and ps of its parts
    devices_of: Ints
    parts: Ints  # how many
    fan: Ints  # where its fan is, what its parts wait for
    wait: Ints
    # of sums: the sums that are written, each with the slot and place of its first reader
    first: Ints
    given: Ints  # by op: where the waits of its readers, group by group, are
    tensor_ptr: Ints
    group_ptr: Ints
    group_reader: Ints
    entry_ptr: Ints
    entry_operand: Ints
    entry_output: Ints
    entry_how: Ints  # how a part reads the operand: one of VALUES, STATISTICS, SHAPE, ANY_PART
    feed_ptr: Ints
    feed_op: Ints
    feed_group: Ints


class FanWork(NamedTuple):
    """What fan.py writes while it collects who asks for what of one op; see there."""

    most_asks: int
    most_sources: int
    cell: Ints
    source_ptr: Ints  # by output: the first source of its sums
    # by source: its last view, how many there are, who has written it, waits; ends of lists
    source_view: Ints
    source_views: Ints
    source_written: Ints
    source_waits: Ints
    source_local: Ints
    source_sent: Ints
    ask_source: Ints
    ask_out: Ints
    ask_base: Ints
    ask_to: Ints
    ask_bytes: Ints
    ask_ref: Ints
    ask_next: Ints
    view_next: Ints
    view_base: Ints
    view_number: Ints
    view_region: Ints
    region: Ints
    low: Ints
    high: Ints
    at: Ints
    piece: Ints
    on_device: Ints  # by device: the first copy there of a leaf
    given: Ints  # by part of each group: waits
    begun: Ints  # sums in the order in which they are first read: output, row, slot, place


class Work(NamedTuple):
    """What one evaluation writes, by row (a task that computes or a collective), by slot, by
    queue. The first columns are a heap's.
    """

    id_bits: int
    horizon: int
    cell: Ints
    heap: Ints
    missing: Ints
    when: Ints
    line_end: Ints
    free: Ints
    most_rows: int
    of: Ints  # by row: the reference of its part
    roots: Ints
    base: Ints  # by op: its first row
    map: Ints  # by slot: where ``rows`` holds those of its sums (NONE: an op)
    rows: Ints
    extra: Ints  # by op: the first of the sums that stand before its parts; then a list of these
    extra_next: Ints
    loads: Ints  # by queue: ps for which it is held in all; see bounds.py
    left: Ints  # by queue: ps of what has not started


class Record(NamedTuple):
    """When everything happened, in ps: by row, and by transfer in the order of sending."""

    most_sent: int
    start: Ints
    finish: Ints
    first_sent: Ints
    sent: Ints
    received: Ints


class Rules(NamedTuple):
    """What transfers and devices of a cluster take, whatever is split: columns by (source,
    destination), by class of bandwidth, and by device, in ps.

    A byte takes ``whole`` ps and ``rest`` of ``parts`` more; ``route_class`` is -1 where no route
    is.
    """

    devices: int
    queues: int
    route_class: Ints
    route_held: Ints
    route_lag: Ints
    route_gap: Ints
    queue_ptr: Ints
    queue: Ints
    whole: Ints
    rest: Ints
    parts: Ints
    device_gap: Ints
    most_bytes: int
    unit: int  # bytes of which every buffer is a multiple


open_columns, open_fan_work = opener(Columns), opener(FanWork)
open_work, open_record, open_rules = opener(Work), opener(Record), opener(Rules)


def rules_of(prepared: Prepared) -> Rules:
    """The rules of a cluster. Raises NotCoveredError."""
    segments, devices = segments_of(prepared), len(prepared.cluster.devices)
    routes = route_columns(segments, 0)
    each = [10**12 / rate for rate in rates_of(segments)]  # exact: rates are fractions
    whole = [min(int(ps), MOST_PS) for ps in each]
    rest, parts = [(ps % 1).numerator for ps in each], [(ps % 1).denominator for ps in each]
    longest = max(column.max(initial=0) for column in (*routes[1:4], prepared.gap_ps))
    if max([longest, *parts]) >= MOST_PS:
        raise NotCoveredError
    # So that neither a transfer's ps nor a product with ``rest`` overflows.
    pairs = zip(whole, parts, strict=True)
    most = min((min(MOST_PS // (ps + 1), 2**61 // part) for ps, part in pairs), default=0)
    queues, unit = devices + len(prepared.fabric.queues), prepared.memory.unit
    rates = (np.array(column, np.int64) for column in (whole, rest, parts))
    return Rules._make((devices, queues, *routes, *rates, prepared.gap_ps, most, unit))


def work_for(most_rows: int, ops: int, slots: int, rules: Rules, loads: Ints) -> Work:
    """Room for an evaluation of so many rows."""
    # A row stands on the heap at most once, and ids tell ready rows from those that send.
    id_bits, most = (2 * most_rows).bit_length(), most_rows
    sizes = (CELLS, most, most, most, rules.devices, rules.queues)
    rest = (most, most, slots, slots, most, ops, 3 * most)
    columns = [np.zeros(size, np.int64) for size in (*sizes, *rest)]
    left = np.zeros(rules.queues, np.int64)
    return Work._make((id_bits, horizon_of(id_bits), *columns[:6], most, *columns[6:], loads, left))


def record_for(most_rows: int) -> Record:
    """Room to note when everything happened; four transfers a row at most."""
    sizes = (most_rows, most_rows, most_rows, 4 * most_rows, 4 * most_rows)
    return Record(4 * most_rows, *(np.zeros(size, np.int64) for size in sizes))


def fan_work_for(most: int, outputs: int, devices: int) -> FanWork:
    """Room to collect so many asks of an op with so many outputs."""
    sizes = (8, outputs, *[most] * 17, 40 * most, 8, 8, 8, 16, devices, most, 4 * most)
    return FanWork(most, most, *(np.zeros(size, np.int64) for size in sizes))
