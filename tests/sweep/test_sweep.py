"""Sweeps: what the rows say, how they are asked for from Python, and what is refused."""

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
from simdev.commands import main
from simdev.execution.scenario import load_scenario
from simdev.ground.errors import InputError
from simdev.nouns.draws import percentiles
from simdev.report import run
from simdev.report.results import COLUMNS
from simdev.search.sweep import sweep
from simdev.search.sweep.frame import csv_text, write_results
from simdev.search.sweep.point import rows_of
from sweeps import ROOT
from worlds.scenarios import TINY, bandwidths, written

CLUSTER, GRAPH = TINY["cluster"], TINY["graph"]


def test_a_row_says_what_the_report_says(here: Path) -> None:
    results = sweep("s.json")
    row, report = results.iloc[0], run(load_scenario("s.json"))
    expected = report.to_json()
    same = (
        "step_time_s",
        "step_time_ps",
        "feasible",
        "memory_excess_bytes",
        "engine",
        "bubble",
        "cost_rel_err",
    )
    assert {name: row[name] for name in same} == {name: expected[name] for name in same}
    assert row["exposed_communication"] == expected["exposed_communication"]
    assert (row["transfers"], row["transfer_bytes"]) == (
        expected["transfers"]["count"],
        expected["transfers"]["bytes"],
    )
    assert {blame: row[f"blame_{blame}_s"] for blame in expected["blame_s"]} == expected["blame_s"]
    assert (row["status"], row["ops"], row["devices"]) == ("ok", 2, 2)
    assert (row["graph_name"], row["cluster_name"]) == ("graph", "cluster")
    assert row["peak_bytes"] == max(device["peak_bytes"] for device in expected["devices"].values())
    assert row["utilization"] == pytest.approx(1 - row["bubble"] - row["exposed_communication"])
    assert row["cost_estimated"] == 0.0


def test_what_does_not_fit_or_fails_is_a_row_with_its_reason(here: Path) -> None:
    written(here / "bad.json", TINY | {"strategy": {"a": "gpu:0", "b": "gpu:9"}})
    (here / "torn.json").write_text('{"version": 1')
    (here / "list.json").write_text("[]")
    written(here / "old.json", {key: TINY[key] for key in TINY if key != "version"})
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
        links=tuple(replace(source, bandwidth=10**6) for source in scenario.cluster.links),
    )
    results = sweep([TINY, TINY | {"name": "mine"}, scenario, replace(scenario, cluster=slow)])
    assert list(results["scenario"]) == ["[0]", "mine", "[2]", "[3]"]
    assert list(results["step_time_ps"]) == [10_000_000] * 3 + [8_002_000_000]
    again = sweep(load_scenario("s.json"))
    assert again["key"][0] == results["key"][2] != results["key"][3]
    with pytest.raises(InputError, match="is a field of a scenario file"):
        sweep(scenario, bandwidths(1))


def test_no_scenarios_are_no_rows() -> None:
    results = sweep([])
    assert results.empty
    assert list(results) == ["scenario", *COLUMNS, "key", "simdev"]


FIRST = """
import sys
for first in ("import simdev", "import simdev.search.sweep", "from simdev.commands import main"):
    exec(first)
    import simdev
    print(len(simdev.sweep([])), simdev.search.sweep.__doc__ is not None)
    for name in [name for name in sys.modules if name.partition(".")[0] == "simdev"]:
        del sys.modules[name]
"""


