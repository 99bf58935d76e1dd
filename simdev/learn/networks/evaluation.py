"""Evaluate a saved policy unchanged: its likeliest placement, then samples."""

from __future__ import annotations

from collections.abc import Callable

from ...search.sampling import PATIENCE
from ...search.trial import Trial


def use(trial: Trial, decode: Callable[[], object], sample: Callable[[], object]) -> None:
    """Use the saved policy with which a trial begins, if any: evaluate what it finds likeliest
    (``decode``), so that what is learned after it never ends above.

    Without training batches of samples follow, each by a call of ``sample``, until the budget is
    spent or PATIENCE in a row bring no other placement. Raises SpentError.
    """
    if trial.learning.policy is None:
        return
    decode()
    idle = 0
    while not trial.learning.train and idle < PATIENCE:
        before = trial.distinct
        sample()
        idle = 0 if trial.distinct > before else idle + 1
