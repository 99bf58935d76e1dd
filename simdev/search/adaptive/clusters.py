"""Clusters: connected groups on one device, which move together."""

from __future__ import annotations

import numpy as np

from ...nouns.taskgraph import Ints
from ...oracle import Oracle
from ..features import neighbours
from ..kernels.clusters import Growth, grow
from ..kernels.compiling import Columns


class Clusters:
    """Grows clusters of the groups of an oracle."""

    def __init__(self, oracle: Oracle) -> None:
        groups, near = len(oracle.groups), neighbours(oracle)
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
