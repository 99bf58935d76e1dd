"""Two steps side by side: what changed, in tables and on one time axis. Parts are matched by their
names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ...ground.units import format_bytes, format_seconds
from ..measures.spans import transfer_mask
from ..measures.spread import task_counts
from ..measures.training import difference, difference_tables
from ..report import Report
from ..table import BYTES, CHANGE, COUNT, SHARE, TEXT, TIME, Table, change
from .step import Subject, headline, notes, tables_json
from .timeline import timeline

TASKS = 500  # the tasks whose times changed most
ROWS_SHOWN = 12  # in a terminal


def compare_data(first: Subject, second: Subject) -> dict[str, Any]:
    """All that the page of two steps shows."""
    subjects = {"A": first, "B": second}
    reports = [subject.report for subject in subjects.values()]
    return {
        "page": "compare",
        "title": f"{first.name} and {second.name}",
        "fits": all(report.feasible for report in reports),
        "headline": verdict(first, second),
        "facts": [],
        "notes": [
            *reasons(*reports),
            *(f"{letter}: {note}" for letter, s in subjects.items() for note in notes(s)),
        ],
        "names": [subject.name for subject in subjects.values()],
        "headlines": [headline(report) for report in reports],
        "timelines": [timeline(report.trace) for report in reports],
        "sheets": tables_json(list(compare_tables(*reports))),
    }


def verdict(first: Subject, second: Subject) -> str:
    """Which of the two is faster, and by how much."""
    before, after = first.report.step_ps, second.report.step_ps
    a, b = f"A ({first.name})", f"B ({second.name})"
    if before == after:
        return f"{b} takes as long as {a}"
    if not before or not after:
        return f"{b} takes {'some' if after else 'no'} time, {a} {'some' if before else 'none'}"
    slower = after > before
    ratio = after / before if slower else before / after
    if ratio < 1.1:
        how = "longer" if slower else "less time"
        return f"{b} takes {abs(after - before) / before:.2%} {how} than {a}"
    how = f"takes {ratio:.4g} times as long" if slower else f"is {ratio:.4g} times as fast"
    return f"{b} {how} as {a}"


def reasons(first: Report, second: Report) -> Iterator[str]:
    """Why one of two large models' steps takes longer; of other steps nothing is told."""
    if first.training is None or second.training is None:
        return
    yield f"{difference(first.training, second.training).sentence()}."
    counts = first.training.tokens, second.training.tokens
    if counts[0] != counts[1]:
        yield f"A trains on {counts[0]:,} tokens a step, B on {counts[1]:,}."


def compare_tables(first: Report, second: Report) -> Iterator[Table]:
    """All differences, from the whole to the single task."""
    reports = first, second
    yield _step_table(first, second)
    if first.training is not None and second.training is not None:
        yield from difference_tables(first.training, second.training)
    title = "Critical path: what the step time is spent on"
    yield _time_table(title, "blame", first.blame, second.blame)
    devices = [{device.name: device for device in report.devices} for report in reports]
    yield _pair_table(
        "Devices", "device", {"busy": TIME, "of step": SHARE, "peak": BYTES}, devices,
        lambda device: (device.busy_ps, device.utilization, device.memory.peak),
    )  # fmt: skip
    links = [{link.name: link for link in report.links if link.transfers} for report in reports]
    yield _pair_table(
        "Links and queues", "queue or link", {"transfers": COUNT, "carried": BYTES, "busy": TIME},
        links, lambda link: (link.transfers, link.bytes, link.busy_ps), busiest_first=True,
    )  # fmt: skip
    yield _time_table("Work by kind of task", "kind", *map(_by_kind, reports))
    yield _task_table(first, second)


def _step_table(first: Report, second: Report) -> Table:
    """The step as a whole; its rows have several units, so numbers are written as texts."""

    def figures(report: Report) -> list[tuple[str, float, str]]:
        peak = max((memory.peak for memory in report.memories), default=0)
        ops = sum(device.ops for device in report.devices)
        period = "" if report.steady is None else " (period)"
        return [
            ("step time", report.step_ps, format_seconds(report.seconds) + period),
            ("exposed communication", report.exposed, f"{report.exposed:.1%}"),
            ("bubble", report.bubble, f"{report.bubble:.1%}"),
            *([("waiting for hosts", report.hosted, f"{report.hosted:.1%}")] * bool(report.hosts)),
            ("ops", ops, f"{ops:,}"),
            ("transfers", report.transfer_count, f"{report.transfer_count:,}"),
            ("bytes sent", report.transfer_bytes, format_bytes(report.transfer_bytes)),
            ("largest peak", peak, format_bytes(peak)),
            ("memory over capacity", report.memory_excess, format_bytes(report.memory_excess)),
            *(() if report.throughput is None else report.throughput.figures()),
            *_training_figures(report),
        ]

    left, right = ({row[0]: row[1:] for row in figures(report)} for report in (first, second))
    rows = tuple(
        (name, left[name][1], right[name][1], change(left[name][0], right[name][0]))
        for name in left
        if name in right
    )
    return Table("The step", {"": TEXT, "A": TEXT, "B": TEXT, "change": CHANGE}, rows)


