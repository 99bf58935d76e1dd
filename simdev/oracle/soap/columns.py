"""What the kernels of split ops read and write."""

from __future__ import annotations

from typing import NamedTuple

from ...jit import opener
from ...taskgraph import Ints

PART_BITS = 20
REF_BITS = 52
PART_MASK, REF_MASK = (1 << PART_BITS) - 1, (1 << REF_BITS) - 1
NONE = -1
MOST_RANK = 8


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
    active: Ints  # [0]: how many, then the slots of sums that there are
    block: Ints  # by slot
    state: Ints
    parts: Ints
    fan: Ints
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
    entry_own: Ints
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
    queue.
    """

    most_rows: int
    cell: Ints
    missing: Ints
    when: Ints
    of: Ints
    heap: Ints
    roots: Ints
    base: Ints
    map: Ints
    rows: Ints
    extra: Ints
    extra_next: Ints
    free: Ints
    line_end: Ints


class Record(NamedTuple):
    """When everything happened, in ps: by row, and by transfer in the order of sending."""

    most_sent: int
    start: Ints
    finish: Ints
    first_sent: Ints
    sent: Ints
    received: Ints


open_columns, open_fan_work = opener(Columns), opener(FanWork)
open_work, open_record = opener(Work), opener(Record)
