"""Max-min fair shares of half-links: the functions that every engine calls (execution contract,
rule 5).

They are plain loops over indexed columns, for lists and arrays, so that the compiled engine
compiles this source too. ``check/flows.py`` computes the same rates in another way.
"""

from __future__ import annotations

import math
from collections.abc import MutableSequence, Sequence

RATE_UNIT = 1e12  # picoseconds in a second: rates are bytes per picosecond


def max_min_rates(
    flows: Sequence[int],
    count: int,
    ptr: Sequence[int],
    ids: Sequence[int],
    capacity: Sequence[float],
    rate: MutableSequence[float],
    left: MutableSequence[float],
    waiting: MutableSequence[int],
    used: MutableSequence[int],
) -> None:
    """Write the rate of each of the first ``count`` ``flows`` (task rows, ascending) to ``rate``.

    The flow ``f`` crosses the half-links ``ids[ptr[f]:ptr[f + 1]]``; ``capacity`` is by half-link
    and gives the unit of the rates; ``left``, ``waiting`` and ``used`` are scratch by half-link
    (``waiting`` all 0 before and after). Progressive filling (Bertsekas and Gallager, Data
    Networks, section 6.5.2): the half-link with the smallest equal share is the bottleneck of its
    flows; fix their rates, subtract them from all half-links, repeat. On a tie the first half-link
    counts, and flows are visited in their order, so that both engines get the same float64 sums.
    """
    links = 0
    for k in range(count):
        rate[flows[k]] = -1.0
        for e in range(ptr[flows[k]], ptr[flows[k] + 1]):
            if waiting[ids[e]] == 0:
                left[ids[e]], used[links] = capacity[ids[e]], ids[e]
                links += 1
            waiting[ids[e]] += 1
    bottleneck = smallest_share(left, waiting, used, links)
    while bottleneck >= 0:
        share = left[bottleneck] / waiting[bottleneck]
        for k in range(count):
            flow = flows[k]
            if rate[flow] < 0.0 and crosses(bottleneck, ids, ptr[flow], ptr[flow + 1]):
                rate[flow] = share
                for e in range(ptr[flow], ptr[flow + 1]):
                    left[ids[e]] = max(left[ids[e]] - share, 0.0)
                    waiting[ids[e]] -= 1
        bottleneck = smallest_share(left, waiting, used, links)


def smallest_share(
    left: Sequence[float], waiting: Sequence[int], used: Sequence[int], links: int
) -> int:
    """The half-link with the smallest equal share among those whose flows have no rate yet (on a
    tie the first); -1 where there is none.
    """
    best, smallest = -1, math.inf
    for k in range(links):
        link = used[k]
        if waiting[link] > 0:
            share = left[link] / waiting[link]
            if share < smallest or (share == smallest and link < best):
                best, smallest = link, share
    return best


def crosses(link: int, ids: Sequence[int], begin: int, end: int) -> bool:
    """Whether ``link`` is among ``ids[begin:end]``."""
    for e in range(begin, end):
        if ids[e] == link:
            return True
    return False


def advance(remaining: float, rate: float, elapsed: int) -> float:
    """Bytes still to send after ``elapsed`` ps at ``rate`` bytes per ps."""
    return max(remaining - rate * elapsed, 0.0)


def time_left(remaining: float, rate: float) -> int:
    """Whole ps until the last byte is sent, rounded up; at least 1, so that no finish falls on a
    closed round.
    """
    return max(math.ceil(remaining / rate), 1)
