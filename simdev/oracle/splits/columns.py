"""The columns that the kernels of split ops read and write, and the arena that holds the blocks of
ops and sums. blocks.py writes blocks; pieces.py, fan.py, hosts.py and run.py read them by the names
of words given here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...ground.jit import opener
from ...lowering import Prepared
from ...nouns.taskgraph import Ints
from ..cluster import routes_of, segments_of
from ..heap import CELLS as HEAP_CELLS
from ..heap import FAR, horizon_of, room

PART_BITS = 20
REF_BITS = 52
PART_MASK, REF_MASK = (1 << PART_BITS) - 1, (1 << REF_BITS) - 1
MOST_PS = 1 << 42
"""Limit of the ps of a task (4.4 s), so that a million tasks stay within 53 days."""
SENT_BY_ROW = 4
"""Average number of transfers of a row that records have room for at first."""
FIRST, LATEST = 1 << 16, 1 << 61
"""The number of rounds of time 0, in which all leaves run; and the latest instant of a run."""
# Cells of Work beside the heap's. Numbers of: rows, transfers, roots; the limit of the step in ps;
# the number of rows taken up.
ROWS, SENT, ROOTS, LIMIT, DONE, WORK_CELLS = range(HEAP_CELLS, HEAP_CELLS + 6)
FULL, LONG, WORSE = FAR + 1, FAR + 2, FAR + 3
"""Faults beside FAR: no room; a step or a graph too long; a step that exceeds the limit."""
# Ways in which a part reads an operand: its values; the statistics of its own part, where they are
# partial results; only the shape, of its region or of any.
VALUES, STATISTICS, SHAPE, ANY_PART = range(4)

# Cells of FanWork. Numbers of: asks, views, words of regions, sums begun; the end of the fans; the
# error.
ASKS, VIEWS, REGIONS, BEGUN, END, WRONG, FAN_CELLS = range(7)
MANY_ASKS, MANY_FANS, UNKNOWN = 1, 2, 3
"""Values of WRONG: no room for asks or for fans (try again with more); a case not covered here."""

# Words of the arena. An "offset" is a place in it.

GRID, LOCAL = 0, 1
COMPUTE, COLLECTIVE = 0, 1
OF_SUMS = 1 << 20
"""Added to a row in a grid that is a sum of the tensor, not a part of its op."""
MOST_PARTS, MOST_BASES = 1 << 20, 1 << 10
# A block of geometry: the number of parts; offsets of the boxes and addends of parts, the needs of
# operands, the layouts of outputs, and the sizes; the number of words of sizes for each part.
PARTS, BOXES, ADDENDS, NEEDS, LAYOUTS, SIZES, STRIDE = range(7)
# A layout: GRID or LOCAL, rank, bytes and elements (a ratio in lowest terms), the offset of cells
# (of regions by part, if LOCAL), the number of addends; then for each dimension the number of
# intervals, the offsets of their starts and of their stops, and the stride.
KIND, RANK, BYTES, ELEMENTS, CELLS, ADDENDS_OF, DIMS = range(7)
# A block of sums: the number of rows, the offset of the grid, and the offset of each row. A row:
# COMPUTE or COLLECTIVE, its ps, the number of bases, the offsets of its inputs, queues and sizes;
# then the device of each base, and on a cluster with hosts the number of dispatches, and for each
# its device, ps and launches.
SUMS, SUM_GRID, ROW = range(3)
WHAT, LENGTH, BASES, INPUTS, QUEUES, SUM_SIZES, DEVICES = range(7)


class Arena:
    """An array of integers that only grows: offsets stay valid, but the array may be replaced."""

    def __init__(self, size: int = 1 << 16) -> None:
        self.data, self.used = np.zeros(size, np.int64), 1

    def put(self, words: Sequence[int] | Ints) -> int:
        """Append integers; returns their offset."""
        begin = self.room(len(words))
        self.data[begin : self.used] = words
        return begin

    def room(self, size: int) -> int:
        """Append ``size`` integers for the caller to write; returns their offset."""
        begin = self.used
        self.used += size
        if self.used > len(self.data):
            grown = np.zeros(2 * self.used, np.int64)
            grown[:begin] = self.data[:begin]
            self.data = grown
        return begin


class NotCoveredError(Exception):
    """The kernels do not cover this strategy: lowering has to answer."""


class Columns(NamedTuple):
    """A strategy as blocks (blocks.py) and fans (fan.py).

    A slot is an op, or (``ops`` + a tensor) the sums of a tensor. A reference to a part is ``slot
    << PART_BITS | part``. The groups of an op are its readers in program order.
    """

    ops: int
    slots: int
    devices: int
    arena: Ints
    fans: Ints
    block: Ints  # by slot, as are the next five: the arena offset of its geometry or its sums
    devices_of: Ints  # the arena offset of the devices and ps of an op's parts
    parts: Ints  # the number of its parts or sums
    fan: Ints  # the place in ``fans`` where its fan begins
    wait: Ints  # the place in ``fans`` of the number of pieces that each part waits for
    first: Ints  # the place in ``fans`` of the sums that are written: row, slot, place of a reader
    given: Ints  # by op: the place in ``fans`` of the pieces of its readers' parts, by group
    tensor_ptr: Ints  # by op: the number of its first output
    group_ptr: Ints  # CSR by op: its groups, with the reader of each
    group_reader: Ints
    entry_ptr: Ints  # CSR by group: the operands of the reader that read the op
    entry_operand: Ints
    entry_output: Ints  # by entry: the output that is read
    entry_how: Ints  # how a part reads the operand: one of VALUES, STATISTICS, SHAPE, ANY_PART
    feed_ptr: Ints  # CSR by op: the groups whose reader it is, and their ops
    feed_op: Ints
    feed_group: Ints


class FanWork(NamedTuple):
    """Work space in which pieces.py and fan.py collect the asks of an op's readers.

    A source is a part of the op or one of its sums; an ask is a piece of a source that a reader
    needs; a view is an output of a source that covers only a region of an output it has made.
    """

    most_asks: int
    most_sources: int
    cell: Ints
    source_ptr: Ints  # by output: the first source of its sums
    source_view: Ints  # by source: its latest view (NONE: it has none)
    source_views: Ints  # the number of its views
    source_written: Ints  # whether it is a sum that is written
    source_waits: Ints  # the number of pieces that it waits for
    source_local: Ints  # its first ask from its own device
    source_sent: Ints  # its first ask from another device
    ask_source: Ints  # by ask
    ask_out: Ints  # the output or view that is needed
    ask_base: Ints  # the output that ``ask_out`` is a view of, or ``ask_out`` itself
    ask_to: Ints  # the route to the reader; HERE: none
    ask_bytes: Ints
    ask_ref: Ints  # the reader
    ask_next: Ints  # the next ask of the source
    view_next: Ints  # by view: the view before it of its source
    view_base: Ints
    view_number: Ints
    view_region: Ints  # the place in ``region`` of its starts and stops by dimension
    region: Ints
    low: Ints  # by dimension: the first interval of a grid that a region touches
    high: Ints  # the interval after the last one touched
    at: Ints  # the current interval
    piece: Ints  # starts and stops by dimension of the current piece
    on_device: Ints  # by device: the first copy of a leaf on it
    given: Ints  # by part of each group: the number of pieces that it gets
    begun: Ints  # sums in the order in which they are first read: output, row, slot, place


class Work(NamedTuple):
    """The work space of an evaluation, by row (a task that computes or a collective), by slot and
    by queue; the columns up to ``free`` are those of ``heap.Heap``.
    """

    id_bits: int
    horizon: int
    bits: int
    first: int
    cell: Ints
    heap: Ints
    missing: Ints
    when: Ints
    line_end: Ints
    free: Ints
    most_rows: int
    of: Ints  # by row: the reference of its part
    turn: Ints  # rows in the order in which hosts dispatch
    roots: Ints  # rows that wait for no piece
    base: Ints  # by op: its first row
    map: Ints  # by slot: the place in ``rows`` of its parts' rows (NONE: consecutive from base)
    rows: Ints
    extra: Ints  # by op: the head of a list of the sums written before its parts, or NONE
    extra_next: Ints  # by such a sum: the next one, its place and its reference
    loads: Ints  # by queue: ps for which it is held in all; then the number of transfers
    left: Ints  # by queue: ps of tasks that have not started


class Record(NamedTuple):
    """Starts and finishes in ps: by row, and (sent, received) by transfer in sending order."""

    most_sent: int
    start: Ints
    finish: Ints
    first_sent: Ints
    sent: Ints
    received: Ints


class Rules(NamedTuple):
    """Times in ps of the transfers and devices of a cluster, which no strategy changes.

    A byte takes ``whole`` + ``rest`` / ``parts`` ps, by class of bandwidth.
    """

    devices: int
    queues: int
    route_class: Ints  # the columns of cluster.Routes
    route_held: Ints
    route_lag: Ints
    route_gap: Ints
    queue_ptr: Ints
    queue: Ints
    holding: int
    pair: Ints
    whole: Ints
    rest: Ints
    parts: Ints
    device_gap: Ints
    most_bytes: int  # the most bytes of a transfer
    unit: int  # every buffer is a multiple of this number of bytes


open_columns, open_fan_work = opener(Columns), opener(FanWork)
open_work, open_record, open_rules = opener(Work), opener(Record), opener(Rules)


def rules_of(prepared: Prepared) -> Rules:
    """The rules of a cluster. Raises NotCoveredError."""
    rates, routes = routes_of(segments_of(prepared))
    each = [10**12 / rate for rate in rates]  # exact: rates are fractions
    whole = [min(int(ps), MOST_PS) for ps in each]
    rest, parts = [(ps % 1).numerator for ps in each], [(ps % 1).denominator for ps in each]
    longest = max(column.max(initial=0) for column in (*routes[1:4], prepared.gap_ps))
    if max([longest, *parts]) >= MOST_PS:
        raise NotCoveredError
    # With ``most`` bytes neither a transfer's ps nor a product with ``rest`` overflows.
    pairs = zip(whole, parts, strict=True)
    most = min((min(MOST_PS // (ps + 1), 2**61 // part) for ps, part in pairs), default=0)
    devices, queues = len(prepared.cluster.devices), len(prepared.fabric.queues)
    byte = (np.array(column, np.int64) for column in (whole, rest, parts))
    last = prepared.gap_ps, most, prepared.memory.unit
    return Rules._make((devices, devices + queues, *routes, *byte, *last))


def work_for(most_rows: int, ops: int, slots: int, rules: Rules, loads: Ints) -> Work:
    """The work space of an evaluation of ``most_rows`` rows."""
    # A row is on the heap at most once, and entries distinguish ready rows from rows that send;
    # drop_top reads one key beyond the last.
    id_bits, most = (2 * most_rows).bit_length(), most_rows
    heap = most_rows + rules.devices + 2
    sizes = (WORK_CELLS, heap, most, most, rules.devices, rules.queues)
    rest = (most, most, most, slots, slots, most, ops, 3 * most)
    fixed, (left,) = (id_bits, horizon_of(id_bits), 0, FIRST), room(rules.queues)
    return Work._make((*fixed, *room(*sizes), most, *room(*rest), loads, left))


def record_for(most_rows: int) -> Record:
    """A record with room for ``most_rows`` rows."""
    most_sent = SENT_BY_ROW * most_rows
    return Record(most_sent, *room(*[most_rows] * 3, *[most_sent] * 2))


def fan_work_for(most: int, outputs: int, devices: int, rank: int) -> FanWork:
    """Work space for ``most`` asks of an op with ``outputs`` outputs of at most ``rank``
    dimensions.
    """
    # Each ask may keep a region for its view, and each sum keeps the current one while it asks.
    regions, dims = 4 * rank * most, (rank, rank, rank, 2 * rank)
    sizes = (FAN_CELLS, outputs, *[most] * 17, regions, *dims, devices, most, 4 * most)
    return FanWork(most, most, *room(*sizes))
