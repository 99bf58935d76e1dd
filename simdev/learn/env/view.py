"""What is seen of a placement from one group of it, in as many numbers for any graph."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...nouns.taskgraph import Floats, Ints, Rows
from ...search.features import ancestors_of
from .ground import Ground, share

POOLS = 5
SCALARS = 3


class View:
    """The rows of observations of a graph, each of ``size`` numbers from -1 to 1.

    For D devices a row is, in this order:

    - the F features of the visited group (``Nodes.scaled``);
    - the progress of the episode, how bad the placement is, and the group's start (3);
    - by device whether the group stands there, the bytes that it reads from there, those that it
      sends there, the time and the memory of all groups there (5 D);
    - of its ancestors, its descendants, the groups that are neither, those that it reads and those
      that read it: by device the time of those there, how many they are, and how much later than
      the group they start, on average (D + 2 each).

    Bytes are relative to the most that a group reads and sends; times to the longest times of all
    groups, memory and how many to those of all; starts to the step (at most 1). Without a visited
    group all that tells of it is 0.
    """

    def __init__(self, ground: Ground) -> None:
        nodes, self._devices = ground.features.groups, ground.devices
        self._features: Floats = nodes.scaled().astype(np.float64)
        self._leads = ancestors_of(nodes)
        self._seconds = share(ground.seconds, ground.longest)
        self._memory = ground.memory
        count = len(nodes)
        traffic = np.bincount(nodes.source, nodes.edge_bytes, count)
        traffic += np.bincount(nodes.target, nodes.edge_bytes, count)
        self._bytes = share(nodes.edge_bytes, traffic.max(initial=0.0))
        self._source, self._target = nodes.source, nodes.target
        # The edges of each group by number: of all those of a graph a visit needs a few.
        edges = np.arange(len(nodes.source), dtype=np.int64)
        self._into = Rows.of_pairs(nodes.target, edges, count)
        self._out = Rows.of_pairs(nodes.source, edges, count)
        self.size = (
            self._features.shape[1] + SCALARS + 5 * self._devices + POOLS * (self._devices + 2)
        )

    def row(
        self, group: int | None, placement: Ints, starts: Floats, progress: float, badness: float
    ) -> NDArray[np.float32]:
        """The observation; ``placement`` and ``starts`` (relative to the step) are by group."""
        rows, here = np.arange(len(placement)), np.eye(self._devices)[placement]
        work = here * self._seconds[rows, placement][:, None]
        loads = np.concatenate((work.sum(axis=0), self._memory @ here))
        if group is None:
            around, features = np.zeros(3 * self._devices), np.zeros(self._features.shape[1])
            pools, start = np.zeros(POOLS * (self._devices + 2)), 0.0
        else:
            around, features = self._around(group, placement), self._features[group]
            pools, start = self._pools(group, work, starts), starts[group]
        scalars = (progress, badness / (1.0 + badness), start)
        row = np.concatenate((features, scalars, around, loads, pools))
        return np.clip(row, -1.0, 1.0).astype(np.float32)  # sums of shares may round over 1

    def _around(self, group: int, placement: Ints) -> Floats:
        """By device: whether the group stands there, what it reads from there, what it sends
        there.
        """
        stands = np.arange(self._devices) == placement[group]
        into, out = self._into[group], self._out[group]
        read, sent = placement[self._source[into]], placement[self._target[out]]
        return np.concatenate(
            (
                stands,
                np.bincount(read, self._bytes[into], self._devices),
                np.bincount(sent, self._bytes[out], self._devices),
            )
        )

    def _pools(self, group: int, work: Floats, starts: Floats) -> Floats:
        """Of each pool the time by device, the share of all groups, and the mean of how much later
        they start.
        """
        pools = np.zeros((POOLS, len(starts)))
        pools[0], pools[1] = self._leads[group], self._leads[:, group]
        pools[2] = ~(self._leads[group] | self._leads[:, group])
        pools[2, group] = 0.0
        pools[3, self._source[self._into[group]]] = 1.0
        pools[4, self._target[self._out[group]]] = 1.0
        count = pools.sum(axis=1)
        later = pools @ starts / np.maximum(count, 1.0) - starts[group] * (count > 0)
        return np.column_stack((pools @ work, count / len(starts), later)).ravel()
