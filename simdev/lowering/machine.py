"""What passes write of a cluster: its queues, its reserves, and tasks over its routes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ..nouns.cluster import Device
from ..nouns.fabric import Fabric, Segment, transfer_ps
from ..nouns.taskgraph import OUTSIDE, PERSISTENT, Floats, Ints, Resource, TaskGraph
from .columns import NONE, Columns
from .prepare import Prepared
from .scratch import WORKSPACES


def resources(fabric: Fabric) -> list[Resource]:
    """Every queue of the cluster, all fifo: compute by device, then what transfers hold."""
    # Device d computes in queue d: engines and reports find a device by its number.
    compute = [Resource(device.name, device=d) for d, device in enumerate(fabric.cluster.devices)]
    return compute + [Resource(queue.name, device=queue.device) for queue in fabric.queues]


def add_reserves(columns: Columns, prepared: Prepared) -> None:
    """What the framework and the communication library hold on each device, whatever runs there."""
    names = (*OUTSIDE, *WORKSPACES)
    kinds = (*OUTSIDE, *["workspace"] * len(WORKSPACES))
    for device, sizes in enumerate(prepared.reserves):
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
    """Chunks (bytes) piece by piece of a route; ``sent`` are op, output and kind. Returns the tasks
    of the first and of the last piece.
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
            # The tasks of the next hop follow these, chunk by chunk.
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
    """A task a chunk over one segment. Returns their rows."""
    op, output, kind = sent
    flow, held, tasks = bool(segment.flow_links), segment.resources, list[int]()
    if len(names) > 1 and not segment.waits:
        # Chunks follow one another even where transfers never wait: a queue for them alone.
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
        # Flows of one transfer share a link and would end together: they too follow one another.
        columns.chain(tasks)
    return tasks


def on_cluster(columns: Columns, prepared: Prepared) -> TaskGraph:
    """What was written, on the devices and half-links of the cluster."""
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
