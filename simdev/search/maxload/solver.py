"""What both integer programs share: the solver, and constraints row by row."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ...errors import SimdevError

GAP = 1e-6  # relative, at which the solver stops


@dataclass(frozen=True, slots=True)
class Solved:
    """Devices by op (None: none was found in time), the objective in ms, and what no assignment can go below."""

    devices: tuple[int, ...] | None
    value_ms: float
    bound_ms: float


class Constraints:
    """Rows low <= sum of value x column <= high."""

    def __init__(self) -> None:
        self._rows: list[tuple[list[int], list[float], float, float]] = []

    def add(self, cols: Sequence[int], values: Sequence[float] | None, low: float, high: float) -> None:
        """One row; values None: all 1."""
        self._rows.append((list(cols), [1.0] * len(cols) if values is None else list(values), low, high))

    def matrix(self, columns: int) -> tuple[Any, list[float], list[float]]:
        """The sparse matrix, and the bounds of its rows."""
        _, sparse = scipy()
        row = [at for at, one in enumerate(self._rows) for _ in one[0]]
        cols = [column for one in self._rows for column in one[0]]
        values = [value for one in self._rows for value in one[1]]
        matrix = sparse.csr_matrix((values, (row, cols)), shape=(len(self._rows), columns))
        return matrix, [one[2] for one in self._rows], [one[3] for one in self._rows]


def scipy() -> tuple[Any, Any]:
    """The modules optimize and sparse. Raises SimdevError where scipy is missing."""
    try:
        from scipy import optimize, sparse
    except ModuleNotFoundError:
        raise SimdevError(
            'integer programs need scipy: install the extra "solvers" (pip install simdev[solvers])'
        ) from None
    return optimize, sparse


@contextmanager
def silent() -> Iterator[None]:
    """Nothing is printed to the process's standard output: HiGHS tells of some trouble there whatever it is told."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
