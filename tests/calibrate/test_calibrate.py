"""Calibration: known numbers come back from clean and noisy traces, what is not told stays, files
are written whole.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("scipy")

from simdev import Scenario, load_scenario
from simdev.calibrate import Calibration, Measured, calibrate, calibration_text, read_measured
from simdev.calibrate.solve import goodness, independent, middle, shortest, significant, solve
from simdev.cli import main
from simdev.cluster import QUEUES, Cluster, Device, Link
from simdev.costs import CostModel
from simdev.engine import simulate
from simdev.errors import InputError, SimdevError
from simdev.files import read_cluster, write_cluster, write_graph, write_run, write_strategy
from simdev.graph import Graph, Op, Tensor
from simdev.lowering import lower
from simdev.report.export import export_chrome_trace
from simdev.strategy import Strategy
from simdev.taskgraph import TaskGraph
from simdev.trace import Trace

TRUE = {"gap": "5.7 us", "latency": "134 us", "bandwidth": "5.7 GB/s", "link_gap": "25 us"}
SIZES = (4096, 65_536, 1_000_000, 5_000_000)
KINDS = ("matmul", "conv2d", "relu")


def graph_of(count: int = 250, seed: int = 1, sizes: tuple[int, ...] = SIZES) -> Graph:
    """Ops that read up to two of the twelve before them."""
    draw, ops = random.Random(seed), list[Op]()
    for i in range(count):
        before = (
            sorted({draw.randrange(max(0, i - 12), i) for _ in range(draw.randint(0, 2))})
            if i
            else []
        )
        ops.append(
            Op(
                f"o{i}",
                kind=draw.choice(KINDS),
                inputs=tuple(f"o{j}" for j in before),
                outputs=(Tensor(draw.choice(sizes)),),
                time=f"{draw.randint(20, 900)} us",
            )
        )
    return Graph("g", tuple(ops))


def cluster_of(
    queues: str = "half-duplex",
    hold: bool = True,
    gap: str = "0 us",
    latency: str = "10 us",
    bandwidth: str = "2 GB/s",
    link_gap: str = "0 us",
) -> Cluster:
    """Four devices; by default with numbers that are far from TRUE."""
    links = {"bandwidth": bandwidth, "latency": latency, "hold_latency": hold, "gap": link_gap}
    return Cluster.all_to_all("c", [Device(f"gpu:{i}", gap=gap) for i in range(4)], queues, **links)


def spread(graph: Graph, seed: int = 2) -> Strategy:
    draw = random.Random(seed)
    return Strategy({op.name: f"gpu:{draw.randrange(4)}" for op in graph.ops})


def measured_of(trace: Trace, finish: np.ndarray | None = None) -> Measured:
    names, ends = trace.task_graph.tasks.name, trace.finish if finish is None else finish
    spans = zip(trace.start.tolist(), ends.tolist(), strict=True)
    return Measured({name: (span,) for name, span in zip(names, spans, strict=True)}, "trace")


def factors(draw: np.random.Generator, count: int, sigma: float) -> np.ndarray:
    return np.maximum(1 + sigma * draw.standard_normal(count), 0.2)


def noisy(task_graph: TaskGraph, seed: int, sigma: float = 0.05) -> Measured:
    """A step of which every duration, gap and lag is off by a factor of its own."""
    draw, tasks = np.random.default_rng(seed), task_graph.tasks
    changed = {
        name: np.round(getattr(tasks, name) * factors(draw, len(tasks), sigma)).astype(np.int64)
        for name in ("duration", "lag", "gap")
    }
    return measured_of(simulate(replace(task_graph, tasks=replace(tasks, **changed)), "simpy"))


def blurred(task_graph: TaskGraph, seed: int, sigma: float = 0.05) -> Measured:
    """An exact step of which the ends of all spans are off: spans of one queue overlap."""
    trace, draw = simulate(task_graph, "simpy"), np.random.default_rng(seed)
    length = np.round((trace.finish - trace.start) * factors(draw, len(trace.start), sigma)).astype(
        np.int64
    )
    return measured_of(trace, trace.start + length)


def question(
    queues: str = "half-duplex", hold: bool = True, graph: Graph | None = None
) -> tuple[Scenario, TaskGraph]:
    """A scenario with wrong numbers, and the task graph with the true ones."""
    graph = graph or graph_of()
    truth = TRUE if queues not in ("fair", "parallel") else TRUE | {"link_gap": "0 us"}
    task_graph = lower(graph, cluster_of(queues, hold, **truth), CostModel(), spread(graph))
    return Scenario(graph, cluster_of(queues, hold), CostModel(), spread(graph)), task_graph


def values(calibration: Calibration) -> dict[str, float]:
    """The fitted numbers by quantity, gaps of links apart."""
    return {
        ("link_" if one.on_links and one.quantity == "gap" else "") + one.quantity: float(one.value)
        for one in calibration.parameters
        if one.fitted
    }


def near(found: Mapping[str, float], share: float, *names: str) -> None:
    wanted = {"gap": 5.7e-6, "latency": 134e-6, "bandwidth": 5.7e9, "link_gap": 25e-6}
    for name in names:
        assert found[name] == pytest.approx(wanted[name], rel=share), name


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


# Several classes of links, routes and copies


def mixed_cluster(nvlink: str, pcie: str, fast: str, slow: str) -> Cluster:
    """Two pairs on fast links; the pairs are joined through a switch by slow ones."""
    devices = [Device(f"gpu:{i}", transit=False) for i in range(4)] + [Device("hub", "switch")]
    fast_links = [Link((f"gpu:{i}", f"gpu:{i + 1}"), fast, nvlink, kind="nvlink") for i in (0, 2)]
    slow_links = [Link((f"gpu:{i}", "hub"), slow, pcie, kind="pcie") for i in range(4)]
    return Cluster("mixed", tuple(devices), (*fast_links, *slow_links), "link")


@pytest.mark.parametrize("transfer", ["once-per-device", "per-consumer", "multicast"])
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


# What a trace does not tell


def notes(calibration: Calibration) -> dict[str, str]:
    return {
        ("link_" if one.on_links and one.quantity == "gap" else "") + one.quantity: one.note
        for one in calibration.parameters
        if not one.fitted
    }


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


# Reading traces


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a scenario of wrong numbers (s.json), a run and a Chrome trace of
    the true ones.
    """
    monkeypatch.chdir(tmp_path)
    scenario, task_graph = question(graph=graph_of(80))
    (tmp_path / "parts").mkdir()
    write_graph(scenario.graph, "parts/g.json")
    write_cluster(
        replace(scenario.cluster, provenance={"links.all_to_all.latency": {"kind": "datasheet"}}),
        "c.json",
    )
    write_strategy(scenario.strategy, "parts/p.json")
    parts = {"graph": "parts/g.json", "cluster": "c.json", "strategy": "parts/p.json"}
    Path("s.json").write_text(
        json.dumps({"version": 1, "name": "test", **parts, "options": {"engine": "simpy"}})
    )
    trace = simulate(task_graph, "simpy")
    write_run(trace, "run.json")
    export_chrome_trace(trace, "chrome.json.gz")
    return tmp_path


