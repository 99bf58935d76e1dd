"""The compiled path of placements: a problem, work space for each thread, the calls of kernels, and
the peaks of memory from the buffers of a recorded run.

``Oracle.evaluator`` calls ``evaluator_of``, ``PlacementSession`` calls ``moves`` of the evaluator.
Lifetimes of buffers (rule 7) follow ``lowering.build``: a new kind of buffer there must be added
here and in ``splits/evaluator.py``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np

from ...ground.jit import Table, bare, jit, jitable
from ...lowering import Prepared
from ...nouns.taskgraph import Ints
from ..cluster import Hosts, Threads, hosts_for, threads_of
from ..cost import EXCEEDING, NEVER, TOO_LONG, WORSE, Cost, limits_of
from ..heap import NONE
from ..peaks import Events, add_peaks, buffer, clear, events_for, open_events
from .judging import PROVEN, always_fits, bounds_for, fill_tails, totals_for
from .moves import Moves
from .problem import (
    PER_CONSUMER,
    PlacementProblem,
    Record,
    Sizes,
    in_file_order,
    open_problem,
    open_record,
    open_sizes,
    placement_problem,
    record_for,
    sizes_of,
    work_for,
)
from .step import evaluate, evaluate_each, evaluate_watched

# Exact peaks of memory of a placement: the buffers that lowering would make, from a recorded run.


@jitable
def tensor_buffers(
    p: PlacementProblem, r: Record, z: Sizes, v: Events, placement: Ints, op: int, tensor: int
) -> None:
    """Add the buffer of a tensor at its producer, and those of its copies; the row of a copy is
    that of its first read.
    """
    end = v.end
    source, freed, count = placement[op], r.finish[op], 0
    row, copies = p.ops + tensor, p.ops + p.tensors
    for e in range(p.consumer_ptr[tensor], p.consumer_ptr[tensor + 1]):
        consumer = p.consumer[e]
        device, finish = placement[consumer], r.finish[consumer]
        if device == source:
            freed = max(freed, finish)
            continue
        freed = max(freed, r.received[e])
        if p.mode == PER_CONSUMER:
            buffer(v, copies + e, device, z.sent[tensor], r.sent[e], finish)
        elif end[device] == NONE:
            v.reads[count], count = e, count + 1
            end[device] = finish
        else:
            end[device] = max(end[device], finish)
    if z.holder[tensor] != NONE:
        freed = max(freed, r.finish[z.holder[tensor]])
    group = z.group[tensor]
    if group != NONE:
        freed = max(freed, v.until[group])
        v.until[group] = freed if z.held[tensor] == 0 else NONE
    buffer(v, row, source, z.held[tensor], r.start[op], freed)
    for k in range(count):
        e = v.reads[k]
        device = placement[p.consumer[e]]
        buffer(v, copies + e, device, z.sent[tensor], r.sent[e], end[device])
        end[device] = NONE


@jit
def fill_peaks(
    problem: Ints,
    sizes: Ints,
    record: Ints,
    events: Ints,
    devices: Ints,
    peaks: Ints,
    step_ps: int,
) -> int:
    """Write the peak bytes of every device to ``peaks``, for a placement whose run was recorded and
    took ``step_ps``; returns ``step_ps``, or TOO_LONG.
    """
    p, z, r, v = open_problem(problem), open_sizes(sizes), open_record(record), open_events(events)
    placement, peak = bare(devices), bare(peaks)
    if not clear(v, p.devices, step_ps):
        return TOO_LONG
    for device in range(p.devices):
        peak[device] = z.reserved[device]
    for op in range(p.ops):
        peak[placement[op]] += z.persistent[op]
        buffer(v, op, placement[op], z.running[op], r.start[op], r.finish[op])
        for tensor in range(p.tensor_ptr[op], p.tensor_ptr[op + 1]):
            tensor_buffers(p, r, z, v, placement, op, tensor)
    add_peaks(v, p.devices, peak)
    return step_ps


BYTE = 256  # devices that a byte can number
# The number of evaluations to record after one whose peaks were read: a record makes an evaluation
# a tenth longer, but peaks without a record take another evaluation.
SOON = 8
AT_ONCE = 16  # placements in one call of a kernel
NO = 0  # the argument in place of a table that an evaluation does not need


class _Room:
    """Work space for the evaluations of one thread, and the tables that kernels take: a problem,
    work and hosts, then totals, bounds and a record (or NO).
    """

    def __init__(self, evaluator: PlacementEvaluator) -> None:
        problem, sizes = evaluator.problem.columns, evaluator.sizes.columns
        devices, tensors = problem.devices, problem.tensors
        buffers = problem.ops + tensors + len(problem.consumer)
        self.work, self.record = Table.of(work_for(problem)), Table.of(record_for(problem))
        self.bounds, self.tails_known = Table.of(bounds_for(problem)), False
        self.totals = Table.of(totals_for(problem, sizes, evaluator.limits))
        self.events = Table.of(events_for(buffers, devices, devices, tensors))
        self.peaks = np.zeros(devices, np.int64)
        # The number of coming evaluations to record, and the placement whose run the record holds.
        self.soon = 0
        self.latest: Ints | None = None
        self.hosts = evaluator.hosts()  # words do not keep their columns alive
        hosts = NO if self.hosts is None else self.hosts.words
        begin = evaluator.problem.words, self.work.words, hosts
        self.judged = *begin, self.totals.words
        self.step = *begin, NO
        self.limited = *self.judged, self.bounds.words, NO
        self.recorded = *self.judged, NO, self.record.words


class _Rooms(threading.local):
    """A ``room`` for each thread, made at its first use."""

    def __init__(self, evaluator: PlacementEvaluator) -> None:
        self.room = _Room(evaluator)


class PlacementEvaluator:
    """Evaluates placements (valid or not) of a problem; several threads may call it.

    A result of None means that lowering must answer: the step is too long for the kernels, or the
    placement is invalid, and lowering reports why. ``in_full`` is the cost of a placement by
    lowering; ``threads`` are those of the hosts, or of ``program`` order.
    """

    def __init__(
        self,
        prepared: Prepared,
        problem: PlacementProblem,
        in_full: Callable[[Ints], Cost],
        threads: Threads | None = None,
        program: bool = False,
    ) -> None:
        self.graph, self.limits = prepared.graph, limits_of(prepared.cluster)
        self.problem, self.sizes = Table.of(problem), Table.of(sizes_of(prepared))
        self._in_full, self._evaluate = in_full, cast(Callable[..., int], evaluate)
        self._watched = cast(Callable[..., int], evaluate_watched)
        size = problem.ops, problem.ops  # an op has one dispatch
        self._hosts = partial(hosts_for, prepared, threads, program, *size) if threads else None
        self._rooms = _Rooms(self)
        self._always_fits = always_fits(problem, self._rooms.room.totals.columns)
        self._kept: Any = np.dtype(np.uint8 if problem.devices <= BYTE else np.int64)

    def hosts(self) -> Table[Hosts] | None:
        """The hosts of the cluster, with room for an evaluation; None where it has no hosts."""
        return None if self._hosts is None else Table.of(self._hosts())

    def step_ps(self, placement: Ints) -> int | None:
        """The step time in ps."""
        step_ps = self._evaluate(*self._rooms.room.step, placement)
        return step_ps if step_ps >= 0 else None

    def cost(self, placement: Ints, limit_ps: int = NEVER) -> Cost | None:
        """Step time and memory; EXCEEDING where the step is longer than ``limit_ps``.

        Buffers are computed only where totals do not prove that the placement fits, or when the
        peaks are read.
        """
        room = self._rooms.room
        recorded = room.soon > 0
        step_ps = self._run(room, placement, limit_ps)
        if step_ps < 0:
            return EXCEEDING if step_ps == WORSE else None
        kept = placement.astype(self._kept)
        if recorded:
            room.latest = kept
        if self._always_fits or room.totals.columns.cell[PROVEN]:
            return Cost.fitting(step_ps, partial(self._peaks, kept, step_ps))
        return Cost.of(step_ps, self._peaks(kept, step_ps), self.limits)

    def costs(self, placements: list[Ints]) -> list[Cost | None]:
        """``cost`` of each placement, in few calls of a kernel, so that other threads can run."""
        room, costs = self._rooms.room, list[Cost | None]()
        for at in range(0, len(placements), AT_ONCE):
            rows = np.stack(placements[at : at + AT_ONCE])
            row, steps, proven = np.empty((3, max(rows.shape)), np.int64)
            steps, proven = steps[: len(rows)], proven[: len(rows)]
            evaluate_each(*room.judged, rows.ravel(), row, steps, proven)  # type: ignore[arg-type]
            kept = rows.astype(self._kept)
            answers = zip(placements[at:], steps.tolist(), proven.tolist(), kept, strict=False)
            for placement, step_ps, fits, of_row in answers:
                if step_ps >= 0 and (fits or self._always_fits):
                    peaks_of = partial(self._peaks, of_row.copy(), step_ps)
                    costs.append(Cost.fitting(step_ps, peaks_of))
                else:
                    costs.append(self.cost(placement))
        return costs

    def _run(self, room: _Room, placement: Ints, limit_ps: int) -> int:
        """The step time in ps, or a negative code (see cost.py). The run is recorded while
        ``room.soon`` is positive; else it stops at the limit.
        """
        if room.soon > 0:
            room.soon, room.latest = room.soon - 1, None
            return self._watched(*room.recorded, placement, NEVER)
        if limit_ps == NEVER:
            return self._evaluate(*(room.step if self._always_fits else room.judged), placement)
        if not room.tails_known:
            fill_tails(self.problem.columns, self.graph, room.bounds.columns.tail)
            room.tails_known = True
        return self._watched(*room.limited, placement, limit_ps)

    def _peaks(self, kept: Ints, step_ps: int) -> tuple[int, ...]:
        """The peaks of a placement whose step takes ``step_ps``; ``kept`` is the array of
        ``cost``.
        """
        room, placement = self._rooms.room, kept.astype(np.int64)
        room.soon = SOON
        if room.latest is not kept:
            self._watched(*room.recorded, placement, NEVER)
            room.latest = kept
        words = self.problem.words, self.sizes.words, room.record.words, room.events.words
        if fill_peaks(*words, placement, room.peaks, step_ps) < 0:
            return self._in_full(placement).peaks
        return tuple(room.peaks.tolist())

    def cost_with_starts(self, placement: Ints) -> tuple[Cost, Ints] | None:
        """``cost``, and the start of every op in ps."""
        room = self._rooms.room
        room.soon = max(room.soon, 1)
        cost = self.cost(placement)
        return None if cost is None else (cost, room.record.columns.start.copy())

    def starts(self, placement: Ints) -> tuple[Ints, Ints] | None:
        """Start and finish of every op in ps."""
        room = self._rooms.room
        room.latest = None
        if self._watched(*room.recorded, placement, NEVER) < 0:
            return None
        return room.record.columns.start.copy(), room.record.columns.finish.copy()

    def moves(self) -> Moves | None:
        """The re-simulation of moves, not for several threads; None where ops run in program order,
        for a moved op shifts all later ops of its device there.
        """
        return Moves(self.problem) if self._hosts is None else None


def evaluator_of(
    prepared: Prepared, policy: str, in_full: Callable[[Ints], Cost]
) -> PlacementEvaluator | None:
    """The evaluator of placements under an order's policy; None where the kernels do not cover it.
    ``in_full`` is the cost by lowering, for peaks that the kernels cannot compute.
    """
    program = policy == "program"
    threads = threads_of(prepared, program)
    if policy not in ("fifo", "program") or (threads is not None and not in_file_order(prepared)):
        return None
    problem = placement_problem(prepared, threads)
    if problem is None:
        return None
    return PlacementEvaluator(prepared, problem, in_full, threads, program)
