"""How much of a step each device computed and each queue or link carried: what a window shows, a
step.

The step of a device is tiled by three things. *Busy*: it computes (its gaps do not count).
*Exposed* communication: it computes nothing while a transfer from or to it, or a collective that it
takes part in, is in flight, from its start to its release (finish + lag). The *bubble*: neither, it
waits for what others compute. What a trace viewer counts on each rank (Holistic Trace Analysis:
communication that no computing overlaps) is the second; with transfers that take no time the third
is GPipe's bubble, (p - 1) / (m + p - 1) on p equal stages. Both together are its *idle* time.

A queue or link is busy while it carries a transfer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ..taskgraph import Ints, Rows
from ..trace import DeviceMemory, Trace
from .spans import Window, collective_mask, group, is_compute_stream, sent_mask, transfer_mask


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """One device over the step: ``ops`` run, what tiles it, ``utilization`` = busy / step, its
    memory.
    """

    name: str
    ops: int
    busy_ps: int
    exposed_ps: int
    bubble_ps: int
    utilization: float
    memory: DeviceMemory


@dataclass(frozen=True, slots=True)
class LinkUse:
    """One queue or link over the step: ``transfers`` and ``bytes`` carried, ``busy_ps``,
    ``utilization`` = busy / step.

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


def _device(
    trace: Trace, window: Window, run: Ints, touch: Ints, memory: DeviceMemory
) -> DeviceUse:
    busy = window.covered_ps(trace.start[run], trace.finish[run])
    used = busy + _exposed_ps(trace, window, run, touch, busy)
    # Sums are shared out among the steps, not parts: so what is rounded tiles the step.
    a_step = [window.a_step(ps) for ps in (0, busy, used, window.length_ps)]
    computes, exposed, bubble = (after - before for before, after in pairwise(a_step))
    ops, utilization = len(run) // window.traced, window.share(busy)
    return DeviceUse(memory.device, ops, computes, exposed, bubble, utilization, memory)


def _ends(trace: Trace, transfers: Ints) -> tuple[Ints, Ints]:
    """(device, transfer) for both ends of each transfer, the devices whose queues it holds, and
    those that it fills.

    A multicast, or a collective of one task, has more than two ends.
    """
    tasks, resources, buffers = (
        trace.task_graph.tasks,
        trace.task_graph.resources,
        trace.task_graph.buffers,
    )
    holder, held = tasks.resources.owners(), tasks.resources.ids
    device = np.array([resource.device for resource in resources], np.int64)[held]
    queued = (device >= 0) & np.isin(holder, transfers)
    filled = np.isin(buffers.filler, transfers)
    ends = tasks.source[transfers], tasks.destination[transfers]
    ranks, collective = _ranks(trace)
    devices = np.concatenate((*ends, device[queued], buffers.device[filled], ranks))
    rows = transfers, transfers, holder[queued], buffers.filler[filled], collective
    return devices, np.concatenate(rows)


def _ranks(trace: Trace) -> tuple[Ints, Ints]:
    """(device, collective) where one queue stands for all ranks of a group: those that compute
    beside its collectives.

    Of a chain of collectives only the ends stand beside what computes; all that hold one queue have
    the same ranks.
    """
    tasks, count = trace.task_graph.tasks, len(trace.task_graph.resources)
    grouped = collective_mask(trace.task_graph) & (np.diff(tasks.resources.ptr) == 1)
    rows = np.flatnonzero(grouped)
    queue = np.full(len(grouped), -1, np.int64)
    queue[rows] = tasks.resources.ids[tasks.resources.ptr[rows]]
    before, after = tasks.successors.owners(), tasks.successors.ids
    computes = ~transfer_mask(trace.task_graph)
    into, out = grouped[after] & computes[before], grouped[before] & computes[after]
    queues = np.concatenate((queue[after[into]], queue[before[out]]))
    devices = np.concatenate((tasks.source[before[into]], tasks.source[after[out]]))
    number = len(trace.task_graph.devices)
    pairs = np.unique(queues * number + devices)
    ranks = Rows(np.searchsorted(pairs // number, np.arange(count + 1)), pairs % number)
    size = np.diff(ranks.ptr)[queue[rows]]
    first = np.cumsum(size) - size
    at = (
        np.arange(int(size.sum()))
        - np.repeat(first, size)
        + np.repeat(ranks.ptr[queue[rows]], size)
    )
    return ranks.ids[at], np.repeat(rows, size)


def _exposed_ps(trace: Trace, window: Window, computes: Ints, transfers: Ints, busy: int) -> int:
    """``busy`` is what the computing tasks cover of the window."""
    both = np.concatenate((computes, transfers))
    finish = trace.finish[both]
    finish[len(computes) :] += trace.task_graph.tasks.lag[transfers]
    return window.covered_ps(trace.start[both], finish) - busy


def link_use(trace: Trace, window: Window) -> tuple[LinkUse, ...]:
    """Every queue for transfers, then every half-link that flows share, then the transfers that
    wait for nothing.
    """
    return tuple(_link(trace, window, carrier) for carrier in carriers(trace))


@dataclass(frozen=True, slots=True, eq=False)
class Carrier:
    """What carries transfers: a queue, a half-link or a pair of devices; ``start`` is when each
    task enters it (ps).
    """

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
        # after the held latency
        enters = np.minimum(trace.start[flows] + tasks.duration[flows], trace.finish[flows])
        yield Carrier(name, flows, enters)


def _unqueued(trace: Trace) -> Iterator[Carrier]:
    tasks, devices = trace.task_graph.tasks, trace.task_graph.devices
    alone = (
        sent_mask(trace.task_graph)
        & (np.diff(tasks.resources.ptr) == 0)
        & (np.diff(tasks.links.ptr) == 0)
    )
    rows = np.flatnonzero(alone)
    pairs, where = np.unique(
        tasks.source[rows] * len(devices) + tasks.destination[rows], return_inverse=True
    )
    for pair, members in zip(
        pairs.tolist(), group(where.astype(np.int64), rows, len(pairs)), strict=True
    ):
        source, destination = divmod(pair, len(devices))
        yield Carrier(f"{devices[source]} -> {devices[destination]}", members, trace.start[members])


def _link(trace: Trace, window: Window, carrier: Carrier) -> LinkUse:
    members = carrier.tasks
    count, size = len(members), int(trace.task_graph.tasks.bytes[members].sum())
    busy = window.covered_ps(carrier.start, trace.finish[members])
    count, size = count // window.traced, size // window.traced
    return LinkUse(carrier.name, count, size, window.a_step(busy), window.share(busy))
