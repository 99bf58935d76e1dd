"""Local search over one placement, a move at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ...cluster import Cluster
from ...errors import InputError
from ...graph import Graph
from ...structure import unit_of, units
from ...taskgraph import Ints
from ..cost import Cost

if TYPE_CHECKING:  # importing it imports numba
    from .evaluator import PlacementEvaluator


class PlacementSession:
    """A current placement, and proposals to move one op or group; not for several threads at once.

    ``cost`` is that of the current placement. A proposal is answered exactly: by re-simulating only
    what it can change (moves.py), or by step times alone, where an ``evaluator`` is handed in, else
    by ``evaluate``, which answers device indices by op. The evaluator looks at no memory and is for
    clusters without capacities: nothing can exceed anything there, and ``peaks`` is empty. Raises
    InputError for a graph without ops.
    """

    def __init__(
        self,
        graph: Graph,
        cluster: Cluster,
        placement: Ints,
        evaluate: Callable[[Ints], Cost],
        evaluator: PlacementEvaluator | None,
    ) -> None:
        if not graph.ops:
            raise InputError("graph: there is nothing to place")
        self.cluster, self.groups = cluster, units(graph)
        self._placement, self._evaluate, self._evaluator = placement.copy(), evaluate, evaluator
        self._moves = None if evaluator is None else evaluator.moves()
        self._proposed: tuple[Ints, int, Cost] | None = None
        rows = unit_of(graph)
        self._rows = {op.name: row for op, row in zip(graph.ops, rows, strict=True)}
        self._rows |= {name: rows[members[0]] for name, members in graph.groups.items()}
        self._members = [np.array(members, np.int64) for members in self.groups]
        self.cost = self._rebase(False) or self._whole()

    @property
    def placement(self) -> Ints:
        """Device indices by op of the current placement (a copy)."""
        return self._placement.copy()

    def propose(self, unit: str | int, device: str | int) -> Cost:
        """The cost with one op or group (a name, or a row of ``groups``) on another device.

        An op in a colocation group takes its group along. Raises InputError for what is not there,
        or cannot be.
        """
        members, index = self._members[self._row(unit)], self._device(device)
        step_ps = None
        if self._moves is not None:
            step_ps = self._moves.step_ps(self._placement, members, index)
        cost = self._in_full(members, index) if step_ps is None else Cost.of(step_ps)
        self._proposed = (members, index, cost)
        return cost

    def _in_full(self, members: Ints, device: int) -> Cost:
        before = int(self._placement[members[0]])
        self._placement[members] = device
        try:
            return self._whole()
        finally:
            self._placement[members] = before

    def _whole(self) -> Cost:
        """The cost of the placement as it stands, evaluated from the start."""
        evaluator = self._evaluator
        step_ps = None if evaluator is None else evaluator.step_ps(self._placement)
        return self._evaluate(self._placement) if step_ps is None else Cost.of(step_ps)

    def accept(self) -> Cost:
        """Make the last proposal the current placement. Raises InputError where there is none."""
        members, device, cost = self._last()
        self._placement[members] = device
        self._rebase(True)
        self._proposed, self.cost = None, cost
        return cost

    def _rebase(self, accepted: bool) -> Cost | None:
        """Make the current placement the base of moves; None, and no moves any more, where that is
        not possible.
        """
        step_ps = None if self._moves is None else self._moves.rebase(self._placement, accepted)
        if step_ps is None:
            self._moves = None
            return None
        return Cost.of(step_ps)

    def reject(self) -> None:
        """Forget the last proposal. Raises InputError where there is none."""
        self._last()
        self._proposed = None

    def _last(self) -> tuple[Ints, int, Cost]:
        if self._proposed is None:
            raise InputError("session: nothing is proposed")
        return self._proposed

    def _row(self, unit: str | int) -> int:
        if isinstance(unit, str):
            if unit not in self._rows:
                raise InputError(f'session: no op or group named "{unit}"')
            return self._rows[unit]
        return _index("group", unit, len(self._members))

    def _device(self, device: str | int) -> int:
        if isinstance(device, str):
            if device not in self.cluster.index:
                raise InputError(f'session: no device named "{device}"')
            return self.cluster.index[device]
        return _index("device", device, len(self.cluster.devices))


def _index(label: str, number: int, count: int) -> int:
    if isinstance(number, bool) or not 0 <= number < count:
        raise InputError(f"session: {label} {number} is not in 0..{count - 1}")
    return int(number)
