"""How many versions of its weights a stage keeps."""

from __future__ import annotations

from .action import BACKWARD, FORWARD, WEIGHT
from .table import Row, Schedule


def weight_versions(schedule: Schedule) -> tuple[int, ...]:
    """The most versions of its weights that each stage holds at once; 1 in a synchronous schedule.

    Weight stashing (PipeDream, Narayanan et al. 2019, section 3.3): a microbatch goes backward
    through the weights that it went forward through, while every backward makes a new version. In
    1F1B stage s of p needs p - s.
    """
    if not schedule.asynchronous:
        return (1,) * schedule.stages
    return tuple(
        _versions(schedule.rows[rank], stage) for stage, rank in enumerate(schedule.rank_of)
    )


def _versions(row: Row, stage: int) -> int:
    current, most = 0, 1
    stashed: dict[int, int] = {}  # microbatch -> the version it went forward through
    for action in row:
        if action is None or action.stage != stage:
            continue
        if action.kind == FORWARD:
            stashed[action.microbatch] = current
        elif action.kind in (BACKWARD, WEIGHT):
            del stashed[action.microbatch]
            current += 1
        most = max(most, len({current, *stashed.values()}))
    return most
