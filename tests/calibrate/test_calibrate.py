"""Calibration: known numbers come back from clean and noisy traces, what is not told stays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

pytest.importorskip("scipy")

from simdev import Scenario
from simdev.costs import CostModel
from simdev.execution.engine import simulate
from simdev.lowering import lower
from simdev.measure.calibrate import Measured, calibrate, calibration_text
from simdev.measure.calibrate.solve import significant, solve
from simdev.nouns.cluster import QUEUES, TRANSFERS, Cluster, Device, Link
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.strategy import Strategy
from synthetic_steps import (
    TRUE,
    blurred,
    cluster_of,
    graph_of,
    measured_of,
    mixed_cluster,
    near,
    noisy,
    notes,
    question,
    spread,
    values,
)

# Recovery


@pytest.mark.parametrize("hold", [True, False])
@pytest.mark.parametrize("queues", QUEUES)
def test_a_clean_trace_gives_the_numbers_exactly(queues: str, hold: bool) -> None:
    scenario, task_graph = question(queues, hold)
    trace = simulate(task_graph, "simpy")
    calibration = calibrate(scenario, measured_of(trace))
    device, link = calibration.scenario.cluster.devices[0], calibration.scenario.cluster.links[0]
    assert (device.gap, link.latency) == (Fraction(57, 10**7), Fraction(134, 10**6))
    assert (link.bandwidth, link.gap) == (
        5_700_000_000,
        0 if queues in ("fair", "parallel") else Fraction(25, 10**6),
    )
    assert calibration.fitted_s * 1e12 == trace.end_ps
    assert all(residual.residual_s == 0 for residual in calibration.residuals)
    assert calibration.before_s != calibration.fitted_s


@pytest.mark.parametrize("seed", [3, 4, 5])
@pytest.mark.parametrize("hold", [True, False])
def test_gap_latency_and_bandwidth_come_back_from_a_noisy_trace(hold: bool, seed: int) -> None:
    """5 % of noise on every duration, lag and gap; 3 % is asked for."""
    scenario, task_graph = question(hold=hold)
    calibration = calibrate(scenario, noisy(task_graph, seed))
    near(values(calibration), 0.03, "gap", "link_gap", "latency", "bandwidth")
    assert calibration.overlap == 0
    for one in calibration.qualities:
        assert one.rms_relative[1] < 0.06


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_numbers_come_back_where_only_the_ends_of_spans_are_noisy(seed: int) -> None:
    scenario, task_graph = question(hold=False)
    calibration = calibrate(scenario, blurred(task_graph, seed))
    near(values(calibration), 0.03, "gap", "latency", "bandwidth")
    assert calibration.overlap > 0.02
    assert "begin before the one before them" in calibration_text(calibration)


def test_standard_errors_are_those_that_are_seen() -> None:
    """Of 40 fits, about two thirds lie within one standard error of the truth."""
    scenario, task_graph = question(graph=graph_of(120))
    inside = 0
    for seed in range(40):
        calibration = calibrate(scenario, noisy(task_graph, seed), ["latency", "bandwidth"])
        line = next(one for one in calibration.parameters if one.quantity == "bandwidth")
        assert line.error is not None
        inside += abs(float(line.value) - 5.7e9) <= line.error
    assert 20 <= inside <= 35


def test_standard_errors_hold_where_there_are_outliers() -> None:
    """The mean of the errors told is the spread of 200 fits, under noise whose variance is not
    finite.
    """
    rng, ones = np.random.default_rng(0), np.ones(80)
    fits = [solve(ones[:, None], 1 + 0.02 * rng.standard_t(2, 80), scale=ones) for _ in range(200)]
    seen = np.std([fit.values[0] for fit in fits])
    assert np.mean([fit.errors[0] for fit in fits]) == pytest.approx(seen, rel=0.12)


def test_a_number_is_told_with_the_digits_that_its_error_allows() -> None:
    assert significant(5.7003e9, 1e7, 0) == 5_700_000_000
    # 1.3e6 is more than a twentieth of the error
    assert significant(5.7013e9, 1e7, 0) == 5_701_000_000
    assert significant(5.7013e9, 0, 0) == 5_701_300_000


def test_interrupted_spans_do_not_spoil_a_fit() -> None:
    """Every twentieth span lasts ten times as long."""
    scenario, task_graph = question()
    tasks = task_graph.tasks
    slow = np.where(np.arange(len(tasks)) % 20 == 7, 10, 1)
    trace = simulate(
        replace(task_graph, tasks=replace(tasks, duration=tasks.duration * slow)), "simpy"
    )
    near(
        values(calibrate(scenario, measured_of(trace))),
        0.03,
        "gap",
        "link_gap",
        "latency",
        "bandwidth",
    )


def test_efficiencies_of_a_synthetic_device_come_back() -> None:
    """Known efficiencies by class of op, 5 % of noise, within 2 %; without noise exactly."""
    scenario, task_graph = question()
    known = {"matmul": Fraction(7, 10), "conv2d": Fraction(9, 10), "relu": Fraction(1, 4)}
    kinds = [op.kind for op in scenario.graph.ops]
    slower = task_graph.tasks.duration.copy()
    for i, kind in enumerate(kinds):
        slower[i] = -(-int(slower[i]) * known[kind].denominator // known[kind].numerator)
    true = replace(task_graph, tasks=replace(task_graph.tasks, duration=slower))
    wanted = ["gap", "latency", "bandwidth", "efficiency"]
    clean = calibrate(scenario, measured_of(simulate(true, "simpy")), wanted)
    found = {one.of: one.value for one in clean.parameters if one.quantity == "efficiency"}
    assert found == {f"gpu/{kind}": value for kind, value in known.items()}
    assert clean.fitted_s * 1e12 == simulate(true, "simpy").end_ps
    rough = calibrate(scenario, noisy(true, 9), wanted)
    for one in rough.parameters:
        if one.quantity == "efficiency":
            assert float(one.value) == pytest.approx(
                float(known[one.of.removeprefix("gpu/")]), rel=0.02
            )
    near(values(rough), 0.03, "gap", "link_gap", "latency", "bandwidth")


def test_only_the_efficiencies_that_are_named_are_fitted() -> None:
    scenario, task_graph = question()
    calibration = calibrate(
        scenario, measured_of(simulate(task_graph, "simpy")), ["efficiency:*/re*"]
    )
    assert [one.of for one in calibration.parameters] == ["gpu/relu"]
    assert calibration.scenario.cluster == scenario.cluster
    times = {op.name: op.time for op in calibration.scenario.graph.ops}
    assert all(
        isinstance(times[op.name], Mapping) is (op.kind == "relu") for op in scenario.graph.ops
    )


@pytest.mark.parametrize("transfer", TRANSFERS)
def test_each_class_of_links_has_numbers_of_its_own(transfer: str) -> None:
    graph = graph_of()
    true = replace(mixed_cluster("3 us", "7 us", "43.5 GB/s", "12 GB/s"), transfer=transfer)
    guess = replace(mixed_cluster("0 us", "1 us", "20 GB/s", "3 GB/s"), transfer=transfer)
    trace = simulate(lower(graph, true, CostModel(), spread(graph)), "simpy")
    calibration = calibrate(Scenario(graph, guess, CostModel(), spread(graph)), measured_of(trace))
    assert calibration.scenario.cluster.links == true.links
    assert {one.of for one in calibration.parameters} == {"gpu", "nvlink", "pcie"}


def test_pieces_and_chunks_at_a_staging_host() -> None:
    def hosted(bandwidth: str, latency: str) -> Cluster:
        devices = [
            Device("gpu:0"),
            Device("gpu:1"),
            Device("host", "cpu", staging=True, chunk=300_000),
        ]
        links = tuple(Link((f"gpu:{i}", "host"), bandwidth, latency) for i in range(2))
        return Cluster("hosted", tuple(devices), links, "device")

    graph = graph_of(60)
    strategy = Strategy({op.name: f"gpu:{i % 2}" for i, op in enumerate(graph.ops)})
    trace = simulate(lower(graph, hosted("11.7 GB/s", "9 us"), CostModel(), strategy), "simpy")
    scenario = Scenario(graph, hosted("1 GB/s", "0 us"), CostModel(), strategy)
    assert calibrate(scenario, measured_of(trace)).scenario.cluster == hosted("11.7 GB/s", "9 us")


def test_without_transfers_links_stay_as_they_are() -> None:
    graph = graph_of(20)
    scenario = Scenario(
        graph, cluster_of(), CostModel(), Strategy({op.name: "gpu:0" for op in graph.ops})
    )
    task_graph = lower(graph, cluster_of(**TRUE), CostModel(), scenario.strategy)
    calibration = calibrate(scenario, measured_of(simulate(task_graph, "simpy")))
    assert values(calibration) == {"gap": 5.7e-6}
    assert notes(calibration) == {
        "link_gap": "left alone: in the trace nothing there starts right after another",
        "latency": "left alone: no transfer waits for it",
        "bandwidth": "left alone: no transfer in the trace is ruled by it",
    }
    assert calibration.scenario.cluster.links == scenario.cluster.links
    assert "latency of gpu:0 - gpu:1 and 5 more (stays 10 us): left alone" in calibration_text(
        calibration
    )


def test_transfers_of_one_size_tell_the_bandwidth_for_the_latency_given() -> None:
    graph = graph_of(100, sizes=(1_000_000,))
    scenario, task_graph = question(graph=graph)
    scenario = replace(scenario, cluster=cluster_of(latency="134 us"))
    calibration = calibrate(scenario, measured_of(simulate(task_graph, "simpy")))
    near(values(calibration), 1e-9, "bandwidth", "gap", "link_gap")
    assert notes(calibration)["latency"].startswith(
        "left alone: the sizes sent do not tell it from the bandwidth"
    )


def test_a_latency_longer_than_any_transfer_leaves_the_bandwidth_alone() -> None:
    graph = graph_of(100, sizes=(1_000_000,))
    scenario, task_graph = question(graph=graph)
    calibration = calibrate(
        replace(scenario, cluster=cluster_of(latency="1 s")),
        measured_of(simulate(task_graph, "simpy")),
        ["bandwidth"],
    )
    assert notes(calibration) == {
        "bandwidth": "left alone: the latencies leave no time for sending"
    }


def test_spans_of_one_length_tell_no_bandwidth() -> None:
    """The least squares see transfers that cost nothing a byte: no link has such a bandwidth."""
    scenario, task_graph = question()
    spans = {name: ((0, 10**6),) for name in task_graph.tasks.name}
    found = calibrate(scenario, Measured(spans, "trace"))
    bandwidth = next(one for one in found.parameters if one.quantity == "bandwidth")
    assert bandwidth.value == bandwidth.before
    assert bandwidth.note == "left alone: the latencies leave no time for sending"


def test_a_latency_that_is_none_is_not_negative() -> None:
    graph = graph_of(150)
    scenario = Scenario(graph, cluster_of(), CostModel(), spread(graph))
    task_graph = lower(
        graph, cluster_of(bandwidth="1 GB/s", latency="0 us"), CostModel(), spread(graph)
    )
    found = [values(calibrate(scenario, noisy(task_graph, seed)))["latency"] for seed in range(6)]
    assert min(found) == 0
    assert max(found) < 1e-6


def test_a_trace_without_some_tasks_tells_of_the_others() -> None:
    """A queue on which something may have run unseen tells no gap."""
    scenario, task_graph = question("device")
    measured = measured_of(simulate(task_graph, "simpy"))
    gone = next(
        op.name for op in scenario.graph.ops if scenario.strategy.placement[op.name] == "gpu:2"
    )
    fewer = Measured(
        {name: span for name, span in measured.spans.items() if name != gone}
        | {"aten::mm": ((0, 1),)}
    )
    calibration = calibrate(scenario, fewer)
    assert (calibration.strangers, calibration.absent) == (("aten::mm",), (gone,))
    near(values(calibration), 1e-9, "gap", "link_gap", "latency", "bandwidth")
    counts = [one.parameters[0].count for one in (calibration, calibrate(scenario, measured))]
    assert counts[0] < counts[1]


def test_parameters_that_run_in_no_time_need_not_be_in_the_trace() -> None:
    ops = (
        Op("w", kind="parameter", outputs=(Tensor(8),), param_bytes=8, time=0),
        *(Op(f"o{i}", inputs=("w",), outputs=(Tensor(8),), time="10 us") for i in range(5)),
    )
    graph = Graph("g", ops)
    scenario = Scenario(
        graph, cluster_of(), CostModel(), Strategy({op.name: "gpu:0" for op in ops})
    )
    trace = simulate(lower(graph, cluster_of(**TRUE), CostModel(), scenario.strategy), "simpy")
    spans = {name: span for name, span in measured_of(trace).spans.items() if name != "w"}
    assert values(calibrate(scenario, Measured(spans))) == {"gap": 5.7e-6}
