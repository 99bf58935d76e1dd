"""Shapes of schedules that their tests share."""

from __future__ import annotations

import itertools
from functools import partial

from simdev.nouns.schedules import SCHEDULES, Schedule, named_schedule

gpipe = partial(named_schedule, "GPipe")
SINGLE = [name for name in SCHEDULES if not name.startswith("Interleaved")]


# Names, ranks, microbatches, chunks; among them fewer microbatches than ranks, and rounds longer
# than the number of ranks.
SHAPES = [
    *itertools.product(SINGLE, (1, 2, 3, 5), (1, 2, 4, 9), (1,)),
    *itertools.product(
        ("Interleaved1F1B", "InterleavedZeroBubble"), (1, 2, 4), (1, 2, 4, 8), (1, 2, 3)
    ),
    *itertools.product(("Interleaved1F1B", "InterleavedZeroBubble"), (4,), (3, 5, 6, 10), (2,)),
]


def table(schedule: Schedule) -> list[list[str]]:
    """The actions by rank, without the empty slots."""
    return [[str(action) for action in row if action is not None] for row in schedule.rows]
