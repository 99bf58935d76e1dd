"""Homes: the group in which each op begins (ours; the paper's grouper begins at random)."""

from __future__ import annotations

import numpy as np

from ...nouns.taskgraph import Ints


def bands(ops: int, groups: int) -> Ints:
    """Groups of equally many ops, one band after another in topological order."""
    return np.arange(ops, dtype=np.int64) * groups // max(ops, 1)


def pure(devices: Ints, groups: int) -> Ints:
    """Groups of which each has ops of one device alone, where there are groups enough: bands of the
    ops of each device, in proportion to their number.

    ``devices`` [V] are in topological order, and groups are numbered by their first ops.
    """
    used, counts = np.unique(devices, return_counts=True)
    if len(used) > groups:
        return bands(len(devices), groups)
    # Each has one; what is left over is shared out by their further ops, sums rounded down.
    spare, further = groups - len(used), np.concatenate([[0], np.cumsum(counts - 1)])
    shares = 1 + np.diff(further * spare // max(int(further[-1]), 1))
    homes, begin = np.empty(len(devices), np.int64), 0
    for device, count, share in zip(used, counts.tolist(), shares.tolist(), strict=True):
        homes[devices == device] = begin + bands(count, share)
        begin += share
    _, first, number = np.unique(homes, return_index=True, return_inverse=True)
    renumbered: Ints = np.argsort(np.argsort(first))[number.ravel()]
    return renumbered
