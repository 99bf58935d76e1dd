"""Saved runs: a task graph with the spans and the memory that an engine answered, complete enough
to be judged.

Tables are objects of columns of one length; a task, resource, buffer or device is named by its row.
``spans`` may list the tasks in any order. ``step_time_ps``, ``feasible`` and ``memory`` are claims:
reading does not believe them, it hands them to the checker. What the checker is there to find (a
span too short, a claim too low) is no error here; what makes no sense (a row that is not there, a
negative duration) is. A run of several ``steps`` that follow one another claims when the last of
them ends, ``trace_ps``, in place of ``step_time_ps``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NotRequired

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, with_config
from typing_extensions import TypedDict

from ..errors import InputError
from ..taskgraph import BUFFER_KINDS, PERSISTENT, Buffers, Ints, Resource, Rows, TaskGraph, Tasks
from ..trace import Trace
from ..units import MAX_BYTES
from .paths import shown
from .reading import PathLike
from .shape import STRICT, VERSION, read_shape
from .source import opened
from .writing import write_text


@with_config(STRICT)
class _DevicesShape(TypedDict):
    name: list[str]
    capacity_bytes: list[int | None]


@with_config(STRICT)
class _LinksShape(TypedDict):
    name: list[str]
    bandwidth: list[Any]


@with_config(STRICT)
class _ResourcesShape(TypedDict):
    name: list[str]
    policy: list[Literal["fifo", "priority", "fixed"]]
    device: list[int]
    sequence: list[list[int]]


@with_config(STRICT)
class _TasksShape(TypedDict):
    id: list[int]
    name: list[str]
    kind: list[str]
    op: list[int]
    output: list[int]
    source: list[int]
    destination: list[int]
    duration_ps: list[int]
    lag_ps: list[int]
    gap_ps: list[int]
    priority: list[int]
    bytes: list[int]
    flow: list[bool]
    resources: list[list[int]]
    links: list[list[int]]
    successors: list[list[int]]


@with_config(STRICT)
class _BuffersShape(TypedDict):
    id: list[int]
    name: list[str]
    device: list[int]
    bytes: list[int]
    kind: list[str]
    filler: list[int]
    readers: list[list[int]]
    requested_bytes: NotRequired[list[int]]


@with_config(STRICT)
class _SpansShape(TypedDict):
    id: list[int]
    start_ps: list[int]
    finish_ps: list[int]


@with_config(STRICT)
class _OverflowShape(TypedDict):
    time_ps: int
    task: str
    excess_bytes: int


@with_config(STRICT)
class _MemoryShape(TypedDict):
    peak_bytes: int
    time_ps: list[int]
    level_bytes: list[int]
    overflow: _OverflowShape | None


@with_config(STRICT)
class _RunShape(TypedDict):
    engine: str
    step_time_ps: NotRequired[int]
    steps: NotRequired[int]
    trace_ps: NotRequired[int]
    feasible: NotRequired[bool]
    devices: _DevicesShape
    links: _LinksShape
    resources: _ResourcesShape
    tasks: _TasksShape
    buffers: _BuffersShape
    spans: _SpansShape
    memory: NotRequired[dict[str, _MemoryShape]]


_SHAPES = (
    _RunShape,
    _DevicesShape,
    _LinksShape,
    _ResourcesShape,
    _TasksShape,
    _BuffersShape,
    _SpansShape,
    _MemoryShape,
)
_KEYS = frozenset({"version"}.union(*(shape.__annotations__ for shape in _SHAPES)))


@cache
def _adapter() -> TypeAdapter[Any]:
    return TypeAdapter(_RunShape)


@dataclass(frozen=True, slots=True)
class SavedRun:
    """A run as a file tells it, and what it claims: None where the file says nothing.

    ``trace_ps`` is the end in ps; ``peaks`` are bytes by device; ``levels`` the (ps, bytes) at
    which memory changes; ``overflows`` the first (ps, task, bytes over the capacity), None where it
    fits.
    """

    trace: Trace
    trace_ps: int | None
    feasible: bool | None
    peaks: Mapping[str, int] | None
    levels: Mapping[str, list[tuple[int, int]]] | None
    overflows: Mapping[str, tuple[int, str, int] | None] | None

    @property
    def task_graph(self) -> TaskGraph:
        """What was executed."""
        return self.trace.task_graph


def read_run(source: PathLike | Mapping[str, Any]) -> SavedRun:
    """The run of a file, or of an object already parsed.

    Raises InputError with every problem at once.
    """
    with opened(source) as (value, is_file):
        shaped = read_shape(_adapter(), value, _KEYS, is_file, "a run")
        problems: list[str] = []
        _check_tables(shaped, problems)
        _check_rows(shaped, problems)
        if problems:
            raise InputError(problems)
        trace = _trace(shaped)
        return _with_claims(trace, shaped)


def _check_tables(run: dict[str, Any], problems: list[str]) -> None:
    """Columns of one length, ids that count, names that are names."""
    for table in ("devices", "links", "resources", "tasks", "buffers", "spans"):
        columns = run[table]
        lengths = {name: len(column) for name, column in columns.items()}
        wanted = len(run["tasks"]["id"]) if table == "spans" else next(iter(lengths.values()))
        for name, length in lengths.items():
            if length != wanted:
                problems.append(f"{table}.{name}: must hold {wanted} entries, got {length}")
        for i, name in enumerate(columns.get("name", ())):
            if not name or not name.isprintable():
                problems.append(f"{table}.name[{i}]: must be printable text, got {shown(name)}")
    if len(set(run["devices"]["name"])) < len(run["devices"]["name"]):
        problems.append("devices.name: a name stands twice")
    for table in ("tasks", "buffers"):
        ids = run[table]["id"]
        if ids != list(range(len(ids))):
            problems.append(f"{table}.id: must count 0, 1, 2, ...")
    if sorted(run["spans"]["id"]) != list(range(len(run["tasks"]["id"]))):
        problems.append("spans.id: must name every task once")


def _check_rows(run: dict[str, Any], problems: list[str]) -> None:
    """Every number is in its range: rows that exist, sizes and times that fit."""
    counts = {name: len(run[name]["name"]) for name in ("devices", "links", "resources", "tasks")}
    big = 2**62
    ranges: list[tuple[str, str, int, int]] = [
        *(("tasks", name, 0, big) for name in ("duration_ps", "lag_ps", "gap_ps")),
        ("tasks", "op", -1, counts["tasks"] - 1),
        ("tasks", "output", -1, big),
        *(("tasks", name, 0, counts["devices"] - 1) for name in ("source", "destination")),
        ("tasks", "bytes", 0, MAX_BYTES),
        ("tasks", "priority", -big, big),
        *(("tasks", name, 0, counts[name] - 1) for name in ("resources", "links")),
        ("tasks", "successors", 0, counts["tasks"] - 1),
        ("resources", "device", -1, counts["devices"] - 1),
        ("resources", "sequence", 0, counts["tasks"] - 1),
        ("buffers", "device", 0, counts["devices"] - 1),
        ("buffers", "bytes", 0, MAX_BYTES),
        *(
            [("buffers", "requested_bytes", 0, MAX_BYTES)]
            if "requested_bytes" in run["buffers"]
            else []
        ),
        ("buffers", "filler", PERSISTENT, counts["tasks"] - 1),
        ("buffers", "readers", 0, counts["tasks"] - 1),
        *(("spans", name, -big, big) for name in ("start_ps", "finish_ps")),
    ]
    for table, name, least, most in ranges:
        _check_range(f"{table}.{name}", run[table][name], least, most, problems)
    capacities = [0 if size is None else size for size in run["devices"]["capacity_bytes"]]
    _check_range("devices.capacity_bytes", capacities, 0, MAX_BYTES, problems)
    for i, kind in enumerate(run["buffers"]["kind"]):
        if kind not in BUFFER_KINDS:
            problems.append(
                f"buffers.kind[{i}]: must be one of {', '.join(BUFFER_KINDS)}, got {shown(kind)}"
            )
    for i, rate in enumerate(run["links"]["bandwidth"]):
        if (
            isinstance(rate, (bool, str))
            or not hasattr(rate, "__float__")
            or not 0 < float(rate) <= MAX_BYTES
        ):
            problems.append(
                f"links.bandwidth[{i}]: must be bytes per second, from 0 to 2^60, got {shown(rate)}"
            )


def _check_range(path: str, column: list[Any], least: int, most: int, problems: list[str]) -> None:
    for i, entry in enumerate(column):
        numbers = enumerate(entry) if isinstance(entry, list) else ((-1, entry),)
        for j, number in numbers:
            if not least <= number <= most:
                place = f"{path}[{i}]" + (f"[{j}]" if j >= 0 else "")
                reason = (
                    f"must be from {least} to {most}" if most >= least else "there is none to name"
                )
                problems.append(f"{place}: {reason}, got {shown(number)}")


def _ints(column: list[int]) -> Ints:
    return np.array(column, np.int64)


def _trace(run: dict[str, Any]) -> Trace:
    spans = run["spans"]
    tasks, queues = _tasks(run["tasks"]), run["resources"]
    columns = (queues[name] for name in ("name", "policy", "sequence", "device"))
    task_graph = TaskGraph(
        tasks,
        tuple(
            Resource(name, policy, tuple(tasks), device)
            for name, policy, tasks, device in zip(*columns, strict=True)
        ),
        _buffers(run["buffers"]),
        tuple(run["devices"]["name"]),
        _ints([-1 if size is None else size for size in run["devices"]["capacity_bytes"]]),
        tuple(run["links"]["name"]),
        np.array([float(rate) for rate in run["links"]["bandwidth"]], np.float64),
        steps=run.get("steps", 1),
    )
    start, finish = np.empty(len(tasks), np.int64), np.empty(len(tasks), np.int64)
    start[spans["id"]], finish[spans["id"]] = spans["start_ps"], spans["finish_ps"]
    return Trace(task_graph, start, finish, run["engine"])


def _tasks(columns: dict[str, Any]) -> Tasks:
    numbers: dict[str, Any] = {
        name: _ints(columns[name])
        for name in ("op", "output", "source", "destination", "priority", "bytes")
    }
    numbers |= {name: _ints(columns[f"{name}_ps"]) for name in ("duration", "lag", "gap")}
    numbers |= {name: Rows.of(columns[name]) for name in ("resources", "links", "successors")}
    flow: NDArray[np.bool_] = np.array(columns["flow"], np.bool_)
    return Tasks(name=tuple(columns["name"]), kind=tuple(columns["kind"]), flow=flow, **numbers)


def _buffers(columns: dict[str, Any]) -> Buffers:
    return Buffers(
        name=tuple(columns["name"]),
        device=_ints(columns["device"]),
        bytes=_ints(columns["bytes"]),
        kind=_ints([BUFFER_KINDS.index(kind) for kind in columns["kind"]]),
        filler=_ints(columns["filler"]),
        readers=Rows.of(columns["readers"]),
        requested=_ints(columns["requested_bytes"]) if "requested_bytes" in columns else None,
    )


def _with_claims(trace: Trace, run: dict[str, Any]) -> SavedRun:
    memory: dict[str, dict[str, Any]] | None = run.get("memory")
    end, feasible = run.get("trace_ps", run.get("step_time_ps")), run.get("feasible")
    if memory is None:
        return SavedRun(trace, end, feasible, None, None, None)
    levels = {
        name: list(zip(one["time_ps"], one["level_bytes"], strict=False))
        for name, one in memory.items()
    }
    overflows = {
        name: tuple(one["overflow"].values()) if one["overflow"] else None
        for name, one in memory.items()
    }
    return SavedRun(
        trace,
        end,
        feasible,
        {name: one["peak_bytes"] for name, one in memory.items()},
        levels,
        overflows,
    )


def write_run(trace: Trace, path: PathLike) -> None:
    """Write a run; same trace, same bytes. Raises OSError where it cannot write."""
    task_graph = trace.task_graph
    capacities = [None if size < 0 else size for size in task_graph.capacity.tolist()]
    spans = {
        "id": list(range(len(trace.start))),
        "start_ps": trace.start.tolist(),
        "finish_ps": trace.finish.tolist(),
    }
    steps = task_graph.steps
    length = (
        {"step_time_ps": trace.end_ps} if steps == 1 else {"steps": steps, "trace_ps": trace.end_ps}
    )
    found = {
        "version": VERSION,
        "engine": trace.engine,
        **length,
        "feasible": trace.feasible,
        "devices": {"name": list(task_graph.devices), "capacity_bytes": capacities},
        "links": {"name": list(task_graph.links), "bandwidth": task_graph.bandwidth.tolist()},
        "resources": _resource_columns(task_graph.resources),
        "tasks": _task_columns(task_graph.tasks),
        "buffers": _buffer_columns(task_graph.buffers),
        "spans": spans,
        "memory": _memory_claims(trace),
    }
    lines = ",\n".join(
        f"{json.dumps(key)}: {json.dumps(part, ensure_ascii=False)}" for key, part in found.items()
    )
    write_text(path, f"{{{lines}}}\n")


def _resource_columns(resources: tuple[Resource, ...]) -> dict[str, Any]:
    columns: dict[str, Any] = {
        name: [getattr(one, name) for one in resources] for name in ("name", "policy", "device")
    }
    return columns | {"sequence": [list(one.sequence) for one in resources]}


def _task_columns(tasks: Tasks) -> dict[str, Any]:
    columns = {
        name: getattr(tasks, name).tolist() for name in ("op", "output", "source", "destination")
    }
    columns |= {f"{name}_ps": getattr(tasks, name).tolist() for name in ("duration", "lag", "gap")}
    columns |= {name: getattr(tasks, name).tolist() for name in ("priority", "bytes", "flow")}
    columns |= {name: getattr(tasks, name).lists() for name in ("resources", "links", "successors")}
    return {
        "id": list(range(len(tasks))),
        "name": list(tasks.name),
        "kind": list(tasks.kind),
    } | columns


def _buffer_columns(buffers: Buffers) -> dict[str, Any]:
    columns = {name: getattr(buffers, name).tolist() for name in ("device", "bytes", "filler")}
    kinds = [BUFFER_KINDS[kind] for kind in buffers.kind.tolist()]
    head = {"id": list(range(len(buffers))), "name": list(buffers.name), "kind": kinds}
    asked = {} if buffers.requested is None else {"requested_bytes": buffers.requested.tolist()}
    return head | columns | {"readers": buffers.readers.lists()} | asked


def _memory_claims(trace: Trace) -> dict[str, Any]:
    found = {}
    for memory in trace.memory:
        over = memory.overflow
        found[memory.device] = {
            "peak_bytes": memory.peak,
            "time_ps": memory.time.tolist(),
            "level_bytes": memory.level.tolist(),
            "overflow": over
            and {"time_ps": over.time_ps, "task": over.task, "excess_bytes": over.excess},
        }
    return found
