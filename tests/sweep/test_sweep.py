"""Sweeps: what the rows say, how they are asked for from Python and the command line, and what is
refused.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import simdev
from simdev.cli import main
from simdev.errors import InputError
from simdev.report import run
from simdev.report.results import COLUMNS
from simdev.scenario import load_scenario
from simdev.sweep import sweep
from simdev.sweep.frame import csv_text, write_results
from simdev.sweep.point import rows_of
from sweeps import ROOT, TINY, bandwidths

CLUSTER, GRAPH = TINY["cluster"], TINY["graph"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a scenario whose parts are files (s.json), and one that does not fit
    (oom.json).
    """
    monkeypatch.chdir(tmp_path)
    parts = tmp_path / "parts"
    parts.mkdir()
    for part in ("graph", "cluster", "strategy"):
        (parts / f"{part}.json").write_text(
            json.dumps(TINY[part] | ({} if part == "strategy" else {"version": 1}))
        )
    named = {part: f"parts/{part}.json" for part in ("graph", "cluster", "strategy")}
    (tmp_path / "s.json").write_text(json.dumps({"version": 1, **named}))
    small = CLUSTER | {"devices": [{"name": "gpu:0", "memory": 5}, {"name": "gpu:1"}]}
    (tmp_path / "oom.json").write_text(json.dumps({"version": 1, **named, "cluster": small}))
    return tmp_path


def test_a_row_says_what_the_report_says(here: Path) -> None:
    results = sweep("s.json")
    row, report = results.iloc[0], run(load_scenario("s.json"))
    told = report.to_json()
    same = (
        "step_time_s",
        "step_time_ps",
        "feasible",
        "memory_excess_bytes",
        "engine",
        "bubble",
        "cost_rel_err",
    )
    assert {name: row[name] for name in same} == {name: told[name] for name in same}
    assert row["exposed_communication"] == told["exposed_communication"]
    assert (row["transfers"], row["transfer_bytes"]) == (
        told["transfers"]["count"],
        told["transfers"]["bytes"],
    )
    assert {blame: row[f"blame_{blame}_s"] for blame in told["blame_s"]} == told["blame_s"]
    assert (row["status"], row["ops"], row["devices"]) == ("ok", 2, 2)
    assert (row["graph_name"], row["cluster_name"]) == ("graph", "cluster")
    assert row["peak_bytes"] == max(device["peak_bytes"] for device in told["devices"].values())
    assert row["utilization"] == pytest.approx(1 - row["bubble"] - row["exposed_communication"])
    assert row["cost_estimated"] == 0.0


def test_what_does_not_fit_or_fails_is_a_row_with_its_reason(here: Path) -> None:
    (here / "bad.json").write_text(json.dumps(TINY | {"strategy": {"a": "gpu:0", "b": "gpu:9"}}))
    (here / "torn.json").write_text('{"version": 1')
    (here / "list.json").write_text("[]")
    (here / "old.json").write_text(json.dumps({key: TINY[key] for key in TINY if key != "version"}))
    results = sweep(
        ["s.json", "oom.json", "bad.json", "torn.json", "list.json", "old.json", "none.json"]
    )
    assert list(results["status"]) == ["ok", "infeasible", *["failed"] * 5]
    assert list(results["reason"])[1:] == [
        "gpu:0: 7995 bytes over its 5",
        'strategy.placement["b"]: no device named "gpu:9"',
        "line 1, column 14: not JSON: expecting ',' delimiter",
        "must be an object (a scenario), got a list",
        'version: missing; write "version": 1',
        "no such file",
    ]
    assert results["step_time_s"][1] == results["step_time_s"][0]
    assert results["memory_excess_bytes"][1] == 7995
    assert results["step_time_ps"][2:].isna().all()
    assert results["feasible"][2:].isna().all()


def test_a_reason_is_what_simulate_says(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "parts" / "strategy.json").write_text('{"a": "gpu:0", "b": "gpu:9"}')
    assert main(["simulate", "s.json"]) == 2
    assert (
        sweep("s.json")["reason"][0]
        == capsys.readouterr().err.strip()
        == sweep("s.json")["reason"][0]
    )


