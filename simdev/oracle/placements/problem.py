"""A graph on a cluster as the columns that the kernels of placements read: prepared once, asked for
many placements.

Instants are written as one integer, ``ps << round_bits | round``: the pairs (instant, round) of the
execution contract, in their order. Durations are shifted likewise, so that adding one is an
addition.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...ground.units import transmission_ps
from ...lowering import Prepared
from ...nouns.cluster import Cluster
from ...nouns.taskgraph import Ints
from ..heap import FAULT, KEY_BITS, horizon_of
from ..routing import Segments, rates_of, route_columns, segments_of
from ..threads import Threads, most_of_dispatches

ONCE, PER_CONSUMER, MULTICAST = 0, 1, 2
NOTHING, PAIRS, SEVERAL = range(3)  # queues that every transfer holds: none; one or two; others
MODES = {"once-per-device": ONCE, "per-consumer": PER_CONSUMER, "multicast": MULTICAST}


class PlacementProblem(NamedTuple):
    """Columns by op, by tensor that is read, by route (``source * devices + destination``) and by
    device.
    """

    ops: int
    tensors: int  # that are read
    root_count: int
    devices: int
    queues: int
    mode: int
    round_bits: int
    duration: Ints  # by op and device, -1 where no cost is known, or a host refuses it
    device_gap: Ints
    waits: Ints  # reads of each op: what it waits for
    tensor_ptr: Ints  # tensors of each op that are read
    read_ptr: Ints  # reads of all these together
    consumer_ptr: Ints  # ops that read each tensor
    consumer: Ints
    sending: Ints  # by tensor and class of bandwidth
    classes: int
    route_class: Ints  # class of bandwidth; -1 where no route in one piece joins the devices
    route_held: Ints
    route_lag: Ints
    route_gap: Ints
    queue_ptr: Ints  # queues that a transfer over each route holds
    queue: Ints
    holding: int  # NOTHING, PAIRS or SEVERAL
    pair: Ints  # by route, for PAIRS: its two queues, or its one twice
    roots: Ints  # ops that wait for nothing
    leader: Ints  # first op of each op's colocation group, itself without one
    all_routes: int
    anywhere: int  # whether every op may stand on every device, whatever others do
    program: int  # whether devices (those with a host at least) run their ops in file order


class Work(NamedTuple):
    """What one evaluation writes; made once for each thread. The first columns are a heap's."""

    id_bits: int
    horizon: int
    cell: Ints
    heap: Ints
    missing: Ints
    when: Ints
    line_end: Ints
    free: Ints  # by queue: when it is free again
    arrival: Ints  # by device: when the tensor in hand is there
    targets: Ints  # devices to which the tensor in hand goes
    behind: Ints  # in program order, the next op on the same device


class Record(NamedTuple):
    """When everything happened, in ps.

    By op, by read (an op that reads a tensor from another device), by device.
    """

    start: Ints
    finish: Ints
    sent: Ints
    received: Ints
    sent_to: Ints
    received_by: Ints


def placement_problem(
    prepared: Prepared, program: bool = False, threads: Threads | None = None
) -> PlacementProblem | None:
    """The columns, for ops served as they become ready or in ``program`` order; ``threads`` are
    those of the cluster's hosts.

    None where the kernels cannot answer: a memory model whose buffers live until consumers
    elsewhere have finished; collectives, which hold several devices; shared queues; routes in
    several pieces; times and sizes that do not fit their integers.
    """
    cluster, graph, reads = prepared.cluster, prepared.graph, prepared.reads
    if not _is_covered(prepared):
        return None
    segments, devices = segments_of(prepared), len(cluster.devices)
    bits = _round_bits(prepared, segments, threads)
    if bits < 0 or _most_bytes(prepared).bit_length() > KEY_BITS:
        return None
    rates, routes = rates_of(segments), route_columns(segments, bits)
    sending = [[transmission_ps(size, rate) for rate in rates] for size in reads.bytes.tolist()]
    waits = np.array([len(pairs) for pairs in graph.reads], np.int64)
    roots = np.flatnonzero(waits == 0)
    duration, leader = _durations(prepared, bits, threads), _leaders(prepared)
    first = np.searchsorted(reads.producer, np.arange(len(graph.ops) + 1)).astype(np.int64)
    all_routes = _all_joined(cluster, routes[0])
    columns = (
        len(waits),
        len(reads.bytes),
        len(roots),
        devices,
        int(routes[-1].max(initial=devices - 1)) + 1,
        MODES[cluster.transfer],
        bits,
        duration.reshape(-1),
        prepared.gap_ps << bits,
        waits,
        first,
        reads.consumers.ptr[first],
        reads.consumers.ptr,
        reads.consumers.ids,
        (np.array(sending, np.int64) << bits).reshape(-1),
        len(rates),
        *routes,
        *_held_queues(segments),
        roots,
        leader,
        int(all_routes),
        int(all_routes and _is_free(duration, leader)),
        int(program or threads is not None),
    )
    return PlacementProblem._make(columns)


