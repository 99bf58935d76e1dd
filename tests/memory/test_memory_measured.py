"""Steps that were measured on an H100: what PyTorch's counter told, and what is simulated."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.h100_memory import MEDIAN, RESERVED, WORST, all_peaks, summary
from benchmarks.measured import (
    MeasuredStep,
    graph_of,
    measured_steps,
    scenario_of,
    with_optimizer,
)
from simdev import Oracle
from simdev.execution.scenario import execute
from simdev.nouns.cluster import Device, Host
from simdev.report import analyze
from worlds.clusters import joined

STEPS = {step.name: step for step in measured_steps()}
QUICK = ("mlp-b32", "mlp-b4096", "alexnet-b256", "vgg-19-b64", "llama3-8b-4l-b1", "llama-70b-1l-b1")


def scenario(step: MeasuredStep, devices: int = 1):  # type: ignore[no-untyped-def]
    graph = graph_of(step)
    assert graph is not None
    one = scenario_of(step, graph)
    if devices == 1:
        return one
    names = [Device(f"gpu:{i}", "h100-sxm", "80 GiB") for i in range(devices)]
    cluster = joined(names, bandwidth="300 GB/s")
    return Oracle(graph, cluster, one.costs)


@pytest.mark.parametrize("name", QUICK)
def test_allocated_and_reserved_are_those_of_pytorch(name: str) -> None:
    step = STEPS[name]
    report = analyze(execute(scenario(step)))
    (use,), counters = report.footprint.allocators, step.figures["memory"]
    assert use.allocated == pytest.approx(counters["peak_allocated"], rel=0.001)
    assert use.between == pytest.approx(counters["allocated_before"], rel=0.001)
    assert use.reserved == pytest.approx(counters["peak_reserved"], rel=0.1)
    # What is judged against the capacity leaves out the rests of blocks.
    assert report.devices[0].memory.peak == pytest.approx(counters["peak_allocated"], rel=0.005)


@pytest.mark.parametrize("steps", ["once", "repeated"])
def test_hosts_and_steps_in_a_row_change_no_memory(steps: str) -> None:
    step = STEPS["mlp-b4096"]
    alone = scenario(step)
    cluster = replace(alone.cluster, host=Host())
    hosted = replace(alone, cluster=cluster, steps=steps)
    uses = [analyze(execute(each)).footprint.allocators for each in (alone, hosted)]
    assert uses[0] == uses[1]


def test_a_split_step_is_counted_alike_by_the_oracle() -> None:
    oracle = scenario(STEPS["mlp-b4096"], 2)
    peaks = [memory.peak for memory in oracle.trace("data-parallel").memory]
    assert list(oracle("data-parallel").peaks) == peaks
    assert oracle.evaluator("fifo") is not None


def test_a_placed_step_is_counted_alike_by_the_oracle() -> None:
    oracle = scenario(STEPS["alexnet-b256"], 2)
    placement = [i * 2 // len(oracle.groups) for i in range(len(oracle.groups))]
    peaks = [memory.peak for memory in oracle.trace(placement).memory]
    assert list(oracle(placement).peaks) == peaks


@pytest.mark.slow
def test_all_steps_stay_within_what_the_benchmark_asks() -> None:
    peaks = list(all_peaks(list(STEPS.values()), captured=False))
    errors = summary(peaks)
    assert sum(each.has_rows for each in peaks) == 15
    assert errors["peak_allocated"]["median"] <= MEDIAN
    assert errors["peak_allocated"]["worst"] <= WORST
    assert errors["peak_reserved"]["worst"] <= RESERVED
    assert errors["peak"]["worst"] <= WORST


def test_another_optimizer_has_its_own_updates_and_states() -> None:
    graph = graph_of(STEPS["mlp-b32"])
    assert graph is not None
    adam = with_optimizer(graph, "adam")
    assert {op.kind for op in adam.ops if op.phase == "update"} == {"adam_update"}
    states = {op.name: op.state_bytes for op in graph.ops if op.state_bytes}
    assert {op.name: op.state_bytes for op in adam.ops if op.state_bytes} == {
        name: 2 * size for name, size in states.items()
    }
    assert with_optimizer(adam, "sgd-momentum") == graph
