"""The order in which parcels are to go, TicTac's for one (Hashemi et al., MLSys 2019, algorithms
1 to 3).

For a receive r among the outstanding ones, M is its transfer time, P the compute time of the ops
that wait for r alone, and Mp the least time to receive all that some op waits for, of the ops that
wait for r and others.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from ...ground.units import transmission_ps
from ...nouns.strategy import Sync
from ...nouns.structure import order_of, updated
from ...nouns.taskgraph import Ints
from ..prepare import Prepared
from .weights import Weight

NEVER = 2**62


def priorities(
    prepared: Prepared, weights: Sequence[Weight], sync: Sync, placement: Sequence[int]
) -> list[int]:
    """The place of each weight in the order in which parcels are to go."""
    if sync.priority not in ("tic", "tac") or not weights:
        return [weight.order for weight in weights]
    waits, compute = _waits(prepared, weights, placement)
    if sync.priority == "tic":
        rank = timing_independent_order(waits)
    else:
        receive = np.array([_receive_ps(prepared, weight) for weight in weights], np.int64)
        rank = timing_aware_order(waits, compute, receive)
    # Those of equal rank go in the order of the forward.
    order = np.lexsort(([weight.order for weight in weights], rank))
    return np.argsort(order).tolist()  # type: ignore[no-any-return]


def _waits(
    prepared: Prepared, weights: Sequence[Weight], placement: Sequence[int]
) -> tuple[NDArray[np.bool_], Ints]:
    """By op of the first worker and weight whether the op waits for the weight; and the ps of these
    ops.
    """
    graph, worker = prepared.graph, weights[0].ranks[0]
    row_of_gate = {gate: row for row, weight in enumerate(weights) for gate in weight.gates}
    waits = np.zeros((len(graph.ops), len(weights)), np.bool_)
    # A parameter is there once its update is done, in the step before; that waits for its gate.
    for update, parameters in updated(graph).items():
        for producer, _ in graph.reads[update]:
            if producer in row_of_gate:
                waits[list(parameters), row_of_gate[producer]] = True
    for i in order_of(graph):
        for producer, _ in graph.reads[i]:
            waits[i] |= waits[producer]
    rows = [
        i
        for i, op in enumerate(graph.ops)
        if op.phase != "update" and placement[i] == worker and op.inputs
    ]
    return waits[rows], prepared.duration[rows, worker]


def _receive_ps(prepared: Prepared, weight: Weight) -> int:
    """How long a worker receives the whole weight, over the route between the first two workers."""
    if len(weight.ranks) < 2:
        return weight.size
    pieces = prepared.segments(weight.ranks[1], weight.ranks[0])
    return sum(
        transmission_ps(weight.size, Fraction(piece.route.bandwidth)) + piece.held_ps
        for piece in pieces
    )


def timing_independent_order(waits: NDArray[np.bool_]) -> list[int]:
    """TIC: the rank of each receive; every receive takes 1, compute nothing, and those of equal Mp
    share a rank.

    ``waits`` tells by op and receive whether the op waits for it.
    """
    each = np.ones(waits.shape[1], np.int64)
    least = _least_beside(waits, each, each > 0)
    return np.unique(least, return_inverse=True)[1].tolist()  # type: ignore[no-any-return]


def timing_aware_order(waits: NDArray[np.bool_], compute: Ints, receive: Ints) -> list[int]:
    """TAC: the rank of each receive, the best of those outstanding first; ``compute`` and
    ``receive`` are in ps.

    Receive 1 is better than 2 if min(P2, M1) < min(P1, M2), on a tie by its smaller Mp, then by its
    position. The comparison is not transitive on ties: the best is found in one pass, in the order
    of positions.
    """
    # Ops that wait for the same receives count as one: there are thousands of ops, and few sets.
    masks, where = np.unique(waits, axis=0, return_inverse=True)
    times = np.zeros(len(masks), np.int64)
    np.add.at(times, where.reshape(-1), compute)
    left, rank = np.ones(waits.shape[1], np.bool_), [0] * waits.shape[1]
    for place in range(waits.shape[1]):
        alone = (masks & left).sum(axis=1) == 1
        unlocked = (masks[alone] & left).T.astype(np.int64) @ times[alone]
        least = _least_beside(masks, receive, left)
        best = -1
        for r in np.flatnonzero(left).tolist():
            if best < 0 or _better(r, best, receive, unlocked, least):
                best = r
        left[best], rank[best] = False, place
    return rank


def _better(receive_1: int, receive_2: int, receive: Ints, unlocked: Ints, least: Ints) -> bool:
    """Whether a receive goes before another one that comes first by position."""
    first = min(unlocked[receive_2], receive[receive_1])
    second = min(unlocked[receive_1], receive[receive_2])
    return bool((first, least[receive_1]) < (second, least[receive_2]))


def _least_beside(waits: NDArray[np.bool_], receive: Ints, left: NDArray[np.bool_]) -> Ints:
    """Mp by receive: NEVER where no op waits for it and another."""
    outstanding = waits & left
    together = outstanding[outstanding.sum(axis=1) > 1]
    total = together.astype(np.int64) @ receive
    return np.where(together, total[:, None], NEVER).min(axis=0, initial=NEVER)  # type: ignore[no-any-return]
