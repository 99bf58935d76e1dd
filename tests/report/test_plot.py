"""Figures: the data exactly, the drawing by what stands on the axes and by files that are not
empty.
"""

from __future__ import annotations

import io
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.figure import Figure

from simdev.nouns.trace import Trace
from simdev.report.figures import plot_gantt, plot_memory, trace_figure
from simdev.report.figures.charts import trace_rows
from simdev.report.figures.gantt import (
    IDLE,
    Gantt,
    GanttRow,
    Label,
    Look,
    draw_gantt,
    merge_neighbours,
)  # fmt: skip
from simdev.report.figures.style import byte_unit, kind_colours, plain, time_unit
from simdev.report.measures.path import critical_path
from worlds.scenarios import World
from worlds.traces import HOSTILE, Span, hostile, trace_of, two_devices


def png(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


def many(count: int, devices: int = 8) -> Trace:
    """Ops of 3 ps every 4 ps, in two kinds."""
    spans = []
    for i in range(count):
        turn, device = divmod(i, devices)
        kind = ("forward", "backward")[turn % 2]
        spans.append(Span(f"op{i}", 4 * turn, 4 * turn + 3, f"gpu:{device}", at=device, kind=kind))
    return trace_of(spans, [f"gpu:{d}" for d in range(devices)])


def rows_of(trace: Trace) -> list[tuple[GanttRow, list[str]]]:
    """Each row below the critical path, with the kinds of its spans."""
    rows, colours = trace_rows(trace)
    return [(row, [list(colours)[look] for look in row.look]) for row in rows[1:]]


def test_rows_by_hand() -> None:
    rows, kinds = zip(*rows_of(two_devices()), strict=True)
    assert [(row.name, row.device, row.computes) for row in rows] == [
        ("gpu:0", 0, True),
        ("send gpu:0", 0, False),
        ("gpu:1", 1, True),
        ("recv gpu:1", 1, False),
    ]
    assert [row.start.tolist() for row in rows] == [[0, 12], [10], [20, 26], [10]]
    assert [row.finish.tolist() for row in rows] == [[10, 20], [16], [25, 30], [16]]
    assert list(kinds) == [["forward"] * 2, ["transfer"], ["backward", "update"], ["transfer"]]
    assert [row.critical.tolist() for row in rows] == [[True, False], [True], [True, True], [True]]


def test_transfers_without_a_queue_are_packed_into_lanes() -> None:
    spans = [
        Span("x", 0, 4, to=1),
        Span("y", 2, 6, to=1),
        Span("z", 4, 5, to=1),
        Span("w", 0, 9, at=1, to=0),
    ]
    lanes = {row.name: row.tasks.tolist() for row, _ in rows_of(trace_of(spans)) if len(row)}
    assert lanes == {"out gpu:0": [0, 2], "out gpu:0 #2": [1], "out gpu:1": [3]}


def test_links_are_the_last_rows() -> None:
    rows = rows_of(
        trace_of([Span("x", 0, 4, "link gpu:0>gpu:1", to=1), Span("a", 0, 1, "gpu:1", at=1)])
    )
    assert [row.name for row, _ in rows] == ["gpu:0", "gpu:1", "link gpu:0>gpu:1"]


def test_the_path_row_tiles_the_step() -> None:
    rows, colours = trace_rows(two_devices())
    assert rows[0].start.tolist() == [s.start_ps for s in critical_path(two_devices())]
    assert [list(colours)[look] for look in rows[0].look] == [
        "forward", "transfer", "latency", "backward", "launch", "update",
    ]  # fmt: skip
    assert rows[0].finish[-1] == 30


def test_neighbours_of_one_kind_merge() -> None:
    row = trace_rows(many(80, 1))[0][1]
    assert merge_neighbours(row, 0.5).tasks.tolist() == row.tasks.tolist()
    spans = [Span(f"a{i}", 4 * i, 4 * i + 3, "gpu:0") for i in range(5)]
    merged = merge_neighbours(trace_rows(trace_of(spans))[0][1], 1)
    # a4 is the critical path (a root that waited), so it stays by itself.
    assert (merged.start.tolist(), merged.finish.tolist()) == ([0, 16], [15, 19])


def test_a_chart_draws_the_rows_and_colours_that_it_is_handed() -> None:
    spans = np.array([0, 1]), np.array([0, 60]), np.array([50, 100]), np.array([0, 1])
    row = GanttRow("mine", 0, True, *spans, np.zeros(2, bool), note="beside it")
    labels = (Label(0, 0, 50, 0, ("first",)),)
    ax = draw_gantt(
        Gantt((row,), (Look("#0072B2"), IDLE), 100, "by hand", labels=labels, legend={"idle": IDLE})
    )
    assert [label.get_text() for label in ax.get_yticklabels()] == ["mine"]
    assert [text.get_text() for text in ax.texts] == ["first"]
    assert ax.get_title(loc="left") == "by hand"
    idle, bars = ([path.get_extents() for path in c.get_paths()] for c in ax.collections[:2])
    assert [(box.x0, box.x1) for box in idle] == [(60, 100)]
    # The pixels of the bar, whole ones: its own ends lie in the first and in the last.
    assert (bars[0].x0, bars[-1].x1) == pytest.approx((0, 50), abs=0.2)


def test_gantt_of_ten_spans_tells_names_and_ends() -> None:
    ax = plot_gantt(two_devices())
    texts = {text.get_text() for text in ax.texts}
    assert {"a", "b", "c", "d", "a:0  gpu:0 → gpu:1"} <= texts
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        "critical path", "gpu:0", "send gpu:0", "gpu:1", "recv gpu:1",
    ]  # fmt: skip
    assert ax.get_xlabel() == "time (ps)"
    legend = ax.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()][-1] == "critical path"
    assert len(png(ax.figure)) > 5_000