def test_a_run_and_a_chrome_trace_tell_the_same(here: Path) -> None:
    assert read_measured("run.json").spans == read_measured("chrome.json.gz").spans


def event(name: str, ts: float, dur: float, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "ts": ts, "dur": dur, **more}


def chain(events: Any) -> Calibration:
    """Three ops in a row of 10 us each on one device of a scenario without gaps, measured as
    told.
    """
    Path("t.json").write_text(json.dumps(events))
    ops = tuple(
        Op(f"o{i}", control_inputs=(f"o{i - 1}",) if i else (), time="10 us") for i in range(3)
    )
    scenario = Scenario(
        Graph("g", ops), Cluster("c", (Device("gpu:0"),)), CostModel(), Strategy({"*": "gpu:0"})
    )
    return calibrate(scenario, read_measured("t.json"), ["gap"])


def test_steps_are_told_apart_by_the_order_of_time(here: Path) -> None:
    """Two steps, listed in any order, with gaps of 4.5, 4.3, 4 and 4.2 us."""
    spans = [
        ("o1", 14.5, 10),
        ("o0", 0, 10),
        ("o1", 114, 10),
        ("o2", 128.2, 10),
        ("o2", 28.8, 10),
        ("o0", 100.5, 9.5),
    ]
    calibration = chain({"traceEvents": [event(*span) for span in spans], "displayTimeUnit": "ns"})
    (gap,) = calibration.parameters
    assert (float(gap.value), gap.count) == (pytest.approx(4.25e-6, abs=0.05e-6), 4)
    assert calibration.steps_s == (38.8e-6, 37.7e-6)
    assert "mean of 2 steps" in calibration_text(calibration)


