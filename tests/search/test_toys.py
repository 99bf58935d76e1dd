"""The toy question: one optimum, with traps on the way, for the tests of learners."""

from __future__ import annotations

from itertools import product

import numpy as np

from simdev.search import search
from toys import PLACEMENTS, optimum, toy, until_optimum


def test_the_optimum_is_the_best_of_all_and_greedy_misses_it():
    oracle = toy()
    best, placement = optimum()
    steps = sorted(oracle(np.array(row)).step_ps for row in product(range(3), repeat=6))
    assert len(steps) == PLACEMENTS
    assert steps[0] == best < steps[1]
    assert oracle(placement).step_ps == best < min(oracle(np.full(6, d)).step_ps for d in range(3))
    assert until_optimum(search(oracle, "greedy", seed=0)) is None


def test_evaluations_are_counted_until_the_optimum():
    met = until_optimum(search(toy(), "annealing", 2000, seed=0))
    assert met is not None
    assert until_optimum(search(toy(), "annealing", 2000, seed=0)) == met
    assert until_optimum(search(toy(), "annealing", met - 1, seed=0)) is None


def test_one_small_device_makes_the_optimum_another():
    limited, placement = optimum(least=15)
    assert limited > optimum()[0]
    assert toy(least=15)(placement).feasible
    assert not toy(least=15)(optimum()[1]).feasible
