"""A lowered step on machines that differ in their speeds alone: the very tasks, with other times.

Lowering a step of some thousands of ops takes longer than simulating it. Times alone are worked out
anew here, by what lowering itself asks (``Prepared.duration``, ``fabric.transfer_ps``).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..nouns.fabric import transfer_ps
from ..nouns.strategy import Strategy, Sync
from ..nouns.taskgraph import TRANSFER, Ints, Tasks
from .machine import machine_columns
from .prepare import Prepared
from .sharing import slows
from .steps import LoweredStep


def can_be_retimed(prepared: Prepared, strategy: Strategy) -> bool:
    """Whether each task of a step is an op, its dispatch, or a piece of a transfer between two
    devices, and none is there by any time: no split ops, synchronised gradients, loaders,
    collectives, multicasts or tasks that slow each other. See ``hangs_on_op_times``, too.
    """
    cluster = prepared.cluster
    return not (
        strategy.splits
        or strategy.loader is not None
        or isinstance(strategy.sync, Sync)
        or prepared.rings
        or cluster.transfer == "multicast"
        or slows(cluster)
    )


def hangs_on_op_times(strategy: Strategy) -> bool:
    """Whether the stages of a pipeline are cut by the times of their ops: with others each op may
    belong to another stage.
    """
    return strategy.pipeline is not None and not strategy.pipeline.stages


def retimed(step: LoweredStep, prepared: Prepared) -> LoweredStep:
    """A step that ``can_be_retimed``, as ``prepared`` has its times: the graph on a cluster of the
    very devices and links, whose bandwidths are all so many times higher; latencies and memories
    are as they please, and so are op times, unless the step ``hangs_on_op_times``. Raises
    InputError.
    """
    tasks = step.task_graph.tasks
    duration, lag, gap = tasks.duration.copy(), tasks.lag.copy(), tasks.gap.copy()
    sends = step.task_graph.of_kind(TRANSFER)
    # Of a microbatch, too, an op is named by its row in the graph.
    runs = np.flatnonzero(~sends)
    duration[runs] = prepared.duration[tasks.op[runs], tasks.source[runs]]
    moved = np.flatnonzero(sends)
    duration[moved], lag[moved], gap[moved] = _transfers(tasks, moved, prepared)
    changed = replace(tasks, duration=duration, lag=lag, gap=gap)
    capacity, bandwidth = machine_columns(prepared)
    graph = replace(step.task_graph, tasks=changed, capacity=capacity, bandwidth=bandwidth)
    return replace(step, task_graph=graph)


def retimes_to_itself(step: LoweredStep, prepared: Prepared) -> bool:
    """Whether a step that is ``retimed`` by what it was lowered from has its times again: a kind of
    task that is lowered by another rule shows here, whatever ``can_be_retimed`` knows of it.
    """
    before, after = step.task_graph.tasks, retimed(step, prepared).task_graph.tasks
    columns = ("duration", "lag", "gap")
    return all(np.array_equal(getattr(before, name), getattr(after, name)) for name in columns)


def _transfers(tasks: Tasks, rows: Ints, prepared: Prepared) -> tuple[Ints, Ints, Ints]:
    """(duration, lag, gap) in ps of transfers, each over one piece of a route. Raises
    InputError.
    """
    times: dict[tuple[int, int, int, int], tuple[int, int, int]] = {}
    ways = _ways(tasks, rows)
    columns = (column[rows].tolist() for column in (*ways, tasks.bytes))
    keys = list(zip(*columns, strict=True))
    for key in dict.fromkeys(keys):
        source, destination, piece, size = key
        segment = prepared.segments(source, destination)[piece]
        held = segment.held_ps if segment.flow_links else transfer_ps(size, segment)
        times[key] = held, segment.lag_ps, segment.gap_ps
    duration, lag, gap = np.array([times[key] for key in keys], np.int64).reshape(-1, 3).T
    return duration, lag, gap


def _ways(tasks: Tasks, transfers: Ints) -> tuple[Ints, Ints, Ints]:
    """By task the ends of the whole route that a transfer is on, and which of its pieces it takes,
    from 0: a piece need not be the route that joins its own ends.
    """
    source, destination = tasks.source.copy(), tasks.destination.copy()
    piece, sends = np.zeros(len(tasks), np.int64), np.zeros(len(tasks), np.bool_)
    sends[transfers] = True
    before, after = tasks.successors.owners(), tasks.successors.ids
    onward = sends[before] & sends[after] & (tasks.destination[before] == tasks.source[after])
    before, after = before[onward], after[onward]
    longest = -1
    while longest < piece.max(initial=0):  # each round reaches one staging device more
        longest = piece.max(initial=0)
        piece[after] = piece[before] + 1
        source[after], destination[before] = source[before], destination[after]
    return source, destination, piece
