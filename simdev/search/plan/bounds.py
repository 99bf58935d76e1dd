"""Bounds: what no plan can be faster than, and what it holds at the least, without simulating it.

Start and finish of every row of a step meet all edges between rows, in whatever order queues serve,
so the longest path over some of the edges is never longer than the step. Kept are those that join
whole actions, with the durations of the templates that steps are lowered by:

1. What a rank computes, and the collectives that it waits for, follow one another in the order of
   the schedule; an action lasts their sum.
2. A stage begins when the one before it (backward: behind it) has ended and its message has come.
   That messages wait for each other is left out.
3. With ZeRO 2 and 3 an action is the turns of its buckets. What is gathered for a turn waits for
   the turn ``prefetch`` + 1 before it, and that turn's sum became ready no later, with a smaller
   number; so a queue of the replicas, which takes first what was ready first, has them in one order
   whatever they last: the sum of each turn, then what the turn ``prefetch`` + 1 behind it gathers.
   A turn begins when all is gathered and the sum of the bucket ``in_flight`` + 1 before it is over.
4. With ZeRO 0 and 1 a queue ends behind the last action no earlier than t plus all that becomes
   ready from t on, for every t. Then come the update and what is gathered.
5. Memory: parameters, gradients and states throughout; of microbatches in flight what the layers
   save, by the order of the schedule; and what the backward of a stage's last layer needs besides.

Coarser bounds come before: ``exchanged_ps`` and ``held`` of many setups, ``waited_ps`` of a plan.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from functools import cache, cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from ...lowering.hybrid.buffers import persistent_bytes
from ...lowering.hybrid.program import Program
from ...nouns.models.large import buckets_of, shard_of
from ...nouns.models.large.roles import NO_LAYER
from ...nouns.schedules import (
    BACKWARD,
    FORWARD,
    INPUT,
    PAIRED,
    SEARCHED,
    SPLIT,
    WEIGHT,
    Schedule,
    named_schedule,
)
from ...nouns.taskgraph import Ints
from ..kernels import Columns
from ..kernels.pipelines import TURN, Held, Pipeline, run_held, run_pipeline
from .ground import Division, Ground, flat_order
from .paired import computing_ps, paired_bytes
from .pieces import CLASSIFIER, COMPUTED, EMBEDDING, MAIN, Pieces, turn_rows
from .question import Question
from .space import Plan, Setup

# The longest path of a plan over its actions, and what follows the last of them.


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
        """The turns of buckets as ``kernels.pipelines`` takes them; none where replicas send
        nothing during actions.
        """
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


UNKNOWN = 0
KEPT = 512  # setups of which much is known


class Bound(NamedTuple):
    """At least so many ps and bytes; ``fits`` unless the bytes exceed a capacity."""

    step_ps: int
    peak_bytes: int
    fits: bool


@cache
def _shape(pp: int) -> Schedule:
    """Any schedule of so many ranks: it tells where the first and the last stage are."""
    return named_schedule("1F1B", pp, 1)


class _Known:
    """What plans of a setup share: pieces by ZeRO, the rest by schedule and chunks."""

    def __init__(self, setup: Setup) -> None:
        self.pieces: dict[int, Pieces] = {}
        self.flying: dict[tuple[str, int], Ints] = {}
        self.ended: dict[tuple[str, int], tuple[Ints, Ints, Ints]] = {}
        self.waited: dict[tuple[int, bool], int] = {}


class Bounds:
    """The bounds of the plans of a question; what they share is worked out once."""

    def __init__(self, question: Question, schedules: Iterable[str] = ()) -> None:
        """``schedules`` are those that plans may have: of some other bounds of setups hold."""
        self.question, self.overlaps = question, not {*PAIRED}.isdisjoint(schedules)
        self.ground = cache(self._ground)
        self._of = lru_cache(KEPT)(_Known)
        # Of setups that are alike.
        self._means: dict[Hashable, tuple[int, int]] = {}
        self._states: dict[Hashable, int] = {}
        self._kept: dict[Hashable, tuple[int, int, int]] = {}

    def _ground(self, number: int) -> Ground:
        return Ground(self.question, number)

    def pieces(self, setup: Setup, zero: int) -> Pieces:
        """Those of a setup, which are kept for its next plan."""
        known = self._of(setup).pieces
        if zero not in known:
            ground = self.ground(setup.layout.cluster)
            plan = Plan(setup, "1F1B", 1, zero)
            p, shape = plan.parallelism, _shape(setup.layout.pp)
            layers = ground.division(setup.layout.pp).layers
            shard = shard_of(self.question.model, p)
            program = Program(shard, p, shape, layers, ground.durations(plan))
            ranks = ground.ranks(setup.layout.pp)
            known[zero] = Pieces(program, ground.kinds, ranks)
        return known[zero]

    def alike(self, setup: Setup) -> Hashable:
        """Equal for setups that compute and exchange the same for a microbatch, whatever they make
        again; as many microbatches come on each of their ranks.
        """
        layout = setup.layout
        degrees = layout.cluster, layout.cp, layout.tp, layout.ep, layout.context
        sort = self.ground(layout.cluster).sort(layout.pp)
        return sort, *degrees, setup.microbatch, setup.others

    def exchanged_ps(self, setup: Setup) -> int:
        """What no plan is faster than of any setup that is ``alike``: what the layers exchange,
        forward and backward, in the mean over the ranks; nothing where actions overlap.
        """
        layout = setup.layout
        if self.overlaps:
            return 0
        # A ring takes as long as what it exchanges, which attention is computed beside.
        gathered = setup._replace(layout=layout._replace(context="all_gather"))
        around, other = self.pieces(gathered, 0).exchanged()
        times = around * (1 + (layout.context == "all_gather")) + 2 * other - 1
        each = int(self._counts(layout.cluster) @ np.maximum(times, 0))
        return setup.microbatches * each // layout.pp

    def _counts(self, cluster: int) -> Ints:
        """How many layers there are of each kind."""
        return np.bincount(self.ground(cluster).kind)

    def setup_ps(self, setup: Setup) -> int:
        """What no plan of a setup is faster than."""
        return self._computing_ps(setup) if self.overlaps else self._serial_ps(setup)

    def _computing_ps(self, setup: Setup) -> int:
        """Where actions overlap: what a rank computes in the mean."""
        return computing_ps(self.pieces(setup, 0), setup, self._counts(setup.layout.cluster))

    def _serial_ps(self, setup: Setup) -> int:
        """What a rank computes and exchanges in the mean, behind the forwards of the stages before
        it, of a layer each at the least.
        """
        pp, key = setup.layout.pp, (self.alike(setup), setup.recompute)
        if key not in self._means:
            self._means[key] = self._mean(setup)
        each, forward = self._means[key]
        return (setup.microbatches * each + pp * (pp - 1) // 2 * forward) // pp

    def _mean(self, setup: Setup) -> tuple[int, int]:
        """How long a microbatch takes in all layers and ends, and a forward in one layer."""
        pieces, counts = self.pieces(setup, 0), self._counts(setup.layout.cluster)
        forward, backward = pieces.layers(FORWARD)[:, MAIN], pieces.layers(BACKWARD)[:, MAIN]
        each = int(counts @ (forward + backward)) + sum(
            pieces.end(end, kind).main
            for end in (EMBEDDING, CLASSIFIER)
            for kind in (FORWARD, BACKWARD)
        )
        # Halves of a backward are rounded each by itself, a ps at most.
        return each - 2 * int(counts.sum()) - 4, int(forward.min())

    def waited_ps(self, plan: Plan) -> int:
        """What a plan is not faster than, whatever the order of its actions: a rank waits for a
        forward of each stage before it and then does all that it does; unless a backward is split,
        those of the stages before it follow its last.
        """
        if plan.schedule in PAIRED:
            return self._computing_ps(plan.setup)
        waited, key = self._of(plan.setup).waited, (plan.chunks, plan.schedule in SPLIT)
        if key not in waited:
            waited[key] = self._waited(plan, *key)
        return max(self._serial_ps(plan.setup), waited[key])

    def _waited(self, plan: Plan, chunks: int, is_split: bool) -> int:
        setup, pieces = plan.setup, self.pieces(plan.setup, 0)
        pp = setup.layout.pp
        counts = self.ground(setup.layout.cluster).division(pp * chunks).counts
        times = []
        for kind in (FORWARD, BACKWARD):
            each = counts @ pieces.layers(kind)[:, MAIN]
            each[0] += pieces.end(EMBEDDING, kind).main
            each[-1] += pieces.end(CLASSIFIER, kind).main
            times.append(each)
        forward, backward = times
        # Halves of a backward are rounded each by itself, a ps at most.
        busy = forward + backward - 2 * counts.sum(axis=1) - 4
        passed = forward[: pp - 1] + (0 if is_split else backward[: pp - 1])
        before = np.concatenate((np.zeros(1, np.int64), np.cumsum(passed)))
        return int((setup.microbatches * busy.reshape(-1, pp).sum(axis=0) + before).max())

    def held(self, setup: Setup, zeros: Sequence[int]) -> tuple[int, bool]:
        """What the fullest rank holds at the least whatever the schedule, and whether all ranks
        together have room for it: the states, and when its first backward begins what the layers
        save of that microbatch (where actions overlap the states alone).
        """
        pp = setup.layout.pp
        total = self._persistent(setup, zeros)
        if not self.overlaps:
            total += self._saved(setup, pp)
        room = sum(self.ground(setup.layout.cluster).capacity(pp).tolist())
        return -(-total // pp), total <= room

    def _persistent(self, setup: Setup, zeros: Sequence[int]) -> int:
        """Bytes of what lives throughout, of all ranks together."""
        layout, layers = setup.layout, list(range(self.question.model.layers))
        ground = self.ground(layout.cluster)
        key = layout.cluster, layout.dp * layout.cp, layout.tp, layout.ep, setup.others, zeros
        if key not in self._states:
            # Ranks round their shares up, and what two of them have counts twice: one has less.
            each = []
            for zero in zeros:
                plan = Plan(setup, "1F1B", 1, zero)
                p = replace(plan.parallelism, pp=1)
                shard, durations = shard_of(self.question.model, p), ground.durations(plan)
                program = Program(shard, p, _shape(1), (tuple(layers),), durations)
                each.append(sum(persistent_bytes(program, 0, layers).values()))
            self._states[key] = min(each)
        return self._states[key]

    def _saved(self, setup: Setup, pp: int) -> int:
        """Bytes that all ranks together have for a microbatch as its backward begins on each."""
        key = self.alike(setup), setup.recompute
        if key not in self._kept:
            pieces = self.pieces(setup, 0)
            prints, moved = pieces.footprints, "activations" in pieces.program.parallelism.offload
            saved = np.array([f.saved - f.moved * moved for f in prints], np.int64)
            embedding, classifier, *_ = pieces.ends_saved
            total = int(self._counts(setup.layout.cluster) @ saved) + embedding + classifier
            # On the last rank the classifier's comes first.
            space = min(f.workspace for f in prints), min(f.workspace + f.again for f in prints)
            self._kept[key] = total, *space
        total, last, others = self._kept[key]
        return total + last + (pp - 1) * others

    def plan(self, plan: Plan) -> Bound:
        """That of one plan."""
        peak, fits = self._memory(plan)
        return Bound(self._time(plan) if fits else UNKNOWN, peak, fits)

    def _memory(self, plan: Plan) -> tuple[int, bool]:
        layout = plan.setup.layout
        pieces, ground = self.pieces(plan.setup, plan.zero), self.ground(layout.cluster)
        division = ground.division(layout.pp * plan.chunks)
        if plan.schedule in PAIRED:
            held = paired_bytes(pieces, division, plan, _stage_bytes(pieces, division))
        else:
            held = division.updated(pieces, layout.pp)[:, 1]
        if plan.schedule not in (*SEARCHED, *PAIRED):
            flying = self._of(plan.setup).flying
            if plan[1:3] not in flying:  # whatever ZeRO shares out
                flying[plan[1:3]] = _held(pieces, division, plan)
            held = held + flying[plan[1:3]]
        fits = bool((held <= ground.capacity(layout.pp)).all())
        return int(held.max()), fits

    def _time(self, plan: Plan) -> int:
        least, ended = self.waited_ps(plan), self._of(plan.setup).ended
        if plan.schedule in (*SEARCHED, *PAIRED):
            return least
        ground = self.ground(plan.setup.layout.cluster)
        run = Path(self.pieces(plan.setup, plan.zero), ground, plan)
        if plan.zero >= 2:
            return max(least, run.step_ps(*run.actions()))
        # ZeRO 0 and 1 differ behind the last action alone.
        if plan[1:3] not in ended:
            ended[plan[1:3]] = run.actions()
        return max(least, run.step_ps(*ended[plan[1:3]]))


def _stage_bytes(pieces: Pieces, division: Division) -> Ints:
    """What a microbatch leaves on each stage, but for what is offloaded."""
    moved = "activations" in pieces.program.parallelism.offload
    each = [f.saved - f.moved * moved for f in pieces.footprints]
    saved: Ints = division.counts @ np.array(each, np.int64)
    embedding, classifier, *_ = pieces.ends_saved
    saved[0] += embedding
    saved[-1] += classifier
    return saved


def _held(pieces: Pieces, division: Division, plan: Plan) -> Ints:
    """What the microbatches in flight hold on each rank at the least."""
    counts, pp = division.counts, plan.setup.layout.pp
    prints, split = pieces.footprints, plan.schedule in SPLIT
    saved, again = _stage_bytes(pieces, division), np.array([f.again for f in prints], np.int64)
    _, classifier, beside, kept = pieces.ends_saved
    last = pieces.program.shard.model.kind_of
    kinds = [pieces.kind_numbers[last(layers[-1])] for layers in division.layers]
    space = np.where(counts > 0, [f.workspace for f in prints], 0).max(axis=1)
    # The first layer of a backward, while all others are still there.
    during = space + again[kinds]
    during[-1] = max(int(space[-1]) + beside, int(during[-1]) - classifier + kept * split)
    # What selective recomputation makes again lies in one row of the backward.
    after = counts @ again * (plan.setup.recompute == "full")
    after[-1] += kept - classifier
    order = flat_order(plan.schedule, pp, plan.setup.microbatches, plan.chunks)
    places = len(order.stage) // pp
    columns = order.stage, order.kind, saved, after, during, np.zeros(pp, np.int64)
    table = Columns(Held(pp, places, int(split), *columns))
    run_held(table.handle)
    peak: Ints = table.array("peak")
    return peak
