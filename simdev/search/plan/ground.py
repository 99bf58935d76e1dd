"""What the bounds of all plans on one cluster share: its ranks, divisions of layers, messages."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate, groupby, pairwise
from typing import Any

import numpy as np

from ...costs.collectives import collective_model
from ...ground.units import parse_bytes
from ...lowering.hybrid import Timings, even_layers
from ...lowering.hybrid.durations import Durations, dealt
from ...lowering.hybrid.program import Program
from ...lowering.hybrid.templates import Writer
from ...nouns.cluster import Cluster
from ...nouns.schedules import Order, order_of
from ...nouns.taskgraph import Ints
from .pieces import Pieces
from .question import Question
from .space import Plan


@dataclass(frozen=True, slots=True)
class Division:
    """The layers dealt out to stages: ``layers[stage]``, and by stage how many of each kind."""

    layers: tuple[tuple[int, ...], ...]
    counts: Ints
    stage: Ints  # by layer

    def updated(self, pieces: Pieces, ranks: int) -> Ints:
        """By rank how long the optimizer takes, and the bytes that live there throughout."""
        counts = self.counts.reshape(-1, ranks, self.counts.shape[1]).sum(axis=0).tolist()
        rows = []
        for rank, each in enumerate(counts):
            layers = [layer for stage in self.layers[rank::ranks] for layer in stage]
            rows.append(pieces.updated(rank, tuple(each), layers))
        return np.array(rows, np.int64)


class Ground:
    """What the bounds of all plans on one cluster share."""

    def __init__(self, question: Question, number: int) -> None:
        self.model = question.model
        self.cluster: Cluster = question.clusters[number]
        self.timings = Timings(collective_model(self.cluster), question.costs[number])
        kinds = [self.model.kind_of(layer) for layer in range(self.model.layers)]
        names = list(dict.fromkeys(kinds))
        self.kinds = [kinds.index(kind) for kind in names]
        self.kind = np.array([names.index(kind) for kind in kinds], np.int64)
        self.division, self.ranks = cache(self._division), cache(self._ranks)
        self.capacity = cache(self._capacity)
        self._durations: dict[Any, Durations] = {}
        self._transfers: dict[Any, tuple[Ints, Ints]] = {}

    def durations(self, plan: Plan) -> Durations:
        """Those of a layout; what a plan tells of ZeRO, schedule and recomputation is not asked."""
        layout = plan.setup.layout._replace(context="")
        key = layout, plan.setup.others
        if key not in self._durations:
            self._durations[key] = Durations(plan.parallelism, self.timings)
        return self._durations[key]

    def _division(self, stages: int) -> Division:
        bounds = [*accumulate(even_layers(self.model.layers, stages), initial=0)]
        layers = tuple(tuple(range(a, b)) for a, b in pairwise(bounds))
        stage = np.repeat(np.arange(stages), np.diff(bounds))
        counts = np.zeros((stages, len(self.kinds)), np.int64)
        np.add.at(counts, (stage, self.kind), 1)
        return Division(layers, counts, stage)

    def sort(self, pp: int) -> int:
        """A number that ranks of pipelines of such lengths share whose groups cost the same: 0
        where a rank has whole nodes, and all of these are alike.
        """
        each = len(self.cluster.workers) // pp
        return pp if not self._node or each % self._node else 0

    @cached_property
    def _node(self) -> int:
        """How many workers in a row are a node, where all nodes are alike, else 0."""
        alike, workers = self.timings.alike, self.cluster.workers
        runs = [list(run) for _, run in groupby(workers, alike.neighbourhood)]
        sorts = set(map(alike.sort, runs))
        is_whole = len({alike.neighbourhood(d) for d in workers}) == len(runs)
        return len(runs[0]) if len(sorts) == 1 and is_whole else 0

    def _ranks(self, pp: int) -> tuple[int, ...]:
        """A rank of each sort: those of one sort cost the same."""
        sorts = dict[Any, int]()
        for rank, devices in enumerate(dealt(self.cluster, pp)):
            sorts.setdefault(self.timings.alike.sort(devices), rank)
        return tuple(sorts.values())

    def _capacity(self, pp: int) -> Ints:
        """Bytes of the smallest device of each rank."""
        devices, unlimited = self.cluster.devices, 2**62
        return np.array(
            [
                min(
                    unlimited if (memory := devices[d].memory) is None else parse_bytes(memory)
                    for d in there
                )
                for there in dealt(self.cluster, pp)
            ],
            np.int64,
        )

    def transfers(self, pieces: Pieces) -> tuple[Ints, Ints]:
        """How long what a rank sends to the next is on its way, and what it sends to the one
        before; around the ends, too.
        """
        program = pieces.program
        p, size = program.parallelism, Writer(program, 0).sent_bytes
        key = p.dp, p.cp, p.tp, p.pp, p.message_latency, size
        if key not in self._transfers:
            every = [
                [self._transfer(program, rank, (rank + way) % p.pp, size) for rank in range(p.pp)]
                for way in (1, -1)
            ]
            forth, back = np.array(every, np.int64)
            self._transfers[key] = forth, back
        return self._transfers[key]

    def _transfer(self, program: Program, source: int, destination: int, size: int) -> int:
        if source == destination:
            return 0
        durations = program.durations
        number = durations.transfer(source, destination, size)
        return int(durations.columns[number].min() + durations.lags[number].min())


@cache
def flat_order(name: str, pp: int, microbatches: int, chunks: int) -> Order:
    """The actions of a named schedule, rank by rank in one column."""
    order = order_of(name, pp, microbatches, chunks)
    return Order(*(np.ascontiguousarray(column.ravel(), np.int64) for column in order))
