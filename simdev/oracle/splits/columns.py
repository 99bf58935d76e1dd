"""The columns that the kernels of split ops read and write, and the arena that holds the blocks of
ops and sums: blocks.py writes them, pieces.py, fan.py, hosts.py and run.py read them by the words
named here.
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
"""No single task takes longer (4.4 s); so a million tasks stay within 53 days."""
SENT_BY_ROW = 4
"""Transfers of a row, on average, that there is room for at first."""
FIRST, LATEST = 1 << 16, 1 << 61
"""Rounds of time 0, in which all leaves lie; and an instant after which a run is given up."""
# Cells of Work beside the heap's: rows, transfers, roots, the ps beyond which nobody wants to know
# more, and rows that were taken up.
ROWS, SENT, ROOTS, LIMIT, DONE, WORK_CELLS = range(HEAP_CELLS, HEAP_CELLS + 6)
FULL, LONG, WORSE = FAR + 1, FAR + 2, FAR + 3
"""Faults beside FAR: no room; a step or a graph too long; a step that exceeds the limit."""
# How a part reads an operand: its values; the statistics of its own part, where they are partial
# results; the shape alone, of its region or of any.
VALUES, STATISTICS, SHAPE, ANY_PART = range(4)

# Cells of FanWork: asks, views, words of regions, sums begun, the end of the fans, what went wrong.
ASKS, VIEWS, REGIONS, BEGUN, END, WRONG, FAN_CELLS = range(7)
MANY_ASKS, MANY_FANS, UNKNOWN = 1, 2, 3
"""What may be wrong: no room for asks or fans (try again with more); what is not known here."""

# Words of the arena.

GRID, LOCAL = 0, 1
COMPUTE, COLLECTIVE = 0, 1
OF_SUMS = 1 << 20
"""In a grid: the row is one of the sums of the tensor, not of its op."""
MOST_PARTS, MOST_BASES = 1 << 20, 1 << 10
# A block of geometry: how many parts; where the arena holds boxes and addends by part, needs by
# operand, layouts and sizes by output; and words of sizes for each part.
PARTS, BOXES, ADDENDS, NEEDS, LAYOUTS, SIZES, STRIDE = range(7)
# A layout: grid or local, rank, bytes of so many elements (a ratio in lowest terms), cells (or
# regions by part), then for each dimension how many intervals, where their starts and stops are,
# and the stride.
KIND, RANK, BYTES, ELEMENTS, CELLS, ADDENDS_OF, DIMS = range(7)
# A block of sums: how many rows, the grid, and where each row is. A row: what it is, its ps, how
# many bases, where its inputs, queues and sizes are; then the device of each base, and on a cluster
# with hosts how many dispatches, and for each its device, ps and launches.
SUMS, SUM_GRID, ROW = range(3)
WHAT, LENGTH, BASES, INPUTS, QUEUES, SUM_SIZES, DEVICES = range(7)


class Arena:
    """Integers that only grow; an offset stays what it is, the array may move."""

    def __init__(self, size: int = 1 << 16) -> None:
        self.data, self.used = np.zeros(size, np.int64), 1

    def put(self, words: Sequence[int] | Ints) -> int:
        """Append integers; returns where they begin."""
        begin = self.room(len(words))
        self.data[begin : self.used] = words
        return begin

    def room(self, size: int) -> int:
        """Where so many integers may be written by others."""
        begin = self.used
        self.used += size
        if self.used > len(self.data):
            grown = np.zeros(2 * self.used, np.int64)
            grown[:begin] = self.data[:begin]
            self.data = grown
        return begin


class NotCoveredError(Exception):
    """Lowering has to answer for this strategy."""


class Columns(NamedTuple):
    """A strategy as blocks (blocks.py) and fans (fan.py).

    A slot is an op, or ``ops`` + a tensor: the sums of it. A reference to a part is ``slot <<
    PART_BITS | part``. The groups of an op are its readers in program order.
    """

    ops: int
    slots: int
    devices: int
    arena: Ints
    fans: Ints
    block: Ints  # by slot, as are the next six: where the arena holds its geometry or its sums
    devices_of: Ints  # where the arena holds devices and ps of the parts of an op
    parts: Ints  # how many parts or sums there are
    fan: Ints  # where its fan begins, in ``fans``
    wait: Ints  # where ``fans`` holds for how many pieces each part waits
    first: Ints  # where ``fans`` holds the sums that are written: row, slot and place of a reader
    given: Ints  # by op: where ``fans`` holds how many pieces its readers get, group by group
    tensor_ptr: Ints  # by op: the number of its first output
    group_ptr: Ints  # CSR by op: its groups, with the reader of each
    group_reader: Ints
    entry_ptr: Ints  # CSR by group: the operands with which the reader reads
    entry_operand: Ints
    entry_output: Ints  # by entry: the output that is read
    entry_how: Ints  # how a part reads the operand: one of VALUES, STATISTICS, SHAPE, ANY_PART
    feed_ptr: Ints  # CSR by op: the groups by which it is fed, and whose they are
    feed_op: Ints
    feed_group: Ints


class FanWork(NamedTuple):
    """Room in which pieces.py and fan.py collect who asks for what of one op.

    A source is a part of the op or one of its sums, an ask one piece of it for one reader, a view
    an output of a source that holds another region than the source has made.
    """

    most_asks: int
    most_sources: int
    cell: Ints
    source_ptr: Ints  # by output: the first source of its sums
    source_view: Ints  # by source: its latest view (NONE: it has none)
    source_views: Ints  # how many views it has
    source_written: Ints  # whether it is a sum that is written
    source_waits: Ints  # for how many pieces it waits
    source_local: Ints  # its first ask from where it lies
    source_sent: Ints  # its first ask from another device
    ask_source: Ints  # by ask
    ask_out: Ints  # the output or view asked for
    ask_base: Ints  # the output of which that is a view, or itself
    ask_to: Ints  # the route to the reader; HERE: none
    ask_bytes: Ints
    ask_ref: Ints  # the reader
    ask_next: Ints  # the next ask of the source
    view_next: Ints  # by view: the one before it of its source
    view_base: Ints
    view_number: Ints
    view_region: Ints  # where ``region`` holds starts and stops by dimension
    region: Ints
    low: Ints  # by dimension: the first interval of a grid that is touched
    high: Ints  # the end of these
    at: Ints  # the one in hand
    piece: Ints  # starts and stops by dimension of the piece in hand
    on_device: Ints  # by device: the first copy there of a leaf
    given: Ints  # by part of each group: how many pieces it gets
    begun: Ints  # sums in the order in which they are first read: output, row, slot, place


class Work(NamedTuple):
    """Room that one evaluation writes to, by row (a task that computes or a collective), by slot,
    by queue; up to ``free`` a heap's.
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
    turn: Ints  # rows in the order of hosts
    roots: Ints  # rows that wait for nothing
    base: Ints  # by op: its first row
    map: Ints  # by slot: where ``rows`` holds the rows of its parts (NONE: from its first row on)
    rows: Ints
    extra: Ints  # by op: the first of a list of sums before its parts (NONE: there are none)
    extra_next: Ints  # by such a sum: the next one, its place and its reference
    loads: Ints  # by queue: ps for which it is held in all; then how many transfers there are
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
    """Times in ps of transfers and devices of a cluster, whatever is split.

    A byte takes ``whole`` ps and ``rest`` of ``parts`` more, by class of bandwidth.
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
    most_bytes: int  # that a transfer may have
    unit: int  # bytes of which every buffer is a multiple


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
    # So that neither a transfer's ps nor a product with ``rest`` overflows.
    pairs = zip(whole, parts, strict=True)
    most = min((min(MOST_PS // (ps + 1), 2**61 // part) for ps, part in pairs), default=0)
    devices, queues = len(prepared.cluster.devices), len(prepared.fabric.queues)
    byte = (np.array(column, np.int64) for column in (whole, rest, parts))
    last = prepared.gap_ps, most, prepared.memory.unit
    return Rules._make((devices, devices + queues, *routes, *byte, *last))


def work_for(most_rows: int, ops: int, slots: int, rules: Rules, loads: Ints) -> Work:
    """Room for an evaluation of so many rows."""
    # A row stands on the heap at most once, and ids tell ready rows from those that send; drop_top
    # looks at one key beyond the last.
    id_bits, most = (2 * most_rows).bit_length(), most_rows
    heap = most_rows + rules.devices + 2
    sizes = (WORK_CELLS, heap, most, most, rules.devices, rules.queues)
    rest = (most, most, most, slots, slots, most, ops, 3 * most)
    fixed, (left,) = (id_bits, horizon_of(id_bits), 0, FIRST), room(rules.queues)
    return Work._make((*fixed, *room(*sizes), most, *room(*rest), loads, left))


def record_for(most_rows: int) -> Record:
    """Room to note when everything happened."""
    most_sent = SENT_BY_ROW * most_rows
    return Record(most_sent, *room(*[most_rows] * 3, *[most_sent] * 2))


def fan_work_for(most: int, outputs: int, devices: int, rank: int) -> FanWork:
    """Room to collect so many asks of an op with so many outputs of at most this rank."""
    # Each ask may keep a region for its view, and each sum the one in hand while it asks.
    regions, dims = 4 * rank * most, (rank, rank, rank, 2 * rank)
    sizes = (FAN_CELLS, outputs, *[most] * 17, regions, *dims, devices, most, 4 * most)
    return FanWork(most, most, *room(*sizes))
