"""What splitting each op costs: its time against that of its parts, and the bytes that its parts
fetch and add up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..semantics import traits_of
from ..strategy import Origin
from ..taskgraph import COLLECTIVE, TRANSFER, Ints, TaskGraph
from ..units import format_bytes, format_seconds
from .spans import collective_mask, transfer_mask

ADDED = ("sum", "sync", "stored")


@dataclass(frozen=True, slots=True)
class SplitCost:
    """One op that is split, or whose partial results are added up; or one that computes and stays
    whole beside these.

    ``split`` are its degrees by axis. ``whole_ps`` is what the op would take unsplit (None: not
    known), ``summed_ps`` and ``longest_ps`` what its parts take. ``bytes_in`` are sent to its parts
    (each to whom it serves first), ``sync_bytes`` to add up its partial results and to hand out the
    sum.
    """

    op: str
    kind: str
    parts: int
    split: Mapping[str, int]
    whole_ps: int | None
    summed_ps: int
    longest_ps: int
    bytes_in: int
    sync_bytes: int

    @property
    def stays_whole(self) -> bool:
        """Whether it runs on one device though others of the step are split."""
        return self.parts == 1 and not self.sync_bytes


def split_costs(
    task_graph: TaskGraph,
    kinds: Mapping[str, str],
    origins: Mapping[str, Origin],
    whole_ps: Mapping[str, int],
) -> tuple[SplitCost, ...]:
    """The ops that were split, and those that stay whole although they take time, in program order.

    ``kinds`` are those of the ops of the graph that was split, in its order; ``origins`` tells what
    each op of the sharded graph was made from, ``whole_ps`` how long ops take unsplit.
    """
    tasks = task_graph.tasks
    of_task = [
        origins.get(tasks.name[task]) if op == task else None
        for task, op in enumerate(tasks.op.tolist())
    ]
    durations = _durations(task_graph, of_task)
    boxes, shards = (
        _degrees(origins),
        {origin.op for origin in origins.values() if origin.role == "shard"},
    )
    bytes_in, sync_bytes = _bytes(task_graph, of_task)
    found = []
    for name, kind in kinds.items():
        own = durations.get(name, [])
        whole = len(own) < 2 and not sync_bytes[name]
        if traits_of(kind).leaf or (whole and not (name in shards and any(own))):
            continue
        found.append(
            SplitCost(
                name,
                kind,
                len(own),
                boxes.get(name, {}),
                whole_ps.get(name),
                sum(own),
                max(own, default=0),
                bytes_in[name],
                sync_bytes[name],
            )
        )
    return tuple(found)


def _durations(task_graph: TaskGraph, of_task: list[Origin | None]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for origin, duration in zip(of_task, task_graph.tasks.duration.tolist(), strict=True):
        if origin is not None and origin.role not in ADDED:
            found.setdefault(origin.op, []).append(duration)
    return found


def _degrees(origins: Mapping[str, Origin]) -> dict[str, dict[str, int]]:
    """By op and axis into how many intervals it is cut."""
    cuts: dict[str, dict[str, set[tuple[int, int]]]] = {}
    for origin in origins.values():
        for axis, interval in origin.box:
            cuts.setdefault(origin.op, {}).setdefault(axis, set()).add(interval)
    return {
        op: {axis: len(intervals) for axis, intervals in axes.items()} for op, axes in cuts.items()
    }


def _bytes(
    task_graph: TaskGraph, of_task: list[Origin | None]
) -> tuple[dict[str, int], dict[str, int]]:
    """(bytes sent to the parts of each op, bytes sent to add up its partial results)."""
    tasks = task_graph.tasks
    columns = zip(
        tasks.kind, tasks.op.tolist(), tasks.bytes.tolist(), tasks.successors.lists(), strict=True
    )
    bytes_in, sync_bytes = defaultdict[str, int](int), defaultdict[str, int](int)
    ranks = dict(zip(*(column.tolist() for column in ranks_of(task_graph)), strict=True))
    for task, (kind, op, size, successors) in enumerate(columns):
        if kind == COLLECTIVE:
            origin = of_task[task]
            if origin is not None:
                sync_bytes[origin.op] += size * ranks[task]
            continue
        readers = [one for one in successors if tasks.kind[one] != TRANSFER]
        if kind != TRANSFER or not readers:
            continue
        ends = of_task[op], of_task[min(readers)]
        added = next(
            (origin for origin in ends if origin is not None and origin.role in ADDED), None
        )
        if added is not None:
            sync_bytes[added.op] += size
        elif ends[1] is not None:
            bytes_in[ends[1].op] += size
    return bytes_in, sync_bytes


def ranks_of(task_graph: TaskGraph) -> tuple[Ints, Ints]:
    """The collectives, and on how many devices each leaves a buffer (at least 1)."""
    buffers, count = task_graph.buffers, max(len(task_graph.devices), 1)
    collectives = np.flatnonzero(collective_mask(task_graph))
    filled = np.isin(buffers.filler, collectives)
    places = np.unique(buffers.filler[filled] * count + buffers.device[filled]) // count
    filler, ranks = np.unique(places, return_counts=True)
    found = np.ones(len(task_graph.tasks), np.int64)
    found[filler] = ranks
    return collectives, found[collectives]


def sent_bytes(task_graph: TaskGraph) -> int:
    """Bytes of all transfers, and of collectives what all of their ranks send."""
    moves, size = transfer_mask(task_graph), task_graph.tasks.bytes
    collectives, ranks = ranks_of(task_graph)
    return int(size[moves].sum()) + int((size[collectives] * (ranks - 1)).sum())


def split_text(one: SplitCost) -> tuple[str, ...]:
    """The cells of one row for people: op, split, parts, and what they cost."""
    degrees = " ".join(f"{axis}={degree}" for axis, degree in one.split.items())
    return (
        one.op,
        degrees or "-",
        str(one.parts),
        "?" if one.whole_ps is None else format_seconds(one.whole_ps / 1e12),
        format_seconds(one.summed_ps / 1e12),
        format_seconds(one.longest_ps / 1e12),
        format_bytes(one.bytes_in),
        format_bytes(one.sync_bytes),
    )


def whole_json(one: SplitCost, step_ps: int) -> dict[str, Any]:
    """An op that stays whole, with its share of the step, as JSON."""
    share = one.summed_ps / step_ps if step_ps else 0.0
    return {"op": one.op, "kind": one.kind, "time_s": one.summed_ps / 1e12, "share": share}


def split_json(one: SplitCost) -> dict[str, Any]:
    """One row as JSON."""
    return {
        "op": one.op,
        "kind": one.kind,
        "parts": one.parts,
        "split": dict(one.split),
        "whole_s": None if one.whole_ps is None else one.whole_ps / 1e12,
        "summed_s": one.summed_ps / 1e12,
        "longest_s": one.longest_ps / 1e12,
        "bytes_in": one.bytes_in,
        "sync_bytes": one.sync_bytes,
    }
