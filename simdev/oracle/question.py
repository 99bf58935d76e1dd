"""A graph on a cluster as the columns that the oracle's kernels read: prepared once, asked for many
placements.

Instants are written as one integer, ``ps << round_bits | round``: the pairs (instant, round) of the
execution contract, in their order. Durations are shifted likewise, so that adding one is an
addition.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..fabric import Segment
from ..lowering import Prepared
from ..taskgraph import Ints, Rows
from ..units import transmission_ps

ONCE, PER_CONSUMER, MULTICAST = 0, 1, 2
MODES = {"once-per-device": ONCE, "per-consumer": PER_CONSUMER, "multicast": MULTICAST}
MAX_BITS = 62


class Question(NamedTuple):
    """Columns by op, by tensor that is read, by (tensor, bandwidth class), by (source, destination)
    and by device.

    ``duration`` is by op and device (row-major), -1 where no cost is known; ``sending`` by tensor
    and class; routes are indexed ``source * devices + destination``, -1 in ``route_class`` where
    the short path does not apply.
    """

    ops: int
    tensors: int  # that are read
    root_count: int
    devices: int
    queues: int
    mode: int
    round_bits: int
    id_bits: int
    horizon: int  # how far apart instants may be that wait together: what fits a key beside a task
    duration: Ints
    device_gap: Ints
    waits: Ints  # reads of each op: what it waits for
    tensor_ptr: Ints  # tensors of each op that are read
    consumer_ptr: Ints  # ops that read each tensor
    consumer: Ints
    sending: Ints
    classes: int
    route_class: Ints
    route_held: Ints
    route_lag: Ints
    route_gap: Ints
    queue_ptr: Ints  # queues that a transfer over each route holds
    queue: Ints
    roots: Ints  # ops that wait for nothing
    leader: Ints  # first op of each op's colocation group, itself without one
    all_routes: int
    program: int  # whether each device runs its ops in the order of the file


class Work(NamedTuple):
    """What one evaluation writes; made once for each thread."""

    # waits that each op still has, or where it stands by now (kernel.py: TAKEN, LAST)
    missing: Ints
    # when an op is ready, as far as is known; of a producer whose transfers are still to come: its
    # finish
    when: Ints
    free: Ints
    heap: Ints
    line_end: Ints  # the last producer whose transfers are still to come, by device
    arrival: Ints
    found: Ints
    behind: Ints  # under program order, the next op on the same device
    cell: Ints  # the scalars, see kernel.py


class Record(NamedTuple):
    """When everything happened, in ps: by op, by read (an op that reads a tensor from another
    device), by device.
    """

    start: Ints
    finish: Ints
    sent: Ints
    received: Ints
    sent_to: Ints
    received_by: Ints


def applies(prepared: Prepared) -> bool:
    """Whether the short path can answer: no collectives, queues without shares, routes in one
    piece, what fits.
    """
    cluster = prepared.cluster
    if prepared.memory.model != "full":  # buffers that live until consumers elsewhere have finished
        return False
    if prepared.rings:  # tasks of several devices at once
        return False
    if prepared.fabric.shares_rates or any(device.staging for device in cluster.devices):
        return False
    return _round_bits(prepared) >= 0 and _most_bytes(prepared).bit_length() <= MAX_BITS


def _most_bytes(prepared: Prepared) -> int:
    """A bound on all buffers of any placement together, as a Python integer: the sum itself may not
    overflow.
    """
    rounded = prepared.memory.rounded
    found = _copies(prepared) * sum(map(rounded, prepared.reads.bytes.tolist())) + sum(
        map(sum, prepared.reserves)
    )
    for op in prepared.graph.ops:
        found += sum(
            map(rounded, (op.param_bytes, op.grad_bytes, op.state_bytes, op.workspace_bytes))
        )
        found += sum(rounded(tensor.bytes) for tensor in op.outputs)
    return found


def _copies(prepared: Prepared) -> int:
    """The most transfers of one tensor, and copies of it."""
    if prepared.cluster.transfer == "per-consumer":
        return int(np.diff(prepared.reads.consumers.ptr).max(initial=1))
    return max(len(prepared.cluster.devices) - 1, 1)


def _round_bits(prepared: Prepared) -> int:
    """Bits for the rounds of one instant: as many rounds as tasks of no length, at most; -1 where
    they do not fit.
    """
    known = prepared.duration[prepared.duration >= 0]
    longest = (
        prepared.duration.max(axis=1, initial=0)
        if len(prepared.graph.ops)
        else np.zeros(0, np.int64)
    )
    total = sum(longest.tolist()) + int(prepared.gap_ps.max(initial=0)) * len(longest)
    routes = [
        segment for pair in _pairs(prepared) if (segment := _segment(prepared, *pair)) is not None
    ]
    copies = _copies(prepared)
    if routes:
        slowest = min(segment.route.bandwidth for segment in routes)
        each = max(segment.held_ps + segment.lag_ps + segment.gap_ps for segment in routes)
        total += copies * sum(
            transmission_ps(size, slowest) + each for size in prepared.reads.bytes.tolist()
        )
    zero = int((prepared.duration == 0).any(axis=1).sum()) if len(known) else 0
    if any(segment.held_ps == 0 for segment in routes):
        zero += int((prepared.reads.bytes == 0).sum()) * copies
    bits = (zero + 1).bit_length() if zero else 0
    return bits if total.bit_length() + bits < MAX_BITS else -1


def _pairs(prepared: Prepared) -> list[tuple[int, int]]:
    places = [d for d, device in enumerate(prepared.cluster.devices) if device.runs_ops]
    return [(a, b) for a in places for b in places if a != b]


def _segment(prepared: Prepared, source: int, destination: int) -> Segment | None:
    pieces = prepared.fabric.segments(source, destination)
    return pieces[0] if pieces is not None and len(pieces) == 1 else None


def _segments(prepared: Prepared) -> list[Segment | None]:
    """By source and destination, row-major."""
    count = len(prepared.cluster.devices)
    found: list[Segment | None] = [None] * (count * count)
    for source, destination in _pairs(prepared):
        found[source * count + destination] = _segment(prepared, source, destination)
    return found


def in_file_order(prepared: Prepared) -> bool:
    """Whether every op stands behind all that it reads: then program order cannot deadlock."""
    reads = prepared.graph.reads
    return all(producer < i for i, producers in enumerate(reads) for producer, _ in producers)


def question_of(prepared: Prepared, program: bool = False) -> Question:
    """The columns, for ops served as they are ready or in ``program`` order.

    Only where ``applies``.
    """
    count, bits, reads = len(prepared.cluster.devices), _round_bits(prepared), prepared.reads
    segments = _segments(prepared)
    rates = sorted(
        {segment.route.bandwidth for segment in segments if segment is not None}, reverse=True
    )
    sending = np.zeros((len(reads.bytes), max(len(rates), 1)), np.int64)
    for column, rate in enumerate(rates):
        sending[:, column] = [transmission_ps(size, rate) for size in reads.bytes.tolist()]
    held = Rows.of([() if segment is None else segment.resources for segment in segments])
    waits = np.array([len(one) for one in prepared.graph.reads], np.int64)
    duration = np.where(prepared.duration < 0, -1, prepared.duration << bits)
    roots, id_bits = np.flatnonzero(waits == 0), (2 * len(waits)).bit_length()
    return Question(
        len(waits),
        len(reads.bytes),
        len(roots),
        count,
        int(held.ids.max(initial=count - 1)) + 1,
        MODES[prepared.cluster.transfer],
        bits,
        id_bits,
        1 << (MAX_BITS - id_bits),
        duration.reshape(-1),
        prepared.gap_ps << bits,
        waits,
        np.searchsorted(reads.producer, np.arange(len(prepared.graph.ops) + 1)).astype(np.int64),
        reads.consumers.ptr,
        reads.consumers.ids,
        (sending << bits).reshape(-1),
        sending.shape[1],
        np.array(
            [-1 if one is None else rates.index(one.route.bandwidth) for one in segments], np.int64
        ),
        np.array([0 if one is None else one.held_ps << bits for one in segments], np.int64),
        np.array([0 if one is None else one.lag_ps << bits for one in segments], np.int64),
        np.array([0 if one is None else one.gap_ps << bits for one in segments], np.int64),
        held.ptr,
        held.ids,
        roots,
        _leaders(prepared),
        int(all(segments[a * count + b] is not None for a, b in _pairs(prepared))),
        int(program),
    )


def _leaders(prepared: Prepared) -> Ints:
    leader = np.arange(len(prepared.graph.ops), dtype=np.int64)
    for members in prepared.graph.groups.values():
        leader[list(members)] = members[0]
    return leader


def work_for(question: Question) -> Work:
    """Room for one evaluation."""
    ops = len(question.waits)
    return Work(
        np.empty(ops, np.int64),
        np.empty(ops, np.int64),
        np.empty(question.queues, np.int64),
        np.empty(ops + question.devices + 2, np.int64),
        np.empty(question.devices, np.int64),
        np.empty(question.devices, np.int64),
        np.empty(question.devices + 1, np.int64),
        np.empty(ops if question.program else 0, np.int64),
        np.zeros(5, np.int64),
    )


def record_for(question: Question) -> Record:
    """Room to note when everything happened in one evaluation."""
    ops, reads = len(question.waits), len(question.consumer)
    empty = [
        np.empty(size, np.int64)
        for size in (ops, ops, reads, reads, question.devices, question.devices)
    ]
    return Record(*empty)
