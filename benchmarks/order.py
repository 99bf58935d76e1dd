"""The order of published layouts by simulation: within a cell (model and system) the rank
correlation of simulated and published times, and what the choice of simulation would have cost.

``benchmarks.runs`` prints these tables. Times are seconds of one GPU for one token, so layouts of
different batches and numbers of GPUs stand in one order. Rows that simdev asks alike (releases of
one software, say) are one question: its time is their median.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import pandas as pd

LEAST = 4
"""Fewer questions have no order worth a figure."""
GOOD = 0.8
"""The rank correlation from which an order counts as kept."""
ORDERS = ("cell", "layouts", "spread", "Spearman", "regret")


@dataclass(frozen=True, slots=True)
class Timed:
    """A row of a cell: the question that simdev is asked, and the published and the simulated
    seconds of a GPU for a token.
    """

    cell: str
    question: str
    published: float
    simulated: float


@dataclass(frozen=True, slots=True)
class Order:
    """The order of the questions of a cell.

    ``spread``: the largest published time over the least of any one question, minus 1. ``rank``:
    Spearman's correlation, ties by their mean rank; None where all are simulated, or published,
    alike. ``regret``: the published time of what simulation calls best over the best published,
    minus 1; of what it calls best alike, the worst.
    """

    cell: str
    layouts: int
    spread: float
    rank: float | None
    regret: float

    def line(self) -> tuple[str, ...]:
        """Its row of the table."""
        rank = "-" if self.rank is None else f"{self.rank:.2f}"
        return self.cell, str(self.layouts), f"{self.spread:.1%}", rank, f"{self.regret:.1%}"


def orders(rows: Sequence[Timed]) -> Iterator[Order]:
    """The orders of all cells that have at least LEAST questions."""
    for cell in dict.fromkeys(row.cell for row in rows):
        of_cell = [row for row in rows if row.cell == cell]
        names = dict.fromkeys(row.question for row in of_cell)
        alike = [[row for row in of_cell if row.question == name] for name in names]
        if len(alike) >= LEAST:
            yield _order(cell, alike)


def _order(cell: str, questions: Sequence[Sequence[Timed]]) -> Order:
    times = [[row.published for row in rows] for rows in questions]
    published = [median(each) for each in times]
    simulated = [rows[0].simulated for rows in questions]
    called = [p for p, s in zip(published, simulated, strict=True) if s == min(simulated)]
    spread = max(max(each) / min(each) for each in times) - 1
    rank = _spearman(published, simulated)
    return Order(cell, len(questions), spread, rank, max(called) / min(published) - 1)


def _spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    ranks = pd.Series(first).rank(), pd.Series(second).rank()
    if any(rank.nunique() == 1 for rank in ranks):
        return None
    return round(float(np.corrcoef(*ranks)[0, 1]), 9)  # of 4/5 nothing is lost


def summary(of_cells: Sequence[Order]) -> str:
    """The last line: how many orders are kept, and the largest regret."""
    if not of_cells:
        return f"No cell has {LEAST} layouts."
    kept, count = sum((order.rank or 0) >= GOOD for order in of_cells), len(of_cells)
    worst = max(of_cells, key=lambda order: order.regret)
    return (
        f"Spearman is at least {GOOD} in {kept} of {count} cells ({kept / count:.0%}); the largest "
        f"regret is {worst.regret:.1%} ({worst.cell})."
    )
