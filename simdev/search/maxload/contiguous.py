"""The contiguous max-load split, exact, by dynamic programming over ideals of blocks (Tarnawski et
al., NeurIPS 2020).

A *block* is a set of groups of ops that one device takes. An *ideal* is a set of blocks that can
have run at some moment: it contains all predecessors of its members. A contiguous split is a chain
of ideals, from the empty one to all blocks; a device takes the blocks between two of them. A *net*
is the blocks that an op and its readers lie in; it costs each accelerator that has some of them but
not all. A net is *open* at an ideal that has some of its blocks but not all.

The dynamic program has a state for each number of CPUs used, number of accelerators used, and
ideal: the least largest load with which these devices take this ideal. ``pairs_of`` lays the states
out, the compiled kernel (``simdev/search/kernels/pairs.py``) fills them in a loop over pairs of
ideals, and ``_devices`` reads the split back.

``simdev/search/maxload/placers.py`` calls ``splits`` twice, for the method "dnn-contiguous" and for
the split with which the integer program of "dnn-ip" begins. The rules of a device's load and
memory are repeated in ``MaxLoadProblem`` and the greedy ``filled`` (``problem.py``), in the integer
programs of "dnn-ip" and "dnn-latency" (``placers.py``, where ``_within_memory`` solves again
without the limit if nothing fits) and in the kernel: a new rule of what an accelerator may take
goes into all of these, and into ``_tied``, which joins blocks where that changes no optimum.
``problem_of`` refuses accelerators that differ; the memory of CPUs is not limited. Tests:
``tests/search/test_placers_partition.py``, ``test_placers_latency.py`` and
``test_placers_planners.py``, against enumeration (``tests/search/enumerated.py``).
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
COARSE = 1000  # ideals of a linear order in the first run, where the order has more
SLICE = 1 << 19  # pairs of ideals between two calls of ``due``
BYTES = 8  # of a word of bits
CHUNK = 1 << 23  # cells of a table of ideals and of the blocks of nets, at a time

Net = tuple[tuple[int, ...], float]
"""The blocks that an op and its readers lie in, ascending, and the cost in ms for each accelerator
that has some of these blocks but not all.
"""


@dataclass(frozen=True, eq=False)
class Blocks:
    """The blocks of a problem, numbered.

    ``block`` is the number of each group's block; ``on_accelerator`` and ``on_cpu`` are ms and
    ``size`` bytes by block; ``order`` holds pairs of blocks (earlier, later).
    """

    problem: MaxLoadProblem
    block: tuple[int, ...]
    on_accelerator: Floats
    on_cpu: Floats
    size: Ints
    order: frozenset[tuple[int, int]]

    @cached_property
    def nets(self) -> tuple[Net, ...]:
        """The nets of two blocks or more, one for each set of blocks, with the sum of its costs."""
        return nets_of(self.problem, self.block)

    def devices(self, of_block: Sequence[int]) -> list[int]:
        """Devices by op, from devices by block."""
        return [of_block[self.block[group]] for group in self.problem.group]


def nets_of(problem: MaxLoadProblem, block: Sequence[int]) -> tuple[Net, ...]:
    """The nets of two blocks or more that cost something; ``block`` is the block of each group."""
    costs: dict[tuple[int, ...], float] = {}
    for op, readers in enumerate(problem.readers):
        pins = tuple(sorted({block[problem.group[reader]] for reader in (op, *readers)}))
        if len(pins) > 1 and problem.cost[op]:
            costs[pins] = costs.get(pins, 0.0) + problem.cost[op]
    return tuple(sorted(costs.items()))


def blocks_of(problem: MaxLoadProblem) -> Blocks:
    """The blocks of a problem: groups on a cycle of the order are one block, and a block without
    cost is joined with its neighbour where it has only one.

    Such a join changes no optimum: the block takes no time, so it can move to its neighbour's
    device, where fewer nets are cut. Where memory may not suffice, only blocks of 0 bytes are
    joined.
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
    """Pairs of groups to join, in both directions: a group of each block that has no cost and one
    neighbour, and a group of the neighbour.
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
    """A contiguous split: devices by op, and the largest load in ms.

    ``ideals`` is the number of ideals that were tried; ``exact``: these were all ideals, so that no
    contiguous split has a lower load.
    """

    devices: tuple[int, ...]
    max_load_ms: float
    ideals: int
    exact: bool


def splits(blocks: Blocks, most: int = MOST, due: Due = unhurried) -> Iterator[Split]:
    """Contiguous splits, each no worse than the one before; the last is the best.

    The dynamic program runs up to three times: over some ideals of a linear order of the blocks,
    over all ideals of this order, and over all ideals. The load of each answer is an upper bound
    for the next run. Where there are more than ``most`` ideals the last run is left out. ``due`` is
    called again and again, and may raise. Raises InputError where no split runs on the devices and
    fits into the memory of the accelerators.
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
        tried = (
            " (only splits along one order of the ops were tried, for there are more than "
            f"{most} places to cut in other orders: another split may fit)"
        )
        raise InputError(
            "max-load: no contiguous split runs on these devices and fits into the memory of the "
            f"accelerators{'' if exact else tried}"
        )


