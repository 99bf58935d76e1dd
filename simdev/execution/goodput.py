"""Long runs of steps on machines that fail: the share of time spent on steps that count
(``goodput_of``), by formula and by simulating every failure, and the best checkpoint interval.

Times are seconds. Between two failures a run repeats a period, which is an interval of training
and the stall of its checkpoint; so the simulation goes from failure to failure and counts the
periods between. Failures strike while nodes restart or train, not while the run waits for nodes.

``report/measures/goodput.py`` reports the results. ``ground/jit.py`` lists this module among those
with compiled code.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

import numpy as np

from ..ground.errors import InputError
from ..ground.units import PS_PER_SECOND
from ..nouns.failures import Failures
from ..nouns.taskgraph import Floats, Ints

RUNS = 100  # simulated runs, each with other failures
MOST = 20_000  # failures in a run; where there are more, a shorter run has the same shares
ALWAYS = 1 << 40  # number of spares where there are always enough
TRAINING, CHECKPOINTS, LOST, RESTARTS, WAITING = range(5)
SHARES = (
    "training that counts",
    "checkpoints",
    "lost to failures",
    "restarts",
    "waiting for nodes",
)
"""The parts of a run's time, which add up to the whole."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The machines and steps of a run: ``devices`` on ``nodes``, and the seconds of a step."""

    devices: int
    nodes: int
    step: float


@dataclass(frozen=True)
class Goodput:
    """Simulated runs with checkpoints after each ``interval`` seconds of training.

    ``shares``, of shape (RUNS, 5), are the parts of each run's time in the order of SHARES;
    ``failures`` is the number of failures in each run. ``expected`` is the share of training by
    formula (None: runs may wait for repairs, which no formula covers).
    """

    interval: float
    shares: Floats
    failures: Ints
    expected: float | None

    @property
    def mean(self) -> float:
        """The share of time spent on steps that count, a mean over all runs."""
        return float(self.shares[:, TRAINING].mean())

    def range(self) -> tuple[float, float]:
        """The 5 % and 95 % quantiles of the runs' shares of training that counts."""
        low, high = np.quantile(self.shares[:, TRAINING], (0.05, 0.95))
        return float(low), float(high)


def failure_rate(failures: Failures, fleet: Fleet) -> float:
    """Failures per second of all devices and nodes together."""
    parts = ((failures.device_mtbf, fleet.devices), (failures.node_mtbf, fleet.nodes))
    return math.fsum(count / _seconds(mtbf) for mtbf, count in parts if mtbf is not None)


def best_interval(failures: Failures, fleet: Fleet) -> float:
    """The seconds of training between checkpoints that maximise the expected goodput under
    exponential failures, in whole steps; the whole run where nothing fails.

    The expectation (``expected_goodput``) is largest where exp(-l (w + c)) = 1 - l w, with w
    seconds of training, c of checkpoint and l failures per second (Daly 2006, section 4). Restarts
    and swaps do not change the optimum; nor do repairs, assuming that the interval does not change
    how often they are waited for (our assumption).
    """
    rate, length = failure_rate(failures, fleet), _seconds(failures.length)
    exponent = rate * _seconds(failures.checkpoint)
    if not rate:
        return _in_steps(length, fleet)
    return _in_steps(min(max(_root(exponent) / rate, _seconds(failures.written)), length), fleet)


def _root(exponent: float) -> float:
    """The u from 0 to 1 for which exp(-u - ``exponent``) = 1 - u, by Newton's method."""
    if exponent < 1e-12:  # Below, Young's square root is exact to the last digits.
        return math.sqrt(2 * exponent)
    u, before = 1.0, math.inf
    while u < before:  # The function is convex, so u falls until it is right.
        before, fallen = u, math.expm1(-u - exponent)
        u += (fallen + u) / fallen
    return before


def _in_steps(seconds: float, fleet: Fleet) -> float:
    """The nearest duration of whole steps, at least one step; where steps take no time, at least
    1 ps.
    """
    if not fleet.step:
        return max(seconds, 1 / PS_PER_SECOND)
    return max(1, round(seconds / fleet.step)) * fleet.step


def expected_goodput(failures: Failures, fleet: Fleet, interval: float) -> float:
    """The share of time spent on steps that count in the long run, where spares are always ready.

    A period of w seconds of training and c of checkpoint takes
    (1/l + d) exp(l (r + a)) (exp(l (w + c)) - 1) seconds, with l failures per second, r seconds of
    restart and d of swap (Daly 2006, equation 13, and Bougeret et al. 2011, theorem 1, with
    downtime). A checkpoint is usable only once it is written, a seconds later; this lengthens
    restarts by a (our derivation: the training since then must be repeated after each failure).
    """
    rate, swap = failure_rate(failures, fleet), _seconds(failures.swap)
    period = interval + _seconds(failures.checkpoint)
    if not rate:
        return interval / period
    again = rate * (_seconds(failures.restart) + _seconds(failures.written))
    if again + rate * period > 700:  # beyond, floats overflow
        return 0.0
    takes = (1 / rate + swap) * math.exp(again) * math.expm1(rate * period)
    return interval / takes


