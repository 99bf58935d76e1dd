"""What both environments stand on: where groups may stand, what a device index that is none of
these leads to, and how bad a placement is.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...ground.errors import InputError
from ...nouns.taskgraph import Floats, Ints
from ...oracle import Cost, Oracle
from ...search.features import GraphFeatures, features_of
from ...search.space import IMPOSSIBLE, alone, choices, reference_ps, relative_excess
from ...search.trial import REFUSED

MASKED = -1.0  # reward of an action that the mask rules out: as much as the reference step
WORST = 1000.0  # no placement is worse; one that cannot be is as bad


class Ground:
    """The groups of an oracle and its devices.

    ``mask`` [G, D] is 1 where a group may stand, ``seconds`` [G, D] its time there (else 0),
    ``first`` [G] the first such device, ``fastest`` [G] the one of the least time. ``single`` is
    the best device for all of them (None: no device runs all). ``reference_ps`` is
    ``space.reference_ps``; ``penalty`` what a relative excess over memory of 1 costs, in units of
    it. ``longest`` is the sum of the groups' longest seconds, ``memory`` [G] each group's share of
    the bytes that all hold. Raises InputError for a graph without ops, and for a group that can
    stand nowhere.
    """

    def __init__(self, oracle: Oracle, penalty: float) -> None:
        if not oracle.groups:
            raise InputError("graph: there is nothing to place")
        singles = alone(oracle, choices(oracle))  # raises for a group that can stand nowhere
        self.oracle, self.penalty = oracle, penalty
        self.features: GraphFeatures = features_of(oracle)
        self.mask = self.features.groups.able.astype(np.int8)
        self.seconds: Floats = self.features.groups.seconds
        self.first: Ints = self.mask.argmax(axis=1)
        self.fastest: Ints = np.where(self.mask, self.seconds, np.inf).argmin(axis=1)
        nodes = self.features.groups
        held = nodes.persistent_bytes + nodes.output_bytes + nodes.workspace_bytes
        self.memory: Floats = share(held, held.sum())
        self.longest = float(self.seconds.max(axis=1).sum())
        costs = [_cost(oracle, placement) for placement in singles]
        self.reference_ps = reference_ps(oracle, costs)
        pairs = zip(singles, costs, strict=True)
        steps = [(cost.step_ps, int(row[0])) for row, cost in pairs if cost is not IMPOSSIBLE]
        self.single = min(steps)[1] if steps else None

    @property
    def groups(self) -> int:
        """How many groups there are."""
        return len(self.mask)

    @property
    def devices(self) -> int:
        """How many devices there are."""
        return self.features.devices

    def legal(self, group: int, action: np.int64) -> tuple[int, float, dict[str, Any]]:
        """The device to which an action sends a group, the reward for that alone, and what is to be
        told.

        Where the group cannot stand there, its fastest device, at the reward MASKED: to name that
        device would have led to the same at no cost. Raises InputError for no device index.
        """
        device = int(action)
        if not 0 <= device < self.devices:
            raise InputError(f"action: device {action} is not in 0..{self.devices - 1}")
        if self.mask[group, device]:
            return device, 0.0, {}
        error = f"group {group} cannot stand on device {device}"
        return int(self.fastest[group]), MASKED, {"error": error}

    def badness(self, cost: Cost) -> float:
        """The step relative to ``reference_ps`` plus ``penalty`` times the relative excess over
        memory; at most WORST.
        """
        excess = relative_excess(self.oracle, cost)
        return min(cost.step_ps / self.reference_ps + self.penalty * excess, WORST)

    def allowed(self, group: int | None) -> NDArray[np.int8]:
        """The mask of actions for a group; none where there is no group."""
        return np.zeros(self.devices, np.int8) if group is None else self.mask[group].copy()

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The graph as ``reset`` tells it: ``nodes`` [G, F] (``Nodes.scaled``), ``edges`` [2, E] of
        group numbers, source over target, and ``edge_bytes`` [E], relative to the largest.
        """
        return {name: array.copy() for name, array in self._arrays.items()}

    @cached_property
    def _arrays(self) -> dict[str, NDArray[Any]]:
        groups = self.features.groups
        return {
            "nodes": groups.scaled(),
            "edges": np.stack((groups.source, groups.target)),
            "edge_bytes": share(groups.edge_bytes, groups.edge_bytes.max(initial=0.0)).astype(
                np.float32
            ),
        }


def _cost(oracle: Oracle, placement: Ints) -> Cost:
    try:
        return oracle(placement)
    except REFUSED:
        return IMPOSSIBLE


def outcome_of(cost: Cost) -> dict[str, Any]:
    """What is told of a cost."""
    return {name: getattr(cost, name) for name in ("seconds", "feasible", "memory_excess")}


def share(part: Floats, whole: float) -> Floats:
    """The part of a whole; 0 where there is nothing."""
    return part / whole if whole > 0 else part * 0.0
