"""Questions: what all methods of a comparison are asked, prepared once, and what stands beside."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from ...execution.scenario import Scenario, fingerprint
from ...nouns.strategy import Strategy
from ...oracle import Cost, Oracle
from ..result import present_cost
from ..run import oracle_and_strategy, search
from ..space import rank_of
from ..trial import REFUSED
from .runs import Reference, References

COUNTERS = ("_counted", "_cache_size")  # of an oracle; they change no answer


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """An oracle, the strategy that came with it, and what these cost."""

    name: Hashable
    oracle: Oracle
    given: Strategy
    references: References

    @property
    def digest(self) -> str:
        """A hash of all that may change an answer."""
        state = self.oracle.__getstate__()
        parts = {name: value for name, value in state.items() if name not in COUNTERS}
        return fingerprint((parts, self.given))


def question_of(name: Hashable, question: Scenario | Oracle) -> Question:
    """Prepare a question. Raises InputError where it cannot be searched."""
    oracle, given = oracle_and_strategy(question)
    return Question(name, oracle, given, references_of(oracle, given))


def references_of(oracle: Oracle, given: Strategy) -> References:
    """What the best single device and the own strategy cost. All costs of ops are looked up by
    then.
    """
    try:
        single = _reference(oracle, search(oracle, "single").cost)
    except REFUSED:
        single = None
    return References(single, _reference(oracle, present_cost(oracle, given)))


def _reference(oracle: Oracle, cost: Cost | None) -> Reference | None:
    return None if cost is None else Reference(cost, rank_of(oracle, cost))
