"""A Report as text for a terminal and as HTML for a notebook: the same tables, told in two ways."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

from ..trace import PERSISTENT_BUFFERS, DeviceMemory, Overflow
from ..units import format_bytes, format_seconds
from .footprint import footprint_notes, footprint_tables
from .path import Segment
from .spans import told_devices
from .splits import split_text
from .table import Table, shorten, table_html, table_text
from .training import training_lines, training_notes, training_tables
from .usage import DeviceUse

if TYPE_CHECKING:
    from .report import Report

ROWS_SHOWN = 16
SEGMENTS_SHOWN = 8
LIVE_SHOWN = 5
MISSES_SHOWN = 8


def report_text(report: Report) -> str:
    """The report for a person at a terminal, under 100 columns."""
    parts = [_headline(report), "\n".join(_verdict(report))]
    parts += [table_text(table) for table in _tables(report)]
    return "\n\n".join(part for part in [*parts, *_notes(report)] if part)


def report_html(report: Report) -> str:
    """The report for a notebook; every name is escaped."""
    colour = "#1a7f37" if report.feasible else "#c01c28"
    verdict = escape("\n".join(_verdict(report)))
    parts = [
        f"<p><b>{escape(_headline(report))}</b></p>",
        f'<pre style="color:{colour}">{verdict}</pre>',
    ]
    parts += [table_html(table) for table in _tables(report)]
    parts += [f"<p>{escape(note)}</p>" for note in _notes(report)]
    return f"<div>{''.join(parts)}</div>"


def _headline(report: Report) -> str:
    lines = [] if report.training is None else [*training_lines(report.training)]
    lines.append(
        f"Step time {format_seconds(report.seconds)}  ({report.step_ps:,} ps, engine "
        f"{report.engine})"
    )
    lines += [] if report.steady is None else report.steady.lines()
    if report.synchronised == 0:
        lines.append("No gradient is synchronised: the strategy makes none on several devices.")
    return "\n".join(lines)


def _verdict(report: Report) -> Iterator[str]:
    memories = [device.memory for device in report.devices]
    over = [(memory, memory.overflow) for memory in memories if memory.overflow is not None]
    if not over:
        limited = any(memory.capacity is not None for memory in memories)
        yield (
            "FITS: every device stays within its memory."
            if limited
            else "FITS: no device has a memory limit."
        )
        return
    yield f"DOES NOT FIT: {len(over)} of {len(report.devices)} devices exceed their memory."
    for memory, overflow in over[:ROWS_SHOWN]:
        yield from _overflow(memory, overflow)
    if len(over) > ROWS_SHOWN:
        yield f"  ... and {len(over) - ROWS_SHOWN} more devices"


def _overflow(memory: DeviceMemory, overflow: Overflow) -> Iterator[str]:
    throughout = overflow.task == PERSISTENT_BUFFERS
    moment = (
        "by what is held throughout the step"
        if throughout
        else f"when {shorten(overflow.task)} starts"
    )
    yield (
        f"  {shorten(memory.device)}: {overflow.excess:,} bytes "
        f"({format_bytes(overflow.excess)}) over at "
        f"{format_seconds(overflow.time_ps / 1e12)}, {moment}."
    )
    yield (
        f"    Its peak is {format_bytes(memory.peak)} of {format_bytes(memory.capacity or 0)}, at "
        f"{format_seconds(memory.peak_ps / 1e12)}. The largest buffers at that first moment:"
    )
    for name, size in overflow.live[:LIVE_SHOWN]:
        yield f"    {format_bytes(size):>12}  {shorten(name, 64)}"
    rest = overflow.live[LIVE_SHOWN:]
    if rest:
        yield f"    {format_bytes(sum(size for _, size in rest)):>12}  in {len(rest):,} more"


def _tables(report: Report) -> Iterator[Table]:
    yield from (
        (_device_table(report),) if report.training is None else training_tables(report.training)
    )
    if report.footprint is not None:
        memories = [device.memory for device in _shown(report)]
        yield from footprint_tables(report.footprint, memories)
    if report.transfer_count:
        yield _link_table(report)
    if report.critical_path:
        yield _blame_table(report)
        yield _path_table(report)
    if report.splits:
        yield _split_table(report)
    if report.whole:
        yield _whole_table(report)
    if report.cost_misses:
        yield _miss_table(report)


def _shown(report: Report) -> list[DeviceUse]:
    """The devices worth a row; of too many those that run ops go first."""
    told = [
        one
        for one, worth in zip(report.devices, told_devices(report.trace.task_graph), strict=True)
        if worth
    ]
    if len(told) > ROWS_SHOWN:
        told.sort(key=lambda one: (not one.ops, not one.memory.peak))
    return told[:ROWS_SHOWN]


def _device_table(report: Report) -> Table:
    body = []
    for device in _shown(report):
        capacity = device.memory.capacity
        body.append(
            (
                shorten(device.name, 20),
                f"{device.ops:,}",
                format_seconds(device.busy_ps / 1e12),
                f"{device.utilization:.1%}",
                format_seconds(device.exposed_ps / 1e12),
                format_bytes(device.memory.peak),
                "unlimited" if capacity is None else format_bytes(capacity),
                "" if not capacity else f"{device.memory.peak / capacity:.1%}",
            )
        )
    head = ("<device", "ops", "busy", "of step", "exposed", "peak memory", "capacity", "used")
    return Table("Devices", head, tuple(body), len(report.devices) - len(body))


def _link_table(report: Report) -> Table:
    used = sorted((link for link in report.links if link.transfers), key=lambda link: -link.busy_ps)
    body = tuple(
        (
            shorten(link.name, 44),
            f"{link.transfers:,}",
            format_bytes(link.bytes),
            format_seconds(link.busy_ps / 1e12),
            f"{link.utilization:.1%}",
        )
        for link in used[:ROWS_SHOWN]
    )
    title = f"Transfers: {report.transfer_count:,} of {format_bytes(report.transfer_bytes)} in all"
    return Table(
        title,
        ("<queue or link", "transfers", "carried", "busy", "of step"),
        body,
        len(used) - len(body),
    )


def _blame_table(report: Report) -> Table:
    shares = {blame: ps / (report.step_ps or 1) for blame, ps in report.blame.items()}
    body = tuple(
        (blame, format_seconds(ps / 1e12), f"{shares[blame]:.1%}", "█" * round(30 * shares[blame]))
        for blame, ps in report.blame.items()
    )
    return Table(
        "Critical path: what the step time is spent on", ("<blame", "time", "of step", "<"), body
    )


def _path_table(report: Report) -> Table:
    path = report.critical_path
    longest = sorted(path, key=lambda segment: (-segment.duration_ps, segment.start_ps))[
        :SEGMENTS_SHOWN
    ]
    body = tuple(_segment_row(report, segment) for segment in longest)
    title = f"Its longest segments, of {len(path):,}"
    title += f" in {report.window.steps} steps" if report.window.steps > 1 else ""
    return Table(title, ("<blame", "<task", "from", "for", "of step"), body)


def _segment_row(report: Report, segment: Segment) -> tuple[str, ...]:
    names = report.trace.task_graph.tasks.name
    task = shorten(names[segment.task])
    if segment.blame == "queueing":
        task = f"{shorten(task, 22)} before {shorten(names[segment.waiter], 22)}"
    start, length = (format_seconds(ps / 1e12) for ps in (segment.start_ps, segment.duration_ps))
    return segment.blame, task, start, length, f"{report.window.share(segment.duration_ps):.1%}"


def _split_table(report: Report) -> Table:
    """The ops that send most, then those that take longest."""
    largest = sorted(
        report.splits, key=lambda one: (-one.bytes_in - one.sync_bytes, -one.summed_ps)
    )[:ROWS_SHOWN]
    body = tuple(
        (shorten(name, 24), shorten(split, 16), *rest)
        for name, split, *rest in map(split_text, largest)
    )
    head = ("<op", "<split", "parts", "whole", "summed", "longest", "fetched", "added up")
    return Table("What splitting costs", head, body, len(report.splits) - len(body))


def _whole_table(report: Report) -> Table:
    """The ops that run on one device although others are split, the longest first."""
    longest = sorted(report.whole, key=lambda one: -one.summed_ps)
    step = max(report.step_ps, 1)
    body = tuple(
        (
            shorten(one.op, 40),
            one.kind,
            format_seconds(one.summed_ps / 1e12),
            f"{one.summed_ps / step:.1%}",
        )
        for one in longest[:ROWS_SHOWN]
    )
    total = sum(one.summed_ps for one in longest) / step
    title = f"Stays whole although it computes: {total:.1%} of the step"
    return Table(title, ("<op", "<kind", "time", "of the step"), body, len(longest) - len(body))


def _miss_table(report: Report) -> Table:
    busy = sum(device.busy_ps for device in report.devices)
    body = tuple(
        (
            shorten(miss.op, 24),
            shorten(miss.kind, 18),
            f"{miss.count:,}",
            format_seconds(miss.seconds),
            f"{round(miss.seconds * 1e12) / busy if busy else 0.0:.1%}",
            miss.rung,
            "" if miss.rel_err is None else f"{miss.rel_err:.0%}",
        )
        for miss in report.cost_misses[:MISSES_SHOWN]
    )
    head = ("<first op", "<kind", "ops", "time", "of busy", "<rung", "error")
    return Table("Op times that were not measured", head, body, len(report.cost_misses) - len(body))


def _notes(report: Report) -> Iterator[str]:
    yield (
        f"Bubble {report.bubble:.1%}, exposed communication {report.exposed:.1%} of "
        "the working devices' time "
        f"(idle: {report.idle:.1%})."
    )
    if report.training is not None:
        yield from training_notes(report.training)
    if report.footprint is not None:
        yield from footprint_notes(report.footprint)
    if report.costs:
        known = ", ".join(f"{part:.1%} {rung}" for rung, part in report.costs.items() if part)
        error = "not known" if report.cost_rel_err is None else f"{report.cost_rel_err:.1%}"
        told = "" if report.cost_rel_err == 0 else f"  Expected error, weighted by time: {error}."
        yield f"Op times by origin: {known or 'none'}.{told}"
