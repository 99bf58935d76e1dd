"""One policy for many graphs: families, ``train`` and its verb."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simdev.commands import main
from simdev.ground.errors import InputError
from simdev.learn import family, read_scenarios, train
from simdev.learn.families import Kind
from simdev.search import METHODS, load_policy, search
from toys import toy

pytest.importorskip("torch", reason="learners of many graphs use networks")
FAMILY = "simdev.learn.families.FAMILIES"
SMALL = {"hidden": 4, "rounds": 2, "epochs": 1, "episodes": 1}


@pytest.fixture(autouse=True)
def small_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs of the family that do not take long."""
    sizes = {"length": 2, "hidden": 16, "vocabulary": 50, "layers": 1}
    small = {"nmt": Kind("nmt", lambda random: sizes | {"batch": int(random.integers(1000)) + 1})}
    monkeypatch.setattr(FAMILY, small)


def test_one_policy_learns_on_several_graphs_and_places_another():
    trained = train("placeto", [toy(), toy()], 40, prepare=(), settings=SMALL)
    assert trained.provenance["evaluations"] == 40
    assert trained.provenance["ended"] == "budget"
    assert all(graph.evaluations > 3 for graph in trained.graphs)
    assert trained.policy.graph == ""
    result = search(toy(), "placeto", 10, prepare=(), policy=trained.policy, train=False)
    assert result.provenance["warm"] == "policy"


def test_the_same_seed_trains_the_same_policy_and_more_training_another():
    weights = [
        train("placeto", [toy(), toy()], budget, prepare=(), settings=SMALL).policy.weights
        for budget in (15, 15, 30)
    ]
    name = "classify.weights.0"
    assert (weights[0][name] == weights[1][name]).all()
    assert (weights[0][name] != weights[2][name]).any()


def test_ctrl_c_keeps_the_policy():
    def stop(count: int) -> None:
        if count == 20:
            raise KeyboardInterrupt

    trained = train("placeto", [toy()], 100, prepare=(), settings=SMALL, progress=stop)
    assert trained.provenance["ended"] == "interrupted"
    assert trained.policy.devices == 3


@pytest.mark.parametrize(
    ("method", "reason"),
    [("colocrl", "its policies are tied to one graph"), ("annealing", "is no learner")],
)
def test_methods_that_are_tied_to_a_graph_are_refused_in_a_line(method: str, reason: str):
    general = ", ".join(name for name in METHODS if METHODS[name].general)
    with pytest.raises(InputError, match=f"^method: {method}: {reason}; there are {general}$"):
        train(method, [toy()])


def test_graphs_on_other_numbers_of_devices_are_refused():
    with pytest.raises(InputError, match=r"^questions: a policy is of one number of devices"):
        train("placeto", [toy(), family("nmt").train[0]])
    with pytest.raises(InputError, match=r"^questions: there must be a graph"):
        train("placeto", [])


def test_a_folder_of_scenarios_is_a_family(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """What ``simdev family`` writes is what ``family`` draws, and trains the same policy."""
    monkeypatch.setattr("simdev.learn.families.TRAIN", 3)
    folder = tmp_path / "nmt"
    assert main(["family", "nmt", "-o", str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder}: 3 scenarios to train on, 8 held out\n"
    drawn = family("nmt")
    for part, scenarios in ("train", drawn.train), ("held-out", drawn.held_out):
        written = read_scenarios(folder / part).values()
        assert list(written) == list(scenarios)
    first, second = (
        train("placeto", questions, 5, settings=SMALL).policy.weights
        for questions in (drawn, str(folder / "train"))
    )
    assert all((first[name] == second[name]).all() for name in first)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("family cats -o new", "family: must be one of nmt, got"),
        ("family nmt -o new --seed -1", "--seed: must be at least 0, got -1"),
        ("family nmt -o full", "--output: cannot write full: is there already"),
        ("train placeto -o p.safetensors --family empty", "empty: holds no scenario"),
        ("train placeto -o p.safetensors --family full", "full/a.json: cluster: missing"),
        ("train placeto -o p.safetensors --family ordered", "ordered/a.json: order: "),
        ("train placeto -o p.safetensors --family nowhere", "--family: must be one of nmt, or a "),
    ],
)
def test_what_is_no_family_is_refused_with_its_path(
    words: str,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    ordered = {"placement": {"*": "d"}, "order": {"policy": "fixed", "sequence": {"d": ["a"]}}}
    question = {"version": 1, "graph": {"ops": [{"name": "a", "time": "1 s"}]}}
    files = {"full": question | {"strategy": ordered}}
    cluster = {"version": 1, "devices": [{"name": "d"}]}
    files["ordered"] = files["full"] | {"cluster": cluster}
    for name in ("empty", "full", "ordered"):
        Path(name).mkdir()
        if name in files:
            Path(name, "a.json").write_text(json.dumps(files[name]))
    assert main(words.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(reason)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "full", "ordered"]


def test_the_verb_writes_a_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "p.safetensors"
    settings = "hidden=4,rounds=1,epochs=1,episodes=1"
    verb = ["train", "placeto", "--family", "nmt", "-o", str(path), "--settings", settings]
    assert main([*verb, "--budget", "3", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["evaluations"], len(said["graphs"])) == (3, 24)
    policy = load_policy(path)
    assert (policy.method, policy.devices, policy.settings["hidden"]) == ("placeto", 4, 4)
    assert main(["train", "placeto", "--family", "cats", "-o", str(path)]) == 2
    assert capsys.readouterr().err.startswith("--family: must be one of nmt")
