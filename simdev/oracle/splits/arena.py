"""The words of blocks (blocks.py), as kernels read them: one array of integers for all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

GRID, LOCAL = 0, 1
COMPUTE, COLLECTIVE = 0, 1
OF_SUMS = 1 << 20
"""In a grid: the row is one of the sums of the tensor, not of its op."""
MOST_PARTS, MOST_BASES = 1 << 20, 1 << 10
# A block of geometry: parts, and where to find (in the arena) boxes and addends by part, needs by
# operand, layouts and sizes by output.
PARTS, BOXES, ADDENDS, NEEDS, LAYOUTS, SIZES, STRIDE = range(7)
# A layout: grid or local, rank, bytes of an element (0: they do not come out even), bytes,
# elements, cells (or regions by part), then for each dimension how many intervals, where their
# starts and stops are, and the stride.
KIND, RANK, UNIT, BYTES, ELEMENTS, CELLS, ADDENDS_OF, DIMS = range(8)
# Sums: rows, the grid, and where each row is: what it is, its ps, how many bases, inputs, queues,
# sizes; then devices, and on a cluster with hosts how many dispatches, and for each its device, ps
# and launches.
ROWS, SUM_GRID, ROW = range(3)
WHAT, LENGTH, BASES, INPUTS, QUEUES, SUM_SIZES, DEVICES = range(7)


class Arena:
    """Integers that only grow; an offset stays what it is, the array may move."""

    def __init__(self, size: int = 1 << 16) -> None:
        self.data, self.used = np.zeros(size, np.int64), 1

    def put(self, words: Sequence[int]) -> int:
        """Append integers; returns where they begin."""
        begin = self.room(len(words))
        self.data[begin : self.used] = words
        return begin

    def room(self, size: int) -> int:
        """Where so many integers may be written by others."""
        begin = self.used
        self.used += size
        if self.used > len(self.data):
            grown = np.zeros(2 * self.used, np.int64)
            grown[:begin] = self.data[:begin]
            self.data = grown
        return begin
