"""Bounds: the least time of a plan and the least bytes that it holds, without simulating it.

A *row* is a task of the lowered step on one rank of the pipeline (``lowering/hybrid/program.py``),
an *action* the forward or backward of one microbatch in one stage. Whatever the order in which
queues serve, every row begins after the rows that it waits for. So the longest path over some of
these edges is never longer than the step. The bounds follow the edges between whole actions, whose
durations come from the templates of the lowering:

1. The computing of a rank, and the collectives that it waits for, follow one another in the order
   of the schedule; an action lasts their sum.
2. A stage begins when the one before it (backward: behind it) has ended and its message has come.
   Messages may have to wait for each other; the bounds leave that out.
3. With ZeRO 2 and 3 an action is the turns of its buckets. The gathers for a turn wait for the turn
   ``prefetch`` + 1 before it, whose sum became ready no later and has a smaller number. A queue of
   the replicas takes first the row that was ready first, so its order does not depend on durations:
   the sum of each turn, then the gathers for the turn ``prefetch`` + 1 behind it. A turn begins
   when all is gathered and the sum of the bucket ``in_flight`` + 1 before it is over.
4. With ZeRO 0 and 1 a queue ends behind the last action no earlier than t plus all sums that become
   ready from t on, for every t. The update and the gathers follow. Between groups of replicas a
   bucket is summed behind its sum within them, in queues of their own.
5. Memory: parameters, gradients and states throughout; the saved activations of the microbatches in
   flight, by the order of the schedule; and the rest that the backward of a last layer needs.

Coarser bounds, which cost less to work out, are asked first: ``exchanged_ps`` and ``held`` of many
setups at once, then ``waited_ps`` of a plan.

``search/plan/searching.py`` alone calls them: a plan whose bound is worse than the best is never
simulated, so a bound that is too large would silently lose the best plan. The compiled loops are in
``search/kernels/pipelines.py``. Durations and bytes follow ``simdev/lowering/hybrid`` by themselves
(``pieces.py``). A new rule there which makes a step shorter or smaller has to be met here by hand:
how far gathers and sums run ahead (``_turns``), the sum of tied embeddings (``_tie``), the order of
queues. ``tests/search/test_plan_bounds.py`` and ``test_plan_schedules.py`` find a bound that is too
large.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from functools import cache, cached_property, lru_cache, partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from ...lowering.hybrid.buffers import persistent_bytes
from ...lowering.hybrid.program import Program
from ...nouns.models.large import buckets_of, shard_of
from ...nouns.models.large.roles import NO_LAYER
from ...nouns.models.large.shard import sums_late
from ...nouns.schedules import (
    BACKWARD,
    FORWARD,
    INPUT,
    PAIRED,
    SEARCHED,
    SPLIT,
    WEIGHT,
    Order,
    Schedule,
    named_schedule,
    order_of,
)
from ...nouns.taskgraph import Ints
from ..kernels import Columns
from ..kernels.pipelines import TURN, Held, Pipeline, run_held, run_pipeline
from .pieces import (
    ALONE,
    BETWEEN,
    CLASSIFIER,
    COMPUTED,
    EMBEDDING,
    ENDS,
    MAIN,
    SHARING,
    Ground,
    Pieces,
    least,
    once,
)
from .space import Plan, Question, Setup

KEPT = 2048  # answers that the next plans of a setup need, of each sort


@cache
def _order(name: str, pp: int, microbatches: int, chunks: int) -> Order:
    """The actions of a named schedule, rank by rank in one column."""
    order = order_of(name, pp, microbatches, chunks)
    return Order(*(np.ascontiguousarray(column.ravel(), np.int64) for column in order))


class Path:
    """The longest path of a plan over its actions, and what follows the last of them; and what the
    microbatches hold on it.
    """

    def __init__(self, pieces: Pieces, ground: Ground, plan: Plan) -> None:
        self.pieces, self.ground, self.plan = pieces, ground, plan
        self.p = pieces.program.parallelism
        self.pp, self.microbatches = self.p.pp, plan.setup.microbatches
        self.division = ground.division(self.pp * plan.chunks, plan.setup.recompute_layers)
        self.kinds = (FORWARD, INPUT, WEIGHT) if plan.schedule in SPLIT else (FORWARD, BACKWARD)

    @property
    def order(self) -> Order:
        """The actions of the schedule, rank by rank."""
        return _order(self.plan.schedule, self.pp, self.microbatches, self.plan.chunks)

    @cached_property
    def times(self) -> Ints:
        """By stage and kind of action the ps of its main rows."""
        times = np.zeros((len(self.division.counts), 3), np.int64)
        for number, kind in enumerate(self.kinds):
            times[:, number] = self.pieces.stages(self.division, kind)
        return times

    def _turns(self) -> tuple[int, int, Ints, Ints]:
        """The turns of buckets as ``kernels.pipelines`` takes them; none where replicas send
        nothing during actions.
        """
        if not self.p.reduces_by_bucket:
            return 0, 1, np.zeros(1, np.int64), np.zeros(0, np.int64)
        by_kind = []
        for kind in self.kinds:
            each = self.pieces.turns(kind)
            parts = [
                [each[number] for number in self.division.kind[list(of)]]
                for of in self.division.layers
            ]
            parts[0].insert(0, self.pieces.end(EMBEDDING, kind).turns)
            parts[-1].append(self.pieces.end(CLASSIFIER, kind).turns)
            # A backward meets the layers from the last to the first.
            way = 1 if kind == FORWARD else -1
            by_kind.append([np.concatenate(part[::way]) for part in parts])
        by_kind += [[np.zeros((0, TURN), np.int64)] * len(parts)] * (3 - len(by_kind))
        rows = [rows for of_stage in zip(*by_kind, strict=True) for rows in of_stage]
        at = np.cumsum([0, *map(len, rows)])
        # How far gathers run ahead and sums may lag (lowering/hybrid/actions.py); of both there
        # are no more than all turns.
        most = max(int(at[-1]) * self.microbatches, 1)
        reach = min(1 + self.p.prefetch, most) if self.p.zero == 3 else 1
        behind = min(1 + self.p.in_flight * self.p.overlap, most)
        return reach, behind, at, np.concatenate(rows).ravel()

    def actions(self) -> tuple[Ints, Ints, Ints]:
        """By rank when its last action ends, by stage and kind when the last one begins, and by
        rank when all is sent that replicas send during actions.
        """
        stages, pp, m = self.pp * self.plan.chunks, self.pp, self.microbatches
        order = self.order
        forth, back = self.ground.transfers(self.pieces.program)
        stage = np.arange(stages)
        # What stage s - 1 sent to s, and what s + 1 sent back to it.
        ways = forth[(stage - 1) % pp], back[(stage + 1) % pp]
        reach, behind, *turns = self._turns()
        sizes = pp, len(order.stage) // pp, stages, m, reach, behind
        scratch = 3 * pp, pp * reach, pp * reach, pp * behind, 4 * pp, pp, pp
        columns: list[Ints] = [*order, self.times.ravel(), *ways, *turns]
        columns += [np.zeros(size, np.int64) for size in scratch]
        columns += [np.full(2 * stages * m, -1, np.int64), np.zeros(3 * stages, np.int64)]
        table = Columns(Pipeline(*sizes, *columns))
        left = run_pipeline(table.handle)
        assert not left, "an order that cannot run is no plan"
        sent = table.array("queue").reshape(pp, -1).max(axis=1)
        return table.array("clock"), table.array("last").reshape(-1, 3), sent

    def step_ps(self, clock: Ints, last: Ints, sent: Ints) -> int:
        """Behind the actions: sums over replicas, update, parameters gathered."""
        layers, ends = self._ready(clock, last[:, len(self.kinds) - 1])
        gathers = np.zeros((self.pp, len(SHARING)), np.int64)
        shard = self.pieces.program.shard
        if self.p.zero < 2:
            reduced = self._summed(clock, layers, ends)
        elif sums_late(shard, self.p):
            reduced = np.maximum(sent, self._summed(clock, layers, ends, BETWEEN))
        else:
            reduced = sent
        updates = self.pieces.tails(self.division)[:, 0]
        if "optimizer" in self.p.offload:  # a bucket after the other, each rounded by itself
            updates = np.maximum(updates - self.ground.model.layers - 1, 0)
        if self.p.zero in (1, 2):
            np.add.at(gathers, *self._sent(reduces=False))
        ready = np.maximum(clock, reduced)
        self._tie(ready, ends)
        return int((ready + updates + gathers.max(axis=1)).max())

    def _ready(self, clock: Ints, begin: Ints) -> tuple[Ints, Ints]:
        """When the gradient of each layer, and of both ends, is complete at the earliest."""
        division, kind = self.division, self.kinds[-1]
        each = self.pieces.layers(kind)[division.kind]
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

    def _sent(self, reduces: bool) -> tuple[Ints, Ints]:
        """By bucket (all layers, then the ends of each rank that has any) the rank, and how long
        it is reduced, or gathered, by queue.
        """
        kinds = [self.pieces.sent(0, number, reduces) for number in self.ground.kinds]
        homes = sorted({0, self.pp - 1})
        ends = [self.pieces.sent(home, NO_LAYER, reduces) for home in homes]
        lengths = np.array(kinds + ends, np.int64)
        of_ends = np.arange(len(kinds), len(lengths))
        rank = np.concatenate((self.division.stage % self.pp, homes))
        return rank, lengths[np.concatenate((self.ground.kind, of_ends))]

    def _summed(
        self, clock: Ints, layers: Ints, ends: Ints, queues: range = range(len(SHARING))
    ) -> Ints:
        """By rank: when its gradients are summed at the earliest, each queue one after another."""
        rank, lengths = self._sent(reduces=True)
        instants = ends.max(keepdims=True) if self.pp == 1 else ends
        ready = np.concatenate((layers, instants)) if self.p.overlap else clock[rank]
        latest: Ints = np.zeros(self.pp, np.int64)
        starts = np.searchsorted(np.sort(rank), np.arange(self.pp))
        for queue in queues:
            # Between groups of replicas a bucket is summed when it is summed within them.
            since = ready + (lengths[:, queue - 2] if queue in BETWEEN and self.p.zero < 2 else 0)
            # Whatever its order, a queue ends no earlier than all that is ready from an instant on.
            order = np.lexsort((-since, rank))
            total = np.cumsum(lengths[order, queue])
            before = np.append(0, total)[starts][rank[order]]
            some = lengths[order, queue] > 0
            ends = total - before + since[order]
            np.maximum.at(latest, rank[order][some], ends[some])
        return latest

    def _tie(self, ready: Ints, ends: Ints) -> None:
        """The gradient of a tied embedding, which the first and the last rank have, is summed
        between the two.
        """
        program = self.pieces.program
        if not program.shard.model.tied or self.pp == 1:
            return
        # The sizes of lowering.hybrid.actions.tie.
        p, shares = self.p, self.p.sharers[0] if self.p.zero >= 2 else 1
        size = -(-program.shard.model.hidden * program.shard.vocabulary // shares)
        number = program.durations.transfer(0, self.pp - 1, size * p.gradient_bytes)
        summed = int(ends.max()) + least(program.durations, number)
        ready[[0, -1]] = np.maximum(ready[[0, -1]], summed)

    def in_flight(self) -> Ints:
        """By rank the bytes that the microbatches in flight hold at the least."""
        counts, order, pp = self.division.counts, self.order, self.pp
        (_, workspace, again), split = self.pieces.footprints, WEIGHT in self.kinds
        _, classifier, beside, kept = self.pieces.ends_saved
        space = np.where(counts > 0, workspace, 0).max(axis=1)
        # The first layer of a backward, while all others are still there.
        during = space + again[self.division.last]
        during[-1] = max(int(space[-1]) + beside, int(during[-1]) - classifier + kept * split)
        # What selective recomputation makes again lies in one row of the backward.
        after = counts @ again * (self.plan.setup.recompute == "full")
        after[-1] += kept - classifier
        columns = self.pieces.saved(self.division), after, during, np.zeros(pp, np.int64)
        places = len(order.stage) // pp
        table = Columns(Held(pp, places, int(split), order.stage, order.kind, *columns))
        run_held(table.handle)
        peak: Ints = table.array("peak")
        return peak


# The ladder of bounds.


@cache
def _shape(name: str, pp: int) -> Schedule:
    """The least schedule of a name and so many ranks: it tells where the stages are."""
    return named_schedule(name, pp, 2 * pp if name in PAIRED else 1)


class Bound(NamedTuple):
    """At least so many ps (0: not known) and bytes; ``fits`` unless the bytes exceed a capacity."""

    step_ps: int
    peak_bytes: int
    fits: bool


class Bounds:
    """The bounds of the plans of a question; what they share is worked out once."""

    def __init__(self, question: Question, schedules: Iterable[str] = ()) -> None:
        """``schedules`` are those that plans may have: of some other bounds of setups hold."""
        self.question, self.overlaps = question, not {*PAIRED}.isdisjoint(schedules)
        self.ground = cache(partial(Ground, question))
        # Of a setup, for its next plans: by ZeRO, or by schedule and chunks.
        self.pieces, self._waits = lru_cache(KEPT)(self._pieces), lru_cache(KEPT)(self._waited)
        self._flying = lru_cache(KEPT)(lambda plan: self._path(plan).in_flight())
        self._ended = lru_cache(KEPT)(lambda plan: self._path(plan).actions())
        # Of setups that are alike.
        self._means = dict[Hashable, tuple[int, int]]()
        self._states = dict[Hashable, int]()
        self._kept = dict[Hashable, tuple[int, int, int]]()

    def _pieces(self, setup: Setup, zero: int) -> Pieces:
        ground, pp = self.ground(setup.layout.cluster), setup.layout.pp
        layers, some = ground.division(pp).layers, setup.recompute_layers is not None
        counts: tuple[dict[str, Any], ...] = ({"recompute_layers": 0}, {"recompute_layers": None})
        programs = [
            self._program(setup, zero, layers, **each) for each in (counts if some else ({},))
        ]
        return Pieces(programs, ground.kinds, ground.ranks(pp))

    def _program(
        self,
        setup: Setup,
        zero: int,
        layers: tuple[tuple[int, ...], ...],
        schedule: str = "1F1B",
        **fields: Any,
    ) -> Program:
        """A program without rows, which knows the stages of a schedule."""
        plan = Plan(setup, "1F1B", 1, zero)
        p = replace(plan.parallelism, **fields)
        durations = self.ground(setup.layout.cluster).durations(plan)
        shard = shard_of(self.question.model, p)
        return Program(shard, p, _shape(schedule, p.pp), layers, durations)

    def alike(self, setup: Setup) -> Hashable:
        """A key that is equal for setups which compute and exchange the same for a microbatch,
        whatever they recompute. Their ranks have equally many microbatches, too.
        """
        layout = setup.layout
        degrees = layout.cluster, layout.cp, layout.tp, layout.ep, layout.etp, layout.context
        sort = self.ground(layout.cluster).sort(layout.pp)
        return sort, *degrees, setup.microbatch, setup.others

    def exchanged_ps(self, setup: Setup) -> int:
        """The least ps of a plan of any setup that is ``alike``: all that the layers exchange,
        forward and backward, in the mean over the ranks; 0 where actions overlap.
        """
        layout = setup.layout
        if self.overlaps:
            return 0
        # A ring takes as long as what it exchanges, which attention is computed beside.
        gathered = setup._replace(layout=layout._replace(context="all_gather"))
        around, other = self.pieces(gathered, 1).exchanged()
        times = around * (1 + (layout.context == "all_gather")) + other - 1
        each = int(self.ground(layout.cluster).counts @ np.maximum(times, 0))
        return setup.microbatches * each // layout.pp

    def setup_ps(self, setup: Setup) -> int:
        """The least ps of any plan of a setup."""
        return self._mean_ps(setup, self.overlaps)

    def _mean_ps(self, setup: Setup, overlaps: bool) -> int:
        """The ps in which a rank computes and exchanges in the mean, behind the forwards of the
        stages before it, of a layer each at the least; where actions overlap, the ps in which it
        computes.
        """
        pp, column = setup.layout.pp, ALONE if overlaps else MAIN
        key = self.alike(setup), setup.recompute, column
        each, forward = once(self._means, key, lambda: self._mean(setup, column))
        before = 0 if overlaps else pp * (pp - 1) // 2 * forward
        return (setup.microbatches * each + before) // pp

    def _mean(self, setup: Setup, column: int) -> tuple[int, int]:
        """How long a microbatch takes in all layers and ends, and a forward in one layer."""
        pieces, kinds = self.pieces(setup, 1), (FORWARD, BACKWARD)
        counts = self.ground(setup.layout.cluster).counts
        forward, backward = (pieces.layers(kind)[: len(counts), column] for kind in kinds)
        each = int(counts @ (forward + backward))
        if setup.recompute_layers is not None:
            more = pieces.layers(BACKWARD)[len(counts) :, column] - backward
            # Of more stages than ranks no fewer layers are made again.
            least = min(setup.recompute_layers * setup.layout.pp, int(counts.sum()))
            each += least * int(more.min())
        # Of two ways both ends of the pipeline have both.
        homes = (False, True) if column == ALONE else (False,)
        for end, kind in product(ENDS, kinds):
            each += min(int(pieces.end(end, kind, mirrored)[column]) for mirrored in homes)
        # Halves of a backward are rounded each by itself, a ps at most.
        return each - 2 * int(counts.sum()) - 4, int(forward.min())

    def waited_ps(self, plan: Plan) -> int:
        """The least ps of a plan, whatever the order of its actions: a rank waits for a forward of
        each stage before it and then does all its actions; unless a backward is split, those of the
        stages before it follow its last.
        """
        if plan.schedule in PAIRED:
            return self._mean_ps(plan.setup, overlaps=True)
        waited = self._waits(plan.setup, plan.chunks, plan.schedule in SPLIT)
        return max(self._mean_ps(plan.setup, overlaps=False), waited)

    def _waited(self, setup: Setup, chunks: int, is_split: bool) -> int:
        pieces, pp = self.pieces(setup, 1), setup.layout.pp
        ground = self.ground(setup.layout.cluster)
        division = ground.division(pp * chunks, setup.recompute_layers)
        forward, backward = (pieces.stages(division, kind) for kind in (FORWARD, BACKWARD))
        # Halves of a backward are rounded each by itself, a ps at most.
        busy = forward + backward - 2 * division.counts.sum(axis=1) - 4
        passed = forward[: pp - 1] + (0 if is_split else backward[: pp - 1])
        before = np.concatenate((np.zeros(1, np.int64), np.cumsum(passed)))
        return int((setup.microbatches * busy.reshape(-1, pp).sum(axis=0) + before).max())

    def held(self, setup: Setup, zeros: Sequence[int]) -> tuple[int, bool]:
        """The bytes that the fullest rank holds at the least whatever the schedule, and whether all
        ranks together have room: the states, and the saved activations of a microbatch whose first
        backward begins (where actions overlap the states alone).
        """
        layout, pp = setup.layout, setup.layout.pp
        parts = layout.tp, layout.ep, layout.etp, layout.dp_replicate
        key = layout.cluster, layout.dp * layout.cp, *parts, setup.others, zeros
        total = once(self._states, key, lambda: self._persistent(setup, zeros))
        if not self.overlaps:
            alike = self.alike(setup), setup.recompute
            saved, last, others = once(self._kept, alike, lambda: self._saved(setup))
            total += saved + last + (pp - 1) * others
        room = sum(self.ground(layout.cluster).capacity(pp).tolist())
        return -(-total // pp), total <= room

    def _persistent(self, setup: Setup, zeros: Sequence[int]) -> int:
        """Bytes of what lives throughout, of all ranks together."""
        # Ranks round their shares up, and what two of them have counts twice: one has less.
        layers = list(range(self.question.model.layers))
        programs = (self._program(setup, zero, (tuple(layers),), pp=1) for zero in zeros)
        return min(sum(persistent_bytes(each, 0, layers).values()) for each in programs)

    def _saved(self, setup: Setup) -> tuple[int, int, int]:
        """Bytes of a microbatch as its backward begins on each rank: the saved ones of all ranks
        together, and the others of the last rank and of each other one.
        """
        pieces = self.pieces(setup, 1)
        saved, workspace, again = pieces.footprints
        embedding, classifier, *_ = pieces.ends_saved
        counts = self.ground(setup.layout.cluster).counts
        # Of layers that may be made again, or not, the least.
        total = int(counts @ saved[-len(counts) :]) + embedding + classifier
        # On the last rank the classifier's comes first.
        return total, int(workspace.min()), int((workspace + again).min())

    def plan(self, plan: Plan) -> Bound:
        """The bound of one plan."""
        path = self._path(plan)
        held = (self._paired if plan.schedule in PAIRED else self._held)(path)
        fits = bool((held <= path.ground.capacity(path.pp)).all())
        return Bound(self._time(path) if fits else 0, int(held.max()), fits)

    def _held(self, path: Path) -> Ints:
        """By rank: what is there throughout, and what microbatches in flight hold."""
        held: Ints = path.pieces.tails(path.division)[:, 1]
        if path.plan.schedule in SEARCHED:
            return held
        return held + self._flying(path.plan._replace(zero=1))  # whatever ZeRO shares out

    def _paired(self, path: Path) -> Ints:
        """By rank of DualPipe or DualPipeV: what is there throughout, and what all forwards before
        the first backward save.
        """
        plan, division = path.plan, path.division
        program = self._program(plan.setup, plan.zero, division.layers, plan.schedule)
        ranks = np.arange(path.pp)
        buckets = ([n for n in program.buckets(rank) if n != NO_LAYER] for rank in ranks.tolist())
        held = [
            sum(persistent_bytes(program, rank, layers).values())
            for rank, layers in enumerate(buckets)
        ]
        # The turns of schedules.dualpipe: near microbatches come in from the nearer end.
        saved, stages = path.pieces.saved(division), len(division.layers)
        near = np.minimum(ranks, stages - 1 - ranks)
        both = near + 1
        warm: Ints = (2 * (stages // 2) - both) * saved[near] + both * saved[stages - 1 - near]
        return np.array(held, np.int64) + warm

    def _path(self, plan: Plan) -> Path:
        ground = self.ground(plan.setup.layout.cluster)
        return Path(self.pieces(plan.setup, plan.zero), ground, plan)

    def _time(self, path: Path) -> int:
        plan, waited = path.plan, self.waited_ps(path.plan)
        if plan.schedule in (*SEARCHED, *PAIRED):
            return waited
        # ZeRO 0 and 1 differ behind the last action alone.
        actions = path.actions() if plan.zero >= 2 else self._ended(plan._replace(zero=1))
        return max(waited, path.step_ps(*actions))
