"""Drawn errors: random factors by which true times may differ from costs.

A cost with expected error ``rel_err`` is taken as the median of a lognormal: X = exp(sigma Z), Z a
standard normal. Its mean absolute error is, by the partial expectations of the lognormal (Johnson,
Kotz and Balakrishnan, Continuous Univariate Distributions 1, 1994, 14.3),

    E|X - 1| = exp(sigma^2 / 2) (2 Phi(sigma) - 1) = exp(sigma^2 / 2) erf(sigma / sqrt(2)),

which ``sigma_of`` solves for sigma. 1 / X has the same law, so it does not matter whether errors
are counted from the estimate or from the measured time.

Costs of one class share a part of their error, since a wrong roofline or clock is wrong for all of
them: Z = sqrt(SHARED) Z(class) + sqrt(1 - SHARED) Z(cost). Each Z is a function of the seed, of the
name of the class or cost, and of the number of the draw, by a counter-based generator (Philox 4x64;
Salmon et al., SC 2011), and two uniforms make a normal (Box and Muller, 1958). So draw k is always
the same, whatever else is drawn, and scenarios with the same costs have the same errors: their
difference is drawn with common random numbers.

``oracle/draws.py`` draws the errors of the sources that ``lowering/expected.py`` lists.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ..nouns.taskgraph import Floats

SHARED = 0.4
"""The share of the variance of a cost's error (in logarithms) that is common to its class.

Measured (``python -m benchmarks.draws``): the rows of each profiled model are estimated without
them. The errors over their sigmas of two rows of one model and class correlate by 0.26 and 0.27
where rows of other models answer (an H100, a CPU), by 0.45 and 0.58 where datasheets do; 0.39 in
the mean.
"""

LINE_ERROR, TABLE_ERROR = 0.15, 0.05
"""The expected relative errors of the time of a message or collective: by latency and bandwidth of
its links, and by a measured table. The middle of the errors on measured NCCL curves, 4 to 27 % and
3 to 7 % (``collectives/table.py``).
"""

STEP_ERROR, CPU_STEP_ERROR = 0.016, 0.044
"""The expected relative error of a whole step whose ops were all measured alone: in a step caches
are warmer, and clocks fall. Measured (``python -m benchmarks.draws``) on an H100 and a CPU: the
step in a profile's header against the sum of its rows, where the device is the bottleneck.
"""

_UNIT = 2.0**-53  # the distance of two uniforms


class ErrorSource(NamedTuple):
    """A cost that may be wrong: the class with which it shares a part of its error, its name (a
    profile key, a message over a kind of link), and its expected relative error (0.1 is 10 %).
    """

    of_class: str
    cost: str
    rel_err: float


@cache
def sigma_of(rel_err: float) -> float:
    """The sigma of a lognormal of median 1 whose mean absolute error is ``rel_err``."""
    low, high = 0.0, 1.0
    while _mean_error(high) < rel_err:
        high *= 2
    for _ in range(60):  # bisection, to the last bit
        middle = (low + high) / 2
        low, high = (middle, high) if _mean_error(middle) < rel_err else (low, middle)
    return high if rel_err else 0.0


def _mean_error(sigma: float) -> float:
    return math.exp(sigma * sigma / 2) * math.erf(sigma / math.sqrt(2))


def normals(names: Sequence[str], seed: int, draws: int) -> Floats:
    """Standard normals, a row for each name and a column for each draw. A value depends only on its
    name, the seed and the number of its draw.
    """
    stream = np.random.Philox(key=0)
    begin: Any = stream.state  # to set a key takes a third of the time that a generator takes
    bits = np.empty((len(names), 2 * draws), np.uint64)
    for row, name in zip(bits, names, strict=True):
        # Python's own hash differs from process to process.
        digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
        begin["state"]["key"] = np.array([seed, int.from_bytes(digest, "little")], np.uint64)
        stream.state = begin
        row[:] = stream.random_raw(2 * draws)
    uniform = ((bits.reshape(-1, draws, 2) >> np.uint64(11)) + 0.5) * _UNIT
    radius, angle = np.ascontiguousarray(np.moveaxis(uniform, 2, 0))
    drawn: Floats = np.sqrt(-2 * np.log(radius)) * np.cos(2 * math.pi * angle)
    return drawn


def drawn_factors(
    sources: Sequence[ErrorSource], seed: int, draws: int, shared: float = SHARED
) -> Floats:
    """The factors on the times of costs, a row for each draw and a column for each source."""
    classes = {name: row for row, name in enumerate(dict.fromkeys(s.of_class for s in sources))}
    row_of = np.array([classes[source.of_class] for source in sources], np.int64)
    of_class = normals([f"class {name}" for name in classes], seed, draws)
    of_cost = normals([f"cost {source.cost}" for source in sources], seed, draws)
    sigma = np.array([sigma_of(source.rel_err) for source in sources])[:, None]
    error = math.sqrt(shared) * of_class[row_of] + math.sqrt(1 - shared) * of_cost
    return np.ascontiguousarray(np.exp(sigma * error).T)
