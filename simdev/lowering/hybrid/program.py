"""The step as rows: one for each task of a rank of the pipeline, whatever the number of its copies.

A *template* holds the rows of one kind of action of one stage; it is placed once for each
microbatch. Rows are numbered rank by rank in the order of the schedule; edges and buffers name
rows. ``expand`` turns rows into the tasks of devices. All modules of the package write into a
``Program``. A queue is a row of QUEUES and a number above it; a class of groups that it needs is
one of durations.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ...nouns.models.large import Block, Shard, roles
from ...nouns.models.large.roles import NO_LAYER
from ...nouns.models.large.work import Loads
from ...nouns.schedules import NEEDS, Part, Schedule
from ...nouns.strategy.parallelism import Parallelism
from ...nouns.taskgraph import BUFFER_KINDS, Ints
from .durations import (
    CONTEXT,
    DATA,
    EXPERT,
    EXPERT_DATA,
    EXPERT_TENSOR,
    SINGLE,
    TENSOR,
    Durations,
)

NONE = -1
ENDS = "embedding", "classifier"


class Queue(NamedTuple):
    """A queue for each group of a class on each rank, and the role of its rows."""

    prefix: str
    groups: int
    role: int


(
    COMPUTE,
    TENSOR_QUEUE,
    EXPERT_QUEUE,
    EXPERT_TENSOR_QUEUE,
    CONTEXT_QUEUE,
    DATA_QUEUE,
    EXPERT_DATA_QUEUE,
    TO_NEXT,
    TO_PREVIOUS,
    TO_HOST,
    FROM_HOST,
    THREAD,
) = range(12)
QUEUES = (
    Queue("", SINGLE, NONE),
    Queue("tensor", TENSOR, roles.TENSOR),
    Queue("experts", EXPERT, roles.EXPERT),
    Queue("experts' tensor", EXPERT_TENSOR, roles.TENSOR),
    Queue("context", CONTEXT, roles.TENSOR),
    Queue("data", DATA, roles.DATA),
    Queue("experts' data", EXPERT_DATA, roles.DATA),
    Queue("to next", SINGLE, roles.PIPELINE),
    Queue("to previous", SINGLE, roles.PIPELINE),
    Queue("to host", SINGLE, roles.HOST),
    Queue("from host", SINGLE, roles.HOST),
    Queue("thread", SINGLE, roles.DISPATCH),
)
# Rows up to this queue follow one another on their rank; the others run beside them.
LAST_MAIN_QUEUE = CONTEXT_QUEUE
# A template knows the first five; rank and action are added where it is placed.
COLUMNS = ("role", "queue", "duration", "bytes", "layer", "rank", "action")


class Visit(NamedTuple):
    """A layer's turn in an action, by the rows of the template.

    ``first`` and ``last`` compute, ``fetch`` and ``send`` move activations from and to the host
    (NONE: they stay where they are).
    """

    layer: int
    first: int
    last: int
    fetch: int
    send: int


class Sent(NamedTuple):
    """A row of a collective over the replicas, and the parameters that it gathers or reduces."""

    row: int
    parameters: int


class Turn(NamedTuple):
    """A bucket's turn in an action: a layer's, a part of one, the embedding's or the classifier's.

    ``first`` and ``last`` compute; ``gathers`` collect its parameters before, ``reduced`` sum its
    gradients after; ``fetch`` gets activations from the host (NONE: none).
    """

    layer: int
    first: int
    last: int
    gathers: tuple[Sent, ...]
    reduced: tuple[Sent, ...]
    fetch: int


@dataclass
class Template:
    """Rows of a kind of action on a rank, with the edges beside the chain of the main ones.

    ``visits`` are by layer, ``turns`` in the order in which
    they compute; ``ends`` are the turns of the embedding and the classifier, ``transfer`` is the
    row that sends to another rank. The layer of a transfer's row is the rank that it goes to.
    ``launches`` are the kernels of each row.
    """

    rank: int
    durations: Durations
    rows: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    launches: list[int] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)
    visits: dict[int, Visit] = field(default_factory=dict)
    turns: list[Turn] = field(default_factory=list)
    ends: dict[str, Turn] = field(default_factory=dict)
    transfer: int = NONE

    def compute(
        self, role: int, loads: Loads, layer: int = NO_LAYER, part: int = 0, parts: int = 1
    ) -> int:
        """A row that computes the loads, or one of equal parts of them: its number."""
        duration = self.durations.compute(self.rank, loads, part, parts)
        # All launches stand with the last part: what follows the loads counts them once.
        launches = len(loads) if part == parts - 1 else 0
        return self.add(COMPUTE, duration, 0, layer, role, launches)

    def collective(self, queue: int, name: str, size: int, layer: int = NO_LAYER) -> int:
        """A row of a collective of ``size`` bytes, as nccl-tests count them."""
        duration = self.durations.collective(QUEUES[queue].groups, self.rank, name, size)
        return self.add(queue, duration, size, layer)

    def left(
        self, queue: int, name: str, size: int, beside: Loads, share: Fraction = Fraction(1)
    ) -> int:
        """The number of the duration that is left of a collective which goes on while a share of
        these loads is computed.
        """
        whole = self.durations.collective(QUEUES[queue].groups, self.rank, name, size)
        return self.durations.beside(self.rank, whole, beside, share)

    def copy(self, queue: int, size: int, layer: int) -> int:
        """A row that copies to or from the host."""
        return self.add(queue, self.durations.copy(size), size, layer)

    def send(self, queue: int, rank: int, size: int) -> int:
        """The row that sends to another rank."""
        duration = self.durations.transfer(self.rank, rank, size)
        self.transfer = self.add(queue, duration, size, rank)
        return self.transfer

    def swap(self, queue: int, rank: int, size: int, layer: int) -> int:
        """A row that swaps data with the rank of the other copy of a stage."""
        duration = self.durations.transfer(self.rank, rank, size)
        return self.add(queue, duration, size, layer, roles.DATA)

    def add(
        self,
        queue: int,
        duration: int,
        size: int,
        layer: int,
        role: int | None = None,
        launches: int = 1,
    ) -> int:
        """A row of the duration of this number, with the role of its queue or another one: its
        number.
        """
        role = QUEUES[queue].role if role is None else role
        self.rows.append((role, queue, duration, size, layer))
        self.launches.append(launches)
        return len(self.rows) - 1

    @cached_property
    def table(self) -> Ints:
        """The first COLUMNS."""
        return np.array(self.rows, np.int64).reshape(-1, len(COLUMNS) - 2)

    @cached_property
    def main(self) -> Ints:
        """The rows that follow one another on the rank."""
        return np.flatnonzero(self.table[:, 1] <= LAST_MAIN_QUEUE)

    @cached_property
    def computing(self) -> tuple[int, int]:
        """The first and the last row that computes."""
        computing = np.flatnonzero(self.table[:, 1] == COMPUTE)
        return int(computing[0]), int(computing[-1])


@dataclass(frozen=True, slots=True)
class Placed:
    """A template, and by microbatch the number of its first row; NONE where it is not done."""

    template: Template
    base: Ints

    @property
    def last(self) -> int:
        """The first row of the last one."""
        return int(self.base.max())


class Ends(NamedTuple):
    """Rows behind a rank's last action: the optimizer's ``updates``, the rows that ``complete`` the
    gradient of each bucket there (ZeRO 0 and 1), and the ``gathers`` of updated parameters.
    """

    updates: tuple[int, ...]
    complete: dict[int, list[int]]
    gathers: list[int]


class BufferRows(NamedTuple):
    """Buffers alike on a rank: by buffer the row that fills it, and a line of rows that read it."""

    rank: int
    size: int
    kind: int
    fillers: Ints
    readers: Ints


def elsewhere(part: Part, links: Mapping[str, tuple[tuple[int, str], ...]]) -> Iterator[Part]:
    """The parts of other stages that a part needs (``NEEDS``), or that need it (``READERS``)."""
    way, stage, kind = part
    return ((way, stage + step, other) for step, other in links[kind] if step)


@dataclass
class Program:
    """The rows of a step while they are collected, by rank of the pipeline.

    ``stage_layers`` are the layers of each stage, ``placed`` the parts of the schedule in rows. By
    rank ``runs`` are its actions in their order, each as its part and its first row, ``last`` is
    the last main row of these, ``gradients`` the placed parts that compute gradients of weights,
    and ``ends`` what follows. ``tables`` are pieces of COLUMNS.
    """

    shard: Shard
    parallelism: Parallelism
    schedule: Schedule
    stage_layers: tuple[tuple[int, ...], ...]
    durations: Durations
    blocks: dict[tuple[bool, int], Block] = field(default_factory=dict)
    placed: dict[Part, Placed] = field(default_factory=dict)
    runs: list[list[tuple[Part, int]]] = field(default_factory=list)
    tables: list[Ints] = field(default_factory=list)
    rows: int = 0
    last: list[int] = field(default_factory=list)
    gradients: list[list[Placed]] = field(default_factory=list)
    ends: list[Ends] = field(default_factory=list)
    sources: list[Ints] = field(default_factory=list)
    targets: list[Ints] = field(default_factory=list)
    buffers: list[BufferRows] = field(default_factory=list)

    @property
    def ways(self) -> int:
        """In how many directions microbatches go, each with parameters of its own."""
        return 1 + self.schedule.bidirectional

    def rank(self, stage: int, way: int) -> int:
        """The rank of a stage, in the copy whose microbatches go this way."""
        return self.schedule.home[self.schedule.first_replica[stage] + way]

    def numbers(self, rank: int) -> Ints:
        """The places of a rank's actions among those of the schedule."""
        orders = self.schedule.orders
        first = sum(map(len, orders[:rank]))
        return np.arange(first, first + len(orders[rank]))

    def at(self, parts: Iterable[Part], microbatches: Ints, row: Callable[[Template], int]) -> Ints:
        """By microbatch a row of its action in one of these parts; NONE where none has such a
        row.
        """
        rows = np.full(len(microbatches), NONE, np.int64)
        for part in parts:
            placed = self.placed.get(part)
            if placed is not None and (offset := row(placed.template)) != NONE:
                base = placed.base[microbatches]
                rows = np.where(base == NONE, rows, base + offset)
        return rows

    def arrivals(self, part: Part, microbatches: Ints) -> Ints:
        """By microbatch the row that brings what a part needs of another rank; NONE where nothing
        does.
        """
        return self.at(elsewhere(part, NEEDS), microbatches, lambda template: template.transfer)

    def bucket(self, rank: int, layer: int) -> tuple[int, int]:
        """Parameters of a layer and of its experts; NO_LAYER: of embedding and classifier."""
        if layer != NO_LAYER:
            return self.shard.layer_parameters(layer)
        return sum(self.end_bucket(rank, end) for end in ENDS), 0

    def end_bucket(self, rank: int, end: str) -> int:
        """Parameters of an end whose gradient is complete with it; 0 where another rank has it."""
        stages, shard = self.schedule.stages_of[rank], self.shard
        first, last = 0 in stages, self.schedule.stages - 1 in stages
        if end == "embedding":
            return shard.embedding_parameters * first
        # On one rank a tied table is there once; its gradient ends with the embedding's.
        return (shard.classifier_parameters - self.tied_table(rank)) * last

    def tied_table(self, rank: int) -> int:
        """Parameters of the table that the embedding and the classifier of a rank share, or 0."""
        model, ends = self.shard.model, {0, self.schedule.stages - 1}
        shared = model.tied and ends.issubset(self.schedule.stages_of[rank])
        return model.hidden * self.shard.vocabulary * shared

    def buckets(self, rank: int) -> list[int]:
        """The layers of a rank, and NO_LAYER where it has the embedding or the classifier."""
        stages = self.schedule.stages_of[rank]
        layers = [layer for stage in stages for layer in self.stage_layers[stage]]
        return layers + [NO_LAYER] * (self.bucket(rank, NO_LAYER)[0] > 0)

    @property
    def sharers(self) -> tuple[int, int]:
        """How many share parameters, of both copies: those of all layers, and those of experts."""
        some, experts = self.parallelism.sharers
        return some * self.ways, experts * self.ways

    def updated(self, rank: int, layers: list[int]) -> tuple[int, int]:
        """Parameters of some buckets here, and those that this replica updates (ZeRO)."""
        sizes = np.array([self.bucket(rank, layer) for layer in layers], np.int64).reshape(-1, 2)
        total = sizes.sum(axis=0).tolist()
        # Each replica pads its share, so shares are rounded up one by one.
        sharers = self.sharers if self.parallelism.zero else (1, 1)
        shares = (-(-size // count) for size, count in zip(total, sharers, strict=True))
        return sum(total), sum(shares)

    def add_buffers(
        self, rank: int, size: int, kind: str, filler: Ints | int, *readers: Ints | int
    ) -> None:
        """A buffer for each entry of ``filler``, read by the entries beside it; none of 0 bytes."""
        if size:
            rows = np.broadcast_arrays(np.atleast_1d(np.asarray(filler, np.int64)), *readers)
            table = np.stack(rows, axis=1)
            number = BUFFER_KINDS.index(kind)
            self.buffers.append(BufferRows(rank, size, number, table[:, 0], table[:, 1:]))

    def edge(self, source: Ints | int, target: Ints | int) -> None:
        """Edges from each source to the target beside it."""
        pair = np.broadcast_arrays(np.asarray(source, np.int64), np.asarray(target, np.int64))
        self.sources.append(pair[0].ravel())
        self.targets.append(pair[1].ravel())

    def edges(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Edges, each from a row to a row."""
        table = np.array(list(pairs), np.int64).reshape(-1, 2)
        self.edge(table[:, 0], table[:, 1])

    def append(self, template: Template) -> int:
        """Rows at the end of a rank, of no action: the number of the first."""
        first = self.rows
        self.add_table(template.table, template.rank, np.full(len(template.rows), NONE, np.int64))
        self.edges((source + first, target + first) for source, target in template.edges)
        return first

    def add_table(self, table: Ints, rank: int, actions: Ints) -> None:
        """Rows of a rank; ``actions`` are their positions among those of the schedule."""
        self.tables.append(np.column_stack((table, np.full(len(table), rank, np.int64), actions)))
        self.rows += len(table)

    def columns(self) -> dict[str, Ints]:
        """COLUMNS by name."""
        table = np.concatenate(self.tables)
        return {name: np.ascontiguousarray(table[:, i]) for i, name in enumerate(COLUMNS)}
