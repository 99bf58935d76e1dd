"""Local search over one placement, a move at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from ...ground.errors import InputError
from ...nouns.cluster import Cluster
from ...nouns.graph import Graph
from ...nouns.structure import unit_of, units
from ...nouns.taskgraph import Ints
from ..cost import WORSE, Cost, check_limit, limit_ps_of

if TYPE_CHECKING:  # importing it imports numba
    from .evaluator import PlacementEvaluator

Units = str | int | np.integer[Any] | Ints | Sequence[str | int]
"""Ops or groups: a name, or a row of ``PlacementSession.groups``, or several."""
MEMORY = 32  # proposals over which the share of accepted ones is averaged
# Snapshots of a placement pay where several moves from it are looked at: they are given up where
# more than the second of these shares is accepted, and made again below the first.
FEW, SEVERAL = 0.12, 0.2


class PlacementSession:
    """A current placement, and proposals to move one op or group; not for several threads at once.

    ``cost`` is that of the current placement. A proposal is answered exactly: by re-simulating only
    what it can change (moves.py), or by step times alone, where an ``evaluator`` is handed in, else
    by ``evaluate``, which answers device indices by op. The evaluator looks at no memory: where no
    device has a capacity nothing can exceed anything, and ``peaks`` is empty. Where some has
    (``limited``), it only tells what is worse than a limit, and ``evaluate`` answers the rest.
    Raises InputError for a graph without ops.
    """

    def __init__(
        self,
        graph: Graph,
        cluster: Cluster,
        placement: Ints,
        evaluate: Callable[[Ints, float | None], Cost | None],
        evaluator: PlacementEvaluator | None,
        limited: bool = False,
    ) -> None:
        if not graph.ops:
            raise InputError("graph: there is nothing to place")
        self.cluster, self.groups = cluster, units(graph)
        self._placement, self._evaluate, self._evaluator = placement.copy(), evaluate, evaluator
        self._limited, self._moves = limited, None if evaluator is None else evaluator.moves()
        self._has_base = self._replayed = self._in_haste = False
        self._accepted = 0.0  # the share of late
        self._proposed: tuple[Ints, int, Cost] | None = None
        rows = unit_of(graph)
        self._rows = {op.name: row for op, row in zip(graph.ops, rows, strict=True)}
        self._rows |= {name: rows[members[0]] for name, members in graph.groups.items()}
        self._members = [np.array(members, np.int64) for members in self.groups]
        cost = None if limited else self._rebase()
        cost = cost or self._whole(None)
        assert cost is not None  # nothing exceeds no limit
        self.cost = cost

    @property
    def placement(self) -> Ints:
        """Device indices by op of the current placement (a copy)."""
        return self._placement.copy()

    @overload
    def propose(self, units: Units, device: str | int, limit: None = None) -> Cost: ...

    @overload
    def propose(self, units: Units, device: str | int, limit: float | None) -> Cost | None: ...

    def propose(self, units: Units, device: str | int, limit: float | None = None) -> Cost | None:
        """The cost with one op or group (a name, or a row of ``groups``) on another device; None,
        often long before all is simulated, where ``cost.seconds`` would exceed ``limit``. Several
        units may be moved together, where they stand on one device.

        An op in a colocation group takes its group along. What exceeds the limit cannot be
        accepted. Raises InputError for what is not there, or cannot be.
        """
        if limit is not None:
            check_limit(limit)
        members, index = self._members_of(units), self._device(device)
        step_ps, self._proposed = self._step_ps(members, index, limit), None
        if step_ps == WORSE:
            return None
        cost = None if step_ps is None else Cost.fitting(step_ps)
        if cost is None or (self._limited and not cost.exceeds(limit)):
            cost = self._in_full(members, index, limit)
        if cost is None or cost.exceeds(limit):
            return None
        self._proposed = (members, index, cost)
        return cost

    def _step_ps(self, members: Ints, device: int, limit: float | None) -> int | None:
        """The step time of a move alone, where that helps; it may be WORSE."""
        self._replayed = False
        self._accepted -= self._accepted / MEMORY
        if self._moves is None or (self._limited and limit is None):
            return None
        self._in_haste = self._accepted > (FEW if self._in_haste else SEVERAL)
        if self._in_haste:
            return None
        if not self._has_base and self._rebase() is None:
            return None
        limit_ps = None if limit is None else limit_ps_of(limit)
        step_ps = self._moves.step_ps(self._placement, members, device, limit_ps)
        self._replayed = step_ps is not None
        return step_ps

    def _members_of(self, units: Units) -> Ints:
        """The ops of units, each once. Raises InputError where they stand on several devices."""
        if isinstance(units, (str, int, np.integer)):
            return self._members[self._row(units)]
        rows = self._rows_of(units)
        if not rows:
            raise InputError("session: no op or group is proposed")
        if len(rows) == 1:
            return self._members[rows[0]]
        members = np.concatenate([self._members[row] for row in rows])
        # Replays put all of them back to one device.
        if (self._placement[members] != self._placement[members[0]]).any():
            raise InputError("session: only what stands on one device can be moved together")
        return members

    def _rows_of(self, units: Ints | Sequence[str | int]) -> list[int]:
        """The rows of units, each once."""
        if not isinstance(units, np.ndarray):
            return list(dict.fromkeys(map(self._row, units)))
        if units.ndim != 1 or units.dtype.kind not in "iu":
            raise InputError(
                f"session: units must be one row of whole numbers, got {units.dtype} of shape "
                f"{units.shape}"
            )
        rows = list(dict.fromkeys(units.tolist()))
        for extreme in {min(rows, default=0), max(rows, default=0)}:  # the others lie between
            self._row(extreme)
        return rows

    def _in_full(self, members: Ints, device: int, limit: float | None) -> Cost | None:
        before = int(self._placement[members[0]])
        self._placement[members] = device
        try:
            return self._whole(limit)
        finally:
            self._placement[members] = before

    def _whole(self, limit: float | None) -> Cost | None:
        """The cost of the placement as it stands, evaluated from the start; None where it was seen
        to exceed the limit.
        """
        evaluator = None if self._limited else self._evaluator
        step_ps = None if evaluator is None else evaluator.step_ps(self._placement)
        return self._evaluate(self._placement, limit) if step_ps is None else Cost.fitting(step_ps)

    def accept(self) -> Cost:
        """Make the last proposal the current placement. Raises InputError where there is none."""
        members, device, cost = self._last()
        before = int(self._placement[members[0]])
        self._placement[members] = device
        self._accepted += 1 / MEMORY
        if self._replayed:
            self._rebase(members, before)
        else:
            self._has_base = False
        self._proposed, self.cost = None, cost
        return cost

    def _rebase(self, members: Ints | None = None, before: int = 0) -> Cost | None:
        """Make the current placement the base of moves (``members`` were just moved to where they
        are); None, and no moves any more, where that is not possible.
        """
        moves = self._moves
        step_ps = None if moves is None else moves.rebase(self._placement, members, before)
        self._has_base = step_ps is not None
        if step_ps is None:
            self._moves = None
            return None
        return Cost.fitting(step_ps)

    def reject(self) -> None:
        """Forget the last proposal. Raises InputError where there is none."""
        self._last()
        self._proposed = None

    def _last(self) -> tuple[Ints, int, Cost]:
        if self._proposed is None:
            raise InputError("session: nothing is proposed")
        return self._proposed

    def _row(self, unit: str | int | np.integer[Any]) -> int:
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


def _index(label: str, number: int | np.integer[Any], count: int) -> int:
    if isinstance(number, bool) or not 0 <= number < count:
        raise InputError(f"session: {label} {number} is not in 0..{count - 1}")
    return int(number)
