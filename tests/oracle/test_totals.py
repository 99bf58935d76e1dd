"""Whether a placement fits, by totals, and peaks that are computed when they are read, equal what
lowering and simulating tell.
"""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import common
from simdev.ground.errors import InputError
from simdev.oracle import Cost, Oracle
from simdev.oracle.placements import evaluator
from worlds.clusters import limited
from worlds.scenarios import World, expected, oracle_of, worlds


def fitted(world: World, capacities: list[int]) -> World:
    devices = [
        replace(device, memory=max(capacity, 1)) if device.runs_ops else device
        for device, capacity in zip(world.cluster.devices, capacities, strict=True)
    ]
    return world.but(cluster=replace(world.cluster, devices=tuple(devices)))


@settings(max_examples=40)
@given(worlds(policies=("fifo", "program")), st.lists(st.integers(-2, 40), min_size=9, max_size=9))
def test_excess_is_exact_at_the_very_capacity(world: World, spare: list[int]):
    """Capacities at the peaks and a little beside them: below, between peak and total, above."""
    peaks = expected(world).peaks
    tight = fitted(world, [peak + spare[d % 9] for d, peak in enumerate(peaks)])
    oracle, cost = oracle_of(tight, cache=0), expected(tight)
    column = oracle.placement(tight.strategy.placement)
    for _ in range(2):  # without a record, and perhaps with one
        found = oracle(column)
        assert (found.feasible, found.memory_excess, found.step_ps) == (
            cost.feasible,
            cost.memory_excess,
            cost.step_ps,
        )
        assert oracle(column, cost.seconds) == found == cost
    oracle(column * 0)
    assert found == cost


def asked(memory: str | None, count: int = 40) -> tuple[Oracle, list[np.ndarray]]:
    prepared = common.layered(120, 3, "half-duplex", seed=4)
    oracle = Oracle(prepared.graph, limited(prepared.cluster, memory), cache=0)
    return oracle, common.random_placements(prepared, count)


@pytest.mark.parametrize("memory", [None, "80 MB", "50 MB", "30 MB"])
def test_peaks_may_be_read_at_any_time(memory: str | None):
    oracle, placements = asked(memory)
    expected = [oracle.in_full(oracle.strategy(one)) for one in placements]
    rows = [one.copy() for one in placements]
    costs = [oracle(row) for row in rows]
    for row in rows:
        row[:] = 0  # a search changes its placement in place
    assert [(c.feasible, c.memory_excess) for c in costs] == [
        (c.feasible, c.memory_excess) for c in expected
    ]
    assert costs[7].peaks == expected[7].peaks
    copies = pickle.loads(pickle.dumps(costs[:20]))
    assert copies == expected[:20]
    with ThreadPoolExecutor(2) as pool:
        twice = [pool.submit(lambda cost=cost: cost.peaks) for cost in [*costs, *costs]]
        assert [one.result() for one in twice] == [cost.peaks for cost in [*expected, *expected]]
    assert costs == expected
    assert [replace(oracle(one), feasible=True).peaks for one in placements] == [
        cost.peaks for cost in expected
    ]


def test_no_buffer_is_looked_at_where_totals_prove_it(monkeypatch: pytest.MonkeyPatch):
    oracle, placements = asked("80 MB")
    compiled = oracle.evaluator("fifo")
    assert compiled is not None
    assert not compiled._always_fits
    looked: list[Cost] = []

    def look(*_: object) -> int:
        raise AssertionError("looked")

    monkeypatch.setattr(evaluator, "fill_peaks", look)
    for one in placements:
        looked.append(oracle(one))
        assert looked[-1].feasible
    with pytest.raises(AssertionError, match="looked"):
        _ = looked[0].peaks


def test_a_cost_has_no_other_attribute():
    cost = asked("1 GB")[0]([0] * 120)
    with pytest.raises(AttributeError, match="excess"):
        _ = cost.excess  # type: ignore[attr-defined]
    assert hash(cost) == hash(replace(cost))
    assert repr(cost).endswith(f"peaks={cost.peaks})")


@pytest.mark.parametrize("cache", [0, 100])
@pytest.mark.parametrize("memory", [None, "80 MB", "42 MB"])
def test_batches_of_rows_equal_serial_calls(memory: str | None, cache: int):
    oracle, placements = asked(memory)
    expected = [oracle.in_full(oracle.strategy(one)) for one in placements]
    oracle = oracle.on(oracle.graph, cache)
    for jobs in (1, 2):
        costs = oracle.batch(placements, jobs)
        assert [(c.feasible, c.memory_excess, c.step_ps) for c in costs] == [
            (c.feasible, c.memory_excess, c.step_ps) for c in expected
        ]
        assert costs == expected
    assert oracle.evaluations == 2 * len(placements)
    assert oracle.cpu_seconds > 0
    with pytest.raises(InputError, match=r"is not in 0\.\.2"):
        oracle.batch([*placements, placements[0] + 3], 2)