def test_gantt_of_twenty_thousand_spans_draws_few_artists() -> None:
    ax = plot_gantt(many(20_000))
    assert not ax.texts
    assert len(ax.collections) <= 6
    assert len(png(ax.figure)) > 10_000


def test_axes_in_axes_out() -> None:
    gantt, memory = Figure().subplots(2, 1)
    assert plot_gantt(two_devices(), gantt) is gantt
    assert plot_memory(two_devices(), memory) is memory


def test_memory_curves_replay_the_trace() -> None:
    trace = two_devices([106, 5])
    ax = plot_memory(trace)
    curves = {line.get_label(): line for line in ax.lines}
    curve = curves["gpu:1, peak 9 B (4 B over)"]
    time, level = trace.memory[1].time, trace.memory[1].level
    assert np.asarray(curve.get_xdata())[1:-1].tolist() == time.tolist()
    assert np.asarray(curve.get_ydata())[1:-1].tolist() == level.tolist()
    assert {"capacity 5 B", "capacity 106 B"} < curves.keys()
    assert any("gpu:1: 1 B over when a:0>gpu:1 starts" in text.get_text() for text in ax.texts)


def test_figure_stacks_the_memory_of_each_device_on_one_time_axis() -> None:
    figure = trace_figure(two_devices([106, 5]))
    gantt, *memory = figure.axes
    assert [gantt.get_xlim()] * 2 == [panel.get_xlim() for panel in memory]
    assert memory[0].get_ylim() == memory[1].get_ylim()
    assert gantt.get_title(loc="left") == "step 30 ps, DOES NOT FIT: 4 B over"
    assert len(png(figure)) > 10_000


@pytest.mark.parametrize("trace", [trace_of([]), trace_of([Span("a", 0, 0, "gpu:0")]), hostile()])
def test_anything_can_be_drawn(trace: Trace) -> None:
    # Warnings are errors here: a glyph that the font lacks, or mathtext, would fail.
    assert png(trace_figure(trace))


def test_worlds_can_be_drawn(pipeline: World) -> None:
    assert png(trace_figure(pipeline.trace))


def test_plain_text_does_no_harm() -> None:
    assert plain("$x$") == r"\$x\$"
    assert plain("x" * 100, 10) == "x" * 9 + "…"
    assert plain(HOSTILE[4]).startswith("□□□ ")


def test_units() -> None:
    assert [time_unit(ps) for ps in (0, 999, 10**6, 5 * 10**12)] == [
        ("ps", 1),
        ("ps", 1),
        ("us", 10**6),
        ("s", 10**12),
    ]
    assert [byte_unit(size) for size in (0, 1024, 2**31)] == [
        ("B", 1),
        ("KiB", 1024),
        ("GiB", 2**30),
    ]


def test_unknown_kinds_get_a_colour_of_their_own() -> None:
    colours = kind_colours(["zeta", "forward", "alpha"])
    assert list(colours) == ["forward", "alpha", "zeta"]
    assert len(set(colours.values())) == 3


def test_importing_plot_does_not_import_matplotlib() -> None:
    code = (
        "import sys, simdev.report.figures, simdev.report.export; sys.exit('matplotlib' in "
        "sys.modules or "
        "'pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
