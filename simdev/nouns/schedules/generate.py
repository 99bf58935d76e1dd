"""The published schedules, generated.

Sources: GPipe, Huang et al. 2019; 1F1B with flush, Narayanan et al. 2021 (PipeDream-2BW,
Megatron-LM section 2.2.1); interleaved 1F1B, Narayanan et al. 2021 (Megatron-LM, section 2.2.2)
with PyTorch's rule for rounds; ZB-H1 and ZB-H2, Qi et al. 2024 (Zero Bubble, section 2), their
handcrafted schedules; PipeDream, Narayanan et al. 2019 (section 3.2).

A schedule that warms up and then does forwards and backwards in turn is a row of ``_KINDS``; any
other is a separate function, a name in ``NAMES`` and a case of ``named_schedule``. The bounds of
``simdev plan`` (``simdev/search/plan/bounds.py``) know the families ``SPLIT`` and ``PAIRED``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...ground.errors import InputError, refuse
from .table import BACKWARD, FORWARD, INPUT, WEIGHT, Action, Row, Schedule, check_sizes

Ints = NDArray[np.int64]


class Order(NamedTuple):
    """The actions of every rank in order, as columns (rank, place): the stage of each, its kind (0
    forward, 1 backward or gradient of the input, 2 gradient of the weights) and its microbatch.
    """

    stage: Ints
    kind: Ints
    microbatch: Ints


def _order(ranks: int, microbatches: int, chunks: int, kind: _Kind) -> Order:
    """The actions of every rank, which warms up with some forwards, then does one forward and one
    backward in turn.

    With p ranks, rank r warms up with ``per_hop`` (p - 1 - r) forwards, and with a whole round for
    each of its ``chunks`` except one; stage c p + r is chunk c of rank r. A backward that is
    ``split`` in two delays the gradient of the weights by ``per_hop`` r microbatches, so that it
    fills the bubble at the end: per_hop 1 is ZB-H1, 2 is ZB-H2. Raises InputError where the
    microbatches do not fill whole rounds of p or a little more (chunks > 1).
    """
    size = round_of(ranks, microbatches, chunks)
    turns, rank = np.arange(microbatches * chunks), np.arange(ranks)[:, None]
    # The chunk and the microbatch of each turn; backwards take the chunks in reverse.
    number, place = np.divmod(turns, size)
    chunk, microbatch = number % chunks, number // chunks * size + place
    warmup = kind.per_hop * (ranks - 1 - rank) + (chunks - 1) * size
    warmup += microbatches * kind.flushed
    # Each turn: a forward, the backward of ``warmup`` turns before, and a gradient of weights that
    # is delayed by ``per_hop`` for each rank.
    parts = [
        (chunk * ranks + rank, 0, turns - warmup),
        ((chunks - 1 - chunk) * ranks + rank, 1, turns + 0 * rank),
        ((chunks - 1 - chunk) * ranks + rank, 2, turns + kind.per_hop * rank),
    ][: 3 if kind.split else 2]
    slot = np.concatenate([at * 3 + code for _, code, at in parts], axis=1)
    order = np.argsort(slot, axis=1)
    stage = np.concatenate([stages for stages, _, _ in parts], axis=1)
    kinds = np.repeat(np.array([code for _, code, _ in parts]), len(turns))
    return Order(
        np.take_along_axis(stage, order, axis=1),
        kinds[order],
        np.tile(microbatch, len(parts))[order],
    )


def _rows(order: Order, split: bool) -> tuple[Row, ...]:
    kinds = FORWARD, INPUT if split else BACKWARD, WEIGHT
    return tuple(
        tuple(Action(stage, kinds[code], i) for stage, code, i in zip(*columns, strict=True))
        for columns in zip(*(column.tolist() for column in order), strict=True)
    )


def order_of(name: str, ranks: int, microbatches: int, chunks: int = 1) -> Order:
    """The actions of one of SCHEDULES in order, without a table. Raises InputError."""
    return _order(ranks, microbatches, chunks, _KINDS[_chunked_name(full_name(name), chunks)])


def _chunked_name(full: str, chunks: int) -> str:
    """The name of a schedule: 1F1B of several chunks is Interleaved1F1B."""
    return "Interleaved1F1B" if full == "1F1B" and chunks > 1 else full


def round_of(ranks: int, microbatches: int, chunks: int = 1) -> int:
    """The microbatches of a round of an interleaved schedule; in other schedules all microbatches.

    Raises InputError where they do not fill whole rounds.
    """
    rounds = max(1, microbatches // ranks)
    if chunks > 1 and microbatches % rounds:
        raise InputError(
            f"microbatches: {chunks} chunks a rank need a multiple of {rounds}, the rounds that "
            f"{ranks} ranks make of them, got {microbatches}"
        )
    # With one chunk a round is the whole step: no chunk has to wait for another.
    return microbatches // rounds if chunks > 1 else microbatches


def _in_turn(forward: list[Action], backward: list[Action], warmup: int) -> Row:
    """``warmup`` forwards, then one backward after each forward."""
    row = forward[:warmup]
    for turn, action in enumerate(backward):
        row += [*forward[warmup + turn : warmup + turn + 1], action]
    return tuple(row)


def round_robin(replicas: Sequence[int], microbatches: int) -> Schedule:
    """PipeDream's 1F1B-RR: asynchronous, stage s on ``replicas[s]`` consecutive ranks, which take
    its microbatches in turn.

    With n ranks for stage s and those after it, each of its r replicas warms up with (n - 1) // r
    forwards: it has ceil(n / r) microbatches in flight, which for stage 0 is NOAM (Narayanan et
    al. 2019, section 3.2). A stage warms up with more microbatches than the next one, so no update
    that replicas make together ever waits for a later one. Raises InputError.
    """
    problems = [
        f"replicas[{stage}]: must be at least 1, got {count}"
        for stage, count in enumerate(replicas)
        if count < 1
    ]
    refuse(problems or ([] if replicas else ["replicas: must hold a number for each stage"]))
    check_sizes(len(replicas), microbatches, 1)
    if microbatches < max(replicas):
        raise InputError(
            f"microbatches: must be at least {max(replicas)}, one for each replica, "
            f"got {microbatches}"
        )
    rows, later = list[Row](), sum(replicas)
    for stage, count in enumerate(replicas):
        for first in range(count):
            here = range(first, microbatches, count)
            forward, backward = ([Action(stage, kind, i) for i in here] for kind in "FB")
            rows.append(_in_turn(forward, backward, (later - 1) // count))
        later -= count
    return Schedule(tuple(rows), "PipeDream", True, tuple(replicas))


class _Kind(NamedTuple):
    """The rules by which ``_order`` makes a named schedule. A ``chunked`` schedule may have several
    stages on each rank; in a ``flushed`` one every rank warms up with all forwards (GPipe).
    """

    per_hop: int = 1
    split: bool = False
    chunked: bool = False
    asynchronous: bool = False
    flushed: bool = False


_KINDS = {
    "GPipe": _Kind(per_hop=0, flushed=True),
    "1F1B": _Kind(),
    "Interleaved1F1B": _Kind(per_hop=2, chunked=True),
    "ZB-H1": _Kind(split=True),
    "ZB-H2": _Kind(per_hop=2, split=True),
    "InterleavedZeroBubble": _Kind(split=True, chunked=True),
    "PipeDream": _Kind(asynchronous=True),
}
SCHEDULES = tuple(_KINDS)
CHUNKED = tuple(name for name, kind in _KINDS.items() if kind.chunked)
"""Schedules that may have several stages on each rank."""
# Made from the times of stages, with this multiple of 1F1B's memory (Qi et al. 2024).
SEARCHED = {"ZB-1p": 1, "ZB-2p": 2}
SPLIT = (*(name for name, kind in _KINDS.items() if kind.split), *SEARCHED)
"""Schedules whose backwards are two actions: the gradient of the input, then of the weights."""
BIDIRECTIONAL = ("DualPipe",)
FOLDED = ("DualPipeV",)
"""Schedules with two stages on each rank: microbatches pass the first stages, and return through
the second ones.
"""
PAIRED = (*BIDIRECTIONAL, *FOLDED)
"""Schedules in which a forward may overlap with a backward."""
NAMES = (*SCHEDULES, *SEARCHED, *PAIRED)
"""Every schedule that has a name."""


def full_name(name: str) -> str:
    """The name of a schedule in the spelling of this module, from letters of any case.

    Raises InputError for a name that is not in NAMES.
    """
    known = {each.lower(): each for each in NAMES} | {"interleaved": "Interleaved1F1B"}
    if name.lower() not in known:
        raise InputError(f'schedule: must be one of {", ".join(NAMES)}, got "{name}"')
    return known[name.lower()]


def named_schedule(
    name: str,
    ranks: int,
    microbatches: int,
    chunks: int = 1,
    replicas: Sequence[int] = (),
    *,
    shape: bool = False,
) -> Schedule:
    """A schedule by its name, in letters of any case, with ``chunks`` stages on each rank.

    The name is one of SCHEDULES, BIDIRECTIONAL or FOLDED. 1F1B of several chunks is
    Interleaved1F1B. Stages of PipeDream may have ``replicas``; then ``ranks`` is the number of
    stages. With ``shape`` the name may be one of SEARCHED, which has the order of ZB-H1 until the
    times of its stages are known. Raises InputError for unknown names and impossible sizes.
    """
    full = full_name(name)
    if full in SEARCHED and not shape:
        raise InputError(
            f"schedule: {full} is made from the times of the stages: of large models, or "
            "by `simdev pipeline`"
        )
    full = _chunked_name(full, chunks)
    kind = _KINDS["ZB-H1"] if full in SEARCHED else _KINDS.get(full, _Kind())
    if full in FOLDED and chunks <= 2:
        return dualpipe_v(ranks, microbatches)
    if chunks > 1 and not kind.chunked:
        several = " and ".join(CHUNKED)
        raise InputError(f"chunks: {full} runs one stage a rank; {several} run several")
    if replicas and not kind.asynchronous:
        raise InputError(f"replicas: {full} has none; the stages of PipeDream may have several")
    if replicas and len(replicas) != ranks:
        raise InputError(
            f"replicas: must hold {ranks} numbers, one for each stage, got {len(replicas)}"
        )
    if full in BIDIRECTIONAL:
        return dualpipe(ranks, microbatches)
    if replicas:
        return round_robin(replicas, microbatches)
    check_sizes(ranks, microbatches, chunks)
    rows = _rows(_order(ranks, microbatches, chunks, kind), kind.split)
    return Schedule.generated(rows, full, kind.asynchronous, ranks * chunks)


# DualPipe: two copies of a model, whose microbatches pass the ranks in opposite directions.


def dualpipe(ranks: int, microbatches: int) -> Schedule:
    """The bidirectional schedule of DeepSeek-V3 (2024, section 3.2.1, and its published code).

    Of p stages rank r holds stage r of one copy and stage p - 1 - r of the other. Even microbatches
    go through the first, odd ones through the second. In the middle of a step a forward of one
    overlaps with a whole backward of the other (``Schedule.overlaps``); at the end backwards are
    split. Raises InputError unless the ranks are even and each copy has a microbatch a rank.
    """
    check_dualpipe("DualPipe", ranks, microbatches)
    rows = [_Row(rank, ranks, microbatches // 2) for rank in range(ranks)]
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
    rows = [_Row(rank, 2 * ranks, microbatches) for rank in range(ranks)]
    return Schedule(
        tuple(tuple(map(_folded, row.actions)) for row in rows),
        "DualPipeV",
        overlaps=frozenset(_folded(action) for row in rows for action in row.overlaps),
    )


def check_dualpipe(name: str, ranks: int, microbatches: int) -> None:
    """Raises InputError where the schedule cannot have this number of ranks or microbatches."""
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
    """The actions of a rank of DualPipe, for a number of microbatches in each direction.

    A *side* is a direction from the view of the rank: side 0 comes from the nearer end of the
    pipeline. The nth microbatch of copy d has the number 2 n + d.
    """

    def __init__(self, rank: int, ranks: int, microbatches: int) -> None:
        self.depth, self.half = min(rank, ranks - 1 - rank), ranks // 2
        copies = (0, 1) if rank < self.half else (1, 0)
        stages = rank, ranks - 1 - rank
        self.side = [(copy, stages[copy]) for copy in copies]
        self.ahead, self.back = [0, 0], [0, 0]
        self.pending: deque[Action] = deque()
        self.actions: list[Action] = []
        self.overlaps: set[Action] = set()
        self._fill(microbatches)

    def _fill(self, microbatches: int) -> None:
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
            # The two middle ranks wait less where the forward and backward of the first pair do not
            # overlap.
            self._pair(0, overlapped=turn > 0 or inner > 0)
            self._pair(1)
        for _ in range(inner):
            self._backward(1)
            self._pair(1)
        self._drain(inner, outer)

    def _drain(self, inner: int, outer: int) -> None:
        """The last backwards, split from the middle on, and the remaining gradients of weights."""
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
