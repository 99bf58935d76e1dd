"""Bounds: what no plan can be faster than, and what it holds at the least, without simulating it.

Of the edges of a step those are kept that join whole actions: on each rank one after the other in
the order of the schedule, and across ranks by what they send. All starts of the step meet these, so
its longest path is no longer than the step; queues that it leaves out (of transfers, of the
replicas) count by their load. docs/plan.md has the proofs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from ...cluster import Cluster
from ...files import collective_model
from ...lowering.hybrid import Timings, even_layers
from ...lowering.hybrid.durations import Durations
from ...lowering.hybrid.program import Program
from ...lowering.hybrid.templates import transfer_bytes
from ...models.large import buckets_of, shard_of
from ...models.large.roles import NO_LAYER
from ...schedules import (
    BACKWARD,
    FORWARD,
    INPUT,
    SEARCHED,
    WEIGHT,
    Order,
    Schedule,
    named_schedule,
    order_of,
)
from ...taskgraph import Ints
from ...units import parse_bytes
from ..kernels.compiling import Columns
from ..kernels.pipelines import Held, Pipeline, run_held, run_pipeline
from .pieces import CLASSIFIER, EMBEDDING, Pieces, columns
from .question import Question
from .space import Plan, Setup

SPLIT = "ZB-H1", "ZB-H2", "InterleavedZeroBubble"
UNKNOWN = 0
MAIN, COMPUTED = 0, 1
GATHERED, MOST_GATHERED, REDUCED, MOST_REDUCED = (slice(2 * i, 2 * i + 2) for i in range(1, 5))


class Bound(NamedTuple):
    """At least so many ps and bytes; ``fits`` unless the bytes exceed a capacity."""

    step_ps: int
    peak_bytes: int
    fits: bool


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

    def _devices(self, pp: int, rank: int) -> list[int]:
        workers = list(self.cluster.workers)
        each = len(workers) // pp
        return workers[rank * each : (rank + 1) * each]

    def _ranks(self, pp: int) -> tuple[int, ...]:
        """A rank of each sort: those of one sort cost the same."""
        devices, sorts = self.cluster.devices, dict[Any, int]()
        for rank in range(pp):
            here = self._devices(pp, rank)
            pattern = self.timings.alike.pattern([[(d, d) for d in here]])
            sorts.setdefault((pattern, *(devices[d].kind for d in here)), rank)
        return tuple(sorts.values())

    def _capacity(self, pp: int) -> Ints:
        """Bytes of the smallest device of each rank."""
        devices, unlimited = self.cluster.devices, 2**62
        return np.array(
            [
                min(
                    unlimited if (memory := devices[d].memory) is None else parse_bytes(memory)
                    for d in self._devices(pp, rank)
                )
                for rank in range(pp)
            ],
            np.int64,
        )

    def transfers(self, pieces: Pieces) -> tuple[Ints, Ints]:
        """How long what a rank sends to the next is on its way, and what it sends to the one
        before; around the ends, too.
        """
        program = pieces.program
        p, size = program.parallelism, transfer_bytes(program)
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
def _shape(pp: int) -> Schedule:
    """Any schedule of so many ranks: it tells where the first and the last stage are."""
    return named_schedule("1F1B", pp, 1)


@cache
def _order(name: str, pp: int, microbatches: int, chunks: int) -> Order:
    order = order_of(name, pp, microbatches, chunks)
    return Order(*(np.ascontiguousarray(column.ravel(), np.int64) for column in order))


class Bounds:
    """The bounds of the plans of a question; what they share is worked out once."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.ground = cache(self._ground)
        # Of the setup that was asked for last.
        self._pieces: tuple[Any, dict[int, Pieces]] = None, {}
        self._flying: dict[tuple[str, int], Ints] = {}
        self._ended: dict[tuple[str, int], tuple[Ints, Ints]] = {}

    def _ground(self, number: int) -> Ground:
        return Ground(self.question, number)

    def pieces(self, setup: Setup, zero: int) -> Pieces:
        """Those of a setup, which are kept for its next plan."""
        if self._pieces[0] != setup:
            self._pieces, self._flying, self._ended = (setup, {}), {}, {}
        if zero not in self._pieces[1]:
            ground = self.ground(setup.layout.cluster)
            plan = Plan(setup, "1F1B", 1, zero)
            p, shape = plan.parallelism, _shape(setup.layout.pp)
            layers = ground.division(setup.layout.pp).layers
            shard = shard_of(self.question.model, p)
            program = Program(shard, p, shape, layers, ground.durations(plan))
            ranks = ground.ranks(setup.layout.pp)
            self._pieces[1][zero] = Pieces(program, ground.kinds, ranks)
        return self._pieces[1][zero]

    def setup_ps(self, setup: Setup) -> int:
        """What no plan of a setup is faster than: what a rank computes and exchanges in the mean,
        behind the forwards of the stages before it, of a layer each at the least.
        """
        pieces, pp = self.pieces(setup, 0), setup.layout.pp
        counts = np.bincount(self.ground(setup.layout.cluster).kind)
        forward, backward = pieces.layers(FORWARD)[:, MAIN], pieces.layers(BACKWARD)[:, MAIN]
        each = int(counts @ (forward + backward)) + sum(
            pieces.end(end, kind).main
            for end in (EMBEDDING, CLASSIFIER)
            for kind in (FORWARD, BACKWARD)
        )
        # Halves of a backward are rounded each by itself, a ps at most.
        each -= 2 * len(self.ground(setup.layout.cluster).kind) + 4
        waiting = pp * (pp - 1) // 2 * int(forward.min())
        return (setup.microbatches * each + waiting) // pp

    def plan(self, plan: Plan) -> Bound:
        """That of one plan."""
        peak, fits = self._memory(plan)
        return Bound(self._time(plan) if fits else UNKNOWN, peak, fits)

    def _memory(self, plan: Plan) -> tuple[int, bool]:
        layout = plan.setup.layout
        pieces, ground = self.pieces(plan.setup, plan.zero), self.ground(layout.cluster)
        division = ground.division(layout.pp * plan.chunks)
        held = division.updated(pieces, layout.pp)[:, 1]
        if plan.schedule not in SEARCHED:
            if plan[1:3] not in self._flying:  # whatever ZeRO shares out
                self._flying[plan[1:3]] = _held(pieces, division, plan)
            held = held + self._flying[plan[1:3]]
        fits = bool((held <= ground.capacity(layout.pp)).all())
        return int(held.max()), fits

    def _time(self, plan: Plan) -> int:
        least = self.setup_ps(plan.setup)
        if plan.schedule in SEARCHED:
            return least
        ground = self.ground(plan.setup.layout.cluster)
        run = _Run(self.pieces(plan.setup, plan.zero), ground, plan)
        if plan.zero >= 2:
            return max(least, run.step_ps(*run.actions()))
        # ZeRO 0 and 1 differ behind the last action alone.
        if plan[1:3] not in self._ended:
            self._ended[plan[1:3]] = run.actions()
        return max(least, run.step_ps(*self._ended[plan[1:3]]))


