"""A grouped graph on a cluster for placers that schedule: nodes, edges, tensors, times, and the
memory that nodes hold.

List schedulers, Baechi's placers, ``maxload/problem.py`` and GDP (``simdev/learn/gdp.py``) read it.
Times are the oracle's. ``held_of`` gives an upper estimate of memory; the oracle decides what fits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import permutations

import numpy as np

from ..lowering import Prepared
from ..nouns.fabric import Segment, transfer_ps
from ..nouns.graph import Graph
from ..nouns.structure import TensorOf, before_of, topological, unit_of, units
from ..nouns.taskgraph import Floats, Ints, Rows
from .prepare import Grouped
from .space import able, allocated_outputs, inner_peak, mean_ps, persistent_bytes

Edge = tuple[int, int]


@dataclass(frozen=True)
class Instance:
    """A grouped graph on a cluster. ``prepared`` belongs to the graph before grouping.

    Nodes are the ops of ``grouped.graph``. A node's duration on a device is the sum of the
    durations of the ops that it runs.
    """

    prepared: Prepared
    grouped: Grouped

    @cached_property
    def run_by(self) -> Ints:
        """The node that runs each op of the original, -1 where the op only follows."""
        nodes = np.full(len(self.grouped.original.ops), -1, np.int64)
        for node, ops in enumerate(self.grouped.runs):
            nodes[list(ops)] = node
        return nodes

    @cached_property
    def groups(self) -> Rows:
        """The nodes of each group (one device per group), groups in the order of their
        first nodes.
        """
        return Rows.of(units(self.grouped.graph))

    @cached_property
    def group_of(self) -> Ints:
        """The group of each node."""
        return np.array(unit_of(self.grouped.graph), np.int64)

    @cached_property
    def duration(self) -> Ints:
        """Ps [node, device]; -1 where the node's group may not go to the device."""
        may, grouped = able(self.prepared), self.grouped
        runs = [device.runs_ops for device in self.prepared.cluster.devices]
        table = np.zeros((len(grouped.graph.ops), len(runs)), np.int64)
        known = np.tile(np.array(runs), (len(self.groups), 1))
        for node, members in enumerate(grouped.members):
            table[node] = self.prepared.duration[list(grouped.runs[node])].sum(axis=0)
            known[self.group_of[node]] &= may[list(members)].all(axis=0)
        return np.where(known[self.group_of], table, -1)

    @cached_property
    def mean(self) -> Floats:
        """Mean ps of each node over the devices that it may go to."""
        return mean_ps(self.duration)

    @cached_property
    def tensors(self) -> tuple[tuple[int, ...], dict[Edge, list[int]]]:
        """The tensors that pass between nodes, as rows of ``prepared.reads``; and for each edge the
        positions of its tensors among these rows.
        """
        reads = self.prepared.reads
        rows: list[int] = []
        edges: dict[Edge, list[int]] = {}
        for row, consumers in enumerate(reads.consumers.lists()):
            source = int(self.run_by[reads.producer[row]])
            readers = set(self.run_by[consumers].tolist()) - {source, -1}
            if source >= 0 and readers:
                for reader in sorted(readers):
                    edges.setdefault((source, reader), []).append(len(rows))
                rows.append(row)
        return tuple(rows), edges

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """(producer, consumer) pairs of nodes, by producer, then consumer."""
        return tuple(sorted(self.tensors[1]))

    @cached_property
    def routes(self) -> _Routes:
        """The queues that a transfer between any two devices holds, and for how long."""
        devices = self.prepared.cluster.devices
        numbers: dict[tuple[object, ...], int] = {}
        class_of = np.full(len(devices) ** 2, -1, np.int64)
        held: list[tuple[int, ...]] = [()] * len(class_of)
        classes: list[tuple[Segment, ...]] = []
        places = [d for d, device in enumerate(devices) if device.runs_ops]
        for source, destination in permutations(places, 2):
            segments = self.prepared.fabric.segments(source, destination)
            if segments is None:
                continue
            times = tuple((leg.route.bandwidth, leg.held_ps, leg.lag_ps) for leg in segments)
            if times not in numbers:
                numbers[times] = len(numbers)
                classes.append(segments)
            pair = source * len(devices) + destination
            class_of[pair] = numbers[times]
            held[pair] = tuple(dict.fromkeys(queue for leg in segments for queue in leg.resources))
        lag = np.array([sum(leg.lag_ps for leg in legs) for legs in classes] or [0], np.int64)
        return _Routes(class_of, tuple(classes), lag, Rows.of(held))

    @cached_property
    def sending(self) -> Ints:
        """Ps for which each tensor holds its queues [tensor, class of route]."""
        sizes = self.prepared.reads.bytes[list(self.tensors[0])].tolist()
        classes = self.routes.classes
        # A row of zeros for each tensor where no two devices are joined.
        table = np.zeros((len(sizes), max(len(classes), 1)), np.int64)
        for k, segments in enumerate(classes):
            table[:, k] = [sum(transfer_ps(size, leg) for leg in segments) for size in sizes]
        return table

    @cached_property
    def edge_ps(self) -> Floats:
        """Mean ps of a transfer over each edge, between two different devices."""
        used = self.routes.class_of[self.routes.class_of >= 0]
        if not len(used):
            return np.zeros(len(self.edges))
        weight = np.bincount(used, minlength=self.sending.shape[1]) / len(used)
        mean, lag = self.sending @ weight, float(self.routes.lag @ weight)
        return np.array([sum(mean[t] for t in self.tensors[1][edge]) + lag for edge in self.edges])

    @cached_property
    def numbers(self) -> Ints:
        """The position of each node in a topological order."""
        order = topological(before_of(len(self.grouped.graph.ops), self.edges))
        return np.argsort(order, kind="stable")  # the inverse of a permutation


