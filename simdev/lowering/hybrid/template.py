"""Templates: what a rank does for one action of the schedule, told once for each stage and kind of
action.

An item is one task of every group of its class. *Main* items follow one another on the rank; the
others run beside them, on queues of their own. A *visit* is a layer's turn in an action.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ...models.large import Block, Shard, classifier, embedding, footprint, layer, roles
from ...models.large.roles import NO_LAYER
from ...schedules import BACKWARD, FORWARD, INPUT, WEIGHT, Schedule
from ...strategy.parallelism import Parallelism
from ...taskgraph import Ints
from . import layout as classes
from .costs import Costs, block_loads

# The queue that an item holds, a set of them for each rank.
(
    COMPUTE,
    TENSOR_QUEUE,
    EXPERT_QUEUE,
    DATA_QUEUE,
    EXPERT_DATA_QUEUE,
    TO_NEXT,
    TO_PREVIOUS,
    TO_HOST,
    FROM_HOST,
) = range(9)
QUEUES = 9
QUEUE_CLASS = (
    classes.OWN, classes.TENSOR, classes.EXPERT, classes.DATA, classes.EXPERT_DATA,
    classes.OWN, classes.OWN, classes.OWN, classes.OWN,
)  # fmt: skip
NONE = -1


class Item(NamedTuple):
    """A row of a template: what it is for, its queue, the number of its cost, bytes, layer, whether
    it is main.

    The ``layer`` of a transfer is the rank that it goes to.
    """

    role: int
    queue: int
    cost: int
    size: int
    layer: int
    main: bool


class Visit(NamedTuple):
    """A layer's turn: the items that compute (first and last), gather parameters, fetch, send, and
    reduce gradients.

    Fetched and sent are activations (NONE: they stay where they are).
    """

    layer: int
    first: int
    last: int
    gathers: tuple[int, ...]
    fetch: int
    send: int
    reduced: tuple[int, ...]


@dataclass
class Template:
    """Items of an action, their edges beside the chain of the main ones, its visits, and the items
    at its ends.
    """

    items: list[Item] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)
    visits: list[Visit] = field(default_factory=list)
    ends: dict[str, int] = field(default_factory=dict)
    transfer: int = NONE

    def add(
        self,
        role: int,
        queue: int,
        cost: int,
        size: int = 0,
        layer: int = NO_LAYER,
        main: bool = True,
    ) -> int:
        """A new row: its number."""
        self.items.append(Item(role, queue, cost, size, layer, main))
        return len(self.items) - 1

    @cached_property
    def table(self) -> Ints:
        """The items as rows of numbers."""
        return np.array(self.items, np.int64).reshape(-1, len(Item._fields))

    @cached_property
    def main(self) -> Ints:
        """The main items."""
        return np.flatnonzero(self.table[:, 5])

    @cached_property
    def computing(self) -> tuple[int, int]:
        """The first and the last item that computes."""
        found = [i for i, item in enumerate(self.items) if item.role < roles.COMPUTES]
        return found[0], found[-1]


@dataclass(frozen=True)
class Maker:
    """Makes the templates of a step; ``stage_layers`` are the layers of each stage."""

    shard: Shard
    parallelism: Parallelism
    schedule: Schedule
    stage_layers: tuple[tuple[int, ...], ...]
    costs: Costs

    @cached_property
    def _blocks(self) -> dict[object, Block]:
        return {}

    def _block(self, number: int) -> Block:
        """Layers of one kind have one block."""
        key = self.shard.model.is_moe(number)
        if key not in self._blocks:
            self._blocks[key] = layer(self.shard, number)
        return self._blocks[key]

    @cached_property
    def _ends(self) -> tuple[Block, Block]:
        return embedding(self.shard), classifier(self.shard)

    @property
    def replicas(self) -> int:
        """That share what the experts do not have."""
        return self.parallelism.dp

    @property
    def expert_replicas(self) -> int:
        """That have the same experts."""
        return self.parallelism.dp // self.parallelism.ep

    def template(self, stage: int, kind: str) -> Template:
        """What the rank of a stage does for an action."""
        found, rank = Template(), self.schedule.rank_of[stage]
        first, last = stage == 0, stage == self.schedule.stages - 1
        layers = self.stage_layers[stage]
        if kind == FORWARD:
            if first:
                self._end(found, rank, "embedding", kind)
            for number in layers:
                self._visit(found, rank, number, kind)
            if last:
                self._end(found, rank, "classifier", kind)
            self._send(found, rank, stage + 1)
            return found
        if last:
            self._end(found, rank, "classifier", kind)
        for number in reversed(layers):
            self._visit(found, rank, number, kind)
        if first and kind != INPUT:
            self._end(found, rank, "embedding", kind)
        if kind != WEIGHT:
            self._send(found, rank, stage - 1)
        return found

    def _end(self, found: Template, rank: int, which: str, kind: str) -> None:
        """The embedding or the classifier, with what puts the parts together that the ranks of tp
        have or make.
        """
        loads = block_loads(self._ends[which == "classifier"], kind)
        role = (
            roles.FORWARD if kind == FORWARD else roles.WEIGHT if kind == WEIGHT else roles.BACKWARD
        )
        # A split sequence is gathered for the classifier, and its gradient for that of the
        # embedding.
        gathers = kind == FORWARD if which == "classifier" else kind in (BACKWARD, WEIGHT)
        if gathers and self.parallelism.sequence_parallel:
            self._tensor(found, rank, [("all_gather", self.shard.words_bytes)])
        found.ends[which] = found.add(role, COMPUTE, self.costs.compute(rank, loads))
        if (which, kind) in (
            ("embedding", FORWARD),
            ("classifier", BACKWARD),
            ("classifier", INPUT),
        ):
            self._tensor(found, rank, [self._sum()])

    def _sum(self) -> tuple[str, int]:
        """What puts together the parts of a tensor (words, hidden)."""
        name = "reduce_scatter" if self.parallelism.sequence_parallel else "all_reduce"
        return name, self.shard.words_bytes

    def _tensor(
        self, found: Template, rank: int, calls: list[tuple[str, int]], number: int = NO_LAYER
    ) -> None:
        if self.parallelism.tp > 1:
            for name, size in calls:
                cost = self.costs.collective(classes.TENSOR, rank, name, size)
                found.add(roles.TENSOR, TENSOR_QUEUE, cost, size, number)

    def _layer_calls(self, number: int) -> list[tuple[str, int]]:
        """Collectives of tp in a layer, one way: one for each of its two parts, two where the
        sequence is split.

        Between the experts each word is there top_k times.
        """
        size, model = self.shard.words_bytes, self.shard.model
        if not self.parallelism.sequence_parallel:
            return [("all_reduce", size)] * 2
        second = size * (model.top_k + (model.shared_experts > 0)) if model.is_moe(number) else size
        return [
            ("all_gather", size),
            ("reduce_scatter", size),
            ("all_gather", second),
            ("reduce_scatter", second),
        ]

    def _exchange(self, found: Template, rank: int, number: int) -> None:
        """Words to their experts and back."""
        model = self.shard.model
        if self.parallelism.ep > 1 and model.is_moe(number):
            size = self.shard.rows_bytes * model.top_k
            cost = self.costs.collective(classes.EXPERT, rank, "all_to_all", size)
            for _ in range(2):
                found.add(roles.EXPERT, EXPERT_QUEUE, cost, size, number)

    def _visit(self, found: Template, rank: int, number: int, kind: str) -> None:
        block, p = self._block(number), self.parallelism
        gathers = self._gather(found, rank, number) if p.zero == 3 and kind != WEIGHT else ()
        fetch = send = NONE
        moved = "activations" in p.offload
        if moved and kind in (BACKWARD, INPUT):
            fetch = self._copy(found, rank, FROM_HOST, number)
        first = len(found.items)
        if kind in (BACKWARD, INPUT) and p.recompute == "full":
            found.add(roles.RECOMPUTE, COMPUTE, self.costs.compute(rank, block.forward), 0, number)
            self._tensor(found, rank, self._layer_calls(number), number)
            self._exchange(found, rank, number)
        role = (
            roles.FORWARD if kind == FORWARD else roles.WEIGHT if kind == WEIGHT else roles.BACKWARD
        )
        last = found.add(
            role, COMPUTE, self.costs.compute(rank, block_loads(block, kind)), 0, number
        )
        if kind != WEIGHT:
            self._tensor(found, rank, self._layer_calls(number), number)
            self._exchange(found, rank, number)
        if moved and kind == FORWARD:
            send = self._copy(found, rank, TO_HOST, number)
            found.edges.append((last, send))
        found.edges += [(gather, first) for gather in gathers] + (
            [(fetch, first)] if fetch != NONE else []
        )
        reduced = (
            self.reduce(found, rank, number) if p.zero >= 2 and kind in (BACKWARD, WEIGHT) else ()
        )
        found.edges += [(last, one) for one in reduced]
        found.visits.append(Visit(number, first, last, gathers, fetch, send, reduced))

    def _gather(self, found: Template, rank: int, number: int) -> tuple[int, ...]:
        """The parameters of a layer, from all replicas (ZeRO 3)."""
        return tuple(self._shared(found, rank, number, "all_gather", 2))

    def reduce(self, found: Template, rank: int, number: int) -> tuple[int, ...]:
        """The gradients of a layer, over all replicas; each keeps its share from ZeRO 1 on."""
        name = "reduce_scatter" if self.parallelism.zero else "all_reduce"
        return tuple(self._shared(found, rank, number, name, self.parallelism.gradient_bytes))

    def publish(self, found: Template, rank: int, number: int) -> tuple[int, ...]:
        """Parameters that each replica has brought up to date; ZeRO 3 gathers those of layers when
        they are used.
        """
        wanted = self.parallelism.zero in (1, 2) or (
            self.parallelism.zero == 3 and number == NO_LAYER
        )
        return self._gather(found, rank, number) if wanted else ()

    def _shared(self, found: Template, rank: int, number: int, name: str, each: int) -> list[int]:
        dense, experts = self.bucket(rank, number)
        rows = []
        if dense and self.replicas > 1:
            cost = self.costs.collective(classes.DATA, rank, name, dense * each)
            rows.append(found.add(roles.DATA, DATA_QUEUE, cost, dense * each, number, False))
        if experts and self.expert_replicas > 1:
            cost = self.costs.collective(classes.EXPERT_DATA, rank, name, experts * each)
            rows.append(
                found.add(roles.DATA, EXPERT_DATA_QUEUE, cost, experts * each, number, False)
            )
        return rows

    def bucket(self, rank: int, number: int) -> tuple[int, int]:
        """Parameters of a layer, those of its experts apart; NO_LAYER: of the embedding and the
        classifier.
        """
        if number != NO_LAYER:
            return self.shard.layer_parameters(number)
        stages = [stage for stage, home in enumerate(self.schedule.rank_of) if home == rank]
        first, last = 0 in stages, self.schedule.stages - 1 in stages
        total = self.shard.embedding_parameters * first + self.shard.classifier_parameters * last
        if first and last and self.shard.model.tied:
            total -= self.shard.model.hidden * self.shard.vocabulary
        return total, 0

    def _copy(self, found: Template, rank: int, queue: int, number: int) -> int:
        size = footprint(self.shard, number).moved
        return found.add(
            roles.HOST,
            queue,
            self.costs.host(rank, size, self.parallelism.host_rate),
            size,
            number,
            False,
        )

    def _send(self, found: Template, rank: int, other: int) -> None:
        """To the stage after or before, where it runs on another rank."""
        if not 0 <= other < self.schedule.stages or self.schedule.rank_of[other] == rank:
            return
        destination = self.schedule.rank_of[other]
        queue = TO_NEXT if destination == (rank + 1) % self.schedule.ranks else TO_PREVIOUS
        cost = self.costs.transfer(rank, destination, self.shard.rows_bytes)
        found.transfer = found.add(
            roles.PIPELINE, queue, cost, self.shard.rows_bytes, destination, False
        )
