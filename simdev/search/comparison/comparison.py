"""Comparison: the results of every method on every question, with their rows, marks, and tables for
people.

``run_comparison`` makes it, ``simdev/commands/search.py`` prints its tables and its JSON. A column
of ``table`` is made in ``row_of`` and printed by ``ended_table``.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, inf, isfinite, log10, nan
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ground.errors import InputError
from ...ground.units import format_seconds
from ...nouns.taskgraph import Floats
from ...report.figures.style import time_unit
from ...report.table import NUMBER, ONE_DEVICE, TEXT, Table
from ..result import Result
from .curves import (
    AXES,
    STEPS,
    Curve,
    curve_of,
    draw,
    improvements,
    places_of,
    quartiles,
)
from .runs import Entrant, Reference, References, Run

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

# Rows: the end of each method, and when it reached the marks.

COLUMNS = [
    "question", "method", "step_ms", "against_single", "fits", "peak_bytes", "placing_s",
    "evaluations", "reason",
]  # fmt: skip
SHARE = 0.9  # of one device's step: a mark that every search should reach
SEARCHES = ("greedy", "annealing")  # methods whose ends are marks for the others
FEW = 16  # most evaluations of a planner: the starts, the plan and its repair


@dataclass(frozen=True, slots=True)
class Mark:
    """A step in seconds that methods try to reach, and its name: 0.9 x one device, or the search
    whose median end it is.
    """

    name: str
    step_s: float


def counted(runs: Sequence[Run]) -> list[tuple[Run, Result]]:
    """The runs that count, best first: whole runs, or where there are none, interrupted runs."""
    whole = [run for run in runs if run.is_whole]
    ended = [(run, run.result) for run in whole or runs if run.result is not None]
    return sorted(ended, key=lambda pair: pair[0].rank or ())


def plans(runs: Sequence[Run]) -> bool:
    """Whether a method has a single answer rather than a curve: it ends by itself after a few
    evaluations.
    """
    provenances = [result.provenance for _, result in counted(runs)]
    return all(p["ended"] != "budget" and p["evaluations"] <= FEW for p in provenances)


def row_of(runs: Sequence[Run], references: References) -> dict[str, Any]:
    """The row of a method on a question: medians over its seeds.

    Steps are ordered by rank, those that fit first. Where the middle run (the worse of two, for an
    even number) does not fit, its figures are the row's.
    """
    first, ended = runs[0], counted(runs)
    if not ended:
        return _unanswered(first)
    results = [result for _, result in ended]
    middle = results[len(results) // 2]
    lower, step_ps, upper = _quartiles_ps(results).tolist()
    if not middle.cost.feasible:
        step_ps = middle.cost.step_ps
    further = dict(middle.objectives)
    del further["step_time_s"]
    return {
        "question": first.question,
        "method": first.method,
        "step_ms": step_ps / 1e9,
        "against_single": _against(references.single, step_ps),
        "fits": middle.cost.feasible,
        "peak_bytes": max(middle.cost.peaks, default=0),
        "placing_s": median(result.provenance["cpu_seconds"] for result in results),
        "evaluations": median(result.provenance["evaluations"] for result in results),
        "reason": "" if all(run.is_whole for run, _ in ended) else "interrupted",
        "seeds": len(ended),
        "lower_ms": lower / 1e9,
        "upper_ms": upper / 1e9,
        "above": _above(ended[len(ended) // 2][0], step_ps, references),
        **further,
    }


def _quartiles_ps(results: Sequence[Result]) -> Floats:
    """The quartiles of the steps at the end of the runs; inf for a step that does not fit."""
    return quartiles(np.array([r.cost.step_ps if r.cost.feasible else inf for r in results]))


def _unanswered(run: Run) -> dict[str, Any]:
    names = ("step_ms", "against_single", "peak_bytes", "placing_s", "lower_ms", "upper_ms")
    numbers = dict.fromkeys(names, nan) | {"fits": False, "evaluations": 0, "seeds": 0}
    named = {"question": run.question, "method": run.method}
    return named | numbers | {"reason": run.reason, "above": ""}


def _against(single: Reference | None, step_ps: float) -> float:
    return nan if single is None or not step_ps else single.cost.step_ps / step_ps


def _above(middle: Run, step_ps: float, references: References) -> str:
    """The references that are better than a method, by rank: a longer step that fits is no worse
    than one that does not. ``middle`` is the run in the middle, ``step_ps`` the median.
    """
    assert middle.rank is not None  # it has a result
    rank = (*middle.rank[:2], step_ps)
    return ", ".join(
        name
        for name, reference in references.by_name.items()
        if reference is not None and rank > reference.rank
    )


def marks_of(by_method: Mapping[str, Sequence[Run]], references: References) -> list[Mark]:
    """The marks of a question: SHARE of one device where that fits, and the median ends of the
    SEARCHES that have run.
    """
    marks = []
    single = references.single
    if single is not None and single.cost.feasible:
        marks.append(Mark(f"{SHARE:g} x {ONE_DEVICE}", SHARE * single.cost.seconds))
    for label, runs in by_method.items():
        if Entrant(label).method in SEARCHES and counted(runs):
            step_ps = float(_quartiles_ps([result for _, result in counted(runs)])[1])
            marks += [Mark(label, step_ps / 1e12)] if isfinite(step_ps) else []
    return marks


def reached(runs: Sequence[Run], mark: Mark) -> dict[str, Any] | None:
    """When a method reached a mark: medians over its seeds of evaluations and CPU seconds (inf
    where most runs never did), and how many runs did; None where the method has no result.
    """
    results = [result for _, result in counted(runs)]
    if not results:
        return None
    first = {axis: [_first_at(result, axis, mark) for result in results] for axis in AXES}
    at = {axis: float(quartiles(np.array(places))[1]) for axis, places in first.items()}
    times = sum(map(isfinite, first[AXES[0]]))
    return {"mark": mark.name, "mark_s": mark.step_s, **at, "reached": times, "seeds": len(results)}


def _first_at(result: Result, axis: str, mark: Mark) -> float:
    """The first place on the axis where a run was at or below a mark; inf where it never was."""
    at, steps = improvements(result, axis)
    return float(at[steps <= mark.step_s].min(initial=inf))


def plain_numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as JSON, without the question: inf and NaN become null."""
    numbers = {
        name: None if isinstance(value, float) and not isfinite(value) else value
        for name, value in row.items()
    }
    del numbers["question"]
    return numbers


