"""Every device, queue and thread of a step in which some stand for others that run alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ...execution.period import Steady, in_step
from ...lowering.symmetry import IDLE, Expanded, Symmetry
from ...nouns.taskgraph import THREAD_PREFIX, Ints, TaskGraph
from ...nouns.trace import DeviceMemory, Trace
from .hosts import HostUse, host_use
from .spans import Bools, Window, shown_devices
from .usage import DeviceUse, LinkUse, device_use, link_use

NO_LINK = LinkUse("", 0, 0, 0, 0.0)


def all_uses(
    trace: Trace, steady: Steady | None, window: Window, symmetry: Symmetry | None
) -> tuple[tuple[DeviceUse, ...], tuple[LinkUse, ...], tuple[HostUse, ...]]:
    """How every device, queue or link, and thread of the cluster is used."""
    paced = in_step(trace, steady)
    devices, links = device_use(paced, window, trace.memory), link_use(paced, window)
    hosts = host_use(paced, window)
    if symmetry is None:
        return devices, links, hosts
    threads = every_thread(hosts, symmetry, trace.task_graph)
    return every_device(devices, symmetry), every_link(links, symmetry), threads


def every_device(uses: Sequence[DeviceUse], symmetry: Symmetry) -> tuple[DeviceUse, ...]:
    """Every device of the cluster, as the one that stands for it.

    Names of buffers are those of the latter.
    """
    # By hand: replace looks at every field, for thousands of devices.
    return tuple(
        DeviceUse(
            name, use.ops, use.busy_ps, use.exposed_ps, use.hosted_ps, use.bubble_ps,
            use.utilization, _memory(use.memory, name),
        )
        for name, use in symmetry.spread(uses)
    )  # fmt: skip


def _memory(memory: DeviceMemory, name: str) -> DeviceMemory:
    overflow = memory.overflow and replace(memory.overflow, device=name)
    return replace(memory, device=name, overflow=overflow)


def every_link(uses: Sequence[LinkUse], symmetry: Symmetry) -> tuple[LinkUse, ...]:
    """Every queue of transfers, as the one that stands for it; then what waits for nothing."""
    count = int(symmetry.classes.max(initial=IDLE)) + 1
    queues = zip(symmetry.queues, symmetry.classes.tolist(), strict=True)
    used = (replace(NO_LINK if row == IDLE else uses[row], name=name) for name, row in queues)
    return (*used, *uses[count:])


def every_thread(
    uses: Sequence[HostUse], symmetry: Symmetry, task_graph: TaskGraph
) -> tuple[HostUse, ...]:
    """The thread of every hosted device, as that of the one that stands for it."""
    by_name = {use.name: use for use in uses}
    threads = [by_name.get(THREAD_PREFIX + name) for name in task_graph.devices]
    return tuple(
        replace(use, name=THREAD_PREFIX + name)
        for name, use in symmetry.spread(threads)
        if use is not None
    )


def shown_of_all(task_graph: TaskGraph, symmetry: Symmetry | None) -> Bools:
    """Which devices of the cluster are worth a row (``shown_devices``)."""
    shown = shown_devices(task_graph)
    return shown if symmetry is None else shown[symmetry.stands]


def task_counts(task_graph: TaskGraph, symmetry: Symmetry | Expanded | None) -> Ints:
    """By task for how many of all devices it stands."""
    if isinstance(symmetry, Symmetry):
        return symmetry.counts(task_graph)
    return np.ones(len(task_graph.tasks), np.int64)


def symmetry_notes(symmetry: Symmetry | Expanded | None, task_graph: TaskGraph) -> Iterator[str]:
    """How many devices were simulated where some stand for others, or why all were."""
    if isinstance(symmetry, Expanded):
        yield f"Every device was simulated: {symmetry.why}."
    elif symmetry is not None:
        steps, there = task_graph.steps, int(np.count_nonzero(symmetry.copies))
        yield (
            f"{there} devices stand for {len(symmetry.devices):,}, of which {symmetry.replicas:,} "
            f"run alike: exact, with {len(task_graph.tasks) // steps:,} tasks a step instead of "
            f"{symmetry.counted(task_graph) // steps:,}."
        )
