"""What a step is worth to Placeto, and what a visit gained."""

from __future__ import annotations

from collections import deque
from math import log

import numpy as np

from ...nouns.taskgraph import Floats
from ...oracle import Cost, Oracle
from ...search.space import IMPOSSIBLE, relative_excess
from .settings import Settings

MOST = 10.0  # best single devices; the code's limit is 10 s, for steps of about a second


def badness(oracle: Oracle, cost: Cost, reference: float, settings: Settings) -> float:
    """How bad a placement is: its step over ``reference`` [ps] plus the penalty for what does not
    fit, at most MOST, or the logarithm of that. What cannot be is as bad as can be.
    """
    if cost is IMPOSSIBLE:
        value = MOST
    else:
        excess = relative_excess(oracle, cost)
        value = min(cost.step_ps / reference + settings.penalty * excess, MOST)
    return log(max(value, 1e-9)) if settings.scale == "log" else value


def returns(gains: Floats, goal: str = "end", discount: float = 1.0) -> Floats:
    """The returns [n, T] of T visits, of what each gained: how bad the placement was before it,
    minus after it.

    Until the "end" of the episode they are sums of the gains of this visit and the later ones, each
    further visit worth ``discount`` times as much: without a discount they telescope to t_i -
    t_end. Until the "best", the largest such sum up to any later visit: t_i minus the least t_j.
    """
    sums = gains.copy()
    for visit in range(gains.shape[1] - 2, -1, -1):
        later = discount * sums[:, visit + 1]
        sums[:, visit] += np.maximum(later, 0.0) if goal == "best" else later
    return sums


class Baseline:
    """The mean return at each visit over the last ``history`` episodes, of a graph."""

    def __init__(self, history: int) -> None:
        self._kept = deque[Floats](maxlen=history)

    def advantages(self, gained: Floats) -> Floats:
        """How much more than the baseline each visit of these episodes [n, T] gained.

        They are themselves among the last episodes (as in the code, where workers wait for each
        other); a first one alone is compared with its own mean over all visits (ours).
        """
        self._kept.extend(gained)
        rows = np.stack(self._kept)
        mean = rows.mean(axis=0) if len(rows) > 1 else np.full(rows.shape[1], rows.mean())
        advantages: Floats = gained - mean
        return advantages


def scaled(advantages: Floats) -> Floats:
    """Advantages divided by their root mean square; all 0 stay 0."""
    size = float(np.sqrt(np.square(advantages).mean()))
    return advantages / size if size > 0 else advantages
