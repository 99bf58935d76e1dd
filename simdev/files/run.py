"""Saved runs: a task graph with the spans and the memory that an engine computed, complete enough
for the checker.

Tables are objects of columns of equal length; a task, resource, buffer or device is named by its
row. ``spans`` may list the tasks in any order. ``step_time_ps``, ``feasible`` and ``memory`` are
claims: reading does not verify them, the checker does. Faults that the checker finds (a span too
short, a claim too low) are no errors here; impossible values (a row that does not exist, a negative
duration) are. A run of several ``steps`` that follow one another claims the end of the last step,
``trace_ps``, in place of ``step_time_ps``. Where these steps differ, ``round`` has the number of
tasks of each step of a round. ``groups`` has the op and the number of ranks of each collective that
is simulated on some of its ranks only.

``--save`` writes such a file, ``simdev check`` checks it (the claims of a SavedRun have the names
of ``Claim`` in ``execution/check/claims.py``); report, compare and calibrate read it. Columns
follow the nouns of ``nouns/taskgraph.py``; a new column needs its bounds in ``_RANGES``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Literal, NotRequired, TypeVar

import numpy as np
from typing_extensions import TypedDict, get_type_hints

from ..ground.errors import refuse
from ..ground.units import MAX_BYTES
from ..nouns.taskgraph import (
    BUFFER_KINDS,
    PERSISTENT,
    Buffers,
    Resource,
    Rows,
    TaskGraph,
    Tasks,
)
from ..nouns.trace import DeviceMemory, Trace
from .reading import PathLike, shown
from .shape import VERSION, Fields, Format
from .writing import write_text

T = TypeVar("T")


class _DevicesShape(TypedDict):
    name: list[str]
    capacity_bytes: list[int | None]


class _LinksShape(TypedDict):
    name: list[str]
    bandwidth: list[Any]


class _ResourcesShape(TypedDict):
    name: list[str]
    policy: list[Literal["fifo", "priority", "fixed"]]
    device: list[int]
    sequence: list[list[int]]


_INTS = partial(np.array, dtype=np.int64)
# By the type of a noun's column: its type in a file, its reader and its writer.
_COLUMNS: Mapping[str, tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "Ints": (list[int], _INTS, np.ndarray.tolist),
    "Ints | None": (NotRequired[list[int]], _INTS, np.ndarray.tolist),
    "Rows": (list[list[int]], Rows.of, Rows.lists),
    "Sequence[str]": (list[str], tuple, list),
    "NDArray[np.bool_]": (list[bool], partial(np.array, dtype=np.bool_), np.ndarray.tolist),
}
_IN_FILE = {"requested": "requested_bytes"} | {n: f"{n}_ps" for n in ("duration", "lag", "gap")}
"""Columns whose name in a file has a unit that the noun's name lacks: noun's name, file's name."""


def _columns(noun: Any) -> Iterator[tuple[str, str, Any]]:
    """(name in the noun, name in a file, entry of _COLUMNS) of each column of a table."""
    for field in fields(noun):
        yield field.name, _IN_FILE.get(field.name, field.name), _COLUMNS[str(field.type)]


def _columns_of(noun: type) -> Callable[[T], T]:
    """Decorates a TypedDict: it gets ``id`` and the columns of a noun as keys beside its own."""
    make: Any = TypedDict

    def decorated(shape: Any) -> Any:
        keys = {in_file: column[0] for _, in_file, column in _columns(noun)}
        return make(shape.__name__, {"id": list[int]} | keys | get_type_hints(shape))

    return decorated


@_columns_of(Tasks)
class _TasksShape(TypedDict):
    pass


@_columns_of(Buffers)
class _BuffersShape(TypedDict):
    kind: list[str]


class _SpansShape(TypedDict):
    id: list[int]
    start_ps: list[int]
    finish_ps: list[int]


class _OverflowShape(TypedDict):
    time_ps: int
    task: str
    excess_bytes: int


class _MemoryShape(TypedDict):
    peak_bytes: int
    time_ps: list[int]
    level_bytes: list[int]
    overflow: _OverflowShape | None


class _GroupsShape(TypedDict):
    op: list[int]
    ranks: list[int]


class _RunShape(TypedDict):
    engine: str
    step_time_ps: NotRequired[int]
    steps: NotRequired[int]
    round: NotRequired[list[int]]
    groups: NotRequired[_GroupsShape]
    trace_ps: NotRequired[int]
    feasible: NotRequired[bool]
    devices: _DevicesShape
    links: _LinksShape
    resources: _ResourcesShape
    tasks: _TasksShape
    buffers: _BuffersShape
    spans: _SpansShape
    memory: NotRequired[dict[str, _MemoryShape]]


