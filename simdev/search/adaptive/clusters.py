"""Clusters: connected groups on one device, which move together."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...oracle import Oracle
from ...taskgraph import Floats, Ints, Rows
from ..features import group_edges
from ..kernels.compiling import Columns, kernel, opener


class Growth(NamedTuple):
    """What a cluster grows in. Groups that are in it carry ``stamp[0]`` in ``seen``."""

    ptr: Ints  # neighbours of each group, as in Rows
    near: Ints
    cluster: Ints
    elsewhere: Ints  # devices
    front: Ints
    seen: Ints
    stamp: Ints
    met: Ints  # [0]: how many devices are in ``elsewhere``


open_growth = opener(Growth)


@kernel
def grow(growth: Growth, where: Ints, group: int, size: int, lucks: Floats) -> int:
    """Grow a cluster of at most ``size`` groups around one; how many it has."""
    g = open_growth(growth)
    g.stamp[0] += 1
    g.cluster[0], g.seen[group], count, met, end = group, g.stamp[0], 1, 0, 0
    for i in range(g.ptr[group], g.ptr[group + 1]):
        g.front[end] = g.near[i]
        end += 1
    for luck in lucks:  # where most edges lead elsewhere, or back, they may not be enough
        if end == 0 or count == size:
            break
        at = int(luck * end)
        end -= 1
        other, g.front[at] = g.front[at], g.front[end]
        if g.seen[other] == g.stamp[0]:
            continue
        if where[other] != where[group]:
            g.elsewhere[met] = where[other]
            met += 1
            continue
        g.seen[other], g.cluster[count] = g.stamp[0], other
        count += 1
        for i in range(g.ptr[other], g.ptr[other + 1]):
            g.front[end] = g.near[i]
            end += 1
    for at in range(end):
        if where[g.front[at]] != where[group]:
            g.elsewhere[met] = where[g.front[at]]
            met += 1
    g.met[0] = met
    return count


class Clusters:
    """Grows clusters of the groups of an oracle."""

    def __init__(self, oracle: Oracle) -> None:
        source, target, _ = group_edges(oracle)
        ends, others = np.concatenate((source, target)), np.concatenate((target, source))
        groups = len(oracle.groups)
        near = Rows.of_pairs(ends, others, groups)
        edges, none = len(near.ids), np.zeros(groups, np.int64)
        rooms = np.zeros(groups, np.int64), np.zeros(edges, np.int64), np.zeros(edges, np.int64)
        cells = np.zeros(1, np.int64), np.zeros(1, np.int64)
        self._near, self._columns = near, Columns(Growth(near.ptr, near.ids, *rooms, none, *cells))

    def around(
        self, group: int, size: int, where: Ints, random: np.random.Generator
    ) -> tuple[Ints, Ints]:
        """A cluster of at most ``size`` groups around one, and the devices of neighbours that stand
        elsewhere, each as often as it was met; ``where`` is each group's device.

        As in Wolff's cluster updates (1989) it grows along edges between equals; which edge is next
        is drawn, so that clusters differ.
        """
        columns, edges = self._columns, int(self._near.ptr[group + 1] - self._near.ptr[group])
        count = grow(columns.handle, where, group, size, random.random(2 * size + edges))
        met = int(columns.array("met")[0])
        return columns.array("cluster")[:count].copy(), columns.array("elsewhere")[:met]
