"""``sweep``: many scenarios, one table."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from .grid import Grid, points
from .journal import Journal
from .parallel import answers
from .question import Question, Source, questions

if TYPE_CHECKING:
    import pandas as pd


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
        every combination.
        A list of such grids is taken one after another.
    n_jobs
        So many at once, -1 on all cores (needs joblib). None: what an enclosing
        ``joblib.parallel_config`` says, which
        may name a cluster (docs/sweeps.md), else one.
    journal
        A file to which every finished row is appended at once. A sweep that finds rows there does
        not simulate them
        again, as long as neither the scenario, nor a file it names, nor simdev has changed.
    progress
        Whether to show a bar on stderr, from two seconds on; None: where stderr is a terminal.

    The columns are told in docs/sweeps.md. A scenario that does not fit has the status "infeasible"
    and a step time all the same; one that cannot be simulated has the status "failed". Both have a
    reason, and neither stops the sweep. Raises InputError for a grid that cannot be, and for a
    journal that cannot be written or that another sweep holds.
    """
    from .frame import frame

    asked = list(questions(scenarios, points(grid)))
    distinct = {one.question.key: one.question for one in asked if one.question is not None}
    with nullcontext() if journal is None else Journal(journal, distinct.keys()) as book:
        rows = _answered(distinct, book, n_jobs, progress)
    return frame(asked, rows)


def _answered(
    wanted: Mapping[str, Question], book: Journal | None, n_jobs: int | None, progress: bool | None
) -> dict[str, Mapping[str, Any]]:
    """The row of every question by its key, from the journal or simulated now."""
    from tqdm import tqdm

    rows = {} if book is None else dict(book.rows)
    missing = [question for key, question in wanted.items() if key not in rows]
    hidden = None if progress is None else not progress
    with tqdm(
        total=len(wanted),
        initial=len(rows),
        delay=2,
        disable=hidden,
        unit="scenario",
        desc="sweep",
        file=sys.stderr,
    ) as bar:
        for found in answers(missing, n_jobs) if missing else ():
            if book is not None and found.lasting:
                book.add(found.key, wanted[found.key].version, found.row)
            rows[found.key] = found.row
            bar.update()
    return rows
