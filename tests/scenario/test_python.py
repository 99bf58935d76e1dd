"""Scenarios made in Python answer as those of files do, and are made as easily."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import simdev
from simdev import CostModel, InputError, Scenario, Strategy, load_scenario, run
from simdev.execution.scenario import fingerprint
from simdev.files import read_device, read_preset, read_profile
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.models import build
from simdev.nouns.strategy import POLICY_NAMES, sync_policy

ROW = {
    "v": 1,
    "op": "relu",
    "attrs": {},
    "in": [[1024]],
    "dt": ["float32"],
    "out": [[1024]],
    "dev": "p100",
    "phase": "fwd",
    "t_ns": {"p50": 9000},
}
TENSOR = Tensor(4096, (1024,), "float32")
GRAPH = Graph(
    "g", (Op("x", "input", outputs=(TENSOR,)), Op("a", "relu", inputs=("x",), outputs=(TENSOR,)))
)


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps(ROW) + "\n")
    return path


def test_profiles_are_opened_by_their_paths(profile: Path) -> None:
    value = read_profile(profile)
    assert CostModel(profile) == CostModel(str(profile)) == CostModel(value) == CostModel([value])
    other = CostModel([str(profile), value])
    assert other.profiles == (value, value)
    with pytest.raises(InputError, match=r"nowhere\.jsonl: no such file"):
        CostModel("nowhere.jsonl")
    for nothing, problem in ((3, "must be profiles or paths"), ({}, "rows: must be a list")):
        for profiles in (nothing, [nothing]):
            with pytest.raises(InputError, match=problem):
                CostModel(profiles)  # type: ignore[arg-type]


def test_datasheets_of_presets_come_to_scenarios_made_in_python() -> None:
    """Those of the file's door, to the picosecond: nothing of AlexNet is measured on a T4."""
    parts = {"graph": {"model": "alexnet"}, "cluster": "g4dn-12xlarge", "strategy": {"*": "gpu:0"}}
    by_file = load_scenario(parts)
    graph, cluster = build("alexnet"), read_preset("g4dn-12xlarge")
    costs, strategy = CostModel(), Strategy({"*": "gpu:0"})
    made = Scenario(graph, cluster, costs, strategy, samples=by_file.samples)
    assert fingerprint(made) == fingerprint(by_file)
    assert run(made).step_ps == run(by_file).step_ps
    # What is learned of a cost model serves all scenarios that are made of it.
    assert Scenario(graph, cluster, costs, strategy).costs is made.costs
    assert costs.specs == ()


def test_a_given_datasheet_goes_before_the_shipped_one(profile: Path) -> None:
    """Kinds that only a profile names have theirs too: what was measured there can be scaled."""
    spec = read_device("t4")
    costs = CostModel(profile, specs=(spec,))
    scenario = Scenario(GRAPH, read_preset("g4dn-12xlarge"), costs, Strategy({"*": "gpu:0"}))
    kinds = [sheet.kind for sheet in scenario.costs.specs]
    assert kinds[0] == "t4"
    assert scenario.costs.specs[0] is spec
    assert kinds[-1] == "p100"
    assert run(scenario).cost_misses[0].basis == "from p100"


def test_strict_refuses_what_a_datasheet_estimates() -> None:
    costs = CostModel(strict=True)
    scenario = Scenario(GRAPH, read_preset("g4dn-12xlarge"), costs, Strategy({"*": "gpu:0"}))
    with pytest.raises(InputError, match='no given or measured time for "a"'):
        run(scenario)


def test_run_answers_a_scenario_its_file_or_its_object(tmp_path: Path) -> None:
    parts = {
        "version": 1,
        "graph": "alexnet",
        "cluster": "g4dn-12xlarge",
        "strategy": {"*": "gpu:0"},
    }
    (tmp_path / "s.json").write_text(json.dumps(parts))
    answers = {run(each).step_ps for each in (load_scenario(parts), parts, tmp_path / "s.json")}
    assert len(answers) == 1
    with pytest.raises(InputError, match=r"simdev\.run\(\.\.\.\) answers a scenario"):
        simdev.simulate(load_scenario(parts))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_a_policy_may_be_its_name(name: str) -> None:
    parts = {"graph": "alexnet", "cluster": "g4dn-12xlarge", "strategy": {"sync": name}}
    parts["strategy"] |= {"short": "data-parallel"}
    assert load_scenario(parts).strategy.sync == sync_policy(name)
    assert Strategy(sync=name).sync == sync_policy(name)


def test_bucketed_is_a_way_to_add_up_as_a_text_and_a_policy_as_an_object() -> None:
    assert "bucketed" not in POLICY_NAMES
    assert Strategy(sync="bucketed").sync == "bucketed"
