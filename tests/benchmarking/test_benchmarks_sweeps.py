"""The benchmark of sweeps on a few tiny scenarios: whether it is right, not how fast they are."""

from __future__ import annotations

import sys
from math import prod
from pathlib import Path

import pytest

# plain `pytest` puts tests/ alone on the path
sys.path.append(str(Path(__file__).resolve().parents[2]))

from benchmarks import sweeps
from simdev.execution.scenario import load_scenario
from simdev.report import run

TINY = sweeps.Size(12, 1)


@pytest.mark.parametrize("count", [10, 40, 1000])
def test_the_grid_has_as_many_points_as_it_is_asked_for(count: int) -> None:
    distinct = [len(set(values)) for values in sweeps.grid(count).values()]
    assert prod(distinct) == count


def test_what_a_sweep_adds_and_its_simulations_are_its_time() -> None:
    more, simulation = sweeps.overhead(sweeps.SMALL, TINY)
    assert more > 0
    assert simulation > 0


def test_a_scenario_that_fails_is_not_measured() -> None:
    with pytest.raises(ValueError, match="a scenario failed"):
        sweeps.overhead(sweeps.SMALL | {"strategy": {"a": "nowhere"}}, TINY)


def test_the_question_is_one_that_runs() -> None:
    report = run(load_scenario({"version": 1, **sweeps.QUESTION}))
    assert report.transfer_count > 0
    assert sum(device.ops > 0 for device in report.devices) == 2
