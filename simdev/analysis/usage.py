"""How much of a step each device computed and each queue or link carried: what a window shows, a step.

*Busy* is the time in which a device computes (its gaps do not count) or a queue carries a transfer. A transfer is *in
flight* from its start to its release (finish + lag). *Exposed* communication is what computing did not hide: for a
device, the time in which a transfer from or to it is in flight while it computes nothing; for the whole step, the time
in which some transfer is in flight while no device computes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..taskgraph import Ints
from ..trace import DeviceMemory, Trace
from .spans import Window, group, is_compute_stream, sent_mask, transfer_mask


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """One device over the step: ``ops`` run, ``busy_ps``, ``exposed_ps``, ``utilization`` = busy / step, its memory."""

    name: str
    ops: int
    busy_ps: int
    utilization: float
    exposed_ps: int
    memory: DeviceMemory


@dataclass(frozen=True, slots=True)
class LinkUse:
    """One queue or link over the step: ``transfers`` and ``bytes`` carried, ``busy_ps``, ``utilization`` = busy / step.

    Transfers that hold no queue and share no link are told by their ends, ``gpu:0 -> gpu:1``.
    """

    name: str
    transfers: int
    bytes: int
    busy_ps: int
    utilization: float


def device_use(trace: Trace, window: Window) -> tuple[DeviceUse, ...]:
    """Every device, in the order of the cluster; its memory is that of the whole trace."""
    tasks, count = trace.task_graph.tasks, len(trace.task_graph.devices)
    moves = transfer_mask(trace.task_graph)
    computes = np.flatnonzero(~moves)
    runs = group(tasks.source[computes], computes, count)
    touches = group(*_ends(trace, np.flatnonzero(moves)), count)
    return tuple(
        _device(trace, window, run, touch, memory)
        for run, touch, memory in zip(runs, touches, trace.memory, strict=True)
    )


def _device(trace: Trace, window: Window, run: Ints, touch: Ints, memory: DeviceMemory) -> DeviceUse:
    busy = window.covered_ps(trace.start[run], trace.finish[run])
    exposed = _exposed_ps(trace, window, run, touch, busy)
    ops = len(run) // window.traced
    return DeviceUse(memory.device, ops, window.a_step(busy), window.share(busy), exposed, memory)


def _ends(trace: Trace, transfers: Ints) -> tuple[Ints, Ints]:
    """(device, transfer) for both ends of each transfer, the devices whose queues it holds, and those that it fills.

    A multicast, or a collective of one task, has more than two ends.
    """
    tasks, resources, buffers = trace.task_graph.tasks, trace.task_graph.resources, trace.task_graph.buffers
    holder, held = tasks.resources.owners(), tasks.resources.ids
    device = np.array([resource.device for resource in resources], np.int64)[held]
    queued = (device >= 0) & np.isin(holder, transfers)
    filled = np.isin(buffers.filler, transfers)
    ends = tasks.source[transfers], tasks.destination[transfers]
    devices = np.concatenate((*ends, device[queued], buffers.device[filled]))
    return devices, np.concatenate((transfers, transfers, holder[queued], buffers.filler[filled]))


def exposed_ps(trace: Trace, window: Window) -> int:
    """The time in ps of a step in which some transfer is in flight and no device computes."""
    moves = transfer_mask(trace.task_graph)
    computes = np.flatnonzero(~moves)
    busy = window.covered_ps(trace.start[computes], trace.finish[computes])
    return _exposed_ps(trace, window, computes, np.flatnonzero(moves), busy)


def _exposed_ps(trace: Trace, window: Window, computes: Ints, transfers: Ints, busy: int) -> int:
    """``busy`` is what the computing tasks cover of the window."""
    both = np.concatenate((computes, transfers))
    finish = trace.finish[both]
    finish[len(computes) :] += trace.task_graph.tasks.lag[transfers]
    return window.a_step(window.covered_ps(trace.start[both], finish) - busy)


def link_use(trace: Trace, window: Window) -> tuple[LinkUse, ...]:
    """Every queue for transfers, then every half-link that flows share, then the transfers that wait for nothing."""
    return tuple(_link(trace, window, carrier) for carrier in carriers(trace))


@dataclass(frozen=True, slots=True, eq=False)
class Carrier:
    """What carries transfers: a queue, a half-link or a pair of devices; ``start`` is when each task enters it (ps)."""

    name: str
    tasks: Ints
    start: Ints


def carriers(trace: Trace) -> Iterator[Carrier]:
    """Those of ``link_use``, in its order."""
    yield from _queues(trace)
    yield from _half_links(trace)
    yield from _unqueued(trace)


def _queues(trace: Trace) -> Iterator[Carrier]:
    task_graph = trace.task_graph
    rows = task_graph.tasks.resources
    holder = rows.owners()
    sends = transfer_mask(task_graph)[holder]
    holders = group(rows.ids[sends], holder[sends], len(task_graph.resources))
    for resource, held in zip(task_graph.resources, holders, strict=True):
        if not is_compute_stream(task_graph, resource):
            yield Carrier(resource.name, held, trace.start[held])


def _half_links(trace: Trace) -> Iterator[Carrier]:
    tasks, names = trace.task_graph.tasks, trace.task_graph.links
    crossing = group(tasks.links.ids, tasks.links.owners(), len(names))
    if not tasks.flow.any():
        return
    for name, flows in zip(names, crossing, strict=True):
        enters = np.minimum(trace.start[flows] + tasks.duration[flows], trace.finish[flows])  # after the held latency
        yield Carrier(name, flows, enters)


def _unqueued(trace: Trace) -> Iterator[Carrier]:
    tasks, devices = trace.task_graph.tasks, trace.task_graph.devices
    alone = sent_mask(trace.task_graph) & (np.diff(tasks.resources.ptr) == 0) & (np.diff(tasks.links.ptr) == 0)
    rows = np.flatnonzero(alone)
    pairs, where = np.unique(tasks.source[rows] * len(devices) + tasks.destination[rows], return_inverse=True)
    for pair, members in zip(pairs.tolist(), group(where.astype(np.int64), rows, len(pairs)), strict=True):
        source, destination = divmod(pair, len(devices))
        yield Carrier(f"{devices[source]} -> {devices[destination]}", members, trace.start[members])


def _link(trace: Trace, window: Window, carrier: Carrier) -> LinkUse:
    members = carrier.tasks
    count, size = len(members), int(trace.task_graph.tasks.bytes[members].sum())
    busy = window.covered_ps(carrier.start, trace.finish[members])
    count, size = count // window.traced, size // window.traced
    return LinkUse(carrier.name, count, size, window.a_step(busy), window.share(busy))
