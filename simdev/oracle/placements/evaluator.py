"""The compiled path of placements: a problem, room for each thread, and the calls of kernels."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal

import numpy as np

from ...jit import Table
from ...lowering import Prepared, slows
from ...taskgraph import Ints, Rows
from ..cost import WORSE, Cost, limits_of
from ..peaks import events_for
from ..threads import Threads, threads_of
from .bounds import bounds_for, fill_tails, limit_instant
from .buffers import cost, cost_hosted, sizes_of
from .hosts import hosts_for
from .moves import Moves
from .problem import PlacementProblem, in_file_order, placement_problem, record_for, work_for
from .step import step, step_hosted, step_hosted_recorded, step_recorded


class _Room(threading.local):
    """What the evaluations of one thread write to: made anew in each thread that looks at it."""

    def __init__(
        self, prepared: Prepared, problem: PlacementProblem, threads: Threads | None, program: bool
    ) -> None:
        devices, tensors = problem.devices, problem.tensors
        buffers = problem.ops + tensors + len(problem.consumer)
        self.work, self.record = Table.of(work_for(problem)), Table.of(record_for(problem))
        self.bounds, self.tails_known = Table.of(bounds_for(problem)), False
        self.events = Table.of(events_for(buffers, devices, devices, tensors))
        self.peaks = np.zeros(devices, np.int64)
        self._hosts = threads and Table.of(hosts_for(prepared, threads, problem, program))
        self.hosts = () if self._hosts is None else (self._hosts.words,)


class PlacementEvaluator:
    """Evaluates placements (valid or not) of one problem; several threads at once.

    Every answer may be None, where lowering has to answer: the step is too long for the kernels, or
    the placement cannot be, and lowering tells why.
    """

    def __init__(
        self,
        prepared: Prepared,
        problem: PlacementProblem,
        threads: Threads | None = None,
        program: bool = False,
    ) -> None:
        self.graph, self.limits = prepared.graph, limits_of(prepared.cluster)
        self.problem, self.sizes = Table.of(problem), Table.of(sizes_of(prepared))
        hosted = threads is not None
        self._step: Callable[..., int] = step_hosted if hosted else step
        self._step_recorded: Callable[..., int] = step_hosted_recorded if hosted else step_recorded
        self._cost: Callable[..., int] = cost_hosted if hosted else cost
        self._room = _Room(prepared, problem, threads, program)

    def step_ps(self, placement: Ints) -> int | None:
        """The step time in ps."""
        room = self._room
        step_ps = self._step(self.problem.words, room.work.words, *room.hosts, placement)
        return step_ps if step_ps >= 0 else None

    def cost(self, placement: Ints) -> Cost | None:
        """Step time and memory."""
        return self._cost_of(self._evaluate(placement, None))

    def limited(self, placement: Ints, limit_ps: int) -> Cost | Literal["worse"] | None:
        """``cost``, or "worse" where the step is longer than ``limit_ps`` (not always, if memory
        was looked at by then).
        """
        room = self._room
        if not room.tails_known:
            fill_tails(self.problem.columns, self.graph, room.bounds.columns.tail)
            room.tails_known = True
        step_ps = self._evaluate(placement, limit_ps)
        return "worse" if step_ps == WORSE else self._cost_of(step_ps)

    def _evaluate(self, placement: Ints, limit_ps: int | None) -> int:
        """The step time in ps, or what went wrong; peaks are left in the room."""
        room, limit = self._room, limit_instant(self.problem.columns, limit_ps)
        words = self.problem.words, self.sizes.words, room.work.words, room.record.words
        others = *room.hosts, room.bounds.words, room.events.words
        return self._cost(*words, *others, placement, room.peaks, limit)

    def _cost_of(self, step_ps: int) -> Cost | None:
        room = self._room
        return Cost.of(step_ps, room.peaks.tolist(), self.limits) if step_ps >= 0 else None

    def cost_with_starts(self, placement: Ints) -> tuple[Cost, Ints] | None:
        """``cost``, and the start of every op in ps, which it has noted anyway."""
        cost = self.cost(placement)
        return None if cost is None else (cost, self._room.record.columns.start.copy())

    def starts(self, placement: Ints) -> tuple[Ints, Ints] | None:
        """Start and finish of every op in ps."""
        room = self._room
        words = self.problem.words, room.work.words, room.record.words, *room.hosts
        if self._step_recorded(*words, placement) < 0:
            return None
        return room.record.columns.start.copy(), room.record.columns.finish.copy()

    def moves(self) -> Moves | None:
        """Room and kernels for moves from one placement to the next, not for several threads; None
        where ops run in program order: what moves shifts all that comes after it there.
        """
        if self.problem.columns.program:
            return None
        producers = Rows.of([producer for producer, _ in reads] for reads in self.graph.reads)
        return Moves(self.problem, producers)


def evaluator_of(prepared: Prepared, policy: str) -> PlacementEvaluator | None:
    """The evaluator under an order's policy; None where there is none."""
    if slows(prepared.cluster):
        return None
    program, threads = policy == "program", threads_of(prepared)
    in_order = program or threads is not None
    if policy not in ("fifo", "program") or (in_order and not in_file_order(prepared)):
        return None
    problem = placement_problem(prepared, program, threads)
    if problem is None:
        return None
    return PlacementEvaluator(prepared, problem, threads, program)
