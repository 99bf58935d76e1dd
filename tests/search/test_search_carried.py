"""A saved policy that goes on learning never ends above the placement that it finds likeliest."""

import pytest

from simdev.ground.errors import InputError
from simdev.search import METHODS, load_policy, search
from toys import toy

SMALL = {"placeto": 5}  # evaluations of its episode of likeliest devices and of what it begins at
KEEPING = [name for name, method in METHODS.items() if method.learner and method.keeps]


@pytest.mark.parametrize("method", KEEPING)
def test_what_a_policy_finds_likeliest_is_played_before_it_learns_on(method):
    question, budget = toy(), SMALL.get(method, 1)
    policy = search(question, method, 60, seed=3, warm="random", prepare=[]).policy
    used = search(question, method, budget, prepare=[], policy=policy, train=False)
    tuned = search(question, method, budget, prepare=[], policy=policy)
    more = search(question, method, 2 * budget + 8, prepare=[], policy=policy)
    assert tuned.cost == used.cost
    assert [point.step_ps for point in tuned.points] == [point.step_ps for point in used.points]
    assert more.cost.step_ps <= used.cost.step_ps


@pytest.mark.parametrize("error", [MemoryError, OverflowError])
def test_a_file_too_large_to_read_is_refused_in_one_line(error, tmp_path, monkeypatch):
    pytest.importorskip("safetensors")
    path = tmp_path / "large.safetensors"
    path.write_bytes(b"")

    def refuse(*_):
        raise error

    monkeypatch.setattr("simdev.search.policy.open", refuse, raising=False)
    with pytest.raises(InputError, match=r"large\.safetensors: no policy: too large to be read"):
        load_policy(path)
