"""Rows of a comparison: what each method ended with, and when it reached the marks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, nan
from statistics import median
from typing import Any

import numpy as np

from ...report.table import ONE_DEVICE
from ..result import Result
from .curves import AXES, LOWER, MEDIAN, UPPER, improvements, quantile
from .runs import Entrant, Reference, References, Run

COLUMNS = [
    "question", "method", "step_ms", "against_single", "fits", "peak_bytes", "placing_s",
    "evaluations", "reason",
]  # fmt: skip
SHARE = 0.9  # of one device: a mark that every search should reach
SEARCHES = ("greedy", "annealing")  # whose ends are marks for the others
FEW = 16  # evaluations of what plans: a start, a plan and what mends it


@dataclass(frozen=True, slots=True)
class Mark:
    """A step in seconds to be reached, and what it is: 0.9 x one device, or the median end of a
    search.
    """

    name: str
    step_s: float


def counted(runs: Sequence[Run]) -> list[tuple[Run, Result]]:
    """The runs that count, best first: the whole ones, and only where there are none what was cut
    short.
    """
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
    """The row of a method: medians over its seeds.

    Steps are ordered by rank, what fits first. Where the middle one (of an even number the worse of
    two) does not fit, the row is that run's.
    """
    first, ended = runs[0], counted(runs)
    if not ended:
        return _unanswered(first)
    results = [result for _, result in ended]
    middle = results[len(results) // 2]
    lower, step_ps, upper = _quartiles_ps(results)
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


def _quartiles_ps(results: Sequence[Result]) -> tuple[float, float, float]:
    """The quartiles of the steps that the runs ended with; inf for what does not fit."""
    steps = np.array([r.cost.step_ps if r.cost.feasible else inf for r in results])
    lower, middle, upper = (float(quantile(steps, share)) for share in (LOWER, MEDIAN, UPPER))
    return lower, middle, upper


def _unanswered(run: Run) -> dict[str, Any]:
    names = ("step_ms", "against_single", "peak_bytes", "placing_s", "lower_ms", "upper_ms")
    numbers = dict.fromkeys(names, nan) | {"fits": False, "evaluations": 0, "seeds": 0}
    named = {"question": run.question, "method": run.method}
    return named | numbers | {"reason": run.reason, "above": ""}


def _against(single: Reference | None, step_ps: float) -> float:
    return nan if single is None or not step_ps else single.cost.step_ps / step_ps


def _above(middle: Run, step_ps: float, references: References) -> str:
    """Which references end below a method, whose ``middle`` run and median are given: by rank, so
    that a longer step that fits is no worse than one that does not.
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
    SEARCHES that are there.
    """
    marks = []
    single = references.single
    if single is not None and single.cost.feasible:
        marks.append(Mark(f"{SHARE:g} x {ONE_DEVICE}", SHARE * single.cost.seconds))
    for label, runs in by_method.items():
        if Entrant(label).method in SEARCHES and counted(runs):
            step_ps = _quartiles_ps([result for _, result in counted(runs)])[1]
            marks += [Mark(label, step_ps / 1e12)] if isfinite(step_ps) else []
    return marks


def reached(runs: Sequence[Run], mark: Mark) -> dict[str, Any] | None:
    """When a method reached a mark: medians over its seeds of evaluations and CPU seconds (inf
    where most never did), and how many did; None where it has no result.
    """
    results = [result for _, result in counted(runs)]
    if not results:
        return None
    first = {axis: [_first_at(result, axis, mark) for result in results] for axis in AXES}
    at = {axis: float(quantile(np.array(places), MEDIAN)) for axis, places in first.items()}
    times = sum(map(isfinite, first[AXES[0]]))
    return {"mark": mark.name, "mark_s": mark.step_s, **at, "reached": times, "seeds": len(results)}


def _first_at(result: Result, axis: str, mark: Mark) -> float:
    """Where on the axis a run first was at a mark or below; inf where it never was."""
    at, steps = improvements(result, axis)
    below = np.flatnonzero(steps <= mark.step_s)
    return float(at[below[0]]) if len(below) else inf


def by_method(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs of a question by method, in their order."""
    rows: dict[str, list[Run]] = {}
    for run in runs:
        rows.setdefault(run.method, []).append(run)
    return rows


def reached_rows(
    methods: Mapping[str, Sequence[Run]], references: References
) -> Iterator[dict[str, Any]]:
    """For each mark of a question and each method when it was reached."""
    for mark in marks_of(methods, references):
        for label, runs in methods.items():
            row = reached(runs, mark)
            if row is not None:
                yield {"question": runs[0].question, "method": label, **row}


def plain_numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as JSON, without the question: what is infinite or no number is null."""
    numbers = {
        name: None if isinstance(value, float) and not isfinite(value) else value
        for name, value in row.items()
    }
    del numbers["question"]
    return numbers
