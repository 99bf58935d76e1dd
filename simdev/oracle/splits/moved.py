"""Sums of partial results that differ from known ones in their devices alone: copies of these with
the devices in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...nouns.taskgraph import Ints
from .arena import BASES, COMPUTE, DEVICES, ROW, WHAT, Arena


class _Rows(NamedTuple):
    """The words of all rows, where each begins, at which of them devices stand, and which of the
    devices of the op's parts each is, in the order of their first parts; and the grid.
    """

    grid: int
    words: Ints
    begins: Ints
    places: Ints
    ranks: Ints


def ranks_of(devices: Sequence[int]) -> tuple[int, ...]:
    """By part which device it is on, where devices are numbered in the order of their first
    parts.
    """
    ranks: dict[int, int] = {}
    return tuple([ranks.setdefault(device, len(ranks)) for device in devices])


class MovedSums:
    """The sums of an arena by what they have in common with others."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self._known: dict[Any, _Rows | None] = {}

    def words(self, key: Any, devices: Sequence[int]) -> tuple[int, int] | None:
        """Where sums like known ones are written for these devices, and how many there are; None
        where none are known.
        """
        rows = None if key is None else self._known.get(key)
        if rows is None:
            return None
        words, count = rows.words.copy(), len(rows.begins)
        words[rows.places] = np.array(list(dict.fromkeys(devices)), np.int64)[rows.ranks]
        begin = self.arena.room(len(words) + ROW + count)
        after, data = begin + len(words), self.arena.data
        data[begin:after] = words
        data[after], data[after + 1] = count, rows.grid
        data[after + ROW : after + ROW + count] = rows.begins + begin
        return after, count

    def keep(self, key: Any, where: tuple[int, int], devices: Sequence[int]) -> None:
        """Remember sums that were written for these devices."""
        if key is not None and key not in self._known:
            self._known[key] = self._rows(*where, devices)

    def _rows(self, block: int, count: int, devices: Sequence[int]) -> _Rows | None:
        """None where some hold queues of a ring: these hang on the devices themselves."""
        data, words, begins, places = self.arena.data, list[int](), list[int](), list[int]()
        for row in data[block + ROW : block + ROW + count].tolist():
            if data[row + WHAT] != COMPUTE:
                return None
            begins.append(len(words))
            size = DEVICES + int(data[row + BASES])
            places += range(len(words) + DEVICES, len(words) + size)
            words += data[row : row + size].tolist()
        rank_of = {device: rank for rank, device in enumerate(dict.fromkeys(devices))}
        ranks = [rank_of[words[place]] for place in places]
        columns = (np.array(column, np.int64) for column in (words, begins, places, ranks))
        return _Rows(int(data[block + 1]), *columns)
