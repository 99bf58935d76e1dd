"""Calibration: reading traces, writing scenarios whole, the command line and the arithmetic."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("scipy")

from simdev import load_scenario
from simdev.commands import main
from simdev.execution.engine import simulate
from simdev.files import read_cluster, write_cluster, write_graph, write_run, write_strategy
from simdev.ground.errors import InputError, SimdevError
from simdev.lowering import lower
from simdev.measure.calibrate import Calibration, calibrate, calibration_text, read_measured
from simdev.measure.calibrate.solve import goodness, independent, middle, shortest, solve
from simdev.nouns.graph import Graph, Op
from simdev.report.export import export_chrome_trace
from synthetic_steps import graph_of, measured_of, notes, question, spread
from worlds.scenarios import alone

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
    return calibrate(alone(Graph("g", ops)), read_measured("t.json"), ["gap"])


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
    assert main([*arguments, "-o", "deep/out.json", "--save-cluster", "deep/c.json.gz"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "as fitted to it (no error" in printed.out.splitlines()[0]
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
            ["-o", "a.json", "--save-cluster", "a.json"],
            "--save-cluster: a.json is the output of --output too",
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
    needs = r'^calibrate needs scipy: pip install "simdev\[solvers\]"$'
    with pytest.raises(SimdevError, match=needs):
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
