"""The methods of dnn-partitioning: they minimise the largest load or the latency, and are told their step time too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from typing import TypeVar

import numpy as np

from ...errors import InputError
from ..trial import Trial
from .blocks import blocks_of
from .contiguous import contiguous
from .latency import filled, latency, latency_program, least
from .problem import Problem, problem_of
from .program import integer_program
from .solver import GAP, Solved

IP_SECONDS = 60.0
Answer = TypeVar("Answer")


def dnn_contiguous(trial: Trial) -> None:
    """The contiguous split of the least largest load."""
    problem, found = _within_memory(trial, lambda one: contiguous(blocks_of(one)))
    trial.details |= {"exact": found.exact, "ideals": found.ideals}
    _finish(trial, problem, found.devices)


def dnn_ip(trial: Trial) -> None:
    """The split of the least largest load, contiguous or not, as far as HiGHS comes in its time."""
    problem, start = _within_memory(trial, lambda one: contiguous(blocks_of(one), most=2000))
    seconds = IP_SECONDS if trial.seconds is None else max(trial.seconds - trial.wall_seconds, 1.0)
    try:
        found = integer_program(problem, seconds, start.max_load_ms)
    except KeyboardInterrupt:
        _finish(trial, problem, start.devices)
        raise
    better = found.devices is not None and found.value_ms < start.max_load_ms and problem.fits(found.devices)
    devices = found.devices if better and found.devices is not None else start.devices
    bound = min(found.bound_ms, start.max_load_ms)
    trial.details |= {"bound_ms": bound, "contiguous_ms": start.max_load_ms}
    _finish(trial, problem, devices)


def _within_memory(trial: Trial, solve: Callable[[Problem], Answer]) -> tuple[Problem, Answer]:
    """A problem and its answer; without its limits on memory where nothing keeps them: the oracle tells what overflows.

    ``details`` then has ``within_memory`` false. Sizes are added up, so the simulated step may fit all the same.
    """
    problem = problem_of(trial.oracle)
    try:
        return problem, solve(problem)
    except InputError:
        if problem.capacity is None:
            raise
    problem = replace(problem, capacity=None)
    trial.details["within_memory"] = False
    return problem, solve(problem)


def _finish(trial: Trial, problem: Problem, devices: Sequence[int]) -> None:
    loads = problem.loads(devices)
    trial.objectives["max_load_ms"] = max(loads.values(), default=0.0)
    names = trial.oracle.cluster.devices
    trial.details["loads_ms"] = {names[device].name: load for device, load in loads.items()}
    trial.score(np.array(devices, np.int64))


def dnn_latency(trial: Trial) -> None:
    """The least latency of one inference, as far as HiGHS comes in its time; it begins with the greedy filling.

    ``details`` tells what no placement can go below, and the latency of the greedy one. Raises InputError for graphs
    with backward ops, and where some op runs nowhere.
    """
    if any(op.phase != "forward" for op in trial.oracle.graph.ops):
        raise InputError("dnn-latency: the problem is that of inference; the graph has backward or update ops")
    _within_memory(trial, lambda problem: _soonest(trial, problem))


def _soonest(trial: Trial, problem: Problem) -> None:
    greedy = filled(problem)
    known = inf if greedy is None else latency(problem, greedy)
    seconds = IP_SECONDS if trial.seconds is None else max(trial.seconds - trial.wall_seconds, 1.0)
    bound = least(problem)
    done = known <= bound * (1 + GAP)
    try:
        found = Solved(None, known, known) if done else latency_program(problem, seconds, known)
    except KeyboardInterrupt:
        if greedy is not None and known < inf:
            _tell(trial, problem, greedy, bound, known)
        raise
    devices = found.devices if found.devices is not None and found.value_ms < known else greedy
    if devices is None:
        raise InputError("dnn-latency: no placement was found that runs on these devices and fits into memory in time")
    _tell(trial, problem, devices, max(found.bound_ms, bound), known)


def _tell(trial: Trial, problem: Problem, devices: Sequence[int], bound: float, greedy: float) -> None:
    trial.objectives["latency_ms"] = latency(problem, devices)
    trial.details |= {"bound_ms": min(bound, greedy), "greedy_ms": None if greedy == inf else greedy}
    trial.score(np.array(devices, np.int64))
