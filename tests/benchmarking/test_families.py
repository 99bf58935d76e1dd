"""The tables of policies on graphs held out, of tiny graphs."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

# plain `pytest` puts tests/ alone on the path
sys.path.append(str(Path(__file__).resolve().parents[2]))

from benchmarks import families
from simdev.nouns.cluster import Cluster, Device
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.oracle import Oracle

pytest.importorskip("torch")


def fan(ops: int) -> Oracle:
    """Ops of 9 ms after one of 1 ms, on two devices."""
    first = Op("s", outputs=(Tensor(1),), time="1 ms")
    rest = [Op(f"o{i}", inputs=("s",), time="9 ms") for i in range(ops)]
    cluster = Cluster.all_to_all("two", [Device("g0"), Device("g1")], bandwidth="1 TB/s")
    return Oracle(Graph("fan", (first, *rest)), cluster)


def test_a_trained_policy_stands_beside_searches_and_learning_on_the_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    graphs = SimpleNamespace(train=[fan(9)], held_out=[fan(9), fan(12)])
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
