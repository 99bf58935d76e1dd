"""What there is to choose: the devices at which each group may stand, and how far a cost is from fitting."""

from __future__ import annotations

from collections import Counter

import numpy as np

from ..cluster import Cluster
from ..errors import InputError
from ..oracle import Cost, Oracle
from ..taskgraph import Ints
from .prepare.grouped import own_outputs


def choices(oracle: Oracle) -> tuple[Ints, ...]:
    """For each of ``oracle.groups`` the indices of the devices on which all its ops have a cost, ascending.

    Raises InputError naming every group that can stand nowhere.
    """
    known = oracle.prepared.duration >= 0
    found = tuple(np.flatnonzero(known[list(members)].all(axis=0)) for members in oracle.groups)
    ops = oracle.graph.ops
    nowhere = [
        f'ops[{members[0]}]: no device on which "{ops[members[0]].name}" and its group have a cost'
        for members, devices in zip(oracle.groups, found, strict=True)
        if not len(devices)
    ]
    if nowhere:
        raise InputError(nowhere)
    return found


def workers(cluster: Cluster) -> tuple[int, ...]:
    """The devices over which ops are split: all of the most common kind that runs ops (not the host of its GPUs)."""
    own = [d for d, device in enumerate(cluster.devices) if device.runs_ops]
    counts = Counter(cluster.devices[d].kind for d in own)
    kind = max(counts, key=lambda one: counts[one], default="")
    return tuple(d for d in own if cluster.devices[d].kind == kind)


def neighbours(oracle: Oracle) -> list[list[int]]:
    """For each of ``oracle.groups`` the groups that it sends to or reads from."""
    row = {i: at for at, members in enumerate(oracle.groups) for i in members}
    found: list[set[int]] = [set() for _ in oracle.groups]
    for consumer, reads in enumerate(oracle.graph.reads):
        for producer, _ in reads:
            found[row[consumer]].add(row[producer])
            found[row[producer]].add(row[consumer])
    return [sorted(near - {at}) for at, near in enumerate(found)]


def capacities(oracle: Oracle) -> list[int]:
    """Bytes that each device can hold, -1: unlimited."""
    return [-1 if device.memory is None else int(device.memory) for device in oracle.cluster.devices]


def over(oracle: Oracle, cost: Cost) -> int:
    """Bytes over the capacities, of all devices together."""
    if cost.feasible:
        return 0
    pairs = zip(cost.peaks, capacities(oracle), strict=True)
    return sum(max(peak - limit, 0) for peak, limit in pairs if limit >= 0)


def relative_excess(oracle: Oracle, cost: Cost) -> float:
    """The largest excess of a device over its capacity, relative to the capacity; 0 where all fit."""
    if cost.feasible:
        return 0.0
    pairs = zip(cost.peaks, capacities(oracle), strict=True)
    return max((max(peak - limit, 0) / max(limit, 1) for peak, limit in pairs if limit >= 0), default=0.0)


def unavoidable(oracle: Oracle) -> list[str]:
    """What cannot fit however it is placed: ops too large for every device, and all that persists together.

    While an op runs, its device holds what it owns, reads, makes and works with.
    """
    graph, rounded = oracle.prepared.graph, oracle.prepared.memory.rounded
    limits = [
        limit for limit, device in zip(capacities(oracle), oracle.cluster.devices, strict=True) if device.runs_ops
    ]
    if -1 in limits or oracle.prepared.memory.model != "full":
        return []
    found, kept = [], 0
    for op, reads in zip(graph.ops, graph.reads, strict=True):
        own = sum(map(rounded, (op.param_bytes, op.grad_bytes, op.state_bytes)))
        tensors = [size for _, size in own_outputs(op)]
        tensors += [size for p, k in reads for output, size in own_outputs(graph.ops[p]) if output == k]
        size = own + sum(map(rounded, tensors)) + rounded(op.workspace_bytes)
        kept += own
        if size > max(limits, default=0):
            found.append(f"{op.name}: needs {size} bytes to run, more than the {max(limits, default=0)} of any device")
    if kept > sum(limits):
        found.append(f"all devices: {kept} bytes of parameters, gradients and states, {sum(limits)} bytes of memory")
    return found
