"""The learner: REINFORCE over episodes of improvement, with a baseline for each visit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...search.trial import Trial

if TYPE_CHECKING:
    from .training import Placeto


def placeto(trial: Trial) -> None:
    """Placeto (NeurIPS 2019): a network improves a whole placement group by group, and learns from
    what each move gains.

    It trains a policy on this graph, or plays with a saved one. Raises SpentError.
    """
    from .training import search_with

    search_with(trial)


def general(trial: Trial) -> Placeto:
    """The learner of any number of graphs, of the first of their trials."""
    from .training import Placeto

    return Placeto(trial, practises=True)
