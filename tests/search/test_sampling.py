"""Distributions over the devices of each group: their samples, and what the best of these make of
them.
"""

from __future__ import annotations

import numpy as np
import pytest

from simdev.search.sampling import (
    around,
    best_of,
    frequencies,
    likeliest,
    mixed,
    sampled,
    share_of_moves,
    uniform,
)

EVEN = uniform(np.array([[1, 1, 1, 0], [0, 1, 1, 0], [0, 0, 1, 0]], np.bool_))


def test_samples_are_as_often_as_their_chances_and_never_where_nothing_may_stand():
    assert EVEN.tolist() == [[1 / 3, 1 / 3, 1 / 3, 0], [0, 0.5, 0.5, 0], [0, 0, 1, 0]]
    chance = mixed(EVEN, frequencies(np.array([[1, 2, 2]]), 4), 0.5)
    rows = sampled(chance, np.random.default_rng(0).random((20_000, 3)))
    assert frequencies(rows, 4) == pytest.approx(chance, abs=0.015)
    assert not frequencies(rows, 4)[chance == 0].any()
    assert likeliest(chance).tolist() == [1, 2, 2]


def test_the_smallest_and_the_largest_luck_are_devices_that_may_be():
    chance = np.array([[0.0, 0.3, 0.7 - 1e-16, 0.0]])
    edges = np.array([[0.0], [np.nextafter(1.0, 0.0)]])
    assert sampled(chance, edges).tolist() == [[1], [2]]


def test_one_placement_is_drawn_as_among_many():
    """A method that samples one by one sees what another draws at once."""
    lucks = np.random.default_rng(1).random((5, 3))
    together = sampled(EVEN, lucks)
    assert [sampled(EVEN, row).tolist() for row in lucks] == together.tolist()


def test_the_best_are_of_least_rank_and_the_earlier_of_equals():
    rows = np.arange(20)[:, None]
    ranks = [(0, 0, 9)] * 10 + [(0, 0, 5), (7, 0, 1), (0, 0, 5), *[(0, 0, 9)] * 7]
    assert best_of(rows, ranks).ravel().tolist() == [10, 12]
    assert best_of(rows, ranks, 0.15).ravel().tolist() == [10, 12, 0]
    assert best_of(rows[:3], ranks[:3]).ravel().tolist() == [0]


@pytest.mark.parametrize("groups", [10, 1000])
def test_around_a_placement_the_same_few_groups_move_however_many_there_are(groups):
    even = uniform(np.ones((groups, 4), np.bool_))
    placement = np.arange(groups) % 4
    rows = sampled(around(placement, even, 3), np.random.default_rng(2).random((2000, groups)))
    assert (rows != placement).sum(axis=1).mean() == pytest.approx(3, abs=0.15)


def test_no_more_groups_move_than_can():
    assert share_of_moves(9, uniform(np.ones((4, 2), np.bool_))) == 1
    single = uniform(np.array([[False, True]]))
    assert share_of_moves(3, single) == 1
    assert around(np.array([1]), single, 3).tolist() == [[0, 1]]
