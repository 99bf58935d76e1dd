"""The kernel that grows clusters of connected groups, which move together, for
``search.annealing``.
"""

from __future__ import annotations

from typing import NamedTuple

from ...nouns.taskgraph import Floats, Ints
from . import kernel, opener


class Growth(NamedTuple):
    """The graph in which a cluster grows, and its buffers. Groups of the current cluster have
    ``stamp[0]`` in ``seen``.
    """

    ptr: Ints  # neighbours of each group, as in Rows
    near: Ints
    cluster: Ints
    elsewhere: Ints  # devices
    front: Ints
    seen: Ints
    stamp: Ints
    met: Ints  # [0]: the number of devices in ``elsewhere``


open_growth = opener(Growth)


@kernel
def grow(growth: Growth, where: Ints, group: int, size: int, lucks: Floats) -> int:
    """Grow a cluster of at most ``size`` groups around ``group``; returns its number of groups."""
    g = open_growth(growth)
    g.stamp[0] += 1
    g.cluster[0], g.seen[group], count, met, end = group, g.stamp[0], 1, 0, 0
    for i in range(g.ptr[group], g.ptr[group + 1]):
        g.front[end] = g.near[i]
        end += 1
    for luck in lucks:  # where most edges lead elsewhere, or back, they may not be enough
        if end == 0 or count == size:
            break
        at = int(luck * end)
        end -= 1
        other, g.front[at] = g.front[at], g.front[end]
        if g.seen[other] == g.stamp[0]:
            continue
        if where[other] != where[group]:
            g.elsewhere[met] = where[other]
            met += 1
            continue
        g.seen[other], g.cluster[count] = g.stamp[0], other
        count += 1
        for i in range(g.ptr[other], g.ptr[other + 1]):
            g.front[end] = g.near[i]
            end += 1
    for at in range(end):
        if where[g.front[at]] != where[group]:
            g.elsewhere[met] = where[g.front[at]]
            met += 1
    g.met[0] = met
    return count
