"""Features of a question: its groups of ops as arrays, for learners.

The published systems describe a group by its type, its cost, its output sizes and shapes and the
edges to others (ColocRL, ICML 2017; HDP, ICLR 2018; Placeto, NeurIPS 2019). No column depends on
the number of nodes, so that a policy may be applied to another graph.

The learners of ``simdev/learn`` call ``features_of``; annealing needs only ``neighbours``. A change
of a column changes VERSION: policy.py refuses policies of another version.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..nouns.graph import PHASES, Op
from ..nouns.semantics import SHIPPED, backward_of
from ..nouns.structure import components, unit_of
from ..nouns.taskgraph import Bools, Floats, Ints, Rows, distinct
from ..oracle import Oracle
from .space import allowed, persistent_bytes

VERSION = 1
"""Changes with the columns and their meaning: a policy fits only the version that it was trained
on.
"""

# User-defined kinds are "other", since a policy needs the same columns wherever it is loaded.
# Backward ops count as their forward kind (ours); the phase columns distinguish them.
KINDS = (*sorted({backward_of(kind) or kind for kind in SHIPPED}), "other")
EXTENTS = 4  # columns of a shape: the last is the product of all further extents (ours)
_KIND = {kind: column for column, kind in enumerate(KINDS)}


@dataclass(frozen=True, eq=False)
class Nodes:
    """The n nodes of a graph, which are the groups of an oracle, for D devices: a row each.

    ``kind`` [n, K] and ``phase`` [n, 3] count ops by KINDS and PHASES. ``seconds`` [n, D] is the
    time of all ops of a node on each device, 0 where it may not go; ``able`` [n, D] whether it may.
    Bytes [n]: ``output_bytes`` of all computed outputs (views take none), ``persistent_bytes`` of
    parameters, gradients and states, ``workspace_bytes`` the largest of its ops. ``shape`` [n, 4]
    sums the extents of each op's largest output, 0 where there are none. ``source`` and ``target``
    [e] are the edges between different nodes, each once, sorted; ``edge_bytes`` [e] counts a tensor
    once, however many ops of the target read it (0: control inputs alone).

    ``order`` [n] is the topological number. Groups may form cycles: the groups of a cycle follow
    each other in the order of their first ops, as in ``Oracle.groups``. A group on no cycle comes
    after all groups that it reads.
    """

    names: tuple[str, ...]
    kind: Floats
    phase: Floats
    seconds: Floats
    able: Bools
    output_bytes: Floats
    shape: Floats
    persistent_bytes: Floats
    workspace_bytes: Floats
    source: Ints
    target: Ints
    edge_bytes: Floats
    order: Ints

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns of ``scaled``; they depend only on the number of devices."""
        return tuple(name for names, _ in self._blocks() for name in names)

    def scaled(self) -> NDArray[np.float32]:
        """The table [n, F] of ``columns``, from 0 to 1: each column is divided by its maximum,
        where that is not 0; times by the maximum over all devices, so that slower devices still
        show (ours).
        """
        columns = np.column_stack([block for _, block in self._blocks()])
        table = columns.astype(np.float64)
        most = table.max(axis=0, initial=0.0)
        times = np.char.startswith(self.columns, "seconds")
        most[times] = most[times].max(initial=0.0)
        return (table / np.where(most > 0, most, 1.0)).astype(np.float32)

    def _blocks(self) -> Iterator[tuple[Sequence[str], NDArray[Any]]]:
        """Columns in blocks, each with the names of its columns."""
        devices = range(self.seconds.shape[1])
        yield [f"kind {name}" for name in KINDS], self.kind
        yield [f"phase {name}" for name in PHASES], self.phase
        yield [f"seconds {device}" for device in devices], self.seconds
        yield [f"able {device}" for device in devices], self.able
        yield ["output bytes"], self.output_bytes
        yield [f"extent {axis}" for axis in range(EXTENTS)], self.shape
        yield ["persistent bytes"], self.persistent_bytes
        yield ["workspace bytes"], self.workspace_bytes
        yield ["bytes read"], np.bincount(self.target, self.edge_bytes, len(self))
        yield ["bytes sent"], np.bincount(self.source, self.edge_bytes, len(self))
        yield ["order"], self.order


