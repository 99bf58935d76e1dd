"""DualPipe: two copies of a model, whose microbatches go through the ranks in two directions."""

from __future__ import annotations

from collections import deque

from ...ground.errors import InputError
from .actions import BACKWARD, FORWARD, INPUT, WEIGHT, Action
from .sizes import check_sizes
from .table import Schedule


def dualpipe(ranks: int, microbatches: int) -> Schedule:
    """The bidirectional schedule of DeepSeek-V3 (2024, section 3.2.1, and its published code).

    Of p stages rank r holds stage r of one copy and stage p - 1 - r of the other. Even microbatches
    go through the first, odd ones through the second. In the middle of a step a forward of one
    overlaps with a whole backward of the other (``Schedule.overlaps``); at the end backwards are
    split. Raises InputError unless the ranks are even and each copy has a microbatch a rank.
    """
    check_dualpipe("DualPipe", ranks, microbatches)
    rows = [_Row(rank, ranks) for rank in range(ranks)]
    for row in rows:
        row.fill(microbatches // 2)
    return Schedule(
        tuple(tuple(row.actions) for row in rows),
        "DualPipe",
        replicas=(2,) * ranks,
        bidirectional=True,
        overlaps=frozenset().union(*(row.overlaps for row in rows)),
    )


def dualpipe_v(ranks: int, microbatches: int) -> Schedule:
    """DualPipe cut in half (DeepSeek's published code, ``dualpipev.py``, after Qi of Sea AI Lab).

    Of 2 p stages rank r holds stages r and 2 p - 1 - r of one copy, each as the first half of
    DualPipe's ranks does. Raises InputError unless there are two microbatches a rank.
    """
    check_dualpipe("DualPipeV", ranks, microbatches)
    rows = [_Row(rank, 2 * ranks) for rank in range(ranks)]
    for row in rows:
        row.fill(microbatches)
    return Schedule(
        tuple(tuple(map(_folded, row.actions)) for row in rows),
        "DualPipeV",
        overlaps=frozenset(_folded(action) for row in rows for action in row.overlaps),
    )


def check_dualpipe(name: str, ranks: int, microbatches: int) -> None:
    """Raises InputError where there is no such schedule of so many ranks and microbatches."""
    check_sizes(ranks, microbatches)
    two_ways = name == "DualPipe"
    if two_ways and ranks % 2:
        raise InputError(f"stages: DualPipe needs an even number, got {ranks}")
    if (two_ways and microbatches % 2) or microbatches < 2 * ranks:
        unit, wanted = ("stages", "an even number of at") if two_ways else ("ranks", "at")
        raise InputError(
            f"microbatches: {name} of {ranks} {unit} needs {wanted} least {2 * ranks}, "
            f"got {microbatches}"
        )


def _folded(action: Action) -> Action:
    return action._replace(microbatch=action.microbatch // 2)


class _Row:
    """The actions of a rank while they grow.

    A *side* is a direction as the rank sees it: 0 comes in from the nearer end of the pipeline. The
    nth microbatch of copy d has the number 2 n + d.
    """

    def __init__(self, rank: int, ranks: int) -> None:
        self.depth, self.half = min(rank, ranks - 1 - rank), ranks // 2
        copies = (0, 1) if rank < self.half else (1, 0)
        stages = rank, ranks - 1 - rank
        self.side = [(copy, stages[copy]) for copy in copies]
        self.ahead, self.back = [0, 0], [0, 0]
        self.pending: deque[Action] = deque()
        self.actions: list[Action] = []
        self.overlaps: set[Action] = set()

    def fill(self, microbatches: int) -> None:
        """All of the row, for so many microbatches a direction."""
        inner, outer = self.half - 1 - self.depth, self.depth + 1
        for _ in range(2 * inner):
            self._forward(0)
        for _ in range(outer):
            self._forward(0)
            self._forward(1)
        for _ in range(inner):
            self._backward(1, split=True)
            self._weight()
            self._forward(1)
        for turn in range(microbatches - 2 * self.half + outer):
            # The two ranks in the middle wait less where the first pair runs one after the other.
            self._pair(0, overlapped=turn > 0 or inner > 0)
            self._pair(1)
        for _ in range(inner):
            self._backward(1)
            self._pair(1)
        self._drain(inner, outer)

    def _drain(self, inner: int, outer: int) -> None:
        """The last backwards, split from the middle on, and what they leave of the weights."""
        for number in range(2 * outer):
            self._backward(1 - number % 2, split=number >= outer)
        for _ in range(inner):
            self._weight()
            self._backward(0, split=True)
        while self.pending:
            self._weight()

    def _forward(self, side: int) -> None:
        self.actions.append(self._next(side, FORWARD, self.ahead))

    def _backward(self, side: int, split: bool = False) -> None:
        action = self._next(side, INPUT if split else BACKWARD, self.back)
        self.actions.append(action)
        if split:
            self.pending.append(action._replace(kind=WEIGHT))

    def _weight(self) -> None:
        self.actions.append(self.pending.popleft())

    def _pair(self, side: int, overlapped: bool = True) -> None:
        """A forward of one side with a whole backward of the other."""
        self._forward(side)
        if overlapped:
            self.overlaps.add(self.actions[-1])
        self._backward(1 - side)

    def _next(self, side: int, kind: str, done: list[int]) -> Action:
        copy, stage = self.side[side]
        done[side] += 1
        return Action(stage, kind, 2 * (done[side] - 1) + copy)
