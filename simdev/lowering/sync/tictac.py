"""TicTac's orders of the parameters that a worker receives (Hashemi et al., MLSys 2019, algorithms
1 to 3).

For a receive r among the outstanding ones, M is its transfer time, P the compute time of the ops
that wait for r alone, and Mp the least time to receive all that some op waits for, of the ops that
wait for r and others.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...taskgraph import Ints

NEVER = 2**62


def timing_independent_order(waits: NDArray[np.bool_]) -> list[int]:
    """TIC: the rank of each receive; every receive takes 1, compute nothing, and those of equal Mp
    share a rank.

    ``waits`` tells by op and receive whether the op waits for it.
    """
    ones = np.ones(waits.shape[1], np.int64)
    least = _least_beside(waits, ones, np.ones(waits.shape[1], np.bool_))
    return np.unique(least, return_inverse=True)[1].tolist()  # type: ignore[no-any-return]


def timing_aware_order(waits: NDArray[np.bool_], compute: Ints, receive: Ints) -> list[int]:
    """TAC: the rank of each receive, the best of those outstanding first; ``compute`` and
    ``receive`` are in ps.

    Receive 1 is better than 2 if min(P2, M1) < min(P1, M2), on a tie by its smaller Mp, then by its
    position. The comparison is not transitive on ties: the best is found in one pass, in the order
    of positions.
    """
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


def _better(one: int, other: int, receive: Ints, unlocked: Ints, least: Ints) -> bool:
    """Whether ``one`` goes before ``other``, which stands before it."""
    first, second = min(unlocked[other], receive[one]), min(unlocked[one], receive[other])
    return bool(first < second or (first == second and least[one] < least[other]))


def _least_beside(waits: NDArray[np.bool_], receive: Ints, left: NDArray[np.bool_]) -> Ints:
    """Mp by receive: NEVER where no op waits for it and another."""
    outstanding = waits & left
    together = outstanding[outstanding.sum(axis=1) > 1]
    total = together.astype(np.int64) @ receive
    return np.where(together, total[:, None], NEVER).min(axis=0, initial=NEVER)  # type: ignore[no-any-return]
