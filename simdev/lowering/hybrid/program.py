"""The step of a large model as rows of a table: one for each task of a rank of the pipeline.

A rank may run on many devices alike, its copies (replicas and parts of tp); a row is the
task on all of them. COLUMNS are the columns of the table. Mind two of them: ``duration`` is not a
time but a number that ``Durations`` gave out, for the copies may take different times; and
``layer`` of a row with the role PIPELINE is the rank that it sends to.

A *template* holds the rows of one action, say the forward of a stage, and is *placed* once for each
microbatch: its rows are appended, and row i of the template becomes row base + i of the program. A
*main* row is one that computes or communicates while its rank waits; main rows of a rank form a
chain, and the other rows run beside them. A *turn* is the part of an action that works with one
bucket of parameters. Rows are numbered rank by rank, in the order of the schedule; edges and
buffers name rows by these numbers.

To add a queue, add its name and number to the tuple above QUEUES and its row to QUEUES, in the same
place; its class of groups (SINGLE, TENSOR, ..) is one of ``durations.py``, its role one of
``simdev/nouns/models/large/roles.py``. ``dispatch.py`` (``_tie_threads``) says which queues hold up
a host, ``search/plan/pieces.py`` (``_exchanged``, ``_by_queue``) what bounds make of them. A new
role is a collective for ``expand.py`` unless ``_KIND_OF_ROLE`` says otherwise, and needs a colour
in EXPOSED_COLOURS (``simdev/report/figures/charts.py``). To add a column, see COLUMNS.

``simdev/lowering/hybrid/__init__.py`` makes the ``Program``; ``templates.py``, ``actions.py``,
``buffers.py`` and ``dispatch.py`` beside it write its rows, edges and buffers, and the function
``expand`` of ``expand.py`` makes tasks of devices of them. ``simdev/search/plan/pieces.py`` and
``bounds.py`` read templates for bounds of plans. Nothing here raises InputError: parallelism and
schedule were checked before. Tests: ``tests/lowering/test_hybrid*.py``,
``tests/lowering/test_large_*.py``, ``tests/search/test_plan_bounds.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ...nouns.models.large import Block, Footprint, Shard, footprint, roles
from ...nouns.models.large.kernels import Loads
from ...nouns.models.large.roles import NO_LAYER
from ...nouns.models.large.transformer import Kind
from ...nouns.schedules import NEEDS, Part, Schedule
from ...nouns.strategy.parallelism import Parallelism
from ...nouns.taskgraph import BUFFER_KINDS, Ints
from .durations import (
    CONTEXT,
    DATA,
    EXPERT,
    EXPERT_DATA,
    EXPERT_REPLICA,
    EXPERT_TENSOR,
    REPLICA,
    SINGLE,
    TENSOR,
    Durations,
)

NONE = -1  # in place of a row, an action or a role
ENDS = "embedding", "classifier"
PARAMETER_BYTES = 2


class Queue(NamedTuple):
    """A kind of queue: on each rank there is one for each group of the class ``groups``.

    ``prefix`` begins its name, and ``role`` is that of its rows; NONE where each row has its own.
    """

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
    REPLICA_QUEUE,
    EXPERT_REPLICA_QUEUE,
    TO_NEXT,
    TO_PREVIOUS,
    TO_HOST,
    FROM_HOST,
    THREAD,
) = range(14)
QUEUES = (
    Queue("", SINGLE, NONE),
    Queue("tensor", TENSOR, roles.TENSOR),
    Queue("experts", EXPERT, roles.EXPERT),
    Queue("experts' tensor", EXPERT_TENSOR, roles.TENSOR),
    Queue("context", CONTEXT, roles.TENSOR),
    Queue("data", DATA, roles.DATA),
    Queue("experts' data", EXPERT_DATA, roles.DATA),
    Queue("replicas", REPLICA, roles.DATA),
    Queue("experts' replicas", EXPERT_REPLICA, roles.DATA),
    Queue("to next", SINGLE, roles.PIPELINE),
    Queue("to previous", SINGLE, roles.PIPELINE),
    Queue("to host", SINGLE, roles.HOST),
    Queue("from host", SINGLE, roles.HOST),
    Queue("thread", SINGLE, roles.DISPATCH),
)
# Rows of the queues up to this one are main rows: they follow one another on their rank. Rows of
# the other queues run beside them.
LAST_MAIN_QUEUE = CONTEXT_QUEUE
# role: of simdev/nouns/models/large/roles.py; queue: of QUEUES; duration: an index into the columns
# and lags of Durations; layer: NO_LAYER for the embedding, the classifier and whole stages, and of
# a transfer the rank that receives it, for a transfer belongs to no layer; action: an index into
# the actions of the schedule, or NONE. A template has the first five columns, in this order
# (Template.rows); rank and action are added where it is placed. A new column also goes into
# Template.add or Program.add_table, and into dispatch.py, which writes rows without a template;
# Template.main, Template.computing, dispatch.py and simdev/search/plan/pieces.py read columns by
# their number.
COLUMNS = ("role", "queue", "duration", "bytes", "layer", "rank", "action")


class Visit(NamedTuple):
    """The rows of a template that belong to one layer.

    ``first`` and ``last`` are the first and the last row that computes; ``fetch`` and ``send`` move
    activations from and to the host, NONE where activations are not offloaded.
    """

    layer: int
    first: int
    last: int
    fetch: int
    send: int


class Sent(NamedTuple):
    """A row of a collective over the replicas, and how many parameters it gathers or reduces.

    ``end`` is the row that completes a gradient: behind the first one where groups of replicas
    (``dp_replicate``) sum their shares, else the same.
    """

    row: int
    parameters: int
    end: int


class Turn(NamedTuple):
    """The rows of a template that work with one bucket of parameters.

    A bucket is a layer, a part of a layer, the embedding or the classifier. ``first`` and ``last``
    are the first and the last row that computes; ``gathers`` collect the parameters before them,
    ``reduced`` sum the gradients after them; ``fetch`` gets activations from the host (NONE:
    nothing is fetched).
    """

    layer: int
    first: int
    last: int
    gathers: tuple[Sent, ...]
    reduced: tuple[Sent, ...]
    fetch: int


@dataclass
class Template:
    """The rows of one action on a rank, the same for each microbatch.

    ``rows`` have the first five of COLUMNS, and ``launches`` the number of kernels that each
    launches. ``edges`` (from row, to row) do not repeat the chain of main rows. ``visits`` are by
    layer, ``turns`` in the order in which they compute; ``ends`` are the turns of the embedding and
    the classifier. ``transfer`` is the row that sends to another rank; its layer is that rank.
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
        # Loads in parts are still launched once: the row of the last part counts all launches.
        launches = sum(not load.launches for load in loads) if part == parts - 1 else 0
        return self.add(COMPUTE, duration, 0, layer, role, launches)

    def collective(
        self, queue: int, name: str, size: int, layer: int = NO_LAYER, parts: int = 0
    ) -> int:
        """A row of a collective of ``size`` bytes, as nccl-tests count them: its number.

        Of a list of ``parts`` each is copied by itself.
        """
        duration = self.durations.collective(QUEUES[queue].groups, self.rank, name, size, parts)
        return self.add(queue, duration, size, layer)

    def left(
        self, queue: int, name: str, size: int, beside: Loads, share: Fraction = Fraction(1),
        kept: Fraction = Fraction(0),
    ) -> int:  # fmt: skip
        """The number of a duration: what is left of a collective beside which a share of the loads
        is computed, of itself the share ``kept`` at the least.
        """
        whole = self.durations.collective(QUEUES[queue].groups, self.rank, name, size)
        return self.durations.beside(self.rank, whole, beside, share, kept)

    def copy(self, queue: int, size: int, layer: int) -> int:
        """A row that copies to or from the host: its number."""
        return self.add(queue, self.durations.copy(size), size, layer)

    def send(self, queue: int, rank: int, size: int) -> int:
        """The row that sends to another rank: its number. The column ``layer`` holds that rank."""
        duration = self.durations.transfer(self.rank, rank, size)
        self.transfer = self.add(queue, duration, size, rank)
        return self.transfer

    def swap(self, rank: int, size: int, layer: int) -> int:
        """A row that swaps data with the rank that has the other copy of a stage: its number."""
        duration = self.durations.transfer(self.rank, rank, size)
        return self.add(TO_NEXT, duration, size, layer, roles.DATA)

    def add(
        self,
        queue: int,
        duration: int,
        size: int,
        layer: int,
        role: int | None = None,
        launches: int = 1,
    ) -> int:
        """A row, by default with the role of its queue: its number.

        ``duration`` is a number of ``Durations``, ``size`` bytes.
        """
        role = QUEUES[queue].role if role is None else role
        self.rows.append((role, queue, duration, size, layer))
        self.launches.append(launches)
        return len(self.rows) - 1

    @cached_property
    def table(self) -> Ints:
        """``rows`` as an array; it is kept, so it may be read only once all rows are added."""
        return np.array(self.rows, np.int64).reshape(-1, len(COLUMNS) - 2)

    @cached_property
    def main(self) -> Ints:
        """The numbers of the main rows."""
        return np.flatnonzero(self.table[:, 1] <= LAST_MAIN_QUEUE)

    @cached_property
    def computing(self) -> tuple[int, int]:
        """The first and the last row that computes."""
        computing = np.flatnonzero(self.table[:, 1] == COMPUTE)
        return int(computing[0]), int(computing[-1])


