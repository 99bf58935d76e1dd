"""Blocks of ops that are cut axis by axis: what their parts read and make is written by place along
the axes, and once for all ops that are cut alike; ``blocks.py`` writes all others part by part.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, product
from math import prod
from typing import Any

import numpy as np

from ...ground.jit import bare, jit
from ...lowering.partition.cuts import Cut
from ...nouns.semantics import Interval
from ...nouns.taskgraph import Ints
from .columns import GRID, NONE, Arena

# What the parts of an op that is cut axis by axis read and make, written by place along the axes.
# Parts are numbered in row-major order of the axes; blocks.py writes all others part by part, in
# the layouts told there.

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


class RegularBlocks:
    """Writes into an arena; ``boxes`` numbers the boxes of parts over all ops."""

    def __init__(self, arena: Arena, boxes: dict[Any, int]) -> None:
        self.arena, self._boxes = arena, boxes
        self._written: dict[Any, int] = {}

    def _once(self, key: Any, write: Callable[[], int]) -> int:
        """Where something is that is written once."""
        if key not in self._written:
            self._written[key] = write()
        return self._written[key]

    def addends(self, cut: Cut) -> int:
        """Which partial results parts go on with: none."""
        parts = len(cut.same)
        return self._once(("addends", parts), lambda: self.arena.put([NONE] * parts))

    def boxes(self, cut: Cut) -> int:
        """The numbers of the boxes of parts."""

        def write() -> int:
            every = (tuple(zip(cut.names, box, strict=True)) for box in product(*cut.intervals))
            number = self._boxes.setdefault
            return self.arena.put([number(box, len(self._boxes)) for box in every])

        return self._once(("boxes", cut.names, cut.intervals), write)

    def needs(self, cut: Cut, operand: int) -> int:
        """What parts read of an operand: its rank, then by part whether it reads anything, and the
        intervals.
        """
        counts, dims, parts = cut.counts, cut.reads[operand], len(cut.same)

        def write() -> int:
            words = [len(counts), *counts, len(dims)]
            for dim in dims:
                words += (dim.axis, *chain.from_iterable(dim.intervals))
            begin = self.arena.room(1 + parts * (1 + 2 * len(dims)))
            write_needs(self.arena.data, begin, np.array(words, np.int64))
            return begin

        return self._once(("needs", counts, dims), write)

    def layout(self, cut: Cut, output: int, units: tuple[int, int, int]) -> int:
        """How an output lies; ``units``: bytes of an element, bytes and elements."""
        dims, effects = cut.makes[output], cut.effects[output]

        def write() -> int:
            words, stride_of = list[int](), dict[int, int]()
            stride = places = prod([len(dim.intervals) for dim in dims])
            for dim in dims:
                stride //= len(dim.intervals)
                stride_of[dim.axis] = stride
                words += (len(dim.intervals), *self._column(dim.intervals), stride)
            roles = [
                REPLICATED if effect == "replicate" else stride_of.get(axis, REDUCED)
                for axis, effect in enumerate(effects)
            ]
            addends = cut.addends(output)
            copies = len(cut.same) // (places * addends)
            shape = [places, addends, copies, output, len(roles), *cut.counts, *roles]
            begin = self.arena.room(places * (2 + addends * (2 + 2 * copies)))
            cells = write_cells(self.arena.data, begin, np.array(shape, np.int64))
            return self.arena.put([GRID, len(dims), *units, cells, addends, *words])

        return self._once(("layout", cut.counts, dims, effects, output, units), write)

    def _column(self, intervals: tuple[Interval, ...]) -> tuple[int, int]:
        """Where starts and stops of intervals are."""
        words = [*(start for start, _ in intervals), *(stop for _, stop in intervals)]
        begin = self._once(("column", intervals), lambda: self.arena.put(words))
        return begin, begin + len(intervals)