def test_a_task_that_some_steps_lack_is_left_out(here: Path) -> None:
    """And since it ran on the one queue there is, no gap is certain."""
    spans = [("o0", 0, 10), ("o1", 14, 10), ("o0", 100, 10), ("o1", 114, 10), ("o2", 128, 10)]
    calibration = chain([event(*span) for span in spans])
    assert calibration.uneven == ("o2",)
    assert notes(calibration) == {
        "gap": "left alone: in the trace nothing there starts right after another"
    }
    told = "Tasks that the trace holds more or less often than the others, left out: 1 (o2)"
    assert told in calibration_text(calibration)


def test_a_trace_of_years_is_refused(here: Path) -> None:
    with pytest.raises(InputError, match="more than 53 days apart"):
        chain([event("o0", 0, 10), event("o1", 1e15, 10)])


def test_a_shift_in_time_and_the_order_of_events_change_nothing(here: Path) -> None:
    spans = [(f"o{i}", 13.25 * i, 10) for i in range(3)]
    first = chain([event(*span) for span in spans])
    second = chain(
        [event(name, ts + 1e12, dur, pid=1, tid=2, args={}) for name, ts, dur in spans[::-1]]
    )
    assert first.parameters == second.parameters
    assert float(first.parameters[0].value) == 3.25e-6


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("{}", 'is neither a saved run ("spans") nor a Chrome trace ("traceEvents")'),
        ("7", 'is neither a saved run ("spans") nor a Chrome trace ("traceEvents")'),
        ("[]", "holds no spans"),
        ('{"traceEvents": {}}', "traceEvents: must be a list, got an object"),
        (json.dumps([event("o0", 0, -1)]), "traceEvents[0].dur: must not be negative, got -1"),
        (
            json.dumps([event("o0", "0", 1)]),
            'traceEvents[0].ts: must be a number of microseconds, got "0"',
        ),
        (
            json.dumps([{"ph": "X", "dur": 1, "ts": 1}]),
            "traceEvents[0].name: must be text, got null",
        ),
        (json.dumps([event("o0", 1e30, 1)]), "traceEvents[0].ts: is out of range: 1E+30"),
        ('[{"ph": "X", "name": "o0", "ts": NaN, "dur": 1}]', "[0].ts: NaN is not a number in JSON"),
        (
            json.dumps([event("aten::mm", 0, 1)]),
            'no span bears the name of a task: the trace has "aten::mm", the scenario "o0"',
        ),
    ],
)
def test_a_broken_trace_is_refused(
    content: str, line: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("t.json").write_text(content)
    before = sorted(path.name for path in here.iterdir())
    assert main(["calibrate", "s.json", "t.json", "-o", "out.json"]) == 2
    assert capsys.readouterr().err == f"t.json: {line}\n"
    assert sorted(path.name for path in here.iterdir()) == before


# Files and the command line


def test_the_written_scenario_is_the_fitted_one(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "deep").mkdir()
    arguments = [
        "calibrate",
        "s.json",
        "run.json",
        "--fit",
        "gap,latency,bandwidth,efficiency:*/relu",
    ]
    assert main([*arguments, "-o", "deep/out.json", "--cluster", "deep/c.json.gz"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "(+0.00%)" in printed.out.splitlines()[0]
    found, written = load_scenario("deep/out.json"), json.loads(Path("deep/out.json").read_text())
    expected = calibrate(
        load_scenario("s.json"), read_measured("run.json"), arguments[4].split(",")
    ).scenario
    assert found == expected
    assert (written["name"], written["options"]) == ("test", {"engine": "simpy"})
    assert written["strategy"] == "../parts/p.json"
    assert isinstance(written["graph"], dict)
    assert read_cluster("deep/c.json.gz") == found.cluster
    told = found.cluster.provenance
    # what stood for all links stands no more
    assert {entry["kind"] for entry in told.values()} == {"fitted"}
    assert float(told["devices.gpu.gap"]["value"]) == 5.7e-6
    assert told["links.gpu:0 - gpu:1 and 5 more.bandwidth"]["source"].endswith("on run.json")
    assert written["provenance"]["devices.gpu/relu.efficiency"]["value"] == 1
    first = Path("deep/out.json").read_bytes()
    assert main([*arguments, "-o", "deep/out.json"]) == 0
    assert Path("deep/out.json").read_bytes() == first
    capsys.readouterr()
    assert main(["simulate", "deep/out.json", "--json"]) == 0
    assert (
        json.loads(capsys.readouterr().out)["step_time_ps"]
        == json.loads(Path("run.json").read_text())["step_time_ps"]
    )


def test_a_preset_gives_way_to_the_fitted_cluster(here: Path) -> None:
    graph, strategy = graph_of(40), spread(graph_of(40))
    write_graph(graph, "parts/g.json")
    write_strategy(strategy, "parts/p.json")
    value = json.loads(Path("s.json").read_text()) | {"cluster": "4x-rtx-2080"}
    Path("s.json").write_text(json.dumps(value))
    scenario = load_scenario("s.json")
    faster = tuple(replace(link, bandwidth="9 GB/s") for link in scenario.cluster.links)
    task_graph = lower(graph, replace(scenario.cluster, links=faster), scenario.costs, strategy)
    write_run(simulate(task_graph, "simpy"), "run.json")
    assert main(["calibrate", "s.json", "run.json", "--fit", "bandwidth", "-o", "out.json"]) == 0
    found = load_scenario("out.json").cluster
    assert {link.bandwidth for link in found.links} == {Fraction(9 * 10**9)}
    kinds = {name: entry["kind"] for name, entry in found.provenance.items()}
    assert [name for name, kind in kinds.items() if name.endswith("bandwidth")] == [
        name for name, kind in kinds.items() if kind == "fitted" and name.endswith("bandwidth")
    ]


def test_json_holds_every_residual(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "s.json", "chrome.json.gz", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    names = json.loads(Path("run.json").read_text())["tasks"]["name"]
    assert [one["task"] for one in found["residuals"]] == names
    assert {one["kind"] for one in found["residuals"]} == {"op", "transfer"}
    assert all(
        one["residual_s"] == 0 == one["measured_s"] - one["predicted_s"]
        for one in found["residuals"]
    )
    transfers = next(one for one in found["quality"] if one["kind"] == "transfer")
    assert transfers["r2"]["fitted"] == 1 > transfers["r2"]["before"]
    assert transfers["rms_s"]["fitted"] == 0 < transfers["rms_s"]["before"]
    assert [one["quantity"] for one in found["parameters"]] == [
        "gap",
        "gap",
        "latency",
        "bandwidth",
    ]
    assert found["step_s"]["measured"] == [found["step_s"]["fitted"]]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["--fit", "gap,speed"],
            's.json: fit: "speed" cannot be fitted; there are '
            "gap, latency, bandwidth, efficiency and efficiency:KIND/OP",
        ),
        (
            ["--fit", "efficiency:gpu/lstm"],
            (
                's.json: fit: no op that takes time is "gpu/lstm"; write it like '
                '"gpu/matmul" or "*/conv2d"'
            ),
        ),
        (["-o", "out.txt"], "--output: out.txt: the name must end in .json or .json.gz"),
        (["-o", "run.json"], "--output: run.json is the trace too"),
        (
            ["-o", "a.json", "--cluster", "a.json"],
            "--cluster: a.json is the output of --output too",
        ),
        (
            ["-o", "nowhere/a.json"],
            "--output: cannot write nowhere/a.json: no such file or directory",
        ),
    ],
)
def test_bad_usage_writes_nothing(
    arguments: list[str], line: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in here.iterdir() if path.is_file()}
    assert main(["calibrate", "s.json", "run.json", *arguments]) == 2
    assert capsys.readouterr().err == line + "\n"
    assert {path: path.read_bytes() for path in here.iterdir() if path.is_file()} == before


def test_the_scenario_itself_may_be_replaced(here: Path) -> None:
    assert main(["calibrate", "s.json", "run.json", "-o", "s.json"]) == 0
    assert load_scenario("s.json").cluster.links[0].bandwidth == 5_700_000_000


def test_without_scipy_the_extra_is_named(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(SimdevError, match=r"calibrate needs scipy: install the extra \"solvers\""):
        calibrate(load_scenario("s.json"), read_measured("run.json"))


# The arithmetic


@given(st.fractions(Fraction(1, 10**12), 10**12), st.fractions(0, Fraction(1, 10)))
def test_the_shortest_number_is_within_the_tolerance(value: Fraction, share: Fraction) -> None:
    found = shortest(value, value * share)
    assert abs(found - value) <= max(value * share, value * Fraction(1, 10**15))


@given(st.integers(1, 9999), st.integers(-15, 12))
def test_a_number_as_people_write_it_comes_back(digits: int, power: int) -> None:
    value = Fraction(digits) * Fraction(10) ** power
    assert shortest(float(value) * (1 + 1e-9), value / 10**7) == value


def test_shortest_prefers_nothing_to_almost_nothing() -> None:
    assert shortest(1.5, 2) == 0
    assert shortest(1.5, 1) == 2
    assert shortest(5.7003e9, 1e6) == 5_700_000_000


@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 5)), min_size=3, max_size=30))
def test_a_linear_model_is_solved_exactly(rows: list[tuple[int, int]]) -> None:
    columns = np.array(rows, np.float64)
    if len(independent(columns)) < 2:
        return
    found = solve(columns, columns @ np.array([0.25, 3000.0]) + 7, 7.0)
    assert found.values == pytest.approx([0.25, 3000.0], rel=1e-6)


