"""What Tofu was compared with (EuroSys 2019, section 7.3), as far as the paper describes it, in its
own cost model.

- ``allrow-greedy``: every tensor is cut along its first dimension among all workers, every op takes
  the best axis then.
- ``spartan``: tensors are decided one after the other, the largest first, each along the one
  dimension that is best for the ops around it (Huang et al., Spartan, ATC 2015).
- ``equal-chop``: as Tofu, but in one step: every tensor along one dimension among all workers.
- ``icml18``: tensors along several dimensions, as OptCNN cuts them: no forward op is cut along an
  axis that it reduces, where it has another. The paper decides all in one step; that takes longer
  and finds the same.

A tensor none of whose dimensions divides evenly is cut unevenly where it has the extent, as cost
only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ...semantics import steps
from ..elimination import Floats, Solved, minimise, total
from .coarse import Coarse
from .plan import Level, TofuPlan, planned, recursive


def allrow_greedy(coarse: Coarse, workers: int) -> TofuPlan:
    """First dimensions."""
    return planned(
        coarse, (workers,), lambda level: _best_axes(level, [0] * len(level.dimensions)), even=False
    )


def spartan(coarse: Coarse, workers: int) -> TofuPlan:
    """The largest tensors first."""
    return planned(coarse, (workers,), _largest_first, even=False)


def equal_chop(coarse: Coarse, workers: int) -> TofuPlan:
    """One dimension for all workers, the best of all such."""
    return planned(coarse, (workers,), lambda level: minimise(level.sizes, level.terms), even=False)


def icml18(coarse: Coarse, workers: int) -> TofuPlan:
    """No partial results of forward ops."""
    return planned(
        coarse, steps(workers), lambda level: minimise(level.sizes, level.terms), reduce=False
    )


BASELINES: Mapping[str, Callable[[Coarse, int], TofuPlan]] = {
    "allrow-greedy": allrow_greedy,
    "spartan": spartan,
    "equal-chop": equal_chop,
    "icml18": icml18,
}


def communication(coarse: Coarse, workers: int) -> dict[str, float]:
    """Bytes over all workers of each of these, and of ``tofu``."""
    sent = {name: plan(coarse, workers).communication for name, plan in BASELINES.items()}
    return sent | {"tofu": recursive(coarse, workers).communication}


def _by_chooser(level: Level) -> dict[int, list[tuple[int, Floats]]]:
    """The tensors around each chooser, with the bytes by dimension and axis."""
    around: dict[int, list[tuple[int, Floats]]] = {}
    for term in level.terms:
        tensor, chooser = term.variables
        around.setdefault(chooser, []).append((tensor, term.table))
    return around


def _best_axes(level: Level, dimensions: list[int]) -> Solved:
    """Each chooser's best axis where the dimensions of tensors are given (as positions among those
    they may take).
    """
    axes = [0] * (len(level.sizes) - len(dimensions))
    for chooser, around in _by_chooser(level).items():
        sums = np.sum([table[dimensions[tensor]] for tensor, table in around], axis=0)
        axes[chooser - len(dimensions)] = int(sums.argmin())
    values = (*dimensions, *axes)
    return Solved(values, total(level.terms, values), 0, False)


def _largest_first(level: Level) -> Solved:
    around: dict[int, list[tuple[int, Floats]]] = {}
    for chooser, tables in _by_chooser(level).items():
        for tensor, table in tables:
            around.setdefault(tensor, []).append((chooser, table))
    known = {at: np.zeros(size) for at, size in enumerate(level.sizes)}
    sizes = [int(np.prod(shape)) for shape in level.shapes]
    dimensions = [0] * len(level.dimensions)
    for tensor in sorted(range(len(dimensions)), key=lambda tensor: (-sizes[tensor], tensor)):
        near = around.get(tensor, [])
        costs = np.sum(
            [(known[chooser] + table).min(axis=1) for chooser, table in near] or [[0.0]], axis=0
        )
        dimensions[tensor] = int(costs.argmin())
        for chooser, table in near:
            known[chooser] = known[chooser] + table[dimensions[tensor]]
    return _best_axes(level, dimensions)
