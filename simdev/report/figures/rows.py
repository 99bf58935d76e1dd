"""The rows of a chart as plain data: spans, what of them a picture can show, and rows that are
alike drawn once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from ...taskgraph import Ints
from ..measures.spans import Bools

LINK = -1  # the device of a row that belongs to none: a link
MANY_ROWS = 26  # beyond, devices that do the same at the same time are drawn once, as links are
MOST_ROWS = 100  # beyond, all queues and links share one
SEPARATE = 8  # pixels: from this length spans are not merged
MOST_LINKS = 16  # rows of links; the others, those that carry for the shortest time, share one


@dataclass(frozen=True, slots=True, eq=False)
class GanttRow:
    """One row of spans; of each the ``start`` and ``finish`` in ps, and the ``look``, an index into
    the looks of the chart.

    ``tasks`` are the ids of the tasks that the spans show (-1: none), ``critical`` marks those on
    the critical path. Rows of another ``device`` stand a little apart (a link: -1); the names of
    rows that do not ``computes`` are grey, their bars lower. ``note`` stands right of the row.
    """

    name: str
    device: int
    computes: bool
    tasks: Ints
    start: Ints
    finish: Ints
    look: Ints
    critical: Bools
    note: str = ""

    def __len__(self) -> int:
        return len(self.start)

    def chosen(self, spans: Any) -> GanttRow:
        """The row with some of its spans only: an index or a mask."""
        columns = ("tasks", "start", "finish", "look", "critical")
        return replace(self, **{name: getattr(self, name)[spans] for name in columns})


def merge_neighbours(row: GanttRow, resolution_ps: float) -> GanttRow:
    """The row with neighbours of one look made one span where they lie closer than
    ``resolution_ps``.

    A merged span carries the id of its first task. Spans on and off the critical path are not
    merged.
    """
    return _merged(row, resolution_ps, np.zeros(len(row), np.bool_))


def _merged(row: GanttRow, resolution_ps: float, kept: Bools) -> GanttRow:
    """Merge neighbours, but not two that both are ``kept``."""
    if not len(row):
        return row
    apart = row.start[1:] - row.finish[:-1] > resolution_ps
    apart |= (row.look[1:] != row.look[:-1]) | (row.critical[1:] != row.critical[:-1])
    apart |= kept[1:] & kept[:-1]
    first = np.flatnonzero(np.concatenate(([True], apart)))
    last = np.append(first[1:], len(row)) - 1
    return replace(row.chosen(first), finish=row.finish[last])


def visible_row(row: GanttRow, pixel_ps: float) -> GanttRow:
    """The spans of a row that a picture can show whose pixels are so wide; none is marked critical.

    Neighbours of one look that less than a pixel separates are one span, unless both have SEPARATE
    pixels; of what is shorter than a pixel, the spans that begin in one pixel are one span in the
    look of the longest.
    """
    unmarked = replace(row, critical=np.zeros(len(row), np.bool_))
    merged = _merged(unmarked, pixel_ps, row.finish - row.start > SEPARATE * pixel_ps)
    if len(merged) < 2 or pixel_ps <= 0:
        return merged
    length = merged.finish - merged.start
    pixel = (merged.start / pixel_ps).astype(np.int64)
    short = length < pixel_ps
    together = short[1:] & short[:-1] & (pixel[1:] == pixel[:-1])
    first = np.flatnonzero(np.concatenate(([True], ~together)))
    last = np.append(first[1:], len(merged)) - 1
    run = np.repeat(np.arange(len(first)), last - first + 1)
    longest = np.lexsort((length, run))[last]  # the last of each run, by length
    finish = np.maximum.reduceat(merged.finish, first)
    return replace(merged.chosen(longest), start=merged.start[first], finish=finish)


def critical_marks(row: GanttRow, gap_ps: float) -> tuple[Ints, Ints]:
    """(starts, finishes) of a row's critical path; what is interrupted for less than ``gap_ps``
    goes on.
    """
    path = row.chosen(row.critical)
    merged = merge_neighbours(replace(path, look=np.zeros(len(path), np.int64)), gap_ps)
    return merged.start, merged.finish


def folded(rows: Sequence[GanttRow], pixel_ps: float) -> tuple[GanttRow, ...]:
    """The rows, those that show the same drawn once and named with their number.

    Rows show the same where all their spans begin and end within ``pixel_ps``. Links are folded
    always, and so are devices that do nothing; other devices, each with all its rows, where more
    than MANY_ROWS would stay. Of what is folded the one shown has most of the critical path. Of
    more than MOST_LINKS links those that carry for the longest time keep rows of their own, and of
    more than MOST_ROWS rows those that compute.
    """
    every = [Folded(block, 1, block[0]) for block in _blocks(rows)]
    links = _fold([fold for fold in every if fold.is_link], pixel_ps)
    blocks = [fold for fold in every if not fold.is_link]
    idle = [fold for fold in blocks if not fold.spans]
    blocks = [fold for fold in blocks if fold.spans]
    rest = _fold(idle, pixel_ps)
    if sum(len(fold.rows) for fold in (*blocks, *rest, *links)) > MANY_ROWS:
        # The critical path (a device below LINK) stays by itself.
        beside = [fold for fold in blocks if fold.rows[0].device < LINK]
        blocks = beside + _fold([fold for fold in blocks if fold not in beside], pixel_ps)
    # Where each first stood in the order of the rows.
    place = {id(row): i for i, row in enumerate(rows)}
    shown = sorted((*blocks, *rest), key=lambda fold: place[id(fold.first)])
    named = [row for fold in (*shown, *_fewer(links)) for row in fold.named()]
    moving = [row for row in named if not row.computes]
    if len(named) <= MOST_ROWS or not moving:
        return tuple(named)
    together = _together(moving, f"{len(moving)} queues and links")
    return (*(row for row in named if row.computes), together)


@dataclass(frozen=True, slots=True, eq=False)
class Folded:
    """All rows of a device, or one link, that stand for ``count`` alike; ``first`` is the first row
    of the first of them.
    """

    rows: tuple[GanttRow, ...]
    count: int
    first: GanttRow

    @property
    def is_link(self) -> bool:
        """Whether it is a link."""
        return self.rows[0].device == LINK

    @property
    def spans(self) -> int:
        """How many spans its rows have."""
        return sum(map(len, self.rows))

    @property
    def critical(self) -> int:
        """How many of them are on the critical path."""
        return sum(int(row.critical.sum()) for row in self.rows)

    def named(self) -> tuple[GanttRow, ...]:
        """The rows, named with how many they stand for."""
        if self.count == 1:
            return self.rows
        return tuple(replace(row, name=f"{row.name} ({self.count} alike)") for row in self.rows)


def _blocks(rows: Sequence[GanttRow]) -> Iterator[tuple[GanttRow, ...]]:
    for device, members in groupby(rows, key=lambda row: row.device):
        if device == LINK:
            yield from ((row,) for row in members)
        else:
            yield tuple(members)


def _fold(blocks: Sequence[Folded], pixel_ps: float) -> list[Folded]:
    """Those alike as one, in the order of the first of each."""
    groups: list[tuple[Sequence[GanttRow], list[Folded]]] = []
    by_shape = defaultdict[object, list[tuple[Sequence[GanttRow], list[Folded]]]](list)
    for block in blocks:
        coarse = [visible_row(row, pixel_ps) for row in block.rows]
        alike = by_shape[tuple((row.computes, row.look.tobytes()) for row in coarse)]
        for first, members in alike:
            if all(_alike(a, b, pixel_ps) for a, b in zip(first, coarse, strict=True)):
                members.append(block)
                break
        else:
            group = coarse, [block]
            alike.append(group)
            groups.append(group)
    return [_joined(members) for _, members in groups]


def _alike(first: GanttRow, second: GanttRow, pixel_ps: float) -> bool:
    starts, finishes = first.start - second.start, first.finish - second.finish
    return bool((abs(starts) <= pixel_ps).all() and (abs(finishes) <= pixel_ps).all())


def _joined(members: Sequence[Folded]) -> Folded:
    shown = max(members, key=lambda fold: fold.critical)
    return Folded(shown.rows, sum(fold.count for fold in members), members[0].first)


def _fewer(links: Sequence[Folded]) -> Sequence[Folded]:
    """MOST_LINKS rows at most: the last stands for all that carry for a shorter time."""
    if len(links) <= MOST_LINKS:
        return links
    carried = [int((fold.rows[0].finish - fold.rows[0].start).sum()) for fold in links]
    busiest = sorted(np.argsort(carried, kind="stable")[1 - MOST_LINKS :].tolist())
    rest = [fold for i, fold in enumerate(links) if i not in busiest]
    count = sum(fold.count for fold in rest)
    together = _together([fold.rows[0] for fold in rest], f"{count} more links")
    return [*(links[i] for i in busiest), Folded((together,), 1, together)]


def _together(rows: Sequence[GanttRow], name: str) -> GanttRow:
    """When any of the rows shows a look, a span for as long as one of them does."""
    columns = ("tasks", "start", "finish", "look", "critical")
    tasks, start, finish, look, critical = (
        np.concatenate([getattr(row, column) for row in rows]) for column in columns
    )
    order = np.lexsort((start, look))
    end = finish[order]
    for kind in np.unique(look).tolist():
        of_kind = look[order] == kind
        end[of_kind] = np.maximum.accumulate(end[of_kind])
    start, look = start[order], look[order]
    fresh = np.concatenate(([True], (look[1:] != look[:-1]) | (start[1:] > end[:-1])))
    first = np.flatnonzero(fresh)
    last = np.append(first[1:], len(order)) - 1
    marked = np.logical_or.reduceat(critical[order], first)
    spans = tasks[order][first], start[first], end[last], look[first], marked
    by_time = np.argsort(start[first], kind="stable")
    return GanttRow(name, LINK, False, *spans).chosen(by_time)
