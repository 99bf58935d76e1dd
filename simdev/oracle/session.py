"""Session: local search over one placement, a move at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..errors import InputError
from ..taskgraph import Ints, Rows
from .cost import TOO_LONG, Cost

if TYPE_CHECKING:
    from .oracle import Oracle, Placement
    from .short import Short


class Session:
    """A current placement, and proposals to move one op or group; not for several threads at once.

    ``cost`` is that of the current placement. A proposal is answered exactly, by re-simulating only
    what it can change where the short path applies (moves.py). Where some device has a capacity,
    memory is computed for each proposal too; elsewhere ``peaks`` is empty, since nothing can exceed
    anything. Raises InputError for a graph without ops.
    """

    def __init__(self, oracle: Oracle, placement: Placement) -> None:
        if not oracle.groups:
            raise InputError("graph: there is nothing to place")
        self.oracle, self._placement = oracle, oracle.placement(placement).copy()
        self._limited = any(device.memory is not None for device in oracle.cluster.devices)
        short = oracle._short if oracle._plain and oracle.order.policy == "fifo" else None
        self._moves = None if short is None or self._limited else _Moves(short, oracle.groups)
        self._proposed: tuple[Ints, int, Cost] | None = None
        self._rows = {op.name: int(oracle._group_of[i]) for i, op in enumerate(oracle.graph.ops)}
        self._rows.update(
            {
                name: int(oracle._group_of[members[0]])
                for name, members in oracle.graph.groups.items()
            }
        )
        self._members = [np.array(members, np.int64) for members in oracle.groups]
        self.cost = self._rebase(-1) or oracle(self._placement)

    @property
    def placement(self) -> Ints:
        """Device indices by op of the current placement (a copy)."""
        return self._placement.copy()

    def propose(self, unit: str | int, device: str | int) -> Cost:
        """The cost with one op or group (a name, or a row of ``oracle.groups``) on another device.

        An op in a colocation group takes its group along. Raises InputError for what is not there,
        or cannot be.
        """
        row, where = self._row(unit), self._device(device)
        members = self._members[row]
        step_ps = TOO_LONG
        if self._moves is not None and self._moves.allowed[row][where]:
            step_ps = self._moves.evaluate(self._placement, members, where)
        cost = self._in_full(members, where) if step_ps == TOO_LONG else _cost(step_ps)
        self._proposed = (members, where, cost)
        return cost

    def _in_full(self, members: Ints, where: int) -> Cost:
        before = int(self._placement[members[0]])
        self._placement[members] = where
        try:
            return self.oracle(self._placement)
        finally:
            self._placement[members] = before

    def accept(self) -> Cost:
        """Make the last proposal the current placement. Raises InputError where there is none."""
        members, where, cost = self._last()
        self._placement[members] = where
        if self._moves is not None:
            self._rebase(int(self._moves.base.columns.rows[1]))
        self._proposed, self.cost = None, cost
        return cost

    def _rebase(self, row: int) -> Cost | None:
        """Make the current placement the base of moves; None, and no moves any more, where that is
        not possible.
        """
        step_ps = TOO_LONG if self._moves is None else self._moves.rebase(self._placement, row)
        if step_ps == TOO_LONG:
            self._moves = None
            return None
        return _cost(step_ps)

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
        if isinstance(unit, bool) or not 0 <= unit < len(self._members):
            raise InputError(f"session: group {unit} is not in 0..{len(self._members) - 1}")
        return int(unit)

    def _device(self, device: str | int) -> int:
        cluster = self.oracle.cluster
        if isinstance(device, str):
            if device not in cluster.index:
                raise InputError(f'session: no device named "{device}"')
            return cluster.index[device]
        if isinstance(device, bool) or not 0 <= device < len(cluster.devices):
            raise InputError(f"session: device {device} is not in 0..{len(cluster.devices) - 1}")
        return int(device)


def _cost(step_ps: int) -> Cost:
    return Cost(step_ps / 1e12, True, 0, step_ps, ())


class _Moves:
    """The base run of the current placement, and what the moves kernels need."""

    def __init__(self, short: Short, groups: Sequence[Sequence[int]]) -> None:
        from ..jit import Table
        from .moves import base_for
        from .question import work_for

        question, graph = short.question.columns, short.prepared.graph
        producers = Rows.of([producer for producer, _ in reads] for reads in graph.reads)
        self.short, self.work = short, Table.of(work_for(question))
        self.base = Table.of(base_for(question, producers))
        # Where some pair of devices has no route, a move may be wrong: then it is tried in full,
        # which tells why.
        known = (question.duration.reshape(len(graph.ops), -1) >= 0) & bool(question.all_routes)
        allowed = (np.logical_and.reduce(known[list(members)]) for members in groups)
        self.allowed = list(allowed)

    def evaluate(self, placement: Ints, members: Ints, device: int) -> int:
        """The step time in ps of the base placement with these ops moved; TOO_LONG where the short
        path ends.
        """
        from .moves import replay

        return replay(
            self.short.question.words, self.work.words, self.base.words, placement, members, device
        )

    def rebase(self, placement: Ints, row: int) -> int:
        """Make a placement the base, from a snapshot that it shares with the old one (-1: none);
        its step time in ps.

        TOO_LONG where the step does not fit the short path. Raises InputError.
        """
        from .moves import record_base

        if row < 0:
            self.short.require_valid(placement)
        return int(
            record_base(self.short.question.words, self.work.words, self.base.words, placement, row)
        )
