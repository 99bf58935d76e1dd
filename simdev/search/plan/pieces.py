"""Pieces of a step: the times of a layer, the embedding and the classifier in each kind of action,
and the memory that they keep, from the templates of the lowering; and the ground of a cluster,
which the bounds of all plans on it share: its ranks, divisions of layers, messages.

Where groups or devices differ, the fastest counts, since pieces serve lower bounds. Only bounds.py
uses this module. It follows changes of the templates in ``simdev/lowering/hybrid`` by itself; the
bytes that a layer saves and sends are named here (``Program.footprint``, ``sent_bytes``).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cache, cached_property
from itertools import accumulate, groupby, pairwise
from typing import NamedTuple, TypeVar

import numpy as np

from ...ground.units import parse_bytes
from ...lowering.hybrid import even_layers
from ...lowering.hybrid.buffers import persistent_bytes
from ...lowering.hybrid.durations import Durations, dealt
from ...lowering.hybrid.program import (
    COMPUTE,
    CONTEXT_QUEUE,
    DATA_QUEUE,
    EXPERT_DATA_QUEUE,
    EXPERT_REPLICA_QUEUE,
    LAST_MAIN_QUEUE,
    REPLICA_QUEUE,
    Program,
    Template,
)
from ...lowering.hybrid.templates import Writer
from ...nouns.models.large import roles, update
from ...nouns.models.large.roles import NO_LAYER
from ...nouns.models.large.shard import (
    classifier_kept,
    classifier_saved,
    classifier_workspace,
    embedding_saved,
    sums_late,
)
from ...nouns.schedules import BACKWARD, FORWARD, INPUT, WEIGHT
from ...nouns.taskgraph import Ints
from ..kernels.pipelines import TURN
from .space import Plan, Question

T = TypeVar("T")
MAIN, COMPUTED, ALONE = range(3)  # the fields of a Piece
EMBEDDING, CLASSIFIER = ENDS = "embedding", "classifier"
ENDS_OF = {  # by kind of action: the ends that take part in it
    FORWARD: ENDS,
    BACKWARD: ENDS,
    INPUT: (CLASSIFIER,),
    WEIGHT: ENDS,
}


def once(known: dict[Hashable, T], key: Hashable, make: Callable[[], T]) -> T:
    """The value of a key in ``known``, made by ``make`` at the first call."""
    if key not in known:
        known[key] = make()
    return known[key]


class Piece(NamedTuple):
    """A part of an action, in ps: the sum of its ``main`` rows, their sum up to the last row that
    computes, and the sum of the computing rows alone; and its turns, as ``kernels.pipelines`` needs
    them.
    """

    main: int
    computed: int
    alone: int
    turns: Ints


NOTHING = Piece(0, 0, 0, np.zeros((0, TURN), np.int64))


def least(durations: Durations, number: int) -> int:
    """The ps of a duration, given by its number, on the fastest group."""
    return int(durations.columns[number].min()) + int(durations.lags[number].min())


def _rows(template: Template) -> list[tuple[int, int]]:
    """The queue and the ps of each row."""
    return [(row[1], least(template.durations, row[2])) for row in template.rows]


SHARING = DATA_QUEUE, EXPERT_DATA_QUEUE, REPLICA_QUEUE, EXPERT_REPLICA_QUEUE
"""The queues of the replicas: two within groups of replicas, two between groups."""
BETWEEN = range(2, 4)


def _by_queue(rows: Iterable[tuple[int, int]]) -> list[int]:
    """The ps of rows in each queue of the replicas."""
    sums = dict.fromkeys(SHARING, 0)
    for queue, ps in rows:
        sums[queue] += ps
    return list(sums.values())


def _exchanged(template: Template) -> tuple[int, int]:
    """The ps of rows that exchange between the parts of a sample, and of all other rows."""
    rows = _rows(template)
    around = sum(ps for queue, ps in rows if queue == CONTEXT_QUEUE)
    return around, sum(ps for _, ps in rows) - around


def piece_of(template: Template) -> Piece:
    """The piece that the rows of a template make."""
    rows, main, computed, alone, ends = _rows(template), 0, 0, 0, dict[int, int]()
    for number, (queue, length) in enumerate(rows):
        if queue <= LAST_MAIN_QUEUE:
            main += length
            ends[number] = main
        if queue == COMPUTE:
            computed, alone = main, alone + length
    turns, begun = np.zeros((len(template.turns), TURN), np.int64), 0
    for number, turn in enumerate(template.turns):
        first, last = ends[turn.first] - rows[turn.first][1], ends[turn.last]
        gathered, summed = (
            _by_queue(rows[row] for sent in each for row in {sent.row, sent.end})
            for each in (turn.gathers, turn.reduced)
        )
        turns[number] = first - begun, last - first, 0, *gathered[:2], *summed
        begun = last
    turns[-1:, 2] = main - begun
    return Piece(main, computed, alone, turns)


class Division(NamedTuple):
    """The layers dealt out to stages: ``layers[stage]``; by stage the number of layers of each kind
    and the kind of its last layer; by layer its stage and its kind. Where full recomputation covers
    only some layers of each stage, these are kinds of their own, after the others.
    """

    layers: tuple[tuple[int, ...], ...]
    counts: Ints
    last: Ints
    stage: Ints
    kind: Ints


class Pieces:
    """The pieces of a pipeline's ranks for one setting of ZeRO, each made at its first use."""

    def __init__(
        self, programs: Sequence[Program], kinds: Sequence[int], ranks: Sequence[int]
    ) -> None:
        """``kinds`` has a layer of each kind, ``ranks`` a rank of each sort. Where a plan
        recomputes only some layers of a kind there are two ``programs``: the first recomputes no
        layer, the second all layers. Else there is a single program.
        """
        self.programs, self.program, self.kinds, self.ranks = programs, programs[0], kinds, ranks
        # Many plans call each of these with few different arguments.
        self.layers, self.turns = cache(self._layers), cache(self._turns)
        self.end, self._pieces = cache(self._end), cache(self._made)
        self._sent = cache(self._lasting)
        self._tails: dict[tuple[int, ...], tuple[int, int]] = {}

    def _made(self, kind: str) -> list[list[Piece]]:
        """The pieces by sort of rank and kind of layer."""
        return [
            [
                piece_of(Writer(program, rank, kind).add_layer(layer))
                for program in self.programs
                for layer in self.kinds
            ]
            for rank in self.ranks
        ]

    def _layers(self, kind: str) -> Ints:
        """The MAIN, COMPUTED and ALONE ps of each kind of layer in actions of ``kind``; the least
        of all ranks.
        """
        tables = [[piece[:3] for piece in pieces] for pieces in self._pieces(kind)]
        least: Ints = np.array(tables, np.int64).min(axis=0)
        return least

    def _turns(self, kind: str) -> list[Ints]:
        """The turns of each kind of layer in actions of ``kind``; the least of all ranks."""
        every = zip(*self._pieces(kind), strict=True)
        return [np.minimum.reduce([piece.turns for piece in each]) for each in every]

    def _end(self, end: str, kind: str, mirrored: bool = False) -> Piece:
        """The piece of the embedding or classifier in actions of ``kind``; ``mirrored``: at the
        other end of the pipeline.
        """
        if end not in ENDS_OF[kind]:
            return NOTHING
        rank = 0 if (end == EMBEDDING) != mirrored else self.program.schedule.ranks - 1
        return piece_of(Writer(self.program, rank, kind).add_end(end))

    def stages(self, division: Division, kind: str) -> Ints:
        """The MAIN ps of an action of ``kind``, by stage."""
        each: Ints = division.counts @ self.layers(kind)[:, MAIN]
        each[0] += self.end(EMBEDDING, kind).main
        each[-1] += self.end(CLASSIFIER, kind).main
        return each

    def exchanged(self) -> tuple[Ints, Ints]:
        """The least ps of the exchanges of each kind of layer: between the parts of a sample in a
        forward, and all others in forward and backward together.
        """
        ways = [
            [
                [
                    _exchanged(Writer(self.program, rank, kind).exchange(layer, kind))
                    for layer in self.kinds
                ]
                for rank in self.ranks
            ]
            for kind in (FORWARD, BACKWARD)
        ]
        forward, backward = np.array(ways, np.int64).min(axis=1)
        return forward[:, 0], forward[:, 1] + backward[:, 1]

    @cached_property
    def footprints(self) -> Ints:
        """Bytes of a microbatch by kind of layer: saved (0 where offloaded), workspace, and made
        again by recomputation.
        """
        each = [program.footprint(number) for program in self.programs for number in self.kinds]
        moves = "activations" in self.program.parallelism.offload
        rows = [(0 if moves else f.saved, f.workspace, f.again) for f in each]
        return np.array(rows, np.int64).T

    @cached_property
    def ends_saved(self) -> tuple[int, int, int, int]:
        """Bytes of a microbatch: saved by the embedding, saved by the classifier, further bytes in
        the classifier's backward, and bytes kept for the gradient of its weights.
        """
        s = self.program.shard
        saved = embedding_saved(s), classifier_saved(s)
        return *saved, classifier_workspace(s), classifier_kept(s)

    def saved(self, division: Division) -> Ints:
        """The bytes that a microbatch saves on each stage, without offloaded activations."""
        saved: Ints = division.counts @ self.footprints[0]
        saved[0] += self.ends_saved[0]
        saved[-1] += self.ends_saved[1]
        return saved

    def sent(self, rank: int, number: int, reduces: bool) -> list[int]:
        """The ps of a bucket's reduction (``reduces``) or gather after the step, by queue of the
        replicas.
        """
        return self._sent(self.program.bucket(rank, number), reduces)

    def _lasting(self, sizes: tuple[int, int], reduces: bool) -> list[int]:
        times = []
        program = self.program
        for rank in self.ranks:
            template = Writer(program, rank)
            sent = (template.reduce if reduces else template.gather)(sizes)
            if reduces and sums_late(program.shard, program.parallelism):
                template.sum_groups(sizes, NO_LAYER, sent)
            times.append(_by_queue(_rows(template)))
        return list(map(min, zip(*times, strict=True)))

    def tails(self, division: Division) -> Ints:
        """The least ps of the optimizer, and the bytes held for the whole step, by rank."""
        ranks = self.program.schedule.ranks
        kinds = division.counts.shape[1]
        counts = division.counts.reshape(-1, ranks, kinds).sum(axis=0).tolist()
        rows = []
        for rank, each in enumerate(counts):
            layers = [layer for stage in division.layers[rank::ranks] for layer in stage]
            rows.append(self._tail(rank, tuple(each), layers))
        return np.array(rows, np.int64)

    def _tail(self, rank: int, counts: tuple[int, ...], layers: list[int]) -> tuple[int, int]:
        has_ends = self.program.bucket(rank, NO_LAYER)[0] > 0
        key = (*counts, rank if has_ends else -1)
        if key not in self._tails:
            p, shard = self.program.parallelism, self.program.shard
            buckets = layers + [NO_LAYER] * has_ends
            loads = update(shard, *self.program.updated(rank, buckets), p.state_bytes, layers)
            held = persistent_bytes(self.program, rank, layers)
            # The key is the same for ranks of all sorts, so all of them are looked at.
            templates = [Template(each, self.program.durations) for each in self.ranks]
            rows = [(t, t.rows[t.compute(roles.UPDATE, loads)]) for t in templates]
            fastest = min(least(t.durations, row[2]) for t, row in rows)
            self._tails[key] = fastest, sum(held.values())
        return self._tails[key]


