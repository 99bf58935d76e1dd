"""What the planner reads: groups of ops with their times and bytes, and a cluster as levels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from ...ground.errors import InputError
from ...nouns.structure import unit_of
from ...oracle import Oracle
from ..space import mean_ps


@dataclass(frozen=True, slots=True)
class Profile:
    """What the planner reads of groups of ops: forward and backward seconds, bytes that forward ops
    make, parameters.

    ``order`` holds (earlier, later) pairs of groups.
    """

    seconds: tuple[float, ...]
    activations: tuple[int, ...]
    parameters: tuple[int, ...]
    order: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Level:
    """``count`` machines joined at ``bandwidth`` bytes per second, each made of the level below."""

    count: int
    bandwidth: float


def profile_of(oracle: Oracle) -> Profile:
    """The layers of a graph: its colocation groups, each with all phases, in the order of their
    forward ops.

    Groups on a cycle of forward edges keep their order among each other only. Times are means over
    devices. Raises InputError where a backward op stands in a group without forward ops (pair them
    first).
    """
    graph, group = oracle.graph, unit_of(oracle.graph)
    layers = [[graph.ops[i] for i in members] for members in oracle.groups]
    for ops in layers:
        if all(op.phase != "forward" for op in ops):
            raise InputError(
                f'pipedream: "{ops[0].name}" stands in no group with a forward op: use the '
                'preparation "pair", and for what it leaves the attribute "forward" of the op, '
                "which names one, or a colocation group"
            )
    mean = mean_ps(oracle.prepared.duration) / 1e12
    order = {
        (group[producer], group[consumer])
        for consumer, reads in enumerate(graph.reads)
        for producer, _ in reads
        if graph.ops[producer].phase == graph.ops[consumer].phase == "forward"
    }
    return Profile(
        tuple(float(mean[list(members)].sum()) for members in oracle.groups),
        tuple(
            sum(tensor.bytes for op in ops if op.phase == "forward" for tensor in op.made)
            for ops in layers
        ),
        tuple(sum(op.param_bytes for op in ops) for ops in layers),
        tuple(sorted(pair for pair in order if pair[0] != pair[1])),
    )


def levels_of(oracle: Oracle) -> list[Level]:
    """The devices as levels: those of a node, then the nodes, where all nodes have as many; else
    all as one level.

    The bandwidth of a level is the least between two devices of it.
    """
    nodes, everywhere = _nodes(oracle), machines_of(oracle)
    sizes = {len(devices) for devices in nodes}
    if len(nodes) == 1 or sizes == {1} or len(sizes) > 1:
        return [Level(len(everywhere), _least(oracle, everywhere))]
    inside = min(_least(oracle, devices) for devices in nodes)
    return [Level(sizes.pop(), inside), Level(len(nodes), _least(oracle, everywhere))]


def machines_of(oracle: Oracle) -> list[int]:
    """The device (index) of each machine of ``levels_of``, node by node."""
    return [d for devices in _nodes(oracle) for d in devices]


def _nodes(oracle: Oracle) -> list[list[int]]:
    nodes: dict[int, list[int]] = {}
    for d, device in enumerate(oracle.cluster.devices):
        if device.runs_ops:
            nodes.setdefault(device.node, []).append(d)
    return list(nodes.values())


def _least(oracle: Oracle, devices: Sequence[int]) -> float:
    route = oracle.prepared.fabric.routes.route
    routes = [route(a, b) for a in devices for b in devices if a != b]
    return min((float(route.bandwidth) for route in routes if route is not None), default=inf)
