"""What a policy is worth without learning: its likeliest placement, then samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ...taskgraph import Ints
from ..sampling import PATIENCE
from ..trial import Trial


def evaluate(trial: Trial, likeliest: Ints, sample: Callable[[], Iterable[Ints]]) -> None:
    """Score the placement that a policy decodes to, then batches of samples until the budget is
    spent, or PATIENCE of them in a row bring no other placement.

    Placements are devices by group. Raises SpentError.
    """
    trial.score_once(likeliest)
    idle = 0
    while idle < PATIENCE:
        before = trial.distinct
        for placement in sample():
            trial.score_once(placement)
        idle = 0 if trial.distinct > before else idle + 1