FORMAT = Format(_RunShape, "a run")
_BIG = 2**62
# Least and greatest number of a column; in place of the greatest a text names the table whose rows
# the numbers are. Spans may be negative: the checker finds tasks that start before the step.
_RANGES: Mapping[str, tuple[int, int | str]] = {
    **{f"tasks.{name}": (0, _BIG) for name in ("duration_ps", "lag_ps", "gap_ps")},
    "tasks.op": (-1, "tasks"),
    "tasks.output": (-1, _BIG),
    "tasks.source": (0, "devices"),
    "tasks.destination": (0, "devices"),
    "tasks.bytes": (0, MAX_BYTES),
    "tasks.load": (0, MAX_BYTES),
    "tasks.priority": (-_BIG, _BIG),
    "tasks.resources": (0, "resources"),
    "tasks.links": (0, "links"),
    "tasks.successors": (0, "tasks"),
    "resources.device": (-1, "devices"),
    "resources.sequence": (0, "tasks"),
    "groups.op": (0, "tasks"),
    "groups.ranks": (2, _BIG),
    "buffers.device": (0, "devices"),
    "buffers.bytes": (0, MAX_BYTES),
    "buffers.requested_bytes": (0, MAX_BYTES),
    "buffers.filler": (PERSISTENT, "tasks"),
    "buffers.readers": (0, "tasks"),
    "spans.start_ps": (-_BIG, _BIG),
    "spans.finish_ps": (-_BIG, _BIG),
    "devices.capacity_bytes": (0, MAX_BYTES),
}


class Claims(TypedDict):
    """The figures that a file claims, named as the fields of the checker's ``Claim``. None, or a
    missing field, claims nothing.
    """

    trace_ps: int | None
    feasible: bool | None
    peaks: NotRequired[dict[str, int]]
    levels: NotRequired[dict[str, list[tuple[int, int]]]]
    overflows: NotRequired[dict[str, tuple[int, str, int] | None]]


@dataclass(frozen=True, slots=True)
class SavedRun:
    """A run read from a file, and its claims."""

    trace: Trace
    claims: Claims

    @property
    def task_graph(self) -> TaskGraph:
        """The task graph that was executed."""
        return self.trace.task_graph


def read_run(source: PathLike | Mapping[str, Any]) -> SavedRun:
    """The run of a file, or of an object already parsed.

    Raises InputError with every problem at once.
    """
    with FORMAT.opened(source) as run:
        refuse([*_table_problems(run), *_range_problems(run), *_value_problems(run)])
        return SavedRun(_trace(run), _claims(run))


def _table_problems(run: Fields) -> Iterator[str]:
    """Problems of tables: columns of different lengths, ids that do not count up, bad names."""
    tasks = len(run["tasks"]["id"])
    for table in ("devices", "links", "resources", "tasks", "buffers", "spans", "groups"):
        columns = run.get(table, {"op": []})
        rows = tasks if table == "spans" else len(next(iter(columns.values())))
        for name, column in columns.items():
            if len(column) != rows:
                yield f"{table}.{name}: must hold {rows} entries, got {len(column)}"
        for i, name in enumerate(columns.get("name", ())):
            if not name or not name.isprintable():
                yield f"{table}.name[{i}]: must be printable text, got {shown(name)}"
    if len(set(run["devices"]["name"])) < len(run["devices"]["name"]):
        yield "devices.name: a name stands twice"
    for table in ("tasks", "buffers"):
        ids = run[table]["id"]
        if ids != list(range(len(ids))):
            yield f"{table}.id: must count 0, 1, 2, ..."
    if sorted(run["spans"]["id"]) != list(range(tasks)):
        yield "spans.id: must name every task once"


def _range_problems(run: Fields) -> Iterator[str]:
    """Problems of numbers out of range: rows that do not exist, sizes and times too large."""
    for path, (least, bound) in _RANGES.items():
        table, _, name = path.partition(".")
        most = len(run[bound]["name"]) - 1 if isinstance(bound, str) else bound
        reason = f"must be from {least} to {most}" if most >= least else "there is none to name"
        for i, entry in enumerate(run.get(table, {}).get(name, ())):
            # None is the capacity of a device without a limit; a list holds row numbers.
            numbers = entry if isinstance(entry, list) else [] if entry is None else [entry]
            for j, number in enumerate(numbers):
                if not least <= number <= most:
                    place = f"{path}[{i}]" + (f"[{j}]" if numbers is entry else "")
                    yield f"{place}: {reason}, got {shown(number)}"


def _value_problems(run: Fields) -> Iterator[str]:
    for i, kind in enumerate(run["buffers"]["kind"]):
        if kind not in BUFFER_KINDS:
            choice = ", ".join(BUFFER_KINDS)
            yield f"buffers.kind[{i}]: must be one of {choice}, got {shown(kind)}"
    for i, rate in enumerate(run["links"]["bandwidth"]):
        is_number = hasattr(rate, "__float__") and not isinstance(rate, bool)
        if not is_number or not 0 < float(rate) <= MAX_BYTES:
            yield (
                f"links.bandwidth[{i}]: must be bytes per second, from 0 to 2^60, got {shown(rate)}"
            )


