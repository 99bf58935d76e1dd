"""Which rows of a table are the best: the first, and those that no other beats in every respect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..nouns.taskgraph import Floats


@dataclass(frozen=True, slots=True)
class Goal:
    """A column to be as small as may be, or as large (``upward``), and how people call that."""

    column: str
    words: str
    upward: bool = False


FASTEST = Goal("step_time_s", "fastest")
RATES = (
    Goal("tokens_per_s", "most tokens a second", True),
    Goal("samples_per_s", "most samples a second", True),
)
BESIDE = Goal("devices", "fewest devices"), Goal("peak_bytes", "least memory")
"""What is given up for speed, where it differs between rows."""


ONE_DEVICE, PRESENT = "one device", "the scenario's strategy"
"""What answers of searches are seen beside, as people read of it."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """Rows by their numbers: those that fit, the best first, those of the front in the same order,
    and the rest; the goals that decide.
    """

    order: tuple[int, ...]
    front: tuple[int, ...]
    apart: tuple[int, ...]
    goals: tuple[Goal, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain numbers and texts, as a page takes them."""
        return {
            "order": list(self.order),
            "front": list(self.front),
            "apart": list(self.apart),
            "goals": [goal.column for goal in self.goals],
            "upward": [goal.upward for goal in self.goals],
        }


def ranking(
    columns: Mapping[str, Sequence[Any]], usable: Sequence[bool], sizes: Sequence[Any]
) -> Ranking:
    """``usable`` says which rows fit and have figures; ``sizes`` are their batches: where these
    differ, steps cannot be compared, and what is trained a second counts.
    """
    rows = [number for number, is_usable in enumerate(usable) if is_usable]
    apart = tuple(number for number, is_usable in enumerate(usable) if not is_usable)
    first = FASTEST
    if len({sizes[row] for row in rows}) > 1:
        first = next((goal for goal in RATES if _is_whole(columns, goal, rows)), FASTEST)
    if not _is_whole(columns, first, rows):
        return Ranking(tuple(rows), (), apart, ())
    goals = (first, *(goal for goal in BESIDE if _differs(columns, goal, rows)))
    costs = np.array([_least(columns, goal, rows) for goal in goals])
    order = np.lexsort((np.arange(len(rows)), *costs[::-1]))
    ranked = tuple(rows[place] for place in order.tolist())
    front = tuple(rows[place] for place in order.tolist() if not _is_beaten(costs, place))
    return Ranking(ranked, front if len(goals) > 1 else (), apart, goals)


def _is_whole(columns: Mapping[str, Sequence[Any]], goal: Goal, rows: Sequence[int]) -> bool:
    values = columns.get(goal.column)
    return bool(rows) and values is not None and all(values[row] is not None for row in rows)


def _differs(columns: Mapping[str, Sequence[Any]], goal: Goal, rows: Sequence[int]) -> bool:
    return _is_whole(columns, goal, rows) and len({columns[goal.column][row] for row in rows}) > 1


def _least(columns: Mapping[str, Sequence[Any]], goal: Goal, rows: Sequence[int]) -> Floats:
    """What is to be as small as may be."""
    values = np.array([float(columns[goal.column][row]) for row in rows])
    return -values if goal.upward else values


def _is_beaten(costs: Floats, place: int) -> bool:
    """Whether another row is as good in every respect and better in one; of equals the first
    stays.
    """
    here = costs[:, place : place + 1]
    no_worse = np.all(costs <= here, axis=0)
    better = np.any(costs < here, axis=0)
    alike = np.all(costs == here, axis=0) & (np.arange(costs.shape[1]) < place)
    return bool(np.any(no_worse & (better | alike)))
