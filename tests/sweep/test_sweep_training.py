"""Sweeps of large models' steps: they are rows like all others, with their own fields to set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simdev.report import run
from simdev.scenario import load_scenario
from simdev.sweep import sweep

QUESTION: dict[str, Any] = {
    "version": 1,
    "graph": {"model": "gpt3-175b", "length": 512},
    "cluster": {"preset": "dgx-h100", "nodes": 2},
    "strategy": {"pipeline": {"tp": 8, "pp": 2, "dp": 1, "microbatches": 4}},
}


def test_a_row_says_what_the_step_says() -> None:
    row, report = sweep(QUESTION).iloc[0], run(load_scenario(QUESTION))
    assert (row["step_time_ps"], row["mfu"], row["devices"]) == (
        report.step_ps,
        report.training.mfu,
        16,
    )
    assert (row["graph_name"], row["status"]) == (
        "gpt3-175b",
        "infeasible" if not report.feasible else "ok",
    )
    assert row["memory_excess_bytes"] == report.memory_excess


def test_its_fields_can_be_set() -> None:
    results = sweep(
        QUESTION, {"strategy.pipeline.microbatches": [4, 8], "strategy.pipeline.tp": [8, 3]}
    )
    assert list(results["status"] == "failed") == [False, True, False, True]
    assert results["step_time_s"][0] < results["step_time_s"][2]
    assert "strategy.pipeline.tp: 3 does not divide" in results["reason"][1]


@pytest.mark.parametrize("apart", [False, True])
def test_a_file_of_it_is_read(tmp_path: Path, apart: bool) -> None:
    parts = dict(QUESTION)
    if apart:
        (tmp_path / "strategy.json").write_text(json.dumps({"version": 1, **QUESTION["strategy"]}))
        parts["strategy"] = "strategy.json"
    (tmp_path / "s.json").write_text(json.dumps(parts))
    results = sweep(tmp_path / "s.json")
    assert results["step_time_ps"][0] == sweep(QUESTION)["step_time_ps"][0]


def test_another_schedule_in_its_file_is_another_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from simdev.schedules import named_schedule, schedule_csv

    monkeypatch.chdir(tmp_path)
    parts = QUESTION | {
        "strategy": {"pipeline": QUESTION["strategy"]["pipeline"] | {"table": "table.csv"}}
    }
    (tmp_path / "s.json").write_text(json.dumps(parts))
    rows = []
    for name in ("GPipe", "1F1B"):
        (tmp_path / "table.csv").write_text(schedule_csv(named_schedule(name, 2, 4)))
        rows.append(sweep("s.json", journal="j").iloc[0])
    assert rows[0]["key"] != rows[1]["key"]
    assert rows[0]["status"] != "failed"
    assert rows[0]["peak_bytes"] > rows[1]["peak_bytes"]