@dataclass(frozen=True, slots=True)
class Placed:
    """A template, and by microbatch the number of its first row in the program.

    NONE where the other copy of the stage does the microbatch.
    """

    template: Template
    base: Ints

    @property
    def last(self) -> int:
        """The number of the template's first row, for the microbatch that the rank does last."""
        return int(self.base.max())


class Ends(NamedTuple):
    """Rows behind a rank's last action: the optimizer's ``updates``, the rows that ``complete`` the
    gradient of each bucket there (ZeRO 0 and 1), and the ``gathers`` of updated parameters.
    """

    updates: tuple[int, ...]
    complete: dict[int, list[int]]
    gathers: list[int]


class BufferRows(NamedTuple):
    """Buffers of a rank that have the same size and kind, an index into BUFFER_KINDS.

    ``fillers`` are by buffer the row that fills it, ``readers`` by buffer and column the rows that
    read it.
    """

    rank: int
    size: int
    kind: int
    fillers: Ints
    readers: Ints


def elsewhere(part: Part, links: Mapping[str, tuple[tuple[int, str], ...]]) -> Iterator[Part]:
    """The parts of other stages that a part needs, or that need it.

    ``links`` is NEEDS or READERS of ``simdev/nouns/schedules``.
    """
    way, stage, kind = part
    return ((way, stage + step, other) for step, other in links[kind] if step)


