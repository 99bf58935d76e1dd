"""Shared by the tests of search: trials of an oracle or a scenario without preparations."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tiny_learner
from simdev import Oracle
from simdev.nouns.strategy import Strategy
from simdev.search.prepare import Grouped
from simdev.search.trial import Budget, SearchProblem, Trial


@pytest.fixture
def trial_of() -> Callable[..., Trial]:
    """A trial of an oracle, with the strategy that a scenario gives, within a budget."""

    def trial(
        oracle: Oracle, given: Strategy | None = None, limit: int | None = None, seed: int = 0
    ) -> Trial:
        given = oracle.under if given is None else given
        problem = SearchProblem(oracle, Grouped.of(oracle.graph), oracle, given)
        return Trial(problem, Budget(limit, seed=seed))

    return trial


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registers the learner ``tiny`` as a method of the search."""
    tiny_learner.register(monkeypatch)
