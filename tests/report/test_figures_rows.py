"""What charts show of many spans: rows alike once, nothing thinner than a pixel, whole labels."""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure

from simdev.nouns.trace import Trace
from simdev.report.figures import (
    Gantt,
    GanttRow,
    Label,
    Look,
    draw_gantt,
    plot_gantt,
    plot_memory,
    trace_figure,
)
from simdev.report.figures.charts import trace_chart
from simdev.report.figures.gantt import TALLEST, fitted
from simdev.report.figures.memory import COLUMNS, CURVES, memory_curves
from simdev.report.figures.rows import LINK, MOST_LINKS, MOST_ROWS, coarse, critical_marks, folded
from simdev.report.figures.style import text_width
from simdev.report.measures.spans import levels_between, step_parts
from worlds.traces import Held, Span, trace_of


def row(
    spans: Sequence[tuple[int, int, int]], critical: Sequence[int] = (), device: int = LINK,
    name: str = "link", computes: bool = False,
) -> GanttRow:  # fmt: skip
    """A row of (start, finish, look)."""
    start, finish, look = np.array(spans, np.int64).reshape(-1, 3).T
    marked = np.isin(np.arange(len(spans)), critical)
    return GanttRow(name, device, computes, np.arange(len(spans)), start, finish, look, marked)


def spans_of(shown: GanttRow) -> list[tuple[int, int, int]]:
    columns = (shown.start, shown.finish, shown.look)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_of_what_is_shorter_than_a_pixel_the_longest_gives_its_look() -> None:
    crowd = row([(0, 1, 0), (2, 5, 1), (5, 7, 0), (22, 40, 0)])
    assert spans_of(coarse(crowd, 10)) == [(0, 7, 1), (22, 40, 0)]
    assert spans_of(coarse(crowd, 1)) == spans_of(crowd)


def test_long_neighbours_stay_apart_and_short_ones_do_not() -> None:
    ops = row([(0, 100, 0), (100, 200, 0)])
    assert len(coarse(ops, 10)) == 2
    assert spans_of(coarse(ops, 20)) == [(0, 200, 0)]


def test_twenty_thousand_spans_in_turn_become_no_more_than_pixels() -> None:
    ops = row([(2 * i, 2 * i + 2, i % 2) for i in range(20_000)])
    shown = coarse(ops, 40.0)
    assert len(shown) <= 1_001
    assert (shown.start[0], shown.finish[-1]) == (0, 40_000)
    assert (shown.start[1:] >= shown.finish[:-1]).all()


def test_the_mark_of_the_path_goes_on_over_short_interruptions() -> None:
    ladder = row([(i, i + 1, i % 3) for i in range(100)], critical=range(0, 100, 2))
    start, finish = critical_marks(ladder, 3)
    assert (start.tolist(), finish.tolist()) == ([0], [99])
    assert len(critical_marks(ladder, 0.5)[0]) == 50


def test_links_alike_are_one_row_that_bears_the_critical_path() -> None:
    links = [row([(10 + i, 50 + i, 0)], [0] * (i == 2), name=f"link {i}") for i in range(3)]
    (shown,) = folded(links, 2)
    assert shown.name == "link 2 (3 alike)"
    assert [shown.name for shown in folded(links, 1)] == ["link 0 (2 alike)", "link 2"]
    assert [shown.name for shown in folded(links, 0)] == ["link 0", "link 1", "link 2"]


def test_of_many_links_the_busiest_keep_their_rows() -> None:
    links = [row([(0, 10 * i, 0), (500, 510, 1)], name=f"link {i}") for i in range(1, 31)]
    shown = folded(links, 1)
    assert [row.name for row in shown] == [
        *(f"link {i}" for i in range(16, 31)),
        "15 more links",
    ]
    assert len(shown) == MOST_LINKS
    assert spans_of(shown[-1]) == [(0, 150, 0), (500, 510, 1)]


def test_idle_devices_are_one_row_and_busy_ones_only_where_there_are_many() -> None:
    def devices(count: int) -> list[GanttRow]:
        work = [(0, 10, 0)]
        busy = [row(work, device=d, name=f"gpu:{d}", computes=True) for d in range(count)]
        idle = [row([], device=d, name=f"gpu:{d}", computes=True) for d in range(count, count + 4)]
        return [row(work, device=-2, name="critical path", computes=True), *busy, *idle]

    assert [shown.name for shown in folded(devices(3), 1)] == [
        "critical path", "gpu:0", "gpu:1", "gpu:2", "gpu:3 (4 alike)",
    ]  # fmt: skip
    assert [shown.name for shown in folded(devices(40), 1)] == [
        "critical path", "gpu:0 (40 alike)", "gpu:40 (4 alike)",
    ]  # fmt: skip


def test_of_too_many_rows_all_queues_share_one() -> None:
    rows = [
        row([(d, 2 * d, 0)], device=d, name=name, computes=name == "gpu")
        for d in range(1, 61)
        for name in ("gpu", "send")
    ]
    shown = folded(rows, 0.1)
    assert len(rows) > MOST_ROWS
    assert [row.name for row in shown[-2:]] == ["gpu", "60 queues and links"]
    assert len(shown) == 61


