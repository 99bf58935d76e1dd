"""The groups of a max-load problem contracted to blocks, and what of them a set of blocks cuts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ...structure import components
from ..ideals import leaves
from .problem import Problem

Net = tuple[tuple[int, ...], float]
"""The blocks that an op and its readers lie in, ascending, and its cost: paid by every device that
cuts it.
"""


@dataclass(frozen=True)
class Blocks:
    """Groups that a contiguous split cannot part, in a topological order.

    ``block`` by group; ``on_accelerator``, ``on_cpu`` ms and ``size`` bytes by block; ``order``
    (earlier, later).
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
    """Groups on a cycle of the order become one block; blocks that cost nothing join their only
    neighbour.

    The latter changes no optimum where memory is slack: such a block takes no time, so it may
    always stand where its one neighbour does, which cuts fewer nets. Where memory is limited, only
    those of no bytes join.
    """
    count = len(problem.members)
    block = components(count, {*problem.order, *_tied(problem, components(count, problem.order))})
    total = max(block, default=-1) + 1
    accelerator, cpu, size = [0.0] * total, [0.0] * total, [0] * total
    for op, group in enumerate(problem.group):
        accelerator[block[group]] += problem.on_accelerator[op]
        cpu[block[group]] += problem.on_cpu[op]
        size[block[group]] += problem.size[op]
    order = frozenset((block[a], block[b]) for a, b in problem.order if block[a] != block[b])
    return Blocks(problem, tuple(block), tuple(accelerator), tuple(cpu), tuple(size), order)


def _tied(problem: Problem, block: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs of groups, both ways: of each block without cost that has one neighbour, and of
    this.
    """
    idle = [True] * (max(block, default=-1) + 1)
    first = {one: group for group, one in reversed(list(enumerate(block)))}
    roomy = slack(problem)
    for op, group in enumerate(problem.group):
        on_cpu = problem.on_cpu[op] if problem.cpus else 0
        idle[block[group]] &= problem.on_accelerator[op] == on_cpu == 0 and (
            problem.size[op] == 0 or roomy
        )
    near = {
        (problem.group[op], problem.group[reader])
        for op, ends in enumerate(problem.readers)
        for reader in ends
    }
    pairs = {(block[a], block[b]) for a, b in {*near, *problem.order} if block[a] != block[b]}
    return [(first[a], first[b]) for a, b in leaves(idle, sorted(pairs))]


def slack(problem: Problem) -> bool:
    """Whether everything together fits on one accelerator."""
    return problem.capacity is None or sum(problem.size) <= problem.capacity
