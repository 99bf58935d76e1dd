"""Groups of plans that count as one answer: their steps are within 1 % of the least."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

Order = tuple[int, int, int]


def first_answers(orders: Sequence[Order], top: int) -> list[list[Order]]:
    """The first answers of plans on one cluster, by their (step, peak, place)."""
    groups: list[list[Order]] = []
    for order in sorted(orders):
        if groups and order[0] <= Fraction(101, 100) * groups[-1][0][0]:
            groups[-1].append(order)
        else:
            groups.append([order])
    return groups[:top]


def first_of_answers(orders: Sequence[Order], top: int) -> list[Order]:
    """All plans of the first answers, the fastest first."""
    return [order for group in first_answers(orders, top) for order in group]
