"""Values of a sweep that cannot be, found before the first scenario is simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from ...ground.units import written
from .answer import Memo, problem_of
from .point import Row, as_simulate_says


def impossible(
    rows: Sequence[Row],
    points: Sequence[Mapping[str, Any]],
    plain: Callable[[], Sequence[Row]],
    memo: Memo,
) -> Iterator[str]:
    """A line for each value with which no scenario of a sweep can be, whatever else is set: a field
    that does not exist, a wrong type, a number of devices that the strategy cannot use.

    ``rows`` are every scenario at every one of the ``points``, ``plain()`` every scenario as it is:
    what is wrong with a scenario itself is told in its rows, and so are combinations of values that
    cannot be together.
    """
    problems: dict[str, str | None] = {}

    def problem(row: Row) -> str | None:
        if row.point is None:
            return row.problem
        if row.point.key not in problems:
            problems[row.point.key] = problem_of(row.point, memo)
        return problems[row.point.key]

    carriers: dict[tuple[str, str], list[int]] = {}
    for number, settings in enumerate(points):
        for path, value in settings.items():
            carriers.setdefault((path, repr(value)), []).append(number)
    plainly: list[str | None] = []
    scenarios = range(len(rows) // len(points))
    for (path, _), numbers in carriers.items():
        with_it = [(s, rows[s * len(points) + n]) for n, s in product(numbers, scenarios)]
        if any(problem(row) is None for _, row in with_it):
            continue
        plainly = plainly or [problem(row) for row in plain()]
        wrong = [row for scenario, row in with_it if problem(row) != plainly[scenario]]
        if wrong:
            reason = as_simulate_says(str(problem(wrong[0]))).replace("\n", "; ")
            value = written(wrong[0].settings[path])
            yield f"{wrong[0].label}: {path}={value}: {reason.removeprefix(f'{path}: ')}"
