"""Collectives of all replicas where only some are simulated: they last as long as those of the full
group, and hold what stands for the queues that these hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from ...costs.collectives import CollectiveCall
from ...nouns.cluster import Cluster
from ...nouns.fabric import Fabric
from ...nouns.fabric.queues import Queue
from ...nouns.strategy import Collectives
from ...nouns.taskgraph import Ints
from ..collective import Communicators, Ring
from .symmetry import IDLE


class SharedFabric(Fabric):
    """The queues of a cluster that collectives hold, one for all that the same collectives hold.

    Such queues are interchangeable: they have one policy, the same tasks in the same order, and so
    are idle and busy together. Nothing else may cross the cluster, so there are no routes.
    """

    def __init__(self, cluster: Cluster, whole: Fabric) -> None:
        super().__init__(cluster)
        self.whole = whole
        self.classes: Ints = np.full(len(whole.queues), IDLE, np.int64)
        self._sets: dict[tuple[int, ...], None] = {}

    def settle(self) -> None:
        """Number the classes, from all that was asked for so far."""
        sets = list(self._sets)
        holds = np.zeros((len(self.whole.queues), len(sets)), np.bool_)
        for column, queues in enumerate(sets):
            holds[np.array(queues, np.int64) - self.whole.first_queue, column] = True
        used = np.flatnonzero(holds.any(axis=1))
        if not len(used):
            return
        _, first, number = np.unique(holds[used], axis=0, return_index=True, return_inverse=True)
        # By the first queue of each: the order of numpy's sort says nothing.
        rank = np.argsort(np.argsort(first))
        self.classes[used] = rank[number.ravel()]
        self.queues = tuple(Queue(self.whole.queues[used[i]].name, -1) for i in np.sort(first))

    @cached_property
    def queues(self) -> tuple[Queue, ...]:
        """One queue a class; none before they are settled."""
        return ()

    def held(self, queues: tuple[int, ...]) -> tuple[int, ...]:
        """The queues that stand for those of the full group, as numbers of a task graph."""
        self._sets.setdefault(queues)
        rows = self.classes[np.array(queues, np.int64) - self.whole.first_queue]
        return tuple((self.first_queue + np.unique(rows)).tolist())


class GroupCommunicators(Communicators):
    """Collectives among those that stand for ``everyone`` (device indices of the whole cluster)."""

    def __init__(
        self, cluster: Cluster, whole: Communicators, everyone: Sequence[int], fabric: SharedFabric
    ) -> None:
        # Not as those of a cluster by itself: nothing is costed on the one that is simulated.
        self.cluster, self.choice, self.fabric = cluster, whole.choice, fabric
        self.whole, self.everyone, self.shared = whole, tuple(everyone), fabric

    def choosing(self, choice: Collectives) -> Communicators:
        """These, as another strategy chooses them."""
        whole = self.whole.choosing(choice)
        return GroupCommunicators(self.cluster, whole, self.everyone, self.shared)

    def costed(self, call: CollectiveCall, cost: str) -> Ring:
        """A collective among those simulated: what the full group does, as they see it."""
        ring = self.whole.costed(replace(call, ranks=self.everyone), cost)
        held = self.shared.held(ring.resources) if ring.resources else ()
        return replace(ring, ranks=call.ranks, resources=held)
