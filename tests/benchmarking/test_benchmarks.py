"""The benchmarks' own parts on tiny graphs: whether they are right, not how fast they are."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from worlds import split_graphs

# plain `pytest` puts tests/ alone on the path
sys.path.append(str(Path(__file__).resolve().parents[2]))

from benchmarks import (
    anneal,
    common,
    engine,
    figures,
    oracle,
    peers,
    split_moves,
    start,
    strategies,
)
from simdev.costs import CostModel
from simdev.execution.engine import simulate
from simdev.lowering import Prepared
from simdev.lowering.build import build
from simdev.nouns.cluster import QUEUES
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.oracle import Oracle
from worlds.clusters import joined

OPS, DEVICES = 200, 5


@pytest.fixture(autouse=True)
def no_freeze(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (engine, oracle, strategies):
        monkeypatch.setattr(module, "settle", lambda: None)


@pytest.mark.parametrize("makespan", peers.PEERS.values(), ids=peers.PEERS.keys())
def test_peers_equal_simdev_without_ties(makespan: Any) -> None:
    for seed in range(5):
        prepared = common.layered(OPS, DEVICES, "parallel", seed)
        problem = peers.problem_of(prepared)
        for placement in common.random_placements(prepared, 5, seed):
            expected = simulate(build(prepared, placement.tolist())[0], "simpy").end_ps / 1e12
            assert makespan(problem, placement.tolist()) == pytest.approx(
                expected, rel=engine.ROUNDING
            )


@pytest.mark.parametrize("makespan", peers.PEERS.values(), ids=peers.PEERS.keys())
def test_peers_by_hand(makespan: Any) -> None:
    """a(1) sends 2 bytes (1 s a byte, 1 s latency) to c and d on gpu:1 once; b(4) runs beside c(1),
    d(1).
    """
    ops = [Op("a", outputs=(Tensor(2),), time=1), Op("b", inputs=("a",), time=4)]
    ops += [Op("c", inputs=("a",), time=1), Op("d", inputs=("a",), time=1.5)]
    cluster = joined(2, "parallel", prefix="gpu:", bandwidth=1, latency=1)
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


def test_rotation_calls_every_item_in_turn() -> None:
    prepared = common.layered(20, 2, "parallel")
    placements = common.random_placements(prepared)
    seen: list[bytes] = []
    rate = common.rotate(
        lambda placement: seen.append(placement.tobytes()), placements, passes=2, least_seconds=0
    )
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
    assert [common.figure(x) for x in (1234567.0, 12.34, 0.012345, 0.0)] == [
        "1,230,000",
        "12.3",
        "0.0123",
        "0.0",
    ]


TINY = oracle.Size(
    walk=50, moves=20, descent=50, passes=1, slow=2, batch=40, ops=(60, 120), mode_ops=60
)


def test_a_figure_is_reached_from_its_side() -> None:
    least, most = (
        figures.Figure("", "", 2.0, "x", 1.8),
        figures.Figure("", "", 2.0, "x", 1.6, False),
    )
    assert (least.reached, most.reached, figures.Figure("", "", 2.0, "x").reached) == (
        True,
        False,
        None,
    )


@pytest.mark.parametrize("queues", ["half-duplex", "parallel"])
def test_the_oracle_is_measured_part_by_part(
    queues: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every part compares its answers on the way; here on a graph without ties."""
    monkeypatch.setattr(oracle, "both_cores", lambda: 2.0)
    prepared = common.layered(OPS, 4, queues)
    results = (
        oracle.speeds(prepared, TINY)
        + oracle.starts(queues, TINY)
        + oracle.batches(prepared, TINY)
        + oracle.moves(prepared, TINY)
    )
    results += oracle.against(prepared, TINY, peers=queues == "parallel")
    assert all(entry.measured > 0 for entry in results)
    figures.print_figures(results)
    text = capsys.readouterr().out
    assert all(name in text for name in ("annealing walk", "SimPy engine", ">= 100"))


def test_moves_that_differ_from_a_full_simulation_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = Oracle(common.layered_graph(OPS), common.grouped_cluster(4, "parallel"))
    session = scorer.session([0] * OPS)
    assert len(oracle.move_ratios(scorer, session, 10)) == 10
    monkeypatch.setattr(scorer, "step_ps", lambda column: 1)
    with pytest.raises(AssertionError, match="differ"):
        oracle.move_ratios(scorer, session, 10)


def test_a_descent_never_climbs() -> None:
    scores = Oracle(common.layered_graph(OPS), common.grouped_cluster(4, "half-duplex"))
    session = scores.session([0, 1, 2, 3] * 50)
    before = session.cost.step_ps
    oracle.descend(session, 300)
    assert session.cost.step_ps == scores.step_ps(session.placement) < before


@pytest.mark.parametrize("devices", [1, 2, 8])
def test_transfers_are_counted_as_lowering_does(devices: int) -> None:
    prepared = common.layered(OPS, devices, "device")
    for placement in common.random_placements(prepared, 3):
        assert OPS + oracle.sent(prepared, placement) == len(
            build(prepared, placement.tolist())[0].tasks
        )


