"""Where searches begin, placements that cannot be, and collectives on ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import simdev.learn.env  # noqa: F401 (registers the environment)
from forks import FLAT, PLACERS, fork, forks
from simdev import Oracle
from simdev.costs import CostModel
from simdev.execution.scenario import Scenario
from simdev.ground.errors import InputError
from simdev.nouns.cluster import Cluster, Device, Link
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.strategy import Strategy
from simdev.oracle import Cost, oracle_of
from simdev.search import METHODS, confirm, search
from simdev.search.space import IMPOSSIBLE
from worlds.clusters import UNIT, joined
from worlds.graphs import op


@pytest.mark.parametrize("method", ["greedy", "annealing"])
@pytest.mark.parametrize("budget", [1, 40])
def test_the_own_placement_is_kept_where_a_preparation_does_not_allow_it(method, budget):
    found = search(fork(), method, budget, prepare=["coplace"])
    assert found.cost.step_ps == 102
    assert found.strategy.placement["b"] == "g1"
    assert found.details["own_placement"].startswith('keeps "a", "b", "t" apart')
    assert confirm(oracle_of(fork()), found) == ()


def test_the_own_placement_is_the_start_of_walks_where_groups_allow_it():
    scenario = replace(fork(), strategy=Strategy({"s": "g1", "*": "g0"}))
    found = search(scenario, "greedy", 2, prepare=["coplace"])
    assert "own_placement" not in found.details
    assert found.points[0].step_ps == 202


def test_a_start_is_asked_once():
    """A single device (both are alike), then moves: of six groups that can move, one device
    each.
    """
    asked = []
    search(forks(), "greedy", progress=asked.append)
    oracle = forks()
    moves = len(oracle.groups)
    assert (len(asked) - 1) % moves == 0


def parted(duplex: str | None) -> Oracle:
    """Devices of which some pairs have no route: none at all, or back from g1 to g0."""
    ops = [
        op("s", 1, size=1),
        op("a", 100, "s", size=1),
        op("b", 100, "s", size=1),
        op("t", 1, "b", size=1),
    ]
    links = () if duplex is None else (Link(("g0", "g1"), UNIT, duplex=duplex),)
    return Oracle(Graph("fork", tuple(ops)), Cluster("two", (Device("g0"), Device("g1")), links))


ANSWER_ANYWHERE = [name for name in METHODS if not METHODS[name].splits]
TRIES = {name: 20 if METHODS[name].torch else 60 for name in ANSWER_ANYWHERE}


@pytest.mark.parametrize("method", ANSWER_ANYWHERE)
@pytest.mark.parametrize("duplex", [None, "simplex"])
def test_a_placement_that_cannot_be_is_no_end_of_a_search(method, duplex):
    oracle = parted(duplex)
    result = search(oracle, method, TRIES[method], seed=1)
    assert confirm(oracle, result) == ()
    if duplex is None:
        assert result.cost.step_ps == 202
        if method in ("round-robin", "pipedream", "dnn-contiguous"):
            assert result.details["planned"] is False
    elif method in ("greedy", "annealing", "random"):
        assert result.cost.step_ps <= 104
        assert result.details["impossible"]["placements"] > 0
        assert "no route joins them" in result.details["impossible"]["last"]


def test_placements_that_cannot_be_are_counted_on_threads_too(trial_of):
    rows = np.array([[0, 0, 0, 0], [0, 1, 0, 1], [1, 1, 1, 1], [0, 1, 0, 1]])
    trial = trial_of(parted(None))
    costs = trial.score_batch(rows, 2)
    assert [cost is IMPOSSIBLE for cost in costs] == [False, True, False, True]
    assert (trial.budget.evaluations, trial.best.refusals) == (3, 1)


def test_the_own_placement_is_the_last_resort():
    """No device runs everything, and no route joins the two: only what the scenario says can be."""
    times = [{"gpu": 1}, {"cpu": 1}, *[{"gpu": 1, "cpu": 1}] * 8]
    reads = [() if i < 2 else (f"o{i - 2}",) for i in range(10)]
    ops = [
        Op(f"o{i}", inputs=inputs, outputs=(Tensor(1),), time=time)
        for i, (inputs, time) in enumerate(zip(reads, times, strict=True))
    ]
    machine = Cluster("two", (Device("g0"), Device("c0", "cpu")), ())
    own = {f"o{i}": "g0" if i % 2 == 0 else "c0" for i in range(10)}
    scenario = Scenario(Graph("two chains", tuple(ops)), machine, CostModel(), Strategy(own))
    for method in (
        "random",
        "greedy",
        "annealing",
        "cross-entropy",
        "heft",
        "m-etf",
        "round-robin",
    ):
        found = search(scenario, method, 20)
        assert found.strategy.placement == own or method in ("heft", "m-etf", "round-robin")
        assert confirm(oracle_of(scenario), found) == ()


def test_where_no_placement_can_be_that_is_what_is_told():
    ops = (Op("a", time={"gpu": 1}, outputs=(Tensor(1),)), Op("b", inputs=("a",), time={"cpu": 1}))
    oracle = Oracle(Graph("apart", ops), Cluster("two", (Device("g0"), Device("c0", "cpu")), ()))
    for method in ANSWER_ANYWHERE:
        if method not in ("single", "pipedream", "dnn-ip", "dnn-contiguous", "dnn-latency"):
            with pytest.raises(InputError, match='from "g0" to "c0", but no route joins them'):
                search(oracle, method, TRIES[method], prepare=[])


def test_a_method_of_ones_own_is_told_what_cannot_be():
    class Tries:
        """Apart, then on one device, then nonsense."""

        def __init__(self) -> None:
            self.told: list[float] = []

        def ask(self) -> np.ndarray:
            return [np.array([0, 1, 0, 1]), np.zeros(4, np.int64), np.array([0, 0, 0, 2])][
                len(self.told)
            ]

        def tell(self, placement: np.ndarray, cost: Cost) -> None:
            self.told.append(cost.seconds)

    method = Tries()
    assert search(parted(None), method, 2).cost.step_ps == 202
    assert method.told == [float("inf"), 202e-12]
    with pytest.raises(InputError, match=r"is not in 0\.\.1"):
        search(parted(None), Tries(), 3)


# Collectives on ranks


def ranked(**groups: str) -> Scenario:
    """An all-reduce over both devices between two ops and two others."""
    ops = [
        op("a", 5, size=1000),
        op("b", 5, size=1000),
        Op(
            "ar",
            "all_reduce",
            inputs=("a", "b"),
            outputs=(Tensor(1000), Tensor(1000)),
            attrs={"ranks": ["d0", "d1"]},
        ),
        op("c", 9, "ar:0"),
        op("d", 9, "ar:1"),
    ]
    ops = [replace(one, colocate=groups.get(one.name)) for one in ops]
    machine = joined(["d0", "d1"])
    own = Strategy({"*": "d0", "b": "d1", "d": "d1"})
    return Scenario(Graph("ranked", tuple(ops)), machine, CostModel(), own)


@pytest.mark.parametrize("method", [name for name in PLACERS if name not in (*FLAT, "single")])
def test_what_a_collective_reads_stands_on_its_ranks(method):
    scenario = ranked()
    found = search(scenario, method, 60, seed=1)
    assert (found.strategy.placement["a"], found.strategy.placement["b"]) == ("d0", "d1")
    assert confirm(oracle_of(scenario), found) == ()
    assert "impossible" not in found.details


def test_collectives_that_cannot_be_placed_are_refused():
    for method in (*FLAT, *(name for name in METHODS if METHODS[name].splits)):
        with pytest.raises(InputError, match=f'{method}: "ar" runs on several devices at once'):
            search(ranked(), method)
    with pytest.raises(InputError, match="no device can run every op"):
        search(ranked(), "single")
    with pytest.raises(
        InputError,
        match=r'ops\[0\]: "a" and its group must stand on d0 and on d1, where collectives',
    ):
        search(ranked(a="x", b="x"), "greedy")


# One measure


def test_what_a_walk_accepts_is_the_result(trial_of):
    """Three devices over capacity: a move that leaves the fullest as it is counts, where it empties
    another.
    """
    ops = [op(f"o{i}", 1, param_bytes=size) for i, size in enumerate((9, 4, 4, 1))]
    devices = [Device("g0", memory=2), Device("g1", memory=5), Device("g2", memory=5)]
    scenario = Scenario(
        Graph("held", tuple(ops)),
        joined(devices),
        CostModel(),
        Strategy({"o0": "g0", "o1": "g1", "o2": "g1", "o3": "g2"}),
    )
    oracle = oracle_of(scenario)
    trial = trial_of(oracle, scenario.strategy)
    walk = trial.walk(trial.problem.start)
    assert walk.cost.memory_excess == 7
    for group, device in ((2, 2), (0, 1)):
        if walk.improve(group, device):
            placement, cost = trial.best.placement
            assert (placement.tolist(), cost) == (walk.where, walk.cost)
    assert walk.where[2] == 2