def test_every_label_lies_within_its_span() -> None:
    names = ("W" * 9, "encoder/attention/matmul", "iiii", "a_b", "x")
    edges = np.cumsum([0, 3, 5, 8, 12, 20, 30, 44, 60, 85, 120, 160]).tolist()
    spans = [(a, b, 0) for a, b in pairwise(edges)]
    labels = tuple(Label(0, a, b, 0, (names[i % 5],)) for i, (a, b, _) in enumerate(spans))
    chart = Gantt((row(spans),), (Look("#0072B2"),), edges[-1], "labels", labels=labels)
    ax = draw_gantt(chart)
    figure = ax.figure
    assert isinstance(figure, Figure)
    figure.draw_without_rendering()
    assert len(ax.texts) >= 5
    inside = ax.transData.inverted()
    for text in ax.texts:
        (left, _), (right, _) = inside.transform(text.get_window_extent())
        middle, scale = text.get_position()[0], edges[-1] / ax.lines[0].get_xdata()[0]
        (span,) = [(a, b) for a, b, _ in spans if a < middle * scale < b]
        assert span[0] <= left * scale <= right * scale <= span[1], text.get_text()
        assert text.get_text().replace("\n", "") in names


def test_a_label_fits_whole_on_a_line_or_on_two_or_not_at_all() -> None:
    wide = text_width("stage_0/forward_0") * 8
    assert fitted(("stage_0/forward_0", "0"), wide, 10) == ("stage_0/forward_0", 8.0)
    assert fitted(("stage_0/forward_0", "0"), wide / 1.8, 20) == ("stage_0/\nforward_0", 8.0)
    assert fitted(("stage_0/forward_0", "0"), wide / 1.8, 10) == ("0", 8.0)
    assert fitted(("stage_0/forward_0",), 10, 30)[0] == ""


def ladder(count: int) -> Trace:
    """Two devices in turn, an op of 3 ps each: all of them are on the critical path."""
    names = [f"op{i}" for i in range(count)]
    return trace_of(
        [
            Span(name, 3 * i, 3 * i + 3, f"gpu:{i % 2}", names[i - 1 : i] if i else (), at=i % 2)
            for i, name in enumerate(names)
        ]
    )


def test_a_path_over_short_ops_is_a_line_not_a_ladder() -> None:
    ax = plot_gantt(ladder(4_000))
    (marks,) = [drawn for drawn in ax.collections if isinstance(drawn, LineCollection)]
    assert len(marks.get_segments()) <= 2
    bars = [drawn for drawn in ax.collections if isinstance(drawn, PolyCollection)]
    assert sum(len(drawn.get_paths()) for drawn in bars) < 4_000
    assert not ax.texts


def test_charts_are_never_taller_than_a_page() -> None:
    spans = [Span(f"a{d}", 0, 50 + 9 * d, f"gpu:{d}", at=d) for d in range(200)]
    trace = trace_of(spans, [f"gpu:{d}" for d in range(200)])
    assert trace_chart(trace).height == TALLEST


def test_devices_of_equal_memory_share_a_curve() -> None:
    spans = [Span(f"op{d}", 0, 9, f"gpu:{d}", at=d) for d in range(4)]
    buffers = [Held(f"b{d}", d, 7 + d // 3, f"op{d}") for d in range(4)]
    trace = trace_of(spans, [f"gpu:{d}" for d in range(4)], buffers=buffers)
    assert [curve.label for curve in memory_curves(trace)] == [
        "gpu:0 (3 alike), peak 7 B", "gpu:3, peak 8 B",
    ]  # fmt: skip
    # A panel each, under the chart.
    assert len(trace_figure(trace).axes) == 3


def test_many_devices_have_an_envelope_of_their_memory() -> None:
    names = [f"gpu:{d}" for d in range(CURVES + 4)]
    spans = [Span(f"op{d}", d, d + 90, name, at=d) for d, name in enumerate(names)]
    buffers = [Held(f"b{d}", d, (5, 8)[d % 2], f"op{d}") for d in range(len(names))]
    trace = trace_of(spans, names, buffers=buffers)
    ax = plot_memory(trace)
    legend = ax.get_legend()
    assert legend is not None
    words = [text.get_text() for text in legend.get_texts()]
    assert words == ["lowest to highest of 12 devices", "gpu:1, peak 8 B"]
    assert len(trace_figure(trace).axes) == 2
    low, high = levels_between(trace.memory[3], step_parts(trace.end_ps, COLUMNS))
    assert len(low) == len(high) == COLUMNS
    assert (int(low[0]), int(high.max())) == (0, trace.memory[3].peak)


def test_spans_of_days_have_labels_as_any_other() -> None:
    day = 86_400 * 10**12
    trace = trace_of([Span("first", 0, day, at=0), Span("second", day, 2 * day, at=0)], ("gpu:0",))
    assert {name for label in trace_chart(trace).labels for name in label.names} >= {
        "first",
        "second",
    }


@pytest.mark.parametrize("kind", ["svg", "pdf", "png"])
def test_pictures_are_written_in_every_format(kind: str) -> None:
    file = io.BytesIO()
    trace_figure(ladder(30)).savefig(file, format=kind)
    data = file.getvalue()
    assert data.startswith({"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG"}[kind])
    if kind == "svg":
        root = ElementTree.fromstring(data)
        assert root.tag.endswith("svg")
        assert len(list(root.iter("{http://www.w3.org/2000/svg}path"))) > 30
