"""Whether the figures that a trace reports (the step time, and the memory of every device) follow
from the start and finish of its tasks.

Memory is replayed event by event: at each instant frees come first, then allocations in the order
of the tasks that fill the buffers. ``nouns.trace`` implements this rule in columns;
``files/run.py`` makes the claims of saved runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest
from operator import itemgetter

from ...nouns.taskgraph import PERSISTENT, Ints, TaskGraph
from ...nouns.trace import Trace
from .violation import Faults, Violation

Timeline = Sequence[tuple[int, int]]  # (ps, bytes from then on)


@dataclass(frozen=True, slots=True)
class Claim:
    """The figures that a result claims; None where it claims nothing.

    ``trace_ps`` is the last finish or release in ps. By device: ``peaks`` are bytes, ``levels`` the
    changes of memory as (ps, bytes), ``overflows`` the first overflow as (ps, task, bytes over the
    capacity), None where the device's memory suffices.
    """

    trace_ps: int | None = None
    peaks: Mapping[str, int] | None = None
    levels: Mapping[str, Timeline] | None = None
    overflows: Mapping[str, tuple[int, str, int] | None] | None = None
    feasible: bool | None = None

    @classmethod
    def of(cls, trace: Trace) -> Claim:
        """Everything that the trace reports."""
        peaks, levels, overflows = {}, {}, {}
        for memory in trace.memory:
            name, over = memory.device, memory.overflow
            peaks[name] = memory.peak
            levels[name] = list(zip(memory.time.tolist(), memory.level.tolist(), strict=True))
            overflows[name] = None if over is None else (over.time_ps, over.task, over.excess)
        return cls(trace.end_ps, peaks, levels, overflows, trace.feasible)


@dataclass(frozen=True, slots=True)
class _Replay:
    """The memory of one device: its level after each instant, the peak, and the first overflow."""

    timeline: Timeline
    peak: int
    overflow: tuple[int, str, int] | None


def claim_faults(task_graph: TaskGraph, start: Ints, finish: Ints, claim: Claim) -> Faults:
    """Rules ``step``, ``peak``, ``levels``, ``overflow`` and ``feasible``."""
    # Sums of Python integers: in a file, times may be as large as they please.
    release = map(sum, zip(finish.tolist(), task_graph.tasks.lag.tolist(), strict=True))
    end = max(release, default=0)
    if claim.trace_ps is not None and claim.trace_ps != end:
        text = f"the last release is said to be at {claim.trace_ps} ps; it is at {end}"
        yield Violation("step", (), text)
    events = memory_events(task_graph, start.tolist(), finish.tolist())
    capacities, feasible = task_graph.capacity.tolist(), True
    for device, changes, capacity in zip(task_graph.devices, events, capacities, strict=True):
        replay = _replay(task_graph, changes, capacity)
        feasible &= replay.overflow is None
        yield from _memory_faults(device, replay, claim)
    if claim.feasible is not None and claim.feasible != feasible:
        text = "to fit; it does not" if claim.feasible else "not to fit; it does"
        yield Violation("feasible", (), f"the step is said {text}")


def _memory_faults(device: str, replay: _Replay, claim: Claim) -> Faults:
    if claim.peaks is not None and (peak := claim.peaks.get(device, 0)) != replay.peak:
        text = f'"{device}" is said to peak at {peak} bytes; its buffers peak at {replay.peak}'
        yield Violation("peak", (device,), text)
    if claim.levels is not None:
        pairs = zip_longest(_steps(claim.levels.get(device, ())), _steps(replay.timeline))
        said, replayed = next((pair for pair in pairs if pair[0] != pair[1]), (None, None))
        if said != replayed:
            time, level = min(step for step in (said, replayed) if step)
            side = "said" if (time, level) == said else "replayed"
            text = (
                f'the memory of "{device}" differs from its replay first at {time}: {level} bytes '
                f"are only {side}"
            )
            yield Violation("levels", (device,), text)
    if claim.overflows is not None and (over := claim.overflows.get(device)) != replay.overflow:
        text = f'"{device}" is said to overflow first at {over}, in its replay at {replay.overflow}'
        yield Violation("overflow", (device,), text)


def _steps(timeline: Timeline) -> Iterator[tuple[int, int]]:
    """The (ps, bytes) at which the level changes, without repetitions of a level."""
    level = 0
    for time, now in timeline:
        if now != level:
            level = now
            yield int(time), int(now)


# (ps, 0 for a free or 1 for an allocation, the task that fills the buffer, buffer, change in bytes)
Event = tuple[int, int, int, int, int]


def memory_events(
    task_graph: TaskGraph, start: Sequence[int], finish: Sequence[int]
) -> list[list[Event]]:
    """The frees and allocations on each device, in order.

    Persistent buffers are allocated at 0 and never freed.
    """
    buffers = task_graph.buffers
    events: list[list[Event]] = [[] for _ in task_graph.devices]
    columns = (
        buffers.device.tolist(),
        buffers.bytes.tolist(),
        buffers.filler.tolist(),
        buffers.readers.lists(),
    )
    for buffer, (device, size, filler, readers) in enumerate(zip(*columns, strict=True)):
        if filler == PERSISTENT:
            events[device].append((0, 1, filler, buffer, size))
            continue
        begin, end = start[filler], max(finish[task] for task in (filler, *readers))
        if begin < end:
            events[device] += [(begin, 1, filler, buffer, size), (end, 0, filler, buffer, -size)]
    return list(map(sorted, events))


def _replay(task_graph: TaskGraph, events: list[Event], capacity: int) -> _Replay:
    level, peak = 0, 0
    timeline: list[tuple[int, int]] = []
    overflow: tuple[int, str, int] | None = None
    for time, group in groupby(events, itemgetter(0)):
        culprit: int | None = None
        for _, _, filler, _, change in group:
            level += change
            if culprit is None and 0 <= capacity < level:
                culprit = filler
        timeline.append((time, level))
        peak = max(peak, level)
        if overflow is None and culprit is not None:
            name = (
                "the persistent buffers"
                if culprit == PERSISTENT
                else task_graph.tasks.name[culprit]
            )
            overflow = time, name, level - capacity
    return _Replay(timeline, peak, overflow)
