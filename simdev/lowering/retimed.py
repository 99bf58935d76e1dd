"""A lowered step on machines that differ in their speeds alone: the very tasks, with other times.

Lowering a step of some thousands of ops takes longer than simulating it. Times alone are worked out
anew here, by what lowering itself asks (``Prepared.duration``, ``fabric.transfer_ps``).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..fabric import transfer_ps
from ..strategy import Strategy, Sync
from ..taskgraph import TRANSFER
from .machine import machine_columns
from .prepare import Prepared
from .sharing import slows
from .steps import LoweredStep


def can_be_retimed(prepared: Prepared, strategy: Strategy) -> bool:
    """Whether no task of a step hangs on times, and each is an op, its dispatch, or a transfer
    between two devices: no pipeline, microbatches, split ops, synchronised gradients, collectives,
    staging or tasks that slow each other.
    """
    cluster = prepared.cluster
    return not (
        strategy.pipeline is not None
        or strategy.accumulate > 1
        or strategy.splits
        or strategy.loader is not None
        or isinstance(strategy.sync, Sync)
        or prepared.rings
        or cluster.transfer == "multicast"
        or slows(cluster)
        or any(device.staging for device in cluster.devices)
    )


def retimed(step: LoweredStep, prepared: Prepared) -> LoweredStep:
    """A step that ``can_be_retimed``, as ``prepared`` has its times: the graph on a cluster of the
    very devices and links, whose bandwidths are all so many times higher; latencies, op times and
    memories are as they please. Raises InputError.
    """
    tasks = step.task_graph.tasks
    duration, lag, gap = tasks.duration.copy(), tasks.lag.copy(), tasks.gap.copy()
    ops = np.arange(len(prepared.graph.ops))  # ops are the first tasks of a task graph
    duration[ops] = prepared.duration[ops, tasks.source[ops]]
    sends = np.flatnonzero(step.task_graph.of_kind(TRANSFER)).tolist()
    columns = (tasks.source, tasks.destination, tasks.bytes)
    for task, source, destination, size in zip(
        sends, *(column[sends].tolist() for column in columns), strict=True
    ):
        (segment,) = prepared.segments(source, destination)
        duration[task] = segment.held_ps if segment.flow_links else transfer_ps(size, segment)
        lag[task], gap[task] = segment.lag_ps, segment.gap_ps
    changed = replace(tasks, duration=duration, lag=lag, gap=gap)
    capacity, bandwidth = machine_columns(prepared)
    graph = replace(step.task_graph, tasks=changed, capacity=capacity, bandwidth=bandwidth)
    return replace(step, task_graph=graph)
