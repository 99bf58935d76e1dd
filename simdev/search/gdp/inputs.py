"""What the network reads of a graph: rows that do not know how many others there are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...taskgraph import Floats, Ints
from ..features import Nodes


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


def inputs_of(nodes: Nodes, harmonics: int) -> Inputs:
    """The features of the nodes (``Nodes.scaled``), and where each is.

    Ours: the longest way to a node and from it, in seconds over the longest of all; and so many
    ``harmonics`` of both and of the topological number, sin and cos of pi 2^k x, by which a network
    tells neighbours apart that are alike but for their place.
    """
    sequence = np.argsort(nodes.order, kind="stable").astype(np.int64)
    before, after = _ways(nodes, sequence)
    place = np.column_stack([nodes.order / max(len(nodes) - 1, 1), before, after])
    waves = [place[:, :, None] * (np.pi * 2.0**k) for k in range(harmonics)]
    turned = [f(wave).reshape(len(nodes), -1) for wave in waves for f in (np.sin, np.cos)]
    table = np.hstack([nodes.scaled(), before[:, None], after[:, None], *turned])
    source, target = nodes.order[nodes.source], nodes.order[nodes.target]
    return Inputs(table[sequence].astype(np.float32), source, target, sequence)


def _ways(nodes: Nodes, sequence: Ints) -> tuple[Floats, Floats]:
    """The longest way that ends before each node [n] and that ends with it, from its end on [n],
    over the longest of all; by the mean times of the devices that can. Edges that lead back, on
    cycles, are left out.
    """
    time = nodes.seconds.sum(axis=1) / np.maximum(nodes.able.sum(axis=1), 1)
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
