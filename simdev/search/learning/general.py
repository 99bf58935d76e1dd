"""What a learner is whose policy can place any graph on as many devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..policy import SavedPolicy
from ..trial import Trial


class GeneralLearner(Protocol):
    """A policy under way that learns from several graphs.

    It is made of the first trial alone (``METHODS[name].general``): of its ``learning`` (settings,
    a policy to begin with), its budget's seed and the number of its devices. Each trial is a graph;
    they share one budget, so what one evaluates counts for all, and its ``random`` and ``share``
    are those of the whole training. What is to be remembered of a graph (features, baselines) is
    kept by its trial, which is handed over again whenever its turn comes.
    """

    graphs: int
    """From how many graphs an update learns at once, where there are so many."""

    def update(self, trials: Sequence[Trial]) -> None:
        """Evaluate placements of these graphs, and learn from all of them. Raises SpentError."""

    def saved(self) -> SavedPolicy:
        """The policy as it is now, tied to no graph."""
