"""Lower bounds of a plan's time and memory, without simulating it.

A *row* is a task of the lowered step on one rank of the pipeline (``lowering/hybrid/program.py``),
an *action* the forward or backward of one microbatch in one stage. Whatever the order in which
queues serve, every row begins after the rows that it waits for. So the longest path over some of
these edges is never longer than the step. The bounds follow the edges between whole actions, whose
durations come from the templates of the lowering:

1. On a rank, computation and the collectives that it waits for follow one another in the order of
   the schedule; an action lasts their sum.
2. An action begins when the action of the stage before it (in a backward: after it) has ended and
   its message has arrived. Messages may also wait for each other; the bounds ignore that.
3. With ZeRO 2 and 3 an action consists of the turns of its buckets. The gathers for a turn wait for
   the turn ``prefetch`` + 1 before it, whose reduction became ready no later and has a smaller
   number. A queue of the replicas serves the row that was ready first, so its order does not depend
   on durations: the reduction of each turn, then the gathers for the turn ``prefetch`` + 1 after
   it. A turn begins when its gathers have ended and the reduction of the bucket ``in_flight`` + 1
   before it has ended.
4. With ZeRO 0 and 1 a queue ends after the last action, no earlier than t plus all reductions that
   become ready from t on, for every t. The update and the gathers follow. A bucket is reduced
   between groups of replicas after it is reduced within them, in queues of their own.
5. Memory: parameters, gradients and states for the whole step; the saved activations of the
   microbatches in flight, by the order of the schedule; and the further memory that the backward of
   a last layer needs.

Coarser bounds, which cost less to compute, come first: ``exchanged_ps`` and ``held`` for many
setups at once, then ``waited_ps`` for a plan.

``search/plan/searching.py`` alone calls them: a plan whose bound is worse than the best is never
simulated, so a bound that is too large would silently lose the best plan. The compiled loops are in
``search/kernels/pipelines.py``. Durations and bytes follow ``simdev/lowering/hybrid`` by themselves
(``pieces.py``). A new rule there which makes a step shorter or smaller has to be met here by hand:
how far gathers and sums run ahead (``_turns``), the sum of tied embeddings (``_tie``), the order of
queues. ``tests/search/test_plan_bounds.py`` and ``test_plan_schedules.py`` detect a bound that is
too large.
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

KEPT = 2048  # results of each kind that are kept for the next plans of a setup


@cache
def _order(name: str, pp: int, microbatches: int, chunks: int) -> Order:
    """The actions of a named schedule, rank by rank in one column."""
    order = order_of(name, pp, microbatches, chunks)
    return Order(*(np.ascontiguousarray(column.ravel(), np.int64) for column in order))


class Path:
    """The longest path of a plan over its actions and the rows after the last action; and the
    memory that its microbatches in flight hold.
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
        """The ps of an action's main rows, by stage and kind of action."""
        times = np.zeros((len(self.division.counts), 3), np.int64)
        for number, kind in enumerate(self.kinds):
            times[:, number] = self.pieces.stages(self.division, kind)
        return times

    def _turns(self) -> tuple[int, int, Ints, Ints]:
        """The turns of buckets as arguments of ``kernels.pipelines``; empty where replicas send
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
        # How far gathers run ahead and reductions may lag (lowering/hybrid/actions.py), both at
        # most the number of all turns.
        most = max(int(at[-1]) * self.microbatches, 1)
        reach = min(1 + self.p.prefetch, most) if self.p.zero == 3 else 1
        behind = min(1 + self.p.in_flight * self.p.overlap, most)
        return reach, behind, at, np.concatenate(rows).ravel()

    def actions(self) -> tuple[Ints, Ints, Ints]:
        """Three columns of instants: the end of a rank's last action, the begin of the last action
        by stage and kind, and by rank the end of all that replicas send during actions.
        """
        stages, pp, m = self.pp * self.plan.chunks, self.pp, self.microbatches
        order = self.order
        forth, back = self.ground.transfers(self.pieces.program)
        stage = np.arange(stages)
        # The messages from stage s - 1 to s, and back from s + 1 to s.
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
        """The bound of the step: reductions over replicas, update and gathers after the actions."""
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
        if "optimizer" in self.p.offload:  # buckets one after another, each rounded separately
            updates = np.maximum(updates - self.ground.model.layers - 1, 0)
        if self.p.zero in (1, 2):
            np.add.at(gathers, *self._sent(reduces=False))
        ready = np.maximum(clock, reduced)
        self._tie(ready, ends)
        return int((ready + updates + gathers.max(axis=1)).max())

    def _ready(self, clock: Ints, begin: Ints) -> tuple[Ints, Ints]:
        """The earliest instants at which the gradients of each layer, and of both ends, are
        complete.
        """
        division, kind = self.division, self.kinds[-1]
        each = self.pieces.layers(kind)[division.kind]
        classifier = self.pieces.end(CLASSIFIER, kind)
        embedding = self.pieces.end(EMBEDDING, kind)
        # A backward meets the layers from the last to the first, after the classifier.
        behind = np.append(np.cumsum(each[::-1, MAIN])[::-1], 0)
        end = np.cumsum(division.counts.sum(axis=1))[division.stage]
        ready = begin[division.stage] + behind[1:] - behind[end]
        # A layer of several buckets may have its first bucket reduced while it computes the others.
        ready += each[:, COMPUTED] * self._whole[self.ground.kind]
        ready[division.stage == len(begin) - 1] += classifier.main
        first = begin[0] + self.times[0, len(self.kinds) - 1] - embedding.main + embedding.computed
        ends = np.array([first, begin[-1] + classifier.computed], np.int64)
        return ready, ends

    @cached_property
    def _whole(self) -> Ints:
        """By kind of layer: 1 where the layer is a single bucket, else 0."""
        shard = self.pieces.program.shard
        return np.array([buckets_of(shard, self.p, layer) == 1 for layer in self.ground.kinds])

    def _sent(self, reduces: bool) -> tuple[Ints, Ints]:
        """By bucket (all layers, then the ends of each rank that has any): its rank, and by queue
        the time of its reduction (``reduces``) or gather.
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
        """The earliest instants at which each rank's gradients are reduced, where each queue serves
        one bucket after another.
        """
        rank, lengths = self._sent(reduces=True)
        instants = ends.max(keepdims=True) if self.pp == 1 else ends
        ready = np.concatenate((layers, instants)) if self.p.overlap else clock[rank]
        latest: Ints = np.zeros(self.pp, np.int64)
        starts = np.searchsorted(np.sort(rank), np.arange(self.pp))
        for queue in queues:
            # A bucket is reduced between groups of replicas after it is reduced within them.
            since = ready + (lengths[:, queue - 2] if queue in BETWEEN and self.p.zero < 2 else 0)
            # Whatever its order, a queue ends no earlier than an instant plus the time of all
            # buckets that become ready from that instant on.
            order = np.lexsort((-since, rank))
            total = np.cumsum(lengths[order, queue])
            before = np.append(0, total)[starts][rank[order]]
            some = lengths[order, queue] > 0
            ends = total - before + since[order]
            np.maximum.at(latest, rank[order][some], ends[some])
        return latest

    def _tie(self, ready: Ints, ends: Ints) -> None:
        """Adds to ``ready`` the reduction of a tied embedding's gradient between the first and the
        last rank, which both have it.
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
        """The least bytes that the microbatches in flight hold, by rank."""
        counts, order, pp = self.division.counts, self.order, self.pp
        (_, workspace, again), split = self.pieces.footprints, WEIGHT in self.kinds
        _, classifier, beside, kept = self.pieces.ends_saved
        space = np.where(counts > 0, workspace, 0).max(axis=1)
        # The first layer of a backward, while the activations of all other layers are still held.
        during = space + again[self.division.last]
        during[-1] = max(int(space[-1]) + beside, int(during[-1]) - classifier + kept * split)
        # The activations that selective recomputation makes again live in one row of the backward.
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
    """The smallest schedule of a name and ``pp`` ranks, which tells the ranks of stages."""
    return named_schedule(name, pp, 2 * pp if name in PAIRED else 1)


class Bound(NamedTuple):
    """The least ps (0: not known) and bytes of a plan; ``fits`` unless they exceed a capacity."""

    step_ps: int
    peak_bytes: int
    fits: bool


class Bounds:
    """The bounds of the plans of a question; intermediate results that plans share are kept."""

    def __init__(self, question: Question, schedules: Iterable[str] = ()) -> None:
        """``schedules`` are the names that plans may have; some need weaker bounds of setups."""
        self.question, self.overlaps = question, not {*PAIRED}.isdisjoint(schedules)
        self.ground = cache(partial(Ground, question))
        # Results of a setup, kept for its next plans: by ZeRO, or by schedule and chunks.
        self.pieces, self._waits = lru_cache(KEPT)(self._pieces), lru_cache(KEPT)(self._waited)
        self._flying = lru_cache(KEPT)(lambda plan: self._path(plan).in_flight())
        self._ended = lru_cache(KEPT)(lambda plan: self._path(plan).actions())
        # Results shared by setups that are alike.
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
        """A program without rows, with the stages of a schedule."""
        plan = Plan(setup, "1F1B", 1, zero)
        p = replace(plan.parallelism, **fields)
        durations = self.ground(setup.layout.cluster).durations(plan)
        shard = shard_of(self.question.model, p)
        return Program(shard, p, _shape(schedule, p.pp), layers, durations)

    def alike(self, setup: Setup) -> Hashable:
        """A key that is equal for setups that compute and exchange the same for a microbatch,
        recomputation aside, and have equally many microbatches.
        """
        layout = setup.layout
        degrees = layout.cluster, layout.cp, layout.tp, layout.ep, layout.etp, layout.context
        sort = self.ground(layout.cluster).sort(layout.pp)
        return sort, *degrees, setup.microbatch, setup.others

    def exchanged_ps(self, setup: Setup) -> int:
        """The least ps of a plan of any setup that is ``alike``: the time of all exchanges of the
        layers, forward and backward, averaged over the ranks; 0 where actions overlap.
        """
        layout = setup.layout
        if self.overlaps:
            return 0
        # A ring, beside which attention computes, takes at least as long as its exchanges.
        gathered = setup._replace(layout=layout._replace(context="all_gather"))
        around, other = self.pieces(gathered, 1).exchanged()
        times = around * (1 + (layout.context == "all_gather")) + other - 1
        each = int(self.ground(layout.cluster).counts @ np.maximum(times, 0))
        return setup.microbatches * each // layout.pp

    def setup_ps(self, setup: Setup) -> int:
        """The least ps of any plan of a setup."""
        return self._mean_ps(setup, self.overlaps)

    def _mean_ps(self, setup: Setup, overlaps: bool) -> int:
        """The ps in which an average rank computes and exchanges, after the forwards of the stages
        before it (at least a layer each). Where actions overlap, only its computing.
        """
        pp, column = setup.layout.pp, ALONE if overlaps else MAIN
        key = self.alike(setup), setup.recompute, column
        each, forward = once(self._means, key, lambda: self._mean(setup, column))
        before = 0 if overlaps else pp * (pp - 1) // 2 * forward
        return (setup.microbatches * each + before) // pp

    def _mean(self, setup: Setup, column: int) -> tuple[int, int]:
        """The ps of a microbatch in all layers and ends, and the ps of a forward in one layer."""
        pieces, kinds = self.pieces(setup, 1), (FORWARD, BACKWARD)
        counts = self.ground(setup.layout.cluster).counts
        forward, backward = (pieces.layers(kind)[: len(counts), column] for kind in kinds)
        each = int(counts @ (forward + backward))
        if setup.recompute_layers is not None:
            more = pieces.layers(BACKWARD)[len(counts) :, column] - backward
            # With more stages than ranks no fewer layers are recomputed.
            least = min(setup.recompute_layers * setup.layout.pp, int(counts.sum()))
            each += least * int(more.min())
        # Where microbatches enter from both ends, both ends have embedding and classifier.
        homes = (False, True) if column == ALONE else (False,)
        for end, kind in product(ENDS, kinds):
            each += min(int(pieces.end(end, kind, mirrored)[column]) for mirrored in homes)
        # Halves of a backward are rounded each by itself, a ps at most.
        return each - 2 * int(counts.sum()) - 4, int(forward.min())

    def waited_ps(self, plan: Plan) -> int:
        """The least ps of a plan, whatever the order of its actions: a rank waits for a forward of
        each stage before it, then does all its actions; then follow the backwards of the stages
        before it, unless backwards are split.
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
        """The least bytes of the fullest rank under any schedule, and whether all ranks together
        have room for theirs: the states, and the saved activations of a microbatch whose first
        backward begins (where actions overlap, the states alone).
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
        """Bytes that all ranks together hold for the whole step."""
        # Ranks round their shares up, and count twice what two of them have: a pipeline of a single
        # rank has less.
        layers = list(range(self.question.model.layers))
        programs = (self._program(setup, zero, (tuple(layers),), pp=1) for zero in zeros)
        return min(sum(persistent_bytes(each, 0, layers).values()) for each in programs)

    def _saved(self, setup: Setup) -> tuple[int, int, int]:
        """Bytes of a microbatch when its backward begins on each rank: the saved activations of all
        ranks together, and the further bytes of the last rank and of each other rank.
        """
        pieces = self.pieces(setup, 1)
        saved, workspace, again = pieces.footprints
        embedding, classifier, *_ = pieces.ends_saved
        counts = self.ground(setup.layout.cluster).counts
        # Where a kind of layer may be recomputed or not, its recomputed form, which saves less.
        total = int(counts @ saved[-len(counts) :]) + embedding + classifier
        # On the last rank the backward of the classifier comes first.
        return total, int(workspace.min()), int((workspace + again).min())

    def plan(self, plan: Plan) -> Bound:
        """The bound of one plan."""
        path = self._path(plan)
        held = (self._paired if plan.schedule in PAIRED else self._held)(path)
        fits = bool((held <= path.ground.capacity(path.pp)).all())
        return Bound(self._time(path) if fits else 0, int(held.max()), fits)

    def _held(self, path: Path) -> Ints:
        """By rank the bytes held for the whole step and by microbatches in flight."""
        held: Ints = path.pieces.tails(path.division)[:, 1]
        if path.plan.schedule in SEARCHED:
            return held
        return held + self._flying(path.plan._replace(zero=1))  # the same for every ZeRO

    def _paired(self, path: Path) -> Ints:
        """By rank of DualPipe or DualPipeV the bytes held for the whole step, and saved by all
        forwards before the first backward.
        """
        plan, division = path.plan, path.division
        program = self._program(plan.setup, plan.zero, division.layers, plan.schedule)
        ranks = np.arange(path.pp)
        buckets = ([n for n in program.buckets(rank) if n != NO_LAYER] for rank in ranks.tolist())
        held = [
            sum(persistent_bytes(program, rank, layers).values())
            for rank, layers in enumerate(buckets)
        ]
        # The turns of schedules.dualpipe: near microbatches enter from the nearer end.
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
        # ZeRO 0 and 1 differ only after the last action.
        actions = path.actions() if plan.zero >= 2 else self._ended(plan._replace(zero=1))
        return max(waited, path.step_ps(*actions))
