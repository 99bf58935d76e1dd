"""Disturbed steps: noise as factors of durations (``noise``), and the moments at which devices
pause (``with_stalls``).

Numbers come from a counter-based generator (Philox 4x64; Salmon et al., SC 2011), keyed by the
seed, the number of the draw and their purpose (a stream). So a draw is reproducible on any thread,
and the first of several steps has the noise that it would have alone.

``execution.scenario`` disturbs a step once, as draw 0; ``oracle/draws.py`` disturbs each draw anew.
``execution.engine`` lengthens the tasks that pauses interrupt.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from ..ground.units import picoseconds
from ..nouns.disturbances import Disturbances
from ..nouns.taskgraph import COLLECTIVE, DISPATCH, SYNC, TRANSFER, Floats, Stalls, TaskGraph
from .factors import DrawnFactors, Factors

# The streams of a draw, by the purpose of their numbers.
OF_DEVICES, OF_COMPUTE, OF_COMMUNICATION, OF_HOSTS, OF_PAUSES, STREAMS = range(6)
LEAST = 1e-6  # the smallest factor: a gamma of a large spread may be 0 in floats


def noise(disturbances: Disturbances) -> DrawnFactors:
    """The rule of the noise in the times of tasks."""

    def of_graph(task_graph: TaskGraph) -> Factors:
        hosts = task_graph.of_kind(DISPATCH)
        sends = task_graph.of_kind(TRANSFER, COLLECTIVE)
        computes = ~(hosts | sends | task_graph.of_kind(SYNC))
        parts = (
            (OF_COMPUTE, disturbances.compute, computes),
            (OF_COMMUNICATION, disturbances.communication, sends),
            (OF_HOSTS, disturbances.hosts, hosts),
        )
        source = task_graph.tasks.source[computes]

        def factors(draw: int) -> Floats:
            factor = np.ones(len(hosts))
            for stream, spread, chosen in parts:
                factor[chosen] = _spread(disturbances, draw, stream, spread, int(chosen.sum()))
            shared = disturbances.devices, len(task_graph.devices)
            factor[computes] *= _spread(disturbances, draw, OF_DEVICES, *shared)[source]
            return factor

        return factors

    return of_graph


def _stream(disturbances: Disturbances, draw: int, stream: int) -> np.random.Generator:
    key = np.array([disturbances.seed, draw * STREAMS + stream], np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


def _spread(
    disturbances: Disturbances, draw: int, stream: int, spread: object, count: int
) -> NDArray[np.float64]:
    """``count`` factors of mean 1 with the standard deviation ``spread``; all 1 where it is 0."""
    deviation, drawn = float(spread), _stream(disturbances, draw, stream)  # type: ignore[arg-type]
    if not deviation:
        return np.ones(count)
    variance = deviation * deviation
    if stream == OF_DEVICES or disturbances.tail == "lognormal":
        sigma = math.sqrt(math.log1p(variance))
        factors = np.exp(sigma * drawn.standard_normal(count) - sigma * sigma / 2)
    elif disturbances.tail == "gamma":
        factors = drawn.gamma(1 / variance, variance, count)
    else:
        # A Pareto of index a has the variance mean^2 / (a (a - 2)).
        index = 1 + math.sqrt(1 + 1 / variance)
        factors = (index - 1) / index * (1 + drawn.pareto(index, count))
    return np.maximum(factors, LEAST)


def with_stalls(task_graph: TaskGraph, disturbances: Disturbances, draw: int) -> TaskGraph:
    """The task graph with the pauses of its devices, if there are any.

    Each device's last pause before the step begins at a random moment of the period before it, and
    may reach into the step. Devices that pause ``together`` share this moment.
    """
    pauses, devices = disturbances.pauses, task_graph.devices
    if pauses is None:
        return task_graph
    every, lasts = (picoseconds(Fraction(time)) for time in (pauses.every, pauses.lasts))
    begins = _stream(disturbances, draw, OF_PAUSES).integers(-every, 0, len(devices))
    if pauses.together:
        begins[:] = begins[:1]
    pausing = np.array([not pauses.devices or name in pauses.devices for name in devices], np.bool_)
    return replace(task_graph, stalls=Stalls(begins, every, lasts, pausing))
