"""A pipeline over a graph: the graph is one microbatch, its forward ops are cut into stages.

It becomes an ordinary task graph: the ops of each microbatch, in the order that the schedule gives
every rank. A tensor crosses between ranks as in any placement. Parameters are there before the
first microbatch, updates come after the last of their rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from ...ground.errors import InputError
from ...nouns.cluster import Cluster
from ...nouns.graph import Graph
from ...nouns.schedules import FORWARD, WEIGHT, Schedule
from ...nouns.strategy import Parallelism, resolve_placement
from ...nouns.structure import order_of, readers_of
from ...nouns.taskgraph import Rows, TaskGraph
from ..build import build
from ..copies import Copies, copied
from ..microbatches import microbatches, once_a_step
from ..pipeline import schedule_of
from ..prepare import Prepared
from ..steps import LoweredStep, following
from ..turns import in_given_turns
from .assign import even_cut, stages_of

__all__ = ["even_cut", "staged", "stages_of"]


def staged(prepared: Prepared, pipeline: Parallelism) -> LoweredStep:
    """One step of a pipeline over a graph, with what it releases in the next one.

    Raises InputError, MissingCostError.
    """
    graph = prepared.graph
    with _problems_of_the_pipeline():
        schedule = schedule_of(pipeline)
        ranks = _ranks(prepared.cluster, schedule, pipeline.ranks)
    homes = [ranks[rank] for rank in schedule.rank_of]
    # Nothing for what is unknown (below 0): building refuses it, and tells of every op.
    lengths = np.maximum(prepared.duration[:, homes], 0)
    with _problems_of_the_pipeline():
        stage_of = stages_of(graph, pipeline.stages, lengths)
    placement = _placement(prepared, [homes[stage] for stage in stage_of])
    built = build(prepared, placement)
    task_graph = built.task_graph
    once = once_a_step(graph, {})
    copies = microbatches(task_graph, len(graph.ops), once, schedule.microbatches)
    actions = _Actions(graph, once, stage_of, schedule)
    held = task_graph.tasks.resources
    sequences = {
        device: tuple(actions.sequence(rank, copies, held, device))
        for rank, device in enumerate(ranks)
    }
    resources = tuple(
        replace(resource, policy="fixed") if queue in sequences else resource
        for queue, resource in enumerate(task_graph.resources)
    )
    task_graph = replace(task_graph, resources=resources)
    whole = copied(task_graph, copies, copies.joins(()), sequences, actions.microbatches)
    across = _across(graph, task_graph, placement, copies, sequences)
    return LoweredStep(
        whole,
        tuple(across),
        microbatch=task_graph,
        stages=tuple(stage_of),
        dispatches=in_given_turns(prepared, whole, copies, placement, built.ends),
    )


@contextmanager
def _problems_of_the_pipeline() -> Iterator[None]:
    try:
        yield
    except InputError as error:
        problems = [f"strategy.pipeline.{problem}" for problem in error.problems]
        raise InputError(problems, error.file) from None


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
            for after in copies.all_rows(row):
                yield sequence[-1], after


def _ranks(cluster: Cluster, schedule: Schedule, names: Sequence[str]) -> list[int]:
    """The device of each rank. Raises InputError."""
    if not names:
        if len(cluster.workers) < schedule.ranks:
            raise InputError(
                f'pp: pp is {schedule.ranks}, but "{cluster.name}" has {len(cluster.workers)} '
                "workers"
            )
        return list(cluster.workers[: schedule.ranks])
    problems = []
    for rank, name in enumerate(names):
        if name not in cluster.index:
            problems.append(f'ranks[{rank}]: no device named "{name}"')
        elif not cluster.devices[cluster.index[name]].runs_ops:
            problems.append(f'ranks[{rank}]: "{name}" is a switch')
        elif name in names[:rank]:
            problems.append(f'ranks[{rank}]: "{name}" is rank {names.index(name)} already')
    if problems:
        raise InputError(problems)
    return [cluster.index[name] for name in names]


def _placement(prepared: Prepared, devices: Sequence[int]) -> list[int]:
    """The placement; groups on one device each. Raises InputError."""
    cluster, graph = prepared.cluster, prepared.graph
    together = list(devices)
    for members in graph.groups.values():
        # A group of a parameter and its ops stands where it computes first.
        first = next((i for i in members if graph.ops[i].phase == "forward"), members[0])
        for i in members:
            together[i] = together[first]
    homes = zip(graph.ops, together, strict=True)
    names = {op.name: cluster.devices[device].name for op, device in homes}
    return resolve_placement(graph, cluster, names)


class _Actions:
    """Which ops (positions) each action of a schedule runs, in program order."""

    def __init__(
        self, graph: Graph, once: frozenset[int], stage_of: Sequence[int], schedule: Schedule
    ) -> None:
        self.schedule = schedule
        self._before: dict[int, list[int]] = defaultdict(list)  # by rank what runs once, first
        self._after: dict[int, list[int]] = defaultdict(list)  # and last
        self._ops: dict[tuple[int, str], list[int]] = defaultdict(list)
        self._action_of: dict[int, tuple[int, str]] = {}
        weights = _weight_gradients(graph, once, stage_of)
        split = {action.stage for action in schedule.actions if action.kind == WEIGHT}
        back_of = {a.stage: a.kind for a in schedule.actions if a.kind not in (FORWARD, WEIGHT)}
        for i in order_of(graph, range(len(graph.ops))):
            stage = stage_of[i]
            if i in once:
                late = graph.ops[i].phase == "update" or graph.reads[i]
                single = self._after if late else self._before
                single[schedule.rank_of[stage]].append(i)
                continue
            kind = WEIGHT if stage in split and i in weights else back_of[stage]
            key = stage, FORWARD if graph.ops[i].phase == "forward" else kind
            self._ops[key].append(i)
            self._action_of[i] = key
        self._microbatches: dict[tuple[int, str], list[int]] = defaultdict(list)
        for action in schedule.actions:
            self._microbatches[action.stage, action.kind].append(action.microbatch)

    def microbatches(self, op: int) -> Sequence[int]:
        """The microbatches in the order in which an op runs for them."""
        key = self._action_of.get(op, (-1, ""))
        return self._microbatches.get(key, range(self.schedule.microbatches))

    def sequence(self, rank: int, copies: Copies, held: Rows, queue: int) -> Iterator[int]:
        """The rows of a rank's queue in order: parameters, the schedule's actions, updates.

        ``held`` are the queues of each task: a collective holds none.
        """
        yield from (i for i in self._before[rank] if queue in held[i])
        for action in self.schedule.rows[rank]:
            if action is not None:
                ops = [i for i in self._ops[action.stage, action.kind] if queue in held[i]]
                rows = copies.rows(np.array(ops, np.int64), action.microbatch)
                yield from rows.tolist()
        yield from (i for i in self._after[rank] if queue in held[i])


def _weight_gradients(graph: Graph, once: frozenset[int], stage_of: Sequence[int]) -> set[int]:
    """Backward ops that no other stage waits for, only updates in the end: what may be late."""
    readers = readers_of(graph)
    late: set[int] = set()
    # Readers first: an op may be late only where all that wait for it may.
    for i in reversed(order_of(graph)):
        waiting = [reader for reader in readers[i] if reader not in once]
        can_wait = all(reader in late and stage_of[reader] == stage_of[i] for reader in waiting)
        if graph.ops[i].phase == "backward" and readers[i] and can_wait:
            late.add(i)
    return late
