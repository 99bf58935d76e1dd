"""Comparison: every method on every question, as a value."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...ground.errors import InputError
from .curves import AXES, Curve, curve_of, places_of
from .rows import COLUMNS, by_method, counted, plain_numbers, plans, reached_rows, row_of
from .runs import References, Run

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Runs of methods on questions, in the order of the question, the method and the seed.

    ``references`` tells by question what one device and the own strategy cost; ``interrupted``
    whether somebody ended it before all runs were there: then those that are missing have a reason,
    and one that was cut short counts only where its method has no whole one.
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

        rows = [
            row_of(runs, references)
            for question, references in self.references.items()
            for runs in self.methods_of(question).values()
        ]
        further = [name for row in rows for name in row if name not in COLUMNS]
        return pd.DataFrame(rows, columns=[*COLUMNS, *dict.fromkeys(further)])

    @property
    def reached(self) -> pd.DataFrame:
        """When each method reached 0.9 x one device, and the median ends of greedy and annealing,
        where these are there.

        Columns: question, method, mark, mark_s (its step), evaluations and cpu_seconds (medians
        over seeds; infinite where most never did), reached (so many of its seeds did), seeds.
        """
        import pandas as pd

        rows = [
            row
            for question, references in self.references.items()
            for row in reached_rows(self.methods_of(question), references)
        ]
        names = ["question", "method", "mark", "mark_s", *AXES, "reached", "seeds"]
        return pd.DataFrame(rows, columns=names)

    @property
    def curves(self) -> pd.DataFrame:
        """The best so far: question, method, axis ("evaluations" or "cpu_seconds"), at, lower_s,
        median_s, upper_s (quartiles over the seeds; infinite where nothing fits by then).

        All methods of a question are told at the same places, and each at its end.
        """
        import pandas as pd

        names = ["at", "lower_s", "median_s", "upper_s"]
        parts = [
            pd.DataFrame({name: getattr(curve, name) for name in names}).assign(
                question=pd.Series([question] * len(curve.at), dtype=object),
                method=curve.method,
                axis=curve.axis,
            )
            for question in self.references
            for axis in AXES
            for curve in self.curves_of(question, axis)
        ]
        columns = ["question", "method", "axis", *names]
        if not parts:
            return pd.DataFrame(columns=columns)
        return pd.concat(parts, ignore_index=True)[columns]

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
        return by_method([run for run in self.runs if run.question == question])

    def best(self, question: Hashable) -> Run | None:
        """The best run of a question, of those that were cut short too; None where no method has an
        answer.
        """
        runs = [run for its in self.methods_of(question).values() for run in its]
        return min((run for run in runs if run.rank is not None), key=_rank, default=None)

    def plot(self, question: Hashable) -> Figure:
        """Draw the curves of a question over evaluations and over CPU seconds.

        Raises InputError where there is nothing to draw.
        """
        from .plot import draw

        curves = {axis: self.curves_of(question, axis) for axis in AXES}
        if not curves[AXES[0]]:
            raise InputError("plot: no method has an answer")
        planners = {method for method, runs in self.methods_of(question).items() if plans(runs)}
        return draw(str(question), curves, planners, self.references[question])

    def to_json(self, question: Hashable) -> dict[str, Any]:
        """A question as plain numbers: what stands beside, and for each method its row, its curves,
        its runs, and when it reached the marks.
        """
        references = self.references[question]
        beside = {"single": references.single, "present": references.present}
        curves = {axis: {c.method: c for c in self.curves_of(question, axis)} for axis in AXES}
        reached = list(reached_rows(self.methods_of(question), references))
        methods = [
            {
                **plain_numbers(row_of(runs, references)),
                "curves": {
                    axis: by_label[method].to_json()
                    for axis, by_label in curves.items()
                    if method in by_label
                },
                "reached": [plain_numbers(row) for row in reached if row["method"] == method],
                "runs": [run.to_json() for run in runs],
            }
            for method, runs in self.methods_of(question).items()
        ]
        steps = {
            f"{name}_step_time_s": None if reference is None else reference.cost.seconds
            for name, reference in beside.items()
        }
        return {**steps, "interrupted": self.interrupted, "methods": methods}


def _rank(run: Run) -> tuple[float, ...]:
    return run.rank or ()
