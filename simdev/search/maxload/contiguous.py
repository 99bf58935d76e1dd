"""The contiguous max-load split, exact, by dynamic programming over ideals (Tarnawski et al., NeurIPS 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isinf

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ...taskgraph import Ints, Rows
from ..ideals import MOST, bits, chain, depth_first, ideals
from ..kernels.compiling import Columns
from ..kernels.pairs import Pairs, solve
from .blocks import Blocks

WORD = 62
ROUNDING = 1e-9  # relative: sums in another order


@dataclass(frozen=True, slots=True)
class Split:
    """Devices by op, the largest load in ms, over how many ideals, and whether that is the optimum."""

    devices: tuple[int, ...]
    max_load_ms: float
    ideals: int
    exact: bool


def contiguous(blocks: Blocks, most: int = MOST) -> Split:
    """The best contiguous split. Where there are more than ``most`` ideals, those of one linear order are taken.

    First the linear order, whose answer bounds the loads that the exact program has to look at. Raises InputError
    where no split fits into the memory of the accelerators.
    """
    count = len(blocks.size)
    linear = _solved(blocks, chain(depth_first(count, blocks.order)), inf)
    every = ideals(count, blocks.order, most)
    found = linear if every is None else _solved(blocks, every, inf if linear is None else linear[0])
    if found is None:
        raise InputError(
            "max-load: no contiguous split runs on these devices and fits into the memory of the accelerators"
        )
    devices = blocks.devices(found[1])
    load = max(blocks.problem.loads(devices).values(), default=0.0)
    return Split(tuple(devices), load, count + 1 if every is None else len(every), every is not None)


def _solved(blocks: Blocks, sets: Sequence[int], limit: float) -> tuple[float, list[int]] | None:
    """The least largest load, and devices by block; None where nothing fits."""
    row = _pairs(blocks, sets, limit * (1 + ROUNDING) if limit < inf else inf)
    columns = Columns(row)
    value = float(solve(columns.handle))
    if value == inf:
        return None
    before, last = columns.array("before").tolist(), columns.array("last").tolist()
    problem, order = blocks.problem, _sorted(blocks, sets)
    of_block, ideal = [-1] * len(blocks.size), len(order) - 1
    free = {0: list(problem.accelerators), 1: list(problem.cpus)}
    used = [len(problem.accelerators), len(problem.cpus)]
    while ideal:
        at = (used[1] * (len(problem.accelerators) + 1) + used[0]) * len(order) + ideal
        kind = last[at]
        used[kind] -= 1
        if before[at] >= 0:
            device = free[kind].pop()
            for block in bits(order[ideal] & ~order[before[at]]):
                of_block[block] = device
            ideal = before[at]
    return value, of_block


def _sorted(blocks: Blocks, sets: Sequence[int]) -> list[int]:
    """Subsets first."""
    return sorted(sets, key=lambda one: (one.bit_count(), one))


def _pairs(blocks: Blocks, sets: Sequence[int], limit: float) -> Pairs:
    """The columns of the kernel."""
    problem, order = blocks.problem, _sorted(blocks, sets)
    words = max(-(-len(blocks.size) // WORD), 1)
    holds = np.array([[one >> block & 1 for block in range(len(blocks.size))] for one in order], np.int64)
    pins = [np.array(net, np.int64) for net, _ in blocks.nets]
    cost = np.array([cost for _, cost in blocks.nets], np.float64)
    counts = np.array([holds[:, one].sum(axis=1) for one in pins], np.int64).reshape(len(pins), len(order)).T
    is_open = (counts > 0) & (counts < np.array([len(one) for one in pins], np.int64))
    rows = Rows.of(np.flatnonzero(row).tolist() for row in is_open)
    states = (len(problem.cpus) + 1) * (len(problem.accelerators) + 1) * len(order)
    best = np.full(states, inf)
    best[:: len(order)] = 0.0  # nothing is done yet
    mask = (1 << WORD) - 1
    return Pairs(
        ideals=len(order),
        words=words,
        accelerators=len(problem.accelerators),
        cpus=len(problem.cpus),
        capacity=-1 if problem.capacity is None else problem.capacity,
        member=np.array([one >> WORD * w & mask for one in order for w in range(words)], np.int64),
        on_accelerator=_summed(holds, blocks.on_accelerator),
        on_cpu=_summed(holds, blocks.on_cpu),
        size=holds @ np.array(blocks.size, np.int64),
        not_accelerator=holds @ np.isinf(blocks.on_accelerator).astype(np.int64),
        not_cpu=holds @ np.isinf(blocks.on_cpu).astype(np.int64),
        open_ptr=rows.ptr,
        open_net=rows.ids,
        open_count=counts[is_open],
        open_cost=is_open @ cost if len(cost) else np.zeros(len(order)),
        cost=cost,
        limit=np.array([limit]),
        best=best,
        before=np.full(states, -1, np.int64),
        last=np.zeros(states, np.int64),
    )


def _summed(holds: Ints, times: Sequence[float]) -> NDArray[np.float64]:
    """Times of each ideal; inf counts as 0, for it has no differences."""
    finite = np.array([0.0 if isinf(one) else one for one in times], np.float64)
    found: NDArray[np.float64] = holds.astype(np.float64) @ finite
    return found
