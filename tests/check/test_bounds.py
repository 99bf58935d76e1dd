"""The checker's safety net: bounds that follow from the other rules, and rates of fair links."""

from __future__ import annotations

import pytest

from simdev.execution.check.flows import fair_rates, unfair
from simdev.execution.check.schedule import _known_totals, bound_faults
from worlds.programs import behind, gapped, pair, ranked, remote_graph, sequence

# The safety net: bounds that follow from the other rules, judged alone


@pytest.mark.parametrize(
    ("build", "low", "high"),
    [
        (sequence, 6, 11),
        (gapped, 3, 7),
        (pair, 5, 7),
        (ranked, 5, 5),
        (behind, 5, 6),
        (remote_graph, 5, 13),
    ],
)
def test_bounds(build, low, high):
    task_graph = build()
    steps = range(20)
    assert [step for step in steps if not list(bound_faults(task_graph, step))] == list(
        range(low, high + 1)
    )


def test_fair_rates_are_known():
    """Two half-links of 1 and 2: the flow over both gets half of the first, the others what is
    left.
    """
    flows = {0: [0], 1: [0, 1], 2: [1]}
    assert fair_rates(flows, [1.0, 2.0]) == {0: 0.5, 1: 0.5, 2: 1.5}


@pytest.mark.parametrize(
    ("rates", "fault"),
    [({0: 0.5, 1: 0.5, 2: 1.6}, "more than"), ({0: 0.5, 1: 0.5, 2: 1.4}, "no bottleneck"),
     ({0: 0.6, 1: 0.4, 2: 1.6}, "no bottleneck"), ({0: 0.5, 1: 0.5, 2: 1.5 - 1e-8},
     "no bottleneck")],
)  # fmt: skip
def test_unfair_rates_are_refused(rates, fault):
    flows = {0: [0], 1: [0, 1], 2: [1]}
    assert list(unfair(flows, {0: 0.5, 1: 0.5, 2: 1.5}, [1.0, 2.0])) == []
    assert any(fault in text for text in unfair(flows, rates, [1.0, 2.0]))


def test_totals_of_collectives_worked_out_by_hand() -> None:
    """Sums of 10 bytes on four ranks: rings 4 x 3 x 2 x 3 = 72, trees 2 x 3 x 10 = 60, an
    all-to-all 36; in two levels (2 x 2) 4 x (2 x 5 + 2 x 3) = 64, an all-to-all 4 x (5 + 5) = 40.
    """
    same = dict.fromkeys(range(4), 10)
    assert {36, 40, 60, 64, 72} <= _known_totals(same, same)
    # 36 bytes on 35 ranks, of which 5 or 7 are on a node: 35 x (2 x 4 x 8 + 2 x 6 x 2) = 3080.
    many = dict.fromkeys(range(35), 36)
    assert {2380, 2448, 3080, 4760} <= _known_totals(many, many)
    # Of 3 bytes parts are padded: a ring of two sends 8, a tree 6, an all-to-all 4.
    assert {4, 6, 8} <= _known_totals({0: 3, 1: 3}, {0: 3, 1: 3})
    # Sizes that differ are those of no sum; parts of one whole are padded to the largest, 8.
    assert _known_totals({0: 8, 1: 4}, {0: 8, 1: 8}) == set()
    assert min(_known_totals({0: 8, 1: 4}, {0: 12, 1: 12})) == 16
