"""Linear and integer programs for SciPy's solvers, and calls of these solvers that Ctrl-C and time
limits can end.

SciPy is optional; its solvers ignore signals, and sometimes their own time limit. m-SCT (baechi.py)
and the programs of ``maxload`` use this module.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from math import inf, prod
from threading import Thread
from typing import Any, TypeVar

import numpy as np

from ..ground.errors import SimdevError, install_line
from ..nouns.taskgraph import Floats, Ints

T = TypeVar("T")
LOOK = 0.2  # seconds between two looks: on Windows a wait without a limit is deaf to Ctrl-C
GRACE = 1.0  # seconds beyond its limit that a solver may take to hand over what it has


def scipy(who: str) -> tuple[Any, Any]:
    """SciPy's modules ``optimize`` and ``sparse``. Raises SimdevError, which begins with ``who``,
    where SciPy is not installed.
    """
    try:
        from scipy import optimize, sparse
    except ModuleNotFoundError:
        raise SimdevError(f"{who} scipy: {install_line('solvers')}") from None
    return optimize, sparse


class Program:
    """A linear program that minimises its last column.

    Each column is from 0 to ``high``, a whole number where ``integral`` is 1; each row is low <=
    sum of value x column <= high.
    """

    def __init__(self) -> None:
        self.high, self.integral = list[float](), list[int]()
        self.rows: list[tuple[Sequence[int], Sequence[float], float, float]] = []

    def columns(self, *shape: int, high: float = 1.0, integral: int = 0) -> Ints:
        """Add columns; returns their indices in this shape."""
        first = len(self.high)
        self.high += [high] * prod(shape)
        self.integral += [integral] * prod(shape)
        return np.arange(first, len(self.high)).reshape(shape)

    def add(
        self, columns: Sequence[int] | Ints, values: Sequence[float], low: float, high: float
    ) -> None:
        """Add a row."""
        self.rows.append((list(columns), values, low, high))

    def tables(self, sparse: Any) -> tuple[Floats, Any, Sequence[float], Sequence[float]]:
        """The objective by column, the sparse matrix of the rows, and their bounds low and high."""
        columns, values, low, high = zip(*self.rows, strict=True)
        objective = np.zeros(len(self.high))
        objective[-1] = 1.0
        row = np.repeat(np.arange(len(columns)), list(map(len, columns)))
        entries = np.concatenate(values), (row, np.concatenate(columns))
        shape = len(columns), len(objective)
        return objective, sparse.csr_matrix(entries, shape=shape), low, high


def attended(call: Callable[[], T], seconds: float = inf) -> T | None:
    """The answer of ``call``, None where it takes longer than ``seconds`` and GRACE; Ctrl-C ends
    the wait at once.

    The call runs in a thread, and has to release the GIL. Nothing can stop it from outside: after
    the wait is over, it goes on until it ends by itself, or the process does.
    """
    answer, end = Future[T](), time.perf_counter() + seconds + GRACE

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # raised below, in the thread that waits
            answer.set_exception(error)

    Thread(target=run, daemon=True).start()
    while wait([answer], LOOK).not_done:
        if time.perf_counter() > end:
            return None
    return answer.result()
