"""Outcome: what running a scenario shows, and all that a report is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..costs import CostMiss
from ..memory import MemoryModel
from ..trace import Trace
from .splits import SplitCost

if TYPE_CHECKING:
    from ..models.large.roles import LargeStep


@dataclass(frozen=True, slots=True)
class Outcome:
    """The trace of a scenario with where its op times come from.

    A trace alone is an outcome too: ``Outcome(trace)``.

    ``rungs`` is the share of the op time by the rung of the cost ladder that told it, ``misses``
    what had to be estimated (the longest first), ``rel_err`` the expected relative error of an op's
    time, weighted by time (None: not known). ``memory`` is how memory was counted. ``splits`` tells
    what splitting each op costs. ``synchronised`` counts the gradients that a policy synchronises
    (None: there is none). ``plan`` tells what the tasks of a large model's step are for.
    """

    trace: Trace
    rungs: Mapping[str, float] = field(default_factory=dict)
    misses: tuple[CostMiss, ...] = ()
    rel_err: float | None = 0.0
    memory: MemoryModel = MemoryModel()
    splits: tuple[SplitCost, ...] = ()
    synchronised: int | None = None
    plan: LargeStep | None = None
