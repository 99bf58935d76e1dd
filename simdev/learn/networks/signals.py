"""Signals: what learners are told of a placement, without units. Smaller is better."""

from __future__ import annotations

from math import inf, sqrt

import numpy as np

from ...nouns.taskgraph import Floats
from ...oracle import Cost, Oracle
from ...search import space
from ...search.space import alone, energy
from ...search.trial import Trial

FAILING = 10.0
"""The signal of a placement that fails: 100 times as long as one device. (ColocRL's successor says
the root of 100 s, for steps of some seconds; a constant in seconds would mean something else on
each question.)
"""

ROUNDING = 1e-12  # relative


def reference_ps(trial: Trial) -> float:
    """What steps are relative to [ps] (``space.reference_ps``), all single devices evaluated.
    Raises SpentError.
    """
    oracle, choices = trial.problem.oracle, trial.problem.choices
    return float(space.reference_ps(oracle, map(trial.score_once, alone(oracle, choices))))


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
