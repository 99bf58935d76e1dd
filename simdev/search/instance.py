"""A grouped graph on a cluster, as the placers that schedule see it: nodes, edges, tensors and
times.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..fabric import Segment, transfer_ps
from ..lowering import Prepared
from ..structure import before_of, topological, unit_of, units
from ..taskgraph import Ints, Rows
from .prepare import Grouped
from .space import able, mean_ps

Edge = tuple[int, int]


@dataclass(frozen=True)
class Instance:
    """A grouped graph on a cluster. ``prepared`` is that of the graph that ``grouped`` stands for.

    Nodes are the ops of ``grouped.graph``. A node's duration on a device is the sum of what it
    runs.
    """

    prepared: Prepared
    grouped: Grouped

    @cached_property
    def run_by(self) -> Ints:
        """The node that runs each op of the original, -1 where it only follows."""
        column = np.full(len(self.grouped.original.ops), -1, np.int64)
        for node, ops in enumerate(self.grouped.runs):
            column[list(ops)] = node
        return column

    @cached_property
    def groups(self) -> Rows:
        """The nodes that stand together, in the order of their first."""
        return Rows.of(units(self.grouped.graph))

    @cached_property
    def group_of(self) -> Ints:
        """The group of each node."""
        return np.array(unit_of(self.grouped.graph), np.int64)

    @cached_property
    def duration(self) -> NDArray[np.int64]:
        """Ps by node and device; -1 where its group cannot stand."""
        single, may, nodes = (
            self.prepared.duration,
            able(self.prepared),
            len(self.grouped.graph.ops),
        )
        devices = [device.runs_ops for device in self.prepared.cluster.devices]
        table, known = (
            np.zeros((nodes, len(devices)), np.int64),
            np.ones((len(self.groups), len(devices)), bool),
        )
        known[:, ~np.array(devices)] = False
        for node, members in enumerate(self.grouped.members):
            table[node] = single[list(self.grouped.runs[node])].sum(axis=0)
            known[self.group_of[node]] &= may[list(members)].all(axis=0)
        return np.where(known[self.group_of], table, -1)

    @cached_property
    def mean(self) -> NDArray[np.float64]:
        """Mean ps of each node over the devices on which it may stand."""
        return mean_ps(self.duration)

    @cached_property
    def tensors(self) -> tuple[tuple[int, ...], dict[Edge, list[int]]]:
        """The tensors (rows of ``prepared.reads``) that pass between nodes, and those of each edge
        by number.
        """
        reads = self.prepared.reads
        rows: list[int] = []
        edges: dict[Edge, list[int]] = {}
        for row, (producer, consumers) in enumerate(
            zip(reads.producer.tolist(), reads.consumers.lists(), strict=True)
        ):
            source = int(self.run_by[producer])
            ends = {int(self.run_by[one]) for one in consumers} - {source, -1}
            if source < 0 or not ends:
                continue
            for end in sorted(ends):
                edges.setdefault((source, end), []).append(len(rows))
            rows.append(row)
        return tuple(rows), edges

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """(producer, consumer) of nodes, by producer, then consumer."""
        return tuple(sorted(self.tensors[1]))

    @cached_property
    def routes(self) -> _Routes:
        """What transfers between any two devices hold, and how long."""
        return _routes(self.prepared)

    @cached_property
    def sending(self) -> NDArray[np.int64]:
        """Ps that each tensor holds its queues, by class of route."""
        sizes = self.prepared.reads.bytes[list(self.tensors[0])].tolist()
        classes = self.routes.classes
        table = np.zeros((len(sizes), max(len(classes), 1)), np.int64)
        for k, pieces in enumerate(classes):
            table[:, k] = [sum(transfer_ps(size, segment) for segment in pieces) for size in sizes]
        return table

    @cached_property
    def edge_ps(self) -> NDArray[np.float64]:
        """Mean ps of a transfer over each edge, between two different devices."""
        used = self.routes.class_of[self.routes.class_of >= 0]
        if not len(used):
            return np.zeros(len(self.edges))
        weight = np.bincount(used, minlength=self.sending.shape[1]) / len(used)
        each = self.sending @ weight
        lag = float(self.routes.lag @ weight)
        return np.array([sum(each[t] for t in self.tensors[1][edge]) + lag for edge in self.edges])

    @cached_property
    def numbers(self) -> Ints:
        """A topological number of each node."""
        order = topological(before_of(len(self.grouped.graph.ops), self.edges))
        number = np.empty(len(order), np.int64)
        number[order] = np.arange(len(order))
        return number


@dataclass(frozen=True, slots=True, eq=False)
class _Routes:
    """``class_of`` and ``held`` by source and destination; routes of one class have the same
    times.
    """

    class_of: Ints
    classes: tuple[tuple[Segment, ...], ...]
    lag: Ints
    held: Rows


def _routes(prepared: Prepared) -> _Routes:
    count = len(prepared.cluster.devices)
    kinds: dict[tuple[object, ...], int] = {}
    class_of = np.full(count * count, -1, np.int64)
    held: list[tuple[int, ...]] = [()] * (count * count)
    classes = []
    places = [d for d, device in enumerate(prepared.cluster.devices) if device.runs_ops]
    for source, destination in ((a, b) for a in places for b in places if a != b):
        pieces = prepared.fabric.segments(source, destination)
        if pieces is None:
            continue
        key = tuple((one.route.bandwidth, one.held_ps, one.lag_ps) for one in pieces)
        if key not in kinds:
            kinds[key] = len(kinds)
            classes.append(pieces)
        pair = source * count + destination
        class_of[pair] = kinds[key]
        held[pair] = tuple(dict.fromkeys(queue for one in pieces for queue in one.resources))
    lag = np.array([sum(one.lag_ps for one in pieces) for pieces in classes] or [0], np.int64)
    return _Routes(class_of, tuple(classes), lag, Rows.of(held))
