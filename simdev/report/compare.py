"""Two steps side by side: what changed, in tables and on one time axis.

Parts are matched by their names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..analysis import Report, transfer_mask
from ..units import format_bytes, format_seconds
from .pictures import timeline
from .run import headline, notes
from .sheet import BYTES, CHANGE, COUNT, SHARE, TEXT, TIME, Sheet, change, columns, sheets_json
from .source import Subject

TASKS = 500  # the tasks whose times changed most


def compare_data(first: Subject, second: Subject) -> dict[str, Any]:
    """All that the page of two steps shows."""
    return {
        "page": "compare",
        "title": f"{first.name} and {second.name}",
        "fits": first.report.feasible and second.report.feasible,
        "headline": verdict(first, second),
        "facts": [],
        "notes": [
            f"{letter}: {note}"
            for letter, one in (("A", first), ("B", second))
            for note in notes(one)
        ],
        "names": [first.name, second.name],
        "headlines": [headline(first.report), headline(second.report)],
        "timelines": [timeline(first.report), timeline(second.report)],
        "sheets": sheets_json(list(compare_sheets(first.report, second.report))),
    }


def verdict(first: Subject, second: Subject) -> str:
    """Which one is faster, and by how much."""
    before, after = first.report.step_ps, second.report.step_ps
    names = f"B ({second.name})", f"A ({first.name})"
    if before == after:
        return f"{names[0]} takes as long as {names[1]}"
    if not before or not after:
        return (
            f"{names[0]} takes {'some' if after else 'no'} time, {names[1]} "
            f"{'some' if before else 'none'}"
        )
    slower = after > before
    ratio = after / before if slower else before / after
    if ratio < 1.1:
        return (
            f"{names[0]} takes {abs(after - before) / before:.2%} "
            f"{'longer' if slower else 'less time'} than {names[1]}"
        )
    return (
        f"{names[0]} {'takes' if slower else 'is'} {ratio:.4g} times as "
        f"{'long' if slower else 'fast'} as {names[1]}"
    )


def compare_sheets(first: Report, second: Report) -> Iterator[Sheet]:
    """What changed, from the whole to the single task."""
    yield _whole_sheet(first, second)
    yield _times(
        "Critical path: what the step time is spent on", "blame", first.blame, second.blame
    )
    yield _device_sheet(first, second)
    yield _link_sheet(first, second)
    yield _times("Work by kind of task", "kind", _by_kind(first), _by_kind(second))
    yield _task_sheet(first, second)


def _whole_sheet(first: Report, second: Report) -> Sheet:
    """The step as a whole; its rows have several units, so numbers are told as texts."""

    def of(report: Report) -> list[tuple[str, float, str]]:
        peak = max((device.memory.peak for device in report.devices), default=0)
        period = "" if report.steady is None else " (period)"
        return [
            ("step time", report.step_ps, format_seconds(report.seconds) + period),
            ("exposed communication", report.exposed, f"{report.exposed:.1%}"),
            ("bubble", report.bubble, f"{report.bubble:.1%}"),
            (
                "ops",
                sum(device.ops for device in report.devices),
                f"{sum(device.ops for device in report.devices):,}",
            ),
            ("transfers", report.transfer_count, f"{report.transfer_count:,}"),
            ("bytes sent", report.transfer_bytes, format_bytes(report.transfer_bytes)),
            ("largest peak", peak, format_bytes(peak)),
            ("memory over capacity", report.memory_excess, format_bytes(report.memory_excess)),
        ]

    rows = tuple(
        (name, a, b, change(x, y))
        for (name, x, a), (_, y, b) in zip(of(first), of(second), strict=True)
    )
    head = columns("", TEXT, "A", TEXT, "B", TEXT, "change", CHANGE)
    return Sheet("The step", head, rows)


def _times(title: str, what: str, first: Mapping[str, int], second: Mapping[str, int]) -> Sheet:
    """Times in ps by name."""
    pairs = [
        (name, first.get(name, 0), second.get(name, 0)) for name in dict.fromkeys([*first, *second])
    ]
    rows = tuple((name, a, b, b - a, change(a, b)) for name, a, b in pairs if a or b)
    return Sheet(
        title, columns(what, TEXT, "A", TIME, "B", TIME, "added", TIME, "change", CHANGE), rows
    )


def _device_sheet(first: Report, second: Report) -> Sheet:
    a, b = ({device.name: device for device in report.devices} for report in (first, second))
    rows = []
    for name in dict.fromkeys([*a, *b]):
        pair = [
            (one.busy_ps, one.utilization, one.memory.peak) if one else (None,) * 3
            for one in (a.get(name), b.get(name))
        ]
        rows.append((name, *(cell for cells in zip(*pair, strict=True) for cell in cells)))
    names = columns(
        "device", TEXT, "busy A", TIME, "busy B", TIME, "of step A", SHARE, "of step B", SHARE,
        "peak A", BYTES, "peak B", BYTES,
    )  # fmt: skip
    return Sheet("Devices", names, tuple(rows))


def _link_sheet(first: Report, second: Report) -> Sheet:
    a, b = (
        {link.name: link for link in report.links if link.transfers} for report in (first, second)
    )
    rows = []
    for name in dict.fromkeys([*a, *b]):
        pair = [
            (one.transfers, one.bytes, one.busy_ps) if one else (None,) * 3
            for one in (a.get(name), b.get(name))
        ]
        rows.append((name, *(cell for cells in zip(*pair, strict=True) for cell in cells)))
    rows.sort(key=lambda row: -max(row[5] or 0, row[6] or 0))
    names = columns(
        "queue or link", TEXT, "transfers A", COUNT, "transfers B", COUNT, "carried A", BYTES,
        "carried B", BYTES,
        "busy A", TIME, "busy B", TIME,
    )  # fmt: skip
    return Sheet("Links and queues", names, tuple(rows))


def _by_kind(report: Report) -> dict[str, int]:
    """The time of one step's tasks in ps."""
    tasks, found, rows = report.trace.task_graph.tasks, dict[str, int](), _a_step(report)
    moves = transfer_mask(report.trace.task_graph)[rows]
    lengths = (report.trace.finish - report.trace.start)[rows].tolist()
    for kind, moving, length in zip(tasks.kind[rows], moves.tolist(), lengths, strict=True):
        name = "transfer" if moving and kind != "collective" else kind
        found[name] = found.get(name, 0) + length
    return found