def test_the_verb_can_be_called_whatever_was_imported_first() -> None:
    result = subprocess.run(
        [sys.executable, "-c", FIRST], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert result.stdout == 3 * "0 True\n", result.stderr


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
    expected = json.loads((elsewhere / "t.json").read_text())
    (elsewhere / "t.json").write_text(json.dumps(dict(reversed(expected.items())), indent=3))
    assert key_of(elsewhere / "t.json") == key


@pytest.mark.parametrize("part", ["graph", "cluster", "strategy"])
def test_another_content_of_any_file_is_another_key(part: str, here: Path) -> None:
    key, file = key_of("s.json"), here / "parts" / f"{part}.json"
    file.write_text(file.read_text() + " ")
    assert key_of("s.json") != key
    file.unlink()
    assert key_of("s.json") != key


def test_numbers_and_texts_that_look_alike_have_keys_of_their_own() -> None:
    expected = [
        TINY | {"provenance": {"x": value}}
        for value in (1, "1", 1.5, "1.5", None, [1], {"1": 1}, True)
    ]
    assert len({key_of(source) for source in expected}) == len(expected)


def test_what_cannot_be_written_as_json_is_a_row(here: Path) -> None:
    endless: dict[str, Any] = {}
    endless["x"] = endless
    results = sweep([TINY | {"provenance": endless}, TINY | {"graph": {1: 2, "a": 3}}])
    assert list(results["status"]) == ["failed"] * 2
    assert results["reason"][0].startswith("cannot be written as JSON: ")


def test_a_bug_is_told_in_its_row_and_does_not_stop_the_sweep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("simdev.search.sweep.sweeping.row_of", lambda *_: 1 // 0)
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
        {"graph.name": ["@SUM(1)"], "cluster.name": ["-1"]},
    )
    text = csv_text(results)
    assert "'=cmd" in text
    assert ",'@SUM(1)," in text


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
    # Every cluster with every strategy, and each of them with every option.
    sources = [
        {"graph": graph, "cluster": cluster, "strategy": strategy, "options": options[(c + s) % 2]}
        for c, cluster in enumerate(clusters)
        for s, strategy in enumerate(strategies)
    ]
    results = sweep(sources)
    assert set(results["status"]) == {"ok"}, list(results["reason"])
    for row, source in zip(results.itertuples(), sources, strict=True):
        report = run(load_scenario(source))
        assert (row.step_time_ps, row.cost_rel_err) == (report.step_ps, report.cost_rel_err), source
        assert row.peak_bytes == max(device.memory.peak for device in report.devices), source


def test_a_strategy_that_nobody_knows_by_name_is_told_the_names(here: Path) -> None:
    with pytest.raises(InputError) as refused:
        sweep(TINY, {"strategy": ["exprt", "single"]})
    expected = (
        "[0]: strategy='{0}': neither a file nor a short form: \"{0}\"; short forms: "
        "data-parallel, model-parallel, owt, expert"
    )
    assert refused.value.problems == tuple(map(expected.format, ("exprt", "single")))


def test_draws_tell_how_sure_the_order_is(here: Path) -> None:
    scenario = str(ROOT / "scenarios" / "alexnet-2x-gpu-staged.json")
    grid = {"graph.batch": [256, 128]}
    results = sweep(scenario, grid, journal="j", draws=30)
    assert sweep(scenario, grid, journal="j", draws=30).equals(results)
    # Bit for bit, by however many processes they are drawn.
    assert sweep(scenario, grid, n_jobs=2, draws=30).equals(
        sweep(scenario, grid, n_jobs=1, draws=30)
    )
    draws = run(scenario, draws=30).draws
    assert draws is not None
    columns = ["step_p10_s", "step_p50_s", "step_p90_s"]
    expected = [ps / 1e12 for ps in percentiles(draws.step_ps)]
    assert results[columns].iloc[0].tolist() == expected
    best = results["samples_per_s"].idxmax()
    assert results["beats_best"][best] == 0.5
    assert results["first_in_draws"].sum() == pytest.approx(1)
    assert -1 <= results.attrs["kendall_tau"] <= 1
    plain = sweep(scenario, grid)
    assert set(plain["key"]).isdisjoint(results["key"])
    assert plain["step_time_ps"].tolist() == results["step_time_ps"].tolist()
    assert plain["step_p10_s"].isna().all()
