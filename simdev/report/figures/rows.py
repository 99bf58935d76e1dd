"""The rows of a chart as plain data: spans, the share of each pixel that they cover, and the
folding of rows that look alike.

Pictures paint a pixel with the opacity of the share that is covered (``coverage``), in the mean
colour of the spans there: so the ink of a row is its busy share, however thin its spans are. The
page draws by the same rule (page/assets/bars.js).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...nouns.taskgraph import Bools, Floats, Ints
from ..measures.spans import apart, runs, shares_between

LINK = -1  # the device of a row of a link, which belongs to no device
MANY_ROWS = 26  # beyond, devices that do the same at the same time are drawn once, as links are
MOST_ROWS = 100  # beyond, all queues and links share one
SEPARATE = 8  # pixels: from this length spans are not merged
LONG = 6  # pixels: from this length a border separates a span from the next of its look
MOST_LINKS = 16  # rows of links; the links that carry for the shortest time share the last row


@dataclass(frozen=True, slots=True, eq=False)
class GanttRow:
    """One row of spans; of each the ``start`` and ``finish`` in ps, and the ``look``, an index into
    the looks of the chart.

    ``tasks`` are the ids of the tasks that the spans show (-1: none), ``critical`` marks those on
    the critical path. Rows of another ``device`` are drawn a little apart (a link: -1). Where a row
    does not ``computes``, its name is grey and its bars are lower. ``note`` is written right of the
    row. ``covered`` has the busy ps of spans that were merged from several, with the gaps between
    them (None: spans are busy from end to end).
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
    covered: Ints | None = None

    @classmethod
    def of(
        cls, name: str, spans: Iterable[Ints], device: int = 0, computes: bool = True,
        critical: Bools | None = None, note: str = "",
    ) -> GanttRow:  # fmt: skip
        """The row of (task, start, finish, look) of its spans; none is critical by default."""
        tasks, start, finish, look = spans
        marks = np.zeros(len(tasks), np.bool_) if critical is None else critical
        return cls(name, device, computes, tasks, start, finish, look, marks, note)

    def __len__(self) -> int:
        return len(self.start)

    @property
    def columns(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Task, start, finish and look of the spans."""
        return self.tasks, self.start, self.finish, self.look

    def spans(self) -> Iterator[tuple[int, ...]]:
        """(task, start, finish, look) of each span."""
        yield from zip(*(column.tolist() for column in self.columns), strict=True)

    @property
    def busy(self) -> Ints:
        """The busy ps of each span."""
        return self.finish - self.start if self.covered is None else self.covered

    def chosen(self, spans: Any) -> GanttRow:
        """The row with some of its spans only: an index or a mask."""
        columns = ["tasks", "start", "finish", "look", "critical"]
        columns += ["covered"] * (self.covered is not None)
        return replace(self, **{name: getattr(self, name)[spans] for name in columns})


def coverage(row: GanttRow, edges: NDArray[Any]) -> tuple[Ints, Floats]:
    """(the looks of a row; for each look a line with the share that it covers of each part between
    neighbouring ``edges`` in ps).

    Where spans overlap, the span that starts first counts.
    """
    order, begin, length = apart(row.start, row.finish)
    covered = row.busy[order] * (length / np.maximum(row.finish - row.start, 1)[order])
    looks, kind = np.unique(row.look), row.look[order]
    lines = [
        shares_between(edges, begin[kind == k], length[kind == k], covered[kind == k])
        for k in looks.tolist()
    ]
    return looks, np.reshape(lines, (len(looks), len(edges) - 1))


def long_borders(row: GanttRow, pixel_ps: float) -> NDArray[Any]:
    """The ends of spans of LONG pixels that are followed within a pixel by a LONG span of the same
    look.
    """
    long = row.finish - row.start >= LONG * pixel_ps
    follows = (row.start[1:] - row.finish[:-1] < pixel_ps) & (row.look[1:] == row.look[:-1])
    ends: NDArray[Any] = row.finish[:-1][follows & long[1:] & long[:-1]]
    return ends


def merge_neighbours(row: GanttRow, resolution_ps: float) -> GanttRow:
    """The row with neighbouring spans of one look merged where they are closer than
    ``resolution_ps``; a merged span is as busy as its parts together.

    A merged span carries the id of its first task. Spans on and off the critical path are not
    merged.
    """
    return _merged(row, resolution_ps, np.zeros(len(row), np.bool_))


def _merged(row: GanttRow, resolution_ps: float, kept: Bools) -> GanttRow:
    """Merge neighbours, but not two that both are ``kept``."""
    if not len(row):
        return row
    split = row.start[1:] - row.finish[:-1] > resolution_ps
    split |= (row.look[1:] != row.look[:-1]) | (row.critical[1:] != row.critical[:-1])
    split |= kept[1:] & kept[:-1]
    first, last = runs(split)
    covered = np.add.reduceat(row.busy, first)
    return replace(row.chosen(first), finish=row.finish[last], covered=covered)


def coarse(row: GanttRow, pixel_ps: float) -> GanttRow:
    """The row with few enough spans to compare rows; none is marked critical.

    Neighbours of one look less than a pixel apart become one span, unless both have SEPARATE
    pixels. Spans shorter than a pixel that begin in the same pixel become one span with the look of
    the longest.
    """
    unmarked = replace(row, critical=np.zeros(len(row), np.bool_))
    merged = _merged(unmarked, pixel_ps, row.finish - row.start > SEPARATE * pixel_ps)
    if len(merged) < 2 or pixel_ps <= 0:
        return merged
    length = merged.finish - merged.start
    pixel = (merged.start / pixel_ps).astype(np.int64)
    short = length < pixel_ps
    together = short[1:] & short[:-1] & (pixel[1:] == pixel[:-1])
    first, last = runs(~together)
    run = np.repeat(np.arange(len(first)), last - first + 1)
    longest = np.lexsort((length, run))[last]  # the last of each run, by length
    finish, covered = np.maximum.reduceat(merged.finish, first), np.add.reduceat(merged.busy, first)
    kept = merged.chosen(longest)
    return replace(kept, start=merged.start[first], finish=finish, covered=covered)


def critical_marks(row: GanttRow, gap_ps: float) -> tuple[Ints, Ints]:
    """(starts, finishes) of a row's parts on the critical path, joined over gaps of less than
    ``gap_ps``.
    """
    path = row.chosen(row.critical)
    merged = merge_neighbours(replace(path, look=np.zeros(len(path), np.int64)), gap_ps)
    return merged.start, merged.finish


def folded(rows: Sequence[GanttRow], pixel_ps: float) -> tuple[GanttRow, ...]:
    """The rows, with rows that look alike drawn once and named with their number.

    Rows look alike if all their spans begin, end, and are busy equally to within ``pixel_ps``;
    shorter spans only have to be equally busy. Links and idle devices are always folded; other
    devices, each with all its rows, only where more than MANY_ROWS rows would stay. Of folded
    devices the one with most of the critical path is shown. Of more than MOST_LINKS links only the
    busiest keep rows of their own, of more than MOST_ROWS rows only the computing ones.
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
    # The original place of each row.
    place = {id(row): i for i, row in enumerate(rows)}
    shown = sorted((*blocks, *rest), key=lambda fold: place[id(fold.first)])
    named = [row for fold in (*shown, *_fewer(links)) for row in fold.named()]
    moving = [row for row in named if not row.computes]
    if len(named) <= MOST_ROWS or not moving:
        return tuple(named)
    rest_of_rows = together(moving, f"{len(moving)} queues and links")
    return (*(row for row in named if row.computes), rest_of_rows)


@dataclass(frozen=True, slots=True, eq=False)
class Folded:
    """All rows of a device or a link, drawn for ``count`` devices or links that look alike;
    ``first`` is the first row of the first of these.
    """

    rows: tuple[GanttRow, ...]
    count: int
    first: GanttRow

    @property
    def is_link(self) -> bool:
        """Whether the rows belong to a link."""
        return self.rows[0].device == LINK

    @property
    def spans(self) -> int:
        """The number of spans of the rows."""
        return sum(map(len, self.rows))

    @property
    def critical(self) -> int:
        """The number of spans on the critical path."""
        return sum(int(row.critical.sum()) for row in self.rows)

    def named(self) -> tuple[GanttRow, ...]:
        """The rows, with the number of devices or links that look alike in their names."""
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
    """The blocks, with blocks that look alike folded into one, in the order of their first."""
    groups: list[tuple[Sequence[GanttRow], list[Folded]]] = []
    by_shape = defaultdict[object, list[tuple[Sequence[GanttRow], list[Folded]]]](list)
    for block in blocks:
        seen = [coarse(row, pixel_ps) for row in block.rows]
        alike = by_shape[tuple((row.computes, row.look.tobytes()) for row in seen)]
        for first, members in alike:
            if all(_alike(a, b, pixel_ps) for a, b in zip(first, seen, strict=True)):
                members.append(block)
                break
        else:
            group = seen, [block]
            alike.append(group)
            groups.append(group)
    return [_joined(members) for _, members in groups]


def _alike(first: GanttRow, second: GanttRow, pixel_ps: float) -> bool:
    columns = ("start", "finish", "busy")
    return all(
        (abs(getattr(first, name) - getattr(second, name)) <= pixel_ps).all() for name in columns
    )


def _joined(members: Sequence[Folded]) -> Folded:
    shown = max(members, key=lambda fold: fold.critical)
    return Folded(shown.rows, sum(fold.count for fold in members), members[0].first)


def _fewer(links: Sequence[Folded]) -> Sequence[Folded]:
    """At most MOST_LINKS rows, the last of which shows all less busy links together."""
    if len(links) <= MOST_LINKS:
        return links
    carried = [int((fold.rows[0].finish - fold.rows[0].start).sum()) for fold in links]
    busiest = sorted(np.argsort(carried, kind="stable")[1 - MOST_LINKS :].tolist())
    rest = [fold for i, fold in enumerate(links) if i not in busiest]
    count = sum(fold.count for fold in rest)
    last = together([fold.rows[0] for fold in rest], f"{count} more links")
    return [*(links[i] for i in busiest), Folded((last,), 1, last)]


def together(rows: Sequence[GanttRow], name: str) -> GanttRow:
    """A row with a span wherever a row has one, in the look of the span that began first."""
    columns = zip(*((*row.columns, row.critical) for row in rows), strict=True)
    tasks, start, finish, look, critical = map(np.concatenate, columns)
    order, begin, length = apart(start, finish)
    end, look = begin + length, look[order]
    seen = np.flatnonzero(length)  # the others are covered, or points
    split = (begin[seen[1:]] > end[seen[:-1]]) | (look[seen[1:]] != look[seen[:-1]])
    first = seen[np.concatenate(([True] * bool(len(seen)), split)).astype(np.bool_)]
    last = np.append(first[1:], len(order)) - 1
    spans = tasks[order][first], begin[first], np.maximum.accumulate(end)[last], look[first]
    marked = np.logical_or.reduceat(critical[order], first) if len(first) else critical[:0]
    return GanttRow.of(name, spans, LINK, False, marked)