def test_columns_are_always_there_and_of_one_type(here: Path) -> None:
    good, bad = sweep("s.json"), sweep("none.json")
    assert list(good) == list(bad) == ["scenario", *COLUMNS, "key", "simdev"]
    assert list(good.dtypes) == list(bad.dtypes)
    assert {name: str(good[name].dtype) for name in COLUMNS} == dict(COLUMNS)


def test_one_row_a_scenario_in_the_order_asked(here: Path) -> None:
    results = sweep(["s.json", "oom.json", "s.json", Path("s.json")], {"graph.name": ["x", "y"]})
    assert list(results["scenario"]) == [
        name for name in ("s.json", "oom.json", "s.json", "s.json") for _ in range(2)
    ]
    assert list(results["graph.name"]) == list(results["graph_name"]) == ["x", "y"] * 4
    assert results["key"].nunique() == 4


def test_objects_and_scenarios_can_be_swept_too(here: Path) -> None:
    scenario = load_scenario("s.json")
    slow = replace(
        scenario.cluster,
        links=tuple(replace(one, bandwidth=10**6) for one in scenario.cluster.links),
    )
    results = sweep([TINY, TINY | {"name": "mine"}, scenario, replace(scenario, cluster=slow)])
    assert list(results["scenario"]) == ["[0]", "mine", "[2]", "[3]"]
    assert list(results["step_time_ps"]) == [10_000_000] * 3 + [8_002_000_000]
    again = sweep(load_scenario("s.json"))
    assert again["key"][0] == results["key"][2] != results["key"][3]
    assert "is a field of a scenario file" in sweep(scenario, bandwidths(1))["reason"][0]


def test_no_scenarios_are_no_rows() -> None:
    results = sweep([])
    assert results.empty
    assert list(results) == ["scenario", *COLUMNS, "key", "simdev"]


@pytest.mark.parametrize(
    "first", ["import simdev", "import simdev.sweep", "from simdev.cli import main"]
)
def test_the_verb_can_be_called_whatever_was_imported_first(first: str) -> None:
    code = f"{first}; import simdev; print(len(simdev.sweep([])), simdev.sweep.__doc__ is not None)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert result.stdout == "0 True\n", result.stderr


def test_scenarios_of_another_type_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"scenarios\[1\]: must be a path, an object or a Scenario, got 3"
    ):
        sweep([TINY, 3])  # type: ignore[list-item]
    with pytest.raises(InputError, match="n_jobs: must be a whole number, not 0"):
        sweep(TINY, n_jobs=0)
    with pytest.raises(InputError, match="n_jobs: must be a whole number"):
        sweep(TINY, n_jobs=1.5)  # type: ignore[arg-type]


def key_of(source: Any) -> str:
    (row,) = rows_of(source, [{}])
    assert row.point is not None
    return row.point.key


def test_the_key_is_the_content_and_not_its_place_or_form(here: Path) -> None:
    key = key_of("s.json")
    elsewhere = here / "deep" / "er"
    elsewhere.mkdir(parents=True)
    (here / "parts").rename(elsewhere / "parts")
    (here / "s.json").rename(elsewhere / "t.json")
    assert key_of(elsewhere / "t.json") == key
    told = json.loads((elsewhere / "t.json").read_text())
    (elsewhere / "t.json").write_text(json.dumps(dict(reversed(told.items())), indent=3))
    assert key_of(elsewhere / "t.json") == key


@pytest.mark.parametrize("part", ["graph", "cluster", "strategy"])
def test_another_content_of_any_file_is_another_key(part: str, here: Path) -> None:
    key, file = key_of("s.json"), here / "parts" / f"{part}.json"
    file.write_text(file.read_text() + " ")
    assert key_of("s.json") != key
    file.unlink()
    assert key_of("s.json") != key


def test_numbers_and_texts_that_look_alike_have_keys_of_their_own() -> None:
    told = [
        TINY | {"provenance": {"x": value}}
        for value in (1, "1", 1.5, "1.5", None, [1], {"1": 1}, True)
    ]
    assert len({key_of(one) for one in told}) == len(told)


