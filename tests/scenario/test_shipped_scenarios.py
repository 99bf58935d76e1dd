"""The scenarios that are shipped: all can be run, and those that ask about one thing answer it as
they should.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from simdev.execution.check import check
from simdev.execution.scenario import load_scenario
from simdev.report import Report, run
from simdev.search.sweep import sweep

SCENARIOS = Path(__file__).parents[2] / "scenarios"
FILES = sorted(SCENARIOS.glob("*.json"))


def answer(name: str) -> Report:
    report = run(load_scenario(SCENARIOS / f"{name}.json"))
    assert check(report.trace.task_graph, report.trace) == ()
    return report


def test_there_are_many_and_each_is_a_scenario() -> None:
    assert len(FILES) >= 25
    for path in FILES:
        value = json.loads(path.read_text())
        assert value["version"] == 1
        assert {"graph", "cluster", "strategy"} <= value.keys()


@pytest.mark.slow
def test_every_one_is_answered() -> None:
    results = sweep(FILES)
    assert set(results["status"]) <= {"ok", "infeasible"}
    assert (
        results.set_index("scenario")["status"][str(SCENARIOS / "bert-large-1x-p4000.json")]
        == "infeasible"
    )


@pytest.mark.parametrize(
    ("name", "live"), [("pipeline-gpipe", [8, 8, 8, 8]), ("pipeline-1f1b", [4, 3, 2, 1])]
)
def test_pipelines_take_what_their_papers_say(name: str, live: list[int]) -> None:
    """(m + p - 1)(f + b) with 4 stages, 8 microbatches, 1 and 2 ms; activations of 100 MB, what is
    sent 1 MB.
    """
    report = answer(name)
    assert report.step_ps == pytest.approx(11 * 3 * 10**9, rel=1e-6)
    assert [device.memory.peak // 10**8 for device in report.devices] == live


@pytest.mark.parametrize("name", ["bert-large-4x-v100", "gnmt-4x-rtx-2080"])
def test_pipelines_over_graphs_beat_one_microbatch_after_the_other(name: str) -> None:
    scenario = load_scenario(SCENARIOS / f"{name}-pipeline.json")
    pipeline = scenario.strategy.pipeline
    assert pipeline is not None
    report = answer(f"{name}-pipeline")
    single = replace(pipeline, microbatches=1)
    alone = run(replace(scenario, strategy=replace(scenario.strategy, pipeline=single)))
    assert report.step_ps < pipeline.microbatches * alone.step_ps
    assert sum(device.ops > 0 for device in report.devices) == 4


def test_parallel_communication_is_faster_than_sequential() -> None:
    sequential, parallel = (
        answer(f"gnmt-4x-rtx-2080-{mode}") for mode in ("sequential", "parallel")
    )
    assert parallel.step_ps < sequential.step_ps
    assert parallel.blame["queueing"] == 0
    assert parallel.transfer_bytes == sequential.transfer_bytes


def test_one_send_for_all_is_less_than_one_for_each() -> None:
    each, once = (
        answer(f"inception-v3-branches-{mode}") for mode in ("once-per-device", "multicast")
    )
    assert once.step_ps < each.step_ps
    assert once.transfer_count < each.transfer_count


def test_what_goes_by_way_of_the_host_lies_there_in_chunks() -> None:
    report = answer("alexnet-2x-gpu-staged")
    host = next(device for device in report.devices if device.name == "host")
    assert 0 < host.memory.at_peak["staging"] == host.memory.peak
    assert all(size <= 4_000_000 for _, size in host.memory.live_at_peak)


def test_a_step_that_does_not_fit_is_an_answer() -> None:
    report = answer("bert-large-1x-p4000")
    assert not report.feasible
    assert report.memory_excess > 0
