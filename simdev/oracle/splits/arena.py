"""The words of blocks: one array of integers for all of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

GRID, LOCAL = 0, 1
"""Kinds of layouts."""


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
