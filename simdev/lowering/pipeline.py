"""The pass that turns a pipeline schedule and the times of its stages into tasks.

Every action is a task of its rank's compute queue, whose order is fixed by the table. A tensor that
goes to a stage of another rank is a transfer that takes the latency between the two and holds
nothing: transfers never wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from ..errors import InputError
from ..schedules import (
    BACKWARD,
    FORWARD,
    INPUT,
    WEIGHT,
    Action,
    Schedule,
    StageTimes,
    weight_versions,
)
from ..taskgraph import (
    BUFFER_KINDS,
    PERSISTENT,
    TRANSFER,
    Buffers,
    Ints,
    Resource,
    Rows,
    TaskGraph,
    Tasks,
)
from ..units import picoseconds

# By kind of action; a whole backward is a backward too.
KINDS = {FORWARD: "forward", BACKWARD: "backward", INPUT: "backward", WEIGHT: "weight gradient"}


@dataclass(slots=True)
class _Columns:
    """Columns of tasks and buffers while they grow."""

    names: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    # op, output, source, destination, duration
    numbers: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    successors: list[list[int]] = field(default_factory=list)
    buffer_names: list[str] = field(default_factory=list)
    # device, bytes, kind, filler
    buffer_numbers: list[tuple[int, int, int, int]] = field(default_factory=list)
    readers: list[Sequence[int]] = field(default_factory=list)

    def task(self, name: str, kind: str, *numbers: int) -> int:
        """A new row; ``numbers`` are op, output, source, destination and duration."""
        op, output, source, destination, duration = numbers
        self.names.append(name)
        self.kinds.append(kind)
        self.numbers.append((op, output, source, destination, duration))
        self.successors.append([])
        return len(self.names) - 1

    def buffer(
        self, name: str, device: int, size: int, kind: str, filler: int, readers: Sequence[int]
    ) -> None:
        """A buffer, where it has bytes."""
        if size:
            self.buffer_names.append(name)
            self.buffer_numbers.append((device, size, BUFFER_KINDS.index(kind), filler))
            self.readers.append(readers)


def pipeline_task_graph(schedule: Schedule, times: StageTimes) -> TaskGraph:
    """The task graph of a pipeline: first a task for each of ``schedule.actions``, in their order,
    then the transfers.

    Raises InputError where the times together exceed what a task graph may hold.
    """
    if len(times.forward) != schedule.stages:
        raise InputError(
            f"times: are of {len(times.forward)} stages, the schedule has {schedule.stages}"
        )
    columns = _Columns()
    row = {action: i for i, action in enumerate(schedule.actions)}
    durations = _durations(times)
    for i, action in enumerate(schedule.actions):
        rank = schedule.rank_of[action.stage]
        columns.task(
            str(action), KINDS[action.kind], i, -1, rank, rank, durations[action.kind][action.stage]
        )
    comm = [picoseconds(seconds) for seconds in times.comm]
    for i, action in enumerate(schedule.actions):
        _connect(columns, schedule, row, comm, i, action)
    _add_parameters(columns, schedule, times)
    for i, action in enumerate(schedule.actions):
        if action.kind == FORWARD:
            _add_activations(columns, schedule.rank_of[action.stage], row, times, i, action)
    return _task_graph(columns, schedule)


def _durations(times: StageTimes) -> dict[str, list[int]]:
    """Ps by kind of action and stage."""
    whole = [b + w for b, w in zip(times.backward, times.weight, strict=True)]
    seconds = {FORWARD: times.forward, BACKWARD: whole, INPUT: times.backward, WEIGHT: times.weight}
    return {kind: [picoseconds(one) for one in column] for kind, column in seconds.items()}


def _connect(
    columns: _Columns,
    schedule: Schedule,
    row: dict[Action, int],
    comm: list[int],
    i: int,
    action: Action,
) -> None:
    """What waits for this action: on its own rank directly, on another one behind a transfer."""
    stage, microbatch = action.stage, action.microbatch
    match action.kind:
        case "F":
            wanted = [(stage + 1, FORWARD), (stage, BACKWARD), (stage, INPUT)]
        case "W":
            wanted = []
        case "I":
            wanted = [(stage - 1, BACKWARD), (stage - 1, INPUT), (stage, WEIGHT)]
        case _:
            wanted = [(stage - 1, BACKWARD), (stage - 1, INPUT)]
    source = schedule.rank_of[stage]
    for other, kind in wanted:
        after = row.get(Action(other, kind, microbatch))
        if after is None:
            continue
        destination = schedule.rank_of[other]
        if destination != source:
            name, latency = f"{action}:0>{_rank(destination)}", comm[min(stage, other)]
            send = columns.task(name, TRANSFER, i, 0, source, destination, latency)
            columns.successors[i].append(send)
            columns.successors[send].append(after)
        else:
            columns.successors[i].append(after)


def _add_parameters(columns: _Columns, schedule: Schedule, times: StageTimes) -> None:
    """The weights of every stage; asynchronous schedules stash several versions of them."""
    for stage, versions in enumerate(weight_versions(schedule)):
        rank, size = schedule.rank_of[stage], times.parameters[stage]
        columns.buffer(f"weights of stage {stage}", rank, size, "parameters", PERSISTENT, [])
        columns.buffer(
            f"stash of stage {stage}", rank, size * (versions - 1), "parameters", PERSISTENT, []
        )


def _add_activations(
    columns: _Columns, rank: int, row: dict[Action, int], times: StageTimes, i: int, action: Action
) -> None:
    """What a forward leaves behind: until the whole backward, or one part until each half of it."""
    stage, microbatch = action.stage, action.microbatch
    size, kept = times.activation[stage], times.kept[stage]
    whole, half, rest = (
        row.get(Action(stage, kind, microbatch)) for kind in (BACKWARD, INPUT, WEIGHT)
    )
    if whole is not None:
        columns.buffer(f"{action}:0", rank, size, "activations", i, [whole])
    elif half is not None and rest is not None:
        columns.buffer(f"{action}:0", rank, size - kept, "activations", i, [half])
        columns.buffer(f"{action}:1", rank, kept, "activations", i, [half, rest])


def _task_graph(columns: _Columns, schedule: Schedule) -> TaskGraph:
    op, output, source, destination, duration = _split(columns.numbers, 5)
    device, size, kind, filler = _split(columns.buffer_numbers, 4)
    count, computes = len(columns.names), len(schedule.actions)
    zero = np.zeros(count, np.int64)
    nothing: list[list[int]] = [[] for _ in range(count)]
    tasks = Tasks(
        name=tuple(columns.names), kind=tuple(columns.kinds), op=op, output=output, source=source,
        destination=destination, duration=duration, lag=zero, gap=zero, priority=zero, bytes=zero,
        flow=np.zeros(count, np.bool_),
        resources=Rows.of([[rank] for rank in source[:computes].tolist()] + nothing[computes:]),
        links=Rows.of(nothing), successors=Rows.of(columns.successors),
    )  # fmt: skip
    buffers = Buffers(
        tuple(columns.buffer_names), device, size, kind, filler, Rows.of(columns.readers)
    )
    names = tuple(_rank(rank) for rank in range(schedule.ranks))
    lengths = [sum(action is not None for action in row) for row in schedule.rows]
    starts = [0, *accumulate(lengths)]
    resources = tuple(
        Resource(name, "fixed", tuple(range(start, start + length)), rank)
        for rank, (name, start, length) in enumerate(zip(names, starts, lengths, strict=False))
    )
    return TaskGraph(tasks, resources, buffers, names, np.full(schedule.ranks, -1, np.int64))


def _rank(rank: int) -> str:
    return f"rank {rank}"


def _split(rows: Sequence[tuple[int, ...]], width: int) -> list[Ints]:
    """The columns of a list of rows."""
    table = np.array(rows, np.int64).reshape(-1, width)
    return [table[:, column].copy() for column in range(width)]