class Ground:
    """The parts of bounds that all plans on a cluster share: ranks, divisions of layers, durations,
    messages.
    """

    def __init__(self, question: Question, number: int) -> None:
        self.model, self.cluster = question.model, question.clusters[number]
        self.timings = question.timings(number)
        kinds = [self.model.kind_of(layer) for layer in range(self.model.layers)]
        names = list(dict.fromkeys(kinds))
        self.kinds = [kinds.index(kind) for kind in names]
        self.kind = np.array([names.index(kind) for kind in kinds], np.int64)
        self.counts = np.bincount(self.kind)  # how many layers there are of each kind
        self.division, self.ranks = cache(self._division), cache(self._ranks)
        self.capacity = cache(self._capacity)
        self._durations = dict[Hashable, Durations]()
        self._transfers = dict[Hashable, tuple[Ints, Ints]]()

    def durations(self, plan: Plan) -> Durations:
        """The durations of a plan's layout, which do not depend on its ZeRO, schedule and
        recomputation.
        """
        key = plan.setup.layout._replace(context=""), plan.setup.others
        has_host_times = any(self.model.host_time.values())
        return once(
            self._durations, key, lambda: Durations(plan.parallelism, self.timings, has_host_times)
        )

    def _division(self, stages: int, again: int | None = None) -> Division:
        """The division of layers into stages. The first ``again`` layers of each stage are
        recomputed and kinds of their own (None: no such distinction).
        """
        bounds = [*accumulate(even_layers(self.model.layers, stages), initial=0)]
        layers = tuple(tuple(range(a, b)) for a, b in pairwise(bounds))
        stage = np.repeat(np.arange(stages), np.diff(bounds))
        kind, kinds = self.kind, len(self.kinds)
        if again is not None:
            place = np.arange(len(stage)) - np.array(bounds)[stage]
            kind, kinds = kind + kinds * (place < again), 2 * kinds
        counts = np.zeros((stages, kinds), np.int64)
        np.add.at(counts, (stage, kind), 1)
        return Division(layers, counts, kind[np.array(bounds[1:]) - 1], stage, kind)

    def sort(self, pp: int) -> int:
        """A number that is equal for pipeline lengths whose ranks have groups of equal cost: 0
        where a rank has whole nodes and all nodes are alike, else ``pp``.
        """
        each = len(self.cluster.workers) // pp
        return pp if not self._node or each % self._node else 0

    @cached_property
    def _node(self) -> int:
        """The number of workers of a node where all nodes are alike, else 0."""
        workers, alike = self.cluster.workers, self.timings.alike
        runs = [list(run) for _, run in groupby(workers, alike.neighbourhood)]
        is_whole = len(set(map(alike.neighbourhood, workers))) == len(runs)
        return len(runs[0]) if is_whole and len(set(map(alike.sort, runs))) == 1 else 0

    def _ranks(self, pp: int) -> tuple[int, ...]:
        """A rank of each sort; ranks of one sort have equal costs."""
        sorts = dict[Hashable, int]()
        for rank, devices in enumerate(dealt(self.cluster, pp)):
            sorts.setdefault(self.timings.alike.sort(devices), rank)
        return tuple(sorts.values())

    def _capacity(self, pp: int) -> Ints:
        """Bytes of the smallest device of each rank."""
        memories = [device.memory for device in self.cluster.devices]
        sizes = [2**62 if memory is None else parse_bytes(memory) for memory in memories]
        there = dealt(self.cluster, pp)
        return np.array([min(sizes[d] for d in each) for each in there], np.int64)

    def transfers(self, program: Program) -> tuple[Ints, Ints]:
        """The ps of a message from each rank to the next, and to the one before; the last rank is
        followed by the first.
        """
        p, size, durations = program.parallelism, Writer(program, 0).sent_bytes, program.durations

        def sent(way: int) -> Ints:
            pairs = [(rank, (rank + way) % p.pp) for rank in range(p.pp)] if p.pp > 1 else []
            times = [least(durations, durations.transfer(*pair, size)) for pair in pairs]
            return np.array(times or [0], np.int64)

        key = p.dp, p.cp, p.tp, p.pp, p.message_latency, size
        return once(self._transfers, key, lambda: (sent(1), sent(-1)))
