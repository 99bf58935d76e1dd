"""Flows that would take longer than the clock can tell are refused by every engine, whatever the
queues, and all agree on those that do not.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simdev
from simdev.execution.check import check
from simdev.execution.engine import ENGINES
from simdev.ground.errors import InputError
from simdev.nouns.cluster import QUEUES


def _scenario(size: int, engine: str) -> simdev.Scenario:
    ops: list[dict[str, Any]] = [
        {"name": "a", "kind": "x", "inputs": [], "outputs": [{"bytes": size}], "time": "1 us"},
        {"name": "b", "kind": "x", "inputs": ["a"], "outputs": [{"bytes": 1}], "time": "1 us"},
    ]
    devices = [{"name": f"gpu:{i}", "kind": "x"} for i in range(2)]
    cluster = {
        "version": 1,
        "name": "pair",
        "queues": "fair",
        "devices": devices,
        "links": [{"ends": ["gpu:0", "gpu:1"], "bandwidth": "1 GB/s"}],
    }
    document = {
        "version": 1,
        "graph": {"version": 1, "name": "two ops", "ops": ops},
        "cluster": cluster,
        "strategy": {"placement": {"a": "gpu:0", "b": "gpu:1"}},
        "options": {"engine": engine},
    }
    return simdev.load_scenario(document)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("size", [1, 10**6, 10**12, 10**15, 4 * 10**15])
def test_a_flow_under_the_limit_takes_its_bytes_over_its_bandwidth(size: int, engine: str) -> None:
    assert simdev.run(_scenario(size, engine)).step_ps == 1000 * size + 2_000_000


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("size", [5 * 10**15, 10**16, 10**17, 10**18])
def test_a_flow_beyond_the_limit_is_refused(size: int, engine: str) -> None:
    with pytest.raises(InputError, match="all times together exceed 53 days"):
        simdev.run(_scenario(size, engine))


def _question(seed: int) -> dict[str, Any]:
    """Ops that send 0 to 10^18 bytes over links of 1 to 10^15 bytes a second."""
    draw = random.Random(seed)
    ops = [
        {
            "name": f"op{i}",
            "kind": "x",
            "inputs": [f"op{draw.randrange(i)}" for _ in range(draw.randint(0, 2))] if i else [],
            "outputs": [{"bytes": draw.choice((0, 1, draw.randint(0, 10 ** draw.randint(1, 18))))}],
            "time": f"{draw.choice((0, 1, 10 ** draw.randint(0, 9)))} ps",
        }
        for i in range(draw.randint(2, 6))
    ]
    devices = [{"name": f"gpu:{i}"} for i in range(draw.randint(2, 4))]
    link = {
        "bandwidth": draw.choice((1, 12, 10 ** draw.randint(0, 15))),
        "latency": f"{draw.choice((0, 1, 10**6))} ps",
        "hold_latency": draw.random() < 0.5,
    }
    return {
        "version": 1,
        "graph": {"version": 1, "name": "random", "ops": ops},
        "cluster": {
            "version": 1,
            "name": "random",
            "queues": draw.choice(QUEUES),
            "devices": devices,
            "links": {"all_to_all": link},
        },
        "strategy": {"placement": {op["name"]: draw.choice(devices)["name"] for op in ops}},
    }


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 10**9))
def test_engines_and_oracle_agree_or_all_refuse(seed: int) -> None:
    question, answers = _question(seed), list[Any]()
    for engine in ENGINES:
        try:
            trace = simdev.run(
                simdev.load_scenario(question | {"options": {"engine": engine}})
            ).trace
            assert check(trace.task_graph, trace) == ()
            answers.append((trace.end_ps, trace.start.tolist(), trace.finish.tolist()))
        except InputError as error:
            answers.append(error.problems)
    scenario = simdev.load_scenario(question)
    oracle = simdev.Oracle(scenario.graph, scenario.cluster, scenario.costs)
    try:
        answers.append((oracle(scenario.strategy).step_ps, *answers[0][1:]))
    except InputError as error:
        answers.append(error.problems)
    assert answers[0] == answers[1] == answers[2]
