"""The contiguous max-load split, exact, by dynamic programming over ideals (Tarnawski et al.,
NeurIPS 2020).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf, isqrt

from ...errors import InputError
from ...structure import before_of, topological
from ..ideals import MOST, bits, chain, ideals, unhurried
from ..kernels.compiling import Columns
from ..kernels.pairs import fill
from .blocks import Blocks
from .pairing import pairs_of

ROUNDING = 1e-9  # relative: sums in another order
COARSE = 1000  # ideals of a linear order that are looked at first, where it has more
SLICE = 1 << 19  # pairs of ideals between two looks at the time


@dataclass(frozen=True, slots=True)
class Split:
    """Devices by op, the largest load in ms, over how many ideals, and whether that is the
    optimum.
    """

    devices: tuple[int, ...]
    max_load_ms: float
    ideals: int
    exact: bool


def contiguous(blocks: Blocks, most: int = MOST) -> Split:
    """The best contiguous split.

    Where there are more than ``most`` ideals, those of one linear order are taken.

    Raises InputError where no split fits into the memory of the accelerators.
    """
    *_, last = splits(blocks, most)
    return last


def splits(
    blocks: Blocks, most: int = MOST, due: Callable[[], object] = unhurried
) -> Iterator[Split]:
    """Splits on the way to that of ``contiguous``, which is the last, each no worse than the one
    before.

    First some ideals of a linear order, then all of these, then all there are; each answer bounds
    the loads at which the next program has to look. ``due`` is called all the time, and may raise.
    Raises InputError like ``contiguous``.
    """
    order = topological(before_of(len(blocks.size), blocks.order), "branch")
    line, limit, found, exact = chain(order), inf, False, False
    for sets, exact in _sets(blocks, line, most, due):
        solved = _solved(blocks, sets, limit, due)
        if solved is not None:
            limit, devices, found = solved[0], blocks.devices(solved[1]), True
            load = max(blocks.problem.loads(devices).values(), default=0.0)
            yield Split(tuple(devices), load, len(sets), exact)
    if not found:
        looked = (
            ""
            if exact
            else f" (of one linear order: there are more than {most} ideals, so others may)"
        )
        raise InputError(
            (
                "max-load: no contiguous split runs on these devices and fits into the "
                "memory of the accelerators"
            )
            + looked
        )


def _sets(
    blocks: Blocks, line: Sequence[int], most: int, due: Callable[[], object]
) -> Iterator[tuple[Sequence[int], bool]]:
    """Ideals to split along, subsets first, and whether these are all."""
    if len(line) > COARSE:
        yield [*line[: -1 : -(-len(line) // COARSE)], line[-1]], False
    yield line, False
    every = ideals(len(blocks.size), blocks.order, most, due)
    if every is not None:
        yield every, True


def _solved(
    blocks: Blocks, sets: Sequence[int], limit: float, due: Callable[[], object]
) -> tuple[float, list[int]] | None:
    """The least largest load, and devices by block; None where nothing fits."""
    columns = Columns(pairs_of(blocks, sets, limit * (1 + ROUNDING) if limit < inf else inf, due))
    done = 0
    while done < len(sets):
        due()
        end = min(isqrt(done**2 + 2 * SLICE) + 1, len(sets))
        fill(columns.handle, done, end)
        done = end
    value = float(columns.array("best")[-1])
    if value == inf:
        return None
    return value, _devices(blocks, sets, columns)


def _devices(blocks: Blocks, sets: Sequence[int], columns: Columns) -> list[int]:
    """Devices by block, told from the last set backwards."""
    before, last = columns.array("before").tolist(), columns.array("last").tolist()
    problem, of_block, ideal = blocks.problem, [-1] * len(blocks.size), len(sets) - 1
    free = {0: list(problem.accelerators), 1: list(problem.cpus)}
    used = [len(problem.accelerators), len(problem.cpus)]
    while ideal:
        at = (used[1] * (len(problem.accelerators) + 1) + used[0]) * len(sets) + ideal
        kind = last[at]
        used[kind] -= 1
        if before[at] >= 0:
            device = free[kind].pop()
            for block in bits(sets[ideal] & ~sets[before[at]]):
                of_block[block] = device
            ideal = before[at]
    return of_block
