"""Blocks of ops that are cut axis by axis: what their parts read and make is written by place along
the axes, and once for all ops that are cut alike; ``blocks.py`` writes all others part by part.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, product
from math import prod
from typing import Any

import numpy as np

from ...lowering.partition.cuts import Cut
from ...nouns.semantics import Interval
from .arena import GRID, Arena
from .columns import NONE
from .formula import REDUCED, REPLICATED, write_cells, write_needs


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
