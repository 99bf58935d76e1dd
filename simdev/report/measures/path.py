"""The critical path, with a cause (blame) for each picosecond of the step.

The path is the chain of binding constraints, walked back from the task whose finish + lag ends the
step. A task starts when its last predecessor releases it, or when another task releases one of its
queues (finish + gap = start). Each piece of time on the chain has one of these blames:

    compute   a device computed: the next task needed its result, or its device.
    transfer  the next task needed this transfer; held latency and a flow's slower rate count too.
    queueing  the next task is a transfer behind this one in a queue.
    launch    a host dispatched an op that the device could have begun, or only the gap after a
              task remained (launch overhead, link turnaround).
    latency   data were on the way to the next task and held no queue.

Every start has one of these causes. So the segments tile [0, step time] exactly; where
steps repeat they tile the window of whole periods. On a tie a dependency comes before a queue;
among predecessors the smallest id; among holders of a queue the last to finish, then the first to
start, then the smallest id.

The report, the chart (``figures/charts.py``) and the page show it. A new blame is a name
in BLAMES and a colour in ``figures/style.py``; sweeps have a column for each
(``results.MEANINGS``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from ...execution.period import ready_ps
from ...ground.units import PS_PER_SECOND
from ...nouns.taskgraph import Ints, TaskGraph
from ...nouns.trace import Trace
from ..table import BAR, COUNT, SHARE, TEXT, TIME, Json, Table
from .section import Places, Section, Step
from .spans import Window, computing_mask, transfer_mask

BLAMES = ("compute", "transfer", "queueing", "launch", "latency")
NOBODY = -1


class Segment(NamedTuple):
    """A piece of the critical path: [start_ps, finish_ps) blamed on ``blame`` (one of BLAMES).

    ``task`` is the id of the task that filled the piece, ``waiter`` the id of the task that waited
    behind it in a queue (NOBODY: the next task of the path depends on it). It is a tuple, because a
    path may hold as many segments as the trace has tasks.
    """

    blame: str
    task: int
    start_ps: int
    finish_ps: int
    waiter: int = NOBODY

    @property
    def duration_ps(self) -> int:
        """Its length in ps."""
        return self.finish_ps - self.start_ps

    def to_json(self, trace: Trace) -> Json:
        """One entry of ``critical_path``."""
        tasks, devices = trace.task_graph.tasks, trace.task_graph.devices
        entry: Json = {
            "task": tasks.name[self.task],
            "blame": self.blame,
            "start_s": self.start_ps / PS_PER_SECOND,
            "finish_s": self.finish_ps / PS_PER_SECOND,
            "start_ps": self.start_ps,
            "finish_ps": self.finish_ps,
            "device": devices[tasks.source[self.task]],
        }
        if self.waiter != NOBODY:
            entry["waiter"] = tasks.name[self.waiter]
        return entry


def _chain(trace: Trace, window: Window) -> list[tuple[int, int]]:
    """The tasks of the path, first to last, each with the task that waited behind it in a queue (or
    NOBODY).

    The last task is the first whose release ends the window; the first task runs when the window
    begins.
    """
    tasks = trace.task_graph.tasks
    if not len(tasks):
        return []
    release = trace.finish + tasks.lag
    ready = ready_ps(trace.task_graph, release)
    # Single elements are read below, which is faster from lists than from arrays.
    binding = _binding(trace.task_graph, release, ready).tolist()
    waited, start = (ready != trace.start).tolist(), trace.start.tolist()
    holders = _Holders(trace)
    path = [(int(np.argmax(release == window.end_ps)), NOBODY)]
    # tasks of no length that end at one instant must not be each other's cause
    on_path = {path[0][0]}
    # Backwards in time, from each start to its cause.
    while True:
        task = path[-1][0]
        if window.begin_ps and start[task] <= window.begin_ps:
            return path[::-1]
        # A dependency comes before a queue: a task that became ready at its start did not queue.
        if waited[task]:
            before, waiter = holders.until_start(task, on_path), task
        else:
            before, waiter = binding[task], NOBODY
        if before == NOBODY:
            return path[::-1]
        path.append((before, waiter))
        on_path.add(before)


def _binding(task_graph: TaskGraph, release: Ints, ready: Ints) -> Ints:
    """For each task the predecessor that released it last (the smallest id of several), NOBODY for
    roots.
    """
    successors, count = task_graph.tasks.successors, len(task_graph.tasks)
    before, after = successors.owners(), successors.ids
    last = release[before] == ready[after]
    binding = np.full(count, count, np.int64)
    np.minimum.at(binding, after[last], before[last])
    return np.where(binding == count, NOBODY, binding)


class _Holders:
    """The tasks that held each queue, by the instant at which they released it."""

    def __init__(self, trace: Trace) -> None:
        tasks = trace.task_graph.tasks
        # Single elements are read below, which is faster from lists than from arrays.
        self.start, self.finish = trace.start.tolist(), trace.finish.tolist()
        self.held, self.ends = tasks.resources.ids.tolist(), tasks.resources.ptr.tolist()
        holder, queue = tasks.resources.owners(), tasks.resources.ids
        until = (trace.finish + tasks.gap)[holder]
        order = np.lexsort((holder, trace.start[holder], -trace.finish[holder], until, queue))
        self.holder, self.until = holder[order].tolist(), until[order].tolist()
        self.ptr = np.searchsorted(
            queue[order], np.arange(len(trace.task_graph.resources) + 1)
        ).tolist()

    def until_start(self, task: int, excluded: set[int]) -> int:
        """The task that held one of the queues of ``task`` until it started."""
        start, finish = self.start, self.finish
        then, holders = start[task], list[int]()
        for queue in self.held[self.ends[task] : self.ends[task + 1]]:
            at, end = self.ptr[queue], self.ptr[queue + 1]
            at = bisect_left(self.until, then, at, end)
            while at < end and self.until[at] == then:
                if self.holder[at] not in excluded:
                    holders.append(self.holder[at])
                    break
                at += 1
        if len(holders) < 2:
            return holders[0] if holders else NOBODY
        return min(holders, key=lambda t: (-finish[t], start[t], t))


def critical_path(trace: Trace, window: Window | None = None) -> tuple[Segment, ...]:
    """The segments of the critical path of a valid trace, which tile the window (None: the whole
    trace).

    The window has to end with the finish or release of some task.
    """
    window = window or Window(0, trace.end_ps)
    moves, computes = transfer_mask(trace.task_graph), computing_mask(trace.task_graph)
    tasks, segments = trace.task_graph.tasks, list[Segment]()
    path = np.array(_chain(trace, window), np.int64).reshape(-1, 2)
    on_path, waits = path[:, 0], path[:, 1] != NOBODY
    start, finish = trace.start[on_path], trace.finish[on_path]
    end = finish + np.where(waits, tasks.gap[on_path], tasks.lag[on_path])
    borders = (np.maximum(time, window.begin_ps).tolist() for time in (start, finish, end))
    marks = (mask.tolist() for mask in (moves[on_path], computes[on_path]))
    for (task, waiter), begin, middle, last, is_move, is_compute in zip(
        path.tolist(), *borders, *marks, strict=True
    ):
        blame, after = "compute" if is_compute else "launch", "latency"
        if is_move:
            blame = "transfer" if waiter == NOBODY else "queueing"
        if waiter != NOBODY:
            after = "launch"
        if begin < middle:
            segments.append(Segment(blame, task, begin, middle, waiter))
        if middle < last:
            segments.append(Segment(after, task, middle, last, waiter))
    return tuple(segments)


@dataclass(frozen=True, slots=True)
class CriticalPath(Section):
    """The critical path of a step: ``segments`` tile the window, ``blame`` has the ps of one step
    for each of BLAMES, which add up to the step time.
    """

    name = "critical_path"
    places = Places(entries=51, tables=70)

    trace: Trace
    window: Window
    segments: tuple[Segment, ...]
    blame: Mapping[str, int]

    @classmethod
    def of_step(cls, step: Step) -> CriticalPath:
        """The path of any step."""
        segments, totals = critical_path(step.trace, step.window), dict.fromkeys(BLAMES, 0)
        for segment in segments:
            totals[segment.blame] += segment.duration_ps
        # Cumulative sums are divided by the steps, so that the rounded parts add up.
        sums = [step.window.a_step(ps) for ps in accumulate(totals.values(), initial=0)]
        shares = (after - before for before, after in pairwise(sums))
        blame = dict(zip(BLAMES, shares, strict=True))
        return cls(step.trace, step.window, segments, blame)

    @property
    def held(self) -> float:
        """The share of the step that launches hold (blame ``launch``)."""
        return self.blame["launch"] / (sum(self.blame.values()) or 1)

    def tables(self) -> Iterator[Table]:
        """The time of the step by blame, by place (tasks by their device, transfers by their ends),
        and the longest segments.
        """
        if not self.segments:
            return
        step = sum(self.blame.values()) or 1
        shares = tuple((name, ps, ps / step, ps / step) for name, ps in self.blame.items())
        columns = {"blame": TEXT, "time": TIME, "of step": SHARE, "": BAR}
        note = (
            "The chain of tasks that made the step as long as it is; the parts add up to the step."
        )
        yield Table("Critical path: what the step time is spent on", columns, shares, note)
        yield self._places()
        names = self.trace.task_graph.tasks.name
        longest = sorted(self.segments, key=lambda s: (-s.duration_ps, s.start_ps))
        rows = tuple(
            (
                segment.blame, names[segment.task],
                "" if segment.waiter == NOBODY else names[segment.waiter],
                segment.start_ps, segment.duration_ps, self.window.share(segment.duration_ps),
            )
            for segment in longest
        )  # fmt: skip
        title = f"Its longest segments, of {len(self.segments):,}"
        title += f" in {self.window.steps} steps" if self.window.steps > 1 else ""
        columns = {
            "blame": TEXT, "task": TEXT, "waiting behind it": TEXT,
            "from": TIME, "for": TIME, "of step": SHARE,
        }  # fmt: skip
        yield Table(title, columns, rows, shown=8)

    def _places(self) -> Table:
        """The time by place, a row each. There are many, so only the page shows them."""
        graph = self.trace.task_graph
        both = graph.tasks.source, graph.tasks.destination
        totals, counts = Counter[tuple[str, str, str]](), Counter[tuple[str, str, str]]()
        for segment in self.segments:
            ends = dict.fromkeys(graph.devices[end[segment.task]] for end in both)
            place = segment.blame, graph.tasks.kind[segment.task], " → ".join(ends)
            totals[place] += segment.duration_ps
            counts[place] += 1
        rows = tuple(
            (*place, counts[place], self.window.a_step(ps), self.window.share(ps))
            for place, ps in totals.most_common()
        )
        columns = {
            "blame": TEXT, "kind": TEXT, "where": TEXT, "segments": COUNT, "time": TIME,
            "of step": SHARE,
        }  # fmt: skip
        return Table("Critical path by place", columns, rows, shown=0)

    def entries(self) -> Json:
        """The step time by blame, and the segments."""
        return {
            "blame_s": {blame: ps / PS_PER_SECOND for blame, ps in self.blame.items()},
            "critical_path": [segment.to_json(self.trace) for segment in self.segments],
        }
