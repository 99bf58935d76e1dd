"""Sweeps of large models' steps: they are rows like all others, with their own fields to set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simdev.execution.scenario import load_scenario
from simdev.files.strategy import pipeline_object
from simdev.ground.errors import InputError
from simdev.nouns.strategy import Parallelism
from simdev.report import run
from simdev.search.sweep import sweep
from worlds.scenarios import written

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
    microbatches = {"strategy.pipeline.microbatches": [4, 8]}
    results = sweep(QUESTION, microbatches)
    assert results["step_time_s"][0] < results["step_time_s"][1]
    with pytest.raises(InputError, match=r"strategy\.pipeline\.tp=3: 3 does not divide"):
        sweep(QUESTION, microbatches | {"strategy.pipeline.tp": [8, 3]})


SMALL: dict[str, Any] = {
    "version": 1,
    "graph": {"model": "gpt-1.7b", "layers": 4, "length": 512},
    "cluster": "dgx-h100",
}


def small(**pipeline: Any) -> dict[str, Any]:
    return SMALL | {"strategy": {"pipeline": pipeline}}


def grid(**values: list[Any]) -> dict[str, list[Any]]:
    return {f"strategy.pipeline.{name}": these for name, these in values.items()}


def batches(results: Any) -> list[tuple[int, int]]:
    return list(zip(results["global_batch"], results["microbatches"], strict=True))


@pytest.mark.parametrize("before", [{"microbatches": 6}, {"global_batch": 24}])
def test_the_global_batch_stays_where_replicas_and_microbatches_are_set(
    before: dict[str, int],
) -> None:
    pipeline = {"dp": 2, "tp": 4, "microbatch": 2} | before
    results = sweep(small(**pipeline), grid(tp=[8], dp=[1], microbatch=[1, 2, 3]))
    assert batches(results) == [(24, 24), (24, 12), (24, 8)]
    whole = sweep(small(**pipeline | {"dp": 1, "tp": 8, "global_batch": 24, "microbatches": 12}))
    assert whole["step_time_ps"][0] == results["step_time_ps"][1]


def test_who_sets_microbatches_or_the_batch_changes_it() -> None:
    for before in ({"microbatches": 6}, {"global_batch": 12}):
        results = sweep(small(dp=2, tp=4, **before), grid(dp=[2, 4], tp=[4, 2], microbatches=[5]))
        fitting = results[results["status"] != "failed"]
        assert batches(fitting) == [(10, 5), (20, 5)]
        other = sweep(small(dp=2, tp=4, **before), grid(global_batch=[8, 16]))
        assert batches(other) == [(8, 4), (16, 8)]


def test_a_batch_that_cannot_be_shared_out_is_refused_with_the_reason() -> None:
    with pytest.raises(InputError) as refused:
        sweep(small(dp=2, tp=4, microbatches=3), grid(dp=[1, 4], tp=[8, 2]))
    of_tp, of_dp = sorted(refused.value.problems, key=lambda problem: ".dp=" in problem)
    assert of_dp == (
        "[0]: strategy.pipeline.dp=4: strategy.pipeline.global_batch: 6 samples are no multiple of "
        "dp 4 x microbatch 1 = 4"
    )
    assert of_tp.startswith("[0]: strategy.pipeline.tp=2: dp x tp x pp: 1 x 2 x 1 = 2 devices, ")


def test_the_batch_is_that_of_a_strategy_in_its_own_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "parts").mkdir()
    for name, count in (("a", 4), ("b", 16)):
        strategy = {"version": 1, "pipeline": {"dp": 2, "tp": 4, "microbatches": count}}
        written(tmp_path / "parts" / f"{name}.json", strategy)
    written(tmp_path / "parts" / "s.json", SMALL | {"strategy": "a.json"})
    monkeypatch.chdir(tmp_path)
    plans = {"strategy": ["parts/a.json", "parts/b.json"]} | grid(dp=[8], tp=[1])
    assert batches(sweep("parts/s.json", plans)) == [(8, 1), (32, 4)]


def test_a_pipeline_over_a_graph_keeps_its_microbatches() -> None:
    question = {
        "version": 1,
        "graph": {"model": "lenet"},
        "cluster": "dgx-1v",
        "strategy": {"pipeline": {"pp": 2, "microbatches": 4}},
    }
    assert list(sweep(question, grid(dp=[1]))["microbatches"]) == [4]
    with pytest.raises(InputError, match=r"dp=2: goes with a large model"):
        sweep(question, grid(dp=[1, 2]))


@pytest.mark.parametrize(
    ("pipeline", "reason"),
    [
        (
            {"dp": 8, "global_batch": 12},
            "global_batch: 12 samples are no multiple of dp 8 x microbatch 1 = 8",
        ),
        ({"dp": 8, "global_batch": 0}, "global_batch: must be a whole number from 1"),
        (
            {"dp": 8, "global_batch": 16, "microbatches": 1},
            "microbatches: 1, but 2 follow from global_batch; give one of them",
        ),
        (
            {"dp": 8, "global_batch": 16, "microbatches": 3},
            "global_batch: 16 is not dp 8 x microbatches 3 x microbatch 1 = 24; tell one of them",
        ),
    ],
)
def test_a_wrong_global_batch_is_refused(pipeline: dict[str, int], reason: str) -> None:
    with pytest.raises(InputError) as error:
        load_scenario(small(**pipeline))
    assert error.value.problems[0].startswith(f"strategy.pipeline.{reason}")


def test_what_a_global_batch_says_is_written_and_read_again() -> None:
    pipeline = Parallelism(dp=4, microbatch=2, global_batch=64)
    assert (pipeline.microbatches, pipeline.samples) == (8, 64)
    assert load_scenario(small(**pipeline_object(pipeline))).strategy.pipeline == pipeline


@pytest.mark.parametrize("apart", [False, True])
def test_a_file_of_it_is_read(tmp_path: Path, apart: bool) -> None:
    parts = dict(QUESTION)
    if apart:
        written(tmp_path / "strategy.json", {"version": 1, **QUESTION["strategy"]})
        parts["strategy"] = "strategy.json"
    written(tmp_path / "s.json", parts)
    results = sweep(tmp_path / "s.json")
    assert results["step_time_ps"][0] == sweep(QUESTION)["step_time_ps"][0]


def test_another_schedule_in_its_file_is_another_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from simdev.nouns.schedules import named_schedule, schedule_csv

    monkeypatch.chdir(tmp_path)
    parts = QUESTION | {
        "strategy": {"pipeline": QUESTION["strategy"]["pipeline"] | {"table": "table.csv"}}
    }
    written(tmp_path / "s.json", parts)
    rows = []
    for name in ("GPipe", "1F1B"):
        (tmp_path / "table.csv").write_text(schedule_csv(named_schedule(name, 2, 4)))
        rows.append(sweep("s.json", journal="j").iloc[0])
    assert rows[0]["key"] != rows[1]["key"]
    assert rows[0]["status"] != "failed"
    assert rows[0]["peak_bytes"] > rows[1]["peak_bytes"]
