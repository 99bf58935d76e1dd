"""A Report as text for a terminal and as HTML for a notebook: the same tables, told in two ways."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from ..trace import PERSISTENT_BUFFERS, DeviceMemory, Overflow
from ..units import format_bytes, format_seconds
from .path import Segment
from .usage import share

if TYPE_CHECKING:
    from .report import Report

ROWS_SHOWN = 16
SEGMENTS_SHOWN = 8
LIVE_SHOWN = 5
NAME_WIDTH = 32


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as text; columns whose title starts with "<" are aligned to the left."""

    title: str
    head: tuple[str, ...]
    body: tuple[tuple[str, ...], ...]
    more: int = 0


def shorten(name: str, width: int = NAME_WIDTH) -> str:
    """At most ``width`` characters; the middle gives way, since names differ at both ends."""
    if len(name) <= width:
        return name
    tail = (width - 1) // 2
    return f"{name[: width - 1 - tail]}…{name[len(name) - tail :]}"


def report_text(report: Report) -> str:
    """The report for a person at a terminal, under 100 columns."""
    parts = [_headline(report), "\n".join(_verdict(report))]
    parts += [_table_text(table) for table in _tables(report)]
    return "\n\n".join(part for part in [*parts, *_notes(report)] if part)


def report_html(report: Report) -> str:
    """The report for a notebook; every name is escaped."""
    colour = "#1a7f37" if report.feasible else "#c01c28"
    verdict = escape("\n".join(_verdict(report)))
    parts = [f"<p><b>{escape(_headline(report))}</b></p>", f'<pre style="color:{colour}">{verdict}</pre>']
    parts += [_table_html(table) for table in _tables(report)]
    parts += [f"<p>{escape(note)}</p>" for note in _notes(report)]
    return f"<div>{''.join(parts)}</div>"


def _headline(report: Report) -> str:
    return f"Step time {format_seconds(report.seconds)}  ({report.step_ps:,} ps, engine {report.engine})"


def _verdict(report: Report) -> Iterator[str]:
    memories = [device.memory for device in report.devices]
    over = [(memory, memory.overflow) for memory in memories if memory.overflow is not None]
    if not over:
        limited = any(memory.capacity is not None for memory in memories)
        yield "FITS: every device stays within its memory." if limited else "FITS: no device has a memory limit."
        return
    yield f"DOES NOT FIT: {len(over)} of {len(report.devices)} devices exceed their memory."
    for memory, overflow in over[:ROWS_SHOWN]:
        yield from _overflow(memory, overflow)
    if len(over) > ROWS_SHOWN:
        yield f"  ... and {len(over) - ROWS_SHOWN} more devices"


def _overflow(memory: DeviceMemory, overflow: Overflow) -> Iterator[str]:
    throughout = overflow.task == PERSISTENT_BUFFERS
    moment = "by what is held throughout the step" if throughout else f"when {shorten(overflow.task)} starts"
    yield (
        f"  {shorten(memory.device)}: {overflow.excess:,} bytes ({format_bytes(overflow.excess)}) over at "
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
    yield _device_table(report)
    if report.transfer_count:
        yield _link_table(report)
    if report.critical_path:
        yield _blame_table(report)
        yield _path_table(report)


def _device_table(report: Report) -> Table:
    body = []
    for device in report.devices[:ROWS_SHOWN]:
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
    return Table(title, ("<queue or link", "transfers", "carried", "busy", "of step"), body, len(used) - len(body))


def _blame_table(report: Report) -> Table:
    shares = {blame: share(ps, report.step_ps) for blame, ps in report.blame.items()}
    body = tuple(
        (blame, format_seconds(ps / 1e12), f"{shares[blame]:.1%}", "█" * round(30 * shares[blame]))
        for blame, ps in report.blame.items()
    )
    return Table("Critical path: what the step time is spent on", ("<blame", "time", "of step", "<"), body)


def _path_table(report: Report) -> Table:
    path = report.critical_path
    longest = sorted(path, key=lambda segment: (-segment.duration_ps, segment.start_ps))[:SEGMENTS_SHOWN]
    body = tuple(_segment_row(report, segment) for segment in longest)
    title = f"Its longest segments, of {len(path):,}"
    return Table(title, ("<blame", "<task", "from", "for", "of step"), body)


def _segment_row(report: Report, segment: Segment) -> tuple[str, ...]:
    names = report.trace.task_graph.tasks.name
    task = shorten(names[segment.task])
    if segment.blame == "queueing":
        task = f"{shorten(task, 22)} before {shorten(names[segment.waiter], 22)}"
    start, length = (format_seconds(ps / 1e12) for ps in (segment.start_ps, segment.duration_ps))
    return segment.blame, task, start, length, f"{share(segment.duration_ps, report.step_ps):.1%}"


def _notes(report: Report) -> Iterator[str]:
    exposed = f"{format_seconds(report.exposed_ps / 1e12)} ({share(report.exposed_ps, report.step_ps):.1%})"
    yield f"Exposed communication: {exposed} of the step.  Bubble: {report.bubble:.1%} of the working devices' time."
    if report.costs:
        known = ", ".join(f"{part:.1%} {rung}" for rung, part in report.costs.items() if part)
        yield f"Op times by origin: {known or 'none'}."


def _table_text(table: Table) -> str:
    left = [title.startswith("<") for title in table.head]
    lines = [tuple(title.removeprefix("<") for title in table.head), *table.body]
    widths = [max(len(line[column]) for line in lines) for column in range(len(left))]
    text = [table.title]
    for line in lines:
        cells = zip(line, widths, left, strict=True)
        text.append("  " + "  ".join(f"{c:<{w}}" if is_left else f"{c:>{w}}" for c, w, is_left in cells).rstrip())
    return "\n".join([*text, f"  ... and {table.more:,} more"] if table.more else text)


def _table_html(table: Table) -> str:
    left = [title.startswith("<") for title in table.head]
    head = _html_row("th", [title.removeprefix("<") for title in table.head], left)
    body = "".join(_html_row("td", line, left) for line in table.body)
    more = f"<p>... and {table.more:,} more</p>" if table.more else ""
    return f"<table><caption>{escape(table.title)}</caption><thead>{head}</thead><tbody>{body}</tbody></table>{more}"


def _html_row(tag: str, cells: Sequence[str], left: Sequence[bool]) -> str:
    pairs = zip(cells, left, strict=True)
    inner = (f'<{tag} style="text-align:{"left" if side else "right"}">{escape(cell)}</{tag}>' for cell, side in pairs)
    return f"<tr>{''.join(inner)}</tr>"
