"""Layout: which device has which rank, and the groups in which ranks communicate.

The ranks of one pipeline rank are numbered g = d tp + t by replica d and part t. A *class* of tasks
says how the g are grouped: each by itself, or those that share a task, as a collective is shared by
all that take part in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...cluster import Cluster
from ...errors import InputError
from ...strategy.parallelism import Parallelism
from ...taskgraph import Ints

OWN, TENSOR, DATA, EXPERT, EXPERT_DATA = range(5)
CLASSES = 5


@dataclass(frozen=True)
class Layout:
    """``devices[rank][g]`` are indices into the cluster."""

    devices: tuple[tuple[int, ...], ...]
    dp: int
    tp: int
    ep: int

    @property
    def copies(self) -> int:
        """Devices of each rank of the pipeline."""
        return self.dp * self.tp

    @cached_property
    def groups(self) -> tuple[Ints, ...]:
        """By class, the number of the group of each g."""
        d, t = np.divmod(np.arange(self.copies, dtype=np.int64), self.tp)
        return d * self.tp + t, d, t, d // self.ep * self.tp + t, d % self.ep * self.tp + t

    def count(self, kind: int) -> int:
        """How many groups a class has."""
        return int(self.groups[kind][-1]) + 1

    def members(self, kind: int, rank: int) -> list[tuple[int, ...]]:
        """The devices of each group of a class, by group."""
        found: list[list[int]] = [[] for _ in range(self.count(kind))]
        for g, group in enumerate(self.groups[kind].tolist()):
            found[group].append(self.devices[rank][g])
        return [tuple(one) for one in found]

    @cached_property
    def collapsed(self) -> Layout:
        """One device for each rank of the pipeline, in groups of its own."""
        return Layout(tuple(one[:1] for one in self.devices), 1, 1, 1)


def layout(cluster: Cluster, p: Parallelism) -> Layout:
    """The cluster's workers in their order, dealt out.

    Raises InputError where they are not as many.
    """
    usable = cluster.workers
    if len(usable) != p.devices:
        told = f"dp x tp x pp: {p.dp} x {p.tp} x {p.pp} = {p.devices} devices"
        raise InputError(f'{told}, but the cluster "{cluster.name}" has {len(usable)}')
    each = p.dp * p.tp
    ranks: list[Sequence[int]] = [usable[r * each : (r + 1) * each] for r in range(p.pp)]
    return Layout(tuple(map(tuple, ranks)), p.dp, p.tp, p.ep)
