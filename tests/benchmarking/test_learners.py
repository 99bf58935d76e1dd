"""The comparison of learners on a tiny question: what it prints, and that it goes on."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest

from worlds.graphs import fan

# plain `pytest` puts tests/ alone on the path
sys.path.append(str(Path(__file__).resolve().parents[2]))

from benchmarks import learners
from simdev.oracle import Oracle
from worlds.clusters import joined


def test_tables_and_pictures_of_every_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = partial(Oracle, fan(1, 9, 9, 9, 9), joined(2, bandwidth=1))
    questions = {
        "fan": learners.Question(opened), "pairs": learners.Question(opened, ("pair",), 20)
    }  # fmt: skip
    monkeypatch.setattr(learners, "QUESTIONS", questions)
    folder = ["--pictures", str(tmp_path), "--journal", str(tmp_path / "j")]
    learners.main(["--methods", "single,annealing", "--quick", *folder])
    printed = capsys.readouterr().out
    assert "| method | step, s | quartiles |" in printed
    assert "| annealing | 20.0000 | 20.0000 to 20.0000 | x 1.85 | 300 |" in printed
    assert (tmp_path / "learners-fan.png").exists()
    assert (tmp_path / "learners-pairs.png").exists()
    monkeypatch.setattr("simdev.search.comparison.answer", None)  # nothing is left to run
    learners.main(["--methods", "single,annealing", "--quick", *folder])
    assert capsys.readouterr().out == printed
    with pytest.raises(SystemExit):
        learners.main(["--questions", "none"])


def test_every_learner_is_compared_from_every_start() -> None:
    listed = learners.methods()
    assert listed[0] == "single"
    assert len(set(listed)) == len(listed)
    every = [name for name, method in learners.METHODS.items() if method.learner is not None]
    assert {f"{name}+{start}" for name in every for start in learners.STARTS} <= set(listed)
