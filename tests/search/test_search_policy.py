"""Saved policies: files of weights, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tiny_learner
from forks import forks
from simdev.ground.errors import InputError
from simdev.search import SavedPolicy, load_policy, search
from simdev.search.features import VERSION
from simdev.search.policy import tied_to
from simdev.search.run import EVALUATED
from toys import curve, toy

safetensors = pytest.importorskip("safetensors.numpy", reason="policies are kept by safetensors")
WEIGHTS = {
    "chance": np.array([[0.25, 0.75], [1.0, 0.0]]),
    "scale": np.array(3, np.float32),
    "turned": np.arange(6).reshape(2, 3).T,
    "empty": np.zeros((0, 2)),
}
SETTINGS = {"rate": 0.1, "batch": 4, "rule": "count", "shuffled": False}
pytestmark = pytest.mark.usefixtures("tiny")
POLICY = SavedPolicy("tiny", 0, 2, 7, "", SETTINGS, WEIGHTS)


def notes(policy: SavedPolicy) -> dict[str, object]:
    names = ("method", "features", "devices", "groups", "graph", "settings", "simdev")
    return {name: getattr(policy, name) for name in names}


def test_a_file_gives_back_what_was_saved(tmp_path):
    POLICY.save(tmp_path / "p.safetensors")
    again = load_policy(tmp_path / "p.safetensors")
    assert notes(again) == notes(POLICY)
    assert list(map(type, again.settings.values())) == [int, float, str, bool]  # by name
    assert again.weights.keys() == WEIGHTS.keys()
    for name, weights in WEIGHTS.items():
        assert again.weights[name].dtype == weights.dtype
        assert again.weights[name].shape == weights.shape
        assert (again.weights[name] == weights).all()


def test_the_same_policy_gives_the_same_bytes(tmp_path):
    """In another process too, where texts hash to other numbers."""
    POLICY.save(tmp_path / "a.safetensors")
    code = (
        "import sys; from simdev.search import load_policy\n"
        "load_policy(sys.argv[1]).save(sys.argv[2])"
    )
    paths = [str(tmp_path / name) for name in ("a.safetensors", "b.safetensors")]
    subprocess.run([sys.executable, "-c", code, *paths], check=True)
    assert Path(paths[0]).read_bytes() == Path(paths[1]).read_bytes()


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "p.safetensors"
    POLICY.save(path)
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(InputError, match=r"p\.safetensors: cannot write: no space left"):
        replace(POLICY, method="other").save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def written(path: Path, weights: dict[str, np.ndarray], **changes: object) -> Path:
    """A file with other notes than ``save`` writes; a change to None leaves one out."""
    told = {"format": 1, **notes(POLICY), **changes}
    told = {name: value for name, value in told.items() if value is not None}
    path.write_bytes(safetensors.save(weights, {"simdev": json.dumps(told)}))
    return path


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"format": 2}, "a policy of format 2; this simdev reads 1"),
        ({"format": None}, "a policy of format None; this simdev reads 1"),
        ({"groups": "7"}, "no policy: groups is not told as it must be"),
        ({"settings": None}, "no policy: settings is not told as it must be"),
        ({"more": 1}, "no policy: more is not told as it must be"),
    ],
)
def test_other_notes_are_refused(changes, problem, tmp_path):
    path = written(tmp_path / "p.safetensors", WEIGHTS, **changes)
    with pytest.raises(InputError) as refused:
        load_policy(path)
    assert str(refused.value) == f"{path}: {problem}"


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"\x80\x04N.", safetensors.save({"x": np.zeros(2)}), b"\xff" * 64],
    ids=["empty", "json", "pickle", "safetensors of another", "noise"],
)
def test_a_file_of_something_else_is_no_policy(data, tmp_path):
    path = tmp_path / "p.safetensors"
    path.write_bytes(data)
    with pytest.raises(InputError) as refused:
        load_policy(path)
    assert str(refused.value) == f"{path}: no policy: must be a file that --save-policy wrote"


@pytest.mark.parametrize(("name", "reason"), [("none", "no such file"), ("", "is a directory")])
def test_a_file_that_cannot_be_read_is_told(name, reason, tmp_path):
    with pytest.raises(InputError, match=reason):
        load_policy(tmp_path / name)


def test_a_search_goes_on_with_the_policy_of_another(tmp_path):
    first = search(toy(), "tiny", 60).policy
    first.save(tmp_path / "p.safetensors")
    result = search(toy(), "tiny", 60, policy=tmp_path / "p.safetensors")
    assert result.provenance["warm"] == "policy"
    assert "warm" not in result.details
    again = search(toy(), "tiny", 60, policy=first)
    assert curve(result) == curve(again)
    assert not (result.policy.weights["chance"] == first.weights["chance"]).all()


def test_without_training_the_decoding_comes_first_then_samples():
    policy = search(toy(), "tiny", 60).policy
    result = search(toy(), "tiny", policy=policy, train=False, settings="noise=1")
    likeliest = policy.weights["chance"].argmax(axis=1)
    assert result.points[0].step_ps == toy()(likeliest).step_ps
    assert result.provenance["budget"] == result.provenance["evaluations"] == EVALUATED
    assert not result.provenance["train"]
    assert (result.policy.weights["chance"] == policy.weights["chance"]).all()


def test_a_policy_that_samples_one_placement_ends_by_itself():
    sure = np.eye(3)[[0, 1, 2, 0, 1, 2]]
    policy = SavedPolicy("tiny", 0, 3, 6, "", {"noise": 0}, {"chance": sure})
    result = search(toy(), "tiny", policy=policy, train=False)
    assert (result.provenance["ended"], result.provenance["evaluations"]) == ("done", 1)


def test_settings_of_a_policy_hold_where_none_are_given():
    policy = replace(POLICY, devices=3, weights={"chance": np.full((6, 3), 1 / 3)})
    ran = search(toy(), "tiny", 1, policy=policy, settings={"batch": 2}).provenance["settings"]
    assert ran == vars(tiny_learner.Settings(batch=2, rate=0.1))
    old = replace(policy, settings={"gone": 1})
    with pytest.raises(InputError, match=r"^settings: no 'gone'; there are batch "):
        search(toy(), "tiny", policy=old)


HERE = 'these are the 7 of "forks [0-9a-f]{16}"'


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"method": "other"}, 'was learned by "other", not by "tiny"'),
        (
            {"features": VERSION + 1},
            f"reads features of version {VERSION + 1}; this simdev makes version {VERSION}",
        ),
        ({"devices": 3}, "places on 3 devices; there are 2"),
        ({"graph": "toy 1"}, f'is tied to the 7 groups of "toy 1"; {HERE}'),
    ],
)
def test_a_policy_that_belongs_elsewhere_is_refused(changes, problem):
    with pytest.raises(InputError, match=f"^policy: {problem}$"):
        search(forks(), "tiny", policy=replace(POLICY, **changes))


def test_a_policy_takes_no_other_start():
    with pytest.raises(InputError, match=r"^warm: the search begins with a policy"):
        search(forks(), "tiny", policy=POLICY, warm="single")


def test_a_policy_is_tied_to_groups_and_not_to_sizes():
    small = forks()
    larger = tuple(replace(op, workspace_bytes=9) for op in small.graph.ops)
    assert tied_to(small.on(replace(small.graph, ops=larger))) == tied_to(small)
    apart = tuple(replace(op, colocate=None) for op in small.graph.ops)
    assert tied_to(small.on(replace(small.graph, ops=apart))) != tied_to(small)


def test_where_safetensors_is_missing_one_line_says_so(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    for use in (POLICY.save, load_policy):
        with pytest.raises(InputError, match=r"safetensors: pip install \"simdev\[torch\]\"$"):
            use(tmp_path / "p.safetensors")
