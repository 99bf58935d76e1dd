"""Evaluations with a limit tell the same as those without: by walks that ask both, decision by
decision.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import common
from simdev.ground.errors import InputError
from simdev.nouns.cluster import Device
from simdev.nouns.graph import Graph, Op
from simdev.nouns.strategy import Strategy
from simdev.oracle import Cost, Oracle
from simdev.oracle.placements.moves import TAKEN_UP
from simdev.search import METHODS
from simdev.search.trial import Budget, SearchProblem, SpentError, Trial
from worlds.clusters import joined, limited
from worlds.scenarios import World, oracle_of, worlds

SHARES = (0.5, 0.9, 0.99, 1.0, 1.01, 1.3)


def agrees(answer: Cost | None, cost: Cost, limit: float, with_peaks: bool) -> None:
    if cost.seconds > limit:
        assert answer is None
        return
    assert answer is not None
    seen = answer if with_peaks else replace(answer, peaks=cost.peaks)
    assert seen == cost


@settings(max_examples=60)
@given(worlds(policies=("fifo", "program")), st.sampled_from(SHARES))
def test_an_answer_is_none_exactly_above_the_limit(world: World, share: float):
    oracle = oracle_of(world, cache=0)
    column = oracle.placement(world.strategy.placement)
    cost = oracle(column)
    for limit in (cost.seconds, math.nextafter(cost.seconds, 0.0), share * cost.seconds, 0.0):
        agrees(oracle(column, limit), cost, limit, True)
    assert oracle(column, math.inf) == cost
    if cost.seconds > 0:
        assert oracle(column, -1.0) is None


@settings(max_examples=40)
@given(worlds(policies=("fifo", "program")), st.integers(0, 1000), st.sampled_from([5, 60]))
def test_gaps_as_long_as_ops_count_where_something_follows(world: World, seed: int, gap: int):
    devices = tuple(replace(device, gap=f"{gap} ps") for device in world.cluster.devices)
    oracle = oracle_of(world.but(cluster=replace(world.cluster, devices=devices)), cache=0)
    start = oracle.placement(world.strategy.placement).tolist()
    if start:
        walk(oracle, start, 12, random.Random(seed))


def test_no_step_ends_with_the_gap_of_a_device():
    ops = (Op("a", time="100 us"), Op("b", time="101 us"))
    devices = [Device(f"g{i}", gap="6 us") for i in range(3)]
    oracle = Oracle(Graph("two", ops), joined(devices, bandwidth="1 GB/s"))
    session = oracle.session([0, 1])
    assert session.propose("b", "g2", 101e-6).step_ps == 101_000_000
    assert session.propose("b", "g2", 100.9e-6) is None


def walk(oracle: Oracle, start: list[int], steps: int, rng: random.Random) -> None:
    """Two sessions, of which one is given limits, answer alike."""
    free, bound = oracle.session(start), oracle.session(start)
    runs = [d for d, device in enumerate(oracle.cluster.devices) if device.runs_ops]
    with_peaks, eager = bool(free.cost.peaks), rng.random()
    for _ in range(steps):
        row, device = rng.randrange(len(oracle.groups)), rng.choice(runs)
        limit = free.cost.seconds * rng.choice(SHARES)
        try:
            cost = free.propose(row, device)
        except InputError:
            with pytest.raises(InputError):
                bound.propose(row, device, limit)
            continue
        answer = bound.propose(row, device, limit if rng.random() < 0.9 else None)
        if answer is not None or cost.seconds <= limit:
            agrees(answer, cost, max(limit, cost.seconds), with_peaks)
        if answer is not None and rng.random() < eager:
            assert replace(bound.accept(), peaks=()) == replace(free.accept(), peaks=())
    assert bound.placement.tolist() == free.placement.tolist()


def walks(world: World, seed: int, count: int) -> None:
    start = [world.cluster.index[world.strategy.placement[op.name]] for op in world.graph.ops]
    rng = random.Random(seed)
    for at in range(count if start else 0):
        cluster = world.cluster if at % 5 == 4 else limited(world.cluster, None)
        walk(Oracle(world.graph, cluster, cache=0), start, 25, rng)


@settings(max_examples=60)
@given(worlds(policies=("fifo",)), st.integers(0, 1000))
def test_walks_with_limits_on_tie_rich_questions(world: World, seed: int):
    walks(world, seed, 1)


@pytest.mark.slow
@settings(max_examples=2_000, deadline=None)
@given(worlds(policies=("fifo",)), st.integers(0, 1000))
def test_ten_thousand_walks_with_limits(world: World, seed: int):
    walks(world, seed, 5)


@pytest.mark.parametrize("queues", ["half-duplex", "parallel", "link"])
def test_long_walks_with_limits(queues: str):
    prepared = common.layered(300, 4, queues, seed=2)
    oracle, rng = Oracle(prepared.graph, prepared.cluster, cache=0), random.Random(3)
    for start in common.random_placements(prepared, 3):
        walk(oracle, (start * 0).tolist(), 150, rng)
        walk(oracle, start.tolist(), 150, rng)


def searched(oracle: Oracle, method: str, seed: int) -> tuple[object, ...]:
    trial = Trial(SearchProblem(oracle, None, oracle, Strategy()), Budget(250, None, seed))  # type: ignore[arg-type]
    with pytest.raises(SpentError):
        METHODS[method].run(trial)
    best = trial.best
    assert best.base is not None
    points = [(at.evaluation, at.step_ps, at.memory_excess) for at in best.points]
    return best.base[0].tolist(), best.rank, points, trial.budget.evaluations


@pytest.mark.parametrize("method", ["annealing", "greedy"])
@pytest.mark.parametrize("memory", [None, "60 MB", "20 MB"])
def test_searches_find_the_same_with_limits(
    monkeypatch: pytest.MonkeyPatch, method: str, memory: str | None
):
    """Where nothing is limited, where memory is scarce, and where nothing fits."""
    prepared = common.layered(100, 3, "half-duplex", seed=1)
    oracle = Oracle(prepared.graph, limited(prepared.cluster, memory))
    with_limits = [searched(oracle, method, seed) for seed in range(3)]
    monkeypatch.setattr(Trial, "useful", lambda trial, limit: None)
    assert [searched(oracle, method, seed) for seed in range(3)] == with_limits


def test_a_limit_cuts_a_replay_short():
    """A device whose work alone exceeds the limit: nothing is simulated, and nothing accepted."""
    prepared = common.layered(300, 4, "half-duplex", seed=2)
    session = Oracle(prepared.graph, prepared.cluster).session(np.zeros(300, np.int64))
    assert session.propose(299, 1, session.cost.seconds / 2) is None
    assert session._moves is not None
    assert session._moves.base.columns.rows[TAKEN_UP] == 0
    with pytest.raises(InputError, match="nothing is proposed"):
        session.accept()


def test_a_limit_is_a_number():
    prepared = common.layered(20, 2, "parallel")
    oracle = Oracle(prepared.graph, prepared.cluster)
    with pytest.raises(InputError, match="got NaN"):
        oracle([0] * 20, math.nan)
    with pytest.raises(InputError, match="got NaN"):
        oracle.session([0] * 20).propose(0, 1, math.nan)
