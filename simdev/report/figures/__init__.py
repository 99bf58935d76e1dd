"""Figures of reports: charts are plain data first, then drawn on the caller's axes or new ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...trace import Trace
from ..report import Report
from .cluster import cluster_figure
from .gantt import Gantt, GanttRow, Label, Look, draw_gantt, gantt_figure
from .memory import plot_memory
from .microbatches import pipeline_chart, training_chart
from .style import WIDTH, new_figure
from .sync import PUBLISHED, gains_of, plot_gains, sync_chart
from .trace import trace_chart

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "PUBLISHED", "Gantt", "GanttRow", "Label", "Look", "chart_of", "cluster_figure", "draw_gantt",
    "gains_of", "gantt_figure", "plot_gains", "plot_gantt", "plot_memory", "report_figure",
    "trace_figure",
]  # fmt: skip

MEMORY_HEIGHT = 2.8  # inches


def plot_gantt(trace: Trace, ax: Axes | None = None) -> Axes:
    """Draw the Gantt chart of a trace on ``ax`` (None: on a figure of its own) and return the axes.

    Nothing is shown or saved (see ``trace_chart``).
    """
    return draw_gantt(trace_chart(trace), ax)


def trace_figure(trace: Trace) -> Figure:
    """The Gantt chart with the memory timeline under it, on one time axis; save it with
    ``figure.savefig(path)``.
    """
    chart = trace_chart(trace)
    figure = new_figure(WIDTH, chart.height + MEMORY_HEIGHT)
    gantt, memory = figure.subplots(2, 1, sharex=True, height_ratios=[chart.height, MEMORY_HEIGHT])
    draw_gantt(chart, gantt)
    plot_memory(trace, memory)
    gantt.set_xlabel("")
    return figure


def chart_of(report: Report) -> Gantt:
    """The chart that shows most of a report's step, by the sections that it has."""
    if report.training is not None:
        return training_chart(report.training, report.trace, report.bubble, report.exposed)
    if report.pipeline is not None:
        return pipeline_chart(report.pipeline, report.trace)
    if report.steady is not None:
        return sync_chart(report.trace, report.steady)
    return trace_chart(report.trace)


def report_figure(report: Report) -> Figure:
    """The chart of a report; of a single step of a graph with its memory under it."""
    if not (report.training or report.pipeline or report.steady):
        return trace_figure(report.trace)
    return gantt_figure(chart_of(report))
