"""Which device has which rank, and the groups in which ranks communicate.

The devices of one pipeline rank are numbered g = d tp + t by replica d and part t. A *class* of
tasks says how the g are grouped: each by itself, or those that share a task, as a collective is
shared by all that take part in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...ground.errors import InputError
from ...nouns.cluster import Cluster
from ...nouns.strategy.parallelism import Parallelism
from ...nouns.taskgraph import Ints

SINGLE, TENSOR, DATA, EXPERT, EXPERT_DATA, CONTEXT = range(6)
CLASSES = 6


@dataclass(frozen=True)
class RankGrid:
    """``devices[rank][g]`` are indices into the cluster; ``dp`` counts all that have the same
    parameters, the ``cp`` parts of a sample too.
    """

    devices: tuple[tuple[int, ...], ...]
    dp: int
    tp: int
    ep: int
    cp: int = 1

    @property
    def copies(self) -> int:
        """Devices of each rank of the pipeline."""
        return self.dp * self.tp

    @cached_property
    def groups(self) -> tuple[Ints, ...]:
        """By class, the number of the group of each g."""
        g = np.arange(self.copies, dtype=np.int64)
        d, t = np.divmod(g, self.tp)
        # Experts are spread over ep consecutive replicas; the others of equal place share theirs.
        experts = d // self.ep * self.tp + t, d % self.ep * self.tp + t
        # The parts of a sample stand in a row, too.
        return g, d, t, *experts, d // self.cp * self.tp + t

    def count(self, kind: int) -> int:
        """How many groups a class has."""
        return int(self.groups[kind][-1]) + 1

    def members(self, kind: int, rank: int) -> list[tuple[int, ...]]:
        """The devices of each group of a class, by group."""
        groups = self.groups[kind]
        devices = np.array(self.devices[rank])[np.argsort(groups, kind="stable")]
        ends = np.cumsum(np.bincount(groups))[:-1]
        return [tuple(group.tolist()) for group in np.split(devices, ends)]

    def degrees(self, kind: int) -> tuple[int, ...]:
        """What the groups of a class hang on, beside the devices of a rank."""
        parts = {EXPERT: self.ep, EXPERT_DATA: self.ep, CONTEXT: self.cp}
        return self.tp, parts.get(kind, 1)

    @cached_property
    def collapsed(self) -> RankGrid:
        """One device for each rank of the pipeline, in groups by itself."""
        return RankGrid(tuple(devices[:1] for devices in self.devices), 1, 1, 1)


def rank_grid(cluster: Cluster, p: Parallelism) -> RankGrid:
    """The cluster's workers in their order, dealt out. Raises InputError where counts differ."""
    usable = cluster.workers
    if len(usable) != p.devices:
        names = [name for name in ("dp", "cp", "tp", "pp") if name != "cp" or p.cp > 1]
        counts = " x ".join(str(getattr(p, name)) for name in names)
        degrees = f"{' x '.join(names)}: {counts} = {p.devices} devices"
        reason = f'{degrees}, but the cluster "{cluster.name}" has {len(usable)}'
        raise InputError(f"{reason}; `simdev plan` tries all degrees that fit it")
    # Ranks of the pipeline are outermost: tp needs the links inside a node most, pp the least.
    each = p.replicas * p.tp
    ranks = tuple(usable[rank * each : (rank + 1) * each] for rank in range(p.pp))
    return RankGrid(ranks, p.replicas, p.tp, p.ep, p.cp)
