"""What the network reads of a graph: rows that do not know how many others there are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...nouns.structure import unit_of
from ...nouns.taskgraph import Floats, Ints
from ...oracle import Oracle
from ...search.features import Nodes, features_of
from ...search.instance import Instance
from ...search.prepare import Grouped


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """A graph as its network reads it: n nodes in topological order, e edges.

    ``rows`` [n, F], where F depends on the number of devices alone; ``source`` and ``target`` [e]
    are rows; ``nodes`` [n] tells which node each row is.
    """

    rows: NDArray[np.float32]
    source: Ints
    target: Ints
    nodes: Ints


def inputs_of(oracle: Oracle, harmonics: int) -> Inputs:
    """The features of the groups of an oracle (``Nodes.scaled``), and where each is.

    Ours: how dear transfers are (``_dearness``), without which graphs would look alike that are
    best on one device and on all; the longest way to a node and from it, in seconds over the
    longest of all; and so many ``harmonics`` of both, of the topological number and of how dear all
    transfers are, sin and cos of pi 2^k x, by which a network tells apart neighbours, and graphs,
    that are alike but for these.
    """
    nodes = features_of(oracle).groups
    sequence = np.argsort(nodes.order, kind="stable").astype(np.int64)
    time = nodes.seconds.sum(axis=1) / np.maximum(nodes.able.sum(axis=1), 1)
    before, after = _ways(nodes, sequence, time)
    dearness = _dearness(oracle, time)
    number = nodes.order / max(len(nodes) - 1, 1)
    place = np.column_stack([number, before, after, dearness[:, 2]])
    waves = [place[:, :, None] * (np.pi * 2.0**k) for k in range(harmonics)]
    turned = [f(wave).reshape(len(nodes), -1) for wave in waves for f in (np.sin, np.cos)]
    table = np.hstack([nodes.scaled(), dearness, before[:, None], after[:, None], *turned])
    source, target = nodes.order[nodes.source], nodes.order[nodes.target]
    return Inputs(table[sequence].astype(np.float32), source, target, sequence)


def _dearness(oracle: Oracle, time: Floats) -> Floats:
    """The share [n, 3] that transfers have in the seconds of transfers and computing: of all that a
    node reads and of all that it sends, were it alone on its device, and of the whole graph.

    ``time`` [n] is what each computes, in seconds.
    """
    instance = Instance(oracle.prepared, Grouped.of(oracle.graph))
    group_of = np.array(unit_of(oracle.graph), np.int64)
    ends = group_of[np.array(instance.edges, np.int64).reshape(-1, 2)]
    apart = ends[:, 0] != ends[:, 1]
    seconds = instance.edge_ps[apart] / 1e12
    read, sent = (np.bincount(ends[apart, side], seconds, len(time)) for side in (1, 0))
    moved = np.column_stack([read, sent, np.full(len(time), seconds.sum())])
    both = moved + np.column_stack([time, time, np.full(len(time), time.sum())])
    share: Floats = moved / np.where(both > 0, both, 1.0)
    return share


def _ways(nodes: Nodes, sequence: Ints, time: Floats) -> tuple[Floats, Floats]:
    """The longest way that ends before each node [n] and that ends with it, from its end on [n],
    over the longest of all; by ``time`` [n]. Edges that lead back, on cycles, are left out.
    """
    ahead = nodes.order[nodes.source] < nodes.order[nodes.target]
    source, target = nodes.source[ahead], nodes.target[ahead]
    begin, rest = np.zeros(len(nodes)), np.zeros(len(nodes))
    for edge in np.argsort(nodes.order[source], kind="stable"):
        here, there = source[edge], target[edge]
        begin[there] = max(begin[there], begin[here] + time[here])
    for edge in np.argsort(-nodes.order[target], kind="stable"):
        here, there = source[edge], target[edge]
        rest[here] = max(rest[here], rest[there] + time[there])
    longest = float((begin + time + rest).max(initial=0.0)) or 1.0
    return begin / longest, rest / longest
