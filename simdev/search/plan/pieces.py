"""Pieces of a step: how long a layer, the embedding and the classifier take in each kind of action,
and what they keep, by the very templates that steps are lowered by.

Where groups or devices differ, the fastest counts: pieces serve lower bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ...lowering.hybrid.buffers import persistent_bytes
from ...lowering.hybrid.program import (
    COMPUTE,
    CONTEXT_QUEUE,
    DATA_QUEUE,
    EXPERT_DATA_QUEUE,
    LAST_MAIN_QUEUE,
    Program,
    Template,
)
from ...lowering.hybrid.replicas import gather, reduce
from ...lowering.hybrid.templates import end_template, exchanges_template, layer_template
from ...nouns.models.large import Footprint, footprint, roles, update
from ...nouns.models.large.likes import Loads
from ...nouns.models.large.roles import NO_LAYER
from ...nouns.models.large.shard import (
    classifier_kept,
    classifier_saved,
    classifier_workspace,
    embedding_saved,
)
from ...nouns.schedules import BACKWARD, FORWARD, INPUT, WEIGHT
from ...nouns.taskgraph import Ints

REPLICA_QUEUES = DATA_QUEUE, EXPERT_DATA_QUEUE
# Of a piece as a row.
MAIN, COMPUTED = 0, 1
GATHERED, MOST_GATHERED, REDUCED, MOST_REDUCED = (slice(2 * i, 2 * i + 2) for i in range(1, 5))
EMBEDDING, CLASSIFIER = "embedding", "classifier"
ENDS_OF = {  # by the kind of action: the ends that have a part in it
    FORWARD: (EMBEDDING, CLASSIFIER),
    BACKWARD: (EMBEDDING, CLASSIFIER),
    INPUT: (CLASSIFIER,),
    WEIGHT: (EMBEDDING, CLASSIFIER),
}


class Piece(NamedTuple):
    """What a part of an action takes, in ps.

    ``main`` its rows one after the other, ``computed`` those up to the last that computes; beside
    them, for each queue of the replicas, what is gathered and reduced, and the most of it at once.
    """

    main: int
    computed: int
    gathered: tuple[int, int]
    most_gathered: tuple[int, int]
    reduced: tuple[int, int]
    most_reduced: tuple[int, int]


NOTHING = Piece(0, 0, (0, 0), (0, 0), (0, 0), (0, 0))


def piece_of(template: Template) -> Piece:
    """The piece that a template makes."""
    queues = [row[1] for row in template.rows]
    ps = [_least(template, row[2]) for row in template.rows]
    main = computed = 0
    for queue, length in zip(queues, ps, strict=True):
        if queue <= LAST_MAIN_QUEUE:
            main += length
            if queue == COMPUTE:
                computed = main
    gathers = [sent.row for turn in template.turns for sent in turn.gathers]
    reduces = [sent.row for turn in template.turns for sent in turn.reduced]
    return Piece(main, computed, *_by_queue(queues, ps, gathers), *_by_queue(queues, ps, reduces))


def _exchanged(template: Template) -> tuple[int, int]:
    ps = [(row[1] == CONTEXT_QUEUE, _least(template, row[2])) for row in template.rows]
    return sum(time for is_context, time in ps if is_context), sum(
        time for is_context, time in ps if not is_context
    )


def _by_queue(
    queues: Sequence[int], ps: Sequence[int], rows: Iterable[int]
) -> tuple[tuple[int, int], tuple[int, int]]:
    """By queue of the replicas the sum of these rows and the largest of them."""
    split = [[ps[row] for row in rows if queues[row] == queue] for queue in REPLICA_QUEUES]
    first, second = split
    return (sum(first), sum(second)), (max(first, default=0), max(second, default=0))


def _least(template: Template, number: int) -> int:
    durations = template.durations
    return int(durations.columns[number].min()) + int(durations.lags[number].min())


def _computing(template: Template) -> int:
    return sum(_least(template, row[2]) for row in template.rows if row[1] == COMPUTE)


class Pieces:
    """Those of the ranks of a pipeline, for one setting of ZeRO; made when they are asked for."""

    def __init__(self, program: Program, kinds: Sequence[int], ranks: Sequence[int]) -> None:
        """``kinds`` has a layer of each kind, ``ranks`` a rank of each sort."""
        self.program, self.kinds, self.ranks = program, kinds, ranks
        self._layers: dict[str, Ints] = {}
        self._sent: dict[tuple[int, int, bool], tuple[int, int]] = {}
        kind_of = program.shard.model.kind_of
        self.kind_numbers = {kind_of(layer): number for number, layer in enumerate(kinds)}
        self._ends: dict[tuple[str, str], Piece] = {}
        self._tails: dict[tuple[int, ...], tuple[int, int]] = {}

    def layers(self, kind: str) -> Ints:
        """By kind of layer ``columns`` of its piece in actions of this kind: the least of ranks,
        but the greatest of what is at most at once, which bounds subtract.
        """
        if kind not in self._layers:
            program = self.program
            tables = [
                columns(
                    [piece_of(layer_template(program, rank, layer, kind)) for layer in self.kinds]
                )
                for rank in self.ranks
            ]
            least = np.minimum.reduce(tables)
            for most in (MOST_GATHERED, MOST_REDUCED):
                least[:, most] = np.maximum.reduce(tables)[:, most]
            self._layers[kind] = least
        return self._layers[kind]

    def exchanged(self) -> tuple[Ints, Ints]:
        """By kind of layer what a forward exchanges at the least (ps): between the parts of a
        sample, and else.
        """
        every = [
            [_exchanged(exchanges_template(self.program, rank, layer)) for layer in self.kinds]
            for rank in self.ranks
        ]
        around, other = np.array(every, np.int64).min(axis=0).T
        return around, other

    def end(self, end: str, kind: str) -> Piece:
        """The embedding or the classifier in actions of this kind."""
        if end not in ENDS_OF[kind]:
            return NOTHING
        if (end, kind) not in self._ends:
            rank = 0 if end == EMBEDDING else self.program.schedule.ranks - 1
            self._ends[end, kind] = piece_of(end_template(self.program, rank, end, kind))
        return self._ends[end, kind]

    def computing(self, kind: str) -> Ints:
        """By kind of layer what is computed in actions of this kind, without what is exchanged."""
        tables = [
            [_computing(layer_template(self.program, rank, layer, kind)) for layer in self.kinds]
            for rank in self.ranks
        ]
        least: Ints = np.array(tables, np.int64).min(axis=0)
        return least

    def end_computing(self, end: str, kind: str) -> int:
        """What the embedding or the classifier computes in actions of this kind."""
        if end not in ENDS_OF[kind]:
            return 0
        # Of two ways both ends of the pipeline have both.
        ranks = 0, self.program.schedule.ranks - 1
        return min(_computing(end_template(self.program, rank, end, kind)) for rank in ranks)

    @cached_property
    def footprints(self) -> tuple[Footprint, ...]:
        """By kind of layer."""
        return tuple(footprint(self.program.shard, number) for number in self.kinds)

    @cached_property
    def ends_saved(self) -> tuple[int, int, int, int]:
        """Bytes: of the embedding what is saved; of the classifier what is saved, what lies beside
        it in its backward, and what it keeps for the gradient of its weights.
        """
        s = self.program.shard
        saved = embedding_saved(s), classifier_saved(s)
        return *saved, classifier_workspace(s), classifier_kept(s)

    def sent(self, rank: int, number: int, reduces: bool) -> tuple[int, int]:
        """By queue of the replicas how long a bucket is reduced, or gathered, after the step."""
        sizes = self.program.bucket(rank, number)
        if (*sizes, reduces) not in self._sent:
            times = [self._sent_by(each, sizes, reduces) for each in self.ranks]
            self._sent[*sizes, reduces] = min(t[0] for t in times), min(t[1] for t in times)
        return self._sent[*sizes, reduces]

    def _sent_by(self, rank: int, sizes: tuple[int, int], reduces: bool) -> tuple[int, int]:
        template = Template(rank, self.program.durations)
        (reduce if reduces else gather)(self.program, template, sizes)
        ps = [_least(template, row[2]) for row in template.rows]
        return _by_queue([row[1] for row in template.rows], ps, range(len(ps)))[0]

    def updated(self, rank: int, counts: tuple[int, ...], layers: list[int]) -> tuple[int, int]:
        """How long the optimizer takes for these layers (``counts`` by kind) and the ends of a
        rank, on the fastest, and the bytes that live there throughout.
        """
        has_ends = self.program.bucket(rank, NO_LAYER)[0] > 0
        key = (*counts, rank if has_ends else -1)
        if key not in self._tails:
            buckets = layers + [NO_LAYER] * has_ends
            p, shard = self.program.parallelism, self.program.shard
            loads = update(shard, *self.program.updated(rank, buckets), p.state_bytes)
            held = persistent_bytes(self.program, rank, layers)
            # Ranks of all sorts share the key.
            fastest = min(self._updated_by(each, loads) for each in self.ranks)
            self._tails[key] = fastest, sum(held.values())
        return self._tails[key]

    def _updated_by(self, rank: int, loads: Loads) -> int:
        template = Template(rank, self.program.durations)
        return _least(template, template.rows[template.compute(roles.UPDATE, loads)][2])


def columns(pieces: Sequence[Piece]) -> Ints:
    """Pieces as rows: main, computed, then by queue what is gathered, at most at once, reduced."""
    flat = [
        (p.main, p.computed, *p.gathered, *p.most_gathered, *p.reduced, *p.most_reduced)
        for p in pieces
    ]
    return np.array(flat, np.int64).reshape(-1, 10)
