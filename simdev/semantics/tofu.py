"""Partitions of tensors over workers, step by step (Wang et al., EuroSys 2019, section 5).

Each step cuts every tensor along exactly one dimension among its groups; P workers take steps of k1
>= k2 >= .. groups with P = k1 k2 ... A tensor's partition is how many parts each of its dimensions
has in the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from ..errors import InputError


def steps(workers: int) -> tuple[int, ...]:
    """Groups of each step: the prime factors of the number of workers, largest first.

    Raises InputError below 1.
    """
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise InputError(f"workers: must be a whole number >= 1, got {workers!r}")
    found, factor, left = [], 2, workers
    while left > 1:
        if factor * factor > left:
            factor = left
        while left % factor == 0:
            found.append(factor)
            left //= factor
        factor += 1
    return tuple(reversed(found))


def partitions(rank: int, workers: int) -> tuple[tuple[int, ...], ...]:
    """All partitions of a tensor with ``rank`` dimensions over so many workers: parts a dimension,
    their product P.

    A 4-D tensor has 20 over 8 workers. Sorted; no sizes are considered.
    """
    found = {(1,) * rank}
    for groups in steps(workers):
        found = {_cut(parts, i, groups) for parts in found for i in range(rank)}
    return tuple(sorted(found))


def partitions_of(shape: Sequence[int], workers: int) -> tuple[tuple[int, ...], ...]:
    """Those partitions that give every worker something: no dimension has more parts than
    points.
    """
    return tuple(
        parts
        for parts in partitions(len(shape), workers)
        if all(part <= extent for part, extent in zip(parts, shape, strict=True))
    )


def step_choices(ranks: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All ways to cut a group of tensors in one step: for each tensor the dimension that is cut.

    Six 4-D tensors have 4,096 (and 20^6 = 64,000,000 over 8 workers without steps).
    """
    return product(*(range(rank) for rank in ranks))


def _cut(parts: tuple[int, ...], dimension: int, groups: int) -> tuple[int, ...]:
    return tuple(part * groups if i == dimension else part for i, part in enumerate(parts))