def _sets(
    blocks: Blocks, line: Sequence[int], most: int, due: Due
) -> Iterator[tuple[Sequence[int], bool]]:
    """For each run of the program, its ideals (subsets first) and whether these are all ideals."""
    if len(line) > COARSE:
        yield [*line[: -1 : -(-len(line) // COARSE)], line[-1]], False
    yield line, False
    every = ideals(len(blocks.size), blocks.order, most, due)
    if every is not None:
        yield every, True


def _solved(
    blocks: Blocks, sets: Sequence[int], limit: float, due: Due
) -> tuple[float, list[int]] | None:
    """The least largest load in ms, and devices by block; None where no split has a load up to
    ``limit`` ms and fits.
    """
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
    """Devices by block, read from the last ideal back to the empty one."""
    problem, of_block, ideal = blocks.problem, [-1] * len(blocks.size), len(sets) - 1
    shape = _states(problem, sets)
    before, last = (columns.array(name).reshape(shape).tolist() for name in ("before", "last"))
    free = {0: list(problem.accelerators), 1: list(problem.cpus)}
    used = [len(problem.accelerators), len(problem.cpus)]
    while ideal:
        state = used[1], used[0], ideal
        kind, small = (column[state[0]][state[1]][state[2]] for column in (last, before))
        used[kind] -= 1
        if small >= 0:
            device = free[kind].pop()
            for block in bits(sets[ideal] & ~sets[small]):
                of_block[block] = device
            ideal = small
    return of_block


def _states(problem: MaxLoadProblem, sets: Sequence[int]) -> tuple[int, int, int]:
    """The shape of the states, row by row: by CPUs used, accelerators used, and ideal.

    ``state`` of the kernel indexes the same array flat.
    """
    return len(problem.cpus) + 1, len(problem.accelerators) + 1, len(sets)


class _Held(NamedTuple):
    """The contents of each ideal: ``sums`` of ``_columns`` by ideal and column, ``size`` bytes by
    ideal.

    ``ideal``, ``net`` and ``holding`` have an entry for each ideal and each net open at it,
    ascending: ``holding`` is the number of the net's blocks in the ideal.
    """

    sums: Floats
    size: Ints
    ideal: Ints
    net: Ints
    holding: Ints


def pairs_of(blocks: Blocks, sets: Sequence[int], limit: float, due: Due) -> Pairs:
    """The kernel's columns for ideals (subsets first) and for loads up to ``limit`` ms."""
    problem, in_a_row = blocks.problem, nested(sets)
    words = 0 if in_a_row else -(-len(blocks.size) // (8 * BYTES))
    held = _of_row(blocks, sets) if in_a_row else _of_any(blocks, sets, due)
    cost = np.array([cost for _, cost in blocks.nets], np.float64)
    on_accelerator, on_cpu, not_accelerator, not_cpu = held.sums.T  # as _columns has them
    best = np.full(_states(problem, sets), inf)
    best[:, :, 0] = 0.0  # the empty ideal: nothing has run yet
    return Pairs(
        ideals=len(sets),
        words=words,
        accelerators=len(problem.accelerators),
        cpus=len(problem.cpus),
        capacity=-1 if problem.capacity is None else problem.capacity,
        member=packed(sets, words * BYTES).view("<i8").reshape(-1).astype(np.int64),
        on_accelerator=on_accelerator.copy(),
        on_cpu=on_cpu.copy(),
        size=held.size,
        not_accelerator=not_accelerator.astype(np.int64),
        not_cpu=not_cpu.astype(np.int64),
        open_ptr=np.searchsorted(held.ideal, np.arange(len(sets) + 1)).astype(np.int64),
        open_net=held.net,
        open_count=held.holding,
        open_cost=np.bincount(held.ideal, cost[held.net], len(sets)).astype(np.float64),
        cost=cost,
        limit=np.array([limit]),
        best=best.ravel(),
        before=np.full(best.size, -1, np.int64),
        last=np.zeros(best.size, np.int64),
    )


def _columns(blocks: Blocks) -> Floats:
    """Four columns by block: ms on an accelerator and on a CPU, and 1 where the block cannot run on
    an accelerator or on a CPU, else 0.

    The ms are 0 where a block cannot run, since sums with inf could not be subtracted.
    """
    times = np.column_stack([blocks.on_accelerator, blocks.on_cpu])
    return np.hstack([np.where(np.isinf(times), 0.0, times), np.isinf(times)])


def _of_row(blocks: Blocks, sets: Sequence[int]) -> _Held:
    """The contents of ideals, each of which contains the one before: running sums over
    the blocks.
    """
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
    """The contents of any ideals: by a table of ideals and blocks, CHUNK cells at a time."""
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