def _read(noun: type, table: Fields) -> Fields:
    """The columns of a noun, read from its table in a file."""
    columns = (column for column in _columns(noun) if column[1] in table)
    return {name: read(table[in_file]) for name, in_file, (_, read, _) in columns}


def _written(noun: Tasks | Buffers) -> Fields:
    """The table of a file that holds the columns of a noun."""
    columns = (column for column in _columns(noun) if getattr(noun, column[0]) is not None)
    table = {in_file: write(getattr(noun, name)) for name, in_file, (*_, write) in columns}
    return {"id": list(range(len(noun))), **table}


def _trace(run: Fields) -> Trace:
    spans, queues, buffers = run["spans"], run["resources"], run["buffers"]
    groups = run.get("groups", {"op": [], "ranks": []})
    columns = (queues[name] for name in ("name", "policy", "sequence", "device"))
    kinds = [BUFFER_KINDS.index(kind) for kind in buffers["kind"]]
    capacities = [-1 if size is None else size for size in run["devices"]["capacity_bytes"]]
    task_graph = TaskGraph(
        Tasks(**_read(Tasks, run["tasks"])),
        tuple(
            Resource(name, policy, tuple(sequence), device)
            for name, policy, sequence, device in zip(*columns, strict=True)
        ),
        Buffers(**_read(Buffers, buffers | {"kind": kinds})),
        tuple(run["devices"]["name"]),
        np.array(capacities, np.int64),
        tuple(run["links"]["name"]),
        np.array([float(rate) for rate in run["links"]["bandwidth"]], np.float64),
        steps=run.get("steps", 1),
        round=tuple(run.get("round", ())),
        groups=dict(zip(groups["op"], groups["ranks"], strict=True)),
    )
    start, finish = np.empty((2, len(spans["id"])), np.int64)
    start[spans["id"]], finish[spans["id"]] = spans["start_ps"], spans["finish_ps"]
    return Trace(task_graph, start, finish, run["engine"])


def _claims(run: Fields) -> Claims:
    end = run.get("trace_ps", run.get("step_time_ps"))
    claims: Claims = {"trace_ps": end, "feasible": run.get("feasible")}
    # A run without memory claims nothing about it, which the checker must not take for zero bytes.
    if "memory" in run:
        claims |= {"peaks": {}, "levels": {}, "overflows": {}}
        for device, claim in run["memory"].items():
            over, times = claim["overflow"], (claim["time_ps"], claim["level_bytes"])
            claims["peaks"][device] = claim["peak_bytes"]
            claims["levels"][device] = list(zip(*times, strict=False))
            claims["overflows"][device] = tuple(over.values()) if over else None
    return claims


def write_run(trace: Trace, path: PathLike) -> None:
    """Write a run; equal traces give equal bytes. Raises OSError where it cannot write."""
    task_graph = trace.task_graph
    # An unknown capacity is -1 in the column, and None in a file, where -1 would look like a size.
    capacities = [None if size < 0 else size for size in task_graph.capacity.tolist()]
    kinds = [BUFFER_KINDS[kind] for kind in task_graph.buffers.kind.tolist()]
    steps, end = task_graph.steps, trace.end_ps
    parts = {
        "version": VERSION,
        "engine": trace.engine,
        **({"step_time_ps": end} if steps == 1 else {"steps": steps, "trace_ps": end}),
        **({"round": list(task_graph.round)} if task_graph.round else {}),
        **({"groups": _groups(task_graph)} if task_graph.groups else {}),
        "feasible": trace.feasible,
        "devices": {"name": list(task_graph.devices), "capacity_bytes": capacities},
        "links": {"name": list(task_graph.links), "bandwidth": task_graph.bandwidth.tolist()},
        "resources": {
            name: [getattr(resource, name) for resource in task_graph.resources]
            for name in ("name", "policy", "device", "sequence")
        },
        "tasks": _written(task_graph.tasks),
        "buffers": _written(task_graph.buffers) | {"kind": kinds},
        "spans": {
            "id": list(range(len(trace.start))),
            "start_ps": trace.start.tolist(),
            "finish_ps": trace.finish.tolist(),
        },
        "memory": {memory.device: _memory_claim(memory) for memory in trace.memory},
    }
    # One part a line, so that two runs can be compared line by line.
    lines = ",\n".join(
        f"{json.dumps(key)}: {json.dumps(part, ensure_ascii=False)}" for key, part in parts.items()
    )
    write_text(path, f"{{{lines}}}\n")


def _groups(task_graph: TaskGraph) -> Fields:
    return {"op": list(task_graph.groups), "ranks": list(task_graph.groups.values())}


def _memory_claim(memory: DeviceMemory) -> Fields:
    over = memory.overflow
    return {
        "peak_bytes": memory.peak,
        "time_ps": memory.time.tolist(),
        "level_bytes": memory.level.tolist(),
        "overflow": over
        and {"time_ps": over.time_ps, "task": over.task, "excess_bytes": over.excess},
    }
