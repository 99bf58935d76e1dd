"""A pipeline over a graph: the graph is one microbatch, its forward ops are cut into stages.

It becomes an ordinary task graph: the ops of each microbatch, in the order that the schedule gives
every rank. A tensor crosses between ranks as in any placement. Parameters are there before the
first microbatch, updates come after the last of their rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...errors import InputError
from ...graph import Graph
from ...schedules import FORWARD, WEIGHT, Action, Schedule
from ...strategy import Parallelism, resolve_placement
from ...structure import order_of, readers_of
from ...taskgraph import TaskGraph
from ..build import build
from ..copies import Copies, copied
from ..microbatches import microbatches, once_a_step
from ..pipeline import schedule_of
from ..prepare import Prepared
from ..steps import LoweredStep, following
from .assign import stages_of
from .cut import even_cut

__all__ = ["even_cut", "staged", "stages_of"]


def staged(prepared: Prepared, pipeline: Parallelism) -> LoweredStep:
    """One step of a pipeline over a graph, with what it releases in the next one.

    Raises InputError, MissingCostError.
    """
    schedule = _schedule(pipeline)
    ranks = _ranks(prepared, schedule, pipeline.ranks)
    graph = prepared.graph
    homes = [ranks[rank] for rank in schedule.rank_of]
    try:
        stage = stages_of(
            graph, pipeline.stages, schedule.stages, lambda i: _lengths(prepared, i, homes)
        )
    except InputError as error:
        raise InputError([f"strategy.pipeline.{problem}" for problem in error.problems]) from None
    placement = _placement(prepared, [homes[number] for number in stage])
    task_graph = build(prepared, placement).task_graph
    once = once_a_step(graph, {})
    copies = microbatches(task_graph, len(graph.ops), once, schedule.microbatches)
    acts = _Acts(graph, once, stage, schedule)
    sequences = {
        ranks[rank]: acts.sequence(rank, copies, task_graph.tasks.resources.lists(), ranks[rank])
        for rank in range(schedule.ranks)
    }
    resources = tuple(
        replace(resource, policy="fixed") if queue in sequences else resource
        for queue, resource in enumerate(task_graph.resources)
    )
    task_graph = replace(task_graph, resources=resources)
    whole = copied(task_graph, copies, copies.joins(()), sequences, acts.turns)
    across = _across(graph, task_graph, placement, copies, sequences)
    return LoweredStep(whole, tuple(across), microbatch=task_graph)


def _across(
    graph: Graph,
    task_graph: TaskGraph,
    placement: Sequence[int],
    copies: Copies,
    sequences: Mapping[int, Sequence[int]],
) -> Iterator[tuple[int, int]]:
    """What a step releases in the next one: parameters after their updates, batches in their order.

    What waits for nothing waits for the last of its rank's queue, which it stands behind anyway.
    """
    for before, after in following(graph, task_graph, placement, {}):
        if not copies.again[after]:
            yield before, after
    for row in np.flatnonzero(task_graph.predecessor_count == 0).tolist():
        sequence = sequences.get(placement[row], ()) if row < len(graph.ops) else ()
        if sequence and copies.again[row]:
            for k in range(copies.count):
                yield sequence[-1], int(copies.rows(np.array([row]), k)[0])


def _schedule(pipeline: Parallelism) -> Schedule:
    try:
        return schedule_of(pipeline)
    except InputError as error:
        raise InputError(
            [f"strategy.pipeline.{problem}" for problem in error.problems], error.file
        ) from None


def _ranks(prepared: Prepared, schedule: Schedule, names: Sequence[str]) -> list[int]:
    """The device of each rank. Raises InputError."""
    cluster = prepared.cluster
    if not names:
        if len(cluster.workers) < schedule.ranks:
            reason = (
                f'pp is {schedule.ranks}, but "{cluster.name}" has {len(cluster.workers)} workers'
            )
            raise InputError(f"strategy.pipeline.pp: {reason}")
        return list(cluster.workers[: schedule.ranks])
    problems = []
    for rank, name in enumerate(names):
        if name not in cluster.index:
            problems.append(f'strategy.pipeline.ranks[{rank}]: no device named "{name}"')
        elif not cluster.devices[cluster.index[name]].runs_ops:
            problems.append(f'strategy.pipeline.ranks[{rank}]: "{name}" is a switch')
        elif name in names[:rank]:
            problems.append(
                f'strategy.pipeline.ranks[{rank}]: "{name}" is rank {names.index(name)} already'
            )
    if problems:
        raise InputError(problems)
    return [cluster.index[name] for name in names]


def _lengths(prepared: Prepared, op: int, homes: Sequence[int]) -> list[int]:
    """The ps of an op by stage; nothing for what nobody knows, which lowering refuses."""
    duration = prepared.duration[op]
    return [max(int(duration[home]), 0) for home in homes]  # UNKNOWN is below 0


def _placement(prepared: Prepared, devices: Sequence[int]) -> list[int]:
    """The placement; groups on one device each. Raises InputError."""
    cluster, graph = prepared.cluster, prepared.graph
    together = list(devices)
    for members in graph.groups.values():
        first = next((i for i in members if graph.ops[i].phase == "forward"), members[0])
        for i in members:
            together[i] = together[first]
    names = {
        op.name: cluster.devices[device].name
        for op, device in zip(graph.ops, together, strict=True)
    }
    return resolve_placement(graph, cluster, names)


class _Acts:
    """Which ops (positions) each action of a schedule runs, in program order."""

    def __init__(
        self, graph: Graph, once: frozenset[int], stage: Sequence[int], schedule: Schedule
    ) -> None:
        self.schedule = schedule
        self.single: dict[int, list[int]] = defaultdict(list)  # by rank
        self._ops: dict[tuple[int, str], list[int]] = defaultdict(list)
        self._late = {i for i in once if graph.ops[i].phase == "update" or graph.reads[i]}
        self._kind_of: dict[int, tuple[int, str]] = {}
        weights = _weight_gradients(graph, once, stage)
        split = {action.stage for action in schedule.actions if action.kind == WEIGHT}
        whole = {a.stage: a.kind for a in schedule.actions if a.kind not in (FORWARD, WEIGHT)}
        for i in order_of(graph, range(len(graph.ops))):
            home = stage[i]
            if i in once:
                self.single[schedule.rank_of[home]].append(i)
                continue
            back = WEIGHT if home in split and i in weights else whole[home]
            key = home, FORWARD if graph.ops[i].phase == "forward" else back
            self._ops[key].append(i)
            self._kind_of[i] = key
        self._turns: dict[tuple[int, str], list[int]] = defaultdict(list)
        for action in schedule.actions:
            self._turns[action.stage, action.kind].append(action.microbatch)

    def turns(self, row: int) -> Sequence[int]:
        """The microbatches in the order in which an op runs for them."""
        key = self._kind_of.get(row, (-1, ""))
        return self._turns.get(key, range(self.schedule.microbatches))

    def sequence(
        self, rank: int, copies: Copies, held: Sequence[Sequence[int]], queue: int
    ) -> tuple[int, ...]:
        """The rows of a rank's queue in order: parameters, the schedule's actions, updates."""
        single = self.single[rank]
        rows = [i for i in single if i not in self._late and queue in held[i]]
        for action in self.schedule.rows[rank]:
            rows += [] if action is None else self._rows(action, copies, held, queue)
        rows += [i for i in single if i in self._late and queue in held[i]]
        return tuple(rows)

    def _rows(
        self, action: Action, copies: Copies, held: Sequence[Sequence[int]], queue: int
    ) -> list[int]:
        ops = [i for i in self._ops[action.stage, action.kind] if queue in held[i]]
        return list(map(int, copies.rows(np.array(ops, np.int64), action.microbatch)))


def _weight_gradients(graph: Graph, once: frozenset[int], stage: Sequence[int]) -> set[int]:
    """Backward ops that no other stage waits for, only updates in the end: what may be late."""
    readers = readers_of(graph)
    late: set[int] = set()
    for i in reversed(order_of(graph)):
        waiting = [reader for reader in readers[i] if reader not in once]
        can_wait = all(reader in late and stage[reader] == stage[i] for reader in waiting)
        if graph.ops[i].phase == "backward" and readers[i] and can_wait:
            late.add(i)
    return late
