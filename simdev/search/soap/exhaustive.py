"""The best of all strategies that FlexFlow may propose, and the proof that it is (MLSys 2019,
section 8.4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...oracle import Cost
from ...strategy import Configuration
from ...taskgraph import Ints
from ..trial import Trial
from .bounds import NEVER, Bounds
from .flexflow import Space, space_of, starts
from .layers import Layers
from .parts import Parts
from .strategies import changes

BLOCK = 256  # partial strategies that are taken on together
Block = tuple[Ints, Ints]
"""Choices of the first layers, a row each, and the bound of each row in ps."""


def exhaustive(trial: Trial) -> None:
    """Branch and bound over the configurations of all layers, depth first, in program order.

    What is left out cannot be faster than the best so far: bounds.py tells why. No two strategies
    are taken to cost the same. It starts with what no change of a single layer makes better.
    ``details`` tells the size of the ``space``, how many partial strategies were ``bounded``, and
    ``bound_s``, below which no strategy is; ``exact``: whether all were looked at. Where nothing
    fits, nothing can be left out.
    """
    space = space_of(Layers(trial.asked.graph, trial.asked.cluster))
    trial.details |= {"space": space.size, "bounded": 0, "bound_s": 0.0, "exact": False}
    branch_and_bound(trial, space)


def branch_and_bound(trial: Trial, space: Space) -> None:
    """The same over some space. Raises SpentError."""
    asked = _Asked(trial, space)
    for start in starts(trial, space):
        _descend(asked, [_place(own, one) for own, one in zip(space.choices, start, strict=True)])
    parts = Parts(trial.asked, space, trial.given)
    parts.fill(trial.require_budget)
    search = _Open(asked, [Bounds(parts, count) for count in range(len(space.choices) + 1)])
    trial.details["bounded"] = 0
    try:
        while search.blocks:
            trial.require_budget()
            search.step()
    finally:
        least = min([search.limit, *(int(bounds.min()) for _, bounds in search.blocks)])
        trial.details |= {"bounded": search.bounded, "bound_s": least / 1e12}
    trial.details["exact"] = True


def _place(own: Sequence[Configuration], one: Configuration) -> int:
    """The choice that a configuration is; the first where it is none."""
    return next((at for at, other in enumerate(own) if other == one), 0)


def _descend(asked: _Asked, choice: list[int]) -> None:
    """Give each layer in turn its best configuration, until no layer has a better one."""
    best, stale, layer = asked.ask(choice), 0, 0
    while stale < len(choice):
        stale += 1
        for at in range(len(asked.space.choices[layer])):
            key = asked.ask([*choice[:layer], at, *choice[layer + 1 :]])
            if key < best:
                best, choice, stale = key, [*choice[:layer], at, *choice[layer + 1 :]], 1
        layer = (layer + 1) % len(choice)


class _Open:
    """Partial strategies that are to be taken on, those of most layers last."""

    def __init__(self, asked: _Asked, bounds: Sequence[Bounds]) -> None:
        self.asked, self.bounds, self.bounded = asked, bounds, 0
        root = np.zeros((1, 0), np.int64)
        self.blocks: list[Block] = [(root, bounds[0].below(root, NEVER)[:, 0])]

    @property
    def limit(self) -> int:
        """What a strategy has to be below, in ps."""
        best = self.asked.trial.best_strategy
        return best[1].step_ps if best is not None and best[1].feasible else NEVER

    def step(self) -> None:
        """Take on the most promising of the longest ones.

        Where that raises, they are still there.
        """
        rows, bounds = self.blocks[-1]
        later = rows[BLOCK:], bounds[BLOCK:]
        promising = bounds[:BLOCK] < self.limit
        rows, bounds = rows[:BLOCK][promising], bounds[:BLOCK][promising]
        if rows.shape[1] < len(self.bounds) - 1:
            found: tuple[Block, ...] = later, self._branch(rows)
        else:
            self._ask(rows, bounds)
            found = (later,)
        self.blocks[-1:] = [block for block in found if len(block[0])]

    def _branch(self, rows: Ints) -> Block:
        """With every choice of the next layer, the most promising first."""
        bounds = self.bounds[rows.shape[1] + 1].below(rows, self.limit)
        self.bounded += bounds.size
        row, choice = np.nonzero(bounds < self.limit)
        order = np.argsort(bounds[row, choice], kind="stable")
        row, choice = row[order], choice[order]
        return np.column_stack((rows[row], choice)), bounds[row, choice]

    def _ask(self, rows: Ints, bounds: Ints) -> None:
        # so that few layers change from one to the next
        for at in np.lexsort(rows.T[::-1]).tolist():
            if bounds[at] < self.limit:
                self.asked.ask(rows[at].tolist())


class _Asked:
    """A session that goes from one strategy to the next, and counts each."""

    def __init__(self, trial: Trial, space: Space) -> None:
        self.trial, self.space = trial, space
        self._choice = [0] * len(space.choices)
        self._session = trial.asked.session(
            space.strategy([own[0] for own in space.choices], trial.given)
        )
        self._changes: dict[tuple[int, int], Mapping[str, Configuration | None]] = {}

    def ask(self, choice: Sequence[int]) -> tuple[int, int]:
        """How good a strategy is: bytes over all capacities, then ps. Raises SpentError."""
        self.trial.require_budget()
        told: dict[str, Configuration | None] = {}
        for layer, (old, new) in enumerate(zip(self._choice, choice, strict=True)):
            if old != new:
                told |= self._change(layer, new)
        cost: Cost = self._session.propose(told)
        self._session.accept()
        self._choice = list(choice)
        space, given = self.space, self.trial.given
        self.trial.note_strategy(
            cost,
            lambda: space.strategy(
                [own[at] for own, at in zip(space.choices, choice, strict=True)], given
            ),
        )
        return cost.memory_excess, cost.step_ps

    def _change(self, number: int, at: int) -> Mapping[str, Configuration | None]:
        if (number, at) not in self._changes:
            layers = self.space.layers
            self._changes[number, at] = changes(
                layers, layers.all[number], self.space.choices[number][at]
            )
        return self._changes[number, at]
