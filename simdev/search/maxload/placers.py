"""The methods of dnn-partitioning, "dnn-contiguous", "dnn-ip" and "dnn-latency" of
``search.methods``: they minimise the largest load or the latency, and also report the simulated
step time. Two of them are integer programs, solved by HiGHS (``search.solver``).

``problem.py`` has each objective as a function, and an answer is valued only by these functions: a
change of the loads or the latency is made both there and in the rows of the programs here.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Any

import numpy as np

from ...ground.errors import InputError, SimdevError
from ..solver import Program, attended, scipy
from ..trial import SpentError, Trial
from .contiguous import blocks_of, nets_of, splits
from .problem import MaxLoadProblem, filled, latency, least, problem_of

# The two problems as integer programs.

GAP = 1e-6  # relative, at which the solver stops
FAILED = 4  # the solver's status on numerical trouble
SLACK = 1e-3  # relative, of the bound on all times: a tight bound causes numerical trouble


@dataclass(frozen=True, slots=True)
class Solved:
    """Devices by op (None: the solver has no assignment), the objective in ms, and a lower bound of
    every assignment's objective in ms.

    ``failure`` is the solver's message where it gave up before its time.
    """

    devices: tuple[int, ...] | None
    value_ms: float
    bound_ms: float
    failure: str | None = None


def integer_program(problem: MaxLoadProblem, seconds: float, known: float = inf) -> Solved:
    """The best of all splits, contiguous or not. ``known`` (ms) is a largest load that is already
    reached.

    x by group and device, y by net and accelerator: y >= |x_a - x_b| for the op's block a and each
    reader's b. Raises InputError where no split fits into memory, SimdevError where scipy is
    missing.
    """
    return _solved(_LargestLoad(problem, known), seconds, known)


def latency_program(problem: MaxLoadProblem, seconds: float, known: float = inf) -> Solved:
    """The placement of least latency that HiGHS reaches in time. ``known`` (ms) is a latency that
    is already reached.

    Raises InputError where no placement fits into memory, SimdevError where scipy is missing.
    """
    return _solved(_Latency(problem, known), seconds, known)


class _Assignment(Program):
    """The common part of both programs: x by group and place (accelerators, then CPUs), each group
    on one place.
    """

    NOTHING = ""  # the message where no assignment is possible

    def __init__(self, problem: MaxLoadProblem, cpus: Sequence[int]) -> None:
        super().__init__()
        self.problem, self.places = problem, (*problem.accelerators, *cpus)
        self.accelerators, groups = range(len(problem.accelerators)), len(problem.members)
        self.x = self.columns(groups, len(self.places), integral=1)
        kinds = [problem.on_accelerator] * len(self.accelerators) + [problem.on_cpu] * len(cpus)
        self.times = np.zeros(self.x.shape)  # ms by group and place
        np.add.at(self.times, list(problem.group), np.array(kinds).T)
        for column in self.x[np.isinf(self.times)]:
            self.high[column] = 0
        self.times[np.isinf(self.times)] = 0.0
        for columns in self.x:
            self.add(columns, [1.0] * len(columns), 1.0, 1.0)

    def limit_memory(self, place: int) -> None:
        """Keep the sizes within the capacity of an accelerator."""
        capacity, problem = self.problem.capacity, self.problem
        if capacity is not None:
            # As shares of the capacity: bytes beside coefficients of 1 cause numerical trouble.
            sizes = np.bincount(problem.group, problem.size) / max(capacity, 1)
            self.add(self.x[:, place], sizes.tolist(), -inf, 1.0)

    def value_ms(self, devices: Sequence[int]) -> float:
        """The objective of an assignment."""
        return max(self.problem.loads(devices).values())


class _LargestLoad(_Assignment):
    """The program of the largest load. Further columns: y by net and accelerator, the
    largest load.
    """

    NOTHING = (
        "max-load: no split runs on these devices and fits into the memory of the accelerators"
    )

    def __init__(self, problem: MaxLoadProblem, known: float) -> None:
        super().__init__(problem, problem.cpus)
        # Nets of the same groups are added up; any of these groups may count as the source.
        nets = nets_of(problem, range(len(problem.members)))
        y, (largest,) = self.columns(len(nets), len(self.accelerators)), self.columns(1, high=known)
        # Accelerators are identical, so the heaviest group may be fixed to the first, or to a CPU.
        heaviest = np.where(np.array(self.high)[self.x[:, 0]], self.times[:, 0], -1.0).argmax()
        for place in self.accelerators[1:]:
            self.high[self.x[heaviest, place]] = 0
        for place in range(len(self.places)):
            columns, values = [*self.x[:, place], largest], [*self.times[:, place], -1.0]
            if place in self.accelerators:
                columns[-1:-1], values[-1:-1] = y[:, place].tolist(), [cost for _, cost in nets]
            self.add(columns, values, -inf, 0.0)
            if place in self.accelerators:
                self.limit_memory(place)
        for net, ((source, *readers), _) in enumerate(nets):
            for place in self.accelerators:
                for reader in readers:
                    a, b = self.x[[source, reader], place]
                    self.add([a, b, y[net, place]], [1.0, -1.0, -1.0], -inf, 0.0)
                    self.add([b, a, y[net, place]], [1.0, -1.0, -1.0], -inf, 0.0)


class _Latency(_Assignment):
    """The program of the latency. Further columns: sent and received by op and accelerator, the
    ends of the ops, start and finish of the accelerators, the last end. CPUs are unlimited, so they
    are one place.
    """

    NOTHING = (
        "dnn-latency: nothing runs on these devices and fits into the memory of the accelerators"
    )

    def __init__(self, problem: MaxLoadProblem, known: float) -> None:
        super().__init__(problem, problem.cpus[:1])
        ops, width = len(problem.group), len(self.accelerators)
        # An upper bound of sensible placements: all ops in sequence, each on its slower device.
        pairs = zip(problem.on_accelerator, problem.on_cpu, strict=True)
        slow = sum(max(time for time in (*pair, 0.0) if isfinite(time)) for pair in pairs)
        self.most = min(known, slow + sum(problem.cost) * (1 + width)) * (1 + SLACK)
        self.sent = self.columns(ops, width)
        self.received = self.columns(ops, width, integral=1)
        self.end, self.start, self.finish, (last,) = (
            self.columns(count, high=self.most) for count in (ops, width, width, 1)
        )
        for place in self.accelerators:
            self.limit_memory(place)
        for place in self.accelerators:
            self._unit(place)
        for op in range(ops):
            self.add([last, self.end[op]], [1.0, -1.0], 0.0, inf)
            self._follow(op, [])
            for reader in problem.readers[op]:
                self._follow(reader, [self.end[op]])

    def value_ms(self, devices: Sequence[int]) -> float:
        """The latency."""
        return latency(self.problem, devices)

    def _unit(self, place: int) -> None:
        """The rows of an accelerator: its inputs and outputs, when it may start, and when
        it ends.
        """
        problem, most = self.problem, self.most
        start, finish = self.start[place], self.finish[place]
        columns, values = [finish, start], [1.0, -1.0]
        for op, group in enumerate(problem.group):
            sent, received = self.sent[op, place], self.received[op, place]
            here, end = self.x[group, place], self.end[op]
            self.add([here, end, finish], [-most, 1.0, -1.0], -most, inf)
            for reader in problem.readers[op]:
                there = self.x[problem.group[reader], place]
                self.add([sent, here, there], [1.0, -1.0, 1.0], 0.0, inf)
                self.add([received, there, here], [1.0, -1.0, 1.0], 0.0, inf)
            self.add([start, end, received], [1.0, -1.0, -most], -most, inf)
            time = problem.on_accelerator[op]
            columns += [sent, received, here]
            values += [-problem.cost[op]] * 2 + [-time if isfinite(time) else 0.0]
        self.add(columns, values, 0.0, inf)

    def _follow(self, op: int, ends: list[int]) -> None:
        """The row of an op: it ends after its producers, on a CPU later by its time."""
        columns, values = [self.end[op], *ends], [1.0] + [-1.0] * len(ends)
        cpu = self.problem.on_cpu[op]
        if self.problem.cpus and isfinite(cpu):
            columns.append(self.x[self.problem.group[op], -1])
            values.append(-cpu)
        self.add(columns, values, 0.0, inf)


def _solved(program: _Assignment, seconds: float, known: float) -> Solved:
    """The best assignment of a program. Raises InputError where there is none and ``known`` is
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
    place_of = answer.x[program.x].argmax(axis=1)
    devices = tuple(program.places[place_of[group]] for group in program.problem.group)
    return Solved(devices, program.value_ms(devices), bound)


