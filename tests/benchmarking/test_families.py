"""The tables of policies on graphs held out, of tiny graphs."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from worlds.graphs import fan

# plain `pytest` puts tests/ alone on the path
sys.path.append(str(Path(__file__).resolve().parents[2]))

from benchmarks import families
from simdev.oracle import Oracle
from worlds.clusters import joined

pytest.importorskip("torch")


def test_a_trained_policy_stands_beside_searches_and_learning_on_the_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nine, twelve = (Oracle(fan("1 ms", *["9 ms"] * count), joined(2)) for count in (9, 12))
    graphs = SimpleNamespace(train=[nine], held_out=[nine, twelve])
    monkeypatch.setattr(families, "family", lambda name, seed: graphs)
    limits = ["--train", "40", "--learn", "12", "--budgets", "8"]
    options = [*limits, "--settings", "hidden=4,rounds=1", "--policy", str(tmp_path / "p")]
    families.main(["placeto", "nmt", *options])
    printed = capsys.readouterr().out
    assert "| graph | one device | random |" in printed
    assert "\n| 1 | 109.0 |" in printed
    assert "\n| zero shot is ahead on | 2 |" in printed
    families.main(["placeto", "nmt", *options])
    read = capsys.readouterr().out
    assert "trained in" not in read
    assert read.partition("\n\n")[2] == printed.partition("\n\n")[2]
