"""A question so small that its optimum is known: 6 groups on 3 devices that differ, 729 placements.

The measure of a learner is the number of different placements that it evaluates until it meets the
optimum. Random search meets it at each of the 729 with equal chance: its median is RANDOM_MEDIAN.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from simdev import Oracle
from simdev.nouns.cluster import Device
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.taskgraph import Ints
from simdev.oracle import Cost
from simdev.search import Result, search
from simdev.search.space import rank_of
from simdev.search.trial import Best
from worlds.clusters import joined

SEEDS = range(5)
PLACEMENTS = 3**6
RANDOM_MEDIAN = (PLACEMENTS + 1) / 2  # different placements; seeds would only add luck
WITHIN = 300  # different placements within which a learner must meet the optimum
TIMES = {  # ps on the kinds "even", "left" and "right"
    "source": (3, 7, 6),
    "a": (18, 13, 29),
    "b": (20, 27, 14),
    "c": (17, 12, 25),
    "d": (19, 24, 11),
    "sink": (8, 4, 7),
}
SENT = 3  # bytes of every output; a byte takes 1 ps
READS = {"a": ["source"], "b": ["source"], "c": ["a"], "d": ["b"], "sink": ["c", "d"]}


def toy(memory: int | None = None, least: int | None = None) -> Oracle:
    """Two branches between a source and a sink, each faster on a different device. Without limits
    of memory, five placements cannot be improved by moving one group.

    ``memory`` is the capacity in bytes of every device (None: any), ``least`` that of "left" alone;
    each op holds 10 bytes of parameters.
    """
    kinds = ("even", "left", "right")
    ops = [
        Op(
            name,
            inputs=tuple(READS.get(name, ())),
            outputs=(Tensor(SENT),),
            time={kind: f"{ps} ps" for kind, ps in zip(kinds, times, strict=True)},
            param_bytes=10,
        )
        for name, times in TIMES.items()
    ]
    limits = (memory, memory if least is None else least, memory)
    devices = [Device(kind, kind, memory=limit) for kind, limit in zip(kinds, limits, strict=True)]
    return Oracle(Graph("toy", tuple(ops)), joined(devices))


@cache
def optimum(memory: int | None = None, least: int | None = None) -> tuple[int, Ints]:
    """The step in ps of the best of all 729 placements that fit, and that placement, which is
    unique.
    """
    oracle = toy(memory, least)
    rows = [np.array(row) for row in product(range(3), repeat=len(TIMES))]
    ranked = sorted((rank_of(oracle, oracle(row)), at) for at, row in enumerate(rows))
    (best, at), (second, _) = ranked[:2]
    assert best < second, "the optimum must be one placement"
    return best[-1], rows[at]


def until_optimum(result: Result) -> int | None:
    """The number of evaluations until a search of ``toy()`` met the optimum; None where it never
    did. A learner evaluates no placement twice, so for it these are different placements.
    """
    best, _ = optimum()
    met = (point.evaluation for point in result.points if point.step_ps == best)
    return next(met, None)


class _UntilOptimum(Oracle):
    """The toy, which interrupts its search once the optimum was evaluated."""

    _met = False

    def __call__(self, *arguments: Any, **options: Any) -> Cost:
        if self._met:
            raise KeyboardInterrupt
        cost = super().__call__(*arguments, **options)
        self._met = cost.step_ps == optimum()[0]
        return cost


def until_optima(
    method: str, budget: int = WITHIN, seeds: Iterable[int] = SEEDS, **options: Any
) -> list[int | None]:
    """``until_optimum`` of a method for each seed, over all 6 groups: no preparation joins groups.
    ``options`` are those of ``search``.
    """
    met = []
    for seed in seeds:
        question = _UntilOptimum(toy().graph, toy().cluster)
        met.append(until_optimum(unprepared(method, question, budget, seed, **options)))
    return met


def curve(result: Result | Best) -> list[tuple[int, int]]:
    """The evaluations at which a search improved, each with the step in ps that it found."""
    return [(point.evaluation, point.step_ps) for point in result.points]


def unprepared(method: str, oracle: Oracle, budget: int, seed: int = 0, **options: Any) -> Result:
    """The result of a search over all groups, without a preparation that joins some."""
    return search(oracle, method, budget, seed, prepare=(), **options)