@dataclass(frozen=True, slots=True, eq=False)
class _Routes:
    """Routes between devices, in classes of equal times.

    ``class_of`` (-1: no route) and ``held`` (queues) are by source x devices + destination;
    ``classes`` (segments) and ``lag`` [ps] by class.
    """

    class_of: Ints
    classes: tuple[tuple[Segment, ...], ...]
    lag: Ints
    held: Rows


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """The bytes that the nodes of an instance hold: an upper estimate, for placers that plan.

    - ``at_home`` by tensor between nodes: bytes at its producer until the last reader has run.
    - ``made`` by node: the sum of ``at_home``. ``scratch`` by node: the further peak while it runs.
    - ``persistent`` by group: parameters, gradients, states, and outputs that unplanned ops read
      (``forward``: the tensors that the backward reads).
    - ``kept`` by tensor between nodes, 0 or 1: whether the tensor is such an output; then its
      ``at_home`` is 0, and copies of it are never freed.
    - ``reserve`` by group: the most that one of its nodes makes and needs.
    """

    at_home: Ints
    made: Ints
    scratch: Ints
    persistent: Ints
    kept: Ints
    reserve: Ints


def held_of(instance: Instance) -> Held:
    """The bytes that nodes, groups and tensors of an instance hold.

    In training every tensor that the backward reads counts as persistent at its producer, as in
    Baechi's PyTorch version (chiragcshetty/BaechiPyTorch): it is held between forward and backward
    anyway.
    """
    prepared, grouped, run_by = instance.prepared, instance.grouped, instance.run_by
    graph, rounded = prepared.graph, prepared.memory.rounded
    kept, reads, rows = _kept(instance), prepared.reads, list(instance.tensors[0])
    keys = list(zip(reads.producer[rows].tolist(), reads.output[rows].tolist(), strict=True))
    late = np.array([_base(graph, key) in kept for key in keys], np.int64)
    at_home = np.array([rounded(_own_bytes(graph, key)) for key in keys], np.int64) * (1 - late)
    nodes, groups = len(grouped.graph.ops), len(instance.groups)
    scratch, persistent = np.zeros(nodes, np.int64), np.zeros(groups, np.int64)
    made = np.zeros(nodes, np.int64)
    np.add.at(made, run_by[reads.producer[rows]], at_home)
    for key in kept:
        persistent[instance.group_of[run_by[key[0]]]] += rounded(_own_bytes(graph, key))
    leaving = kept.union(keys)
    for node, (ops, members) in enumerate(zip(grouped.runs, grouped.members, strict=True)):
        back = (_going_back(instance, i) for i in members if run_by[i] < 0)
        scratch[node] = max(inner_peak(graph, ops, leaving, rounded), *back, 0)
        held = sum(persistent_bytes(graph.ops[i], rounded) for i in members)
        persistent[instance.group_of[node]] += held
    reserve = np.zeros(groups, np.int64)
    np.maximum.at(reserve, instance.group_of, made + scratch)
    return Held(at_home, made, scratch, persistent, late, reserve)


def _kept(instance: Instance) -> set[TensorOf]:
    """The tensors, made by planned ops, that unplanned ops read; a view counts as its base."""
    reads, run_by = instance.prepared.reads, instance.run_by
    late = np.zeros(len(reads.producer), bool)
    late[reads.consumers.owners()[run_by[reads.consumers.ids] < 0]] = True
    late &= (run_by[reads.producer] >= 0) & (reads.output >= 0)
    keys = zip(reads.producer[late].tolist(), reads.output[late].tolist(), strict=True)
    return {_base(instance.prepared.graph, key) for key in keys}


def _going_back(instance: Instance, i: int) -> int:
    """Bytes that an unplanned op holds while it runs, beside the tensors kept for it."""
    graph, rounded = instance.prepared.graph, instance.prepared.memory.rounded
    read = {_base(graph, key) for key in graph.reads[i] if instance.run_by[key[0]] < 0}
    sizes = [_own_bytes(graph, key) for key in read]
    sizes += [size for _, size in allocated_outputs(graph.ops[i])]
    return sum(map(rounded, (*sizes, graph.ops[i].workspace_bytes)))


def _base(graph: Graph, key: TensorOf) -> TensorOf:
    """The output that a tensor is a view of, or the tensor itself."""
    op, output = key
    view_of = graph.ops[op].outputs[output].view_of if output >= 0 else None
    return key if view_of is None else (op, view_of)


def _own_bytes(graph: Graph, key: TensorOf) -> int:
    """Bytes that a tensor adds at its producer: 0 for views and parameters that are handed out,
    which count elsewhere.
    """
    return dict(allocated_outputs(graph.ops[key[0]])).get(key[1], 0)