def test_growth_and_modes_say_what_goes_the_long_way() -> None:
    said: list[str] = []
    results = oracle.growth(TINY, said.append) + oracle.modes(TINY, said.append)
    assert len(said) == len(TINY.ops) + len(QUEUES)
    assert {entry.part.rpartition(" ")[2] for entry in results if "long way" in entry.name} == {
        "fair"
    }
    assert all(entry.measured > 0 for entry in results)


@pytest.mark.parametrize("queues", anneal.MARKS)
def test_the_annealer_keeps_its_best_and_it_is_confirmed(queues: str) -> None:
    scorer = Oracle(common.layered_graph(OPS), common.grouped_cluster(4, queues))
    results = anneal.anneal(scorer, anneal.best_single(scorer), anneal.Schedule(0.3, rounds=2))
    anneal.confirm(scorer, results)
    assert results.best_ps < results.start_ps == scorer.step_ps([0] * OPS)
    assert 0 < results.accepted <= results.evaluations


def test_a_result_that_is_not_so_is_not_confirmed() -> None:
    scorer = Oracle(common.layered_graph(OPS), common.grouped_cluster(4, "parallel"))
    results = anneal.Search(2, 1, 1, 1, 1.0, anneal.best_single(scorer))
    with pytest.raises(AssertionError):
        anneal.confirm(scorer, results)


def test_moves_are_drawn_near_or_anywhere() -> None:
    assert [anneal.draw(luck, [2, 0], [5, 6, 7], 8) for luck in (0.0, 0.3, 0.5, 0.99)] == [
        7,
        5,
        0,
        7,
    ]
    assert [anneal.draw(luck, [], [5], 8) for luck in (0.0, 0.49)] == [0, 7]


def test_gnmt_in_groups_keeps_its_order_and_its_answers() -> None:
    scorer = anneal.grouped_gnmt("half-duplex")
    assert (len(scorer.graph.ops), len(scorer.groups)) == (2494, 569)
    assert [op.name for op in scorer.graph.ops] == [op.name for op in common.gnmt_graph().ops]
    assert scorer.step_ps(anneal.best_single(scorer)) == 116_762 * 10**6


def test_moves_of_strategies_are_legal_and_go_back_where_they_went() -> None:
    graph, gpus = split_graphs.convolutions(), tuple(f"gpu:{d}" for d in range(4))
    ops = [graph.index["conv2"], graph.index["pool"]]
    moves = strategies.moves_of(graph, ops, gpus, 60, 0)
    assert (
        moves
        == strategies.moves_of(graph, ops, gpus, 60, 0)
        != strategies.moves_of(graph, ops, gpus, 60, 1)
    )
    assert {name for move in moves for name in move} == {"conv2", "pool"}
    for entry in (entry for move in moves for entry in move.values()):
        first, parts = gpus.index(entry.devices[0]), len(entry.devices)
        assert parts == math.prod(entry.split.values())
        assert first % parts == 0
        assert entry.devices == gpus[first : first + parts]
    model = strategies.graph_of("resnet-101", operators=False)
    assert not {"batch_norm", "relu"} & {op.kind for op in model.ops}
    conv = "stage_1_0/unit_2/conv/conv2d"
    move = strategies.move_of(model, model.index[conv], {"k": 2, "n": 2}, gpus)
    back = move[f"grad/{conv}_backward_input"], move[f"grad/{conv}_backward_weight"]
    assert [dict(entry.split) for entry in back] == [{"n": 2, "k": 2}, {"k": 2, "n": 2}]
    assert [entry.devices for entry in back] == [gpus, ("gpu:0", "gpu:2", "gpu:1", "gpu:3")]


def test_rows_of_strategies(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        strategies, "graph_of", lambda model, operators: split_graphs.convolutions()
    )
    rows = strategies.run(["resnet-101"], [4], 3, 1)
    assert [row.model for row in rows] == ["resnet-101", "resnet-101, operators"]
    assert all(row.gpus == 4 and row.tasks > 60 and row.evaluation_ms > 0 for row in rows)
    assert [row.target_ms for row in rows] == [0.2, None]
    strategies.print_rows(rows)
    assert "resnet-101, operators" in capsys.readouterr().out


def test_first_and_known_moves(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        split_moves, "graph_of", lambda model, operators: split_graphs.convolutions()
    )
    row = split_moves.measure("resnet-101", 4, 6, 2)
    assert row.tasks > 60
    assert 0 <= row.exceeding <= 1
    assert all(0 < median <= most for median, most in (row.first_ms, row.known_ms, row.limit_ms))
    split_moves.print_rows([row])
    assert "FlexFlow" in capsys.readouterr().out


def test_a_start_is_measured_and_a_fault_is_none(tmp_path: Path) -> None:
    spent = start.spent(("-c", "import simdev"), str(tmp_path))
    assert 0 < spent.cpu_seconds < 60
    assert 1 < spent.memory_mib < 10_000
    assert start.spent(("-c", "raise SystemExit(2)"), str(tmp_path)).seconds > 0
    with pytest.raises(AssertionError, match="exit 130"):
        start.spent(("-c", "raise SystemExit(130)"), str(tmp_path))
