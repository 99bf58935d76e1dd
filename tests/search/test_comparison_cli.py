"""``simdev search --compare`` as a user runs it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from simdev.commands import main
from simdev.search import METHODS
from simdev.search import comparison as comparisons
from simdev.search.trial import Trial
from worlds.scenarios import question, written

OPS = [{"name": "s", "outputs": [{"bytes": 1}], "time": "1 ms"}]
OPS += [{"name": x, "inputs": ["s"], "outputs": [{"bytes": 1}], "time": "9 ms"} for x in "abcd"]
QUESTION = question(
    {"version": 1, "name": "fan", "ops": OPS},
    {
        "version": 1,
        "devices": [{"name": "g0", "kind": "gpu"}, {"name": "g1", "kind": "gpu"}],
        "links": [{"ends": ["g0", "g1"], "bandwidth": "1 GB/s", "latency": "1 ms"}],
    },
    {"placement": {"*": "g0", "d": "g1"}},
)
COMPARE = "--compare", "single,random,annealing", "--budget", "40", "--seeds", "3"


@pytest.fixture
def scenario(here: Path) -> str:
    return written(here / "s.json", QUESTION).name


def test_a_comparison_prints_a_table_and_writes_the_best_of_all(scenario, capsys):
    path = str(Path(scenario).absolute())  # of which tables tell the last part
    assert main(["search", path, *COMPARE, "-o", "best.json", "--plot", "p.png"]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0] == "s.json; one device 37 ms; the scenario's strategy 28 ms"
    table = {line.split()[0]: line for line in lines[2:5]}
    assert set(table) == {"single", "random", "annealing"}
    assert table["single"].endswith("above the scenario's strategy")
    walked = r"^  annealing +20\.0000 +20\.0000 to 20\.0000 +x 1\.85 +40 "
    assert re.search(walked, printed.out, re.MULTILINE)
    assert "0.9 x one device: 33.3 ms" in printed.out
    assert "the best of all: 20 ms, by random with seed 0; confirmed by the" in printed.out
    assert printed.err == ""
    written(Path("again.json"), QUESTION | {"strategy": "best.json"})
    assert main(["simulate", "again.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step_time_s"] == pytest.approx(0.02)
    assert Path("p.png").read_bytes().startswith(b"\x89PNG")


def test_json_has_the_table_with_curves(scenario, capsys):
    assert main(["search", scenario, *COMPARE, "--json", "--seed", "4"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["single_step_time_s"] == 0.037
    assert printed["present_step_time_s"] == 0.028
    single, _, annealing = printed["methods"]
    assert single["above"] == "the scenario's strategy"
    assert [run["seed"] for run in annealing["runs"]] == [4, 5, 6]
    assert annealing["curves"]["evaluations"]["median_s"][-1] == pytest.approx(0.02)
    assert {row["mark"] for row in annealing["reached"]} == {"0.9 x one device", "annealing"}


def test_a_journal_is_gone_on_from(scenario, capsys, monkeypatch):
    first = [*COMPARE, "--journal", "j", "--json"]
    assert main(["search", scenario, *first]) == 0
    printed = capsys.readouterr().out
    monkeypatch.setattr("simdev.search.comparison.answer", None)  # nothing is left to run
    assert main(["search", scenario, *first]) == 0
    assert capsys.readouterr().out == printed


def test_a_method_that_refuses_is_told_and_stops_nothing(scenario, capsys):
    Path("s.json").write_text(json.dumps(QUESTION).replace('"time": "1 ms"', '"time": {"tpu": 1}'))
    assert main(["search", scenario, *COMPARE]) == 2
    assert "no device on which" in capsys.readouterr().err
    written(Path("s.json"), QUESTION | {"strategy": "data-parallel"})
    chosen = ["--compare", "greedy,optcnn,exhaustive", "--budget", "5"]
    assert main(["search", scenario, *chosen]) == 0
    printed = capsys.readouterr()
    assert "greedy" in printed.out


def test_where_no_method_answers_nothing_is_written(scenario, capsys):
    devices = [{"name": "g0", "kind": "gpu"}, {"name": "c0", "kind": "cpu"}]
    links = [{"ends": ["g0", "c0"], "bandwidth": "1 GB/s"}]
    cluster = {"version": 1, "devices": devices, "links": links}
    text = json.dumps(QUESTION | {"cluster": cluster, "strategy": {"placement": {"*": "g0"}}})
    Path("s.json").write_text(text.replace('"9 ms"', '{"gpu": 1}').replace('"1 ms"', '{"cpu": 1}'))
    both = ["--compare", "single,pipedream", "-o", "best.json", "--plot", "p.svg"]
    assert main(["search", scenario, *both]) == 2
    error = capsys.readouterr().err
    assert error.splitlines() == [
        "single: no device can run every op of the graph",
        "pipedream: every device must be able to run every op",
        "s.json: no method has an answer",
    ]
    assert not Path("best.json").exists()
    assert not Path("p.svg").exists()


def test_what_does_not_fit_exits_1(scenario, capsys):
    text = json.dumps(QUESTION).replace('"kind": "gpu"', '"kind": "gpu", "memory": "0 B"')
    Path("s.json").write_text(text)
    assert main(["search", scenario, *COMPARE, "--plot", "p.png"]) == 1
    printed = capsys.readouterr()
    assert "does not fit" in printed.out
    assert "needs" in printed.err


def test_an_interrupt_prints_what_is_there_and_keeps_the_best(scenario, capsys, monkeypatch):
    count, score = [0], Trial.score

    def interrupted(self, placement):
        count[0] += 1
        if count[0] == 60:  # the first seed of "random" takes 40
            raise KeyboardInterrupt
        return score(self, placement)

    for method in ("single", "random", "annealing"):
        comparisons.rehearse(method)
    with monkeypatch.context() as patch:
        patch.setattr(Trial, "score", interrupted)
        assert main(["search", scenario, *COMPARE, "-o", "best.json", "--journal", "j"]) == 0
    printed = capsys.readouterr()
    assert "interrupted: this is what was there" in printed.out
    assert printed.err == "annealing: interrupted before it began\n"
    assert json.loads(Path("best.json").read_text())["placement"]
    assert Path("j").read_text().count("\n") == 3  # the header, single and a whole run


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--compare", "magic"], "--method: must be one of single"),
        (["--compare", "annealing+single"], "), not with annealing\n"),
        (["--compare", "all", "--seeds", "0"], "--seeds: must be a whole number of at least 1"),
        (["--compare", "all", "--jobs", "0"], "--jobs: must be a whole number, not 0"),
        (["--compare", "all", "--policy", "p"], "--policy: goes with --method"),
        (["--compare", "all", "--no-train"], "--no-train: goes with --method"),
        (["--method", "random", "--seeds", "3"], "--seeds: goes with --compare"),
        (["--method", "random", "--plot", "p.png"], "--plot: goes with --compare"),
        (["--compare", "all", "--plot", "p.txt"], "--plot: p.txt: the name must end in .png"),
        (["--compare", "all", "--journal", "s.json"], "s.json: is not a journal of simdev search"),
        (
            ["--compare", "all", "--journal", "b.json", "-o", "b.json"],
            "--output: b.json is the journal of --journal too",
        ),
    ],
)
def test_bad_options_exit_2_with_one_message(arguments, problem, scenario, capsys):
    assert main(["search", scenario, *arguments]) == 2
    printed = capsys.readouterr()
    assert problem in printed.err
    assert printed.out == ""
    assert Path("s.json").read_text() == json.dumps(QUESTION)


@pytest.mark.parametrize("arguments", [[], ["--method", "random", "--compare", "all"]])
def test_one_of_method_and_compare_is_needed(arguments, scenario, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["search", scenario, *arguments])
    assert stop.value.code == 2
    assert "one of --method and --compare is needed" in capsys.readouterr().err


@pytest.mark.slow
def test_all_are_every_method_on_one_question(scenario, capsys):
    written(Path("s.json"), QUESTION | {"strategy": {"placement": {"*": "g0"}}})
    code = main(["search", scenario, "--compare", "all", "--budget", "6", "--seeds", "1", "--json"])
    assert code == 0
    methods = json.loads(capsys.readouterr().out)["methods"]
    assert [row["method"] for row in methods] == [name for name in METHODS if name != "exhaustive"]
    assert all(row["reason"] or row["step_ms"] <= 37 for row in methods)
