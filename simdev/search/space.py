"""The devices that groups of ops may go to, the memory that they hold, and the order of costs.

Placers, learners and comparisons call it. ``rank_of`` orders the answers of all methods, ``energy``
those of annealing. The bytes here are estimates for placers that plan: only the oracle decides what
fits. ``able`` predicts which placements the oracle and lowering refuse, so a change of where an op
may go is made in both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace
from math import inf

import numpy as np

from ..execution.period import follow_one_another
from ..ground.errors import InputError
from ..lowering import Prepared
from ..nouns.cluster import Cluster
from ..nouns.graph import Graph, Op
from ..nouns.structure import hands_out_parameters, longest_behind
from ..nouns.taskgraph import Bools, Floats, Ints
from ..oracle import Cost, Oracle

NEVER = 1 << 62  # more than any step or excess
IMPOSSIBLE = Cost(inf, False, NEVER, NEVER, ())
"""The cost of an impossible placement, say between devices without a route: the worst of all."""

Rank = tuple[int, int, int]
WORST: Rank = (NEVER, NEVER, NEVER)


def choices(oracle: Oracle) -> tuple[Ints, ...]:
    """For each of ``oracle.groups``, the indices of the devices that all its ops may go to,
    ascending.

    Raises InputError that names every group without such a device.
    """
    devices = tuple(map(np.flatnonzero, allowed(oracle)))
    pairs = zip(oracle.groups, devices, strict=True)
    nowhere = [_nowhere(oracle.prepared, members) for members, places in pairs if not len(places)]
    if nowhere:
        raise InputError(nowhere)
    return devices


def allowed(oracle: Oracle) -> Bools:
    """Whether all ops of each of ``oracle.groups`` may go to each device [G, D]; a row may be all
    False.
    """
    may = able(oracle.prepared)
    rows = [may[list(members)].all(axis=0) for members in oracle.groups]
    return np.array(rows, np.bool_).reshape(-1, may.shape[1])


def able(prepared: Prepared) -> Bools:
    """Whether each op may go to each device [op, device]: its cost there is known, and no
    collective reads it on another device.

    A collective runs on all of its ranks; where it belongs to no colocation group, its place is its
    first rank.
    """
    may, devices = prepared.duration >= 0, np.arange(len(prepared.cluster.devices))
    for i, ranks in _ranks_read(prepared).items():
        may[i] &= (devices == min(ranks)) & (len(ranks) == 1)
    for i, ring in prepared.rings.items():
        if prepared.graph.ops[i].colocate is None:
            may[i] = devices == ring.ranks[0]
    return may


def alone(oracle: Oracle, choices: Sequence[Ints]) -> list[Ints]:
    """The placements of all groups on a single device, for each device that can run them all; of
    identical devices only the first. ``choices`` are the devices of each group.
    """
    common = set.intersection(*(set(devices.tolist()) for devices in choices))
    cluster, first = oracle.cluster.devices, dict[str, int]()
    for d in sorted(common):
        first.setdefault(repr(replace(cluster[d], name="any", node=0)), d)
    return [np.full(len(choices), device, np.int64) for device in first.values()]


def reference_ps(oracle: Oracle, costs: Iterable[Cost]) -> int:
    """The step time that others are relative to [ps], at least 1: the best of the ``costs`` of
    ``alone``; where all of these are impossible, the sum of the ops' longest times.
    """
    steps = [cost.step_ps for cost in costs if cost is not IMPOSSIBLE]
    longest = int(np.maximum(oracle.prepared.duration, 0).max(axis=1).sum())
    return max(min(steps, default=longest), 1)


def least_ps(oracle: Oracle) -> int | None:
    """A lower bound of every placement's step [ps]: the longest path with each op on its fastest
    device, or all work shared out evenly, whichever is more. Transfers and collectives count as 0.

    None where steps follow one another: the paths of several steps overlap.
    """
    prepared, under = oracle.prepared, oracle.under
    if follow_one_another(under, oracle.steps) or not prepared.graph.ops:
        return None
    known = prepared.duration >= 0
    least = np.where(known, prepared.duration, NEVER).min(axis=1)
    least[~known.any(axis=1) | np.isin(np.arange(len(least)), list(prepared.rings))] = 0
    # An update is made once, after the last microbatch.
    turns = [1 if op.phase == "update" else under.accumulate for op in prepared.graph.ops]
    work = sum(ps * count for ps, count in zip(least.tolist(), turns, strict=True))
    devices = int(known.any(axis=0).sum())
    shared: int = -(-work // max(devices, 1))
    return max(max(longest_behind(prepared.graph, least.tolist())), shared)


def mean_ps(duration: Ints) -> Floats:
    """Mean ps by op over the devices where it can run, from ps [op, device] (< 0: cannot run
    there).
    """
    known = duration >= 0
    # Not np.mean with a mask: an op that runs nowhere has mean 0, not NaN.
    mean: Floats = (duration * known).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    return mean


def _ranks_read(prepared: Prepared) -> dict[int, set[int]]:
    """The devices on which collectives read each op. Collectives that read collectives are left
    out.
    """
    ranks: dict[int, set[int]] = {}
    for i, ring in prepared.rings.items():
        for text, rank in zip(prepared.graph.ops[i].inputs, ring.inputs_on, strict=True):
            producer, _ = prepared.graph.resolve(text)
            if producer not in prepared.rings:
                ranks.setdefault(producer, set()).add(rank)
    return ranks


def _nowhere(prepared: Prepared, members: tuple[int, ...]) -> str:
    """The message that a group can go to no device, and why."""
    read, name = _ranks_read(prepared), prepared.graph.ops[members[0]].name
    ranks = sorted({rank for i in members for rank in read.get(i, ())})
    if not ranks:
        return f'ops[{members[0]}]: no device on which "{name}" and its group have a cost'
    places = " and on ".join(prepared.cluster.devices[rank].name for rank in ranks)
    return (
        f'ops[{members[0]}]: "{name}" and its group must stand on {places}, where collectives '
        "read them, and cannot"
    )


def workers(cluster: Cluster) -> tuple[int, ...]:
    """The devices over which ops are split: the cluster's workers of their most common kind."""
    counts = Counter(cluster.devices[d].kind for d in cluster.workers)
    # On a tie the kind that comes first in the cluster: most_common keeps that order.
    kinds = [kind for kind, _ in counts.most_common(1)]
    return tuple(d for d in cluster.workers if cluster.devices[d].kind in kinds)


