"""The ink of a row is its busy share, however thin its bars are and however wide the picture is."""

from __future__ import annotations

import io
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.image import imread

from simdev.report.figures import Gantt, GanttRow, Look, draw_gantt
from simdev.report.figures.gantt import IDLE, merge_neighbours
from simdev.report.figures.rows import coverage, folded, together
from simdev.report.figures.style import new_figure

STEP = 12_000_000_000
BLUE = "#0072B2"
MOST_OFF = 0.005  # of a row, painted or not
rng = np.random.default_rng(31)


def bars(count: int, share: float, look: int = 0, device: int = 0) -> GanttRow:
    """So many bars over the step, each busy for this share of its part of it."""
    start = np.arange(count) * STEP // count
    finish = start + int(STEP / count * share)
    looks, unmarked = np.full(count, look), np.zeros(count, np.bool_)
    return GanttRow(f"row {device}", device, True, np.arange(count), start, finish, looks, unmarked)


def random_row(count: int, looks: int) -> GanttRow:
    """Bars and gaps of all lengths, from far below a pixel to many."""
    edges = np.sort(rng.integers(0, STEP, 2 * count) // rng.choice([1, 7, 300], 2 * count))
    look, unmarked = rng.integers(0, looks, count), np.zeros(count, np.bool_)
    return GanttRow("random", 0, True, np.arange(count), edges[::2], edges[1::2], look, unmarked)


def chart(*rows: GanttRow, looks: tuple[Look, ...] = (Look(BLUE),)) -> Gantt:
    return Gantt(rows, looks, STEP, "ink")


def ink(drawn: Gantt, row: int, width: float = 13.0, dpi: int = 100, above: float = 0.3) -> float:
    """How much of a line of pixels through a row is blue, from the begin of the step to its end."""
    figure = new_figure(width, drawn.height)
    ax = draw_gantt(drawn, figure.add_subplot())
    figure.savefig(file := io.BytesIO(), format="png", dpi=dpi)
    file.seek(0)
    line = np.asarray(imread(file))[:, :, :3]
    ends = [(0, row + 1 - above), (ax.lines[0].get_xdata()[0], row + 1 - above)]
    (left, down), (right, _) = ax.transData.transform(ends) * dpi / figure.dpi
    shown = 1 - line[len(line) - 1 - int(down), round(left) : round(right)]
    full = 1 - np.array([0x00, 0x72, 0xB2]) / 255
    return float((shown @ full / (full @ full)).mean())


@pytest.mark.parametrize(
    ("count", "width", "dpi"),
    [(10, 13.0, 100), (600, 13.0, 100), (600, 5.0, 100), (3_000, 13.0, 150), (3_000, 5.0, 100),
     (20_000, 13.0, 100), (20_000, 21.0, 72)],
)  # fmt: skip
def test_a_row_has_the_ink_of_its_busy_share(count: int, width: float, dpi: int) -> None:
    for share in (0.24, 0.9):
        row = bars(count, share)
        assert ink(chart(row, row), 0, width, dpi) == pytest.approx(share, abs=MOST_OFF)


@pytest.mark.parametrize("count", [7, 60, 250, 1_000, 40_000])
def test_random_rows_have_the_ink_of_their_busy_share(count: int) -> None:
    row = random_row(count, 1)
    share = float((row.finish - row.start).sum()) / STEP
    assert ink(chart(row), 0) == pytest.approx(share, abs=MOST_OFF)


def test_a_row_that_is_always_busy_is_full() -> None:
    """Borders tell its bars apart in ink, not in paper."""
    for count in (1, 30, 100, 300, 5_000):
        assert ink(chart(bars(count, 1.0)), 0) >= 1 - MOST_OFF


def test_looks_of_other_heights_do_not_cover_each_other() -> None:
    """Half busy above and a quarter below, in one row of thin bars."""
    looks = Look(BLUE, (-1.0, 0.2)), Look(BLUE, (0.2, 1.0)), IDLE
    first, second = bars(3_000, 0.5), bars(3_000, 0.25, 1)
    columns = ("tasks", "start", "finish", "look", "critical")
    parts = [np.concatenate([getattr(row, c) for row in (first, second)]) for c in columns]
    both = GanttRow("both", 0, True, *parts).chosen(np.argsort(parts[1], kind="stable"))
    drawn = chart(both, looks=looks)
    assert ink(drawn, 0, above=0.25) == pytest.approx(0.5, abs=MOST_OFF)
    assert ink(drawn, 0, above=-0.25) == pytest.approx(0.25, abs=MOST_OFF)


def test_coverage_is_the_overlap_of_each_span_with_each_part() -> None:
    for looks in (1, 3):
        row = random_row(200, looks)
        edges = np.linspace(0, STEP, 301)
        kinds, shares = coverage(row, edges)
        wanted = np.zeros((looks, 300))
        for start, finish, look in zip(row.start, row.finish, row.look, strict=True):
            overlap = np.minimum(finish, edges[1:]) - np.maximum(start, edges[:-1])
            wanted[look] += np.maximum(overlap, 0) / np.diff(edges)
        assert np.allclose(shares, wanted[kinds], atol=1e-9)


def test_spans_that_stand_for_several_are_as_busy_as_these() -> None:
    row = random_row(5_000, 2)
    merged = merge_neighbours(row, STEP / 400)
    assert len(merged) < len(row)
    assert merged.busy.sum() == row.busy.sum()
    once, twice = (coverage(each, np.linspace(0, STEP, 9))[1] for each in (row, merged))
    assert np.allclose(once, twice, atol=0.03)
    again = merge_neighbours(merged, STEP / 100)
    assert again.busy.sum() == row.busy.sum()


def test_where_spans_lie_over_each_other_their_union_counts() -> None:
    parts = [random_row(40, 2) for _ in range(3)]
    row = together(parts, "all")
    marks = np.unique(
        np.concatenate([each for part in parts for each in (part.start, part.finish)])
    )
    busy = sum(
        int(b - a)
        for a, b in pairwise(marks)
        if any(((part.start <= a) & (part.finish >= b)).any() for part in parts)
    )
    assert row.busy.sum() == busy
    assert (row.start[1:] >= row.finish[:-1]).all()


def test_rows_that_are_not_as_busy_are_no_rows_alike() -> None:
    """Bars thinner than a pixel, at the same times: one row is busy for 24 %, the other for 90."""
    thin, dense = (bars(20_000, share, device=d) for d, share in enumerate((0.24, 0.9)))
    links = [GanttRow(f"link {k}", -1, False, r.tasks, r.start, r.finish, r.look, r.critical)
             for k, r in enumerate((thin, dense, thin))]  # fmt: skip
    assert [row.name for row in folded(links, STEP / 4_000)] == ["link 0 (2 alike)", "link 1"]