def _a_step(report: Report) -> slice:
    """The rows of the tasks of one step: where steps repeat, of the last that is counted."""
    graph, steady = report.trace.task_graph, report.steady
    each = len(graph.tasks) // graph.steps
    counted = 0 if steady is None else len(steady.periods_ps)
    return slice(counted * each, (counted + 1) * each)


def _task_sheet(first: Report, second: Report) -> Sheet:
    """The tasks that are in both and whose time, start or place changed, those first that take most
    more or less.
    """
    a, b = (_tasks(report) for report in (first, second))
    both = [(name, *a[name], *b[name]) for name in a if name in b and a[name] != b[name]]
    found = [
        (name, here, there, length, long, long - length, start, late, late - start)
        for name, here, start, length, there, late, long in both
    ]
    found.sort(key=lambda row: (-abs(row[5]), -abs(row[8])))
    only = len(a.keys() - b.keys()), len(b.keys() - a.keys())
    head = columns(
        "task", TEXT, "on A", TEXT, "on B", TEXT, "time A", TIME, "time B", TIME, "added", TIME,
        "start A", TIME, "start B", TIME, "later by", TIME,
    )  # fmt: skip
    note = (
        f"{only[0]:,} tasks are in A only, {only[1]:,} in B only; {len(found):,} of those "
        "in both changed."
    )
    return Sheet("Tasks that changed most", head, tuple(found[:TASKS]), note)


def _tasks(report: Report) -> dict[str, tuple[str, int, int]]:
    """Where each task of a step ran, its start in the step and its length (ps), by name."""
    graph, rows = report.trace.task_graph, _a_step(report)
    start, finish = report.trace.start[rows], report.trace.finish[rows]
    places = (
        np.array(graph.devices, dtype=object)[graph.tasks.source[rows]].tolist()
        if len(start)
        else []
    )
    begin = start.min(initial=np.iinfo(np.int64).max) if report.steady is not None else 0
    times = zip(places, (start - begin).tolist(), (finish - start).tolist(), strict=True)
    return dict(zip(graph.tasks.name[: len(start)], times, strict=True))
