"""The columns of the dynamic program over pairs of ideals: what each ideal holds, and the nets that
it leaves open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...taskgraph import Ints
from ..ideals import bits, nested, packed, table
from ..kernels.pairs import Pairs
from .blocks import Blocks

BYTES = 8  # of a word of bits
CHUNK = 1 << 23  # cells of a table of ideals and pins at a time
Floats = NDArray[np.float64]


class _Held(NamedTuple):
    """What ideals hold: ``sums`` by ideal and column, ``size`` by ideal.

    By ideal and net open at it: these two, and how many of the net's blocks it is ``holding``.
    """

    sums: Floats
    size: Ints
    ideal: Ints
    net: Ints
    holding: Ints


def pairs_of(blocks: Blocks, sets: Sequence[int], limit: float, due: Callable[[], object]) -> Pairs:
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
    times = np.array([blocks.on_accelerator, blocks.on_cpu], np.float64).T
    return np.hstack([np.where(np.isinf(times), 0.0, times), np.isinf(times)])


def _of_row(blocks: Blocks, sets: Sequence[int]) -> _Held:
    """For nested sets, all is told by the set with which each block comes in."""
    enters = np.zeros(len(blocks.size), np.int64)
    for at, (small, large) in enumerate(pairwise(sets)):
        enters[bits(large & ~small)] = at + 1
    order = np.argsort(enters, kind="stable")
    upto = np.searchsorted(enters[order], np.arange(len(sets)), "right")
    sums, size = (
        np.concatenate([np.zeros_like(one[:1]), np.cumsum(one[order], axis=0)])[upto]
        for one in (_columns(blocks), np.array(blocks.size, np.int64))
    )
    spans, counts = [], []
    for pins, _ in blocks.nets:
        inside = np.sort(enters[list(pins)])
        spans.append(np.arange(inside[0], inside[-1]))
        counts.append(np.searchsorted(inside, spans[-1], "right"))
    ideal, count = (np.concatenate([np.zeros(0, np.int64), *one]) for one in (spans, counts))
    net = np.repeat(np.arange(len(spans)), [len(one) for one in spans])
    by_ideal = np.argsort(ideal, kind="stable")
    return _Held(sums, size, ideal[by_ideal], net[by_ideal], count[by_ideal].astype(np.int64))


def _of_any(blocks: Blocks, sets: Sequence[int], due: Callable[[], object]) -> _Held:
    """For any sets, some at a time: a table of sets and blocks."""
    pins = np.array([block for net, _ in blocks.nets for block in net], np.int64)
    lengths = np.array([len(net) for net, _ in blocks.nets], np.int64)
    columns, sizes = _columns(blocks), np.array(blocks.size, np.int64)
    found = []
    step = max(CHUNK // max(len(pins), len(sizes), 1), 1)
    for begin in range(0, len(sets), step):
        due()
        holds = table(sets[begin : begin + step], len(sizes))
        counts = np.add.reduceat(
            holds[:, pins], np.cumsum(lengths) - lengths, axis=1, dtype=np.int64
        )
        row, net = np.nonzero((counts > 0) & (counts < lengths))
        found.append(_Held(holds @ columns, holds @ sizes, row + begin, net, counts[row, net]))
    return _Held(*(np.concatenate(one) for one in zip(*found, strict=True)))