def _minimum(program: _Assignment, seconds: float) -> Any:
    """HiGHS's result for the least value of the last column; None where it has none in time.

    Its presolve may fail on numbers of very different size: then it runs again without presolve.
    Raises SimdevError where scipy is missing.
    """
    optimize, sparse = scipy("integer programs need")
    objective, matrix, least, most = program.tables(sparse)

    def tried(**options: Any) -> Any:
        with _silent():
            return attended(
                lambda: optimize.milp(
                    objective,
                    integrality=np.array(program.integral),
                    bounds=optimize.Bounds(np.zeros(len(objective)), np.array(program.high)),
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
    """Silence the process's standard output: HiGHS reports some trouble there, whatever its
    options.
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


# The methods.

IP_SECONDS = 60.0
IP_IDEALS = 2000  # at most, of the contiguous split that the integer program begins with


def dnn_contiguous(trial: Trial) -> None:
    """The contiguous split of the least largest load (Tarnawski and others, 2020); the best so far
    where the time ends.
    """
    _within_memory(trial, _contiguous)


def _contiguous(trial: Trial, problem: MaxLoadProblem) -> None:
    split = None
    try:
        for split in splits(blocks_of(problem), due=trial.budget.require_time):
            trial.best.details |= {"exact": split.exact, "ideals": split.ideals}
    finally:
        if split is not None:
            _score_load(trial, problem, split.devices)


def dnn_ip(trial: Trial) -> None:
    """The split of the least largest load, contiguous or not, with a lower bound: the best that
    HiGHS reaches in its time, 60 s by default (extra ``solvers``).
    """
    _within_memory(trial, _any_split)


def _any_split(trial: Trial, problem: MaxLoadProblem) -> None:
    """Begin with the best contiguous split, where there is one, and return it where no other split
    is better.
    """
    start, known = None, inf
    try:
        with suppress(InputError):  # none is contiguous and fits: others may
            for start in splits(blocks_of(problem), IP_IDEALS, trial.budget.require_time):
                known = start.max_load_ms
        trial.budget.require_time()
        solved = integer_program(problem, _seconds(trial), known)
    except (SpentError, KeyboardInterrupt):
        if start is not None:
            _score_load(trial, problem, start.devices)
        raise
    devices = None if start is None else start.devices
    if solved.devices is not None and solved.value_ms < known and problem.fits(solved.devices):
        devices = solved.devices
    if devices is None:
        raise _no_answer(solved, "max-load: no split")
    trial.best.details |= {
        "bound_ms": min(solved.bound_ms, known),
        "contiguous_ms": None if start is None else known,
    }
    _score_load(trial, problem, devices)
    _end(trial, solved, min(solved.value_ms, known))


def _score_load(trial: Trial, problem: MaxLoadProblem, devices: Sequence[int]) -> None:
    loads, names = problem.loads(devices), trial.problem.oracle.cluster.devices
    of_device = {names[device].name: load for device, load in loads.items()}
    largest = max(loads.values(), default=0.0)
    _score(trial, devices, "max_load_ms", largest, {"loads_ms": of_device})


def dnn_latency(trial: Trial) -> None:
    """The placement of the least latency of one inference, with a lower bound: the best that HiGHS
    reaches in its time, 60 s by default (extra ``solvers``). It begins with the greedy filling.

    ``details`` has the lower bound, and the latency of the greedy filling. Raises InputError for
    graphs with backward ops, and where some op runs nowhere.
    """
    if any(op.phase != "forward" for op in trial.problem.oracle.graph.ops):
        raise InputError(
            "dnn-latency: the problem is that of inference; the graph has backward or update ops"
        )
    _within_memory(trial, _soonest)


def _soonest(trial: Trial, problem: MaxLoadProblem) -> None:
    greedy, bound = filled(problem), least(problem)
    known = inf if greedy is None else latency(problem, greedy)

    def score(devices: Sequence[int], bound: float) -> None:
        details = {
            "bound_ms": min(bound, known),
            "greedy_ms": None if known == inf else known,
        }
        _score(trial, devices, "latency_ms", latency(problem, devices), details)

    solved = Solved(None, known, known)
    if known > bound * (1 + GAP):
        try:
            trial.budget.require_time()
            solved = latency_program(problem, _seconds(trial), known)
        except (SpentError, KeyboardInterrupt):
            if greedy is not None and known < inf:
                score(greedy, bound)
            raise
    better = solved.devices is not None and solved.value_ms < known
    devices = solved.devices if better else greedy
    if devices is None:
        raise _no_answer(solved, "dnn-latency: no placement")
    score(devices, max(solved.bound_ms, bound))
    _end(trial, solved, min(solved.value_ms, known))


def _score(
    trial: Trial, devices: Sequence[int], objective: str, value: float, details: Mapping[str, Any]
) -> None:
    """Score a placement (by op), and note the value of its objective."""
    trial.score(np.array(devices, np.int64))
    if trial.best.placement is not None:  # else it is impossible, and fall_back finds another
        trial.best.objectives[objective] = value
        trial.best.details |= details


def _seconds(trial: Trial) -> float:
    return IP_SECONDS if trial.budget.seconds is None else trial.budget.seconds_left


def _no_answer(solved: Solved, nothing: str) -> SimdevError:
    """The error where neither the solver nor its start has an answer."""
    if solved.failure is not None:
        return SimdevError(f"{nothing} was found: {solved.failure}")
    return InputError(
        f"{nothing} was found in time that runs on these devices and fits into memory"
    )


def _end(trial: Trial, solved: Solved, value: float) -> None:
    """Report the solver's failure. Raises SpentError where the solver ran out of time before it had
    a proof.
    """
    if solved.failure is not None:
        trial.best.details["solver"] = solved.failure
    elif solved.bound_ms < value * (1 - GAP):
        trial.budget.require_time()


def _within_memory(trial: Trial, solve: Callable[[Trial, MaxLoadProblem], None]) -> None:
    """Solve a problem; where no answer keeps the limits on memory, solve it without them: the
    oracle reports the overflow.

    ``details`` then has ``within_memory`` false. The simulated step may fit all the same, since the
    limits apply to sums of sizes.
    """
    problem = problem_of(trial.problem.oracle)
    try:
        return solve(trial, problem)
    except InputError:
        if problem.capacity is None:
            raise
    trial.best.details["within_memory"] = False
    solve(trial, replace(problem, capacity=None))
