"""Making plans fit into memory: the oracle judges a plan, and the planner's limits are tightened or
groups are moved until the placement fits.

The list schedulers and Baechi's placers call ``place_and_fit``; round robin and PipeDream, which
have one plan each, call ``repair``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

import numpy as np

from ..nouns.taskgraph import Ints
from ..oracle import Oracle
from .space import IMPOSSIBLE, capacities, choices, held_bytes, overflows, unavoidable
from .trial import Trial, Walk

TIGHTENINGS = 8
LEAST = 0.02  # of a capacity, by which it is tightened at least


def place_and_fit(
    trial: Trial, plan: Callable[[Sequence[int]], Ints], tighten: bool = False
) -> None:
    """Score the placement that ``plan`` makes for given capacities (bytes by device, -1:
    unlimited); ``plan`` returns devices by node of the graph.

    Planners count memory in the order of their plan; the oracle counts the peak in the simulated
    step, with copies and with tensors that live longer there. Where the step overflows and
    ``tighten``, the planner gets smaller capacities, several times; at last, groups are moved off
    the full devices. Nothing is tried where some op is too large for all devices.
    """
    problem = trial.problem
    limits = [
        limit if limit < 0 else max(limit - sum(reserves), 0)
        for limit, reserves in zip(
            capacities(problem.oracle), problem.oracle.prepared.reserves, strict=True
        )
    ]
    for _ in range(TIGHTENINGS if tighten else 1):
        cost = trial.score(problem.grouped.back(plan(limits)))
        if cost.feasible or unavoidable(problem.whole):
            return
        if cost is IMPOSSIBLE:
            break
        for device, over, limit in overflows(problem.oracle, cost):
            limits[device] = max(limits[device] - max(over, int(LEAST * limit)), 0)
    repair(trial)


def repair(trial: Trial) -> None:
    """Move groups off devices that overflow, the largest first, until the best placement fits or no
    move helps.

    First the problem's groups; where these are too large, the groups of the given graph. Nothing is
    tried where some op alone is too large for every device.
    """
    # A dict drops the second oracle where it is the first (no preparation).
    for oracle in dict.fromkeys((trial.problem.oracle, trial.problem.whole)):
        best = trial.best.placement
        if best is None or best[1].feasible or unavoidable(trial.problem.whole):
            return
        _unload(oracle, trial.walk(best[0], oracle))


def _unload(oracle: Oracle, walk: Walk) -> None:
    """Move groups off the fullest device until it fits, then off the next one."""
    held = [held_bytes(op) for op in oracle.prepared.graph.ops]
    sizes = np.array([sum(held[i] for i in members) for members in oracle.groups])
    limits, allowed, stuck = capacities(oracle), choices(oracle), set[int]()
    while not walk.cost.feasible:
        pairs = zip(walk.cost.peaks, limits, strict=True)
        room = [inf if limit < 0 else limit - peak for peak, limit in pairs]
        fullest = np.argsort(room, kind="stable").tolist()
        full = [device for device in fullest if room[device] < 0 and device not in stuck]
        if not full:
            return
        groups = [g for g in np.argsort(-sizes, kind="stable").tolist() if walk.where[g] == full[0]]
        if any(_moved(walk, group, allowed[group], room) for group in groups):
            stuck.clear()
        else:
            stuck.add(full[0])


def _moved(walk: Walk, group: int, allowed: Ints, room: Sequence[float]) -> bool:
    """Move a group to a device where less overflows, of the devices with room the one with most
    first; returns whether it was moved.
    """
    return any(
        walk.improve(group, device)
        for device in sorted(allowed.tolist(), key=lambda d: (-room[d], d))
        if device != walk.where[group] and room[device] > 0
    )
