"""Moves against full evaluations, by ==, along random walks of proposals that are accepted and
rejected.
"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import common
from simdev.ground.errors import InputError
from simdev.nouns.cluster import QUEUES, Device
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.taskgraph import Ints
from simdev.oracle import Oracle
from simdev.oracle.placements.problem import work_for
from worlds.clusters import joined, limited
from worlds.graphs import chain
from worlds.scenarios import World, worlds


def together(oracle: Oracle, placement: Ints, row: int, rng: random.Random) -> list[int]:
    """A group, or with it some of those that stand on its device, in any order and repeated."""
    here = [placement[group[0]] == placement[oracle.groups[row][0]] for group in oracle.groups]
    others = [other for other, stands in enumerate(here) if stands]
    return [row, *rng.choices(others, k=rng.choice([0, 0, 1, 2, 5]))]


def walk(oracle: Oracle, start: list[int], steps: int, seed: int) -> None:
    """Every proposal, and the current cost after every answer, equals a full evaluation."""
    rng, session = random.Random(seed), oracle.session(start)
    current = np.array(session.placement)
    runs = [d for d, device in enumerate(oracle.cluster.devices) if device.runs_ops]
    for _ in range(steps):
        row, device = rng.randrange(len(oracle.groups)), rng.choice(runs)
        rows = together(oracle, current, row, rng)
        proposed = current.copy()
        for moved in rows:
            proposed[list(oracle.groups[moved])] = device
        units = rng.choice([rows, np.array(rows)]) if len(rows) > 1 else row
        try:
            expected = oracle(proposed)
        except InputError:
            with pytest.raises(InputError):
                session.propose(units, device)
            continue
        cost = session.propose(units, device)
        assert (cost.step_ps, cost.feasible) == (expected.step_ps, expected.feasible)
        if rng.random() < 0.4:
            session.accept()
            current = proposed
        else:
            session.reject()
        assert session.cost.step_ps == oracle(current).step_ps
        assert session.placement.tolist() == current.tolist()


@settings(max_examples=150)
@given(worlds(policies=("fifo",)), st.integers(0, 1000))
def test_walks_on_tie_rich_questions(world: World, seed: int):
    start = [world.cluster.index[world.strategy.placement[op.name]] for op in world.graph.ops]
    if start:
        walk(Oracle(world.graph, limited(world.cluster, None)), start, 25, seed)
        walk(Oracle(world.graph, world.cluster), start, 3, seed)


@pytest.mark.parametrize("queues", QUEUES)
def test_long_walks_on_layered_graphs(queues):
    prepared = common.layered(300, 6, queues, seed=2)
    start = common.random_placements(prepared, 1)[0].tolist()
    walk(
        Oracle(prepared.graph, limited(prepared.cluster, None), cache=0),
        start,
        1000 if queues != "fair" else 20,
        5,
    )


def test_a_thousand_moves_on_the_measured_translation_model():
    prepared = common.gnmt("half-duplex")
    start = common.random_placements(prepared, 1)[0].tolist()
    walk(Oracle(prepared.graph, prepared.cluster, cache=0), start, 1000, 1)


def small(memory: str | None = None) -> Oracle:
    ops = (
        Op("a", time="1 us", outputs=(Tensor(1000),)),
        Op("b", inputs=("a",), time="2 us", colocate="pair"),
        Op("c", time="2 us", colocate="pair"),
    )
    devices = [Device("g0", memory=memory), Device("g1", memory=memory), Device("s", kind="switch")]
    return Oracle(Graph("g", ops), joined(devices, bandwidth="1 GB/s"))


def test_units_go_by_name_group_or_row():
    session = small().session({"a": "g0", "pair": "g0"})
    costs = [
        session.propose(unit, device).step_ps
        for unit in ("b", "c", "pair", 1, np.int64(1), [1], np.array([1]))
        for device in ("g1", 1)
    ]
    assert len(set(costs)) == 1
    session.accept()
    assert session.placement.tolist() == [0, 1, 1]


def test_units_move_together_from_one_device_alone():
    session = small().session([0, 0, 0])
    apart, together = small()([0, 1, 1]), session.propose(["a", "pair"], "g1")
    assert together.step_ps == small()([1, 1, 1]).step_ps
    assert session.propose(["b", "c"], "g1").step_ps == apart.step_ps  # one group, named twice
    session.accept()
    with pytest.raises(InputError, match="only what stands on one device can be moved together"):
        session.propose(["a", "b"], "g1")


@pytest.mark.parametrize("memory", [None, "1 kB"])
def test_malformed_moves_are_refused_and_change_nothing(memory):
    session = small(memory).session([0, 0, 0])
    before = session.cost
    for unit, device in [
        ("d", 0),
        (2, 0),
        (-1, 0),
        (True, 0),
        ("a", "g2"),
        ("a", 3),
        ("a", -1),
        ("a", 2),
        ("a", "s"),
        ([], 1),
        (np.array([], np.int64), 1),
        (["a", "d"], 1),
        (np.array([0, 2]), 1),
        (np.array([1, -1]), 1),
        (np.array(["a", "b"]), 1),
        (np.array([0.0]), 1),
        (np.array([[0]]), 1),
    ]:
        with pytest.raises(InputError):
            session.propose(unit, device)
    with pytest.raises(InputError, match="nothing is proposed"):
        session.accept()
    assert session.cost == before
    assert session.placement.tolist() == [0, 0, 0]


def test_memory_counts_where_there_is_a_capacity():
    session = small("500 B").session([0, 0, 0])
    assert not session.cost.feasible
    assert session.propose("a", "g1").memory_excess == 500


def test_steps_too_long_for_the_short_path_go_the_long_way():
    """Instants of some weeks do not fit beside an op in one key: no move may come out wrong for
    that.
    """
    graph = chain(*[10**16] * 300, size=8)
    oracle = Oracle(graph, joined(2, bandwidth="1 GB/s"), cache=0)
    walk(oracle, [0] * 300, 10, 3)


def test_instants_beyond_a_key():
    """A step of hours, whose instants do not fit beside an op: keys are counted from later on, in
    base and replay.
    """
    prepared = common.layered(300, 3, "half-duplex", seed=2)
    ops = tuple(replace(one, time=one.seconds_on("") * 400_000) for one in prepared.graph.ops)
    oracle = Oracle(Graph("hours", ops), prepared.cluster)
    start = np.random.default_rng(3).integers(0, 3, 300)
    session, short = oracle.session(start), oracle.evaluator("fifo")
    assert session._moves is not None
    assert short is not None
    assert session.cost.step_ps > work_for(short.problem.columns).horizon
    walk(oracle, start.tolist(), 60, 4)