def test_independent_columns_are_the_first_ones() -> None:
    ones, ramp = np.ones(5), np.arange(5.0)
    table = np.stack((ones, 2 * ones, ramp, ones + ramp, np.zeros(5)), axis=1)
    assert independent(table) == [0, 2]
    assert independent(table[:, ::-1]) == [1, 2]


def test_the_middle_ignores_what_lies_far_off() -> None:
    draw = np.random.default_rng(1)
    samples = 5 + 0.1 * draw.standard_normal(400)
    samples[:20] = 500
    found = middle(samples)
    assert found.values[0] == pytest.approx(5, abs=0.03)
    assert 0.003 < found.errors[0] < 0.02
    assert np.isnan(middle(np.array([3.0])).errors[0])


def test_goodness_by_hand() -> None:
    assert goodness([1.0, 2.0, 3.0], [1.0, 2.0, 4.0]) == (
        pytest.approx(3**-0.5),
        pytest.approx((1 / 9 / 3) ** 0.5),
        pytest.approx(0.5),
    )
    assert goodness([2.0, 2.0], [2.0, 2.0]) == (0, 0, None)


def test_quantities_must_be_known() -> None:
    scenario, task_graph = question(graph=graph_of(5))
    with pytest.raises(InputError, match="cannot be fitted"):
        calibrate(scenario, measured_of(simulate(task_graph, "simpy")), [])
