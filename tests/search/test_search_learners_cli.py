"""The options of learners as a user writes them."""

from __future__ import annotations

import json
import re

import pytest

import tiny_learner
from simdev.commands import main
from simdev.commands.search import FLAGS
from simdev.search import load_policy
from worlds.scenarios import question, written

pytest.importorskip("safetensors.numpy", reason="policies are kept by safetensors")
OPS = [
    {
        "name": f"op{i}",
        "inputs": [f"op{i - 1}"] * (i % 3 > 0),
        "time": f"{i + 1} ms",
        "outputs": [{"bytes": 0}],
    }
    for i in range(6)
]
DEVICES = [{"name": f"g{d}"} for d in range(2)]
QUESTION = question(
    {"version": 1, "name": "chains", "ops": OPS},
    {
        "version": 1,
        "devices": DEVICES,
        "links": [{"ends": ["g0", "g1"], "bandwidth": "1 GB/s"}],
    },
    {"placement": {"*": "g0"}},
)


@pytest.fixture(autouse=True)
def scenario(here, monkeypatch):
    tiny_learner.register(monkeypatch)
    written(here / "s.json", QUESTION)
    return here


def search(*options: str, method: str = "tiny") -> int:
    return main(["search", "s.json", "--method", method, "--budget", "40", *options])


def test_a_policy_is_saved_and_evaluated(scenario, capsys):
    assert search("--save-policy", "p.safetensors", "--settings", "batch=2,rate=0.3") == 0
    policy = load_policy("p.safetensors")
    assert (policy.method, policy.settings["rate"]) == ("tiny", 0.3)
    capsys.readouterr()
    assert search("--policy", "p.safetensors", "--no-train", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["settings"]["rate"] == 0.3
    assert (said["warm"], said["train"]) == ("policy", False)


def test_the_start_stands_beside_the_result(capsys):
    assert search("--warm", "greedy:0.6") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "the scenario's strategy: 21 ms"
    assert lines[2] == "began at greedy: 15 ms"
    assert lines[3] == "no sample was better than that start"
    assert search() == 0
    out = capsys.readouterr().out
    assert re.search(r"\nbegan at random; the best of the first 1\d evaluations: [\d.]+ ms\n", out)
    assert "\nplaced 6 groups of 6 ops, without preparation\n" in out
    assert search("--warm", "random") == 0
    assert "began" not in capsys.readouterr().out


def test_what_splits_groups_is_told_as_it_is_placed(capsys, monkeypatch):
    tiny_learner.register(monkeypatch, "coplace")
    assert search("--warm", "greedy", "--json") == 0
    warm = json.loads(capsys.readouterr().out)["details"]["warm"]
    assert search("--warm", "greedy") == 0
    text = capsys.readouterr().out
    assert (" with its groups together" in text) == warm["split"]
    assert "\nplaced 2 groups of 6 ops, prepared by coplace\n" in text


def test_what_prepares_a_start_is_told_with_it(capsys):
    assert search("--warm", "m-sct") == 0
    assert "\nbegan at m-sct (forward,coplace,fuse): " in capsys.readouterr().out
    assert search("--warm", "m-sct", "--prepare", "pair") == 0
    assert "\nbegan at m-sct (pair): " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--settings", "batch=0"), "--settings: batch must be a whole number > 0, got '0'; "),
        (("--warm", "magic"), "--warm: must be one of auto, single, "),
        (("--policy", "none"), "--policy: none: no such file"),
        (("--no-train",), "--no-train: without training there must be a policy"),
        (("--jobs", "0"), "--jobs: must be a whole number, not 0, got 0"),
        (("--save-policy", "p.json"), "--save-policy: p.json: the name must end in .safetensors"),
        (("--save-policy", "x/p.safetensors"), "--save-policy: cannot write x/p.safetensors: "),
    ],
)
def test_bad_options_exit_2_with_one_line(options, problem, capsys):
    assert search(*options) == 2
    told = capsys.readouterr()
    assert told.err.startswith(problem)
    assert len(told.err.splitlines()) == 1
    assert told.out == ""


@pytest.mark.parametrize(
    "option",
    [
        ("--settings", "batch=2"),
        ("--warm", "single"),
        ("--policy", "p"),
        ("--no-train",),
        ("--jobs", "2"),
        ("--save-policy", "p.safetensors"),
    ],
)
def test_other_methods_take_none_of_them(option, scenario, capsys):
    assert search(*option, method="greedy") == 2
    error = capsys.readouterr().err
    assert error.startswith(f"{option[0]}: goes with methods that learn (")
    assert error.endswith("tiny), not with greedy\n")
    assert sorted(path.name for path in scenario.iterdir()) == ["s.json"]


def test_the_policy_to_begin_with_is_not_written_over(capsys):
    assert search("--save-policy", "p.safetensors") == 0
    assert search("--policy", "p.safetensors", "--save-policy", "p.safetensors") == 2
    assert "p.safetensors is the policy of --policy too" in capsys.readouterr().err


def test_where_nothing_was_learned_yet_the_best_is_written_and_no_policy(
    scenario, capsys, monkeypatch
):
    def interrupted(trial):
        trial.score(trial.problem.choices[0][:1].repeat(6))
        raise KeyboardInterrupt

    monkeypatch.setattr("simdev.search.annealing.annealing", interrupted)
    (scenario / "p.safetensors").write_text("as it was")
    outputs = ("-o", "best.json", "--save-policy", "p.safetensors")
    assert search("--warm", "annealing", *outputs) == 0
    assert capsys.readouterr().err == (
        "--save-policy: nothing was learned yet; p.safetensors is not written\n"
    )
    assert (scenario / "p.safetensors").read_text() == "as it was"
    assert json.loads((scenario / "best.json").read_text())["placement"]
    assert search("--warm", "annealing", "--save-policy", "/dev/null") == 0


def test_every_argument_of_a_search_has_its_option():
    from inspect import signature

    from simdev.search import search as function

    compared = {"seeds", "plot"}  # of a comparison alone
    assert set(signature(function).parameters) - {"question", "progress"} == set(FLAGS) - compared
