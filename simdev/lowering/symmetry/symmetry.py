"""What a symmetry says of a step: which devices run alike, and which of them stand for the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from ...nouns.taskgraph import COLLECTIVE, Ints, TaskGraph

IDLE = -1
Member = TypeVar("Member")


@dataclass(frozen=True, eq=False)
class Symmetry:
    """Devices that run alike, of which a task graph holds some that stand for all.

    ``devices`` are the names of all of the cluster's, ``stands`` by device the index in the task
    graph of the one that stands for it. ``queues`` are the names of all queues of transfers, and
    ``classes`` by queue the number of the one that stands for it among those of the task graph
    (IDLE: nothing ever holds it). ``replicas`` is how many run alike or nearly so.
    """

    devices: tuple[str, ...]
    stands: Ints
    queues: tuple[str, ...]
    classes: Ints
    replicas: int

    @cached_property
    def copies(self) -> Ints:
        """By device of the task graph for how many it stands, itself among them."""
        return np.bincount(self.stands).astype(np.int64)

    def __repr__(self) -> str:
        return f"Symmetry({len(self.copies)} devices for {len(self.devices)})"

    def counts(self, task_graph: TaskGraph) -> Ints:
        """By task for how many it stands: a collective is one, whoever takes part."""
        return np.where(task_graph.of_kind(COLLECTIVE), 1, self.copies[task_graph.tasks.source])

    def counted(self, task_graph: TaskGraph) -> int:
        """How many tasks all devices run together."""
        return int(self.counts(task_graph).sum())

    def to_json(self, task_graph: TaskGraph) -> dict[str, Any]:
        """The entry ``symmetry`` of a report: how many devices run alike, how many are simulated of
        all, and with how many tasks.
        """
        steps = task_graph.steps
        return {
            "replicas": self.replicas,
            "simulated": len(self.copies),
            "devices": len(self.devices),
            "tasks": len(task_graph.tasks) // steps,
            "tasks_of_all_devices": self.counted(task_graph) // steps,
        }

    def spread(self, members: Sequence[Member]) -> Iterator[tuple[str, Member]]:
        """Every device by name, with what the one that stands for it has."""
        for name, stand in zip(self.devices, self.stands.tolist(), strict=True):
            yield name, members[stand]


@dataclass(frozen=True, slots=True)
class Expanded:
    """Why every device was simulated where a symmetry was looked for."""

    why: str
