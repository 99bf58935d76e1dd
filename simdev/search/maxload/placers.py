"""The methods of dnn-partitioning: they minimise the largest load or the latency, and are told
their step time too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import inf

import numpy as np

from ...errors import InputError, SimdevError
from ..trial import SpentError, Trial
from .blocks import blocks_of
from .contiguous import Split, splits
from .latency import filled, latency, latency_program, least
from .problem import Problem, problem_of
from .program import integer_program
from .solver import GAP, Solved

IP_SECONDS = 60.0
IP_IDEALS = 2000  # that the split looks at with which the integer program begins


def dnn_contiguous(trial: Trial) -> None:
    """The contiguous split of the least largest load; the best so far where the time ends."""
    _within_memory(trial, lambda problem: _contiguous(trial, problem))


def _contiguous(trial: Trial, problem: Problem) -> None:
    found = None
    try:
        for found in splits(blocks_of(problem), due=trial.require_time):
            trial.details |= {"exact": found.exact, "ideals": found.ideals}
    finally:
        if found is not None:
            _finish(trial, problem, found.devices)


def dnn_ip(trial: Trial) -> None:
    """The split of the least largest load, contiguous or not, as far as HiGHS comes in its time."""
    _within_memory(trial, lambda problem: _any_split(trial, problem))


def _any_split(trial: Trial, problem: Problem) -> None:
    """It begins with the best contiguous split, where there is one, and answers with it where
    nothing is better.
    """
    start, known = None, inf
    try:
        for start in _where_possible(splits(blocks_of(problem), IP_IDEALS, trial.require_time)):
            known = start.max_load_ms
        trial.require_time()
        found = integer_program(problem, _seconds(trial), known)
    except (SpentError, KeyboardInterrupt):
        if start is not None:
            _finish(trial, problem, start.devices)
        raise
    better = found.devices is not None and found.value_ms < known and problem.fits(found.devices)
    devices = found.devices if better else None if start is None else start.devices
    if devices is None:
        raise _none_found(found, "max-load: no split")
    trial.details |= {
        "bound_ms": min(found.bound_ms, known),
        "contiguous_ms": None if start is None else known,
    }
    _finish(trial, problem, devices)
    _end(trial, found, min(found.value_ms, known))


def _where_possible(found: Iterator[Split]) -> Iterator[Split]:
    """Splits, none where no contiguous one fits: others may."""
    try:
        yield from found
    except InputError:
        return


def _seconds(trial: Trial) -> float:
    return IP_SECONDS if trial.seconds is None else trial.seconds_left


def _none_found(found: Solved, what: str) -> SimdevError:
    """What is to be said where the solver has no answer, and nothing else has."""
    if found.failure is not None:
        return SimdevError(f"{what} was found: {found.failure}")
    return InputError(f"{what} was found in time that runs on these devices and fits into memory")


def _end(trial: Trial, found: Solved, value: float) -> None:
    """Tell of the solver's trouble.

    Raises SpentError where its time, not its proof, has ended it.
    """
    if found.failure is not None:
        trial.details["solver"] = found.failure
    elif found.bound_ms < value * (1 - GAP):
        trial.require_time()


def _within_memory(trial: Trial, solve: Callable[[Problem], None]) -> None:
    """Solve a problem; without its limits on memory where nothing keeps them: the oracle tells what
    overflows.

    ``details`` then has ``within_memory`` false. Sizes are added up, so the simulated step may fit
    all the same.
    """
    problem = problem_of(trial.oracle)
    try:
        return solve(problem)
    except InputError:
        if problem.capacity is None:
            raise
    trial.details["within_memory"] = False
    solve(replace(problem, capacity=None))


def _finish(trial: Trial, problem: Problem, devices: Sequence[int]) -> None:
    trial.score(np.array(devices, np.int64))
    if trial.best is None:
        return  # it cannot be: another placement will be the answer
    loads, names = problem.loads(devices), trial.oracle.cluster.devices
    trial.objectives["max_load_ms"] = max(loads.values(), default=0.0)
    trial.details["loads_ms"] = {names[device].name: load for device, load in loads.items()}


def dnn_latency(trial: Trial) -> None:
    """The least latency of one inference, as far as HiGHS comes in its time; it begins with the
    greedy filling.

    ``details`` tells what no placement can go below, and the latency of the greedy one. Raises
    InputError for graphs with backward ops, and where some op runs nowhere.
    """
    if any(op.phase != "forward" for op in trial.oracle.graph.ops):
        raise InputError(
            "dnn-latency: the problem is that of inference; the graph has backward or update ops"
        )
    _within_memory(trial, lambda problem: _soonest(trial, problem))


def _soonest(trial: Trial, problem: Problem) -> None:
    greedy, bound = filled(problem), least(problem)
    known = inf if greedy is None else latency(problem, greedy)
    found = Solved(None, known, known)
    if known > bound * (1 + GAP):
        try:
            trial.require_time()
            found = latency_program(problem, _seconds(trial), known)
        except (SpentError, KeyboardInterrupt):
            if greedy is not None and known < inf:
                _tell(trial, problem, greedy, bound, known)
            raise
    devices = found.devices if found.devices is not None and found.value_ms < known else greedy
    if devices is None:
        raise _none_found(found, "dnn-latency: no placement")
    _tell(trial, problem, devices, max(found.bound_ms, bound), known)
    _end(trial, found, min(found.value_ms, known))


def _tell(
    trial: Trial, problem: Problem, devices: Sequence[int], bound: float, greedy: float
) -> None:
    trial.score(np.array(devices, np.int64))
    if trial.best is None:
        return  # it cannot be: another placement will be the answer
    trial.objectives["latency_ms"] = latency(problem, devices)
    trial.details |= {
        "bound_ms": min(bound, greedy),
        "greedy_ms": None if greedy == inf else greedy,
    }
