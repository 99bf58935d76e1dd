"""Making plans fit: a planner's idea of memory is judged by the oracle, and tightened until the
placement fits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..taskgraph import Ints
from .local import repair
from .space import IMPOSSIBLE, capacities, unavoidable
from .trial import Trial

Plan = Callable[[Sequence[int]], Ints]
TIGHTENINGS = 8
LEAST = 0.02  # of a capacity, by which it is tightened at least


def place_and_fit(trial: Trial, plan: Plan, tighten: bool = False) -> None:
    """Score what ``plan`` makes of the capacities (bytes by device, -1: unlimited): devices by node
    of the graph.

    Planners count memory in the order of their plan; what counts is the peak in the simulated step,
    with copies and with what lives longer there. Where that overflows and ``tighten``, the planner
    is told less than there is, several times; at last, groups are moved off the full devices.
    Nothing is tried where some op is too large for all.
    """
    limits = [
        _without(limit, sum(kept))
        for limit, kept in zip(capacities(trial.oracle), _reserves(trial), strict=True)
    ]
    for _ in range(TIGHTENINGS if tighten else 1):
        cost = trial.score(trial.grouped.back(plan(limits)))
        if cost.feasible or unavoidable(trial.asked):
            return
        if cost is IMPOSSIBLE:
            break
        for device, (peak, limit) in enumerate(
            zip(cost.peaks, capacities(trial.oracle), strict=True)
        ):
            if 0 <= limit < peak:
                limits[device] = max(limits[device] - max(peak - limit, int(LEAST * limit)), 0)
    repair(trial)


def _reserves(trial: Trial) -> tuple[tuple[int, int], ...]:
    return trial.oracle.prepared.reserves


def _without(limit: int, reserve: int) -> int:
    return limit if limit < 0 else max(limit - reserve, 0)
