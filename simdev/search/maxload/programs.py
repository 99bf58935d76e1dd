"""The two problems of dnn-partitioning as integer programs, solved by HiGHS: the largest load, and
the latency of one inference.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

import numpy as np

from ...errors import InputError
from ..solver import attended, scipy
from .contiguous import nets_of
from .latency import latency
from .problem import MaxLoadProblem

GAP = 1e-6  # relative, at which the solver stops
FAILED = 4  # the solver's status where its numbers trouble it
SLACK = 1e-3  # relative, of the bound on all times: a tight one troubles the solver


@dataclass(frozen=True, slots=True)
class Solved:
    """Devices by op (None: no assignment was found), the objective in ms, and what no assignment
    can go below.

    ``failure`` is what the solver said where it gave up before its time.
    """

    devices: tuple[int, ...] | None
    value_ms: float
    bound_ms: float
    failure: str | None = None


def integer_program(problem: MaxLoadProblem, seconds: float, known: float = inf) -> Solved:
    """The best split of all, contiguous or not. ``known`` (ms) is a largest load that is already
    reached.

    x by group and device, y by net and accelerator: y >= |x_a - x_b| for the op's block a and each
    reader's b. Raises InputError where no split fits into memory, SimdevError where scipy is
    missing.
    """
    return _solved(_LargestLoad(problem, known), seconds, known)


def latency_program(problem: MaxLoadProblem, seconds: float, known: float = inf) -> Solved:
    """The placement of least latency, as far as HiGHS comes. ``known`` (ms) is a latency that is
    already reached.

    Raises InputError where no placement fits into memory, SimdevError where scipy is missing.
    """
    return _solved(_Latency(problem, known), seconds, known)


class _Assignment:
    """What both programs begin with: x by group and place (accelerators, then CPUs), each group on
    one place; ``further`` columns follow, the objective last.

    Columns are from 0 to ``high``; rows are low <= sum of value x column <= high.
    """

    def __init__(self, problem: MaxLoadProblem, cpus: Sequence[int], further: int) -> None:
        self.problem, self.groups = problem, len(problem.members)
        self.accelerators = range(len(problem.accelerators))
        self.places = (*problem.accelerators, *cpus)
        self.assigned = self.groups * len(self.places)
        self.high, self.integral = (
            np.ones(self.assigned + further),
            np.zeros(self.assigned + further),
        )
        self.integral[: self.assigned] = 1
        self.rows: list[tuple[Sequence[int], Sequence[float], float, float]] = []
        for op, group in enumerate(problem.group):
            for place in range(len(self.places)):
                if not isfinite(self.time(op, place)):
                    self.high[self.x(group, place)] = 0
        for group in range(self.groups):
            columns = [self.x(group, place) for place in range(len(self.places))]
            self.add(columns, [1.0] * len(columns), 1.0, 1.0)

    def add(self, columns: Sequence[int], values: Sequence[float], low: float, high: float) -> None:
        """One more row."""
        self.rows.append((columns, values, low, high))

    def x(self, group: int, place: int) -> int:
        """The column of a group on a place."""
        return group * len(self.places) + place

    def time(self, op: int, place: int) -> float:
        """Ms of an op on a place."""
        problem = self.problem
        return (problem.on_accelerator if place in self.accelerators else problem.on_cpu)[op]

    def limit_memory(self, place: int) -> None:
        """Sizes stay within the capacity of an accelerator."""
        capacity, members = self.problem.capacity, self.problem.members
        if capacity is not None:
            # Shares of the capacity: bytes beside ones would trouble the solver.
            sizes = [sum(self.problem.size[op] for op in ops) / max(capacity, 1) for ops in members]
            columns = [self.x(group, place) for group in range(self.groups)]
            self.add(columns, sizes, -inf, 1.0)


class _LargestLoad(_Assignment):
    """Further columns: y by net and accelerator, the largest load."""

    NOTHING = (
        "max-load: no split runs on these devices and fits into the memory of the accelerators"
    )

    def __init__(self, problem: MaxLoadProblem, known: float) -> None:
        # Nets of the same groups are added up, and drawn from any one of these.
        self.nets = nets_of(problem, range(len(problem.members)))
        accelerators = len(problem.accelerators)
        super().__init__(problem, problem.cpus, len(self.nets) * accelerators + 1)
        self.high[-1] = known
        # Accelerators are alike: the heaviest group is on the first, or on a CPU.
        weights = [sum(problem.on_accelerator[op] for op in ops) for ops in problem.members]
        weights = [weight if isfinite(weight) else -1.0 for weight in weights]
        heaviest = weights.index(max(weights, default=0)) if weights else 0
        for place in self.accelerators[1:]:
            self.high[self.x(heaviest, place)] = 0
        for place in range(len(self.places)):
            self._load(place)
        for net, ((source, *readers), _) in enumerate(self.nets):
            for place in self.accelerators:
                for reader in readers:
                    a, b, y = self.x(source, place), self.x(reader, place), self._y(net, place)
                    self.add([a, b, y], [1.0, -1.0, -1.0], -inf, 0.0)
                    self.add([b, a, y], [1.0, -1.0, -1.0], -inf, 0.0)

    def value_ms(self, devices: Sequence[int]) -> float:
        """The largest load."""
        return max(self.problem.loads(devices).values())

    def _y(self, net: int, place: int) -> int:
        return self.assigned + net * len(self.accelerators) + place

    def _load(self, place: int) -> None:
        """The load of a place is at most the largest."""
        times = [sum(self.time(op, place) for op in ops) for ops in self.problem.members]
        values = [time if isfinite(time) else 0.0 for time in times]
        columns = [self.x(group, place) for group in range(self.groups)]
        if place in self.accelerators:
            columns += [self._y(net, place) for net in range(len(self.nets))]
            values += [cost for _, cost in self.nets]
        self.add([*columns, len(self.high) - 1], [*values, -1.0], -inf, 0.0)
        if place in self.accelerators:
            self.limit_memory(place)


class _Latency(_Assignment):
    """Further columns: sent and received by op and accelerator, the ends of the ops, start and
    finish of the accelerators, the last end. CPUs are unlimited, so one place stands for all.
    """

    NOTHING = (
        "dnn-latency: nothing runs on these devices and fits into the memory of the accelerators"
    )

    def __init__(self, problem: MaxLoadProblem, known: float) -> None:
        ops, width = len(problem.group), len(problem.accelerators)
        super().__init__(problem, problem.cpus[:1], 2 * ops * width + ops + 2 * width + 1)
        self.sent = self.assigned
        self.received = self.sent + ops * width
        self.end = self.received + ops * width
        self.start = self.end + ops
        self.finish = self.start + width
        self.integral[self.received : self.end] = 1
        # No sensible placement exceeds it: everything one after the other, each the slower way.
        pairs = zip(problem.on_accelerator, problem.on_cpu, strict=True)
        slow = sum(max(time for time in (*pair, 0.0) if isfinite(time)) for pair in pairs)
        self.most = min(known, slow + sum(problem.cost) * (1 + width)) * (1 + SLACK)
        self.high[self.end :] = self.most
        for place in self.accelerators:
            self.limit_memory(place)
        for place in self.accelerators:
            self._unit(place)
        for op in range(ops):
            self._follow(op)

    def value_ms(self, devices: Sequence[int]) -> float:
        """The latency."""
        return latency(self.problem, devices)

    def _unit(self, place: int) -> None:
        """An accelerator: what comes in and goes out, when it may start, and when it ends."""
        problem, columns, values = (
            self.problem,
            [self.finish + place, self.start + place],
            [1.0, -1.0],
        )
        for op, group in enumerate(problem.group):
            sent, received = (
                first + op * len(self.accelerators) + place for first in (self.sent, self.received)
            )
            here, end = self.x(group, place), self.end + op
            self.add([here, end, self.finish + place], [-self.most, 1.0, -1.0], -self.most, inf)
            for reader in problem.readers[op]:
                there = self.x(problem.group[reader], place)
                self.add([sent, here, there], [1.0, -1.0, 1.0], 0.0, inf)
                self.add([received, there, here], [1.0, -1.0, 1.0], 0.0, inf)
            self.add([self.start + place, end, received], [1.0, -1.0, -self.most], -self.most, inf)
            time = problem.on_accelerator[op]
            columns += [sent, received, here]
            values += [-problem.cost[op]] * 2 + [-time if isfinite(time) else 0.0]
        self.add(columns, values, 0.0, inf)

    def _follow(self, op: int) -> None:
        """An op ends after what it reads, on a CPU by its time; the last end is no earlier."""
        self.add([len(self.high) - 1, self.end + op], [1.0, -1.0], 0.0, inf)
        self._after(op, [])
        for reader in self.problem.readers[op]:
            self._after(reader, [self.end + op])

    def _after(self, op: int, ends: list[int]) -> None:
        columns, values = [self.end + op, *ends], [1.0] + [-1.0] * len(ends)
        cpu = self.problem.on_cpu[op]
        if self.problem.cpus and isfinite(cpu):
            columns.append(self.x(self.problem.group[op], len(self.accelerators)))
            values.append(-cpu)
        self.add(columns, values, 0.0, inf)


def _solved(program: _LargestLoad | _Latency, seconds: float, known: float) -> Solved:
    """The best assignment of a program. Raises InputError where there is none, and ``known`` is
    infinite.
    """
    answer = _minimum(program, seconds)
    if answer is None:
        return Solved(None, known, 0.0)
    infeasible = answer.status == 2
    if infeasible and known == inf:
        raise InputError(program.NOTHING)
    bound = 0.0 if answer.mip_dual_bound is None else max(float(answer.mip_dual_bound), 0.0)
    if answer.x is None:
        failure = f"the solver failed: {answer.message}" if answer.status == FAILED else None
        return Solved(None, known, known if infeasible else bound, failure)
    shares = answer.x[: program.assigned].reshape(program.groups, -1)
    place_of = shares.argmax(axis=1)
    devices = tuple(program.places[place_of[group]] for group in program.problem.group)
    return Solved(devices, program.value_ms(devices), bound)


def _minimum(program: _Assignment, seconds: float) -> Any:
    """HiGHS's result for the least value of the last column; None where it has none in time.

    Its presolve may end in an error on numbers of very different size: then it tries again without.
    Raises SimdevError where scipy is missing.
    """
    optimize, sparse = scipy("integer programs need")
    columns, values, least, most = zip(*program.rows, strict=True)
    row = np.repeat(np.arange(len(columns)), [len(those) for those in columns])
    matrix = sparse.csr_matrix(
        (np.concatenate(values), (row, np.concatenate(columns))),
        shape=(len(columns), len(program.high)),
    )
    objective = np.zeros(len(program.high))
    objective[-1] = 1.0

    def tried(**options: Any) -> Any:
        with _silent():
            return attended(
                lambda: optimize.milp(
                    objective,
                    integrality=program.integral,
                    bounds=optimize.Bounds(np.zeros(len(objective)), program.high),
                    constraints=optimize.LinearConstraint(matrix, least, most),
                    options=options | {"mip_rel_gap": GAP},
                ),
                options["time_limit"],
            )

    end = time.perf_counter() + seconds
    answer = tried(time_limit=seconds)
    left = end - time.perf_counter()
    if answer is not None and answer.status == FAILED and left > 0:
        answer = tried(time_limit=left, presolve=False)
    return answer


@contextmanager
def _silent() -> Iterator[None]:
    """Nothing is printed to the process's standard output: HiGHS reports some trouble there,
    whatever its options.
    """
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