def rank_of(oracle: Oracle, cost: Cost) -> Rank:
    """The rank of a cost; smaller is better. It decides which answer a trial keeps, which way walks
    move, and the order of samples.

    First the largest excess of a device over its capacity (``Cost.memory_excess``); then the sum of
    all excesses, so that relief of a device that is not the fullest counts; then ps. Only annealing
    weighs memory against time (``energy``), since it has to cross placements that do not fit; the
    best placement that it visits is chosen by this rank all the same.
    """
    over = cost.memory_excess
    if not cost.feasible and cost is not IMPOSSIBLE:
        over = sum(excess for _, excess, _ in overflows(oracle, cost))
    return cost.memory_excess, over, cost.step_ps


def energy(oracle: Oracle, cost: Cost) -> float:
    """Ps, increased by the relative excess where the placement does not fit; inf where it is
    impossible.
    """
    return inf if cost is IMPOSSIBLE else cost.step_ps * (1.0 + relative_excess(oracle, cost))


def relative_excess(oracle: Oracle, cost: Cost) -> float:
    """The largest excess of a device over its capacity, relative to the capacity; 0 where all
    devices fit.
    """
    if cost.feasible:
        return 0.0
    # A capacity of 0 bytes counts as 1: the excess stays finite.
    return max((over / max(limit, 1) for _, over, limit in overflows(oracle, cost)), default=0.0)


# The memory that ops, groups and placements hold, in bytes.


def persistent_bytes(op: Op, rounded: Callable[[int], int] = int) -> int:
    """Bytes of parameters, gradients and optimizer state, each ``rounded`` as the
    allocator does.
    """
    return sum(map(rounded, (op.param_bytes, op.grad_bytes, op.state_bytes)))


