"""A graph on a cluster as the columns that the kernels of placements read: prepared once for many
placements. A route is ``source * devices + destination``; a read is a pair of a tensor and an op
that reads it.

``evaluator.py`` makes the problem. ``placement_problem`` here and ``evaluator_of`` there refuse
questions that the kernels do not cover, so that lowering answers them. The bytes of buffers
(``sizes_of``) follow ``lowering.build``; ``splits/blocks.py`` has those of split ops.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...ground.jit import opener
from ...ground.units import transmission_ps
from ...lowering import Prepared
from ...nouns.cluster import TRANSFERS, Cluster
from ...nouns.structure import hands_out_parameters, unit_of, units
from ...nouns.taskgraph import Ints
from ..cluster import Segments, Threads, is_covered, most_of_dispatches, routes_of, segments_of
from ..heap import CELLS, KEY_BITS, NONE, horizon_of, room

ONCE, PER_CONSUMER, MULTICAST = range(3)  # places in TRANSFERS


class PlacementProblem(NamedTuple):
    """Columns by op, by tensor that is read, by route and by device; times in ps."""

    ops: int
    tensors: int  # the number of tensors that are read
    root_count: int
    devices: int
    queues: int
    mode: int  # of transfers: ONCE, PER_CONSUMER or MULTICAST
    round_bits: int  # bits of an instant for its round
    duration: Ints  # by op and device, -1 where no cost is known, or the host refuses the op
    device_gap: Ints
    waits: Ints  # by op: the number of reads that it waits for
    tensor_ptr: Ints  # by op: its first tensor that is read
    read_ptr: Ints  # by op: the first read of its tensors
    consumer_ptr: Ints  # CSR: the ops that read each tensor
    consumer: Ints
    sending: Ints  # by tensor and class of bandwidth: the sending time of a transfer
    classes: int
    route_class: Ints  # the columns of cluster.Routes
    route_held: Ints
    route_lag: Ints
    route_gap: Ints
    queue_ptr: Ints
    queue: Ints
    holding: int
    pair: Ints
    roots: Ints  # ops that wait for nothing
    leader: Ints  # by op: the first op of its colocation group, itself without one
    all_routes: int  # whether a route joins any two devices that run ops
    anywhere: int  # whether every op may be on every device, independently of other ops
    dispatch: Ints  # by op and device: the time of its dispatch (empty without hosts)
    launches: Ints  # by op and device


class Work(NamedTuple):
    """The work space of an evaluation, made once for each thread; the columns up to ``free`` are
    those of ``heap.Heap``.
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
    arrival: Ints  # by device: when the current tensor arrives
    targets: Ints  # devices to which the current tensor is sent


class Record(NamedTuple):
    """The starts and finishes of a run, in ps."""

    start: Ints  # by op
    finish: Ints
    sent: Ints  # by read from another device: the start of its transfer
    received: Ints  # by read from another device: the finish of its transfer
    sent_to: Ints  # by device: as ``sent``, for the current tensor
    received_by: Ints


open_problem, open_work, open_record = opener(PlacementProblem), opener(Work), opener(Record)


