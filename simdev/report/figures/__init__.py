"""Figures of reports: charts are plain data first, then drawn on the caller's axes or new ones.

Commands (``--gantt``) and notebooks ask for ``report_figure``; which chart a step has is decided in
``chart_of``. The page does not draw these: it takes the rows of ``charts.trace_rows`` and draws
them by scripts of its own (``page/assets``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...nouns.trace import Trace
from ..report import Report
from .charts import (
    PUBLISHED,
    gains_of,
    pipeline_chart,
    plot_gains,
    sync_chart,
    trace_chart,
    training_chart,
)
from .cluster import cluster_figure, plot_cluster
from .gantt import Gantt, GanttRow, Label, Look, draw_gantt, gantt_figure
from .memory import memory_curves, plot_memory, plot_memory_panels
from .style import WIDTH, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "PUBLISHED", "Gantt", "GanttRow", "Label", "Look", "chart_of", "cluster_figure", "draw_gantt",
    "gains_of", "gantt_figure", "plot_cluster", "plot_gains", "plot_gantt", "plot_memory",
    "plot_memory_panels", "report_figure", "trace_figure",
]  # fmt: skip

MEMORY_HEIGHT = 2.8  # inches
PANELS, PANEL_HEIGHT = 6, 1.0  # the most memory panels; for more different devices a single chart


def plot_gantt(trace: Trace, ax: Axes | None = None, theme: str | None = None) -> Axes:
    """Draw the Gantt chart of a trace on ``ax`` (None: on a figure of its own) and return the axes.

    ``theme`` is "light", "dark" or a style of matplotlib (None: what suits the paper of the axes).
    Nothing is shown or saved (see ``trace_chart``).
    """
    return draw_gantt(trace_chart(trace), ax, theme)


def trace_figure(trace: Trace, theme: str | None = None) -> Figure:
    """The Gantt chart with the memory timeline under it, on one time axis; save it with
    ``figure.savefig(path)``.

    Up to PANELS devices whose memory differs have a panel each; more devices share one chart.
    """
    chart, curves = trace_chart(trace), len(memory_curves(trace))
    panels = [PANEL_HEIGHT] * curves if 1 < curves <= PANELS else [MEMORY_HEIGHT]
    figure = new_figure(WIDTH, chart.height + sum(panels))
    heights = [chart.height, *panels]
    gantt, *memory = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
    # First, for the names of their axes take of the width of all.
    if len(memory) > 1:
        plot_memory_panels(trace, memory, theme)
    else:
        plot_memory(trace, memory[0], theme)
    draw_gantt(chart, gantt, theme)
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


def report_figure(report: Report, theme: str | None = None) -> Figure:
    """The chart of a report; for a single step of a graph with its memory below."""
    if not (report.training or report.pipeline or report.steady):
        return trace_figure(report.trace, theme)
    return gantt_figure(chart_of(report), theme)
