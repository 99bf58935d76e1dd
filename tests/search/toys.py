"""A question so small that its optimum is known: 6 groups on 3 devices that differ, 729 placements.

How many different placements are evaluated until the optimum is among them is the measure of a
learner. Random search meets it at any of 729 with the same chance: its median is RANDOM_MEDIAN.
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
WITHIN = 300  # different placements in which a learner must have met the optimum
TIMES = {  # ps on the kinds "even", "left" and "right"
    "source": (3, 7, 6),
    "a": (18, 13, 29),
    "b": (20, 27, 14),
    "c": (17, 12, 25),
    "d": (19, 24, 11),
    "sink": (8, 4, 7),
}
SENT = 3  # bytes of every output, a ps each
READS = {"a": ["source"], "b": ["source"], "c": ["a"], "d": ["b"], "sink": ["c", "d"]}


def toy(memory: int | None = None, least: int | None = None) -> Oracle:
    """Two branches between a source and a sink, each faster on another device. Without limits five
    placements cannot be improved by moving one group.

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
    """The step in ps of the best of all 729 placements that fit, and that placement: no other is as
    good.
    """
    oracle = toy(memory, least)
    rows = [np.array(row) for row in product(range(3), repeat=len(TIMES))]
    ranked = sorted((rank_of(oracle, oracle(row)), at) for at, row in enumerate(rows))
    (best, at), (second, _) = ranked[:2]
    assert best < second, "the optimum must be one placement"
    return best[-1], rows[at]


def until_optimum(result: Result) -> int | None:
    """The evaluations that a search of ``toy()`` used until it met the optimum; None where it never
    did. Of a learner, which evaluates no placement twice, they are different placements.
    """
    best, _ = optimum()
    met = (point.evaluation for point in result.points if point.step_ps == best)
    return next(met, None)


class _UntilOptimum(Oracle):
    """The toy that interrupts its search once the optimum was asked: nothing after it counts."""

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
    """``until_optimum`` of a method for each of some seeds, over all 6 groups: no preparation joins
    any. ``options`` are those of ``search``.
    """
    met = []
    for seed in seeds:
        question = _UntilOptimum(toy().graph, toy().cluster)
        met.append(until_optimum(unprepared(method, question, budget, seed, **options)))
    return met


def curve(result: Result | Best) -> list[tuple[int, int]]:
    """The evaluations at which a search got better, each with the step in ps that it found."""
    return [(point.evaluation, point.step_ps) for point in result.points]


def unprepared(method: str, oracle: Oracle, budget: int, seed: int = 0, **options: Any) -> Result:
    """A search over all groups as they are: no preparation joins any."""
    return search(oracle, method, budget, seed, prepare=(), **options)
