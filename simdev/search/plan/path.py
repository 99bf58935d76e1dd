"""The longest path of a plan over its actions, and what follows the last of them."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from ...nouns.models.large import buckets_of
from ...nouns.models.large.roles import NO_LAYER
from ...nouns.schedules import BACKWARD, FORWARD, INPUT, SPLIT, WEIGHT
from ...nouns.taskgraph import Ints
from ..kernels.compiling import Columns
from ..kernels.pipelines import Pipeline, run_pipeline
from .ground import Ground, flat_order
from .pieces import (
    CLASSIFIER,
    COMPUTED,
    EMBEDDING,
    GATHERED,
    MAIN,
    MOST_GATHERED,
    MOST_REDUCED,
    REDUCED,
    Pieces,
    columns,
)
from .space import Plan


class Path:
    """The longest path of a plan over its actions, and what follows them."""

    def __init__(self, pieces: Pieces, ground: Ground, plan: Plan) -> None:
        self.pieces, self.ground, self.plan = pieces, ground, plan
        self.p = pieces.program.parallelism
        self.pp, self.microbatches = self.p.pp, plan.setup.microbatches
        self.division = ground.division(self.pp * plan.chunks)
        self.kinds = (FORWARD, INPUT, WEIGHT) if plan.schedule in SPLIT else (FORWARD, BACKWARD)

    @cached_property
    def tables(self) -> list[Ints]:
        """By kind of action: ``columns`` of each stage, with the ends, what is most at once too."""
        return [self._table(kind) for kind in self.kinds]

    def _table(self, kind: str) -> Ints:
        counts, each = self.division.counts, self.pieces.layers(kind)
        table = counts @ each
        first, last = (columns([self.pieces.end(end, kind)])[0] for end in (EMBEDDING, CLASSIFIER))
        for most in (MOST_GATHERED, MOST_REDUCED):
            present = np.where((counts > 0)[:, :, None], each[None, :, most], 0)
            table[:, most] = present.max(axis=1)
        for stage, end in ((0, first), (-1, last)):
            for part in (slice(0, 2), GATHERED, REDUCED):
                table[stage, part] += end[part]
            for most in (MOST_GATHERED, MOST_REDUCED):
                table[stage, most] = np.maximum(table[stage, most], end[most])
        return table

    @cached_property
    def times(self) -> Ints:
        """By stage and kind of action: the longer of its main rows and, as far as the replicas'
        queues cannot run ahead or behind, of what these do for it.
        """
        times = np.zeros((self.pp * self.plan.chunks, 3), np.int64)
        # The gates of lowering.hybrid.actions.
        ahead, behind = 1 + self.p.prefetch, 1 + self.p.in_flight * self.p.overlap
        for number, table in enumerate(self.tables):
            sent = table[:, GATHERED] - ahead * table[:, MOST_GATHERED]
            sent = np.maximum(sent, 0) + np.maximum(
                table[:, REDUCED] - behind * table[:, MOST_REDUCED], 0
            )
            times[:, number] = np.maximum(table[:, MAIN], sent.max(axis=1))
        return times

    def actions(self) -> tuple[Ints, Ints]:
        """By rank when its last action ends, and by stage and kind when the last one begins."""
        stages, pp, m = self.pp * self.plan.chunks, self.pp, self.microbatches
        order = flat_order(self.plan.schedule, pp, m, self.plan.chunks)
        forth, back = self.ground.transfers(self.pieces)
        stage = np.arange(stages)
        # What stage s - 1 sent to s, and what s + 1 sent back to it.
        ways = forth[(stage - 1) % pp], back[(stage + 1) % pp]
        scratch = (
            np.zeros(pp, np.int64), np.zeros(pp, np.int64), np.full(2 * stages * m, -1, np.int64),
            np.zeros(3 * stages, np.int64),
        )  # fmt: skip
        sizes = pp, len(order.stage) // pp, stages, m
        table = Columns(Pipeline(*sizes, *order, self.times.ravel(), *ways, *scratch))
        left = run_pipeline(table.handle)
        assert not left, "an order that cannot run is no plan"
        return table.array("clock"), table.array("last").reshape(-1, 3)

    def step_ps(self, clock: Ints, last: Ints) -> int:
        """Behind the actions: sums over replicas, update, parameters gathered."""
        layers, ends = self._ready(clock, last[:, len(self.kinds) - 1])
        gathers = np.zeros((self.pp, 2), np.int64)
        reduced = self._summed(clock, layers, ends)
        updates = self.division.updated(self.pieces, self.pp)[:, 0]
        if "optimizer" in self.p.offload:  # a bucket after the other, each rounded by itself
            updates = np.maximum(updates - self.ground.model.layers - 1, 0)
        if self.p.zero in (1, 2):
            gathers = self._gathered()
        ready = np.maximum(clock, reduced)
        ready = np.maximum(ready, self._queued())
        self._tie(ready, ends)
        return int((ready + updates + gathers.max(axis=1)).max())

    def _ready(self, clock: Ints, begin: Ints) -> tuple[Ints, Ints]:
        """When the gradient of each layer, and of both ends, is complete at the earliest."""
        division, kind = self.division, self.kinds[-1]
        each = self.pieces.layers(kind)[self.ground.kind]
        classifier = self.pieces.end(CLASSIFIER, kind)
        embedding = self.pieces.end(EMBEDDING, kind)
        # A backward meets the layers from the last to the first, behind the classifier.
        behind = np.append(np.cumsum(each[::-1, MAIN])[::-1], 0)
        end = np.cumsum(division.counts.sum(axis=1))[division.stage]
        ready = begin[division.stage] + behind[1:] - behind[end]
        # Of a layer of several buckets the first may be reduced while the others are computed.
        ready += each[:, COMPUTED] * self._whole[self.ground.kind]
        ready[division.stage == len(begin) - 1] += classifier.main
        first = begin[0] + self.tables[-1][0, MAIN] - embedding.main + embedding.computed
        ends = np.array([first, begin[-1] + classifier.computed], np.int64)
        return ready, ends

    @cached_property
    def _whole(self) -> Ints:
        """By kind of layer: 1 where it is a single bucket."""
        shard = self.pieces.program.shard
        return np.array([buckets_of(shard, self.p, layer) == 1 for layer in self.ground.kinds])

    def _summed(self, clock: Ints, layers: Ints, ends: Ints) -> Ints:
        """By rank: when its gradients are summed at the earliest, each queue one after another."""
        p, pp = self.p, self.pp
        rank = self.division.stage % pp
        if p.zero >= 2:
            lengths = self.pieces.layers(self.kinds[-1])[self.ground.kind][:, REDUCED]
            outer = [
                self.pieces.end(end, self.kinds[-1]).reduced for end in (EMBEDDING, CLASSIFIER)
            ]
            homes, instants = [0, pp - 1], ends
        else:
            kinds = [self.pieces.sent(0, number, True) for number in self.ground.kinds]
            lengths = np.array(kinds, np.int64)[self.ground.kind]
            homes = sorted({0, pp - 1})
            outer = [self.pieces.sent(home, NO_LAYER, True) for home in homes]
            instants = np.array([ends.max()]) if pp == 1 else ends
        ready = np.concatenate((layers, instants))
        rank = np.concatenate((rank, homes))
        if not p.overlap and p.zero < 2:
            ready = clock[rank]
        lengths = np.concatenate((lengths, np.array(outer, np.int64).reshape(-1, 2)))
        # Whatever its order, a queue ends no earlier than all that is ready from an instant on.
        order = np.lexsort((-ready, rank))
        rank, ready, lengths = rank[order], ready[order], lengths[order]
        total = np.cumsum(lengths, axis=0)
        starts = np.searchsorted(rank, np.arange(pp))
        before = np.concatenate((np.zeros((1, 2), np.int64), total))[starts][rank]
        latest: Ints = np.zeros(pp, np.int64)
        np.maximum.at(latest, rank, (total - before).max(axis=1) + ready)
        return latest

    def _gathered(self) -> Ints:
        """By rank and queue: what gathering all its buckets takes."""
        kinds = [self.pieces.sent(0, number, False) for number in self.ground.kinds]
        each = np.array(kinds, np.int64)
        total = np.zeros((self.pp, 2), np.int64)
        rank = np.arange(len(self.division.counts)) % self.pp
        np.add.at(total, rank, self.division.counts @ each)
        for home in {0, self.pp - 1}:
            total[home] += self.pieces.sent(home, NO_LAYER, False)
        return total

    def _queued(self) -> Ints:
        """By rank: all that the queues of the replicas do for its actions."""
        total = np.zeros((self.pp, 2), np.int64)
        rank = np.arange(len(self.division.counts)) % self.pp
        for table in self.tables:
            np.add.at(total, rank, (table[:, GATHERED] + table[:, REDUCED]) * self.microbatches)
        busiest: Ints = total.max(axis=1)
        return busiest

    def _tie(self, ready: Ints, ends: Ints) -> None:
        """A table that the first and the last rank have is summed between them."""
        program = self.pieces.program
        if not program.shard.model.tied or self.pp == 1:
            return
        # The sizes of lowering.hybrid.tail.tie.
        p, shares = self.p, self.p.replicas if self.p.zero >= 2 else 1
        size = -(-program.shard.model.hidden * program.shard.vocabulary // shares)
        number = program.durations.transfer(0, self.pp - 1, size * p.gradient_bytes)
        column, lag = program.durations.columns[number], program.durations.lags[number]
        summed = int(ends.max()) + int(column.min() + lag.min())
        for rank in (0, self.pp - 1):
            ready[rank] = max(int(ready[rank]), summed)
