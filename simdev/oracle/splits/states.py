"""What a program of split ops holds: tables whose changes can be taken back, and the parts and sums
of ops, made once however often they come back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ...lowering.partition.cuts import Cut, drafts_of
from ...lowering.partition.layout import Grid, Local, ShardDraft
from ...lowering.partition.problem import Placed
from ...lowering.partition.sharding import Sharding

K = TypeVar("K")
V = TypeVar("V")
Log = list[tuple[dict[Any, Any], Any, Any]]
_ABSENT = object()


class Logged(dict[K, V]):
    """A dict whose changes can be taken back: ``log`` holds what stood there before."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self.log = log

    def __setitem__(self, key: K, value: V) -> None:
        before = self.get(key, _ABSENT)
        if before is not value:
            self.log.append((self, key, before))
            super().__setitem__(key, value)

    def forget(self, key: K) -> None:
        """Drop an entry, where there is one."""
        if key in self:
            self.log.append((self, key, self[key]))
            super().__delitem__(key)


def take_back(log: Log) -> None:
    """Undo all changes of a log, the last one first."""
    for table, key, before in reversed(log):
        if before is _ABSENT:
            dict.pop(table, key, None)
        else:
            dict.__setitem__(table, key, before)
    log.clear()


@dataclass(eq=False, slots=True)
class SplitOp:
    """The parts of one op on their devices, with how its outputs lie: made once, however often they
    come back.

    Where ``cut`` tells all parts axis by axis, they and their drafts are made where a rule asks for
    them: few do. ``addend`` is which partial result the first part goes on with, ``partial`` are
    the outputs in partial results, ``words`` is where the columns hold its geometry and its devices
    (blocks.py).
    """

    op: int
    divided: str | None
    devices: Sequence[int]
    parts: Callable[[], list[Placed]]
    cut: Cut | None = None
    addend: int | None = None
    layouts: list[Grid | Local] | None = None
    partial: frozenset[int] = frozenset()
    words: tuple[int, int] | None = None
    _placed: list[Placed] | None = None
    _drafts: list[ShardDraft] | None = None

    @property
    def placed(self) -> list[Placed]:
        """The parts."""
        if self._placed is None:
            self._placed = self.parts()
        return self._placed

    def drafts(self, sharding: Sharding) -> list[ShardDraft]:
        """The drafts of the parts."""
        if self._drafts is None:
            self._drafts = (
                sharding.drafts_of(self.op, self.placed)
                if self.cut is None
                else drafts_of(self.cut, sharding.graph.ops[self.op], self.op, self.devices)
            )
        return self._drafts


@dataclass(eq=False, slots=True)
class Sums:
    """How the values of a tensor that lies in partial results are made, cut along a dimension; by
    ``make``, where somebody asks for it.

    ``words``: see ``SplitOp``; and how many sums there may be.
    """

    made: SplitOp
    output: int
    cut: int | None
    make: Callable[[], Grid]
    words: tuple[int, int] | None = None
    _grid: Grid | None = None

    @property
    def grid(self) -> Grid:
        """How the values lie."""
        if self._grid is None:
            self._grid = self.make()
        return self._grid
