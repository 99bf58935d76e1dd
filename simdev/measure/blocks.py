"""Placements of a captured graph by contiguous blocks, balanced by measured time.

A block is the first part of the ops' names (``mixed_5b``). Blocks stay in the order of the forward;
the backward and the updates of a block follow it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..costs import CostModel
from ..graph import Graph
from ..semantics import traits_of
from ..structure.names import PREFIXES, forward_name, unrolled


def block_of(name: str) -> str:
    """The block that an op belongs to, by its name."""
    return unrolled(forward_name(name)).split("/")[0]


def block_seconds(graph: Graph, costs: CostModel, device_kind: str) -> dict[str, float]:
    """Measured seconds of every block, forward, backward and update, in the order in which the
    forward meets them.

    Ops without a cost count nothing.
    """
    found: dict[str, float] = {}
    order = [
        op.name for op in graph.ops if op.phase == "forward" and traits_of(op.kind).leaf is None
    ]
    for name in order:
        found.setdefault(block_of(name), 0.0)
    for i, op in enumerate(graph.ops):
        cost = costs.cost(graph, i, device_kind)
        if cost is not None:
            block = block_of(op.name)
            found[block] = found.get(block, 0.0) + float(cost.seconds)
    return found


def partition(seconds: Sequence[float], parts: int) -> list[int]:
    """The part of each item, in order, that makes the longest part shortest (exact, by dynamic
    programming).
    """
    count = len(seconds)
    before = [0.0]
    for value in seconds:
        before.append(before[-1] + value)
    # best[j]: (longest part, minus the start of the last part) of the first j items, for one part
    # more in each round.
    best = [(before[j], 0) for j in range(count + 1)]
    cuts = [best]
    for _ in range(parts - 1):
        # Of equal cuts the latest: it leaves no part empty while there are items for all.
        best = [
            min((max(best[i][0], before[j] - before[i]), -i) for i in range(max(j, 1)))
            for j in range(count + 1)
        ]
        cuts.append(best)
    found, end = [0] * count, count
    for part in range(parts - 1, -1, -1):
        start = -cuts[part][end][1]
        found[start:end] = [part] * (end - start)
        end = start
    return found


def block_placement(
    graph: Graph, costs: CostModel, device_kind: str, devices: Sequence[str]
) -> dict[str, str]:
    """A placement by patterns: contiguous blocks over the devices, inputs where they are first
    read.
    """
    seconds = block_seconds(graph, costs, device_kind)
    parts = partition(list(seconds.values()), len(devices))
    where = {block: devices[part] for block, part in zip(seconds, parts, strict=True)}
    return placement_of_blocks(graph, where)


def placement_of_blocks(graph: Graph, where: Mapping[str, str]) -> dict[str, str]:
    """Patterns that place every block's ops, and each input with its first reader; only those that
    match something.
    """
    names = [op.name for op in graph.ops]
    found = {}
    for block, device in where.items():
        for prefix in PREFIXES.values():
            if any(name.startswith(f"{prefix}{block}/") for name in names):
                found[f"{prefix}{block}/*"] = device
    for i, op in enumerate(graph.ops):
        if traits_of(op.kind).leaf == "input":
            reader = next(
                name
                for name, reads in zip(names, graph.reads, strict=True)
                if i in [p for p, _ in reads]
            )
            found[op.name] = where[block_of(reader)]
    return found
