"""One door: every scenario, whatever its strategy says, goes through the same calls and gives the
same figures.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import simdev
from simdev import Scenario, load_scenario, run, sweep
from simdev.commands.server import ServerState
from simdev.execution.scenario import Outcome, execute
from simdev.files import read_run, read_strategy, write_run, write_strategy
from simdev.ground.errors import InputError
from simdev.measure.calibrate import calibrate, read_measured
from simdev.nouns.graph import Graph
from simdev.nouns.models.large import Transformer
from simdev.nouns.strategy import Parallelism, Strategy
from simdev.oracle import oracle_of
from simdev.report import Report, analyze
from simdev.report.measures.training import BUBBLE
from simdev.report.page import compare_tables, read_subject
from simdev.search import search
from worlds.server import ask

LONG = {  # whose four runs take 7 to 30 s
    "gnmt-4x-h100",
    "gpt2-medium-4x-h100-pipeline",
    "gpt3-175b-1024x-a100",
    "nmt-16x-k80",
    "p3-resnet-50",
    "p3-vgg-19",
    "resnet-50-4x-h100-data-parallel",
    "resnet-50-4x-h100-loader",
}
ALIKE = {  # whose parts another has, too: a profile on one core, a placement, a split, LARGE
    "gnmt-4x-cpu",
    "bert-large-1x-cpu",
    "gnmt-1x-cpu",
    "gnmt-4x-rtx-2080-parallel",
    "gnmt-4x-rtx-2080-sequential",
    "gpt2-medium-1x-cpu",
    "gpt2-small-1x-cpu",
    "inception-v3-1x-cpu",
    "inception-v3-branches-once-per-device",
    "llama3-405b-16384x-h100",
    "nasnet-mobile-1x-cpu",
    "resnet-50-1x-cpu",
    "rnnlm-1x-cpu",
    "transformer-big-1x-cpu",
    "vgg-16-4x-p100",
    "vgg-19-1x-cpu",
}
SCENARIOS = Path(__file__).parents[2] / "scenarios"
SHIPPED = [
    pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if path.stem in LONG | ALIKE else [])
    for path in sorted(SCENARIOS.glob("*.json"))
]
LARGE: dict[str, Any] = {
    "graph": {"model": "llama3-70b", "length": 2048},
    "cluster": {"preset": "dgx-h100", "nodes": 8},
    "strategy": {"pipeline": {"dp": 4, "tp": 4, "pp": 4, "microbatches": 16}},
}
PROGRAM: dict[str, Any] = {
    "graph": {
        "ops": [
            {"name": "a", "time": "5 us", "outputs": [{"bytes": 8}]},
            {"name": "b", "time": "4 us", "inputs": ["a"], "outputs": [{"bytes": 8}]},
            {"name": "c", "time": "3 us", "inputs": ["b"]},
            {"name": "d", "time": "6 us"},
        ]
    },
    "cluster": {
        "devices": [{"name": "gpu:0"}, {"name": "gpu:1"}],
        "links": {"all_to_all": {"bandwidth": "8 MB/s"}},
    },
    "strategy": {"version": 1, "placement": {"*": "gpu:0", "b": "gpu:1"}, "order": "program"},
}


@pytest.mark.parametrize("path", SHIPPED)
def test_every_shipped_scenario_goes_through_the_same_calls(path: Path) -> None:
    scenario = load_scenario(path)
    assert isinstance(scenario, Scenario)
    report = run(scenario)
    assert isinstance(report, Report)
    read, row = read_subject(str(path)), sweep(path).iloc[0]
    for figure in ("step_ps", "bubble", "exposed", "idle", "feasible", "memory_excess"):
        assert getattr(read.report, figure) == getattr(report, figure)
    assert (row["step_time_ps"], row["bubble"]) == (report.step_ps, report.bubble)
    assert row["exposed_communication"] == report.exposed
    assert next(compare_tables(read, read)).title == "The step"


@pytest.mark.parametrize("name", sorted(ALIKE))
def test_every_one_that_has_its_parts_alike_is_run(name: str) -> None:
    scenario = load_scenario(SCENARIOS / f"{name}.json")
    assert run(scenario).step_ps > 0


@pytest.mark.parametrize("name", ["bert-large-4x-v100-pipeline", "alexnet-2x-gpu-staged"])
def test_what_was_executed_can_be_analyzed_later(name: str) -> None:
    scenario = load_scenario(SCENARIOS / f"{name}.json")
    assert analyze(execute(scenario)).to_json() == run(scenario).to_json()


def test_what_a_model_by_its_name_means_hangs_on_the_strategy() -> None:
    assert isinstance(load_scenario(LARGE).graph, Transformer)
    small = {"model": "gpt2-small", "batch": 1, "length": 8}
    graph = load_scenario({**LARGE, "graph": small, "strategy": "model-parallel"}).graph
    assert isinstance(graph, Graph)


def test_the_bubble_is_one_whoever_prints_it(tmp_path: Path) -> None:
    """`simulate` said 11.9 %, `report` 27.7 %, which is the idle time: the bubble and exposed
    communication.
    """
    report = run(load_scenario(LARGE))
    training = report.training
    assert training is not None
    assert report.bubble == pytest.approx(training.terms[BUBBLE] / report.seconds)
    assert report.idle == pytest.approx(report.bubble + report.exposed)
    (tmp_path / "s.json").write_text(json.dumps({"version": 1, **LARGE}))
    write_run(report.trace, tmp_path / "run.json")
    saved = analyze(Outcome(read_run(tmp_path / "run.json").trace))
    doors = (
        read_subject(str(tmp_path / "s.json")).report,
        read_subject(str(tmp_path / "run.json")).report,
        saved,
    )
    assert {(one.bubble, one.exposed) for one in doors} == {(report.bubble, report.exposed)}
    assert sweep(tmp_path / "s.json")["bubble"].tolist() == [report.bubble]


def test_a_symmetric_step_has_one_bubble_simulated_in_part_or_whole() -> None:
    part = load_scenario(LARGE | {"graph": {"model": "llama3-70b", "layers": 8, "length": 512}})
    one, every = run(part), run(replace(part, symmetry=False))
    assert len(one.working) == 4
    assert len(every.working) == 64
    assert every.step_ps == one.step_ps
    assert every.bubble == pytest.approx(one.bubble)
    assert every.exposed == pytest.approx(one.exposed)


@pytest.mark.parametrize("placement", [[0, 1, 0, 0], {"*": "gpu:0", "b": "gpu:1"}])
def test_a_server_scores_placements_under_the_order_of_the_scenario(placement: Any) -> None:
    """In the file's order d waits for c, which waits for b on the other device: 20 us instead of
    14.
    """
    state, step_ps = ServerState(), run(load_scenario(PROGRAM)).step_ps
    fifo = PROGRAM["strategy"] | {"order": "fifo"}
    assert step_ps > run(load_scenario(PROGRAM | {"strategy": fifo})).step_ps
    handle = ask(state, "load", scenario=PROGRAM)["scenario"]
    assert ask(state, "score", scenario=handle)["step_ps"] == step_ps
    assert ask(state, "score", scenario=handle, strategy=placement)["step_ps"] == step_ps
    assert ask(state, "batch", scenario=handle, strategies=[placement])[0]["step_ps"] == step_ps
    assert ask(state, "trace", scenario=handle, strategy=placement)["step_time_ps"] == step_ps
    assert ask(state, "session", scenario=handle, strategy=placement)["cost"]["step_ps"] == step_ps
    assert ask(state, "score", scenario=handle, strategy=fifo)["step_ps"] < step_ps


def test_an_oracle_keeps_order_synchronisation_and_collectives_of_its_scenario() -> None:
    """A placement costs what a run of the scenario with it says, under a policy of several steps
    too.
    """
    layers = [
        {"name": f"{phase}{i}", "phase": "forward" if phase == "f" else "backward", "time": "2 us",
         "outputs": [{"bytes": 8}], "inputs": inputs}
        for phase, i, inputs in (("f", 0, []), ("f", 1, ["f0"]), ("b", 1, ["f1"]), ("b", 0, ["b1"]))
    ]  # fmt: skip
    scenario = load_scenario(
        {"graph": {"ops": layers}, "cluster": PROGRAM["cluster"],
         "strategy": {"version": 1, "placement": {"*": "gpu:0"}, "sync": {"policy": "p3"}}}
    )  # fmt: skip
    oracle = oracle_of(scenario)
    for placement in ([0, 0, 0, 0], [0, 1, 1, 0]):
        strategy = oracle.strategy(placement)
        assert strategy.sync == scenario.strategy.sync
        assert oracle(placement).step_ps == run(replace(scenario, strategy=strategy)).step_ps
        assert (
            oracle.step_ps(placement)
            == oracle.session(placement).cost.step_ps
            == oracle(placement).step_ps
        )


def test_what_asks_about_ops_refuses_a_large_model_in_one_line(tmp_path: Path) -> None:
    scenario = load_scenario(LARGE)
    path = tmp_path / "run.json"
    write_run(run(load_scenario(PROGRAM)).trace, path)
    refused = "graph: llama3-70b is a large model by its sizes"
    for door in (
        lambda: search(scenario, "single"),
        lambda: oracle_of(scenario),
        lambda: calibrate(scenario, read_measured(str(path))),
    ):
        with pytest.raises(InputError, match=refused):
            door()
    assert refused in ask(ServerState(), "load", scenario=LARGE)["message"]


def test_options_are_refused_where_they_say_nothing() -> None:
    def problems(**changes: Any) -> str:
        with pytest.raises(InputError) as caught:
            load_scenario({**LARGE, **changes})
        return str(caught.value)

    assert "options.memory: that of llama3-70b" in problems(
        options={"memory": {"model": "outputs_only"}}
    )
    assert "strategy: mixtral-8x7b is a large model" in problems(
        graph={"model": "mixtral-8x7b"}, strategy="expert"
    )
    with pytest.raises(
        InputError, match=r'options\.steps: must be one of once, repeated, got "twice"'
    ):
        load_scenario(PROGRAM | {"options": {"steps": "twice"}})


def test_a_pipeline_is_written_as_it_is_read(tmp_path: Path) -> None:
    pipeline = Parallelism(
        tp=2, stage_layers=(3, 1), pp=2, offload=("optimizer",), host_bandwidth="51 GB/s"
    )
    write_strategy(Strategy(pipeline=pipeline), tmp_path / "s.json")
    assert read_strategy(tmp_path / "s.json") == Strategy(pipeline=pipeline)
    with pytest.raises(InputError, match="placement: a pipeline stands alone"):
        Strategy({"a": "gpu:0"}, pipeline=pipeline)
    with pytest.raises(InputError) as error:
        Strategy(short="data-parallel", pipeline=pipeline)
    assert [problem.partition(":")[0] for problem in error.value.problems] == ["short"]


def test_a_server_opens_no_schedule_outside_its_folder(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "secret.csv").write_text("0F0,0B0\n")
    table = {"version": 1, "pipeline": {"pp": 1, "table": "../secret.csv"}}
    (inside / "strategy.json").write_text(json.dumps(table))
    (inside / "s.json").write_text(json.dumps({"version": 1, **LARGE, "strategy": "strategy.json"}))
    reply = ask(ServerState(root=str(inside)), "load", scenario=str(inside / "s.json"))
    assert "secret.csv: lies outside the folder" in reply["message"]


def test_there_is_no_second_door() -> None:
    root = Path(simdev.__file__).parent
    gone = "TrainingScenario|load_training|run_training|read_training|has_pipeline"
    assert (
        subprocess.run(
            ["grep", "-rlE", "--include=*.py", gone, str(root)], capture_output=True
        ).stdout
        == b""
    )
