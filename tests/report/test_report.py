"""What a report says, as data: the pictures, what if something were faster, and what changed
between two steps.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bad.scenarios import CLUSTER, GRAPH, scenario
from simdev.execution.engine import simulate
from simdev.execution.scenario import Outcome, load_scenario
from simdev.files import write_run
from simdev.ground.errors import DeadlockError
from simdev.nouns.cluster import QUEUES, TRANSFERS
from simdev.report import analyze, run
from simdev.report.measures.spans import covered_ps
from simdev.report.page import read_subject, run_data, what_ifs
from simdev.report.page.timeline import MOST_LEVELS, busy_shares, coarser, timeline
from worlds.scenarios import World, worlds
from worlds.task_graphs import task_graphs
from worlds.traces import Span, trace_of, two_devices

SPLIT = {"*": {"split": {"sample": 2}, "devices": ["gpu:0", "gpu:1"], "time": "divided"}}


def question(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(scenario(strategy={"a": "gpu:0", "b": "gpu:1"}, **changes))
    return found


def gains(parts: dict[str, Any]) -> dict[tuple[str, str], int]:
    """The step time (ps) with each thing twice as fast."""
    found = load_scenario(parts)
    kinds = {op.name: op.kind for op in found.graph.ops}
    return {(one.kind, one.name): one.step_ps for one in what_ifs(run(found), kinds, found)}


# What if.


def test_what_if_is_the_step_time_of_another_simulation() -> None:
    """a 1 us on gpu:0, 8 bytes at 1 GB/s, b 1 us on gpu:1: 2,008,000 ps."""
    assert gains(question()) == {
        ("devices", "all"): 1_008_000,
        ("device", "gpu:0"): 1_508_000,
        ("device", "gpu:1"): 1_508_000,
        ("op class", "op"): 1_008_000,
        ("link", "gpu:0 - gpu:1"): 2_004_000,
    }


def test_a_faster_link_keeps_its_latency_and_finds_its_routes_anew() -> None:
    """gpu:0 to gpu:2 goes by either of two switches, 10 us a hop; the wider way wins."""
    ops = [
        {"name": "a", "time": 0, "outputs": [{"bytes": 1_000_000}]},
        {"name": "b", "time": 0, "inputs": ["a"]},
    ]
    names = (
        {"name": "gpu:0"},
        {"name": "gpu:1"},
        {"name": "x", "kind": "switch"},
        {"name": "y", "kind": "switch"},
    )
    rates = {("gpu:0", "x"): 4, ("x", "gpu:1"): 4, ("gpu:0", "y"): 5, ("y", "gpu:1"): 3}
    links = [
        {"ends": list(ends), "bandwidth": f"{rate} GB/s", "latency": "10 us"}
        for ends, rate in rates.items()
    ]
    found = gains(question(graph={"ops": ops}, cluster={"devices": list(names), "links": links}))
    assert found["links", "all"] == 20_000_000 + 125_000_000
    assert found["link", "gpu:0 - x"] == 20_000_000 + 250_000_000
    assert ("link", "gpu:0 - y") not in found  # no transfer goes there


@pytest.mark.parametrize("queues", QUEUES)
@pytest.mark.parametrize("order", ["fifo", "program"])
def test_of_many_links_those_are_tried_that_carry_something(queues: str, order: str) -> None:
    """Eight devices, 28 links: 1 MB goes over the last one, 1 kB over one in the middle, nothing
    over the others.
    """
    ops: list[dict[str, Any]] = [{"name": f"alone{i}", "time": "1 us"} for i in range(8)]
    for name, size in (("large", 1_000_000), ("small", 1_000)):
        ops.append({"name": name, "time": 0, "outputs": [{"bytes": size}]})
        ops.append({"name": f"{name}_read", "time": 0, "inputs": [name]})
    where = {f"alone{i}": f"g{i}" for i in range(8)}
    where |= {"large": "g6", "large_read": "g7", "small": "g3", "small_read": "g4"}
    machine = {
        "queues": queues,
        "devices": [{"name": f"g{i}"} for i in range(8)],
        "links": {"all_to_all": {"bandwidth": "1 GB/s", "latency": "1 us"}},
    }
    found = gains(
        question(graph={"ops": ops}, cluster=machine)
        | {"strategy": {"placement": where, "order": order}}
    )
    told = {name: ps for (what, name), ps in found.items() if what == "link"}
    assert told == {"g6 - g7": 502_000_000, "g3 - g4": 1_002_000_000}


def test_links_that_a_collective_or_a_policy_uses_are_tried() -> None:
    """A ring over two of three devices, and a policy's messages between the same two."""
    one: list[dict[str, Any]] = [{"bytes": 1000}]
    ring = {
        "kind": "all_reduce",
        "inputs": ["g0", "g1"],
        "outputs": one * 2,
        "attrs": {"ranks": ["gpu:0", "gpu:2"]},
    }
    ops: list[dict[str, Any]] = [{"name": "alone", "time": "1 us"}]
    ops += [{"name": f"g{i}", "time": "1 us", "outputs": one} for i in range(2)]
    ops += [{"name": "sum"} | ring]
    ops += [
        {"name": f"u{i}", "phase": "update", "time": 0, "inputs": [f"sum:{i}"]} for i in range(2)
    ]
    place = {
        "g0": "gpu:0",
        "g1": "gpu:2",
        "sum": "gpu:0",
        "alone": "gpu:1",
        "u0": "gpu:0",
        "u1": "gpu:2",
    }
    machine = {
        "devices": [{"name": f"gpu:{i}"} for i in range(3)],
        "links": {"all_to_all": {"bandwidth": "1 GB/s"}},
    }
    for sync in ("all-reduce", {"policy": "parameter-server"}):
        strategy = {"placement": place, "sync": sync}
        found = gains(question(graph={"ops": ops}, cluster=machine) | {"strategy": strategy})
        assert [name for what, name in found if what == "link"] == ["gpu:0 - gpu:2"], sync


