"""The transfers of a placement, and the tasks, queues and reserves of a cluster.

``build`` writes them, and ``pipeline_task_graph`` writes messages over the same routes. Each
transfer mode (``Cluster.transfer``) is a case of ``transfers`` here and of the oracle's kernels
(``oracle.placements.step``, ``oracle.splits.fan``), which share only ``destinations``.
``nouns.fabric`` has the queues and times of routes; policies send other messages over them
(sync/exchange.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..ground.errors import InputError
from ..nouns.cluster import Device
from ..nouns.fabric import Fabric, Segment, merged, transfer_ps
from ..nouns.taskgraph import OUTSIDE, PERSISTENT, Floats, Ints, Resource, TaskGraph
from .columns import NONE, Columns
from .prepare import WORKSPACES, Prepared

# A chunk is a task: a tensor of gigabytes in chunks of a few bytes would have too many.
MAX_CHUNKS = 100_000
Column = list[int] | Ints


# The compiled oracle compiles this source, so it is written as plain loops over indexed columns.
def destinations(
    consumers: Column, begin: int, end: int, placement: Column, source: int, targets: Column
) -> int:
    """Write the devices of ``consumers[begin:end]`` other than ``source`` to ``targets``,
    ascending.

    Returns their number. ``targets`` has room for every device.
    """
    count = 0
    for e in range(begin, end):
        device = placement[consumers[e]]
        if device == source:
            continue
        at = count
        while at > 0 and targets[at - 1] > device:
            at -= 1
        if at > 0 and targets[at - 1] == device:
            continue
        for k in range(count, at, -1):
            targets[k] = targets[k - 1]
        targets[at] = device
        count += 1
    return count


@dataclass(frozen=True, slots=True)
class Transfer:
    """A transfer of a tensor to a device (to several under multicast), for consumers there.

    ``tensor`` is a row of Reads, ``destinations`` device indices, ``consumers`` op positions,
    ``segments`` the pieces of the route in series, ``chunks`` the bytes of the chunks into which
    the tensor is cut on each piece.
    """

    tensor: int
    destinations: tuple[int, ...]
    consumers: tuple[int, ...]
    segments: tuple[Segment, ...]
    chunks: tuple[int, ...]


def transfers(prepared: Prepared, placement: list[int]) -> Iterator[Transfer]:
    """Every transfer that the placement causes, under the cluster's ``transfer`` mode: in the order
    of their ids, by producer, output, destination and consumer. Raises InputError.
    """
    reads, mode, rings = prepared.reads, prepared.cluster.transfer, prepared.rings
    reads_there = prepared.reads_there
    # A list used again for each tensor: most tensors are sent nowhere.
    targets = [0] * len(prepared.cluster.devices)
    numbers = (column.tolist() for column in (reads.producer, reads.output, reads.bytes))
    tensors = zip(*numbers, reads.consumers.each(), strict=True)
    for tensor, (producer, output, size, readers) in enumerate(tensors):
        if rings:
            readers = [c for c in readers if not reads_there(producer, output, c, placement)]
        source = prepared.home(producer, output, placement)
        count = destinations(readers, 0, len(readers), placement, source, targets)
        if not count:
            continue
        remote = tuple(targets[:count])
        if mode == "multicast":
            away = tuple(consumer for consumer in readers if placement[consumer] != source)
            yield _transfer(prepared, tensor, size, source, remote, away)
            continue
        for destination in remote:
            there = tuple(consumer for consumer in readers if placement[consumer] == destination)
            for served in [there] if mode == "once-per-device" else zip(there, strict=True):
                yield _transfer(prepared, tensor, size, source, (destination,), served)


def _transfer(
    prepared: Prepared,
    tensor: int,
    size: int,
    source: int,
    targets: tuple[int, ...],
    consumers: tuple[int, ...],
) -> Transfer:
    routes = [prepared.segments(source, destination) for destination in targets]
    segments = routes[0]
    if len(routes) > 1:
        if any(len(pieces) > 1 for pieces in routes):
            name = prepared.graph.ops[int(prepared.reads.producer[tensor])].name
            raise InputError(
                f'placement: the multicast of "{name}" would pass a staging device; use another '
                "transfer mode"
            )
        segments = (merged([pieces[0] for pieces in routes]),)
    return Transfer(tensor, targets, consumers, segments, chunks_of(prepared, size, segments))


def chunks_of(prepared: Prepared, size: int, segments: Sequence[Segment]) -> tuple[int, ...]:
    """The bytes of the chunks of a transfer: full ones and a rest, by the smallest chunk size of
    the staging devices on the route. Raises InputError.
    """
    if len(segments) == 1:
        return (size,)
    stages = (prepared.cluster.devices[segment.route.destination] for segment in segments[:-1])
    chunk = min((int(stage.chunk) for stage in stages if stage.chunk is not None), default=size)
    if size <= chunk:
        return (size,)
    if size // chunk > MAX_CHUNKS:
        raise InputError(
            f"a tensor of {size} bytes makes more than {MAX_CHUNKS} chunks of {chunk} bytes at a "
            "staging device"
        )
    return in_pieces(size, chunk)


def in_pieces(size: int, piece: int) -> tuple[int, ...]:
    """The sizes of pieces: full ones, and a rest."""
    count, rest = divmod(size, piece)
    return (piece,) * count + (rest,) * (rest > 0)


# Parts of task graphs that depend on the cluster: queues, reserves, and tasks over routes.


def resources(fabric: Fabric) -> list[Resource]:
    """Every queue of the cluster, all fifo: the compute queues of devices, then those of
    transfers.
    """
    # Device d computes in queue d: engines and reports rely on this.
    compute = [Resource(device.name, device=d) for d, device in enumerate(fabric.cluster.devices)]
    return compute + [Resource(queue.name, device=queue.device) for queue in fabric.queues]


def add_reserves(columns: Columns, prepared: Prepared, used: Collection[int] = ()) -> None:
    """Add the buffers that the framework and the communication library hold on each device; where
    process groups contain ranks that are not simulated, only on the devices ``used``.
    """
    names = (*OUTSIDE, *WORKSPACES)
    kinds = (*OUTSIDE, *["workspace"] * len(WORKSPACES))
    stands = bool(prepared.communicators.choice.groups)
    for device, sizes in enumerate(prepared.reserves):
        if stands and device not in used:
            continue
        for reserve, kind, size in zip(names, kinds, sizes, strict=True):
            name = f"{reserve} of {prepared.cluster.devices[device].name}"
            columns.buffer(name, device, size, kind, PERSISTENT)


def add_hops(
    columns: Columns,
    fabric: Fabric,
    segments: Sequence[Segment],
    chunks: Sequence[int],
    sent: tuple[int, int, str],
    label: str,
) -> tuple[list[int], list[int]]:
    """Add the tasks of chunks (bytes), for each piece of a route; ``sent`` are op, output and kind.
    Returns the tasks of the first and of the last piece.
    """
    begins, tasks = list[int](), list[int]()
    for hop, segment in enumerate(segments, 1):
        stage, last = segment.route.destination, hop == len(segments)
        name = label if last else f"{label}@{fabric.cluster.devices[stage].name}"
        names = [name]
        if len(chunks) > 1:
            names = [f"{name}#{c}" for c in range(len(chunks))]
        tasks = _add_hop(columns, fabric.shares_rates, segment, name, names, chunks, sent)
        begins = begins or tasks
        if last:
            break
        for task, chunk, size in zip(tasks, names, chunks, strict=True):
            # The rows of the next hop follow, chunk by chunk.
            onward = [task + len(tasks)]
            columns.release(task, onward)
            columns.buffer(chunk, stage, size, "staging", task, onward)
    return begins, tasks


def _add_hop(
    columns: Columns,
    shares_rates: bool,
    segment: Segment,
    name: str,
    names: Sequence[str],
    chunks: Sequence[int],
    sent: tuple[int, int, str],
) -> list[int]:
    """Add a task for each chunk over a segment. Returns their rows."""
    op, output, kind = sent
    flow, held, tasks = bool(segment.flow_links), segment.resources, list[int]()
    if len(names) > 1 and not segment.waits:
        # Chunks follow one another even where transfers never wait, so they get a queue.
        held = (columns.queue(f"lane {name}"),)
    for chunk, size in zip(names, chunks, strict=True):
        task = columns.task(
            chunk,
            kind,
            (segment.route.source, segment.route.destination),
            op=op,
            output=output,
            duration=segment.held_ps if flow else transfer_ps(size, segment),
            lag=segment.lag_ps,
            gap=segment.gap_ps,
            size=size,
            held=held,
            links=segment.flow_links,
            flow=shares_rates,
        )
        tasks.append(task)
    if flow:
        # Flows of one transfer would share the links and end together, so they are chained.
        columns.chain(tasks)
    return tasks


def on_cluster(columns: Columns, prepared: Prepared) -> TaskGraph:
    """The task graph of all columns, on the devices and half-links of the cluster."""
    cluster, half_links = prepared.cluster, prepared.fabric.flow_links
    capacity, bandwidth = machine_columns(prepared)
    return TaskGraph(
        columns.task_columns(),
        tuple(columns.resources),
        columns.buffer_columns(),
        tuple(device.name for device in cluster.devices),
        capacity,
        tuple(half_link.name for half_link in half_links),
        bandwidth,
    )


def machine_columns(prepared: Prepared) -> tuple[Ints, Floats]:
    """The bytes of each device (NONE: unlimited), and the bytes/s of each half-link."""
    bandwidth = [float(half_link.link.bandwidth) for half_link in prepared.fabric.flow_links]
    return capacities(prepared.cluster.devices), np.array(bandwidth, np.float64)


def capacities(devices: Iterable[Device]) -> Ints:
    """The bytes of each device (NONE: unlimited)."""
    return np.array(
        [NONE if device.memory is None else device.memory for device in devices], np.int64
    )
