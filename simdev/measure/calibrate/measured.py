"""Measured traces: when the tasks of a step ran, by their names, from a saved run or from Chrome's
trace events.

A trace may hold several steps: the occurrences of a name are taken in the order of time, the k-th
belongs to step k.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...files import read_run
from ...files.reading import PathLike, label, read_json, shown
from ...ground.errors import InputError
from ...ground.units import MAX_PS
from ...nouns.taskgraph import Ints, TaskGraph

PS_PER_US = 10**6
LATEST = 10**24  # ps: clocks may count from 1970, or from an unknown start
MISSING = -1
Span = tuple[int, int]  # start and finish in ps


@dataclass(frozen=True, slots=True)
class Measured:
    """The spans of a trace by name, in ps; ``source`` is the name of its file."""

    spans: Mapping[str, tuple[Span, ...]]
    source: str = ""


@dataclass(frozen=True, eq=False)
class MeasuredSteps:
    """Start and finish of every task of a task graph in each measured step, in ps: arrays of
    [steps, tasks].

    A task that was not measured has MISSING as start and finish. ``strangers`` are names of the
    trace that are no task, ``absent`` tasks that the trace does not hold, ``uneven`` those that it
    holds more or less often than the others.
    """

    start: Ints
    finish: Ints
    strangers: tuple[str, ...]
    absent: tuple[str, ...]
    uneven: tuple[str, ...]

    @cached_property
    def known(self) -> NDArray[np.bool_]:
        """Whether each task was measured: [tasks]."""
        return np.asarray((self.finish != MISSING).all(axis=0), np.bool_)


def read_measured(path: PathLike) -> Measured:
    """A run that ``simdev simulate --save`` wrote, or Chrome trace events ("X": name, ts, dur in
    us).

    Raises InputError.
    """
    value = read_json(path)
    try:
        events = value if isinstance(value, list) else None
        if isinstance(value, dict):
            events = value.get("traceEvents")
        spans = _of_run(value) if events is None else _of_events(events)
    except InputError as error:
        raise error.within(label(path)) from None
    if not spans:
        raise InputError("holds no spans", label(path))
    return Measured(spans, label(path))


def _of_run(value: Any) -> dict[str, tuple[Span, ...]]:
    if not isinstance(value, dict) or "spans" not in value:
        raise InputError('is neither a saved run ("spans") nor a Chrome trace ("traceEvents")')
    trace = read_run(value).trace
    times = zip(trace.start.tolist(), trace.finish.tolist(), strict=True)
    return {name: (span,) for name, span in zip(trace.task_graph.tasks.name, times, strict=True)}


def _of_events(events: Any) -> dict[str, tuple[Span, ...]]:
    """A span that is drawn in several rows (a transfer, in the queue of each end) counts once."""
    if not isinstance(events, list):
        raise InputError(f"traceEvents: must be a list, got {shown(events)}")
    spans: defaultdict[str, set[Span]] = defaultdict(set)
    problems: list[str] = []
    for i, event in enumerate(events):
        if isinstance(event, dict) and event.get("ph", "X") == "X" and "dur" in event:
            try:
                spans[_name(event)].add(_span(event))
            except InputError as error:
                problems += [f"traceEvents[{i}].{problem}" for problem in error.problems]
    if problems:
        raise InputError(problems)
    return {name: tuple(sorted(times)) for name, times in spans.items()}


def _name(event: Mapping[str, Any]) -> str:
    name = event.get("name")
    if not isinstance(name, str):
        raise InputError(f"name: must be text, got {shown(name)}")
    return name


def _span(event: Mapping[str, Any]) -> Span:
    start, length = (_picoseconds(event, key) for key in ("ts", "dur"))
    if length < 0:
        raise InputError(f"dur: must not be negative, got {shown(event['dur'])}")
    return round(start), round(start + length)


def _picoseconds(event: Mapping[str, Any], key: str) -> Fraction:
    value = event.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        raise InputError(f"{key}: must be a number of microseconds, got {shown(value)}")
    time = Fraction(value) * PS_PER_US
    if abs(time) > LATEST:
        raise InputError(f"{key}: is out of range: {shown(value)}")
    return time


def matched(measured: Measured, task_graph: TaskGraph) -> MeasuredSteps:
    """The spans of the tasks of a task graph, step by step.

    Raises InputError where no name is that of a task.
    """
    names = task_graph.tasks.name
    present = [name for name in names if name in measured.spans]
    if not present:
        example = next(iter(measured.spans), "")
        raise InputError(
            (
                f'no span bears the name of a task: the trace has "{example}", the '
                f'scenario "{names[0] if names else ""}"'
            ),
            measured.source or None,
        )
    counts = Counter(len(measured.spans[name]) for name in present)
    # The number that most names have; of equal ones the larger.
    steps = max(counts, key=lambda count: (counts[count], count))
    # Chrome's clock may start anywhere: only differences are sure to fit.
    first = min(measured.spans[name][0][0] for name in present)
    if max(finish for name in present for _, finish in measured.spans[name]) - first > MAX_PS:
        raise InputError(
            "the spans of the tasks lie more than 53 days apart", measured.source or None
        )
    missing = [(MISSING, MISSING)] * steps
    rows = [
        [(start - first, finish - first) for start, finish in spans]
        if len(spans) == steps
        else missing
        for spans in (measured.spans.get(name, ()) for name in names)
    ]
    table, tasks = np.array(rows, np.int64), set(names)
    return MeasuredSteps(
        table[:, :, 0].T,
        table[:, :, 1].T,
        tuple(name for name in measured.spans if name not in tasks),
        tuple(name for name in names if name not in measured.spans),
        tuple(name for name in present if len(measured.spans[name]) != steps),
    )