def features_of(oracle: Oracle) -> Nodes:
    """The groups of an oracle on its cluster, in their order, with the training state that is
    counted.

    A group that can go nowhere has a row of ``able`` that is all False. Raises InputError where
    costs are missing.
    """
    ops, groups, count = oracle.prepared.graph.ops, oracle.groups, len(oracle.groups)
    group_of, may = np.array(unit_of(oracle.graph), np.int64), allowed(oracle)
    source, target, size = group_edges(oracle)
    cycles = components(count, zip(source.tolist(), target.tolist(), strict=True))
    workspace, order = np.zeros(count), np.empty(count, np.int64)
    np.maximum.at(workspace, group_of, np.array([op.workspace_bytes for op in ops], np.float64))
    order[np.argsort(cycles, kind="stable")] = np.arange(count)
    seconds = np.maximum(oracle.prepared.duration, 0) / 1e12
    made = [sum(tensor.bytes for tensor in op.made) for op in ops]
    return Nodes(
        names=tuple(ops[members[0]].colocate or ops[members[0]].name for members in groups),
        kind=_counts([_column(op.kind) for op in ops], len(KINDS), group_of, count),
        phase=_counts([PHASES.index(op.phase) for op in ops], len(PHASES), group_of, count),
        seconds=_sums(seconds, group_of, count) * may,
        able=may,
        output_bytes=_sums(made, group_of, count),
        shape=_sums(np.array(list(map(_extents, ops))).reshape(-1, EXTENTS), group_of, count),
        persistent_bytes=_sums(list(map(persistent_bytes, ops)), group_of, count),
        workspace_bytes=workspace,
        source=source,
        target=target,
        edge_bytes=size,
        order=order,
    )


def neighbours(oracle: Oracle) -> Rows:
    """For each of ``oracle.groups``, the groups that it sends to or reads from, ascending."""
    source, target, _ = group_edges(oracle)
    ends, others = np.concatenate((source, target)), np.concatenate((target, source))
    return Rows.of_pairs(ends, others, len(oracle.groups))


def group_edges(oracle: Oracle) -> tuple[Ints, Ints, Floats]:
    """Source, target and bytes of the edges between different groups, sorted by source, then
    target.
    """
    reads, count = oracle.prepared.reads, len(oracle.groups)
    group_of = np.array(unit_of(oracle.graph), np.int64)
    tensor, target = reads.consumers.owners(), group_of[reads.consumers.ids]
    tensor, target = np.divmod(distinct(tensor * count + target), max(count, 1))
    source = group_of[reads.producer[tensor]]
    away = source != target
    pairs, where = np.unique(source[away] * count + target[away], return_inverse=True)
    size = np.bincount(where.ravel(), reads.bytes[tensor[away]], len(pairs)).astype(np.float64)
    source, target = np.divmod(pairs, max(count, 1))
    return source, target, size


def ancestors_of(nodes: Nodes) -> Bools:
    """Whether the second node leads to the first [n, n]; the transpose has the descendants.

    No node is its own ancestor; two nodes of a cycle are each other's. It takes n * n bytes.
    """
    before, count = Rows.of_pairs(nodes.target, nodes.source, len(nodes)), len(nodes)
    leads = np.zeros((count, count), np.bool_)
    leads[nodes.target, nodes.source] = True
    sequence, changed = np.argsort(nodes.order).tolist(), True
    while changed:  # at least twice, and again where cycles lead back
        changed = False
        for node in sequence:
            row = leads[node] | leads[before[node]].any(axis=0)
            changed |= bool((row != leads[node]).any())
            leads[node] = row
    np.fill_diagonal(leads, False)
    return leads


def _column(kind: str) -> int:
    return _KIND.get(backward_of(kind) or kind, _KIND["other"])


def _extents(op: Op) -> tuple[int, ...]:
    """The extents of the largest output that an op computes, with the last ones multiplied."""
    largest = max(op.made, key=lambda tensor: tensor.bytes, default=None)
    shape = () if largest is None or largest.shape is None else largest.shape
    front, rest = shape[: EXTENTS - 1], shape[EXTENTS - 1 :]
    padding = (0,) * (EXTENTS - len(front) - bool(rest))
    return (*front, *((prod(rest),) if rest else ()), *padding)


def _counts(columns: Sequence[int], width: int, group_of: Ints, count: int) -> Floats:
    """The number of each group's ops in each of ``width`` columns."""
    cells = group_of * width + np.array(columns, np.int64)
    return np.bincount(cells, minlength=count * width).reshape(count, width).astype(np.float64)


def _sums(values: ArrayLike, group_of: Ints, count: int) -> Floats:
    """Values by op (any further axes), summed by group."""
    column = np.asarray(values, np.float64)
    sums = np.zeros((count, *column.shape[1:]))
    np.add.at(sums, group_of, column)
    return sums
