"""The linear program of m-SCT: which successor of each op should follow it at once, on the same
device.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from ...nouns.taskgraph import Floats, Ints
from ..instance import Instance
from ..solver import attended, scipy

# an edge whose variable is at most this is to a favourite child (Baechi's released setting)
THRESHOLD = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class Relaxed:
    """The optimum of the relaxed program: ``delayed`` by edge (0: favourite child), and its
    makespan in ps.

    ``solved`` is false where the solver ran out of time: then there are no favourites.
    """

    delayed: Floats
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
    optimize, sparse = scipy("m-sct needs")
    edges = np.array(instance.edges, np.int64).reshape(-1, 2)
    unit = max(float(instance.mean.sum()), 1.0)
    columns = len(edges) + len(instance.mean) + 1
    (rows, cols, values), right = _constraints(edges, instance.mean / unit, instance.edge_ps / unit)
    matrix = sparse.csr_matrix((values, (rows, cols)), shape=(len(right), columns))
    objective, limits = np.zeros(columns), np.zeros((columns, 2))
    objective[-1] = 1.0
    limits[:, 1] = np.inf
    limits[: len(edges), 1] = 1.0
    options = {} if seconds is None else {"time_limit": seconds}
    optimum = attended(
        lambda: optimize.linprog(
            objective, matrix, right, bounds=limits, method="highs-ds", options=options
        ),
        inf if seconds is None else seconds,
    )
    if optimum is None or optimum.x is None:
        return Relaxed(np.ones(len(edges)), float("nan"), False)
    return Relaxed(optimum.x[: len(edges)], float(optimum.fun) * unit)


def _constraints(edges: Ints, p: Floats, c: Floats) -> tuple[tuple[Any, Any, Any], Any]:
    """(row, column, value) of the left sides, and the right sides of ``<=``.

    ``p`` are the times of nodes, ``c`` those of edges.
    """
    count, nodes = len(edges), len(p)
    each, (source, end) = np.arange(count), edges.T
    starts = count + np.arange(nodes)  # the columns of the nodes, after those of the edges
    rows, cols = [each, each, each], [starts[source], starts[end], each]
    values, right, at = [np.ones(count), -np.ones(count), c], [-p[source]], count
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
    # Only sinks bound the makespan: the others end before their successors start.
    last = np.setdiff1d(np.arange(nodes), source)
    rows += [at + np.arange(len(last))] * 2
    cols += [starts[last], np.full(len(last), count + nodes)]
    values += [np.ones(len(last)), -np.ones(len(last))]
    right.append(-p[last])
    return (np.concatenate(rows), np.concatenate(cols), np.concatenate(values)), np.concatenate(
        right
    )


def favourites(instance: Instance, delayed: Floats) -> Ints:
    """The favourite child of each node, -1: none.

    Where rounding gives an op several, the last edge wins; a child taken by a second op is no
    longer the first one's.
    """
    child = np.full(len(instance.mean), -1, np.int64)
    parent = np.full(len(instance.mean), -1, np.int64)
    for (first, second), value in zip(instance.edges, delayed.tolist(), strict=True):
        if value <= THRESHOLD:
            child[first] = second
            if parent[second] >= 0:
                child[parent[second]] = -1
            parent[second] = first
    return child
