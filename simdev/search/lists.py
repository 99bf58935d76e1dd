"""The columns that the clock of m-ETF and m-SCT reads and writes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..taskgraph import Ints, Rows
from .instance import Instance
from .kernels.clock import Clock, Lists
from .memory import held_of


def lists_of(instance: Instance, capacity: Sequence[int], favourite: Ints | None = None) -> Lists:
    """What the clock reads.

    ``capacity`` in bytes by device, -1: unlimited; ``favourite`` child by node.
    """
    nodes, routes, memory = len(instance.grouped.graph.ops), instance.routes, held_of(instance)
    rows, of_edge = instance.tensors
    ends = np.array(instance.edges, np.int64).reshape(-1, 2)
    order = np.lexsort((ends[:, 0], ends[:, 1]))
    carried = Rows.of(of_edge[instance.edges[e]] for e in order.tolist())
    home = np.full(len(rows), -1, np.int64)
    for (producer, _), tensors in of_edge.items():
        home[tensors] = producer
    return Lists(
        ops=nodes,
        devices=len(instance.prepared.cluster.devices),
        duration=instance.duration.reshape(-1),
        in_ptr=_ptr(ends[:, 1], nodes),
        producer=ends[order, 0],
        out_ptr=_ptr(ends[:, 0], nodes),
        consumer=ends[:, 1].copy(),
        carried_ptr=carried.ptr,
        carried=carried.ids,
        classes=instance.sending.shape[1],
        sending=instance.sending.reshape(-1),
        lag=routes.lag,
        class_of=routes.class_of,
        held_ptr=routes.held.ptr,
        held=routes.held.ids,
        apart=int(all(queue.device >= 0 for queue in instance.prepared.fabric.queues)),
        member_ptr=instance.groups.ptr,
        member=instance.groups.ids,
        group=instance.group_of,
        made=memory.made,
        scratch=memory.scratch,
        size=instance.prepared.reads.bytes[list(rows)],
        own=memory.own,
        home=home,
        kept=memory.kept,
        persistent=memory.persistent,
        reserve=memory.reserve,
        capacity=np.array(capacity, np.int64),
        number=instance.numbers,
        favourite=np.full(nodes, -1, np.int64) if favourite is None else favourite,
    )


def clock_of(lists: Lists) -> Clock:
    """What the clock writes, before it runs."""
    ops, devices = lists.ops, lists.devices

    def full(count: int, value: int) -> Ints:
        return np.full(count, value, np.int64)

    tensors = len(lists.size)
    left = np.bincount(lists.carried, minlength=tensors).astype(np.int64)
    left += lists.kept  # read once more than any edge says: never given back
    queues = int(lists.held.max(initial=-1)) + 1
    return Clock(
        device=full(ops, -1),
        start=full(ops, -1),
        end=full(ops, -1),
        missing=np.diff(lists.in_ptr),
        ready=full(ops, -1),
        data=full(ops * devices, 0),
        known_at=full(ops * devices, -1),
        touched=full(devices, 0),
        free=full(devices, 0),
        running=full(devices, -1),
        last=full(devices, -1),
        queue=full(queues, 0),
        arrival=full(tensors * devices, -1),
        left=left,
        used=full(devices, 0),
        cell=full(4, 0),
    )


def _ptr(column: Ints, count: int) -> Ints:
    """Where the entries of each number begin in a sorted column."""
    return np.concatenate(([0], np.cumsum(np.bincount(column, minlength=count)))).astype(np.int64)