def test_a_run_without_a_scenario_is_asked_of_its_queues(tmp_path: Path) -> None:
    report = run(load_scenario(question()))
    write_run(report.trace, tmp_path / "run.json")
    subject = read_subject(str(tmp_path / "run.json"))
    found = {(one.kind, one.name): one.step_ps for one in what_ifs(subject.report)}
    assert found["queue", "channel gpu:0"] == found["queues", "all"] == 2_004_000
    assert found["phase", "forward"] == 1_008_000
    assert subject.violations == 0


def test_shared_links_get_bandwidth() -> None:
    report = run(load_scenario(question(cluster=CLUSTER | {"queues": "fair"})))
    found = {(one.kind, one.name): one.step_ps for one in what_ifs(report)}
    assert found["link", "link gpu:0>gpu:1"] == 2_004_000


@given(task_graphs(("fifo", "priority"), flows=True))
def test_what_ifs_are_sorted_and_none_is_invented(task_graph: Any) -> None:
    trace = simulate(task_graph)
    report = analyze(Outcome(trace))
    found = what_ifs(report, factor=1)
    assert {one.step_ps for one in found} <= {trace.end_ps}
    faster = what_ifs(report)
    assert [one.gain for one in faster] == sorted((one.gain for one in faster), reverse=True)
    for one in faster:
        assert one.gain == ((trace.end_ps - one.step_ps) / trace.end_ps if trace.end_ps else 0)


# The pictures.


def test_the_rows_name_every_task_where_it_ran() -> None:
    told = timeline(two_devices())
    names = told["tasks"]["name"]
    rows = {row["name"]: [names[task] for task in row["tasks"]] for row in told["rows"]}
    transfer = "a:0>gpu:1"
    assert rows["gpu:0"] == ["a", "b"]
    assert rows["send gpu:0"] == rows["recv gpu:1"] == [transfer]
    assert rows["gpu:1"] == ["c", "d"]
    path = told["rows"][0]
    assert [path["start"][0], path["start"][-1] + path["length"][-1]] == [0, told["step"]]
    after_c = sum(told["before"]["count"][: names.index("c")])
    assert told["before"]["ids"][after_c] == names.index(transfer)


@given(worlds())
def test_any_step_can_be_told_with_every_task(world: World) -> None:
    try:
        trace = world.trace
    except DeadlockError:
        return
    told = timeline(trace)
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    names = told["tasks"]["name"]
    assert {names[task] for row in told["rows"][1:] for task in row["tasks"]} == set(
        trace.task_graph.tasks.name
    )
    assert told["tasks"]["start"] == trace.start.tolist()


@given(task_graphs(("fifo", "priority"), flows=True))
def test_any_trace_can_be_told(task_graph: Any) -> None:
    told = timeline(simulate(task_graph))
    assert json.loads(json.dumps(told, allow_nan=False)) == told