# The comparison itself.


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Runs of methods on questions, in the order of the question, the method and the seed.

    ``references`` has the costs of one device and of the scenario's own strategy, by question.
    ``interrupted``: an interrupt ended the comparison before all runs were there. Missing runs then
    have a reason, and an interrupted run counts only where its method has no whole run.
    """

    runs: tuple[Run, ...]
    references: Mapping[Hashable, References]
    interrupted: bool = False

    @property
    def table(self) -> pd.DataFrame:
        """A row for each question and method: medians over its seeds.

        Columns: question (its name), method, step_ms, against_single (the best single device's step
        / this one's; NaN where no device can run everything), fits, peak_bytes (of the fullest
        device), placing_s (CPU seconds; costs are known by then), evaluations, reason (why a method
        has no answer: then the numbers are NaN); seeds, lower_ms and upper_ms (quartiles of the
        step; infinite where that run does not fit), above (which of "one device" and "own
        placement" end below it), and further objectives of methods.
        """
        import pandas as pd

        rows = [row for question in self.references for row in self.rows_of(question)]
        further = [name for row in rows for name in row if name not in COLUMNS]
        return pd.DataFrame(rows, columns=[*COLUMNS, *dict.fromkeys(further)])

    @property
    def reached(self) -> pd.DataFrame:
        """When each method reached 0.9 x one device, and the median ends of greedy and annealing,
        where these have run.

        Columns: question, method, mark, mark_s (its step), evaluations and cpu_seconds (medians
        over seeds; infinite where most never did), reached (the number of seeds that did), seeds.
        """
        import pandas as pd

        rows = [row for question in self.references for row in self.reached_of(question)]
        names = ["question", "method", "mark", "mark_s", *AXES, "reached", "seeds"]
        return pd.DataFrame(rows, columns=names)

    @property
    def curves(self) -> pd.DataFrame:
        """The best so far: question, method, axis ("evaluations" or "cpu_seconds"), at, lower_s,
        median_s, upper_s (quartiles over the seeds; infinite where nothing fits by then).

        All methods of a question have the same places ``at``, and each its end.
        """
        import pandas as pd

        parts = [
            pd.DataFrame({name: getattr(curve, name) for name in ("at", *STEPS)}).assign(
                question=pd.Series([question] * len(curve.at), dtype=object),
                method=curve.method,
                axis=curve.axis,
            )
            for question in self.references
            for axis in AXES
            for curve in self.curves_of(question, axis)
        ]
        columns = ["question", "method", "axis", "at", *STEPS]
        if not parts:
            return pd.DataFrame(columns=columns)
        return pd.concat(parts, ignore_index=True)[columns]

    def rows_of(self, question: Hashable) -> list[dict[str, Any]]:
        """The rows of a question, one for each method."""
        methods, references = self.methods_of(question), self.references[question]
        return [row_of(runs, references) for runs in methods.values()]

    def reached_of(self, question: Hashable) -> list[dict[str, Any]]:
        """A row for each mark of a question and each method with a result: when the method reached
        the mark.
        """
        methods = self.methods_of(question)
        return [
            {"question": question, "method": label, **row}
            for mark in marks_of(methods, self.references[question])
            for label, runs in methods.items()
            if (row := reached(runs, mark)) is not None
        ]

    def curves_of(self, question: Hashable, axis: str) -> list[Curve]:
        """The curves of the methods that have an answer to a question, over one of AXES."""
        results = {
            method: [result for _, result in counted(runs)]
            for method, runs in self.methods_of(question).items()
        }
        every = [result for its in results.values() for result in its]
        if not every:
            return []
        places = places_of(every, axis)
        return [curve_of(method, its, axis, places) for method, its in results.items() if its]

    def methods_of(self, question: Hashable) -> dict[str, list[Run]]:
        """The runs of a question by method, in their order."""
        rows: dict[str, list[Run]] = {}
        for run in self.runs:
            if run.question == question:
                rows.setdefault(run.method, []).append(run)
        return rows

    def best(self, question: Hashable) -> Run | None:
        """The best run of a question, interrupted runs included; None where no method has an
        answer.
        """
        runs = [run for run in self.runs if run.question == question and run.rank is not None]
        return min(runs, key=lambda run: run.rank or (), default=None)

    def plot(self, question: Hashable) -> Figure:
        """Draw the curves of a question over evaluations and over CPU seconds.

        Raises InputError where there is nothing to draw.
        """
        curves = {axis: self.curves_of(question, axis) for axis in AXES}
        if not curves[AXES[0]]:
            raise InputError("plot: no method has an answer")
        planners = {method for method, runs in self.methods_of(question).items() if plans(runs)}
        return draw(str(question), curves, planners, self.references[question])

    def to_json(self, question: Hashable) -> dict[str, Any]:
        """A question as plain numbers: the steps of its references, and for each method its row,
        its curves, its runs, and when it reached the marks.
        """
        references = self.references[question]
        beside = {"single": references.single, "present": references.present}
        curves = {axis: {c.method: c for c in self.curves_of(question, axis)} for axis in AXES}
        reached, runs = self.reached_of(question), self.methods_of(question)
        methods = [
            {
                **plain_numbers(row),
                "curves": {
                    axis: by_label[row["method"]].to_json()
                    for axis, by_label in curves.items()
                    if row["method"] in by_label
                },
                "reached": [plain_numbers(r) for r in reached if r["method"] == row["method"]],
                "runs": [run.to_json() for run in runs[row["method"]]],
            }
            for row in self.rows_of(question)
        ]
        steps = {
            f"{name}_step_time_s": None if reference is None else reference.cost.seconds
            for name, reference in beside.items()
        }
        return {**steps, "interrupted": self.interrupted, "methods": methods}


# Tables for people.

DIGITS = 6  # of times: the gain of a search is often in the last digits
NEVER = "-"


def ended_table(comparison: Comparison, question: Hashable) -> Table:
    """A row for each method that has an answer, the best first."""
    rows = [row for row in comparison.rows_of(question) if row["seeds"]]
    rows.sort(key=lambda row: (not row["fits"], row["step_ms"]))
    best = min((row["step_ms"] for row in rows), default=1.0)
    unit, unit_ms = _unit(best)
    # The same number of decimals in every row, so that a column can be read down.
    decimals = max(DIGITS - 1 - floor(log10(max(best / unit_ms, 1e-9))), 0)
    titles = {
        "method": TEXT, f"step, {unit}": NUMBER, "quartiles": NUMBER, ONE_DEVICE: NUMBER,
        "evaluations": NUMBER, "CPU s": NUMBER, "seeds": NUMBER, "note": TEXT,
    }  # fmt: skip
    cells = tuple(_ended(row, unit_ms, decimals) for row in rows)
    return Table(_title(question, comparison.references[question]), titles, cells, shown=len(cells))


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
    """The unit for steps of about this length, and its length in ms."""
    name, ps = time_unit(max(int(step_ms * 1e9), 1))
    return name, ps / 1e9


def reached_table(comparison: Comparison, question: Hashable) -> Table:
    """For each method and mark, the evaluations and CPU seconds by then; methods that reached no
    mark are left out.
    """
    marks, cells = {"method": TEXT}, dict[str, list[str]]()
    for row in comparison.reached_of(question):
        marks[f"{row['mark']}: {format_seconds(row['mark_s'])}"] = NUMBER
        cells.setdefault(row["method"], []).append(_reached(row))
    rows = tuple((label, *each) for label, each in cells.items() if set(each) != {NEVER})
    title = "evaluations, CPU seconds to reach (medians; how many seeds did, where not all)"
    return Table(title, marks, rows, shown=len(rows))


def _reached(row: Mapping[str, Any]) -> str:
    if not row["reached"]:
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
