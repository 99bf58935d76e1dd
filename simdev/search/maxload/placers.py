"""The methods of dnn-partitioning: they minimise the largest load or the latency; the simulated
step time is told beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np

from ...ground.errors import InputError, SimdevError
from ..trial import SpentError, Trial
from .contiguous import blocks_of, splits
from .problem import MaxLoadProblem, filled, latency, least, problem_of
from .programs import GAP, Solved, integer_program, latency_program

IP_SECONDS = 60.0
IP_IDEALS = 2000  # that the split looks at with which the integer program begins


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
    """The split of the least largest load, contiguous or not, with a bound, as far as HiGHS comes
    in its time, 60 s by default (extra ``solvers``).
    """
    _within_memory(trial, _any_split)


def _any_split(trial: Trial, problem: MaxLoadProblem) -> None:
    """It begins with the best contiguous split, where there is one, and answers with it where
    nothing is better.
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
    """The least latency of one inference, with a bound, as far as HiGHS comes in its time, 60 s by
    default (extra ``solvers``); it begins with the greedy filling.

    ``details`` tells what no placement can go below, and the latency of the greedy one. Raises
    InputError for graphs with backward ops, and where some op runs nowhere.
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
    """Score a placement (by op) of that objective."""
    trial.score(np.array(devices, np.int64))
    if trial.best.placement is not None:  # else it cannot be: another will be the answer
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
    """Report the solver's trouble. Raises SpentError where its time, not its proof, has ended
    it.
    """
    if solved.failure is not None:
        trial.best.details["solver"] = solved.failure
    elif solved.bound_ms < value * (1 - GAP):
        trial.budget.require_time()


def _within_memory(trial: Trial, solve: Callable[[Trial, MaxLoadProblem], None]) -> None:
    """Solve a problem; without its limits on memory where nothing keeps them: the oracle tells what
    overflows.

    ``details`` then has ``within_memory`` false. Sizes are added up, so the simulated step may fit
    all the same.
    """
    problem = problem_of(trial.problem.oracle)
    try:
        return solve(trial, problem)
    except InputError:
        if problem.capacity is None:
            raise
    trial.best.details["within_memory"] = False
    solve(trial, replace(problem, capacity=None))