def test_very_many_spans_become_fewer_and_cover_as_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simdev.report.page.timeline.MOST_SPANS", 50)
    spans = [Span(f"op{i}", 10 * i, 10 * i + 9, "gpu:0") for i in range(300)]
    told = timeline(trace_of(spans, ["gpu:0"]))
    assert told["merged"]
    row = next(row for row in told["rows"] if row["name"] == "gpu:0")
    assert len(row["tasks"]) < 60
    assert row["start"][0] == 0
    assert row["start"][-1] + row["length"][-1] == 2999
    assert told["before"] is None


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 30)), max_size=12), st.integers(1, 7))
def test_shares_add_up_to_what_is_covered(spans: list[tuple[int, int]], bins: int) -> None:
    start = np.array([begin for begin, _ in spans], np.int64)
    finish = start + np.array([length for _, length in spans], np.int64)
    shares = busy_shares(start, finish, 130, bins)
    assert len(shares) == bins
    assert ((shares >= 0) & (shares <= 1)).all()
    assert math.isclose(shares.sum() * 130 / bins, covered_ps(start, finish), abs_tol=1e-6)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=90))
def test_coarser_levels_keep_the_peak(levels: list[int]) -> None:
    time, level = coarser(np.arange(len(levels), dtype=np.int64), np.array(levels, np.int64), 20)
    assert level.max() == max(levels)
    assert level[-1] == levels[-1]
    assert len(time) <= max(20, 0)
    assert (np.diff(time) >= 0).all()
    assert MOST_LEVELS > 20


# Whole reports.


def sheets(data: dict[str, Any]) -> dict[str, list[list[Any]]]:
    return {sheet["title"]: sheet["rows"] for sheet in data["sheets"]}


