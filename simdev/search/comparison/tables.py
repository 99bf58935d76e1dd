"""Tables of a comparison for people: what each method ended with, and when it reached the marks."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from math import floor, isfinite, log10
from typing import Any

from ...ground.units import format_seconds
from ...report.figures.style import time_unit
from ...report.table import NUMBER, ONE_DEVICE, TEXT, Table
from .comparison import Comparison
from .rows import Mark, marks_of, reached, row_of
from .runs import References

DIGITS = 6  # of times: what a search gains is often in the last of them
NEVER = "-"


def ended_table(comparison: Comparison, question: Hashable) -> Table:
    """A row for each method that has an answer, the best first."""
    references, methods = comparison.references[question], comparison.methods_of(question)
    rows = [row_of(runs, references) for runs in methods.values()]
    rows = [row for row in rows if row["seeds"]]
    rows.sort(key=lambda row: (not row["fits"], row["step_ms"]))
    best = min((row["step_ms"] for row in rows), default=1.0)
    unit, unit_ms = _unit(best)
    # As many decimals in every row, so that a column can be read down.
    decimals = max(DIGITS - 1 - floor(log10(max(best / unit_ms, 1e-9))), 0)
    titles = {
        "method": TEXT, f"step, {unit}": NUMBER, "quartiles": NUMBER, ONE_DEVICE: NUMBER,
        "evaluations": NUMBER, "CPU s": NUMBER, "seeds": NUMBER, "note": TEXT,
    }  # fmt: skip
    cells = tuple(_ended(row, unit_ms, decimals) for row in rows)
    return Table(_title(question, references), titles, cells, shown=len(cells))


def _ended(row: Mapping[str, Any], unit_ms: float, decimals: int) -> tuple[str, ...]:
    lower, step, upper = (
        f"{row[name] / unit_ms:,.{decimals}f}" if isfinite(row[name]) else NEVER
        for name in ("lower_ms", "step_ms", "upper_ms")
    )
    against = row["against_single"]
    notes = ["" if row["fits"] else "does not fit", row["reason"]]
    notes += [f"above {row['above'].replace(', ', ' and ')}" if row["above"] else ""]
    return (
        row["method"],
        step,
        f"{lower} to {upper}" if row["seeds"] > 1 else "",
        f"x {against:.2f}" if isfinite(against) else NEVER,
        f"{row['evaluations']:,.0f}",
        f"{row['placing_s']:.2f}",
        str(row["seeds"]),
        ", ".join(filter(None, notes)),
    )


def _title(question: Hashable, references: References) -> str:
    parts = [
        f"{name} {format_seconds(reference.cost.seconds, DIGITS)}"
        + ("" if reference.cost.feasible else ", which does not fit")
        for name, reference in references.by_name.items()
        if reference is not None
    ]
    return "; ".join([str(question), *parts])


def _unit(step_ms: float) -> tuple[str, float]:
    """The unit in which steps of about this length are told, and its length in ms."""
    name, ps = time_unit(max(int(step_ms * 1e9), 1))
    return name, ps / 1e9


def reached_table(comparison: Comparison, question: Hashable) -> Table:
    """For each method and mark its evaluations and CPU seconds by then; methods that reached none
    are left out.
    """
    references, methods = comparison.references[question], comparison.methods_of(question)
    marks = marks_of(methods, references)
    rows = []
    for label, runs in methods.items():
        cells = [_reached(reached(runs, mark)) for mark in marks]
        if any(cell != NEVER for cell in cells):
            rows.append((label, *cells))
    titles = {"method": TEXT} | {_named(mark): NUMBER for mark in marks}
    title = "evaluations, CPU seconds to reach (medians; how many seeds did, where not all)"
    return Table(title, titles, tuple(rows), shown=len(rows))


def _named(mark: Mark) -> str:
    return f"{mark.name}: {format_seconds(mark.step_s)}"


def _reached(row: Mapping[str, Any] | None) -> str:
    if row is None or not row["reached"]:
        return NEVER
    share = "" if row["reached"] == row["seeds"] else f" ({row['reached']} of {row['seeds']})"
    if not isfinite(row["evaluations"]):
        return f"{NEVER}{share}"
    return f"{row['evaluations']:,.0f}, {row['cpu_seconds']:.2f} s{share}"


def unanswered(comparison: Comparison, question: Hashable) -> Sequence[str]:
    """A line for each method without an answer: its name and why."""
    return [
        f"{label}: {runs[0].reason.removeprefix(f'{label}: ')}"
        for label, runs in comparison.methods_of(question).items()
        if all(run.result is None for run in runs)
    ]


def whole_table(comparison: Comparison, question: Hashable) -> list[Table]:
    """The tables of a question that have any rows."""
    tables = (ended_table(comparison, question), reached_table(comparison, question))
    return [table for table in tables if table.rows]
