"""The schedule of a strategy's pipeline, and the pass that turns a schedule and the times of its
stages into tasks.

Every action is a task of its rank's compute queue, whose order is fixed by the table. A tensor that
goes to a stage of another rank is a transfer that takes the latency between the two and holds
nothing: transfers never wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

import numpy as np

from ..errors import InputError
from ..memory import MemoryModel
from ..schedules import (
    BACKWARD,
    FORWARD,
    INPUT,
    WEIGHT,
    Action,
    Schedule,
    StageTimes,
    named_schedule,
    read_csv,
    weight_versions,
)
from ..strategy.parallelism import Parallelism
from ..taskgraph import PERSISTENT, TRANSFER, Resource, TaskGraph
from ..units import picoseconds
from .columns import Columns

# By kind of action; a whole backward is a backward too.
KINDS = {FORWARD: "forward", BACKWARD: "backward", INPUT: "backward", WEIGHT: "weight gradient"}
# The actions that wait for one of a kind: how many stages on, and of which kind.
WAITING = {
    FORWARD: ((1, FORWARD), (0, BACKWARD), (0, INPUT)),
    BACKWARD: ((-1, BACKWARD), (-1, INPUT)),
    INPUT: ((-1, BACKWARD), (-1, INPUT), (0, WEIGHT)),
    WEIGHT: (),
}


def schedule_of(p: Parallelism) -> Schedule:
    """The schedule that a parallelism names or holds. Raises InputError."""
    if p.table is None:
        schedule = named_schedule(p.schedule, p.pp, p.microbatches, p.chunks)
    else:
        try:
            schedule = read_csv(p.table)
        except InputError as error:
            raise InputError(f"table: {problem}" for problem in error.problems) from None
    problems = list(_schedule_problems(schedule, p))
    if problems:
        raise InputError(problems)
    return schedule


def _schedule_problems(schedule: Schedule, p: Parallelism) -> Iterator[str]:
    if schedule.asynchronous:
        yield (
            f"schedule: {schedule.name} has no step whose time could be told; `simdev pipeline` "
            "runs it"
        )
    for name in ("pp", "microbatches"):
        given, count = getattr(p, name), getattr(schedule, "ranks" if name == "pp" else name)
        if given != count:
            yield f"{name}: is {given}, but the table has {count}"
    kinds: dict[int, set[str]] = {}
    for action in schedule.actions:
        kinds.setdefault(action.stage, set()).add(action.kind)
    # An op belongs to one kind of action of its stage: it cannot be whole here and in two there.
    for stage in sorted(kinds):
        if {BACKWARD, INPUT} <= kinds[stage]:
            yield f"table: stage {stage} does some backwards whole and some in two; do all alike"


def pipeline_task_graph(schedule: Schedule, times: StageTimes) -> TaskGraph:
    """The task graph of a pipeline: first a task for each of ``schedule.actions``, in their order,
    then the transfers.

    Raises InputError where the times together exceed what a task graph may hold.
    """
    if len(times.forward) != schedule.stages:
        raise InputError(
            f"times: are of {len(times.forward)} stages, the schedule has {schedule.stages}"
        )
    names = tuple(f"rank {rank}" for rank in range(schedule.ranks))
    starts = [0, *accumulate(sum(action is not None for action in row) for row in schedule.rows)]
    resources = [
        Resource(name, "fixed", tuple(range(starts[rank], starts[rank + 1])), rank)
        for rank, name in enumerate(names)
    ]
    columns = Columns(MemoryModel(), resources)
    rows = {action: row for row, action in enumerate(schedule.actions)}
    durations = _durations(times)
    for action, row in rows.items():
        rank, duration = schedule.rank_of[action.stage], durations[action.kind][action.stage]
        kind = KINDS[action.kind]
        columns.task(str(action), kind, (rank, rank), op=row, duration=duration, held=(rank,))
    comm = [picoseconds(seconds) for seconds in times.comm]
    for action in rows:
        _connect(columns, schedule, rows, comm, action)
    _add_parameters(columns, schedule, times)
    for action in rows:
        if action.kind == FORWARD:
            _add_activations(columns, schedule.rank_of[action.stage], rows, times, action)
    # Unlimited: a schedule and its times tell of no devices.
    capacity = np.full(schedule.ranks, -1, np.int64)
    tasks, buffers = columns.task_columns(), columns.buffer_columns()
    return TaskGraph(tasks, tuple(resources), buffers, names, capacity)


def _durations(times: StageTimes) -> dict[str, list[int]]:
    """Ps by kind of action and stage."""
    whole = [b + w for b, w in zip(times.backward, times.weight, strict=True)]
    seconds = {FORWARD: times.forward, BACKWARD: whole, INPUT: times.backward, WEIGHT: times.weight}
    return {kind: list(map(picoseconds, column)) for kind, column in seconds.items()}


def _connect(
    columns: Columns,
    schedule: Schedule,
    rows: Mapping[Action, int],
    comm: Sequence[int],
    action: Action,
) -> None:
    """What waits for this action: on the same rank directly, on another one behind a transfer."""
    source, before = schedule.rank_of[action.stage], rows[action]
    for step, kind in WAITING[action.kind]:
        waiting = Action(action.stage + step, kind, action.microbatch)
        if waiting not in rows:
            continue
        after, destination = rows[waiting], schedule.rank_of[waiting.stage]
        if destination == source:
            columns.release(before, [after])
            continue
        # A link is told by the stage before it, whichever way it is crossed.
        latency = comm[min(action.stage, waiting.stage)]
        name, ends = f"{action}:0>rank {destination}", (source, destination)
        send = columns.task(name, TRANSFER, ends, op=before, output=0, duration=latency)
        columns.chain((before, send, after))


def _add_parameters(columns: Columns, schedule: Schedule, times: StageTimes) -> None:
    """The weights of every stage; asynchronous schedules stash several versions of them."""
    for stage, versions in enumerate(weight_versions(schedule)):
        rank, size = schedule.rank_of[stage], times.parameters[stage]
        stash = size * (versions - 1)
        columns.buffer(f"weights of stage {stage}", rank, size, "parameters", PERSISTENT)
        columns.buffer(f"stash of stage {stage}", rank, stash, "parameters", PERSISTENT)


def _add_activations(
    columns: Columns, rank: int, rows: Mapping[Action, int], times: StageTimes, action: Action
) -> None:
    """What a forward leaves behind: until the whole backward, or one part until each half of it."""
    size, kept, filler = times.activation[action.stage], times.kept[action.stage], rows[action]
    whole, half, rest = (
        rows.get(Action(action.stage, kind, action.microbatch))
        for kind in (BACKWARD, INPUT, WEIGHT)
    )
    if whole is not None:
        columns.buffer(f"{action}:0", rank, size, "activations", filler, [whole])
    elif half is not None and rest is not None:
        columns.buffer(f"{action}:0", rank, size - kept, "activations", filler, [half])
        columns.buffer(f"{action}:1", rank, kept, "activations", filler, [half, rest])
