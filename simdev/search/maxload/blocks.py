"""The groups of a max-load problem contracted to blocks, and what of them a set of blocks cuts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ..ideals import components
from .problem import Problem

Net = tuple[tuple[int, ...], float]
"""The blocks that an op and its readers lie in, ascending, and its cost: paid by every device that cuts it."""


@dataclass(frozen=True)
class Blocks:
    """Groups that a contiguous split cannot part, in a topological order.

    ``block`` by group; ``on_accelerator``, ``on_cpu`` ms and ``size`` bytes by block; ``order`` (earlier, later).
    """

    problem: Problem
    block: tuple[int, ...]
    on_accelerator: tuple[float, ...]
    on_cpu: tuple[float, ...]
    size: tuple[int, ...]
    order: frozenset[tuple[int, int]]

    @cached_property
    def nets(self) -> tuple[Net, ...]:
        """The nets of two blocks or more; those of the same blocks are added up."""
        return nets_of(self.problem, self.block)

    def devices(self, of_block: Sequence[int]) -> list[int]:
        """Devices by op, from devices by block."""
        return [of_block[self.block[group]] for group in self.problem.group]


def nets_of(problem: Problem, block: Sequence[int]) -> tuple[Net, ...]:
    """The nets between blocks (by group) that cost something."""
    found: dict[tuple[int, ...], float] = {}
    for op, readers in enumerate(problem.readers):
        pins = tuple(sorted({block[problem.group[one]] for one in (op, *readers)}))
        if len(pins) > 1 and problem.cost[op]:
            found[pins] = found.get(pins, 0.0) + problem.cost[op]
    return tuple(sorted(found.items()))


def blocks_of(problem: Problem) -> Blocks:
    """Groups on a cycle of the order become one block; blocks that cost nothing join their only neighbour.

    The latter changes no optimum where memory is slack: such a block takes no time, so it may always stand where its
    one neighbour does, which cuts fewer nets. Where memory is limited, only those of no bytes join.
    """
    count = len(problem.members)
    merged = _merged(problem, components(count, problem.order))
    block = components(count, {*problem.order, *_ring(merged)})
    total = max(block, default=-1) + 1
    accelerator, cpu, size = [0.0] * total, [0.0] * total, [0] * total
    for op, group in enumerate(problem.group):
        accelerator[block[group]] += problem.on_accelerator[op]
        cpu[block[group]] += problem.on_cpu[op]
        size[block[group]] += problem.size[op]
    order = frozenset((block[a], block[b]) for a, b in problem.order if block[a] != block[b])
    return Blocks(problem, tuple(block), tuple(accelerator), tuple(cpu), tuple(size), order)


def _ring(block: Sequence[int]) -> list[tuple[int, int]]:
    """Edges that put the groups of each block on a cycle."""
    groups: dict[int, list[int]] = {}
    for group, one in enumerate(block):
        groups.setdefault(one, []).append(group)
    return [pair for ring in groups.values() for pair in zip(ring, [*ring[1:], ring[0]], strict=True)]


def _merged(problem: Problem, block: list[int]) -> list[int]:
    """The blocks after those without cost have joined their only neighbour."""
    block, changed = list(block), True
    idle_op = [
        problem.on_accelerator[op] == 0
        and (problem.on_cpu[op] == 0 or not problem.cpus)
        and (problem.size[op] == 0 or slack(problem))
        for op in range(len(problem.group))
    ]
    while changed:
        changed = False
        idle, near = _neighbours(problem, block, idle_op)
        for one in sorted(near):
            if idle[one] and len(near[one]) == 1:
                other = min(near[one])
                block = [other if each == one else each for each in block]
                changed = True
                break
    return block


def _neighbours(problem: Problem, block: list[int], idle_op: list[bool]) -> tuple[dict[int, bool], dict[int, set[int]]]:
    """Of each block: whether it costs nothing by itself, and the blocks that share an edge with it."""
    idle = dict.fromkeys(block, True)
    near: dict[int, set[int]] = {one: set() for one in block}
    for op, group in enumerate(problem.group):
        here = block[group]
        idle[here] &= idle_op[op]
        for reader in problem.readers[op]:
            there = block[problem.group[reader]]
            if there != here:
                near[here].add(there)
                near[there].add(here)
    for first, second in problem.order:
        if block[first] != block[second]:
            near[block[first]].add(block[second])
            near[block[second]].add(block[first])
    return idle, near


def slack(problem: Problem) -> bool:
    """Whether everything together fits on one accelerator."""
    return problem.capacity is None or sum(problem.size) <= problem.capacity