def placement_problem(
    prepared: Prepared, threads: Threads | None = None
) -> PlacementProblem | None:
    """The problem of a prepared graph; ``threads`` are those of the cluster's hosts.

    None where the kernels do not cover it: a memory model whose buffers live until consumers
    elsewhere have finished; collectives, which hold several devices; shared queues; routes in
    several pieces; times and sizes that do not fit their integers.
    """
    cluster, graph, reads = prepared.cluster, prepared.graph, prepared.reads
    if not is_covered(prepared):
        return None
    segments, devices = segments_of(prepared), len(cluster.devices)
    bits = _round_bits(prepared, segments, threads)
    if bits < 0 or _most_bytes(prepared).bit_length() > KEY_BITS:
        return None
    rates, routes = routes_of(segments)
    sending = [[transmission_ps(size, rate) for rate in rates] for size in reads.bytes.tolist()]
    waits = np.array([len(pairs) for pairs in graph.reads], np.int64)
    roots = np.flatnonzero(waits == 0)
    duration, leader = _durations(prepared, threads), _leaders(prepared)
    first = np.searchsorted(reads.producer, np.arange(len(graph.ops) + 1)).astype(np.int64)
    all_routes = _all_joined(cluster, routes.route_class)
    hosted = (prepared.host_ps, prepared.launches) if threads is not None else (roots[:0],) * 2
    columns = (
        len(waits),
        len(reads.bytes),
        len(roots),
        devices,
        int(routes.queue.max(initial=devices - 1)) + 1,
        TRANSFERS.index(cluster.transfer),
        bits,
        duration.reshape(-1),
        prepared.gap_ps,
        waits,
        first,
        reads.consumers.ptr[first],
        reads.consumers.ptr,
        reads.consumers.ids,
        np.array(sending, np.int64).reshape(-1),
        len(rates),
        *routes,
        roots,
        leader,
        int(all_routes),
        int(all_routes and _is_free(duration, leader)),
        *(column.reshape(-1) for column in hosted),
    )
    return PlacementProblem._make(columns)


def _durations(prepared: Prepared, threads: Threads | None) -> Ints:
    """The ps of each op on each device, -1 where it cannot run."""
    duration = np.maximum(prepared.duration, -1)
    if threads is not None:  # lowering refuses an op that blocks where its step is captured
        duration[np.ix_(prepared.blocks, threads.captured >= 0)] = -1
    return duration


def _all_joined(cluster: Cluster, route_class: Ints) -> bool:
    """Whether there is a route between any two devices that run ops."""
    devices = len(cluster.devices)
    runs_ops = np.array([device.runs_ops for device in cluster.devices], bool)
    joined = (route_class >= 0).reshape(devices, devices) | np.eye(devices, dtype=bool)
    return bool(joined[np.ix_(runs_ops, runs_ops)].all())


def _is_free(duration: Ints, leader: Ints) -> bool:
    """Whether every op can run on every device and is in no group."""
    return bool((duration >= 0).all() and (leader == np.arange(len(leader))).all())


def _most_bytes(prepared: Prepared) -> int:
    """An upper bound on the sum of all buffers of any placement, as a Python integer, which cannot
    overflow.
    """
    rounded = prepared.memory.rounded
    kept = sum(
        rounded(size)
        for op in prepared.graph.ops
        for size in (
            op.param_bytes,
            op.grad_bytes,
            op.state_bytes,
            op.workspace_bytes,
            *(tensor.bytes for tensor in op.outputs),
        )
    )
    copied = _copies(prepared) * sum(map(rounded, prepared.reads.bytes.tolist()))
    return kept + copied + sum(map(sum, prepared.reserves))


def _copies(prepared: Prepared) -> int:
    """The most transfers, and so the most copies, of one tensor."""
    if prepared.cluster.transfer == "per-consumer":
        return int(np.diff(prepared.reads.consumers.ptr).max(initial=1))
    return max(len(prepared.cluster.devices) - 1, 1)


def _round_bits(prepared: Prepared, segments: Segments, threads: Threads | None) -> int:
    """Bits for the round of an instant, which is at most the number of tasks of 0 ps; -1 where they
    do not fit beside the longest possible step.
    """
    sizes, copies = prepared.reads.bytes.tolist(), _copies(prepared)
    routes = [segment for segment in segments if segment is not None]
    longest = prepared.duration.max(axis=1, initial=0).tolist()
    total = sum(longest) + int(prepared.gap_ps.max(initial=0)) * len(longest)
    if routes:
        slowest = min(segment.route.bandwidth for segment in routes)
        each = max(segment.held_ps + segment.lag_ps + segment.gap_ps for segment in routes)
        total += copies * sum(transmission_ps(size, slowest) + each for size in sizes)
    zero = int((prepared.duration == 0).any(axis=1).sum())
    if any(segment.held_ps == 0 for segment in routes):
        zero += sizes.count(0) * copies
    if threads is not None:
        most, none = most_of_dispatches(prepared, threads)
        total, zero = total + most, zero + none
    bits = (zero + 1).bit_length() if zero else 0
    return bits if total.bit_length() + bits < KEY_BITS else -1


