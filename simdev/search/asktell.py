"""Ask and tell: a method proposes placements and is told their costs; ``search`` drives it over the oracle."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..errors import InputError
from ..oracle import Cost, Oracle
from ..taskgraph import Ints
from .space import choices

FIRST_TEMPERATURE, LAST_TEMPERATURE = 0.05, 0.0002  # relative to the step time: a worsening that is often accepted


class Method(Protocol):
    """A way to search. Placements are device indices by group (``oracle.groups``)."""

    def ask(self) -> Ints:
        """The next placement to try."""

    def tell(self, placement: Ints, cost: Cost) -> None:
        """What the placement that was asked for costs."""


class Random:
    """Every group on any of its devices, each time anew. ``devices`` lists those of each group."""

    def __init__(self, devices: Sequence[Ints], budget: int, seed: int) -> None:
        self._devices, self._random = tuple(devices), np.random.default_rng(seed)

    def ask(self) -> Ints:
        """A random placement."""
        return np.array([self._random.choice(one) for one in self._devices], np.int64)

    def tell(self, placement: Ints, cost: Cost) -> None:
        """Nothing is learnt."""


class Annealing:
    """Simulated annealing (Kirkpatrick, Gelatt, Vecchi, Science 1983): one group moves to another device.

    A placement is accepted where it is better, and with probability exp(-worsening / temperature) where it is worse;
    the temperature falls geometrically over ``budget`` proposals. What does not fit counts as slower by the factor
    of its excess over ``capacity`` (bytes; 1 + excess / capacity). Starts where ``start`` is, else at random.
    """

    def __init__(
        self, devices: Sequence[Ints], budget: int, seed: int, capacity: int = 1, start: Ints | None = None
    ) -> None:
        self._devices, self._random, self._budget = tuple(devices), np.random.default_rng(seed), max(budget, 2)
        self._movable = [row for row, one in enumerate(devices) if len(one) > 1]
        self._current = Random(devices, budget, seed).ask() if start is None else start.copy()
        self._energy, self._told, self._capacity = math.inf, 0, max(capacity, 1)

    def ask(self) -> Ints:
        """The current placement with one group moved (at first, and where nothing can move, the current one)."""
        proposal = self._current.copy()
        if self._told and self._movable:
            row = int(self._random.choice(self._movable))
            others = self._devices[row][self._devices[row] != proposal[row]]
            proposal[row] = self._random.choice(others)
        return proposal

    def tell(self, placement: Ints, cost: Cost) -> None:
        """Accept or forget."""
        energy = cost.step_ps * (1 + cost.memory_excess / self._capacity)
        cooling = (LAST_TEMPERATURE / FIRST_TEMPERATURE) ** min(self._told / (self._budget - 1), 1.0)
        worse = energy - self._energy
        scale = self._energy * FIRST_TEMPERATURE * cooling
        if worse <= 0 or (scale > 0 and self._random.random() < math.exp(-worse / scale)):
            self._current, self._energy = placement.copy(), energy
        self._told += 1


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """What a search found: the best placement (devices by group), its cost, and how it came there.

    ``curve[i]`` is the step time in seconds of the best placement that fits among the first i + 1 (inf before one
    did). Where none fits, the best is that of the smallest excess.
    """

    placement: Ints
    cost: Cost
    curve: tuple[float, ...]


def _random(oracle: Oracle, budget: int, seed: int) -> Method:
    return Random(choices(oracle), budget, seed)


def _annealing(oracle: Oracle, budget: int, seed: int) -> Method:
    limits = [int(device.memory) for device in oracle.cluster.devices if device.memory is not None]
    return Annealing(choices(oracle), budget, seed, max(limits, default=1))


METHODS: dict[str, Callable[[Oracle, int, int], Method]] = {"random": _random, "annealing": _annealing}


def search(oracle: Oracle, method: str | Method, budget: int, seed: int = 0) -> Found:
    """Ask ``method`` (one of METHODS, or your own) ``budget`` times and tell it what the oracle says.

    The same seed gives the same answer. Raises InputError for a method that is not there, a budget under 1, a group
    that can stand nowhere, and for a malformed placement that a method proposes (no route between its devices).
    """
    if budget < 1:
        raise InputError(f"budget: must be at least 1, got {budget}")
    if isinstance(method, str):
        if method not in METHODS:
            raise InputError(f'method: must be one of {", ".join(METHODS)}, got "{method}"')
        method = METHODS[method](oracle, budget, seed)
    best: tuple[Ints, Cost] | None = None
    curve: list[float] = []
    for _ in range(budget):
        placement = method.ask()
        cost = oracle(placement)
        if best is None or (cost.memory_excess, cost.step_ps) < (best[1].memory_excess, best[1].step_ps):
            best = placement.copy(), cost
        curve.append(best[1].seconds if best[1].feasible else math.inf)
        method.tell(placement, cost)
    assert best is not None  # the budget is at least 1
    return Found(*best, tuple(curve))
