"""Signals: what learners are told of a placement, without units. Smaller is better."""

from __future__ import annotations

from math import inf, sqrt

import numpy as np

from ...oracle import Cost, Oracle
from ...taskgraph import Floats
from ..space import IMPOSSIBLE, energy
from ..trial import Trial, alone

FAILING = 10.0
"""The signal of a placement that fails: 100 times as long as one device. (ColocRL's successor says
the root of 100 s, for steps of some seconds; a constant in seconds would mean something else on
each question.)
"""

ROUNDING = 1e-12  # relative


def reference_ps(trial: Trial) -> float:
    """The best step on a single device [ps], all of them evaluated; where no device can run
    everything, or none of these placements can be, the sum of the ops' longest times. At least 1.
    Raises SpentError.
    """
    costs = [trial.score_once(placement) for placement in alone(trial.problem)]
    steps = [cost.step_ps for cost in costs if cost is not IMPOSSIBLE]
    longest = int(np.maximum(trial.problem.oracle.prepared.duration, 0).max(axis=1).sum())
    return float(max(min(steps, default=longest), 1))


def signal(oracle: Oracle, cost: Cost, reference: float, overflow_fails: bool = True) -> float:
    """The root of the step over the reference (ColocRL, ICML 2017, section 3.1), at most FAILING.

    What cannot be fails. What does not fit fails too, or counts as slower by the factor 1 + its
    relative excess.
    """
    effective = inf if overflow_fails and not cost.feasible else energy(oracle, cost)
    return min(sqrt(effective / reference), FAILING)


def spread(signals: Floats) -> float:
    """The standard deviation of signals; 0 where they differ by no more than sums round."""
    deviation = float(signals.std())
    return deviation if deviation > ROUNDING * float(np.abs(signals).max(initial=0.0)) else 0.0
