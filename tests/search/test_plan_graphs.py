"""The planners of the papers over a graph, in one table, at the same global batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from simdev.commands import main
from simdev.execution.scenario import load_scenario
from simdev.ground.errors import InputError
from simdev.report import run
from simdev.search import METHODS as SEARCHES
from simdev.search.plan.graphs import METHODS, SCHEDULES, SEARCHED, is_graph_alone, plan_graph

FEW = ("single", "data-parallel", "pipedream", "1F1B")


@pytest.fixture(scope="module")
def lenet() -> pd.DataFrame:
    return plan_graph("lenet", "c4140-4x-v100", 64, methods=FEW, seconds=2)


def rows(frame: pd.DataFrame) -> dict[str, dict[str, Any]]:
    return {str(row["method"]): dict(row) for row in frame.to_dict("records")}


def test_every_row_is_a_scenario_of_the_whole_batch(lenet: pd.DataFrame) -> None:
    assert sorted(lenet["method"]) == sorted(FEW)
    for row in rows(lenet).values():
        report = run(load_scenario(row["scenario"]))
        assert report.step_ps == row["step_time_ps"]
        assert report.throughput is not None
        assert report.throughput.samples == 64
        if row["period_s"] != row["period_s"]:
            assert row["samples_per_s"] == pytest.approx(64 / report.seconds)


def test_what_trains_most_by_second_stands_first(lenet: pd.DataFrame) -> None:
    assert list(lenet["samples_per_s"]) == sorted(lenet["samples_per_s"], reverse=True)
    piped = rows(lenet)["pipedream"]
    assert piped["samples_per_s"] == pytest.approx(64 / piped["period_s"])
    assert "minibatches overlap" in piped["note"]


def test_a_pipeline_has_the_best_number_of_microbatches(lenet: pd.DataFrame) -> None:
    piped = rows(lenet)["1F1B"]
    assert piped["evaluations"] == 5  # 2, 4, 8, 16, 32
    count = piped["scenario"]["strategy"]["pipeline"]["microbatches"]
    assert piped["note"] == f"{count} microbatches of {64 // count}"
    for other in {2, 4, 8, 16, 32} - {count}:
        pipeline = {**piped["scenario"]["strategy"]["pipeline"], "microbatches": other}
        graph = {"model": "lenet", "batch": 64 // other}
        changed = {**piped["scenario"], "graph": graph, "strategy": {"pipeline": pipeline}}
        assert run(load_scenario(changed)).step_ps >= piped["step_time_ps"]


def test_what_cannot_be_is_a_row_with_its_reason() -> None:
    frame = plan_graph("lenet", "c4140-4x-v100", 3, methods=("single", "data-parallel", "1F1B"))
    by_method = rows(frame)
    assert by_method["1F1B"]["note"] == "3 microbatches of 1"
    assert by_method["single"]["feasible"] is True
    assert by_method["data-parallel"]["feasible"] is not True
    assert "3" in by_method["data-parallel"]["note"]
    assert list(frame["method"])[-1] == "data-parallel"


@pytest.mark.slow
def test_plans_by_sizes_stand_in_the_same_table() -> None:
    model = {"model": "llama2-7b", "layers": 1, "length": 64}
    frame = plan_graph(model, "c4140-4x-v100", 1, methods=("single",), seconds=5)
    by_sizes = frame[frame["method"].str.startswith("by its sizes")]
    assert len(by_sizes)
    assert set(by_sizes["devices"]) == {4}  # one is simulated for all
    assert "single" in set(frame["method"])
    best = by_sizes.iloc[0]
    pipeline = load_scenario(best["scenario"]).strategy.pipeline
    assert pipeline is not None
    assert pipeline.samples == 1


def test_methods_are_those_of_searches_short_forms_and_schedules() -> None:
    assert set(SEARCHED) < set(SEARCHES)
    assert set(METHODS) - set(SEARCHED) == {"data-parallel", *SCHEDULES}
    assert is_graph_alone("gnmt")
    assert not is_graph_alone("llama2-7b")
    assert not is_graph_alone("no such model")
    with pytest.raises(InputError, match="methods: must be of single"):
        plan_graph("lenet", "dgx-1v", 8, methods=("best",))
    with pytest.raises(InputError, match="no graph is made of 'nothing'"):
        plan_graph("nothing", "dgx-1v", 8)


def test_the_verb_plans_a_graph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from simdev.search.plan import graphs

    line = ["plan", "lenet", "--cluster", "c4140-4x-v100", "--global-batch", "16"]
    patch = pytest.MonkeyPatch()
    with patch.context() as patched:
        patched.setattr(graphs.plan_graph, "__defaults__", _with_methods(graphs.plan_graph))
        assert main([*line, "--json", "-o", str(tmp_path)]) == 0
        plans = json.loads(capsys.readouterr().out)["plans"]
        assert main(line) == 0
        assert "samples/s" in capsys.readouterr().out
    assert {plan["method"] for plan in plans} == {"single", "data-parallel"}
    first = load_scenario(str(tmp_path / "01.json"))
    assert run(first).step_ps == plans[0]["step_time_ps"]
    assert main([*line, "--set", "tp=1"]) == 2
    assert "--set: goes with a model by its sizes" in capsys.readouterr().err
    large = ["plan", "llama3-8b", "--cluster", "dgx-h100", "--global-batch", "8", "--seconds", "1"]
    assert main(large) == 2
    assert "--seconds: goes with a graph" in capsys.readouterr().err


def _with_methods(function: Any) -> tuple[Any, ...]:
    """Its defaults, with few methods."""
    return tuple(
        ("single", "data-parallel") if value == METHODS else value
        for value in function.__defaults__
    )


def test_a_price_goes_by_the_samples_trained(lenet: pd.DataFrame) -> None:
    assert lenet["cost_per_million_samples"].isna().all()
    frame = plan_graph(
        "lenet", "c4140-4x-v100", 64, methods=FEW[:1], seconds=2, options={"price": "$2"}
    )
    row = frame.to_dict("records")[0]
    # All four devices are paid, though a single one works.
    assert row["cost_per_million_samples"] == pytest.approx(
        4 * 2 / 3600 * row["step_time_s"] / 64 * 1e6
    )
