"""The memory of every device over time, with capacities, and marks where they are exceeded.

``trace_figure`` puts it under the chart of a step. The page has panels of its own
(``page/timeline.py`` and ``page/assets/charts.js``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...ground.errors import InputError
from ...ground.units import format_bytes
from ...nouns.trace import DeviceMemory, Trace
from ..measures.spans import envelope, shown_devices, step_parts
from .style import (
    DEVICES,
    MARGIN,
    WIDTH,
    Theme,
    byte_unit,
    draw_legend,
    dress,
    new_figure,
    plain,
    time_unit,
)  # fmt: skip

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CURVES = 8  # of devices that differ; of more, an envelope
COLUMNS = 2_000  # parts of the step, of each of which the envelope has the highest and the lowest
IN_SIGHT = 2.0  # a capacity above this multiple of the peak is in the legend only


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """The memory of ``count`` devices of equal levels at all times; that of the first of them."""

    memory: DeviceMemory
    count: int

    @property
    def label(self) -> str:
        """Its name and its peak, for a legend."""
        alike = f" ({self.count} alike)" if self.count > 1 else ""
        over = self.memory.excess
        excess = "" if self.memory.overflow is None else f" ({format_bytes(over or 0)} over)"
        peak = format_bytes(self.memory.peak)
        return f"{plain(self.memory.device, 24)}{alike}, peak {peak}{excess}"


def memory_curves(trace: Trace) -> tuple[Curve, ...]:
    """A curve for each device that is shown, those of equal levels as one, in the order of the
    cluster.
    """
    members: dict[object, list[DeviceMemory]] = {}
    for device in np.flatnonzero(shown_devices(trace.task_graph)).tolist():
        memory = trace.memory[device]
        alike = memory.time.tobytes(), memory.level.tobytes(), memory.capacity
        members.setdefault(alike, []).append(memory)
    return tuple(Curve(memories[0], len(memories)) for memories in members.values())


def plot_memory(trace: Trace, ax: Axes | None = None, theme: str | None = None) -> Axes:
    """Draw a step curve for each device on ``ax`` (None: on a figure of its own) and return the
    axes.

    Devices of equal levels share a curve; where more than CURVES differ, there is one envelope of
    all of them and the curve of the highest. Switches are left out. Capacities are dashed lines,
    and a red cross marks the first moment over one. The axes are in the units of the step time and
    of the largest peak. ``theme`` is "light", "dark" or a style of matplotlib (None: what suits the
    paper of the axes).
    """
    if ax is None:
        ax = new_figure(WIDTH, 3.2).add_subplot()
    look, curves = dress(ax, theme), memory_curves(trace)
    scales = _scales(trace)
    colours = {id(curve): DEVICES[i % len(DEVICES)] for i, curve in enumerate(curves)}
    if len(curves) > CURVES:
        _draw_envelope(ax, trace, curves, scales, look)
        curves = (max(curves, key=lambda curve: curve.memory.peak),)
    for curve in curves:
        colour = look.shown(colours[id(curve)])
        _draw_curve(ax, curve, str(colour), trace.end_ps, scales, look)
    _finish(ax, trace, trace.memory, look)
    ax.set_xlabel(f"time ({time_unit(trace.end_ps)[0]})")
    draw_legend(ax, 8.0, theme=look)
    return ax


def plot_memory_panels(trace: Trace, axes: Sequence[Axes], theme: str | None = None) -> None:
    """Draw each curve of ``memory_curves`` on axes of its own, all on one scale.

    Raises InputError where there are fewer axes than curves.
    """
    curves = memory_curves(trace)
    if len(axes) < len(curves):
        raise InputError(f"axes: {len(axes)} for {len(curves)} devices that differ")
    for number, (curve, ax) in enumerate(zip(curves, axes, strict=False)):
        look = dress(ax, theme)
        colour = str(look.shown(DEVICES[number % len(DEVICES)]))
        _draw_curve(ax, curve, colour, trace.end_ps, _scales(trace), look, filled=True)
        _finish(ax, trace, [curve.memory], look)
        ax.set_ylabel(byte_unit(_top(trace))[0])
        draw_legend(ax, 8.0, theme=look)
    axes[len(curves) - 1].set_xlabel(f"time ({time_unit(trace.end_ps)[0]})")


def _top(trace: Trace) -> int:
    """The largest peak of a device, in bytes."""
    return max((memory.peak for memory in trace.memory), default=0)


def _scales(trace: Trace) -> tuple[int, int]:
    """(ps, bytes) of the units of the axes."""
    return time_unit(trace.end_ps)[1], byte_unit(_top(trace))[1]


def _draw_curve(
    ax: Axes, curve: Curve, colour: str, end_ps: int, scales: tuple[int, int], theme: Theme,
    filled: bool = False,
) -> None:  # fmt: skip
    memory = curve.memory
    time = np.concatenate(([0], memory.time, [end_ps])) / scales[0]
    level = np.concatenate(([0], memory.level, memory.level[-1:] if len(memory.level) else [0]))
    level = level / scales[1]
    ax.step(time, level, where="post", color=colour, lw=1.3, label=curve.label)
    if filled:
        ax.fill_between(time, level, step="post", color=colour, alpha=0.2, lw=0)
    if memory.overflow is None or memory.capacity is None:
        return
    limit, red = memory.capacity / scales[1], theme.alarm
    beyond = (level > limit).tolist()
    ax.fill_between(time, level, limit, where=beyond, step="post", color=red, alpha=0.12, lw=0)
    at = int(np.searchsorted(memory.time, memory.overflow.time_ps))
    x, y = memory.overflow.time_ps / scales[0], memory.level[at] / scales[1]
    ax.plot([x], [y], marker="X", color=red, markersize=8, ls="none", zorder=5, clip_on=False)


def _draw_envelope(
    ax: Axes, trace: Trace, curves: Sequence[Curve], scales: tuple[int, int], theme: Theme
) -> None:
    """The band between the lowest and the highest level of all devices."""
    edges = step_parts(trace.end_ps, COLUMNS)
    bands = envelope([curve.memory for curve in curves], edges)
    low, high = (np.append(band, band[-1]) / scales[1] for band in bands)
    count = sum(curve.count for curve in curves)
    ax.fill_between(
        edges / scales[0], low, high, step="post", lw=0,
        color=theme.faint, alpha=0.35, label=f"lowest to highest of {count} devices",
    )  # fmt: skip


def _finish(ax: Axes, trace: Trace, memories: Sequence[DeviceMemory], theme: Theme) -> None:
    """Limits, which all panels of a trace share, capacities, the grid and the first overflow."""
    top, (scale, size) = _top(trace), _scales(trace)
    limits = {memory.capacity for memory in trace.memory if memory.capacity is not None}
    shown = [limit for limit in limits if limit <= IN_SIGHT * top]
    for limit in sorted({m.capacity for m in memories if m.capacity is not None}):
        above = "" if limit in shown else " (above the chart)"
        label = f"capacity {format_bytes(limit)}{above}"
        ax.axhline(limit / size, color=theme.faint, linestyle="--", linewidth=1.0, label=label)
    # Room above for the words of an overflow.
    height = max([top, *shown]) / size * (1.08 if trace.feasible else 1.2) or 1.0
    ax.set_ylim(0, height)
    ax.set_xlim(0, trace.end_ps / scale * MARGIN or 1)
    ax.set_ylabel(f"memory ({byte_unit(top)[0]})")
    ax.grid(color=theme.grid, linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    _draw_first_overflow(ax, trace, memories, theme)


def _draw_first_overflow(
    ax: Axes, trace: Trace, memories: Sequence[DeviceMemory], theme: Theme
) -> None:
    """Words for the device that exceeds its memory first; more of them would cover each other."""
    overflows = [memory.overflow for memory in memories if memory.overflow is not None]
    if not overflows:
        return
    first = min(overflows, key=lambda overflow: overflow.time_ps)
    text = (
        f"{plain(first.device, 24)}: {format_bytes(first.excess)} over when "
        f"{plain(first.task, 48)} starts"
    )
    late = first.time_ps > 0.6 * trace.end_ps
    place = first.time_ps / _scales(trace)[0]
    note = ax.annotate(text, (place, ax.get_ylim()[1]), color=theme.alarm, fontsize=8, zorder=6)
    note.set_in_layout(False)
    note.set(ha="right" if late else "left", va="top")
    ax.axvline(place, color=theme.alarm, linewidth=0.8, linestyle=":", zorder=0)
