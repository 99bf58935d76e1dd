"""What there is to choose: the devices at which each group may stand; and which of two costs is the
better.
"""

from __future__ import annotations

from collections import Counter
from math import inf

import numpy as np
from numpy.typing import NDArray

from ..cluster import Cluster
from ..errors import InputError
from ..lowering import Prepared
from ..oracle import Cost, Oracle
from ..taskgraph import Ints
from .prepare.grouped import own_outputs

NEVER = 1 << 62  # more than any step or excess
IMPOSSIBLE = Cost(inf, False, NEVER, NEVER, ())
"""Of a placement that cannot be, like one between devices without a route: worse than any other."""

Key = tuple[int, int, int]
WORST: Key = (NEVER, NEVER, NEVER)


def choices(oracle: Oracle) -> tuple[Ints, ...]:
    """For each of ``oracle.groups`` the indices of the devices on which all its ops may stand,
    ascending.

    Raises InputError naming every group that can stand nowhere.
    """
    known = able(oracle.prepared)
    found = tuple(np.flatnonzero(known[list(members)].all(axis=0)) for members in oracle.groups)
    nowhere = [
        _nowhere(oracle.prepared, members)
        for members, devices in zip(oracle.groups, found, strict=True)
        if not len(devices)
    ]
    if nowhere:
        raise InputError(nowhere)
    return found


def able(prepared: Prepared) -> NDArray[np.bool_]:
    """By op and device, whether the op may stand there: its cost is known, and no collective reads
    it elsewhere.

    A collective itself runs on all of its ranks; where no group holds it, it is said to stand on
    the first.
    """
    found, devices = prepared.duration >= 0, np.arange(len(prepared.cluster.devices))
    for i, ranks in _ranks_read(prepared).items():
        found[i] &= (devices == min(ranks)) & (len(ranks) == 1)
    for i, ring in prepared.rings.items():
        if prepared.graph.ops[i].colocate is None:
            found[i] = devices == ring.ranks[0]
    return found


def mean_ps(duration: NDArray[np.int64]) -> NDArray[np.float64]:
    """Mean ps by op over the devices where it can run, from ps by op and device (< 0: cannot)."""
    known = duration >= 0
    found: NDArray[np.float64] = np.where(known, duration, 0).sum(axis=1) / np.maximum(
        known.sum(axis=1), 1
    )
    return found


def _ranks_read(prepared: Prepared) -> dict[int, set[int]]:
    """The devices on which collectives read each op that they read, but for other collectives."""
    found: dict[int, set[int]] = {}
    for i, ring in prepared.rings.items():
        for text, rank in zip(prepared.graph.ops[i].inputs, ring.inputs_on, strict=True):
            producer, _ = prepared.graph.resolve(text)
            if producer not in prepared.rings:
                found.setdefault(producer, set()).add(rank)
    return found


def _nowhere(prepared: Prepared, members: tuple[int, ...]) -> str:
    """Why a group can stand nowhere."""
    read, name = _ranks_read(prepared), prepared.graph.ops[members[0]].name
    ranks = sorted({rank for i in members for rank in read.get(i, ())})
    if not ranks:
        return f'ops[{members[0]}]: no device on which "{name}" and its group have a cost'
    places = " and on ".join(prepared.cluster.devices[rank].name for rank in ranks)
    return (
        f'ops[{members[0]}]: "{name}" and its group must stand on {places}, where '
        "collectives read them, and cannot"
    )


def workers(cluster: Cluster) -> tuple[int, ...]:
    """The devices over which ops are split: the cluster's workers of their most common kind."""
    counts = Counter(cluster.devices[d].kind for d in cluster.workers)
    kind = max(counts, key=lambda one: counts[one], default="")
    return tuple(d for d in cluster.workers if cluster.devices[d].kind == kind)


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
    return [
        -1 if device.memory is None else int(device.memory) for device in oracle.cluster.devices
    ]


def key(oracle: Oracle, cost: Cost) -> Key:
    """How good a cost is; smaller is better.

    By it a trial keeps its best, walks move and samples are ranked.

    First the largest excess of a device over its capacity, as ``Cost`` tells it; then the bytes
    over all capacities, so that it counts to empty a device that is not the fullest; then ps.
    Annealing alone weighs memory against time, by ``energy``: it has to cross what does not fit.
    What it finds is kept by this key all the same.
    """
    return cost.memory_excess, over(oracle, cost), cost.step_ps


def energy(oracle: Oracle, cost: Cost) -> float:
    """Ps, more by the relative excess where it does not fit; inf for what cannot be."""
    return inf if cost is IMPOSSIBLE else cost.step_ps * (1.0 + relative_excess(oracle, cost))


def over(oracle: Oracle, cost: Cost) -> int:
    """Bytes over the capacities, of all devices together."""
    if cost.feasible or cost is IMPOSSIBLE:
        return cost.memory_excess
    pairs = zip(cost.peaks, capacities(oracle), strict=True)
    return sum(max(peak - limit, 0) for peak, limit in pairs if limit >= 0)


def relative_excess(oracle: Oracle, cost: Cost) -> float:
    """The largest excess of a device over its capacity, relative to the capacity; 0 where all
    fit.
    """
    if cost.feasible:
        return 0.0
    pairs = zip(cost.peaks, capacities(oracle), strict=True)
    return max(
        (max(peak - limit, 0) / max(limit, 1) for peak, limit in pairs if limit >= 0), default=0.0
    )


def unavoidable(oracle: Oracle) -> list[str]:
    """What cannot fit however it is placed: ops too large for every device, and all that persists
    together.

    While an op runs, its device holds what it owns, reads, makes and works with.
    """
    graph, rounded = oracle.prepared.graph, oracle.prepared.memory.rounded
    limits = [
        limit
        for limit, device in zip(capacities(oracle), oracle.cluster.devices, strict=True)
        if device.runs_ops
    ]
    if -1 in limits or oracle.prepared.memory.model != "full":
        return []
    found, kept = [], 0
    for op, reads in zip(graph.ops, graph.reads, strict=True):
        own = sum(map(rounded, (op.param_bytes, op.grad_bytes, op.state_bytes)))
        tensors = [size for _, size in own_outputs(op)]
        tensors += [
            size for p, k in reads for output, size in own_outputs(graph.ops[p]) if output == k
        ]
        size = own + sum(map(rounded, tensors)) + rounded(op.workspace_bytes)
        kept += own
        if size > max(limits, default=0):
            found.append(
                f"{op.name}: needs {size} bytes to run, more than the "
                f"{max(limits, default=0)} of any device"
            )
    if kept > sum(limits):
        found.append(
            f"all devices: {kept} bytes of parameters, gradients and states, {sum(limits)} "
            "bytes of memory"
        )
    return found
