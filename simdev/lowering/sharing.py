"""The pass that marks tasks which slow each other on a device or a link: computation beside copies,
and copies in both directions of a link.

Measured on an H100: copies between host and device in both directions at once take 1.15 times as
long, a memory-bound kernel 1.02 times as long beside a copy, matrix products no longer
(profiles/h100/measured/overlap.json). Nothing is slowed where cluster and devices give no factor.

``lower_step`` and ``pipeline_task_graph`` call it last. ``execution.engine`` lengthens marked tasks
for both engines. Large models and credits refuse such clusters (``refuse_slowing``), and the
oracle's kernels leave them to lowering (``slows``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction

import numpy as np

from ..ground.errors import InputError
from ..nouns.cluster import Cluster
from ..nouns.fabric import Fabric
from ..nouns.taskgraph import COLLECTIVE, TRANSFER, Ints, Rows, Sharing, TaskGraph, Tasks


def slows(cluster: Cluster) -> bool:
    """Whether tasks slow each other on some device or link of the cluster."""
    return any(link.both_ways != 1 for link in cluster.links) or any(
        device.beside_copies != 1 for device in cluster.devices
    )


def refuse_slowing(cluster: Cluster, who: str) -> None:
    """Raise InputError where tasks slow each other, which ``who`` does not support."""
    if slows(cluster):
        raise InputError(f"beside_copies, both_ways: {who} does not know them yet; leave them out")


def computing(tasks: Tasks) -> Rows:
    """The device on which each task computes; tasks that take no time compute nowhere."""
    kinds = np.array(tasks.kind, dtype=object)
    computes = (kinds != TRANSFER) & (kinds != COLLECTIVE) & (tasks.duration > 0)
    rows = np.flatnonzero(computes)
    return Rows.of_pairs(rows, tasks.source[rows], len(tasks))


def with_sharing(task_graph: TaskGraph, fabric: Fabric) -> TaskGraph:
    """The task graph, with the tasks marked that slow each other on its cluster.

    Under fair links the two directions of a link share a further capacity: a flow alone keeps its
    rate, and flows in both directions together get the total rate of both directions at once.
    """
    if not slows(fabric.cluster):
        return task_graph
    if fabric.shares_rates:
        task_graph = _with_joint_links(task_graph, fabric)
        ways: Iterable[Sharing] = ()
    else:
        ways = _both_ways(task_graph.tasks, fabric)
    pairs = (*_beside_copies(task_graph.tasks, fabric.cluster), *ways)
    some = tuple(pair for pair in pairs if len(pair.first.ids) and len(pair.second.ids))
    return replace(task_graph, sharing=task_graph.sharing + some)


def _ways(cluster: Cluster) -> Mapping[int, int]:
    """The first half-link of each half-link's link, for links whose two ways slow each other."""
    half_links = cluster.half_links
    return {
        row: row - (row > 0 and half_links[row - 1].link is half_link.link)
        for row, half_link in enumerate(half_links)
        if half_link.link.both_ways != 1
    }


def _with_joint_links(task_graph: TaskGraph, fabric: Fabric) -> TaskGraph:
    half_links, ways = fabric.cluster.half_links, _ways(fabric.cluster)
    joint = {first: len(half_links) + n for n, first in enumerate(sorted(set(ways.values())))}
    links = [half_links[first].link for first in joint]
    names = tuple(f"both ways of {link.ends[0]}-{link.ends[1]}" for link in links)
    rates = [float(2 * Fraction(link.bandwidth) / Fraction(link.both_ways)) for link in links]
    crossed = Rows.of(
        [*row, *dict.fromkeys(joint[ways[link]] for link in row if link in ways)]
        for row in task_graph.tasks.links.each()
    )
    return replace(
        task_graph,
        tasks=replace(task_graph.tasks, links=crossed),
        links=task_graph.links + names,
        bandwidth=np.concatenate((task_graph.bandwidth, np.array(rates, np.float64))),
    )


def _moves(tasks: Tasks) -> Ints:
    """The transfers that take time."""
    kinds = np.array(tasks.kind, dtype=object)
    return np.flatnonzero((kinds == TRANSFER) & ((tasks.duration > 0) | tasks.flow))


def _beside_copies(tasks: Tasks, cluster: Cluster) -> Iterator[Sharing]:
    """The computing tasks of devices, with the transfers that begin or end there, by slowdown."""
    computed, moves = computing(tasks), _moves(tasks)
    ends = np.concatenate((tasks.source[moves], tasks.destination[moves]))
    factor = [Fraction(device.beside_copies) for device in cluster.devices]
    for slowdown in sorted(set(factor) - {Fraction(1)}):
        slow = np.array([value == slowdown for value in factor])
        here, there = slow[computed.ids], slow[ends]
        yield Sharing(
            slowdown,
            Rows.of_pairs(computed.owners()[here], computed.ids[here], len(tasks)),
            Rows.of_pairs(np.tile(moves, 2)[there], ends[there], len(tasks)),
        )


def _both_ways(tasks: Tasks, fabric: Fabric) -> Iterator[Sharing]:
    """The transfers over links in one direction, with those in the other, by slowdown."""
    half_links, ways = fabric.cluster.half_links, _ways(fabric.cluster)
    crossed: dict[Fraction, tuple[list[tuple[int, int]], list[tuple[int, int]]]] = {}
    for task in _moves(tasks).tolist():
        segments = fabric.segments(int(tasks.source[task]), int(tasks.destination[task])) or ()
        for row in (row for segment in segments for row in segment.route.half_links):
            if row in ways:
                slowdown = Fraction(half_links[row].link.both_ways)
                sides = crossed.setdefault(slowdown, ([], []))
                sides[row != ways[row]].append((task, ways[row]))
    for slowdown, (forward, back) in sorted(crossed.items()):
        yield Sharing(slowdown, _of_pairs(forward, len(tasks)), _of_pairs(back, len(tasks)))


def _of_pairs(pairs: list[tuple[int, int]], count: int) -> Rows:
    rows, places = np.array(pairs, np.int64).reshape(-1, 2).T
    return Rows.of_pairs(rows, places, count)
