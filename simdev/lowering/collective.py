"""Collective ops: one op that several devices run together, over the links between them.

An op of kind ``all_reduce`` with the attribute ``ranks`` (device names) reads its input i on rank i and leaves the sum
of all inputs as its output i there. It holds no compute queue but, for its whole length, every queue that a transfer
from one rank to the next would hold: one communicator at a time, as NCCL. Its length is that of the ring algorithm,
2 (n-1) (latency + ceil(S / n) / bandwidth), with the links that its own flows share (simdev.collectives).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..cluster import Cluster, Route
from ..collectives import ring, ring_wire
from ..errors import InputError
from ..graph import Graph, Op
from ..units import MAX_PS, picoseconds

ALL_REDUCE = "all_reduce"


@dataclass(frozen=True, slots=True)
class Ring:
    """A collective op ready to run: its ranks (device indices), ps, what it holds, and the bytes that each rank sends.

    Under fair links it is a flow: ``duration_ps`` is then the latency of all its steps, and ``bytes`` go over
    ``half_links``, twice as many where both directions of the ring cross one half-link.
    """

    ranks: tuple[int, ...]
    duration_ps: int
    bytes: int
    resources: tuple[int, ...]
    half_links: tuple[int, ...]


def is_collective(op: Op) -> bool:
    """Whether the op runs on several devices at once."""
    return op.kind == ALL_REDUCE and "ranks" in op.attrs


def ring_bytes(ranks: int, size: int) -> int:
    """Bytes that each rank sends in a ring all-reduce of ``size`` bytes: 2 (n-1) steps of ceil(S / n)."""
    return 2 * (ranks - 1) * -(-size // ranks)


def rings(graph: Graph, cluster: Cluster, held: Callable[[Route], tuple[int, ...]]) -> dict[int, Ring]:
    """The collective ops of a graph by their position; ``held`` tells the queues of a transfer over a route.

    Raises InputError with every problem at once.
    """
    found: dict[int, Ring] = {}
    problems: list[str] = []
    for i, op in enumerate(graph.ops):
        if not is_collective(op):
            continue
        wrong = list(_problems(graph, cluster, i))
        problems += [f"ops[{i}].{problem}" for problem in wrong]
        if not wrong:
            ranks = tuple(cluster.index[name] for name in op.attrs["ranks"])
            found[i] = _ring(cluster, ranks, graph.operands[i][0].bytes, held)
    if problems:
        raise InputError(problems)
    return found


def _problems(graph: Graph, cluster: Cluster, position: int) -> Iterator[str]:
    op = graph.ops[position]
    names: Any = op.attrs["ranks"]
    if not isinstance(names, Sequence) or isinstance(names, str) or len(names) < 2 or len(set(names)) < len(names):
        yield "attrs.ranks: must name two devices at least, each once"
        return
    for j, name in enumerate(names):
        if name not in cluster.index or not cluster.devices[cluster.index[name]].runs_ops:
            yield f'attrs.ranks[{j}]: no device that runs ops is named "{name}"'
    if len(op.inputs) != len(names) or len(op.made) != len(names):
        yield f"inputs: {len(names)} ranks need as many inputs and outputs"
        return
    if len({tensor.bytes for tensor in (*graph.operands[position], *op.made)}) > 1:
        yield "inputs: all inputs and outputs must have the same bytes"


def _ring(cluster: Cluster, ranks: tuple[int, ...], size: int, held: Callable[[Route], tuple[int, ...]]) -> Ring:
    wire, count = ring_wire(cluster, ranks), len(ranks)
    routes = [route for pair in zip(ranks, (*ranks[1:], ranks[0]), strict=True) for route in _pieces(cluster, *pair)]
    crossed = Counter(half_link for route in routes for half_link in route.half_links)
    sent = ring_bytes(count, size)
    if cluster.queues == "fair":
        duration = picoseconds(2 * (count - 1) * wire.latency)
        return Ring(ranks, duration, sent * max(crossed.values(), default=1), (), tuple(sorted(crossed)))
    duration = picoseconds(ring(ALL_REDUCE, count, count * -(-size // count), wire))
    if duration > MAX_PS:
        raise InputError(f"an all-reduce of {size} bytes over {count} ranks takes more than 53 days")
    return Ring(ranks, duration, sent, tuple(sorted({queue for route in routes for queue in held(route)})), ())


def _pieces(cluster: Cluster, source: int, destination: int) -> tuple[Route, ...]:
    return cluster.segments(source, destination) or ()
