"""Figures: the Gantt chart and the memory timeline; pure data first, then drawn on the caller's
axes or new ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..trace import Trace
from .data import GanttRow, gantt_rows, merge_neighbours, path_row
from .gantt import gantt_height, plot_gantt
from .memory import plot_memory
from .style import WIDTH, new_figure
from .sync import PUBLISHED, gains_of, plot_gains, plot_slices, sync_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "PUBLISHED",
    "GanttRow",
    "gains_of",
    "gantt_figure",
    "gantt_rows",
    "merge_neighbours",
    "path_row",
    "plot_gains",
    "plot_gantt",
    "plot_memory",
    "plot_slices",
    "sync_figure",
]

MEMORY_HEIGHT = 2.8  # inches


def gantt_figure(trace: Trace) -> Figure:
    """The Gantt chart with the memory timeline under it, on one time axis; save it with
    ``figure.savefig(path)``.
    """
    height = gantt_height(len(gantt_rows(trace)))
    figure = new_figure(WIDTH, height + MEMORY_HEIGHT)
    gantt, memory = figure.subplots(2, 1, sharex=True, height_ratios=[height, MEMORY_HEIGHT])
    plot_gantt(trace, gantt)
    plot_memory(trace, memory)
    gantt.set_xlabel("")
    return figure
