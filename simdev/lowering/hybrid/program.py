"""The step as rows: one for each task of a rank of the pipeline, whatever the number of its copies.

Rows are numbered rank by rank in the order of the schedule; edges and buffers name rows. ``expand``
makes the tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from ...models.large import Shard
from ...schedules import BACKWARD, FORWARD, INPUT, WEIGHT, Schedule
from ...strategy.parallelism import Parallelism
from ...taskgraph import BUFFER_KINDS, Ints
from .costs import Costs
from .template import NONE, Maker, Template

COLUMNS = ("role", "queue", "cost", "bytes", "layer", "main", "rank", "action")


@dataclass
class BufferColumns:
    """Buffers by row, while they grow, in pieces: ``count`` readers of each, ``readers`` of all."""

    rank: list[Ints] = field(default_factory=list)
    size: list[Ints] = field(default_factory=list)
    kind: list[Ints] = field(default_factory=list)
    filler: list[Ints] = field(default_factory=list)
    count: list[Ints] = field(default_factory=list)
    readers: list[Ints] = field(default_factory=list)

    def add(
        self, rank: int, size: int, kind: str, filler: Ints | int, *readers: Ints | int
    ) -> None:
        """A buffer for each entry of ``filler``, read by the entries beside it; none where it has
        no bytes.
        """
        fillers = np.atleast_1d(np.asarray(filler, np.int64))
        if not size:
            return
        n = len(fillers)
        self.filler.append(fillers)
        for column, value in (
            (self.rank, rank),
            (self.size, size),
            (self.kind, BUFFER_KINDS.index(kind)),
        ):
            column.append(np.full(n, value, np.int64))
        self.count.append(np.full(n, len(readers), np.int64))
        if readers:
            self.readers.append(
                np.stack([np.broadcast_to(one, n) for one in readers], axis=1).ravel()
            )


@dataclass
class Program:
    """The rows of a step while they are built, by rank of the pipeline.

    ``base`` has, by stage and kind of action, the first row of each microbatch's; ``main`` the last
    main row of each rank. ``tables`` are pieces of COLUMNS.
    """

    shard: Shard
    parallelism: Parallelism
    schedule: Schedule
    maker: Maker
    base: dict[tuple[int, str], Ints] = field(default_factory=dict)
    tables: list[Ints] = field(default_factory=list)
    rows: int = 0
    main: list[int] = field(default_factory=list)
    updates: list[tuple[int, ...]] = field(default_factory=list)
    sources: list[Ints] = field(default_factory=list)
    targets: list[Ints] = field(default_factory=list)
    buffers: BufferColumns = field(default_factory=BufferColumns)
    _templates: dict[tuple[int, str], Template] = field(default_factory=dict)

    @property
    def stage_layers(self) -> tuple[tuple[int, ...], ...]:
        """The layers of each stage."""
        return self.maker.stage_layers

    def template(self, stage: int, kind: str) -> Template:
        """Made once for each stage and kind."""
        if (stage, kind) not in self._templates:
            self._templates[stage, kind] = self.maker.template(stage, kind)
        return self._templates[stage, kind]

    def stages(self, rank: int) -> list[int]:
        """Those of a rank."""
        return [stage for stage, home in enumerate(self.schedule.rank_of) if home == rank]

    def backward(self, stage: int) -> str:
        """The kind of action that makes the gradient of a stage's input."""
        return BACKWARD if (stage, BACKWARD) in self.base else INPUT

    def gradient(self, stage: int) -> str:
        """The kind of action that makes the gradients of a stage's weights."""
        return BACKWARD if (stage, BACKWARD) in self.base else WEIGHT

    def edge(self, source: Ints | int, target: Ints | int) -> None:
        """Edges from each source to the target beside it."""
        one, other = np.broadcast_arrays(np.asarray(source, np.int64), np.asarray(target, np.int64))
        self.sources.append(one.ravel())
        self.targets.append(other.ravel())

    def edges(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Edges one by one."""
        table = np.array(list(pairs), np.int64).reshape(-1, 2)
        self.edge(table[:, 0], table[:, 1])

    def append(self, template: Template, rank: int) -> int:
        """Rows at the end of a rank: the number of the first."""
        first = self.rows
        self._table(template.table, rank, np.full(len(template.items), NONE, np.int64))
        self.edges((one + first, other + first) for one, other in template.edges)
        return first

    def _table(self, table: Ints, rank: int, actions: Ints) -> None:
        self.tables.append(np.column_stack((table, np.full(len(table), rank, np.int64), actions)))
        self.rows += len(table)

    def columns(self) -> dict[str, Ints]:
        """COLUMNS by name."""
        table = np.concatenate(self.tables)
        return {name: np.ascontiguousarray(table[:, i]) for i, name in enumerate(COLUMNS)}


def program_of(
    shard: Shard,
    parallelism: Parallelism,
    schedule: Schedule,
    stage_layers: Sequence[int],
    costs: Costs,
) -> Program:
    """All rows, edges and buffers of a step."""
    from .memory import add_activations, add_parameters
    from .tail import add_tail, tie

    borders = np.concatenate(([0], np.cumsum(stage_layers))).tolist()
    layers = tuple(tuple(range(a, b)) for a, b in pairwise(borders))
    program = Program(
        shard, parallelism, schedule, Maker(shard, parallelism, schedule, layers, costs)
    )
    for rank in range(schedule.ranks):
        _add_actions(program, rank)
        add_tail(program, rank)
        add_parameters(program, rank)
    tie(program)
    for stage in range(schedule.stages):
        _send(program, stage)
        add_activations(program, stage)
    return program


def _add_actions(program: Program, rank: int) -> None:
    """The rows of a rank's actions: main ones in a chain."""
    actions = [action for action in program.schedule.rows[rank] if action is not None]
    made = [program.template(action.stage, action.kind) for action in actions]
    lengths = np.array([len(one.items) for one in made], np.int64)
    bases = program.rows + np.cumsum(lengths) - lengths
    before = sum(action is not None for row in program.schedule.rows[:rank] for action in row)
    microbatches = program.schedule.microbatches
    for action, base in zip(actions, bases.tolist(), strict=True):
        key = action.stage, action.kind
        program.base.setdefault(key, np.zeros(microbatches, np.int64))[action.microbatch] = base
    main = np.concatenate([one.main + base for one, base in zip(made, bases.tolist(), strict=True)])
    program.edge(main[:-1], main[1:])
    program.main.append(int(main[-1]))
    for stage, kind in dict.fromkeys((action.stage, action.kind) for action in actions):
        for one, other in program.template(stage, kind).edges:
            program.edge(program.base[stage, kind] + one, program.base[stage, kind] + other)
    _gate(program, made, bases.tolist())
    table = np.concatenate([one.table for one in made])
    program._table(table, rank, np.repeat(np.arange(before, before + len(made)), lengths))


def _gate(program: Program, made: Sequence[Template], bases: Sequence[int]) -> None:
    """What is fetched ahead for a visit starts when the visit before the last ``prefetch`` ones is
    over.
    """
    p = program.parallelism
    if p.zero < 3 and "activations" not in p.offload:
        return
    visits = [(visit, base) for one, base in zip(made, bases, strict=True) for visit in one.visits]
    pairs = []
    for (before, there), (visit, base) in zip(visits, visits[1 + p.prefetch :], strict=False):
        fetched = (*visit.gathers, *([visit.fetch] if visit.fetch != NONE else []))
        pairs += [(before.last + there, row + base) for row in fetched]
    program.edges(pairs)


def _send(program: Program, stage: int) -> None:
    """What other ranks wait for: activations forward, gradients back."""
    for kind, other in ((FORWARD, stage + 1), (program.backward(stage), stage - 1)):
        own = program.template(stage, kind)
        if own.transfer == NONE:
            continue
        base, wanted = (
            program.base[stage, kind],
            FORWARD if kind == FORWARD else program.backward(other),
        )
        program.edge(base + own.main[-1], base + own.transfer)
        program.edge(
            base + own.transfer,
            program.base[other, wanted] + program.template(other, wanted).main[0],
        )
