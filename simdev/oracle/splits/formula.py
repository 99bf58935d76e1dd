"""What the parts of an op that is cut axis by axis read and make, written by place along the axes.

Parts are numbered in row-major order of the axes; ``blocks.py`` writes all others part by part, in
the layouts told there.
"""

from __future__ import annotations

from ...ground.jit import bare, jit
from ...nouns.taskgraph import Ints

REDUCED, REPLICATED = -1, -2
"""In place of the stride of a dimension: an axis over which partial results, or copies, lie."""


@jit
def write_needs(arena: Ints, begin: int, words: Ints) -> None:
    """Write the needs of an operand.

    ``words``: how many axes, their counts, how many dimensions; then for each the axis on which it
    hangs (NONE: on none) and its intervals, by place along it.
    """
    arena = bare(arena)
    axes, rank, parts = words[0], words[1 + words[0]], 1
    for axis in range(axes):
        parts *= words[1 + axis]
    arena[begin] = rank
    for part in range(parts):
        arena[begin + 1 + part * (1 + 2 * rank)] = 1
    at, after = 2 + axes, 1
    for d in range(rank):
        axis, places, after = words[at], 1, parts
        for other in range(axis + 1):
            places = words[1 + other]
            after //= places
        for part in range(parts):
            interval = at + 1 + 2 * (part // after % places)
            to = begin + 2 + part * (1 + 2 * rank) + 2 * d
            arena[to], arena[to + 1] = words[interval], words[interval + 1]
        at += 1 + 2 * places


@jit
def write_cells(arena: Ints, begin: int, words: Ints) -> int:
    """Write what holds each place of an output; returns where the cells are.

    ``words``: how many places, partial results of each, copies of each of these, the number of the
    output, how many axes, their counts, and what each is to the output: the stride of the dimension
    that it cuts, REDUCED or REPLICATED.
    """
    arena = bare(arena)
    places, addends, copies, base, axes = words[0], words[1], words[2], words[3], words[4]
    row = 1 + 2 * copies
    size = addends * row + 1 + addends
    cells = begin + places * size
    parts = places * addends * copies
    for part in range(parts):
        place, addend, copy, after = 0, 0, 0, parts
        for axis in range(axes):
            count, role = words[5 + axis], words[5 + axes + axis]
            after //= count
            index = part // after % count
            if role == REDUCED:
                addend = addend * count + index
            elif role == REPLICATED:
                copy = copy * count + index
            else:
                place += index * role
        at = begin + place * size + addend * row + 1 + 2 * copy
        arena[at], arena[at + 1] = part, base
    for place in range(places):
        first = begin + place * size
        cell = first + addends * row
        arena[cells + place], arena[cell] = cell, addends
        for addend in range(addends):
            arena[first + addend * row] = copies
            arena[cell + 1 + addend] = first + addend * row
    return cells
