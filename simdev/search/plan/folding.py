"""Plans that are one answer: their steps are within 1 % of one another, on as many devices.

Of each answer the simplest plan is shown: the one with the fewest kinds of parallelism (degrees
above 1), then the smallest degrees (dp apart, which takes the devices that are left), the fewest
chunks, the least ZeRO, the least recomputation; of equals the fastest (ours).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from ...nouns.strategy.parallelism import DEGREES, RECOMPUTES
from .space import Plan

TIE_PERCENT = 1


@dataclass(frozen=True, slots=True)
class Scored:
    """A plan that was simulated: its place in the space, its figures."""

    place: int
    plan: Plan
    row: Mapping[str, Any]

    @property
    def order(self) -> tuple[int, int, int]:
        """The shortest step first; of equal ones the least memory, then the first of the space."""
        return self.row["step_ps"], self.row["peak_bytes"], self.place


class Answer(NamedTuple):
    """A plan that is shown, and all that are one answer with it, the fastest first."""

    shown: Scored
    members: tuple[Scored, ...]


def answers_of(
    ranked: Sequence[Scored], devices: Sequence[int], front: Set[int] = frozenset()
) -> list[Answer]:
    """The answers of plans in the order of their steps; ``devices`` by cluster.

    Plans whose places are in ``front`` were chosen by memory too: one that takes less of it by
    more than 1 % is an answer of its own, and what is shown is of the front where any is.
    """
    groups: list[list[Scored]] = []
    for scored in ranked:
        group = next((g for g in reversed(groups) if _is_one(g, scored, devices, front)), None)
        if group is None:
            groups.append([scored])
        else:
            group.append(scored)
    return [
        Answer(min(group, key=lambda each: (each.place not in front, *simplicity(each))),
               tuple(group))
        for group in groups
    ]  # fmt: skip


def _is_one(
    group: Sequence[Scored], scored: Scored, devices: Sequence[int], front: Set[int]
) -> bool:
    counts = [devices[each.plan.setup.layout.cluster] for each in (group[0], scored)]
    least = min(each.row["peak_bytes"] for each in group)
    return (
        counts[0] == counts[1]
        and is_tied(scored.row["step_ps"], group[0].row["step_ps"])
        and (scored.place not in front or not less(scored.row["peak_bytes"], least))
    )


def is_tied(step: int, least: int) -> bool:
    """Whether a step is no more than 1 % longer than the least."""
    return step * 100 <= least * (100 + TIE_PERCENT)


def less(size: int, other: int) -> bool:
    """Whether a size is less than another by more than 1 %."""
    return size * (100 + TIE_PERCENT) < other * 100


def simplicity(scored: Scored) -> tuple[Any, ...]:
    """The less the simpler, as the module says."""
    plan, fields = scored.plan, scored.plan.fields
    degrees = [fields[name] for name in DEGREES]
    kinds = sum(degree > 1 for degree in degrees)
    smallest = prod(fields[name] for name in DEGREES if name != "dp")
    recompute = RECOMPUTES.index(fields["recompute"])
    return kinds, smallest, plan.chunks, plan.zero, recompute, *scored.order