def test_what_cannot_be_written_as_json_is_a_row(here: Path) -> None:
    endless: dict[str, Any] = {}
    endless["x"] = endless
    results = sweep([TINY | {"provenance": endless}, TINY | {"graph": {1: 2, "a": 3}}])
    assert list(results["status"]) == ["failed"] * 2
    assert results["reason"][0].startswith("cannot be written as JSON: ")


def test_a_bug_is_told_in_its_row_and_does_not_stop_the_sweep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("simdev.sweep.answer.row_of", lambda *_: 1 // 0)
    (reason,) = sweep(TINY)["reason"]
    assert reason == (
        "a bug in simdev, not in your files: ZeroDivisionError: integer division or modulo by zero"
    )


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_results_read_back(ending: str, here: Path) -> None:
    if ending == "parquet":
        pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
    results = sweep(["s.json", "oom.json", "none.json"], bandwidths(2) | {"graph.name": ["x", "y"]})
    write_results(results, f"r.{ending}")
    if ending == "parquet":
        pd.testing.assert_frame_equal(pd.read_parquet("r.parquet"), results)
    else:
        kinds = {str(name): kind for name, kind in results.dtypes.items()}
        pd.testing.assert_frame_equal(pd.read_csv("r.csv", dtype=kinds), results)


def test_a_spreadsheet_finds_no_formula() -> None:
    results = sweep(
        [TINY | {"name": "=cmd|' /C calc'!A0"}],
        {"graph.name": ["@SUM(1)"], "graph.provenance": ["-1"]},
    )
    text = csv_text(results)
    assert "'=cmd" in text
    assert ",'@SUM(1)," in text


def test_command_writes_a_table_and_tells_how_it_went(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            [
                "sweep",
                "s.json",
                "oom.json",
                "--set",
                "cluster.bandwidth=1,2,4,8Gbit/s",
                "--out",
                "r.csv",
            ]
        )
        == 0
    )
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "8 scenarios: 4 ok, 4 infeasible; r.csv\n"
    results = pd.read_csv("r.csv")
    assert list(results["cluster.bandwidth"]) == ["1Gbit/s", "2Gbit/s", "4Gbit/s", "8Gbit/s"] * 2
    assert list(results["cluster.bandwidth_bytes_per_s"][:4]) == [1.25e8, 2.5e8, 5e8, 1e9]
    assert list(results["step_time_ps"][:4]) == [66_000_000, 34_000_000, 18_000_000, 10_000_000]
    assert {path.name for path in here.iterdir()} == {
        "s.json",
        "oom.json",
        "parts",
        "r.csv",
        "r.csv.journal",
    }


def test_command_prints_a_table_for_people_or_csv(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "odd\nname.json").write_text(
        json.dumps(TINY | {"strategy": {"a": "gpu:7", "b": "gpu:8"}})
    )
    arguments = ["sweep", "oom.json", "odd\nname.json", "--set", "cluster.bandwidth=1,2GB/s"]
    assert main(arguments) == 2
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert len(lines) == 6
    assert lines[1].split() == ["scenario", "cluster.bandwidth", "step", "time", "fits", "reason"]
    assert lines[2].endswith("10 us  NO    gpu:0: 7995 bytes over its 5")
    assert lines[4].startswith("  odd\\nname.json  1GB/s")
    assert printed.err == "4 scenarios: 2 infeasible, 2 failed\n"
    assert main([*arguments, "-o", "-"]) == 2
    assert capsys.readouterr().out.startswith(
        "scenario,cluster.bandwidth,cluster.bandwidth_bytes_per_s,status,reason,"
    )
    assert {path.name for path in here.iterdir()} == {
        "s.json",
        "oom.json",
        "odd\nname.json",
        "parts",
    }


