"""The report of one step as data: headline, pictures and tables, ready for JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..analysis import NOBODY, Report
from ..analysis.footprint import footprint_notes
from ..analysis.training import training_lines, training_notes
from ..units import format_bytes, format_seconds
from .pictures import timeline
from .sheet import BYTES, COUNT, NUMBER, SHARE, TEXT, TIME, Sheet, columns, sheets_json
from .source import Subject
from .whatif import FACTOR, WhatIf

SEGMENTS = 500  # of the critical path, the longest
ROWS = 2_000  # of tables that have a row an op


def run_data(subject: Subject, gains: Sequence[WhatIf] = ()) -> dict[str, Any]:
    """All that the page of one step shows."""
    report = subject.report
    return {
        "page": "run",
        "title": subject.name,
        "fits": report.feasible,
        "headline": headline(report),
        "facts": [list(fact) for fact in facts(report)],
        "notes": list(notes(subject)),
        "timeline": timeline(report),
        "blame": [[blame, ps] for blame, ps in report.blame.items()],
        "sheets": sheets_json(
            [_what_if_sheet(subject, gains), *run_sheets(report), *_origin_sheets(report)]
        ),
    }


def headline(report: Report) -> str:
    """The step time, and whether the step fits, in one line."""
    if report.feasible:
        limited = any(device.memory.capacity is not None for device in report.devices)
        fits = "fits" if limited else "fits: no device has a memory limit"
    else:
        over = [device.name for device in report.devices if device.memory.overflow is not None]
        fits = f"DOES NOT FIT: {format_bytes(report.memory_excess)} over on {', '.join(over[:4])}"
        fits += f" and {len(over) - 4} more" if len(over) > 4 else ""
    told = "" if report.steady is None else " (the period of steps that follow one another)"
    return f"Step time {format_seconds(report.seconds)}{told}, {fits}"


def facts(report: Report) -> Iterator[tuple[str, str]]:
    """What stands at the top of the page."""
    yield "step time", format_seconds(report.seconds)
    yield "exactly", f"{report.step_ps:,} ps"
    if report.steady is not None:
        yield "first step", format_seconds(report.steady.first_ps / 1e12)
        yield (
            "whole trace",
            f"{report.steady.steps} steps in {format_seconds(report.trace_ps / 1e12)}",
        )
    yield "devices that compute", f"{len(report.working):,} of {len(report.devices):,}"
    yield "ops", f"{sum(device.ops for device in report.working):,}"
    yield "transfers", f"{report.transfer_count:,} of {format_bytes(report.transfer_bytes)}"
    yield "bubble", f"{report.bubble:.1%}"
    yield "exposed communication", f"{report.exposed:.1%}"
    if report.training is not None:
        yield "MFU, HFU", f"{report.training.mfu:.1%}, {report.training.hfu:.1%}"
    yield (
        "largest peak",
        format_bytes(max((device.memory.peak for device in report.devices), default=0)),
    )
    yield "engine", report.engine


def notes(subject: Subject) -> Iterator[str]:
    """What has to be known to read the figures."""
    report = subject.report
    if report.steady is not None:
        yield " ".join(report.steady.lines())
        yield (
            "The timeline, memory and load show the whole trace; all other figures are "
            "those of one step."
        )
    if subject.violations:
        yield (
            f"This run breaks the execution contract in {subject.violations} places, "
            "so its figures cannot be trusted: "
            "simdev check tells them."
        )
    for device in report.devices:
        overflow = device.memory.overflow
        if overflow is not None:
            yield (
                f"{overflow.device}: {format_bytes(overflow.excess)} over at "
                f"{format_seconds(overflow.time_ps / 1e12)}, with {overflow.task}."
            )
    if report.costs:
        known = ", ".join(f"{part:.1%} {rung}" for rung, part in report.costs.items() if part)
        error = "not known" if report.cost_rel_err is None else f"{report.cost_rel_err:.1%}"
        yield f"Op times by origin: {known or 'none'}. Expected error, weighted by time: {error}."
    if report.footprint is not None:
        yield from footprint_notes(report.footprint)
    if report.training is not None:
        yield from (*training_lines(report.training), *training_notes(report.training))


def run_sheets(report: Report) -> Iterator[Sheet]:
    """The tables of every step."""
    yield _device_sheet(report)
    yield _held_sheet(report)
    yield _link_sheet(report)
    yield blame_sheet(report)
    yield _op_blame_sheet(report)
    yield _segment_sheet(report)


def _device_sheet(report: Report) -> Sheet:
    rows = tuple(
        (
            device.name,
            device.ops,
            device.busy_ps,
            device.utilization,
            device.exposed_ps,
            device.memory.peak,
            device.memory.peak_ps,
            device.memory.capacity,
            device.memory.peak / device.memory.capacity if device.memory.capacity else None,
        )
        for device in report.devices
    )
    names = columns(
        "device", TEXT, "ops", COUNT, "busy", TIME, "of step", SHARE, "exposed", TIME,
        "peak memory", BYTES, "peak at", TIME, "capacity", BYTES, "used", SHARE,
    )  # fmt: skip
    note = "Exposed: a transfer from or to the device is under way while it computes nothing."
    return Sheet("Devices", names, rows, note)


def _held_sheet(report: Report) -> Sheet:
    kinds = dict.fromkeys(
        kind for device in report.devices for kind, size in device.memory.at_peak.items() if size
    )
    rows = tuple(
        (device.name, *(device.memory.at_peak.get(kind, 0) for kind in kinds))
        for device in report.devices
        if device.memory.peak
    )
    return Sheet(
        "Held at the peak",
        columns("device", TEXT, *(part for kind in kinds for part in (kind, BYTES))),
        rows,
    )


def _link_sheet(report: Report) -> Sheet:
    used = sorted((link for link in report.links if link.transfers), key=lambda link: -link.busy_ps)
    rows = tuple(
        (link.name, link.transfers, link.bytes, link.busy_ps, link.utilization) for link in used
    )
    names = columns(
        "queue or link", TEXT, "transfers", COUNT, "carried", BYTES, "busy", TIME, "of step", SHARE
    )
    return Sheet("Links and queues", names, rows)


def blame_sheet(report: Report) -> Sheet:
    """What the step time is spent on."""
    step = report.step_ps or 1
    rows = tuple(
        (blame, ps, ps / step) for blame, ps in report.blame.items() if report.critical_path
    )
    names = columns("blame", TEXT, "time", TIME, "of step", SHARE)
    note = (
        "The chain of tasks that made the step as long as it is; the parts add up to the step time."
    )
    return Sheet("Critical path: what the step time is spent on", names, rows, note)


def _op_blame_sheet(report: Report) -> Sheet:
    """The critical path by what filled it: tasks by their place, transfers by their ends."""
    graph = report.trace.task_graph
    found: dict[tuple[str, str, str], list[int]] = {}
    for segment in report.critical_path:
        source, destination = (
            graph.devices[ends[segment.task]]
            for ends in (graph.tasks.source, graph.tasks.destination)
        )
        place = source if source == destination else f"{source} → {destination}"
        total = found.setdefault((segment.blame, graph.tasks.kind[segment.task], place), [0, 0])
        total[0], total[1] = total[0] + segment.duration_ps, total[1] + 1
    window, ordered = report.window, sorted(found.items(), key=lambda one: -one[1][0])
    rows = tuple((*key, count, window.a_step(ps), window.share(ps)) for key, (ps, count) in ordered)
    names = columns(
        "blame",
        TEXT,
        "kind",
        TEXT,
        "where",
        TEXT,
        "segments",
        COUNT,
        "time",
        TIME,
        "of step",
        SHARE,
    )
    return Sheet("Critical path by place", names, rows)


def _segment_sheet(report: Report) -> Sheet:
    names = report.trace.task_graph.tasks.name
    longest = sorted(report.critical_path, key=lambda one: (-one.duration_ps, one.start_ps))[
        :SEGMENTS
    ]
    rows = tuple(
        (
            segment.blame,
            names[segment.task],
            "" if segment.waiter == NOBODY else names[segment.waiter],
            segment.start_ps,
            segment.duration_ps,
            report.window.share(segment.duration_ps),
        )
        for segment in longest
    )
    head = columns(
        "blame",
        TEXT,
        "task",
        TEXT,
        "waiting behind it",
        TEXT,
        "from",
        TIME,
        "for",
        TIME,
        "of step",
        SHARE,
    )
    return Sheet(f"Its longest segments, of {len(report.critical_path):,}", head, rows)


def _what_if_sheet(subject: Subject, gains: Sequence[WhatIf]) -> Sheet:
    rows = tuple((one.what, one.name, one.busy_ps, one.step_ps, one.gain) for one in gains)
    head = columns(
        "what", TEXT, "name", TEXT, "busy now", TIME, "step time then", TIME, "gain", SHARE
    )
    note = (
        f"Each line is a simulation of its own with this one thing {FACTOR} times "
        "faster. Gaps stay; a link gets "
        "bandwidth, its latency stays."
    )
    if subject.scenario is None:
        training = subject.report.training
        links = (
            "A saved run does not tell links"
            if training is None
            else "Links of a large model are not tried"
        )
        note = (
            "Each line is a simulation of its own with this one thing taking "
            f"1/{FACTOR} of its time. "
            f"Gaps stay. {links}, so all that goes through a queue is shortened, its "
            "latency too: the "
            "most that a faster link could bring. Of a graph's scenario the links "
            "themselves are asked."
        )
    return Sheet(f"What if it were {FACTOR}x faster?", head, rows, note)


def _origin_sheets(report: Report) -> Iterator[Sheet]:
    """What only some steps have."""
    yield _split_sheet(report)
    yield _miss_sheet(report)
    if report.footprint is not None and report.footprint.allocators:
        uses = report.footprint.allocators
        rows = tuple(
            (use.device, use.requested, use.allocated, use.reserved, use.outside, use.flushes)
            for use in uses
        )
        sizes = ("requested", BYTES, "allocated", BYTES, "reserved", BYTES, "outside", BYTES)
        yield Sheet(
            "PyTorch's caching allocator, peaks",
            columns("device", TEXT, *sizes, "flushes", NUMBER),
            rows,
        )


def _split_sheet(report: Report) -> Sheet:
    rows = tuple(
        (
            one.op, " ".join(f"{axis}={degree}" for axis, degree in one.split.items()), one.parts,
            one.whole_ps, one.summed_ps, one.longest_ps, one.bytes_in, one.sync_bytes,
        )
        for one in report.splits[:ROWS]
    )  # fmt: skip
    head = columns(
        "op", TEXT, "split", TEXT, "parts", COUNT, "whole", TIME, "summed", TIME, "longest", TIME,
        "fetched", BYTES, "added up", BYTES,
    )  # fmt: skip
    return Sheet("What splitting costs", head, rows)


def _miss_sheet(report: Report) -> Sheet:
    rows = tuple(
        (
            one.op,
            one.kind,
            one.device_kind,
            one.count,
            round(one.seconds * 1e12),
            one.rung,
            one.rel_err,
            one.basis,
        )
        for one in report.cost_misses[:ROWS]
    )
    head = columns(
        "first op", TEXT, "kind", TEXT, "on", TEXT, "ops", COUNT, "time", TIME, "rung", TEXT,
        "error", SHARE,
        "basis", TEXT,
    )  # fmt: skip
    return Sheet("Op times that were not measured", head, rows)
