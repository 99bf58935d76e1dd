"""Host times of large models, fitted to tables of steps that simdev made with known ones."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("scipy")

from simdev import load_scenario
from simdev.commands import main
from simdev.ground.errors import InputError
from simdev.measure.calibrate import calibrate_steps, read_steps, steps_text
from simdev.report import run

pytestmark = pytest.mark.usefixtures("here")

TRUE = {"forward": "700 us", "backward": "1.6 ms", "update": "9 ms"}
SCENARIO = {
    "version": 1, "name": "small gpt",
    "graph": {
        "model": "gpt-1.7b", "layers": 8, "hidden": 1024, "heads": 16, "inner": 4096,
        "software": "megatron-2022",
    },
    "cluster": {"preset": "dgx-a100-80", "host": {}},
    "strategy": {"pipeline": {"dp": 8, "flash": False}},
}  # fmt: skip
POINTS = [
    {"dp": dp, "tp": tp, "pp": pp, "microbatches": microbatches, "microbatch": microbatch}
    for dp, tp, pp in ((8, 1, 1), (2, 4, 1), (2, 1, 4), (1, 2, 4), (4, 1, 2))
    for microbatches, microbatch in ((2, 1), (4, 1), (2, 4))
]


def steps_file(noise: float = 0.0) -> None:
    """s.json, and steps.csv with what the scenario takes with the true host times."""
    Path("s.json").write_text(json.dumps(SCENARIO))
    random = np.random.default_rng(5)
    with Path("steps.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow([*(f"strategy.pipeline.{name}" for name in POINTS[0]), "step"])
        for point in POINTS:
            document = {**SCENARIO, "graph": {**SCENARIO["graph"], "host_time": TRUE}}
            document["strategy"] = {"pipeline": {**SCENARIO["strategy"]["pipeline"], **point}}
            seconds = run(load_scenario(document)).seconds
            seconds *= float(np.exp(random.normal(0, noise)))
            table.writerow([*point.values(), f"{seconds * 1e3:.6f} ms"])


def test_known_times_come_back(capsys: pytest.CaptureFixture[str]) -> None:
    """From a clean table, by the command; the written scenario gives the steps again."""
    steps_file()
    assert main(["calibrate", "s.json", "steps.csv", "-o", "fitted.json", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    times = answer["host_time_s"]
    assert times["forward"] == pytest.approx(700e-6, rel=0.02)
    assert times["backward"] == pytest.approx(1.6e-3, rel=0.02)
    assert times["update"] == pytest.approx(9e-3, rel=0.02)
    assert answer["mean_error"]["before"] > 0.1
    assert answer["mean_error"]["fitted"] < 0.005
    assert answer["mean_error"]["left_out"] < 0.02
    written = json.loads(Path("fitted.json").read_text())
    source = written["provenance"]["graph.host_time"]
    assert (source["kind"], source["steps"]) == ("fitted", len(POINTS))
    fitted = [step.scenario for step in read_steps("fitted.json", "steps.csv")]
    steps = read_steps("s.json", "steps.csv")
    for scenario, step in zip(fitted, steps, strict=True):
        assert run(scenario).seconds == pytest.approx(step.seconds, rel=0.02)


@pytest.mark.slow
def test_noise_moves_them_little() -> None:
    """Where threads run ahead only the sum of a layer's times counts: that is what is sure."""
    steps_file(0.03)
    fit = calibrate_steps(read_steps("s.json", "steps.csv"), "steps.csv")
    layer = float(fit.host_time["forward"] + fit.host_time["backward"])
    assert layer == pytest.approx(2.3e-3, rel=0.1)
    assert fit.mean_error("fitted") < 0.04 < fit.mean_error("before")
    text = steps_text(fit)
    assert f"Host times fitted to {len(POINTS)} measured steps of steps.csv" in text
    assert "Errors fitted to the other half: mean" in text


BAD = [
    ("dp\n8\n", [], 'steps.csv: needs a column "step", beside fields of the scenario'),
    (
        "strategy.pipeline.dp,step\n8,soon\n",
        [],
        "steps.csv: line 2: step: ",
    ),
    ("strategy.pipeline.dp,step\n8,0 s\n", [], "steps.csv: line 2: step: must be > 0, got 0 s"),
    (
        "strategy.pipeline.dq,step\n8,1 s\n",
        [],
        "steps.csv: line 2: strategy.pipeline.dq: unknown key",
    ),
    (
        "strategy.pipeline.dp,step\n8,1 s\n",
        [],
        "steps.csv: needs 6 measured steps at least, got 1",
    ),
    (
        "strategy.pipeline.dp,step\n8,1 s\n",
        ["--fit", "gap"],
        "--fit: a table of steps tells host_time alone, got gap",
    ),
    (
        "strategy.pipeline.dp,step\n8,1 s\n",
        ["--save-cluster", "c.json"],
        "--save-cluster: host times stand in the graph; write the scenario with -o",
    ),
    (
        "cluster,step\n" + "dgx-a100-80,1 s\n" * 6,
        [],
        's.json: host_time: no device has an eager host; write "host": {} in the cluster',
    ),
]


@pytest.mark.parametrize(("table", "options", "message"), BAD)
def test_bad_tables_exit_2(
    table: str, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("s.json").write_text(json.dumps(SCENARIO))
    Path("steps.csv").write_text(table)
    assert main(["calibrate", "s.json", "steps.csv", *options]) == 2
    assert capsys.readouterr().err.startswith(message)


def test_graphs_of_ops_are_refused() -> None:
    graph = {"version": 1, "ops": [{"name": "a", "time": 1}]}
    cluster = {"devices": [{"name": "gpu:0"}], "host": {}}
    scenario = {
        "version": 1,
        "graph": graph,
        "cluster": cluster,
        "strategy": {"placement": {"a": "gpu:0"}},
    }
    Path("g.json").write_text(json.dumps(scenario))
    Path("steps.csv").write_text("options.engine,step\n" + "simpy,1 s\n" * 6)
    with pytest.raises(InputError, match="is fitted to steps of large models; this graph has ops"):
        calibrate_steps(read_steps("g.json", "steps.csv"))
