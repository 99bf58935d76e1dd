"""Which half-link fixes the rates of its flows next: the smallest share, ties in the cluster's
order; and when a flow ends at its rate.
"""

from __future__ import annotations

import pytest

from simdev.execution.engine.fair import smallest_share, time_left


@pytest.mark.parametrize(
    ("left", "waiting", "used", "link"),
    [
        ([6.0, 6.0, 6.0], [2, 2, 2], [2, 0, 1], 0),
        ([6.0, 6.0, 6.0], [2, 2, 2], [0, 1, 2], 0),
        ([6.0, 6.0, 6.0], [1, 2, 2], [2, 1, 0], 1),
        ([6.0, 6.0, 6.0], [1, 2, 3], [0, 1, 2], 2),
        ([6.0, 6.0, 6.0], [3, 2, 1], [2, 1, 0], 0),
        ([6.0, 6.0, 1.0], [2, 1, 0], [0, 1, 2], 0),
        ([6.0, 6.0, 1.0], [2, 1, 1], [0, 1], 0),
        ([0.0, 6.0, 6.0], [1, 2, 2], [1, 2, 0], 0),
        ([6.0, 6.0, 6.0], [0, 0, 0], [0, 1, 2], -1),
    ],
)
def test_the_smallest_share_counts_and_of_equal_ones_the_first_link(
    left: list[float], waiting: list[int], used: list[int], link: int
) -> None:
    assert smallest_share(left, waiting, used, len(used)) == link


@pytest.mark.parametrize(
    ("remaining", "rate", "ps"), [(6.0, 2.0, 3), (7.0, 2.0, 4), (0.5, 2.0, 1), (0.0, 2.0, 1)]
)
def test_a_flow_ends_on_a_later_picosecond(remaining: float, rate: float, ps: int) -> None:
    assert time_left(remaining, rate) == ps