def _held(pieces: Pieces, division: Division, plan: Plan) -> Ints:
    """What the microbatches in flight hold on each rank at the least."""
    counts, pp = division.counts, plan.setup.layout.pp
    prints, split = pieces.footprints, plan.schedule in SPLIT
    moved = "activations" in pieces.program.parallelism.offload
    saved = counts @ np.array([f.saved - f.moved * moved for f in prints], np.int64)
    again = np.array([f.again for f in prints], np.int64)
    embedding, classifier, beside, kept = pieces.ends_saved
    last = pieces.program.shard.model.kind_of
    kinds = [pieces.kind_numbers[last(layers[-1])] for layers in division.layers]
    space = np.where(counts > 0, [f.workspace for f in prints], 0).max(axis=1)
    # The first layer of a backward, while all others are still there.
    during = space + again[kinds]
    saved[0] += embedding
    saved[-1] += classifier
    during[-1] = max(int(space[-1]) + beside, int(during[-1]) - classifier + kept * split)
    # What selective recomputation makes again lies in one row of the backward.
    after = counts @ again * (plan.setup.recompute == "full")
    after[-1] += kept - classifier
    order = _order(plan.schedule, pp, plan.setup.microbatches, plan.chunks)
    places = len(order.stage) // pp
    columns = order.stage, order.kind, saved, after, during, np.zeros(pp, np.int64)
    table = Columns(Held(pp, places, int(split), *columns))
    run_held(table.handle)
    peak: Ints = table.array("peak")
    return peak


class _Run:
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
        order = _order(self.plan.schedule, pp, m, self.plan.chunks)
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
            gathers = self._sent(False)
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

    def _sent(self, reduces: bool) -> Ints:
        """By rank and queue: what all its buckets take."""
        kinds = [self.pieces.sent(0, number, reduces) for number in self.ground.kinds]
        each = np.array(kinds, np.int64)
        total = np.zeros((self.pp, 2), np.int64)
        rank = np.arange(len(self.division.counts)) % self.pp
        np.add.at(total, rank, self.division.counts @ each)
        for home in {0, self.pp - 1}:
            total[home] += self.pieces.sent(home, NO_LAYER, reduces)
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
        p, shares = self.p, self.p.replicas if self.p.zero >= 2 else 1
        size = -(-program.shard.model.hidden * program.shard.vocabulary // shares)
        number = program.durations.transfer(0, self.pp - 1, size * p.gradient_bytes)
        column, lag = program.durations.columns[number], program.durations.lags[number]
        summed = int(ends.max()) + int(column.min() + lag.min())
        for rank in (0, self.pp - 1):
            ready[rank] = max(int(ready[rank]), summed)
