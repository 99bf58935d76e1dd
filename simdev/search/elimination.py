"""Minimising a sum of tables over shared variables: elimination of one variable after another.

OptCNN's node and edge elimination (Jia et al., ICML 2018, section 5) is the case of tables over
pairs: to eliminate a node with two edges joins its neighbours by one table, and two tables over one
pair are added. Variables with more neighbours are eliminated too while the tables stay small, which
is exact. Where variables remain, a beam search chooses their values.

OptCNN (``soap/optcnn.py``) and Tofu (``tofu/plan.py``) call ``minimise``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import prod

import numpy as np

from ..nouns.taskgraph import Floats, Ints

MOST = 4_000_000  # entries of a table that elimination may make
BEAM = 2000  # partial choices that the beam keeps


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """A table of costs over some variables, one axis each; no variable twice."""

    variables: tuple[int, ...]
    table: Floats


@dataclass(frozen=True, slots=True)
class Solved:
    """A value for each variable, and the total cost.

    ``left`` is the number of variables after elimination of nodes with at most two neighbours (K of
    the paper); ``exact`` is False where a beam search chose values.
    """

    values: tuple[int, ...]
    cost: float
    left: int
    exact: bool


def minimise(sizes: Sequence[int], terms: Sequence[Term], most: int = MOST) -> Solved:
    """The values in ``range(sizes[v])`` of least total cost.

    On a tie each variable takes, when it is eliminated, the smallest of its values that are best
    given the others: the result need not be the lexicographically first optimum.

    No table of more than ``most`` entries is made. Raises ValueError where a variable has no value.
    """
    if any(size < 1 for size in sizes):
        raise ValueError("a variable has no value to choose")
    elimination = _Elimination(sizes, terms, most)
    left = elimination.eliminate(2)
    elimination.eliminate(len(sizes))
    exact = not elimination.near
    values = elimination.beam() if elimination.near else {}
    values = elimination.undo(values)
    chosen = tuple(values[v] for v in range(len(sizes)))
    return Solved(chosen, total(terms, chosen), left, exact)


def total(terms: Sequence[Term], values: Sequence[int]) -> float:
    """The total cost of a choice of values."""
    return float(sum(float(term.table[tuple(values[v] for v in term.variables)]) for term in terms))


class _Elimination:
    """The terms and variables that are left, the neighbours of each variable, and for each
    eliminated variable the table of its best values.
    """

    def __init__(self, sizes: Sequence[int], terms: Sequence[Term], most: int) -> None:
        self.sizes, self.most = sizes, most
        self.terms: dict[int, set[tuple[int, ...]]] = {v: set() for v in range(len(sizes))}
        self.tables: dict[tuple[int, ...], Floats] = {}
        self.near: dict[int, set[int]] = {v: set() for v in range(len(sizes))}
        self._undo: list[tuple[int, tuple[int, ...], Ints]] = []
        for term in terms:
            self._add(term.variables, term.table)

    def _add(self, variables: tuple[int, ...], table: Floats) -> None:
        """Add a table to the one over the same variables (edge elimination)."""
        order = tuple(sorted(variables))
        table = np.transpose(table, [variables.index(v) for v in order])
        self.tables[order] = self.tables[order] + table if order in self.tables else table
        for v in order:
            self.terms[v].add(order)
            self.near[v] |= set(order) - {v}

    def eliminate(self, degree: int) -> int:
        """Eliminate variables with at most ``degree`` neighbours while tables stay small; returns
        the number of variables left.

        The variable that makes the smallest table goes first, on a tie the one with the lowest
        number.
        """
        waiting = [(self._size(v), v) for v in self.near]
        heapify(waiting)
        while waiting:
            size, v = heappop(waiting)
            if (
                v not in self.near
                or size != self._size(v)
                or len(self.near[v]) > degree
                or size > self.most
            ):
                continue
            for neighbour in self._remove(v):
                heappush(waiting, (self._size(neighbour), neighbour))
        return len(self.near)

    def _size(self, v: int) -> int:
        return prod((self.sizes[neighbour] for neighbour in self.near[v]), start=self.sizes[v])

    def _remove(self, v: int) -> tuple[int, ...]:
        """Eliminate a variable (node elimination): its terms are added, and minimised over its
        values. Returns its neighbours.
        """
        scope, axes = tuple(sorted(self.near[v])), tuple(sorted((*self.near[v], v)))
        table, axis = np.zeros([self.sizes[other] for other in axes]), axes.index(v)
        for key in sorted(self.terms[v]):
            missing = [at for at, other in enumerate(axes) if other not in key]
            table += np.expand_dims(self.tables.pop(key), missing)
            for other in set(key) - {v}:
                self.terms[other].discard(key)
        self._undo.append((v, scope, table.argmin(axis=axis)))
        del self.near[v], self.terms[v]
        for other in scope:
            self.near[other].discard(v)
        if scope:
            self._add(scope, table.min(axis=axis))
        return scope

    def undo(self, values: Mapping[int, int]) -> dict[int, int]:
        """The values of all variables, from the values of the variables that were not
        eliminated.
        """
        chosen = dict(values)
        for v, scope, best in reversed(self._undo):
            chosen[v] = int(best[tuple(chosen[variable] for variable in scope)])
        return chosen

    def beam(self) -> dict[int, int]:
        """Values of the variables that are left: each is added in turn, and the BEAM best partial
        choices are kept.
        """
        order = list(self._connected())
        place = {v: at for at, v in enumerate(order)}
        partial, costs = np.zeros((1, 0), np.int64), np.zeros(1)
        for at, v in enumerate(order):
            count = self.sizes[v]
            partial = np.column_stack(
                [np.repeat(partial, count, axis=0), np.tile(np.arange(count), len(partial))]
            )
            costs = np.repeat(costs, count)
            for key in sorted(self.terms[v]):
                if all(place[other] <= at for other in key):
                    costs = (
                        costs + self.tables[key][tuple(partial[:, place[other]] for other in key)]
                    )
            kept = np.argsort(costs, kind="stable")[:BEAM]
            partial, costs = partial[kept], costs[kept]
        return dict(zip(order, partial[0].tolist(), strict=True))

    def _connected(self) -> Iterator[int]:
        """The variables that are left, each a neighbour of an earlier one where possible."""
        left, front = set(self.near), set[int]()
        while left:
            v = min(front & left or left)
            left.discard(v)
            front |= self.near[v]
            yield v