def _training_figures(report: Report) -> Iterator[tuple[str, float, str]]:
    """Figures of a large model's step alone."""
    training = report.training
    if training is not None:
        for name, share in (("MFU", training.mfu), ("HFU", training.hfu)):
            yield name, share, f"{share:.1%} ({training.large.peak_dtype})"


def _time_table(
    title: str, column: str, first: Mapping[str, int], second: Mapping[str, int]
) -> Table:
    """Times in ps by name; what takes none in both is left out."""
    pairs = [(name, first.get(name, 0), second.get(name, 0)) for name in {**first, **second}]
    rows = tuple((name, a, b, b - a, change(a, b)) for name, a, b in pairs if a or b)
    columns = {column: TEXT, "A": TIME, "B": TIME, "added": TIME, "change": CHANGE}
    return Table(title, columns, rows, shown=ROWS_SHOWN)


def _pair_table(
    title: str,
    column: str,
    figures: Mapping[str, str],
    parts: list[dict[str, Any]],
    cells: Callable[[Any], tuple[Any, ...]],
    busiest_first: bool = False,
) -> Table:
    """Each figure of A beside that of B, by name; None where a step has no part of that name."""
    rows = []
    for name in {**parts[0], **parts[1]}:
        pair = [
            cells(of_step[name]) if name in of_step else (None,) * len(figures) for of_step in parts
        ]
        rows.append((name, *(cell for both in zip(*pair, strict=True) for cell in both)))
    if busiest_first:
        rows.sort(key=lambda row: -max(row[-2] or 0, row[-1] or 0))
    columns = {f"{figure} {step}": kind for figure, kind in figures.items() for step in "AB"}
    return Table(title, {column: TEXT} | columns, tuple(rows), shown=ROWS_SHOWN)


def _by_kind(report: Report) -> Mapping[str, int]:
    """The time of one step's tasks in ps by kind, on all devices that are alike."""
    rows, trace = _a_step(report), report.trace
    times = Counter[str]()
    moves = transfer_mask(trace.task_graph)[rows].tolist()
    counts = task_counts(trace.task_graph, report.symmetry)
    lengths = ((trace.finish - trace.start) * counts)[rows].tolist()
    for kind, moving, length in zip(trace.task_graph.tasks.kind[rows], moves, lengths, strict=True):
        times["transfer" if moving and kind != "collective" else kind] += length
    steps = trace.task_graph.steps // trace.task_graph.rounds
    return {kind: -(-ps // steps) for kind, ps in times.items()}


def _a_step(report: Report) -> slice:
    """The rows of the tasks of one step (a round, where steps differ): where steps repeat, of the
    last that is counted.
    """
    graph, steady = report.trace.task_graph, report.steady
    each = graph.first_dispatch // graph.rounds
    counted = 0 if steady is None else len(steady.periods_ps) // steady.round
    return slice(counted * each, (counted + 1) * each)


def _task_table(first: Report, second: Report) -> Table:
    """The tasks of both steps whose time, start or place changed, the largest changes of time
    first.
    """
    a, b = _tasks(first), _tasks(second)
    both = [(name, *a[name], *b[name]) for name in a if name in b and a[name] != b[name]]
    rows = [
        (name, here, there, length, long, long - length, start, late, late - start)
        for name, here, start, length, there, late, long in both
    ]
    # Much later matters less than much longer: lateness is inherited from what came before.
    rows.sort(key=lambda row: (-abs(row[5]), -abs(row[8])))
    columns = {"task": TEXT, "on A": TEXT, "on B": TEXT} | dict.fromkeys(
        ("time A", "time B", "added", "start A", "start B", "later by"), TIME
    )
    note = (
        f"{len(a.keys() - b.keys()):,} tasks are in A only, {len(b.keys() - a.keys()):,} in B "
        f"only; {len(rows):,} of those in both changed."
    )
    return Table("Tasks that changed most", columns, tuple(rows[:TASKS]), note, ROWS_SHOWN)


def _tasks(report: Report) -> dict[str, tuple[str, int, int]]:
    """Where each task of a step ran, its start in the step and its length (ps), by name."""
    graph, rows = report.trace.task_graph, _a_step(report)
    start, finish = report.trace.start[rows], report.trace.finish[rows]
    places = np.array(graph.devices, dtype=object)[graph.tasks.source[rows]].tolist()
    # A single step begins at 0, one of several with its first task.
    begin = 0 if report.steady is None or not len(start) else start.min()
    times = zip(places, (start - begin).tolist(), (finish - start).tolist(), strict=True)
    return dict(zip(graph.tasks.name[: len(start)], times, strict=True))
