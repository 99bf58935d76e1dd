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
from ...nouns.models.large.roles import NO_LAYER
from ...nouns.models.large.shard import (
    classifier_kept,
    classifier_saved,
    classifier_workspace,
    embedding_saved,
)
from ...nouns.models.large.work import Loads
from ...nouns.schedules import BACKWARD, FORWARD, INPUT, WEIGHT
from ...nouns.taskgraph import Ints
from ..kernels.pipelines import TURN

REPLICA_QUEUES = DATA_QUEUE, EXPERT_DATA_QUEUE
MAIN, COMPUTED = 0, 1  # of a piece as a row
EMBEDDING, CLASSIFIER = "embedding", "classifier"
ENDS_OF = {  # by the kind of action: the ends that have a part in it
    FORWARD: (EMBEDDING, CLASSIFIER),
    BACKWARD: (EMBEDDING, CLASSIFIER),
    INPUT: (CLASSIFIER,),
    WEIGHT: (EMBEDDING, CLASSIFIER),
}


class Turn(NamedTuple):
    """A bucket's turn in an action, in ps: what the main rows take from the turn before it on
    (``before``), from its first to its last row, and behind that up to the end of its part; by
    queue of the replicas what it gathers and what is summed of it.
    """

    before: int
    during: int
    after: int
    gathered: tuple[int, int]
    summed: tuple[int, int]


class Piece(NamedTuple):
    """The ps of a part of an action: ``main`` is the sum of its rows, ``computed`` the sum up to
    the last row that computes; and its turns.
    """

    main: int
    computed: int
    turns: tuple[Turn, ...]


NOTHING = Piece(0, 0, ())


def piece_of(template: Template) -> Piece:
    """The piece that a template makes."""
    queues = [row[1] for row in template.rows]
    ps = [_least(template, row[2]) for row in template.rows]
    main, computed, ends = 0, 0, dict[int, int]()
    for number, (queue, length) in enumerate(zip(queues, ps, strict=True)):
        if queue <= LAST_MAIN_QUEUE:
            main += length
            ends[number] = main
            if queue == COMPUTE:
                computed = main
    turns, begun = list[Turn](), 0
    for turn in template.turns:
        first, last = ends[turn.first] - ps[turn.first], ends[turn.last]
        gathered, summed = (
            _by_queue(queues, ps, (sent.row for sent in rows))
            for rows in (turn.gathers, turn.reduced)
        )
        turns.append(Turn(first - begun, last - first, 0, gathered, summed))
        begun = last
    if turns:
        turns[-1] = turns[-1]._replace(after=main - begun)
    return Piece(main, computed, tuple(turns))


def _exchanged(template: Template) -> tuple[int, int]:
    ps = [(row[1] == CONTEXT_QUEUE, _least(template, row[2])) for row in template.rows]
    return sum(time for is_context, time in ps if is_context), sum(
        time for is_context, time in ps if not is_context
    )


def _by_queue(queues: Sequence[int], ps: Sequence[int], rows: Iterable[int]) -> tuple[int, int]:
    """By queue of the replicas the sum of these rows."""
    of_queue = [0, 0]
    for row in rows:
        of_queue[REPLICA_QUEUES.index(queues[row])] += ps[row]
    return of_queue[0], of_queue[1]


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
        self._parts: dict[str, list[list[Piece]]] = {}
        self._layers: dict[str, Ints] = {}
        self._turns: dict[str, list[Ints]] = {}
        self._sent: dict[tuple[int, int, bool], tuple[int, int]] = {}
        kind_of = program.shard.model.kind_of
        self.kind_numbers = {kind_of(layer): number for number, layer in enumerate(kinds)}
        self._ends: dict[tuple[str, str], Piece] = {}
        self._tails: dict[tuple[int, ...], tuple[int, int]] = {}

    def layers(self, kind: str) -> Ints:
        """By kind of layer what its main rows take in actions of this kind, and those up to the
        last that computes: the least of ranks.
        """
        if kind not in self._layers:
            tables = [[piece[:2] for piece in pieces] for pieces in self._pieces(kind)]
            self._layers[kind] = np.array(tables, np.int64).min(axis=0)
        return self._layers[kind]

    def turns(self, kind: str) -> list[Ints]:
        """By kind of layer its ``turn_rows`` in actions of this kind: the least of ranks."""
        if kind not in self._turns:
            every = zip(*self._pieces(kind), strict=True)
            self._turns[kind] = [np.minimum.reduce(list(map(turn_rows, each))) for each in every]
        return self._turns[kind]

    def _pieces(self, kind: str) -> list[list[Piece]]:
        """By sort of rank and kind of layer."""
        if kind not in self._parts:
            self._parts[kind] = [
                [piece_of(layer_template(self.program, rank, layer, kind)) for layer in self.kinds]
                for rank in self.ranks
            ]
        return self._parts[kind]

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
        return _by_queue([row[1] for row in template.rows], ps, range(len(ps)))

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


def turn_rows(piece: Piece) -> Ints:
    """The turns of a piece as rows, as ``kernels.pipelines`` has them."""
    flat = [(*turn[:3], *turn.gathered, *turn.summed) for turn in piece.turns]
    return np.array(flat, np.int64).reshape(-1, TURN)