def goodput_of(failures: Failures, fleet: Fleet, interval: float | None = None) -> Goodput:
    """Simulate RUNS runs; ``interval`` (seconds), where given, replaces ``failures.interval``. Any
    interval meets the same failures.

    Raises InputError where a run has more failures than can be simulated, or where a checkpoint
    begins before the last is written.
    """
    rate, length = failure_rate(failures, fleet), _seconds(failures.length)
    if rate * length > MOST:
        many = f"{rate * length:,.0f} failures in a run are more than {MOST:,}"
        raise InputError(f"failures: {many}; shorten its length")
    if interval is None:
        given = failures.interval
        chosen = best_interval(failures, fleet) if given is None else _seconds(given)
        interval = _in_steps(chosen, fleet)
    written = _seconds(failures.written)
    # Rounding to whole steps may have shortened the interval by up to half a step.
    if interval + fleet.step < written:
        raise InputError("failures.interval: is shorter than a checkpoint takes to be written")
    shares, counts = np.zeros((RUNS, len(SHARES))), np.zeros(RUNS, np.int64)
    stall, restart, swap, repair = (
        _seconds(part)
        for part in (failures.checkpoint, failures.restart, failures.swap, failures.repair or 0)
    )
    times = np.array([interval, stall, written, restart, swap, repair, length])
    spares = ALWAYS if failures.spares is None else failures.spares
    for run in range(RUNS):
        counts[run] = _simulated(failures.seed, run, rate, times, spares, shares[run])
    sure = failures.spares is None
    expected = expected_goodput(failures, fleet, interval) if sure else None
    return Goodput(interval, shares / length, counts, expected)


def _simulated(seed: int, run: int, rate: float, times: Floats, spares: int, parts: Floats) -> int:
    """Simulate a run, write its time by part (seconds) to ``parts``, and return its number of
    failures.
    """
    mean = rate * float(times[-1])
    draws = int(mean + 8 * math.sqrt(mean)) + 16
    while True:
        # A counter-based generator: a longer draw begins with the numbers of the shorter one.
        stream = np.random.Generator(np.random.Philox(key=np.array([seed, run], np.uint64)))
        until = stream.standard_exponential(draws) / rate if rate else np.full(1, np.inf)
        parts[:] = 0
        count = _kernel()(until, np.empty(len(until)), times, spares, parts)
        if count >= 0:
            return count
        draws *= 2


@cache
def _kernel() -> Callable[..., int]:
    """``_run``, compiled where Numba is installed; without Numba it is a hundred times slower."""
    if find_spec("numba") is None:
        return _run
    from ..ground.jit import jit

    return jit(_run)


def _run(until: Floats, back: Floats, times: Floats, spares: int, parts: Floats) -> int:
    """Simulate one run. ``until`` are the drawn times to the next failure, ``back`` has room for
    the moments at which nodes are repaired. Returns the number of failures, -1 where the draws did
    not suffice.
    """
    interval, stall, written, restart = times[0], times[1], times[2], times[3]
    swap, repair, end = times[4], times[5], times[6]
    period = interval + stall
    now = load = 0.0
    failures = first = 0
    while now < end:
        if failures == len(until):
            return -1
        stop = min(now + until[failures], end)
        fails = stop < end
        loading = min(load, stop - now)
        parts[RESTARTS] += loading
        up = stop - now - loading
        # A checkpoint counts once it is written, beside the training after it.
        safe = max(0.0, up - written if fails else up)
        periods = safe // period
        kept = periods * interval + (0.0 if fails else min(interval, up - periods * period))
        parts[TRAINING] += kept
        stalls = periods * stall if fails else up - kept
        parts[CHECKPOINTS] += stalls
        parts[LOST] += up - kept - stalls
        if not fails:
            break
        now = stop
        back[failures] = now + repair
        failures += 1
        while first < failures and back[first] <= now:
            first += 1
            spares += 1
        if spares > 0:
            spares -= 1
            wait = swap
        else:
            wait = back[first] - now
            first += 1
        now = min(now + wait, end)
        parts[WAITING] += now - stop
        load = restart
    return failures


def _seconds(value: object) -> float:
    """A duration of ``Failures``, an exact fraction since it was read, as a float."""
    return float(value)  # type: ignore[arg-type]
