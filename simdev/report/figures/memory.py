"""The memory of every device over time, with capacities, and marks where they are exceeded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...trace import DeviceMemory, Trace
from ...units import format_bytes
from ..measures.spans import shown_devices
from .style import (
    ALARM,
    DEVICES,
    MARGIN,
    WIDTH,
    byte_unit,
    draw_legend,
    new_figure,
    plain,
    time_unit,
)  # fmt: skip

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEGEND = 10  # devices named in the legend, the largest peaks first
IN_SIGHT = 3.0  # a capacity above this multiple of the peak stands in the legend only


def plot_memory(trace: Trace, ax: Axes | None = None) -> Axes:
    """Draw a step curve for each device on ``ax`` (None: on a figure of its own) and return the
    axes.

    Switches are left out. Capacities are dashed lines, and a red cross marks the first moment over
    one. The axes are in the units of the step time and of the largest peak.
    """
    if ax is None:
        ax = new_figure(WIDTH, 3.2).add_subplot()
    unit, scale = time_unit(trace.end_ps)
    top = max((memory.peak for memory in trace.memory), default=0)
    name, size = byte_unit(top)
    largest = sorted(trace.memory, key=lambda memory: -memory.peak)[:LEGEND]
    for number, device in enumerate(np.flatnonzero(shown_devices(trace.task_graph)).tolist()):
        memory, colour = trace.memory[device], DEVICES[number % len(DEVICES)]
        _draw_device(ax, memory, colour, trace.end_ps, (scale, size), memory in largest)
    highest = max([top, *_draw_capacities(ax, trace, top, size)])
    ax.set_xlim(0, trace.end_ps / scale * MARGIN or 1)
    # Room above for the words of an overflow.
    height = highest / size * (1.08 if trace.feasible else 1.2) or 1.0
    ax.set_ylim(0, height)
    _draw_first_overflow(ax, trace, scale, height)
    ax.set_xlabel(f"time ({unit})")
    ax.set_ylabel(f"memory ({name})")
    ax.grid(color="#DDDDDD", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    draw_legend(ax, 8.0)
    return ax


def _draw_device(
    ax: Axes, memory: DeviceMemory, colour: str, end_ps: int, scales: tuple[int, int], named: bool
) -> None:
    time = np.concatenate(([0], memory.time, [end_ps])) / scales[0]
    level = np.concatenate(([0], memory.level, memory.level[-1:] if len(memory.level) else [0]))
    level = level / scales[1]
    over = "" if memory.overflow is None else f" ({format_bytes(memory.excess or 0)} over)"
    label = f"{plain(memory.device, 24)}, peak {format_bytes(memory.peak)}{over}"
    # matplotlib leaves names that begin with an underscore out of legends.
    ax.step(time, level, where="post", color=colour, lw=1.3, label=label if named else "_hidden")
    if memory.overflow is None or memory.capacity is None:
        return
    limit = memory.capacity / scales[1]
    beyond = (level > limit).tolist()
    ax.fill_between(time, level, limit, where=beyond, step="post", color=ALARM, alpha=0.12, lw=0)
    at = int(np.searchsorted(memory.time, memory.overflow.time_ps))
    x, y = memory.overflow.time_ps / scales[0], memory.level[at] / scales[1]
    ax.plot([x], [y], marker="X", color=ALARM, markersize=8, ls="none", zorder=5, clip_on=False)


def _draw_first_overflow(ax: Axes, trace: Trace, scale: int, height: float) -> None:
    """Words for the device that exceeds its memory first; more of them would cover each other."""
    overflows = [memory.overflow for memory in trace.memory if memory.overflow is not None]
    if not overflows:
        return
    first = min(overflows, key=lambda overflow: overflow.time_ps)
    text = (
        f"{plain(first.device, 24)}: {format_bytes(first.excess)} over when "
        f"{plain(first.task, 48)} starts"
    )
    late = first.time_ps > 0.6 * trace.end_ps
    note = ax.annotate(text, (first.time_ps / scale, height), color=ALARM, fontsize=8, zorder=6)
    note.set_in_layout(False)
    note.set(ha="right" if late else "left", va="top")
    ax.axvline(first.time_ps / scale, color=ALARM, linewidth=0.8, linestyle=":", zorder=0)


def _draw_capacities(ax: Axes, trace: Trace, top: int, size: int) -> list[int]:
    """One line for each capacity; returns those that the axes should show."""
    capacities = sorted({memory.capacity for memory in trace.memory if memory.capacity is not None})
    shown = [capacity for capacity in capacities if capacity <= IN_SIGHT * top]
    for capacity in capacities:
        above = "" if capacity in shown else " (above the chart)"
        label = f"capacity {format_bytes(capacity)}{above}"
        ax.axhline(capacity / size, color="#444444", linestyle="--", linewidth=1.0, label=label)
    return shown