def held_bytes(op: Op) -> int:
    """A rough estimate of an op's bytes: its persistent bytes, and all outputs that it computes."""
    return persistent_bytes(op) + sum(tensor.bytes for tensor in op.made)


def allocated_outputs(op: Op) -> list[tuple[int, int]]:
    """(number, bytes) of each output with memory of its own: no views, nor parameters that the op
    hands out.
    """
    if hands_out_parameters(op):
        return []
    return [(k, tensor.bytes) for k, tensor in enumerate(op.outputs) if tensor.view_of is None]


def inner_peak(
    graph: Graph,
    ops: Sequence[int],
    leaving: Container[tuple[int, int]],
    rounded: Callable[[int], int] = int,
) -> int:
    """The peak in bytes of the tensors and workspaces of ``ops``, run one by one in this order,
    without the tensors in ``leaving``.
    """
    last: dict[tuple[int, int], int] = {key: i for i in ops for key in graph.reads[i]}
    live, peak, held = 0, 0, dict[tuple[int, int], int]()
    for i in ops:
        made = {(i, output): rounded(size) for output, size in allocated_outputs(graph.ops[i])}
        held |= {key: size for key, size in made.items() if key not in leaving}
        live += sum(held.get(key, 0) for key in made)
        peak = max(peak, live + rounded(graph.ops[i].workspace_bytes))
        # A tensor that nobody reads is freed when its producer ends.
        ended = [key for key in {*graph.reads[i], *made} if last.get(key, i) == i]
        live -= sum(held.pop(key, 0) for key in ended)
    return peak


def capacities(oracle: Oracle) -> list[int]:
    """Bytes that each device can hold; -1: unlimited."""
    return [
        -1 if device.memory is None else int(device.memory) for device in oracle.cluster.devices
    ]


def overflows(oracle: Oracle, cost: Cost) -> list[tuple[int, int, int]]:
    """(device, bytes over, capacity) of each device whose peak exceeds its capacity."""
    pairs = zip(cost.peaks, capacities(oracle), strict=True)
    return [(d, peak - limit, limit) for d, (peak, limit) in enumerate(pairs) if 0 <= limit < peak]


def obstacles(oracle: Oracle, cost: Cost) -> tuple[str, ...]:
    """Lines that say why a step of this cost does not fit, and what no placement could fit; empty
    for a feasible cost.
    """
    if cost.feasible:
        return ()
    lines = [
        f"{oracle.cluster.devices[d].name}: needs {limit + over} bytes at its peak, has {limit}"
        for d, over, limit in overflows(oracle, cost)
    ]
    return (*lines, *unavoidable(oracle))


def unavoidable(oracle: Oracle) -> list[str]:
    """Lines on what no placement can fit: ops too large for every device, and the sum of all
    persistent bytes. Empty where a device is unlimited, or memory is not counted in full.

    While an op runs, its device holds its persistent bytes, inputs, outputs and workspace.
    """
    graph, memory = oracle.prepared.graph, oracle.prepared.memory
    devices = zip(oracle.cluster.devices, capacities(oracle), strict=True)
    limits = [limit for device, limit in devices if device.runs_ops]
    if -1 in limits or memory.model != "full":
        return []
    lines, persistent, most = [], 0, max(limits, default=0)
    for op, reads in zip(graph.ops, graph.reads, strict=True):
        tensors = [size for _, size in allocated_outputs(op)]
        tensors += [
            size
            for p, k in reads
            for output, size in allocated_outputs(graph.ops[p])
            if output == k
        ]
        kept = persistent_bytes(op, memory.rounded)
        size = kept + sum(map(memory.rounded, (*tensors, op.workspace_bytes)))
        persistent += kept
        if size > most:
            lines.append(
                f"{op.name}: needs {size} bytes to run, more than the {most} of any device"
            )
    if persistent > sum(limits):
        lines.append(
            f"all devices: {persistent} bytes of parameters, gradients and states, "
            f"{sum(limits)} bytes of memory"
        )
    return lines
