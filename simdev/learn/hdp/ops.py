"""Ops: what HDP groups, and how it describes each (numpy only).

The layout is that of the released code (TensorFlow, python/grappler/hierarchical_controller.py):
the paper's text says no more than that types, output shapes and adjacency are in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...nouns.graph import Op
from ...nouns.taskgraph import Floats, Ints
from ...oracle import Oracle
from ...search.features import Nodes
from ...search.space import mean_ps

OUTPUTS, EXTENTS = 5, 5  # tensors of an op that are described, and extents of each
SHAPES = OUTPUTS * EXTENTS
NEIGHBOURS = 10  # that are described, each by its number and +1 (it reads) or -1 (it is read)
WIDTH = 1 + SHAPES + 2 * NEIGHBOURS  # 46


@dataclass(frozen=True, slots=True, eq=False)
class Ops:
    """The V ops that have a choice of devices, in topological order; what has to stand together
    counts as one of them.

    ``where`` [V]: their groups in the oracle. ``kind`` [V]: the type of each, as a number of
    ``kinds``. ``shapes`` [V, 25]: extents of outputs, 0 where there are none. ``rows`` [V, 46]: the
    description. ``source``, ``target`` [e]: the edges between them. ``instead`` [V]: where an op
    stands whose group is placed where it cannot be: on the fastest device that it may use.
    """

    where: Ints
    kind: Ints
    kinds: int
    shapes: NDArray[np.float32]
    rows: NDArray[np.float32]
    source: Ints
    target: Ints
    instead: Ints

    def __len__(self) -> int:
        return len(self.where)


def ops_of(oracle: Oracle, groups: Nodes, scaled: bool) -> Ops:
    """The ops of an oracle, of whose groups ``groups`` are the features.

    Ours: of several ops that stand together the type is that of the longest, and all their outputs
    are listed; a tensor whose shape is not known has one extent, its bytes. ``scaled``, ours too:
    numbers of types and neighbours are divided by how many there are, logarithms of extents by the
    largest; else they are the plain numbers of the released code.
    """
    order = np.argsort(groups.order)
    where = order[groups.able[order].sum(axis=1) > 1].astype(np.int64)
    kind, kinds = _kinds(oracle, where)
    shapes = _shapes(oracle, where)
    source, target = _edges(groups, where)
    near = _neighbours(source, target, len(where))
    types = kind.astype(np.float64)
    if scaled:
        types /= max(kinds, 1)
        near[:, ::2] /= max(len(where), 1)
        shapes = np.where(shapes > 0, np.log1p(np.abs(shapes)), shapes)
        shapes = np.where(shapes > 0, shapes / max(shapes.max(initial=0.0), 1.0), shapes)
    rows = np.column_stack([types, shapes, near]).astype(np.float32)
    instead = np.where(groups.able, groups.seconds, np.inf).argmin(axis=1)[where]
    extents = np.maximum(shapes, 0.0).astype(np.float32)
    return Ops(where, kind, kinds, extents, rows, source, target, instead.astype(np.int64))


def _kinds(oracle: Oracle, where: Ints) -> tuple[Ints, int]:
    """The types of ops as numbers, in the order of their names, and how many there are."""
    ops, times = oracle.graph.ops, mean_ps(oracle.prepared.duration)
    longest = [max(oracle.groups[group], key=lambda i: float(times[i])) for group in where]
    names, kind = np.unique([ops[i].kind for i in longest], return_inverse=True)
    return kind.ravel().astype(np.int64), len(names)


def _shapes(oracle: Oracle, where: Ints) -> Floats:
    """The extents of outputs [V, 25], -1 where there are none."""
    table = np.full((len(where), OUTPUTS, EXTENTS), -1.0)
    for row, group in zip(table, where, strict=True):
        members = (oracle.graph.ops[i] for i in oracle.groups[group])
        shapes = (shape for op in members for shape in _extents(op))
        for cells, shape in zip(row, shapes, strict=False):
            cells[: len(shape)] = shape[:EXTENTS]
    return table.reshape(-1, SHAPES)


def _extents(op: Op) -> Iterator[tuple[int, ...]]:
    for tensor in op.made:
        yield (tensor.bytes,) if tensor.shape is None else tensor.shape


def _edges(groups: Nodes, where: Ints) -> tuple[Ints, Ints]:
    """Source and target of the edges between the ops of ``where``, by their numbers there."""
    number = np.full(len(groups), -1, np.int64)
    number[where] = np.arange(len(where))
    source, target = number[groups.source], number[groups.target]
    both = (source >= 0) & (target >= 0)
    return source[both], target[both]


def _neighbours(source: Ints, target: Ints, count: int) -> Floats:
    """Pairs of a neighbour's number and +1 or -1 [V, 20], those of least number first; 0 where
    there are no more.
    """
    table = np.zeros((count, NEIGHBOURS, 2))
    of, near = np.concatenate([source, target]), np.concatenate([target, source])
    sign = np.repeat([1.0, -1.0], len(source))
    used = np.zeros(count, np.int64)
    for i in np.lexsort((sign, near)):
        if used[of[i]] < NEIGHBOURS:
            table[of[i], used[of[i]]] = near[i], sign[i]
            used[of[i]] += 1
    return table.reshape(-1, 2 * NEIGHBOURS)