def report_of(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    (tmp_path / "s.json").write_text(json.dumps(question(**changes)))
    subject = read_subject(str(tmp_path / "s.json"))
    data = run_data(subject, what_ifs(subject.report, subject.kinds, subject.scenario))
    json.dumps(data, allow_nan=False)
    return data


def test_the_report_of_a_step_says_what_simulate_says(tmp_path: Path) -> None:
    data = report_of(tmp_path)
    told = run(load_scenario(question())).to_json()
    assert data["headline"] == "Step time 2.008 us, fits: no device has a memory limit"
    assert dict(map(tuple, data["facts"]))["exactly"] == "2,008,000 ps"
    devices = {row[0]: row[1:4] for row in sheets(data)["Devices"]}
    assert devices == {
        name: [one["ops"], round(one["busy_s"] * 1e12), one["utilization"]]
        for name, one in told["devices"].items()
    }
    assert sum(ps for _, ps in data["blame"]) == told["step_time_ps"]
    assert (
        next(row for row in sheets(data)["What if it were 2x faster?"] if row[1] == "all")[3]
        == 1_008_000
    )


@pytest.mark.parametrize("queues", QUEUES)
@pytest.mark.parametrize("transfer", TRANSFERS)
def test_every_way_to_queue_and_to_send_has_a_report(
    tmp_path: Path, queues: str, transfer: str
) -> None:
    data = report_of(tmp_path, cluster=CLUSTER | {"queues": queues, "transfer": transfer})
    assert data["fits"]
    assert len(data["timeline"]["load"]) >= 3


def test_an_infeasible_step_tells_what_is_over(tmp_path: Path) -> None:
    small = CLUSTER | {"devices": [{"name": "gpu:0", "memory": 5}, {"name": "gpu:1"}]}
    data = report_of(tmp_path, cluster=small)
    assert not data["fits"]
    assert data["headline"].endswith("DOES NOT FIT: 3 B over on gpu:0")
    assert data["notes"][0] == "gpu:0: 3 B over at 0 ps, with a."


@pytest.mark.parametrize("ops", [[], GRAPH["ops"][:1], [{"name": "a", "time": 0}]])
def test_empty_and_tiny_graphs_have_a_report(tmp_path: Path, ops: list[Any]) -> None:
    strategy = {op["name"]: "gpu:0" for op in ops}
    (tmp_path / "s.json").write_text(
        json.dumps(question(graph={"ops": ops}) | {"strategy": strategy})
    )
    subject = read_subject(str(tmp_path / "s.json"))
    data = run_data(subject, what_ifs(subject.report, subject.kinds, subject.scenario))
    assert len(data["timeline"]["tasks"]["name"]) == len(ops)


def test_ops_that_are_split_are_told_by_their_kinds(tmp_path: Path) -> None:
    parts = {
        "version": 1,
        "graph": {"model": "lenet", "batch": 8},
        "cluster": "c4140-4x-v100",
        "strategy": "data-parallel",
    }
    (tmp_path / "s.json").write_text(json.dumps(parts))
    subject = read_subject(str(tmp_path / "s.json"))
    data = run_data(subject, what_ifs(subject.report, subject.kinds, subject.scenario))
    assert {"conv2d", "linear", "collectives"} <= {
        row[1] for row in sheets(data)["What if it were 2x faster?"]
    }
    assert "What splitting costs" in sheets(data)


def test_steps_that_follow_one_another_are_told_by_their_period(tmp_path: Path) -> None:
    parts = {
        "version": 1,
        "graph": {"model": "lenet", "batch": 8},
        "cluster": {"preset": "c4140-4x-v100", "queues": "device"},
        "strategy": {"short": "data-parallel", "sync": {"policy": "p3"}},
    }
    (tmp_path / "s.json").write_text(json.dumps(parts))
    subject = read_subject(str(tmp_path / "s.json"))
    steady = subject.report.steady
    assert steady is not None
    gains = what_ifs(subject.report, subject.kinds, subject.scenario)
    assert all(one.step_ps <= steady.period_ps * 1.2 for one in gains)
    found = {(one.kind, one.name): one for one in gains}
    assert found["devices", "all"].gain > 0
    assert found["links", "all"].step_ps > 0
    assert "the period of steps that follow one another" in run_data(subject, gains)["headline"]


def test_a_large_models_step_has_a_report(tmp_path: Path) -> None:
    parts = {
        "version": 1,
        "graph": {"model": "gpt3-175b", "length": 512},
        "cluster": {"preset": "dgx-h100", "nodes": 2},
        "strategy": {"pipeline": {"tp": 8, "pp": 2, "dp": 1, "microbatches": 4}},
    }
    (tmp_path / "s.json").write_text(json.dumps(parts))
    subject = read_subject(str(tmp_path / "s.json"))
    data = run_data(subject, what_ifs(subject.report, subject.kinds, subject.scenario))
    assert any(note.startswith("gpt3-175b: dp 1 x tp 8 x pp 2") for note in data["notes"])
    assert any(note.startswith("MFU ") for note in data["notes"])
    assert data["timeline"]["step"] == subject.report.step_ps > 0


def test_a_run_that_breaks_the_contract_is_told_as_such(tmp_path: Path) -> None:
    write_run(run(load_scenario(question())).trace, tmp_path / "run.json")
    value = json.loads((tmp_path / "run.json").read_text())
    value["spans"]["start_ps"][1] -= 7
    (tmp_path / "run.json").write_text(json.dumps(value))
    subject = read_subject(str(tmp_path / "run.json"))
    assert "breaks the execution contract" in run_data(subject)["notes"][0]


@pytest.mark.parametrize("start", [-(2**61), -5, 0, 2**61])
def test_a_run_with_absurd_spans_still_has_a_report(tmp_path: Path, start: int) -> None:
    write_run(run(load_scenario(question())).trace, tmp_path / "run.json")
    value = json.loads((tmp_path / "run.json").read_text())
    value["spans"]["start_ps"][1] = start
    value["spans"]["finish_ps"][2] = start
    (tmp_path / "run.json").write_text(json.dumps(value))
    subject = read_subject(str(tmp_path / "run.json"))
    json.dumps(run_data(subject, what_ifs(subject.report)), allow_nan=False)


def test_a_report_says_what_its_figures_rest_on() -> None:
    data_parallel = {"short": "data-parallel", "collectives": {"cost": "expanded"}}
    parts = {"graph": {"model": "lenet", "batch": 8}, "cluster": "c4140-4x-v100"}
    text = str(run(load_scenario(parts | {"strategy": data_parallel})))
    assert "synchronised by bucketed, the first bucket of 1,048,576 bytes, further ones of" in text
    assert "Collectives rest on their messages one by one (algorithm auto)." in text
    policy = {"short": "data-parallel", "sync": {"policy": "bucketed", "bucket": "1 MB"}}
    text = str(run(load_scenario(parts | {"strategy": policy})))
    assert "synchronised by bucketed (all-reduce), in buckets of 1,000,000 bytes." in text
    assert "Collectives rest on closed forms (algorithm auto)." in text
    assert "Gradients" not in str(run(load_scenario(question())))


def test_a_pipeline_over_a_graph_names_its_stages() -> None:
    ops = [{"name": "a", "time": "1 us", "outputs": [{"bytes": 8}]}]
    ops += [
        {"name": n, "time": "1 us", "inputs": [m], "outputs": [{"bytes": 8}]}
        for m, n in (("a", "b"), ("b", "c"), ("c", "d"))
    ]
    strategy = {"version": 1, "pipeline": {"pp": 2, "microbatches": 2, "stages": ["c"]}}
    report = run(load_scenario(question(graph={"ops": ops}) | {"strategy": strategy}))
    assert [(stage.device, stage.first, stage.last) for stage in report.stages] == [
        ("gpu:0", "a", "b"), ("gpu:1", "c", "d"),
    ]  # fmt: skip
    assert "Stages of the pipeline" in str(report)