def test_command_asks_about_a_bandwidth_without_a_unit(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", "s.json", "--set", "cluster.bandwidth=25,50", "--out", "r.csv"]) == 0
    note, counted = capsys.readouterr().err.splitlines()
    assert note == "--set cluster.bandwidth=25 is 25 B/s; write 25GB/s or 25Gbit/s"
    assert counted == "2 scenarios: 2 ok; r.csv"


def test_command_tells_why_a_scenario_failed_beside_a_file_too(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", "s.json", "--set", "cluster.bandwith=1,2GB/s", "--out", "r.csv"]) == 2
    counted, reason = capsys.readouterr().err.splitlines()
    assert counted == "2 scenarios: 2 failed; r.csv"
    assert reason.startswith("the first that failed: s.json: ")
    assert "cluster.bandwith" in reason


def test_command_reads_a_grid(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = [
        {"cluster.bandwidth": ["1 GB/s", "2 GB/s"], "strategy.order": ["fifo"]},
        {"cluster.latency": [1e-6]},
    ]
    (here / "g.json").write_text(json.dumps({"version": 1, "grid": grid}))
    assert (
        main(
            [
                "sweep",
                "s.json",
                "--grid",
                "g.json",
                "--set",
                "cluster.queues=link,fair",
                "-o",
                "r.csv",
            ]
        )
        == 0
    )
    results = pd.read_csv("r.csv")
    assert (
        list(results["cluster.bandwidth"].fillna("")) == ["1 GB/s"] * 2 + ["2 GB/s"] * 2 + [""] * 2
    )
    assert list(results["cluster.latency"].fillna(0)) == [0, 0, 0, 0, 1e-6, 1e-6]
    assert list(results["cluster.queues"]) == ["link", "fair"] * 3
    assert list(results["step_time_ps"]) == [10_000_000] * 2 + [6_000_000] * 2 + [11_000_000] * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "r.txt"], "r.txt: the name must end in .csv or .parquet"),
        (["--out", "parts.csv"], "parts.csv: cannot write: is a directory"),
        (["--out", "no/r.csv"], "no/r.csv.journal: cannot write: no such file or directory"),
        (["--out", "s.json/r.csv"], "s.json/r.csv.journal: cannot write: not a directory"),
        (
            ["--out", "r.csv", "--journal", "s.json"],
            "s.json: is not a journal of simdev sweep; name another file",
        ),
        (["--journal", "parts"], "parts: cannot write: is a directory"),
        (["--journal", "/dev/null"], "/dev/null: is not a regular file"),
        (
            ["--out", "x.csv", "--journal", "./x.csv"],
            "--journal: ./x.csv is the output of --out too",
        ),
        (["--journal", "a\0b"], "a\\x00b: cannot write: embedded null byte"),
        (["-j", "0"], "n_jobs: must be a whole number, not 0, got 0"),
        (
            ["--set", "bandwidth=1"],
            "--set bandwidth: must begin with one of graph, cluster, profile, devices, ",
        ),
        (["--set", "cluster.bandwidth"], "--set cluster.bandwidth: must be PATH=VALUE,VALUE,..."),
        (
            ["--set", "cluster.bandwidth=1GB/s,4"],
            '--set cluster.bandwidth: "4" has no unit; write it behind the last',
        ),
        (["--set", "cluster.queues=,link"], '--set cluster.queues: a value is empty in ",link"'),
        (
            ["--set", "cluster.queues=link", "--set", "cluster.queues=fair"],
            "--set cluster.queues: is set twice",
        ),
        (
            ["--set", "graph.x=" + "1," * 1999 + "1", "--set", "graph.y=" + "1," * 1999 + "1"],
            "--set the grid has 4,000",
        ),
        (["--grid", "none.json"], "none.json: no such file"),
        (["--grid", "s.json"], "s.json: grid: missing"),
        (
            ["--grid", "g1.json"],
            "g1.json: grid: must be an object of lists, or a list of such objects, got 3",
        ),
        (
            ["--grid", "g2.json"],
            'g2.json: grid["cluster.queues"]: must be a list of values, got "link"',
        ),
        (["--grid", "g3.json"], "g3.json: cluster.queues: has no values"),
        (
            ["--grid", "g4.json"],
            ('g4.json: cluster..x: cannot be read from "..x" on; write it like cluster.network'),
        ),
        (
            ["--grid", "g5.json", "--set", "cluster.queues=fair"],
            "g5.json: cluster.queues: is set twice",
        ),
        (["--grid", "g6.json"], "g6.json: grid: must not be empty"),
    ],
)
def test_bad_usage_is_told_before_any_work(
    arguments: list[str], message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "parts.csv").mkdir()
    queues: list[Any] = [{"cluster.queues": "link"}, {"cluster.queues": []}, {"cluster..x": [1]}]
    for number, grid in enumerate([3, *queues, {"cluster.queues": ["link"]}, []], 1):
        (here / f"g{number}.json").write_text(json.dumps({"version": 1, "grid": grid}))
    before = {path.name for path in here.iterdir()}
    assert main(["sweep", "s.json", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(message), printed.err
    assert {path.name for path in here.iterdir()} == before


def test_parquet_without_pyarrow_is_told_before_any_work(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("simdev.sweep.frame.find_spec", lambda _: None)
    assert main(["sweep", "s.json", "-o", "r.parquet"]) == 2
    assert "install simdev[parquet]" in capsys.readouterr().err
    assert not Path("r.parquet.journal").exists()


def test_a_bar_shows_rate_and_remaining_time_after_two_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])

    def slow(*arguments: Any) -> Any:
        now[0] += 0.5
        return answer(*arguments)

    from simdev.sweep.answer import answer

    monkeypatch.setattr("simdev.sweep.sweeping.answer", slow)
    sweep(TINY, bandwidths(3), progress=True)
    assert capsys.readouterr().err.strip() == ""
    sweep(TINY, bandwidths(20), progress=True)
    err = capsys.readouterr().err
    assert "2.00scenario/s" in err
    assert "<00:0" in err
    sweep(TINY, bandwidths(20), progress=None)
    assert capsys.readouterr().err == ""


def test_the_shipped_scenarios_are_answered_like_one_by_one() -> None:
    names = ["inception-v3-1x-cpu.json", "inception-v3-4x-cpu.json"]
    results = sweep([ROOT / "scenarios" / name for name in names])
    assert list(results["status"]) == ["ok", "ok"], list(results["reason"])
    steps = [simdev.run(simdev.load_scenario(ROOT / "scenarios" / name)).step_ps for name in names]
    assert list(results["step_time_ps"]) == steps
    assert not any(math.isnan(seconds) for seconds in results["step_time_s"])


def test_what_scenarios_share_does_not_change_their_answers() -> None:
    """Costs are kept for one graph on many clusters: of other kinds, sizes and queues, under
    another memory model.
    """
    clusters = [
        "dgx-1v",
        "4x-rtx-2080",
        "p3-4x-p4000",
        {"preset": "dgx-1v", "queues": "half-duplex"},
    ]
    options: list[dict[str, Any]] = [{}, {"memory": {"optimizer": "adam", "gradients": 2}}]
    graph = {"model": "lenet", "batch": 64}
    strategies = ["data-parallel", {"placement": {"*": "gpu:0"}}, "expert"]
    asked = [
        {"graph": graph, "cluster": cluster, "strategy": strategy, "options": option}
        for cluster in clusters
        for option in options
        for strategy in strategies
    ]
    results = sweep(asked)
    assert set(results["status"]) == {"ok"}, list(results["reason"])
    for row, one in zip(results.itertuples(), asked, strict=True):
        report = run(load_scenario(one))
        assert (row.step_time_ps, row.cost_rel_err) == (report.step_ps, report.cost_rel_err), one
        assert row.peak_bytes == max(device.memory.peak for device in report.devices), one


def test_a_strategy_that_nobody_knows_by_name_is_told_the_names(here: Path) -> None:
    results = sweep(TINY, {"strategy": ["exprt", "single"]})
    told = (
        'strategy: neither a file nor a short form: "{}"; short forms: data-parallel, '
        "model-parallel, owt, expert"
    )
    assert list(results["reason"]) == [told.format(name) for name in ("exprt", "single")]
