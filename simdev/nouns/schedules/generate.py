"""The published schedules, generated.

Sources: GPipe, Huang et al. 2019; 1F1B with flush, Narayanan et al. 2021 (PipeDream-2BW,
Megatron-LM section 2.2.1); interleaved 1F1B, Narayanan et al. 2021 (Megatron-LM, section 2.2.2)
with PyTorch's rule for rounds; ZB-H1 and ZB-H2, Qi et al. 2024 (Zero Bubble, section 2), their
handcrafted schedules; PipeDream, Narayanan et al. 2019 (section 3.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...ground.errors import InputError, refuse
from .actions import BACKWARD, FORWARD, INPUT, WEIGHT, Action
from .dualpipe import dualpipe, dualpipe_v
from .sizes import check_sizes
from .table import Row, Schedule

Ints = NDArray[np.int64]


def gpipe(ranks: int, microbatches: int) -> Schedule:
    """All forwards, then all backwards, a stage a rank."""
    check_sizes(ranks, microbatches, 1)
    rows = tuple(
        tuple(Action(rank, kind, i) for kind in (FORWARD, BACKWARD) for i in range(microbatches))
        for rank in range(ranks)
    )
    return Schedule(rows, "GPipe")


def one_forward_one_backward(
    ranks: int,
    microbatches: int,
    chunks: int = 1,
    *,
    per_hop: int = 1,
    split: bool = False,
    asynchronous: bool = False,
    name: str = "1F1B",
) -> Schedule:
    """After some forwards to warm up, a rank does one forward and one backward in turn.

    With p ranks, rank r warms up with ``per_hop`` (p - 1 - r) forwards, and with a whole round for
    each of its ``chunks`` but one; stage c p + r is chunk c of rank r. ``split`` cuts the backward
    in two and delays the gradient of the weights by ``per_hop`` r microbatches, so that it fills
    the bubble at the end: per_hop 1 is ZB-H1, 2 is ZB-H2. Raises InputError where the microbatches
    do not fill whole rounds of p or a little more (chunks > 1).
    """
    check_sizes(ranks, microbatches, chunks)
    order = _order(ranks, microbatches, chunks, per_hop, split)
    kinds = FORWARD, INPUT if split else BACKWARD, WEIGHT
    rows = (
        tuple(Action(stage, kinds[kind], i) for stage, kind, i in zip(*columns, strict=True))
        for columns in zip(*(column.tolist() for column in order), strict=True)
    )
    return Schedule.generated(tuple(rows), name, asynchronous, ranks * chunks)


class Order(NamedTuple):
    """The actions of every rank in their order, columns (rank, place): the stage of each, its kind
    (0 forward, 1 backward or gradient of the input, 2 of the weights) and its microbatch.
    """

    stage: Ints
    kind: Ints
    microbatch: Ints


def _order(ranks: int, microbatches: int, chunks: int, per_hop: int, split: bool) -> Order:
    """That of ``one_forward_one_backward``."""
    size = round_of(ranks, microbatches, chunks)
    turns, rank = np.arange(microbatches * chunks), np.arange(ranks)[:, None]
    # The chunk and the microbatch of each turn; backwards meet the chunks in reverse.
    number, place = np.divmod(turns, size)
    chunk, microbatch = number % chunks, number // chunks * size + place
    warmup = per_hop * (ranks - 1 - rank) + (chunks - 1) * size
    # In turn: a forward, the backward that stands ``warmup`` before it, and behind that by
    # ``delay`` a gradient of weights.
    parts = [
        (chunk * ranks + rank, 0, turns - warmup),
        ((chunks - 1 - chunk) * ranks + rank, 1, turns + 0 * rank),
        ((chunks - 1 - chunk) * ranks + rank, 2, turns + per_hop * rank),
    ][: 3 if split else 2]
    slot = np.concatenate([at * 3 + kind for _, kind, at in parts], axis=1)
    order = np.argsort(slot, axis=1)
    stage = np.concatenate([stages for stages, _, _ in parts], axis=1)
    kinds = np.repeat(np.array([kind for _, kind, _ in parts]), len(turns))
    return Order(
        np.take_along_axis(stage, order, axis=1),
        kinds[order],
        np.tile(microbatch, len(parts))[order],
    )


def order_of(name: str, ranks: int, microbatches: int, chunks: int = 1) -> Order:
    """The actions of a named schedule in their order, without a table of them.

    Of GPipe and what ``one_forward_one_backward`` makes. Raises InputError.
    """
    full = _chunked_name(full_name(name), chunks)
    if full == "GPipe":  # one rank's order is that of all: warmed up with everything
        first = _order(1, microbatches, 1, 0, False)
        order = np.argsort(first.kind[0], kind="stable")
        stage = np.repeat(np.arange(ranks)[:, None], 2 * microbatches, axis=1)
        both = (np.tile(column[0][order], (ranks, 1)) for column in first[1:])
        return Order(stage, *both)
    kind = _KINDS[full]
    return _order(ranks, microbatches, chunks, kind.per_hop, kind.split)


def _chunked_name(full: str, chunks: int) -> str:
    """1F1B of several chunks is Interleaved1F1B."""
    return "Interleaved1F1B" if full == "1F1B" and chunks > 1 else full


def round_of(ranks: int, microbatches: int, chunks: int = 1) -> int:
    """How many microbatches make a round of an interleaved schedule, and of any other all of them.

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
    """PipeDream's 1F1B-RR: asynchronous, stage s on ``replicas[s]`` ranks in a row, to which its
    microbatches go in turn.

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
    """How ``one_forward_one_backward`` makes a named schedule; ``chunked`` ones may run several
    stages a rank.
    """

    per_hop: int = 1
    split: bool = False
    chunked: bool = False
    asynchronous: bool = False


_KINDS = {
    "1F1B": _Kind(),
    "Interleaved1F1B": _Kind(per_hop=2, chunked=True),
    "ZB-H1": _Kind(split=True),
    "ZB-H2": _Kind(per_hop=2, split=True),
    "InterleavedZeroBubble": _Kind(split=True, chunked=True),
    "PipeDream": _Kind(asynchronous=True),
}
SCHEDULES = ("GPipe", *_KINDS)
CHUNKED = tuple(name for name, kind in _KINDS.items() if kind.chunked)
"""Those that may run several stages a rank."""
# Made from the times of the stages, with so many times the memory of 1F1B (Qi et al. 2024).
SEARCHED = {"ZB-1p": 1, "ZB-2p": 2}
SPLIT = (*(name for name, kind in _KINDS.items() if kind.split), *SEARCHED)
"""Schedules whose backwards are two actions each: of the input, then of the weights."""
BIDIRECTIONAL = ("DualPipe",)
FOLDED = ("DualPipeV",)
"""Those of two stages a rank, of which the second ones go back the way of the first."""
PAIRED = (*BIDIRECTIONAL, *FOLDED)
"""Those in which a forward may overlap with a backward."""
NAMES = (*SCHEDULES, *SEARCHED, *PAIRED)
"""Every schedule that has a name."""


def full_name(name: str) -> str:
    """A name of a schedule, whatever the case of its letters, as it is written here.

    Raises InputError for what is none of NAMES.
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
    """A schedule by its name, in letters of any case, with ``chunks`` stages a rank.

    It is one of SCHEDULES, BIDIRECTIONAL or FOLDED. 1F1B of several chunks is Interleaved1F1B.
    Stages of PipeDream may have ``replicas``; then ``ranks`` is how many stages there are. With
    ``shape`` it may be one of SEARCHED, whose actions then stand in the order of ZB-H1, for the
    times of its stages to be told. Raises InputError for what it does not know or cannot build.
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
    if full == "GPipe":
        return gpipe(ranks, microbatches)
    if full in BIDIRECTIONAL:
        return dualpipe(ranks, microbatches)
    if replicas:
        return round_robin(replicas, microbatches)
    return one_forward_one_backward(
        ranks, microbatches, chunks,
        per_hop=kind.per_hop, split=kind.split, asynchronous=kind.asynchronous, name=full,
    )  # fmt: skip
