"""The longest path of a plan over its actions, and what follows the last of them."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from ...nouns.models.large import buckets_of
from ...nouns.models.large.roles import NO_LAYER
from ...nouns.schedules import BACKWARD, FORWARD, INPUT, SPLIT, WEIGHT
from ...nouns.taskgraph import Ints
from ..kernels.compiling import Columns
from ..kernels.pipelines import TURN, Pipeline, run_pipeline
from .ground import Ground, flat_order
from .pieces import CLASSIFIER, COMPUTED, EMBEDDING, MAIN, Pieces, turn_rows
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
    def times(self) -> Ints:
        """By stage and kind of action what its main rows take."""
        counts = self.division.counts
        times = np.zeros((len(counts), 3), np.int64)
        for number, kind in enumerate(self.kinds):
            times[:, number] = counts @ self.pieces.layers(kind)[:, MAIN]
            for stage, end in ((0, EMBEDDING), (-1, CLASSIFIER)):
                times[stage, number] += self.pieces.end(end, kind).main
        return times

    def _turns(self) -> tuple[int, int, Ints, Ints]:
        """As ``kernels.pipelines`` has them: none where replicas send nothing during actions."""
        stages, none = self.division.layers, (0, 1, np.zeros(1, np.int64), np.zeros(0, np.int64))
        if self.p.zero < 2 or self.p.replicas == 1:
            return none
        by_kind = []
        for kind in self.kinds:
            each = self.pieces.turns(kind)
            first, last = (turn_rows(self.pieces.end(e, kind)) for e in (EMBEDDING, CLASSIFIER))
            parts = [[each[number] for number in self.ground.kind[list(of)]] for of in stages]
            parts[0].insert(0, first)
            parts[-1].append(last)
            # A backward meets the layers from the last to the first.
            way = 1 if kind == FORWARD else -1
            by_kind.append([np.concatenate(part[::way]) for part in parts])
        by_kind += [[np.zeros((0, TURN), np.int64)] * len(stages)] * (3 - len(by_kind))
        rows = [rows for of_stage in zip(*by_kind, strict=True) for rows in of_stage]
        at = np.cumsum([0, *map(len, rows)])
        # The gates of lowering.hybrid.actions; no more than all turns stand before one.
        most = max(int(at[-1]) * self.microbatches, 1)
        reach = min(1 + self.p.prefetch, most) if self.p.zero == 3 else 1
        behind = min(1 + self.p.in_flight * self.p.overlap, most)
        return reach, behind, at, np.concatenate(rows).ravel()

    def actions(self) -> tuple[Ints, Ints, Ints]:
        """By rank when its last action ends, by stage and kind when the last one begins, and by
        rank when all is sent that replicas send during actions.
        """
        stages, pp, m = self.pp * self.plan.chunks, self.pp, self.microbatches
        order = flat_order(self.plan.schedule, pp, m, self.plan.chunks)
        forth, back = self.ground.transfers(self.pieces)
        stage = np.arange(stages)
        # What stage s - 1 sent to s, and what s + 1 sent back to it.
        ways = forth[(stage - 1) % pp], back[(stage + 1) % pp]
        reach, behind, *turns = self._turns()
        sizes = pp, len(order.stage) // pp, stages, m, reach, behind
        scratch = 3 * pp, pp * reach, pp * reach, pp * behind, 2 * pp, pp, pp
        columns: list[Ints] = [*order, self.times.ravel(), *ways, *turns]
        columns += [np.zeros(size, np.int64) for size in scratch]
        columns += [np.full(2 * stages * m, -1, np.int64), np.zeros(3 * stages, np.int64)]
        table = Columns(Pipeline(*sizes, *columns))
        left = run_pipeline(table.handle)
        assert not left, "an order that cannot run is no plan"
        sent = table.array("queue").reshape(-1, 2).max(axis=1)
        return table.array("clock"), table.array("last").reshape(-1, 3), sent

    def step_ps(self, clock: Ints, last: Ints, sent: Ints) -> int:
        """Behind the actions: sums over replicas, update, parameters gathered."""
        layers, ends = self._ready(clock, last[:, len(self.kinds) - 1])
        gathers = np.zeros((self.pp, 2), np.int64)
        reduced = sent if self.p.zero >= 2 else self._summed(clock, layers, ends)
        updates = self.division.updated(self.pieces, self.pp)[:, 0]
        if "optimizer" in self.p.offload:  # a bucket after the other, each rounded by itself
            updates = np.maximum(updates - self.ground.model.layers - 1, 0)
        if self.p.zero in (1, 2):
            gathers = self._gathered()
        ready = np.maximum(clock, reduced)
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
        first = begin[0] + self.times[0, len(self.kinds) - 1] - embedding.main + embedding.computed
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
        kinds = [self.pieces.sent(0, number, True) for number in self.ground.kinds]
        lengths = np.array(kinds, np.int64)[self.ground.kind]
        homes = sorted({0, pp - 1})
        outer = [self.pieces.sent(home, NO_LAYER, True) for home in homes]
        instants = np.array([ends.max()]) if pp == 1 else ends
        ready = np.concatenate((layers, instants))
        rank = np.concatenate((rank, homes))
        if not p.overlap:
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
