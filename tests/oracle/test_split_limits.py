"""Moves of split ops with a limit tell the same as those without, decision by decision."""

from __future__ import annotations

import math
import random
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simdev import Oracle
from simdev.ground.errors import InputError
from simdev.nouns.cluster import Host
from simdev.nouns.strategy import Configuration, Order, Strategy
from simdev.search.soap import flexflow
from simdev.search.soap.layers import Layers
from simdev.search.trial import Budget, SearchProblem, SpentError, Trial
from split_walks import make_walk
from worlds.clusters import limited
from worlds.costs import COSTS
from worlds.sharded import Case
from worlds.split_graphs import cluster, convolutions
from worlds.tape import drawn

SHARES = (0.3, 0.8, 0.95, 1.0, 1.05)
Moves = list[tuple[dict[str, Any], int]]


def require_same(case: Case, moves: Moves, rng: random.Random, host: Host | None) -> None:
    """Two sessions, of which one is given limits, answer alike."""
    oracle = Oracle(case.graph, replace(case.cluster, host=host), COSTS)
    free, bound = oracle.session(case.strategy), oracle.session(case.strategy)
    for changes, fate in moves:
        limit = free.cost.seconds * rng.choice(SHARES)
        try:
            cost = free.propose(changes)
        except InputError:
            with pytest.raises(InputError):
                bound.propose(changes, limit=limit)
            continue
        for one in (limit, cost.seconds, math.nextafter(cost.seconds, 0.0), math.inf):
            expected = None if cost.exceeds(one) else cost
            assert bound.propose(changes, limit=one) == expected
        answer = bound.propose(changes, limit=limit)
        if answer is None:
            with pytest.raises(InputError, match="nothing is proposed"):
                bound.accept()
        elif fate == 0:
            assert bound.accept() == free.accept()
    assert bound.cost == free.cost
    assert bound.strategy == free.strategy


@settings(max_examples=6)
@given(drawn(make_walk), st.integers(0, 1000))
def test_an_answer_is_none_exactly_above_the_limit(walk: tuple[Case, Moves], seed: int) -> None:
    case, moves = walk
    require_same(case, moves, random.Random(seed), None)


@settings(max_examples=3)
@given(drawn(make_walk), st.integers(0, 1000))
def test_limits_beside_capacities_and_hosts(walk: tuple[Case, Moves], seed: int) -> None:
    case, moves = walk
    small = replace(case, cluster=limited(case.cluster, 40_000))
    require_same(small, moves, random.Random(seed), None)
    ordered = replace(case, strategy=replace(case.strategy, order=Order("program")))
    require_same(ordered, moves, random.Random(seed), Host(ahead=2))


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(drawn(make_walk), st.integers(0, 1000))
def test_many_walks_with_limits(walk: tuple[Case, Moves], seed: int) -> None:
    require_same(*walk, random.Random(seed), None)


def flexflow_walks(seed: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, ...]:
    """What the walks asked for in turn, what became the best when, and how often nobody wanted to
    know the end.
    """
    oracle, asked, unknown = Oracle(convolutions(), cluster("link"), COSTS), [], 0
    propose = flexflow.SplitWalk.propose

    def noted(
        walk: flexflow.SplitWalk, state: list[Configuration], limit: float | None = None
    ) -> Any:
        nonlocal unknown
        cost = propose(walk, state, limit)
        unknown += cost is None
        asked.append(tuple(map(repr, state)))
        return cost

    given = Strategy(sync="parameter-server")
    trial = Trial(SearchProblem(oracle, None, oracle, given), Budget(60, None, seed))  # type: ignore[arg-type]
    with monkeypatch.context() as patch:
        patch.setattr(flexflow.SplitWalk, "propose", noted)
        with suppress(SpentError):
            flexflow.walks(trial, flexflow.space_of(Layers(oracle.graph, oracle.cluster)))
    points = [(point.evaluation, point.step_ps) for point in trial.best.points]
    return (asked, points, trial.best.strategy), unknown


@pytest.mark.parametrize("seed", [1])
def test_flexflow_walks_the_same_way_with_limits(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, unknown = flexflow_walks(seed, monkeypatch)
    assert unknown > 10
    monkeypatch.setattr(Trial, "useful", lambda *_: None)
    assert flexflow_walks(seed, monkeypatch) == (found, 0)
