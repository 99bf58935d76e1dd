"""Flows that would take longer than the clock can tell are refused by every engine."""

from __future__ import annotations

from typing import Any

import pytest

import simdev
from simdev.errors import InputError


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


@pytest.mark.parametrize("engine", ["simpy", "compiled"])
@pytest.mark.parametrize("size", [1, 10**6, 10**12, 10**15, 4 * 10**15])
def test_a_flow_under_the_limit_takes_its_bytes_over_its_bandwidth(size: int, engine: str) -> None:
    assert simdev.run(_scenario(size, engine)).step_ps == 1000 * size + 2_000_000


@pytest.mark.parametrize("engine", ["simpy", "compiled"])
@pytest.mark.parametrize("size", [5 * 10**15, 10**16, 10**17, 10**18])
def test_a_flow_beyond_the_limit_is_refused(size: int, engine: str) -> None:
    with pytest.raises(InputError, match="all times together exceed 53 days"):
        simdev.run(_scenario(size, engine))
