"""The methods ``dnn-contiguous`` and ``dnn-ip``: they minimise the largest load, and are told their step time too."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..trial import Trial
from .blocks import blocks_of
from .contiguous import contiguous
from .problem import Problem, problem_of
from .program import integer_program

IP_SECONDS = 60.0


def dnn_contiguous(trial: Trial) -> None:
    """The contiguous split of the least largest load."""
    problem = problem_of(trial.oracle)
    found = contiguous(blocks_of(problem))
    trial.details |= {"exact": found.exact, "ideals": found.ideals}
    _finish(trial, problem, found.devices)


def dnn_ip(trial: Trial) -> None:
    """The split of the least largest load, contiguous or not, as far as HiGHS comes in its time."""
    problem = problem_of(trial.oracle)
    start = contiguous(blocks_of(problem), most=2000)
    seconds = IP_SECONDS if trial.seconds is None else max(trial.seconds - trial.wall_seconds, 1.0)
    found = integer_program(problem, seconds, start.max_load_ms)
    better = found.devices is not None and found.max_load_ms < start.max_load_ms and problem.fits(found.devices)
    devices = found.devices if better and found.devices is not None else start.devices
    bound = min(found.bound_ms, start.max_load_ms)
    trial.details |= {"bound_ms": bound, "contiguous_ms": start.max_load_ms}
    _finish(trial, problem, devices)


def _finish(trial: Trial, problem: Problem, devices: Sequence[int]) -> None:
    loads = problem.loads(devices)
    trial.objectives["max_load_ms"] = max(loads.values(), default=0.0)
    names = trial.oracle.cluster.devices
    trial.details["loads_ms"] = {names[device].name: load for device, load in loads.items()}
    trial.score(np.array(devices, np.int64))
