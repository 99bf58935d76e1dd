"""The benchmarks' own parts on tiny graphs: whether they are right, not how fast they are."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).resolve().parent.parent))  # plain `pytest` puts tests/ alone on the path

from benchmarks import common, engine, peers
from simdev.cluster import QUEUES, Cluster, Device
from simdev.engine import simulate
from simdev.graph import Graph, Op, Tensor
from simdev.lowering import Prepared
from simdev.lowering.build import build
from simdev.profile import CostModel

OPS, DEVICES = 200, 5


@pytest.fixture(autouse=True)
def no_freeze(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "settle", lambda: None)


def step_seconds(prepared: Prepared, placement: Any) -> float:
    return simulate(build(prepared, placement.tolist())[0], "simpy").step_ps / 1e12


@pytest.mark.parametrize("makespan", peers.PEERS.values(), ids=peers.PEERS.keys())
def test_peers_equal_simdev_without_ties(makespan: Any) -> None:
    for seed in range(5):
        prepared = common.layered(OPS, DEVICES, "parallel", seed)
        problem = peers.problem_of(prepared)
        for placement in common.random_placements(prepared, 5, seed):
            expected = step_seconds(prepared, placement)
            assert makespan(problem, placement.tolist()) == pytest.approx(expected, rel=engine.ROUNDING)


@pytest.mark.parametrize("makespan", peers.PEERS.values(), ids=peers.PEERS.keys())
def test_peers_by_hand(makespan: Any) -> None:
    """a(1) sends 2 bytes (1 s a byte, 1 s latency) to c and d on gpu:1 once; b(4) runs beside c(1), d(1)."""
    ops = [Op("a", outputs=(Tensor(2),), time=1), Op("b", inputs=("a",), time=4)]
    ops += [Op("c", inputs=("a",), time=1), Op("d", inputs=("a",), time=1.5)]
    cluster = Cluster.all_to_all("two", [Device("gpu:0"), Device("gpu:1")], "parallel", bandwidth=1, latency=1)
    problem = peers.problem_of(Prepared(Graph("four", tuple(ops)), cluster, CostModel()))
    assert makespan(problem, [0, 0, 1, 1]) == 1 + 3 + 1 + 1.5
    assert makespan(problem, [0, 0, 0, 0]) == 1 + 4 + 1 + 1.5


@pytest.mark.parametrize("queues", [queues for queues in QUEUES if queues != "parallel"])
def test_peers_refuse_what_they_do_not_model(queues: str) -> None:
    with pytest.raises(ValueError, match="parallel"):
        peers.problem_of(common.layered(10, 2, queues))


def test_layered_graphs_follow_their_seed() -> None:
    graph = common.layered_graph(1000, 3)
    assert graph == common.layered_graph.__wrapped__(1000, 3)
    assert graph != common.layered_graph(1000, 4)
    edges = common.op_successors(graph)
    owner = np.repeat(np.arange(1000), np.diff(edges.ptr))
    layers = edges.ids // common.WIDTH - owner // common.WIDTH
    assert set(layers.tolist()) == {1, 2}
    assert 1.8 < len(edges.ids) / 1000 < 2.2
    assert all(len(reads) >= 1 for reads in graph.reads[common.WIDTH :])


def test_gnmt_or_a_message(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    prepared = common.gnmt("parallel")
    assert prepared is None or len(prepared.graph.ops) == 2494
    monkeypatch.setattr(common, "GNMT", Path("shared/data/nowhere"))
    assert common.gnmt("parallel") is None
    assert "skipped" in capsys.readouterr().err


def test_rotation_calls_every_item_in_turn() -> None:
    prepared = common.layered(20, 2, "parallel")
    placements = common.random_placements(prepared)
    seen: list[bytes] = []
    rate = common.rotate(lambda placement: seen.append(placement.tobytes()), placements, passes=2, least_seconds=0)
    assert len(set(seen)) == common.PLACEMENTS == rate.calls // 2
    assert seen[1:] == [placement.tobytes() for placement in placements] * 2
    assert rate.passes == 2
    with pytest.raises(ValueError, match="at least 32"):
        common.rotate(len, placements[:31])


def test_a_walk_keeps_what_it_accepts_and_takes_back_the_rest() -> None:
    scored: list[list[int]] = []

    def score(placement: Any) -> float:
        assert placement.dtype == np.int64
        scored.append(placement.tolist())
        return float(placement.sum())

    start = np.full(6, 2, np.int64)
    walk = common.anneal(score, start, 3, 300, seed=1, temperature=0.2)
    assert start.tolist() == [2] * 6
    assert (walk.start, walk.end, walk.best, len(scored)) == (12.0, 0.0, 0.0, 301)
    assert 0 < walk.accepted < walk.rate.calls == 300
    assert {device for placement in scored for device in placement} == {0, 1, 2}


def test_kahn_reaches_every_op() -> None:
    edges = common.op_successors(common.layered_graph(OPS))
    assert common.kahn_seconds(edges, compiled=False, repeats=1) >= 0
    with pytest.raises(ValueError, match="cycle"):
        common.kahn_seconds(type(edges).of([[1], [0]]), compiled=False, repeats=1)


def test_the_table_holds_every_engine_and_peer(capsys: pytest.CaptureFixture[str]) -> None:
    prepared = common.layered(OPS, DEVICES, "parallel")
    measured = engine.measure(prepared, common.random_placements(prepared, 2), peers=True)
    assert set(measured.engines) == set(engine.ENGINES)
    assert max(measured.differences.values()) < engine.ROUNDING
    engine.print_engines([measured])
    engine.print_peers([measured])
    text = capsys.readouterr().out
    assert all(name in text for name in (*engine.ENGINES, *peers.PEERS, "rounding"))


def test_figures_have_three_digits() -> None:
    assert [common.figure(x) for x in (1234567.0, 12.34, 0.012345, 0.0)] == ["1,230,000", "12.3", "0.0123", "0.0"]
