"""What both integer programs share: the solver, and constraints row by row."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import SimdevError
from ..attended import attended

GAP = 1e-6  # relative, at which the solver stops
FAILED = 4  # the solver's status where its numbers trouble it
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Solved:
    """Devices by op (None: none was found), the objective in ms, and what no assignment can go
    below.

    ``failure`` is what the solver said where it gave up before its time.
    """

    devices: tuple[int, ...] | None
    value_ms: float
    bound_ms: float
    failure: str | None = None


class Constraints:
    """Rows low <= sum of value x column <= high."""

    def __init__(self) -> None:
        self._rows: list[tuple[list[int], list[float], float, float]] = []

    def add(
        self, cols: Sequence[int], values: Sequence[float] | None, low: float, high: float
    ) -> None:
        """One row; values None: all 1."""
        self._rows.append(
            (list(cols), [1.0] * len(cols) if values is None else list(values), low, high)
        )

    def matrix(self, columns: int) -> tuple[Any, list[float], list[float]]:
        """The sparse matrix, and the bounds of its rows."""
        _, sparse = scipy()
        row = [at for at, one in enumerate(self._rows) for _ in one[0]]
        cols = [column for one in self._rows for column in one[0]]
        values = [value for one in self._rows for value in one[1]]
        matrix = sparse.csr_matrix((values, (row, cols)), shape=(len(self._rows), columns))
        return matrix, [one[2] for one in self._rows], [one[3] for one in self._rows]


@dataclass(frozen=True, slots=True)
class Minimum:
    """What the solver found: the columns (None: nothing), a lower bound, and why there is
    nothing.
    """

    columns: Floats | None
    bound: float
    infeasible: bool
    failure: str | None


def minimum(
    rows: Constraints, integral: Floats, high: Floats, seconds: float, gap: float
) -> Minimum:
    """The least value of the last column, as far as HiGHS comes; columns are from 0 to ``high``.

    Its presolve may end in an error on numbers of very different size: then it tries again without.
    Raises SimdevError where scipy is missing.
    """
    optimize, _ = scipy()
    matrix, least, most = rows.matrix(len(high))
    objective = np.zeros(len(high))
    objective[-1] = 1.0
    program = {
        "c": objective,
        "integrality": integral,
        "bounds": optimize.Bounds(np.zeros(len(high)), high),
        "constraints": optimize.LinearConstraint(matrix, least, most),
    }
    end = time.perf_counter() + seconds
    found = _tried(program, {"time_limit": seconds, "mip_rel_gap": gap})
    left = end - time.perf_counter()
    if found is not None and found.status == FAILED and left > 0:
        found = _tried(program, {"time_limit": left, "mip_rel_gap": gap, "presolve": False})
    if found is None:
        return Minimum(None, 0.0, False, None)
    bound = 0.0 if found.mip_dual_bound is None else max(float(found.mip_dual_bound), 0.0)
    failure = f"the solver failed: {found.message}" if found.status == FAILED else None
    return Minimum(found.x, bound, found.status == 2, failure)


def _tried(program: dict[str, Any], options: dict[str, Any]) -> Any:
    optimize, _ = scipy()
    with silent():
        return attended(lambda: optimize.milp(**program, options=options), options["time_limit"])


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
    """Nothing is printed to the process's standard output: HiGHS tells of some trouble there
    whatever it is told.
    """
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
