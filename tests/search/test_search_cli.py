"""``simdev import`` and ``simdev search`` as a user runs them."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from imported import PROFILE, workload
from simdev import load_scenario
from simdev.commands import main
from simdev.search import METHODS
from simdev.search.prepare import RULES
from waiting import HANGS
from worlds.scenarios import written


@pytest.fixture
def scenario(tmp_path, capsys):
    (tmp_path / "graph.txt").write_text(PROFILE)
    out = tmp_path / "s.json"
    assert (
        main(
            [
                "import",
                str(tmp_path / "graph.txt"),
                "-o",
                str(out),
                "--devices",
                "2",
                "--bandwidth",
                "1 GB/s",
            ]
        )
        == 0
    )
    told = capsys.readouterr()
    assert "6 ops, 2 devices, pipedream" in told.out
    assert "17.972 ms of loading data" in told.err
    return out


LENET = {
    "graph": {"model": "lenet"},
    "cluster": {"preset": "flexflow-p100", "nodes": 1},
    "strategy": {"short": "data-parallel", "sync": "all-reduce"},
}
CHAIN = [
    {"name": f"op{i}", "inputs": [f"op{i - 1}"] if i else [], "time": "1 ms"} for i in range(3)
]


# Networks answer alike; what each tells is written as JSON in test_search.py, too.
NETWORKS = [name for name, method in METHODS.items() if method.torch]


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in NETWORKS[1:] else [])
        for name in METHODS
    ],
)
def test_every_method_answers_in_json_and_writes_a_strategy_that_runs(
    method, scenario, tmp_path, capsys
):
    best = tmp_path / "best.json"
    if METHODS[method].splits:
        written(scenario, {"version": 1, **LENET})
    elif method == "dnn-latency":  # of inference
        made = json.loads(scenario.read_text())
        outputs = [{"bytes": 8}]
        made["graph"] = {
            "version": 1,
            "name": "chain",
            "ops": [one | {"outputs": outputs} for one in CHAIN],
        }
        written(scenario, made | {"strategy": {"placement": {"*": "gpu:0"}}})
    assert (
        main(
            [
                "search",
                str(scenario),
                "--method",
                method,
                "--budget",
                "40",
                "-o",
                str(best),
                "--json",
            ]
        )
        == 0
    )
    told = json.loads(capsys.readouterr().out)
    assert told["method"] == method
    assert told["feasible"] is True
    assert told["curve"]["step_time_s"]
    value = json.loads(scenario.read_text()) | {"strategy": str(best)}
    written(tmp_path / "again.json", value)
    assert main(["simulate", str(tmp_path / "again.json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step_time_s"] == told["step_time_s"]
    strategy = load_scenario(tmp_path / "again.json").strategy
    assert strategy.splits if METHODS[method].splits else strategy.placement


P3 = {"short": "data-parallel", "sync": {"policy": "p3"}}
CREDIT = {"short": "data-parallel", "sync": {"policy": "byte-scheduler", "credit": 10_000}}
FOLLOWING = {
    "repeated": ("data-parallel", "repeated"),
    "microbatches": ({"short": "data-parallel", "accumulate": 2}, "repeated"),
    "p3": (P3, "once"),
    "credit": (CREDIT, "once"),
}


@pytest.mark.parametrize(
    ("name", "method"),
    [
        *((name, "random") for name in FOLLOWING),
        *((name, "flexflow") for name in ("repeated", "p3")),
        *(
            pytest.param(name, "flexflow", marks=pytest.mark.slow)
            for name in ("microbatches", "credit")
        ),
    ],
)
def test_what_is_found_for_steps_that_follow_one_another_is_confirmed(
    name, method, tmp_path, capsys
):
    """The answer was judged by one step alone: it "takes 137.75 us, the search says 137.05"."""
    strategy, steps = FOLLOWING[name]
    question = {"version": 1, "graph": {"model": "lenet", "batch": 8}, "cluster": "c4140-4x-v100"}
    question |= {"strategy": strategy, "options": {"steps": steps}}
    written(tmp_path / "s.json", question)
    best = tmp_path / "best.json"
    options = ["--method", method, "--budget", "8", "-o", str(best), "--json"]
    assert main(["search", str(tmp_path / "s.json"), *options]) == 0
    step_s = json.loads(capsys.readouterr().out)["step_time_s"]
    written(tmp_path / "again.json", question | {"strategy": str(best)})
    assert main(["simulate", str(tmp_path / "again.json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step_time_s"] == step_s


def test_the_answer_is_told_in_words(scenario, capsys):
    assert (
        main(["search", str(scenario), "--method", "annealing", "--seed", "3", "--budget", "50"])
        == 0
    )
    out = capsys.readouterr().out
    assert out.startswith("annealing: step time 4.75 ms\nthe scenario's strategy: ")
    assert "50 evaluations" in out
    assert "confirmed by the reference engine and the checker" in out


def test_the_scenarios_step_time_stands_beside_what_beats_it(scenario, tmp_path, capsys):
    def printed(*verb: str) -> str:
        assert main([verb[0], str(scenario), *verb[1:]]) == 0
        return capsys.readouterr().out

    now = json.loads(printed("simulate", "--json"))["step_time_s"]
    search = ("search", "--method", "greedy", "--budget", "30")
    assert json.loads(printed(*search, "--json"))["present_step_time_s"] == now
    assert f"\nthe scenario's strategy: {now * 1e3:.6g} ms\n" in printed(*search)


def test_the_largest_peak_is_told_in_a_unit(scenario, capsys):
    assert main(["search", str(scenario), "--method", "round-robin", "--budget", "1"]) == 0
    out = capsys.readouterr().out
    assert re.search(
        r"^fits; the fullest device holds [\d.]+ ([KMG]i)?B at its peak$", out, re.MULTILINE
    )
    assert "\n1 evaluation, " in out


def test_the_largest_load_is_told(tmp_path, capsys):
    written(tmp_path / "w.json", workload())
    assert main(["import", str(tmp_path / "w.json"), "-o", str(tmp_path / "s.json")]) == 0
    assert main(["search", str(tmp_path / "s.json"), "--method", "dnn-contiguous", "--json"]) == 0
    out = capsys.readouterr().out
    told = json.loads(out[out.index("{") :])
    assert told["max_load_ms"] == 5.5  # x and xgrad: 4.5 and what x (0.25) and xgrad (0.75) send


def test_what_does_not_fit_exits_1_and_says_why(scenario, tmp_path, capsys):
    value = json.loads(scenario.read_text())
    for device in value["cluster"]["devices"]:
        device["memory"] = "9 B"
    written(tmp_path / "tight.json", value)
    assert main(["search", str(tmp_path / "tight.json"), "--method", "greedy"]) == 1
    told = capsys.readouterr()
    assert "does not fit" in told.out
    assert "needs" in told.err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--method", "magic"], "--method: must be one of single"),
        (
            ["--method", "random", "--budget", "0"],
            "--budget: must be a whole number of at least 1, got 0",
        ),
        (["--method", "random", "--seconds", "-1"], "--seconds: must be a number > 0, got -1.0"),
        (
            ["--method", "random", "--seed", "-1"],
            "--seed: must be a whole number from 0 to 2^60, got -1",
        ),
        (["--method", "random", "--prepare", "mix"], "--prepare: must be of"),
        (
            ["--method", "random", "--prepare", "adjust:least"],
            "--prepare: adjust: must be one of first, frequent",
        ),
        (["--method", "random", "-o", "best.txt"], "the name must end in .json"),
        (
            ["--method", "random", "-o", "nowhere/best.json"],
            "--output: cannot write nowhere/best.json",
        ),
    ],
)
def test_bad_options_exit_2_with_one_message(
    arguments, problem, scenario, capsys, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    assert main(["search", str(scenario), *arguments]) == 2
    told = capsys.readouterr()
    assert problem in told.err
    assert told.out == ""
    assert not (tmp_path / "best.json").exists()


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_of_adjustment_is_an_option(rule, scenario, capsys):
    search = ["search", str(scenario), "--method", "heft", "--prepare", f"adjust:{rule}", "--json"]
    assert main(search) == 0
    assert json.loads(capsys.readouterr().out)["prepare"] == [f"adjust:{rule}"]
    with pytest.raises(SystemExit):
        main(["search", "--help"])
    assert rule in capsys.readouterr().out


def test_an_import_into_its_own_source_is_refused(scenario, capsys):
    assert main(["import", str(scenario), "-o", str(scenario)]) == 2
    assert "is the file to import too" in capsys.readouterr().err
    assert main(["search", str(scenario), "--method", "single", "-o", str(scenario)]) == 2
    assert "is the scenario" in capsys.readouterr().err


def test_a_file_of_the_scenario_is_not_written_over(scenario, tmp_path, capsys):
    value = json.loads(scenario.read_text())
    for part in ("graph", "strategy"):
        written(tmp_path / f"{part}.json", value[part])
    written(scenario, value | {"graph": "graph.json", "strategy": "strategy.json"})
    for part in ("graph", "strategy"):
        own = tmp_path / f"{part}.json"
        before = own.read_bytes()
        assert main(["search", str(scenario), "--method", "single", "-o", str(own)]) == 2
        assert capsys.readouterr().err == f"--output: {own} is a file of {scenario} too\n"
        assert own.read_bytes() == before


@pytest.mark.parametrize("method", ["dnn-contiguous", "dnn-ip", "dnn-latency"])
def test_what_no_split_keeps_in_memory_is_judged_by_the_step(method, tmp_path, capsys):
    """Sizes added up, the chain fits nowhere: the step, in which outputs do not live together, may
    all the same.
    """
    pytest.importorskip("scipy")
    ops = [one | {"outputs": [{"bytes": 8}]} for one in CHAIN]
    question = {
        "version": 1,
        "graph": {"version": 1, "name": "chain", "ops": ops},
        "strategy": {"placement": {"*": "g"}},
    }
    for memory, code in ((16, 0), (15, 1)):
        question["cluster"] = {
            "version": 1,
            "devices": [{"name": "g", "kind": "gpu", "memory": memory}],
            "links": [],
        }
        written(tmp_path / "s.json", question)
        assert main(["search", str(tmp_path / "s.json"), "--method", method, "--json"]) == code
        told = capsys.readouterr()
        assert json.loads(told.out)["details"]["within_memory"] is False
        assert told.err.startswith("g: needs 16 bytes" if code else "")


def test_an_interrupt_ends_with_the_best_so_far(scenario, tmp_path):
    """Ctrl-C in another process, once it searches."""
    command = [sys.executable, "-c", INTERRUPTED, str(scenario), str(tmp_path / "best.json")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANGS)
    assert ran.returncode == 0, ran.stderr
    assert "interrupted" in ran.stdout
    assert json.loads((tmp_path / "best.json").read_text())["placement"]


@pytest.mark.parametrize(
    "stage",
    ["execution.scenario.load_scenario", "search.run.problem_of", "search.baechi.m_sct"],
    ids=["loading", "preparing", "imitating"],
)
@pytest.mark.parametrize("how", [["--method", "post", "--warm", "m-sct"], ["--compare", "m-sct"]])
def test_an_interrupt_before_anything_was_evaluated_says_so(
    stage, how, scenario, capsys, monkeypatch, tmp_path
):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(f"simdev.{stage}", interrupted)
    assert main(["search", str(scenario), *how, "-o", "best.json"]) == 130
    printed = capsys.readouterr()
    assert printed.err == "interrupted before there was an answer: nothing is written\n"
    assert printed.out == ""
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("how", [["--method", "greedy"], ["--compare", "greedy", "--seeds", "1"]])
def test_an_interrupt_of_the_confirmation_keeps_the_answer(
    how, scenario, tmp_path, capsys, monkeypatch
):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("simdev.search.confirm", interrupted)
    best = tmp_path / "best.json"
    assert main(["search", str(scenario), *how, "--budget", "30", "-o", str(best)]) == 130
    printed = capsys.readouterr()
    assert "interrupted before the answer was confirmed" in printed.err
    assert "4.75 ms" in printed.out
    assert "confirmed" not in printed.out
    assert json.loads(best.read_text())["placement"]


INTERRUPTED = """
import os, signal, sys
import simdev.search.trial as trial
# a parent in the background may have it ignored
signal.signal(signal.SIGINT, signal.default_int_handler)
real = trial.Trial.score

def score(self, placement):
    if self.budget.evaluations == 30:
        os.kill(os.getpid(), signal.SIGINT)
    return real(self, placement)

trial.Trial.score = score
from simdev.commands import main
sys.exit(main(["search", sys.argv[1], "--method", "random", "--seconds", "60", "-o", sys.argv[2]]))
"""


def test_exhaustive_search_says_what_it_proved(tmp_path, capsys):
    question = {
        "graph": {"model": "lenet", "batch": 2},
        "cluster": {"preset": "flexflow-p100"},
        "strategy": "expert",
    }
    written(tmp_path / "s.json", {"version": 1} | question)
    assert (
        main(["search", str(tmp_path / "s.json"), "--method", "exhaustive", "--budget", "3"]) == 0
    )
    assert "nothing is proved yet" in capsys.readouterr().out
