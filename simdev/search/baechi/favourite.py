"""The linear program of m-SCT: which successor of each op should follow it at once, on the same
device.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import SimdevError
from ...taskgraph import Ints
from ..attended import attended
from ..instance import Instance

# an edge whose variable is at most this is to a favourite child (Baechi's released setting)
THRESHOLD = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class Relaxed:
    """The optimum of the relaxed program: ``delayed`` by edge (0: favourite child), and its
    makespan in ps.

    ``solved`` is false where the solver ran out of time: then there are no favourites.
    """

    delayed: NDArray[np.float64]
    makespan_ps: float
    solved: bool = True


def relaxed(instance: Instance, seconds: float | None = None) -> Relaxed:
    """Solve the relaxed program of Hanen and Munier (1995), as Baechi states it (Jeon et al., SoCC
    2020, section 3.3).

    min w over x in [0, 1] by edge and starts s >= 0: s_i + p_i + c_ij x_ij <= s_j, s_i + p_i <= w,
    and every op has at most one favourite child and is that of at most one op: the x of its
    out-edges sum to at least their number - 1, likewise those of its in-edges. Times are means over
    devices and routes, relative to their sum. Raises SimdevError where scipy is missing.
    """
    linprog, csr = _solver()
    edges = np.array(instance.edges, np.int64).reshape(-1, 2)
    p, c = instance.mean, instance.edge_ps
    unit = max(float(p.sum()), 1.0)
    count, nodes = len(edges), len(p)
    rows, bounds = _constraints(edges, p / unit, c / unit)
    matrix = csr((rows[2], (rows[0], rows[1])), shape=(len(bounds), count + nodes + 1))
    objective = np.zeros(count + nodes + 1)
    objective[-1] = 1.0
    limits = np.zeros((count + nodes + 1, 2))
    limits[:, 1] = np.inf
    limits[:count, 1] = 1.0
    options = {} if seconds is None else {"time_limit": seconds}
    found = attended(
        lambda: linprog(
            objective, matrix, bounds, bounds=limits, method="highs-ds", options=options
        ),
        inf if seconds is None else seconds,
    )
    if found is None or found.x is None:
        return Relaxed(np.ones(count), float("nan"), False)
    return Relaxed(found.x[:count], float(found.fun) * unit)


def _solver() -> tuple[Any, Any]:
    try:
        from scipy.optimize import linprog
        from scipy.sparse import csr_matrix
    except ModuleNotFoundError:
        raise SimdevError(
            'm-sct needs scipy: install the extra "solvers" (pip install simdev[solvers])'
        ) from None
    return linprog, csr_matrix


def _constraints(
    edges: Ints, p: NDArray[np.float64], c: NDArray[np.float64]
) -> tuple[tuple[Any, Any, Any], Any]:
    """(row, column, value) of the left sides, and the right sides of ``<=``."""
    count, nodes = len(edges), len(p)
    each, start = np.arange(count), count
    source, end = edges[:, 0], edges[:, 1]
    rows, cols, values = (
        [each, each, each],
        [start + source, start + end, each],
        [np.ones(count), -np.ones(count), c],
    )
    right = [-p[source]]
    at = count
    for side in (source, end):
        degree = np.bincount(side, minlength=nodes)
        several = np.flatnonzero(degree > 1)  # with one edge the bound is 0
        row = np.full(nodes, -1)
        row[several] = at + np.arange(len(several))
        counted = row[side] >= 0
        rows.append(row[side][counted])
        cols.append(each[counted])
        values.append(-np.ones(int(counted.sum())))
        right.append(1.0 - degree[several].astype(np.float64))
        at += len(several)
    # the others end before their successors start
    last = np.flatnonzero(np.bincount(source, minlength=nodes) == 0)
    rows += [at + np.arange(len(last))] * 2
    cols += [start + last, np.full(len(last), start + nodes)]
    values += [np.ones(len(last)), -np.ones(len(last))]
    right.append(-p[last])
    return (np.concatenate(rows), np.concatenate(cols), np.concatenate(values)), np.concatenate(
        right
    )


def favourites(
    instance: Instance, delayed: NDArray[np.float64], threshold: float = THRESHOLD
) -> Ints:
    """The favourite child of each node, -1: none.

    Where rounding gives an op several, the last edge wins; a child taken by a second op is no
    longer the first one's.
    """
    child = np.full(len(instance.mean), -1, np.int64)
    parent = np.full(len(instance.mean), -1, np.int64)
    for (first, second), value in zip(instance.edges, delayed.tolist(), strict=True):
        if value <= threshold:
            child[first] = second
            if parent[second] >= 0:
                child[parent[second]] = -1
            parent[second] = first
    return child
