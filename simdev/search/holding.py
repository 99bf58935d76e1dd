"""What ops, groups and placements hold in memory, in bytes."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from ..nouns.graph import Graph, Op
from ..nouns.structure import hands_out_parameters
from ..oracle import Cost, Oracle


def persistent_bytes(op: Op, rounded: Callable[[int], int] = int) -> int:
    """Parameters, gradients and optimizer state, each ``rounded`` as the allocator does."""
    return sum(map(rounded, (op.param_bytes, op.grad_bytes, op.state_bytes)))


def held_bytes(op: Op) -> int:
    """Roughly what an op holds: persistent bytes, and all outputs that it computes."""
    return persistent_bytes(op) + sum(tensor.bytes for tensor in op.made)


def allocated_outputs(op: Op) -> list[tuple[int, int]]:
    """(number, bytes) of the outputs that have memory of their own: no views, nor parameters
    handed out.
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
    """The peak in bytes of what ``ops``, run one by one in this order, hold beside the tensors
    that leave them.
    """
    last: dict[tuple[int, int], int] = {key: i for i in ops for key in graph.reads[i]}
    live, peak, held = 0, 0, dict[tuple[int, int], int]()
    for i in ops:
        made = {(i, output): rounded(size) for output, size in allocated_outputs(graph.ops[i])}
        held |= {key: size for key, size in made.items() if key not in leaving}
        live += sum(held.get(key, 0) for key in made)
        peak = max(peak, live + rounded(graph.ops[i].workspace_bytes))
        # What nobody reads is freed when its producer ends.
        ended = [key for key in {*graph.reads[i], *made} if last.get(key, i) == i]
        live -= sum(held.pop(key, 0) for key in ended)
    return peak


def capacities(oracle: Oracle) -> list[int]:
    """Bytes that each device can hold, -1: unlimited."""
    return [
        -1 if device.memory is None else int(device.memory) for device in oracle.cluster.devices
    ]


def overflows(oracle: Oracle, cost: Cost) -> list[tuple[int, int, int]]:
    """(device, bytes over, capacity) of each device whose peak is more than it can hold."""
    pairs = zip(cost.peaks, capacities(oracle), strict=True)
    return [(d, peak - limit, limit) for d, (peak, limit) in enumerate(pairs) if 0 <= limit < peak]


def obstacles(oracle: Oracle, cost: Cost) -> tuple[str, ...]:
    """What does not fit in a step of this cost, and what could not, however it was placed; empty
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
    """What cannot fit however it is placed (empty where a device is unlimited, or memory is not
    counted in full): ops too large for every device, and all that persists together.

    While an op runs, its device holds what it owns, reads, makes and works with.
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
