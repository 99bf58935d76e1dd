"""Where to cut a line of pieces into stages so that the longest takes as little time as can be."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate


def even_cut(lengths: Sequence[Sequence[int]]) -> list[int]:
    """How many pieces come before each stage; one more entry, all of them, ends the list.

    ``lengths`` are by stage those of all pieces, in ps: a stage may stand on a device of its own
    kind. No stage is empty, which needs as many pieces as stages. The least longest stage is found
    by bisection: under a limit, taking as many pieces as fit never leaves more to later stages
    than any other choice.
    """
    sums = [list(accumulate(stage, initial=0)) for stage in lengths]
    low, high = 0, max(stage[-1] for stage in sums)
    while low < high:
        limit = (low + high) // 2
        if _within(sums, limit) is None:
            low = limit + 1
        else:
            high = limit
    borders = _within(sums, low)
    assert borders is not None
    return borders


def _within(sums: Sequence[Sequence[int]], limit: int) -> list[int] | None:
    """The cut under which no stage takes longer than the limit; None where there is none."""
    count, borders = len(sums[0]) - 1, [0]
    for stage, ends in enumerate(sums):
        first, left = borders[-1], len(sums) - 1 - stage
        last = min(bisect_right(ends, ends[first] + limit) - 1, count - left)
        if last <= first:
            return None
        borders.append(last)
    return borders if borders[-1] == count else None
