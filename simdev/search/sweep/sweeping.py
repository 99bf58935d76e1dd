"""``sweep``: many scenarios, one table; answered here, one after another, or wherever joblib's
backend takes them (``simdev.ground.jobs``).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from itertools import product
from typing import TYPE_CHECKING, Any

from ...ground.errors import refuse, steered
from ...ground.jobs import Died, finished, is_serial
from ...ground.units import written
from .answer import Answer, Memo, answer, failed, problem_of
from .grid import Grid, points
from .journal import Journal
from .point import SINGLE, Row, Source, SweepPoint, as_simulate_says, rows_of

if TYPE_CHECKING:
    import pandas as pd

# Values of a sweep that cannot be, found before the first scenario is simulated.


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


_memo = Memo()


def sweep(
    scenarios: Source | Iterable[Source],
    grid: Grid | None = None,
    n_jobs: int | None = None,
    journal: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
) -> pd.DataFrame:
    """Simulate every scenario at every point of a grid: a DataFrame of one row each, in this order.

    Parameters
    ----------
    scenarios
        Paths, objects of the same shape (their paths are relative to the working directory) or
        Scenarios.
    grid
        Values by field, ``{"cluster.bandwidth": ["1 GB/s", "2 GB/s"], "graph.batch": [16, 32]}``:
        every combination. A list of such grids is taken one after another.
    n_jobs
        So many at once, -1 on all cores (needs joblib). None: what an enclosing
        ``joblib.parallel_config`` says, which may name a cluster (docs/how-to/sweeps.md), else one.
    journal
        A file to which every finished row is appended at once. A sweep that finds rows there does
        not simulate them again, as long as neither the scenario, nor a file it names, nor simdev
        has changed.
    progress
        Whether to show a bar on stderr, from two seconds on; None: where stderr is a terminal.

    Notes
    -----
    The columns are told in docs/how-to/sweeps.md. A scenario that does not fit has the status
    "infeasible" and a step time all the same; one that cannot be simulated has the status "failed".
    Both have a reason, and neither stops the sweep. A failure that depends on the machine (out of
    memory, a dead worker) is not kept in the journal. Raises InputError for a grid that cannot be,
    before anything is simulated or written: also for a value with which no scenario can be
    (``possible.impossible``); and for a journal that cannot be written or that another sweep holds.
    """
    # pandas takes half a second, which a grid that cannot be shall not cost.
    each, memo = points(grid), Memo()
    if any(each) and not isinstance(scenarios, SINGLE):
        # They are gone through twice, and an owner may write into the object of the last turn.
        scenarios = [deepcopy(s) if isinstance(s, Mapping) else s for s in scenarios]
    rows = list(rows_of(scenarios, each))
    if any(each):
        refuse(impossible(rows, each, lambda: list(rows_of(scenarios, [{}])), memo))
    from .frame import frame

    distinct = {row.point.key: row.point for row in rows if row.point is not None}
    with nullcontext() if journal is None else Journal(journal, distinct.keys()) as book:
        figures = _answered(distinct, book, n_jobs, progress, memo)
    return frame(rows, figures)


def _answered(
    wanted: Mapping[str, SweepPoint],
    journal: Journal | None,
    n_jobs: int | None,
    progress: bool | None,
    memo: Memo,
) -> dict[str, Mapping[str, Any]]:
    """The figures of every point by its key, from the journal or simulated now."""
    from tqdm import tqdm

    figures = {} if journal is None else dict(journal.rows)
    missing = [point for key, point in wanted.items() if key not in figures]
    hidden = None if progress is None else not progress
    with tqdm(
        total=len(wanted), initial=len(figures), delay=2, disable=hidden, unit="scenario",
        desc="sweep", file=steered(sys.stderr),
    ) as bar:  # fmt: skip
        for result in answers(missing, n_jobs, memo) if missing else ():
            if journal is not None and result.lasting:
                journal.add(result.key, wanted[result.key].version, result.row)
            figures[result.key] = result.row
            bar.update()
    return figures


def answer_here(point: SweepPoint) -> Answer:
    """Answer in a worker, which keeps what it has read for the next point."""
    return answer(point, _memo)


def answers(
    points: Iterable[SweepPoint], n_jobs: int | None = None, memo: Memo | None = None
) -> Iterator[Answer]:
    """The answers in the order in which they are finished; a serial run goes on from ``memo``.

    ``n_jobs`` is joblib's: so many at once, -1 on all cores; None (the default) is what an
    enclosing ``joblib.parallel_config`` says, else one. Where a worker dies, every scenario then
    under way is tried once more, alone; a serial run tries nothing twice. Raises InputError.
    """
    if is_serial(n_jobs):
        memo = memo or Memo()
        yield from (answer(point, memo) for point in points)
        return
    for key, result in finished(answer_here, {point.key: point for point in points}, n_jobs):
        yield Answer(key, failed(result.reason), False) if isinstance(result, Died) else result