@dataclass
class Program:
    """The rows, edges and buffers of a step while they are written, rank by rank.

    ``stage_layers`` are the layers of each stage. The lists ``runs``, ``last``, ``gradients`` and
    ``ends`` have an entry for each rank of the pipeline.
    """

    shard: Shard
    parallelism: Parallelism
    schedule: Schedule
    stage_layers: tuple[tuple[int, ...], ...]
    durations: Durations
    # The loads of a layer, by the kind of layer (Transformer.kind_of): layers of a kind share them.
    blocks: dict[Kind, Block] = field(default_factory=dict)
    # By part of the schedule its template, and where each microbatch's rows begin.
    placed: dict[Part, Placed] = field(default_factory=dict)
    # The actions of a rank in their order, each as its part and its first row.
    runs: list[list[tuple[Part, int]]] = field(default_factory=list)
    # Pieces of the table, one after the other, and how many rows they have together.
    tables: list[Ints] = field(default_factory=list)
    rows: int = 0
    # The last main row of a rank's actions, and its placed parts that compute gradients of weights.
    last: list[int] = field(default_factory=list)
    gradients: list[list[Placed]] = field(default_factory=list)
    # The rows behind a rank's last action.
    ends: list[Ends] = field(default_factory=list)
    # Edges in pieces: from the row sources[i][k] to the row targets[i][k].
    sources: list[Ints] = field(default_factory=list)
    targets: list[Ints] = field(default_factory=list)
    buffers: list[BufferRows] = field(default_factory=list)

    @property
    def ways(self) -> int:
        """In how many directions microbatches go, 1 or 2, each with its copy of the parameters."""
        return 1 + self.schedule.bidirectional

    def rank(self, stage: int, way: int) -> int:
        """The rank that runs a stage for the microbatches of a direction (0 or 1)."""
        return self.schedule.home[self.schedule.first_replica[stage] + way]

    @cached_property
    def again(self) -> frozenset[int]:
        """The layers that full recomputation makes again."""
        return self.parallelism.layers_again(self.stage_layers)

    @cached_property
    def offloaded(self) -> frozenset[int]:
        """The layers whose activations go to host memory."""
        return self.parallelism.layers_offloaded(self.stage_layers)

    def footprint(self, layer: int) -> Footprint:
        """The footprint of a layer for a microbatch."""
        return footprint(self.shard, layer, layer in self.again)

    def numbers(self, rank: int) -> Ints:
        """The indices of a rank's actions among all actions of the schedule."""
        orders = self.schedule.orders
        first = sum(map(len, orders[:rank]))
        return np.arange(first, first + len(orders[rank]))

    def at(self, parts: Iterable[Part], microbatches: Ints, row: Callable[[Template], int]) -> Ints:
        """By microbatch a row of its action in one of these parts.

        ``row`` chooses the row of a template; NONE where no part does the microbatch, or its
        template has no such row.
        """
        rows = np.full(len(microbatches), NONE, np.int64)
        for part in parts:
            placed = self.placed.get(part)
            if placed is not None and (offset := row(placed.template)) != NONE:
                base = placed.base[microbatches]
                rows = np.where(base == NONE, rows, base + offset)
        return rows

    def arrivals(self, part: Part, microbatches: Ints) -> Ints:
        """By microbatch the transfer that brings what a part needs from another rank; NONE where
        it needs nothing from one.
        """
        return self.at(elsewhere(part, NEEDS), microbatches, lambda template: template.transfer)

    def bucket(self, rank: int, layer: int) -> tuple[int, int]:
        """How many parameters a layer has outside of its experts, and in them.

        For NO_LAYER those of the embedding and the classifier together, and 0.
        """
        if layer != NO_LAYER:
            return self.shard.layer_parameters(layer)
        return sum(self.end_bucket(rank, end) for end in ENDS), 0

    def gathered_bytes(self, layer: int) -> int:
        """Bytes of a parameter on its way to the other replicas: of float8 where the software makes
        the weights of a layer narrow before.
        """
        is_narrow = layer != NO_LAYER and self.shard.of_layer(layer).is_narrow
        return 1 if is_narrow and self.shard.software.fsdp else PARAMETER_BYTES

    def end_bucket(self, rank: int, end: str) -> int:
        """How many parameters of a rank have their last gradient from the embedding or from the
        classifier; 0 where another rank has this end.
        """
        stages, shard = self.schedule.stages_of[rank], self.shard
        first, last = 0 in stages, self.schedule.stages - 1 in stages
        if end == "embedding":
            return shard.embedding_parameters * first
        # A rank with both ends has a tied table once. The backward meets the embedding last, so the
        # table's gradient is complete there and its parameters count for the embedding.
        return (shard.classifier_parameters - self.tied_table(rank)) * last

    def tied_table(self, rank: int) -> int:
        """How many parameters the embedding and the classifier of a rank share, or 0."""
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
        """How many replicas share the parameters outside of experts, and those of experts; both
        directions together.
        """
        some, experts = self.parallelism.sharers
        return some * self.ways, experts * self.ways

    def updated(self, rank: int, layers: list[int]) -> tuple[int, int]:
        """How many parameters some buckets of a rank have, and how many of them one replica updates
        (fewer with ZeRO).
        """
        sizes = np.array([self.bucket(rank, layer) for layer in layers], np.int64).reshape(-1, 2)
        total = sizes.sum(axis=0).tolist()
        # Each replica pads its share, so shares are rounded up one by one.
        sharers = self.sharers if self.parallelism.zero else (1, 1)
        shares = (-(-size // count) for size, count in zip(total, sharers, strict=True))
        return sum(total), sum(shares)

    def add_buffers(
        self, rank: int, size: int, kind: str, filler: Ints | int, *readers: Ints | int
    ) -> None:
        """A buffer for each row in ``filler``, read by the rows in the same place of ``readers``.

        Where the size is 0 there is none. ``kind`` is one of BUFFER_KINDS.
        """
        if size:
            rows = np.broadcast_arrays(np.atleast_1d(np.asarray(filler, np.int64)), *readers)
            table = np.stack(rows, axis=1)
            number = BUFFER_KINDS.index(kind)
            self.buffers.append(BufferRows(rank, size, number, table[:, 0], table[:, 1:]))

    def edge(self, source: Ints | int, target: Ints | int) -> None:
        """Edges from each source to the target in the same place."""
        pair = np.broadcast_arrays(np.asarray(source, np.int64), np.asarray(target, np.int64))
        self.sources.append(pair[0].ravel())
        self.targets.append(pair[1].ravel())

    def edges(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Edges as pairs (from row, to row)."""
        table = np.array(list(pairs), np.int64).reshape(-1, 2)
        self.edge(table[:, 0], table[:, 1])

    def append(self, template: Template) -> int:
        """Appends a template once, behind the actions of its rank: the number of the first row."""
        first = self.rows
        self.add_table(template.table, template.rank, np.full(len(template.rows), NONE, np.int64))
        self.edges((source + first, target + first) for source, target in template.edges)
        return first

    def add_table(self, table: Ints, rank: int, actions: Ints) -> None:
        """Appends rows of a rank; ``actions`` are indices of actions of the schedule, or NONE."""
        self.tables.append(np.column_stack((table, np.full(len(table), rank, np.int64), actions)))
        self.rows += len(table)

    def columns(self) -> dict[str, Ints]:
        """The whole table, by the names of COLUMNS."""
        table = np.concatenate(self.tables)
        return {name: np.ascontiguousarray(table[:, i]) for i, name in enumerate(COLUMNS)}