def in_file_order(prepared: Prepared) -> bool:
    """Whether each op comes after its producers in the file: then program order cannot deadlock."""
    reads = prepared.graph.reads
    return all(producer < i for i, producers in enumerate(reads) for producer, _ in producers)


def _leaders(prepared: Prepared) -> Ints:
    first = np.array([members[0] for members in units(prepared.graph)], np.int64)
    return first[np.array(unit_of(prepared.graph), np.int64)]


def work_for(problem: PlacementProblem) -> Work:
    """The work space of an evaluation."""
    ops, devices, id_bits = problem.ops, problem.devices, (2 * problem.ops).bit_length()
    # An op is on the heap at most once, ready or first in its device's line; drop_top reads one key
    # beyond the last.
    sizes = (CELLS, ops + devices + 2, ops, ops, devices, problem.queues, devices, devices + 1)
    return Work(id_bits, horizon_of(id_bits), problem.round_bits, 0, *room(*sizes))


def record_for(problem: PlacementProblem) -> Record:
    """A record with room for one evaluation."""
    ops, reads, devices = problem.ops, len(problem.consumer), problem.devices
    return Record(*room(ops, ops, reads, reads, devices, devices))


class Sizes(NamedTuple):
    """The bytes of ops and tensors on a device.

    A tensor and its views are a group, whose buffer is entered at the last of its tensors that are
    read.
    """

    persistent: Ints  # by op: bytes held for the whole step
    running: Ints  # by op: bytes held while it runs
    held: Ints  # by tensor: its buffer at the producer
    group: Ints  # by tensor: the number of its group; NONE: a tensor without views
    sent: Ints  # by tensor: a copy of it
    holder: Ints  # by tensor: an op until whose finish it is held (NONE: only its readers count)
    reserved: Ints  # by device: bytes reserved whichever ops run there


open_sizes = opener(Sizes)


def sizes_of(prepared: Prepared) -> Sizes:
    """The sizes of a prepared graph."""
    ops, reads, rounded = prepared.graph.ops, prepared.reads, prepared.memory.rounded
    pairs = list(zip(reads.producer.tolist(), reads.output.tolist(), strict=True))
    # A view is its tensor's buffer; a control input (output -1) is a buffer of no bytes.
    views = {
        (i, k): (i, tensor.view_of)
        for i, op in enumerate(ops)
        for k, tensor in enumerate(op.outputs)
        if tensor.view_of is not None
    }
    bases = [views.get(pair, pair) for pair in pairs]
    last = {base: row for row, base in enumerate(bases)}
    viewed = dict.fromkeys(base for base, pair in zip(bases, pairs, strict=True) if base != pair)
    rows = {base: row for row, base in enumerate(viewed)}
    shared = [hands_out_parameters(op) for op in ops]
    # Outputs without readers are freed when their op finishes, so they count as ``running``.
    running = [
        rounded(op.workspace_bytes)
        + sum(
            rounded(tensor.bytes)
            for k, tensor in enumerate(op.outputs)
            if not shared[i] and tensor.view_of is None and (i, k) not in last
        )
        for i, op in enumerate(ops)
    ]
    held = np.zeros(len(bases), np.int64)
    for (p, k), row in last.items():
        held[row] = rounded(ops[p].outputs[k].bytes) if k >= 0 and not shared[p] else 0
    columns = (
        [sum(map(rounded, (op.param_bytes, op.grad_bytes, op.state_bytes))) for op in ops],
        running,
        held,
        [rows.get(base, NONE) for base in bases],
        list(map(rounded, reads.bytes.tolist())),
        [prepared.holders.get(pair, NONE) for pair in pairs],
        list(map(sum, prepared.reserves)),
    )
    return Sizes(*(np.array(column, np.int64) for column in columns))
