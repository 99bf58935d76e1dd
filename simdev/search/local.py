"""Local search over the oracle's moves: the greedy one-move sweep, simulated annealing, repair of
what overflows.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from ..oracle import Oracle
from ..taskgraph import Ints
from .space import capacities, choices, energy, neighbours, unavoidable
from .trial import Trial, Walk, best_start

PROBES = 64  # moves from the start that tell the first temperature
COOLING = 0.01  # last temperature over the first
ROUNDS = 3  # each begins hot again, at the best placement so far
BLOCK = 64  # moves drawn at a time, under one temperature
NEAR = 0.5  # share of moves that bring a group to a device of a neighbour
COLDEST = 1e-6


def greedy(trial: Trial) -> None:
    """From the best start, each group in random order to each other device; what is strictly better
    stays.

    Sweeps go on until one changes nothing: then no single move is better.
    """
    start = best_start(trial)
    if start is None:
        return
    walk, changed = trial.walk(start), True
    while changed:
        changed = False
        for group in trial.random.permutation(len(trial.choices)).tolist():
            for device in trial.choices[group].tolist():
                if device == walk.where[group]:
                    continue
                before = walk.key
                if walk.key_of(walk.propose(group, device)) < before:
                    walk.accept()
                    changed = True


def repair(trial: Trial) -> None:
    """Move groups off devices that overflow, the largest first, until the best placement fits or
    nothing helps.

    First the groups that were placed; where those are too large, the question's own. Nothing is
    tried where some op alone is too large for every device.
    """
    for oracle in dict.fromkeys((trial.oracle, trial.asked)):
        if trial.best is None or trial.best[1].feasible or unavoidable(trial.asked):
            return
        _unload(trial, oracle, trial.walk(trial.best[0], oracle))


def _unload(trial: Trial, oracle: Oracle, walk: Walk) -> None:
    """Move groups off the fullest device, until it fits, then off the next."""
    sizes, limits = _sizes(oracle), capacities(oracle)
    allowed = trial.choices if oracle is trial.oracle else choices(oracle)
    stuck: set[int] = set()
    while not walk.cost.feasible:
        room = [
            np.inf if limit < 0 else limit - peak
            for peak, limit in zip(walk.cost.peaks, limits, strict=True)
        ]
        full = [
            device
            for device in np.argsort(room, kind="stable").tolist()
            if room[device] < 0 and device not in stuck
        ]
        if not full:
            return
        groups = [g for g in np.argsort(-sizes, kind="stable").tolist() if walk.where[g] == full[0]]
        if any(_moved(walk, group, allowed[group], room) for group in groups):
            stuck.clear()
        else:
            stuck.add(full[0])


def _moved(walk: Walk, group: int, allowed: Ints, room: Sequence[float]) -> bool:
    """Whether a group found a device, of those with the most room first, where less overflows; it
    is moved there.
    """
    before = walk.key
    for device in sorted(allowed.tolist(), key=lambda d: (-room[d], d)):
        if (
            device != walk.where[group]
            and room[device] > 0
            and walk.key_of(walk.propose(group, device)) < before
        ):
            walk.accept()
            return True
    return False


def _sizes(oracle: Oracle) -> Ints:
    """Bytes that each group holds, roughly: persistent bytes and outputs."""
    ops = oracle.prepared.graph.ops
    held = [
        op.param_bytes + op.grad_bytes + op.state_bytes + sum(t.bytes for t in op.made)
        for op in ops
    ]
    return np.array([sum(held[i] for i in members) for members in oracle.groups])


def annealing(trial: Trial) -> None:
    """Simulated annealing (Kirkpatrick, Gelatt, Vecchi, 1983): a group moves, often to where a
    neighbour stands.

    A worsening by a factor 1 + x is accepted with probability exp(-x / temperature). The first
    temperature is the mean change by moves from the start, for the better or the worse, so it has
    no scale to set; it falls geometrically with the share of the budget, in three rounds. What does
    not fit counts as slower by the factor 1 + its relative excess.
    """
    start = best_start(trial)
    movable = np.array([group for group, one in enumerate(trial.choices) if len(one) > 1], np.int64)
    if start is None or not len(movable):
        return
    near, hot = neighbours(trial.oracle), _mean_change(trial, trial.walk(start), movable)
    for number in range(ROUNDS):
        assert trial.base is not None  # there is a start
        _cool(trial, trial.walk(trial.base[0]), movable, near, hot, number)


def _mean_change(trial: Trial, walk: Walk, movable: Ints) -> float:
    """The mean relative change by random moves that change anything, at least COLDEST.

    Worsenings alone would say nothing of a bad start, and the search would never climb.
    """
    base = energy(trial.oracle, walk.cost)
    found = []
    for group in trial.random.choice(movable, PROBES).tolist():
        others = [d for d in trial.choices[group].tolist() if d != walk.where[group]]
        asked = energy(trial.oracle, walk.propose(group, int(trial.random.choice(others))))
        if asked != base > 0 and asked < inf:
            found.append(abs(asked / base - 1.0))
    return max(float(np.mean(found)) if found else 0.0, COLDEST)


def _cool(
    trial: Trial, walk: Walk, movable: Ints, near: Sequence[Sequence[int]], hot: float, number: int
) -> None:
    """One round: from hot to cold over its part of the budget."""
    current = energy(trial.oracle, walk.cost)
    random = trial.random
    while trial.share < (number + 1) / ROUNDS or number == ROUNDS - 1:
        temperature = hot * COOLING ** min(max(trial.share * ROUNDS - number, 0.0), 1.0)
        lucks, places = (
            random.exponential(temperature, BLOCK).tolist(),
            random.random(BLOCK).tolist(),
        )
        for group, luck, place in zip(
            random.choice(movable, BLOCK).tolist(), lucks, places, strict=True
        ):
            device = _draw(place, near[group], walk.where, trial.choices[group])
            if device == walk.where[group]:
                continue
            asked = energy(trial.oracle, walk.propose(group, device))
            if asked <= current * (1.0 + luck):
                walk.accept()
                current = asked


def _draw(luck: float, near: Sequence[int], where: Sequence[int], allowed: Ints) -> int:
    """A device: that of a random neighbour, or any; ``luck`` is uniform in [0, 1)."""
    if luck < NEAR and near:
        device = where[near[int(luck / NEAR * len(near))]]
        if device in allowed:
            return device
    share = luck / NEAR if luck < NEAR else (luck - NEAR) / (1 - NEAR)
    return int(allowed[int(share * len(allowed))])
