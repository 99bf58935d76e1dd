"""The contiguous max-load split, exact, by dynamic programming over ideals of blocks (Tarnawski et
al., NeurIPS 2020). ``placers.py`` calls it, also for the split with which the integer program
begins.

The loop over pairs of ideals is a kernel (``search.kernels.pairs``): a new rule of what an
accelerator may take goes there, and into ``MaxLoadProblem`` and both programs of ``placers.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import inf, isqrt
from typing import NamedTuple

import numpy as np

from ...ground.errors import InputError
from ...nouns.structure import before_of, components, topological
from ...nouns.taskgraph import Floats, Ints
from ..ideals import MOST, Due, bits, chain, ideals, leaves, nested, packed, table, unhurried
from ..kernels import Columns
from ..kernels.pairs import Pairs, fill
from .problem import MaxLoadProblem

ROUNDING = 1e-9  # relative: sums in another order
COARSE = 1000  # ideals of a linear order that are looked at first, where it has more
SLICE = 1 << 19  # pairs of ideals between two looks at the time
BYTES = 8  # of a word of bits
CHUNK = 1 << 23  # cells of a table of ideals and pins at a time

Net = tuple[tuple[int, ...], float]
"""The blocks that an op and its readers lie in, ascending, and its cost: paid by every device that
cuts it.
"""


@dataclass(frozen=True, eq=False)
class Blocks:
    """Groups that a contiguous split cannot part, in a topological order.

    ``block`` by group; ``on_accelerator``, ``on_cpu`` ms and ``size`` bytes by block; ``order``
    (earlier, later).
    """

    problem: MaxLoadProblem
    block: tuple[int, ...]
    on_accelerator: Floats
    on_cpu: Floats
    size: Ints
    order: frozenset[tuple[int, int]]

    @cached_property
    def nets(self) -> tuple[Net, ...]:
        """The nets of two blocks or more; those of the same blocks are added up."""
        return nets_of(self.problem, self.block)

    def devices(self, of_block: Sequence[int]) -> list[int]:
        """Devices by op, from devices by block."""
        return [of_block[self.block[group]] for group in self.problem.group]


def nets_of(problem: MaxLoadProblem, block: Sequence[int]) -> tuple[Net, ...]:
    """The nets between blocks (by group) that cost something."""
    costs: dict[tuple[int, ...], float] = {}
    for op, readers in enumerate(problem.readers):
        pins = tuple(sorted({block[problem.group[reader]] for reader in (op, *readers)}))
        if len(pins) > 1 and problem.cost[op]:
            costs[pins] = costs.get(pins, 0.0) + problem.cost[op]
    return tuple(sorted(costs.items()))


def blocks_of(problem: MaxLoadProblem) -> Blocks:
    """Groups on a cycle of the order become one block; blocks that cost nothing join their only
    neighbour.

    The latter changes no optimum where memory is slack: such a block takes no time, so it may
    always go where its one neighbour is: fewer nets are cut then. Where memory is limited, only
    those of no bytes join.
    """
    count = len(problem.members)
    tied = _tied(problem, np.array(components(count, problem.order)))
    block = components(count, {*problem.order, *tied})
    of_op = [block[group] for group in problem.group]
    columns = problem.on_accelerator, problem.on_cpu, problem.size
    accelerator, cpu, size = (np.bincount(of_op, column).astype(np.float64) for column in columns)
    order = frozenset((block[a], block[b]) for a, b in problem.order if block[a] != block[b])
    return Blocks(problem, tuple(block), accelerator, cpu, size.astype(np.int64), order)


def _tied(problem: MaxLoadProblem, block: Ints) -> list[tuple[int, int]]:
    """Pairs of groups, both ways: of each block without cost that has one neighbour, and of
    this.
    """
    cost = np.array(problem.on_accelerator) + (problem.on_cpu if problem.cpus else 0)
    if problem.capacity is not None and sum(problem.size) > problem.capacity:
        cost = cost + problem.size
    idle = np.bincount(block[list(problem.group)], cost > 0) == 0
    _, first = np.unique(block, return_index=True)
    near = {
        (problem.group[op], problem.group[reader])
        for op, readers in enumerate(problem.readers)
        for reader in readers
    }
    pairs = {(int(block[a]), int(block[b])) for a, b in {*near, *problem.order}}
    edges = leaves(idle.tolist(), sorted((a, b) for a, b in pairs if a != b))
    return [(int(first[a]), int(first[b])) for a, b in edges]


@dataclass(frozen=True, slots=True)
class Split:
    """Devices by op, the largest load in ms, over how many ideals, and whether that is the
    optimum.
    """

    devices: tuple[int, ...]
    max_load_ms: float
    ideals: int
    exact: bool


def splits(blocks: Blocks, most: int = MOST, due: Due = unhurried) -> Iterator[Split]:
    """Contiguous splits, each no worse than the one before; the last is the best.

    First some ideals of a linear order, then all of these, then all there are; each answer bounds
    the loads at which the next program has to look. Where there are more than ``most`` ideals,
    those of the linear order are all. ``due`` is called all the time, and may raise. Raises
    InputError where no split fits into the memory of the accelerators.
    """
    order = topological(before_of(len(blocks.size), blocks.order), "branch")
    line, limit, any_split, exact = chain(order), inf, False, False
    for sets, exact in _sets(blocks, line, most, due):
        solved = _solved(blocks, sets, limit, due)
        if solved is not None:
            limit, devices, any_split = solved[0], blocks.devices(solved[1]), True
            load = max(blocks.problem.loads(devices).values(), default=0.0)
            yield Split(tuple(devices), load, len(sets), exact)
    if not any_split:
        looked = f" (of one linear order: there are more than {most} ideals, so others may)"
        raise InputError(
            "max-load: no contiguous split runs on these devices and fits into the memory of the "
            f"accelerators{'' if exact else looked}"
        )


def _sets(
    blocks: Blocks, line: Sequence[int], most: int, due: Due
) -> Iterator[tuple[Sequence[int], bool]]:
    """Ideals to split along, subsets first, and whether these are all."""
    if len(line) > COARSE:
        yield [*line[: -1 : -(-len(line) // COARSE)], line[-1]], False
    yield line, False
    every = ideals(len(blocks.size), blocks.order, most, due)
    if every is not None:
        yield every, True


def _solved(
    blocks: Blocks, sets: Sequence[int], limit: float, due: Due
) -> tuple[float, list[int]] | None:
    """The least largest load, and devices by block; None where nothing fits."""
    columns = Columns(pairs_of(blocks, sets, limit * (1 + ROUNDING), due))
    done = 0
    while done < len(sets):
        due()
        end = min(isqrt(done**2 + 2 * SLICE) + 1, len(sets))
        fill(columns.handle, done, end)
        done = end
    value = float(columns.array("best")[-1])
    return None if value == inf else (value, _devices(blocks, sets, columns))


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


class _Held(NamedTuple):
    """The contents of ideals: ``sums`` by ideal and column, ``size`` by ideal.

    By ideal and net open at it: these two, and how many of the net's blocks it is ``holding``.
    """

    sums: Floats
    size: Ints
    ideal: Ints
    net: Ints
    holding: Ints


def pairs_of(blocks: Blocks, sets: Sequence[int], limit: float, due: Due) -> Pairs:
    """The columns of the kernel for ideals of which subsets come first."""
    problem, in_a_row = blocks.problem, nested(sets)
    words = 0 if in_a_row else -(-len(blocks.size) // (8 * BYTES))
    held = _of_row(blocks, sets) if in_a_row else _of_any(blocks, sets, due)
    cost = np.array([cost for _, cost in blocks.nets], np.float64)
    states = (len(problem.cpus) + 1) * (len(problem.accelerators) + 1) * len(sets)
    best = np.full(states, inf)
    best[:: len(sets)] = 0.0  # nothing is done yet
    return Pairs(
        ideals=len(sets),
        words=words,
        accelerators=len(problem.accelerators),
        cpus=len(problem.cpus),
        capacity=-1 if problem.capacity is None else problem.capacity,
        member=packed(sets, words * BYTES).view("<i8").reshape(-1).astype(np.int64),
        on_accelerator=held.sums[:, 0].copy(),
        on_cpu=held.sums[:, 1].copy(),
        size=held.size,
        not_accelerator=held.sums[:, 2].astype(np.int64),
        not_cpu=held.sums[:, 3].astype(np.int64),
        open_ptr=np.searchsorted(held.ideal, np.arange(len(sets) + 1)).astype(np.int64),
        open_net=held.net,
        open_count=held.holding,
        open_cost=np.bincount(held.ideal, cost[held.net], len(sets)).astype(np.float64),
        cost=cost,
        limit=np.array([limit]),
        best=best,
        before=np.full(states, -1, np.int64),
        last=np.zeros(states, np.int64),
    )


def _columns(blocks: Blocks) -> Floats:
    """By block: ms on either kind (0 where it cannot run: inf has no differences), and where it
    cannot run.
    """
    times = np.column_stack([blocks.on_accelerator, blocks.on_cpu])
    return np.hstack([np.where(np.isinf(times), 0.0, times), np.isinf(times)])


def _of_row(blocks: Blocks, sets: Sequence[int]) -> _Held:
    """For nested sets, all is told by the set with which each block comes in."""
    enters = np.zeros(len(blocks.size), np.int64)
    for at, (small, large) in enumerate(pairwise(sets)):
        enters[bits(large & ~small)] = at + 1
    order = np.argsort(enters, kind="stable")
    upto = np.searchsorted(enters[order], np.arange(len(sets)), "right")
    sums, size = (
        np.concatenate([np.zeros_like(column[:1]), np.cumsum(column[order], axis=0)])[upto]
        for column in (_columns(blocks), blocks.size)
    )
    spans, counts = [], []
    for pins, _ in blocks.nets:
        inside = np.sort(enters[list(pins)])
        spans.append(np.arange(inside[0], inside[-1]))
        counts.append(np.searchsorted(inside, spans[-1], "right"))
    ideal, count = (np.concatenate([np.zeros(0, np.int64), *column]) for column in (spans, counts))
    net = np.repeat(np.arange(len(spans)), [len(column) for column in spans])
    by_ideal = np.argsort(ideal, kind="stable")
    return _Held(sums, size, ideal[by_ideal], net[by_ideal], count[by_ideal].astype(np.int64))


def _of_any(blocks: Blocks, sets: Sequence[int], due: Due) -> _Held:
    """For any sets, some at a time: a table of sets and blocks."""
    pins = np.array([block for net, _ in blocks.nets for block in net], np.int64)
    lengths = np.array([len(net) for net, _ in blocks.nets], np.int64)
    columns, sizes = _columns(blocks), blocks.size
    tables = []
    step = max(CHUNK // max(len(pins), len(sizes), 1), 1)
    for begin in range(0, len(sets), step):
        due()
        holds = table(sets[begin : begin + step], len(sizes))
        counts = np.add.reduceat(
            holds[:, pins], np.cumsum(lengths) - lengths, axis=1, dtype=np.int64
        )
        row, net = np.nonzero((counts > 0) & (counts < lengths))
        tables.append(_Held(holds @ columns, holds @ sizes, row + begin, net, counts[row, net]))
    return _Held(*(np.concatenate(parts) for parts in zip(*tables, strict=True)))