def _durations(prepared: Prepared, bits: int, threads: Threads | None) -> Ints:
    """By op and device, -1 where it cannot run."""
    duration = np.where(prepared.duration < 0, -1, prepared.duration << bits)
    if threads is not None:  # lowering refuses an op that blocks where its step is captured
        duration[np.ix_(prepared.blocks, threads.captured >= 0)] = -1
    return duration


def _is_covered(prepared: Prepared) -> bool:
    """Whether the kernels know its memory model, collectives, queues and routes."""
    if prepared.memory.model != "full" or prepared.rings or prepared.fabric.shares_rates:
        return False
    return not any(device.staging for device in prepared.cluster.devices)


def _held_queues(segments: Segments) -> tuple[int, Ints]:
    """How many queues transfers hold, and those of each route where they are one or two."""
    held = [tuple(segment.resources) if segment is not None else None for segment in segments]
    sizes = {len(queues) for queues in held if queues is not None}
    if sizes <= {0}:
        return NOTHING, np.zeros(0, np.int64)
    if not sizes <= {1, 2}:
        return SEVERAL, np.zeros(0, np.int64)
    pairs = [(0, 0) if queues is None else (queues[0], queues[-1]) for queues in held]
    return PAIRS, np.array(pairs, np.int64).reshape(-1)


def _all_joined(cluster: Cluster, route_class: Ints) -> bool:
    """Whether there is a route between any two devices that run ops."""
    devices = len(cluster.devices)
    runs_ops = np.array([device.runs_ops for device in cluster.devices], bool)
    joined = (route_class >= 0).reshape(devices, devices) | np.eye(devices, dtype=bool)
    return bool(joined[np.ix_(runs_ops, runs_ops)].all())


def _is_free(duration: Ints, leader: Ints) -> bool:
    """Whether every op can run everywhere, and stands in no group."""
    return bool((duration >= 0).all() and (leader == np.arange(len(leader))).all())


def _most_bytes(prepared: Prepared) -> int:
    """A bound on all buffers of any placement together, as a Python integer: the sum itself may not
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
    """The most transfers of one tensor, and copies of it."""
    if prepared.cluster.transfer == "per-consumer":
        return int(np.diff(prepared.reads.consumers.ptr).max(initial=1))
    return max(len(prepared.cluster.devices) - 1, 1)


def _round_bits(prepared: Prepared, segments: Segments, threads: Threads | None) -> int:
    """Bits for the rounds of one instant: as many rounds as tasks of no length, at most; -1 where
    they do not fit beside the longest step.
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
    """Whether every op stands behind all that it reads: then program order cannot deadlock."""
    reads = prepared.graph.reads
    return all(producer < i for i, producers in enumerate(reads) for producer, _ in producers)


def _leaders(prepared: Prepared) -> Ints:
    leader = np.arange(len(prepared.graph.ops), dtype=np.int64)
    for members in prepared.graph.groups.values():
        leader[list(members)] = members[0]
    return leader


def work_for(problem: PlacementProblem) -> Work:
    """Room for one evaluation."""
    ops, devices, id_bits = problem.ops, problem.devices, (2 * problem.ops).bit_length()
    # On the heap an op stands at most once, ready or next in its device's line; drop_top looks at
    # one key beyond the last.
    room = (FAULT + 1, ops + devices + 2, ops, ops, devices, problem.queues, devices, devices + 1)
    columns = (np.empty(size, np.int64) for size in (*room, ops if problem.program else 0))
    return Work(id_bits, horizon_of(id_bits), *columns)


def record_for(problem: PlacementProblem) -> Record:
    """Room to note when everything happened in one evaluation."""
    ops, reads, devices = problem.ops, len(problem.consumer), problem.devices
    sizes = (ops, ops, reads, reads, devices, devices)
    return Record(*(np.empty(size, np.int64) for size in sizes))
