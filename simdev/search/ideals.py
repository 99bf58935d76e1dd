"""Order ideals: the sets of blocks that contain all predecessors of their members, the possible
states of progress of a pipeline.

PipeDream (``pipedream``) and the contiguous splits of ``maxload`` enumerate them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

# Ideals, above which a linear order replaces the partial one (the limit of the paper's code).
MOST = 60_000


Due = Callable[[], object]
"""A function that planners call again and again; it raises where the time is over."""


def unhurried() -> None:
    """A ``Due`` without a time limit."""


def ideals(
    count: int,
    edges: Iterable[tuple[int, int]],
    most: int = MOST,
    due: Due = unhurried,
) -> list[int] | None:
    """All ideals of ``count`` blocks as bit sets, smaller ones first; None where there are more
    than ``most``.

    ``edges`` (before, after) form no cycle. ``due`` is called again and again, and may raise.
    """
    need, after = [0] * count, [0] * count
    for first, second in edges:
        need[second] |= 1 << first
        after[first] |= 1 << second
    roots = [block for block in range(count) if not need[block]]
    layer = {0: sum(1 << block for block in roots)}  # ideal: what could come next
    every = [0]
    while layer:
        ahead: dict[int, int] = {}
        for ideal, choices in layer.items():
            due()
            for block in bits(choices):
                larger = ideal | 1 << block
                if larger not in ahead:
                    new = sum(
                        1 << other for other in bits(after[block]) if need[other] & ~larger == 0
                    )
                    ahead[larger] = choices & ~(1 << block) | new
                    if len(every) + len(ahead) > most:
                        return None
        every += sorted(ahead)
        layer = ahead
    return every


def bits(members: int) -> list[int]:
    """The numbers in a bit set, ascending."""
    numbers = []
    while members:
        low = members & -members
        numbers.append(low.bit_length() - 1)
        members ^= low
    return numbers


def packed(sets: Sequence[int], width: int) -> NDArray[np.uint8]:
    """Bit sets as rows of ``width`` bytes, the smallest numbers first."""
    raw = b"".join(members.to_bytes(width, "little") for members in sets) if width else b""
    return np.frombuffer(raw, np.uint8).reshape(len(sets), width)


def table(sets: Sequence[int], count: int) -> NDArray[np.uint8]:
    """1 where a bit set (row) holds a number below ``count``, else 0."""
    return np.unpackbits(packed(sets, -(-count // 8)), axis=1, count=count, bitorder="little")


def nested(sets: Sequence[int]) -> bool:
    """Whether each bit set contains the one before."""
    return all(not small & ~large for small, large in pairwise(sets))


def chain(order: Sequence[int]) -> list[int]:
    """The ideals of a linear order."""
    line = [0]
    for block in order:
        line.append(line[-1] | 1 << block)
    return line


def leaves(idle: Sequence[bool], edges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Edges, in both directions, that tie each idle node to its neighbour where it has only one, so
    that both are in one component.

    Repeated on the remaining graph: an idle node whose other neighbours are all tied counts, too.
    """
    near: dict[int, set[int]] = {}
    for first, second in edges:
        near.setdefault(first, set()).add(second)
        near.setdefault(second, set()).add(first)
    waiting, tied = [node for node in sorted(near) if idle[node] and len(near[node]) == 1], []
    while waiting:
        node = waiting.pop()
        if len(near[node]) != 1:
            continue
        other = near[node].pop()
        near[other].discard(node)
        tied += [(node, other), (other, node)]
        if idle[other] and len(near[other]) == 1:
            waiting.append(other)
    return tied
