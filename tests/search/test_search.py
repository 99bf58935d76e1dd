"""Search: its methods, their budgets and seeds, and what a trial keeps."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import simdev.learn.env  # noqa: F401 (registers the environment)
from forks import PLACERS, best_of_all, forks, mixed
from simdev import Oracle
from simdev.execution.scenario import Scenario
from simdev.files.strategy import read_strategy, strategy_object
from simdev.nouns.graph import Graph
from simdev.nouns.strategy import Strategy
from simdev.oracle import Cost
from simdev.search import METHODS, blackbox, confirm, search
from simdev.search.sampling import sampled
from simdev.search.trial import SpentError
from toys import curve
from worlds.clusters import joined
from worlds.graphs import op

SEARCHES = ["random", "greedy", "annealing", "cross-entropy"]
BUDGETS = {"random": 1500, "cross-entropy": 1500, "annealing": 1500, "greedy": 1500}


@pytest.mark.parametrize("method", SEARCHES)
@pytest.mark.parametrize("memory", [None, 5])
def test_small_questions_are_solved(method, memory):
    oracle = forks(memory)
    found = search(oracle, method, BUDGETS[method], seed=1)
    assert found.cost == oracle(found.strategy)
    best = best_of_all(oracle).step_ps
    assert found.cost.step_ps == best if method != "greedy" else found.cost.step_ps <= best * 1.5
    assert found.cost.feasible
    assert not found.obstacles


@pytest.mark.parametrize("method", PLACERS)
def test_every_method_answers_and_is_confirmed(method):
    oracle, budget = forks(5), 60 if METHODS[method].torch else 300
    found = search(oracle, method, budget, seed=2)
    assert confirm(oracle, found) == ()
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["method"] == method
    assert read_strategy(strategy_object(found.strategy)) == found.strategy
    assert found.objectives["step_time_s"] == found.cost.seconds
    assert found.provenance["method"] == method
    assert found.provenance["evaluations"] <= budget
    assert found.cost.step_ps >= best_of_all(oracle).step_ps or not found.cost.feasible
    if (
        method != "single"
        and "max_load_ms" not in found.objectives
        and "period_s" not in found.objectives
    ):
        assert found.cost.feasible


@pytest.mark.parametrize("method", SEARCHES)
def test_the_curve_falls_to_the_best(method):
    found = search(forks(5), method, 100, seed=2)
    curve = found.curve
    assert list(curve.columns) == [
        "evaluation",
        "cpu_seconds",
        "step_time_s",
        "memory_excess_bytes",
    ]
    keys = list(zip(curve.memory_excess_bytes, curve.step_time_s, strict=True))
    assert keys == sorted(keys, reverse=True)
    assert keys[-1] == (0, found.cost.seconds)
    assert curve.evaluation.is_monotonic_increasing
    assert curve.evaluation.iloc[-1] == found.provenance["evaluations"]


@pytest.mark.parametrize("method", PLACERS)
def test_a_seed_decides(method):
    budget = 20 if METHODS[method].torch else 60
    runs = [search(forks(5), method, budget, seed) for seed in (3, 3)]
    assert runs[0].strategy == runs[1].strategy
    assert runs[0].cost == runs[1].cost
    assert curve(runs[0]) == curve(runs[1])


def test_another_seed_tries_others():
    runs = [search(forks(), "random", 5, seed) for seed in (3, 4)]
    assert [p.step_ps for p in runs[0].points] != [p.step_ps for p in runs[1].points]


@pytest.mark.parametrize("method", SEARCHES)
@pytest.mark.parametrize("budget", [1, 2, 7, 70])
def test_methods_stop_on_budget(method, budget):
    oracle = forks()
    found = search(oracle, method, budget)
    assert found.provenance["evaluations"] <= budget
    assert found.provenance["ended"] in ("budget", "done")


def test_methods_stop_on_time():
    found = search(forks(), "random", seconds=0.05)
    assert found.provenance["ended"] == "time"


@pytest.mark.parametrize("seed", range(8))
def test_annealing_climbs_from_a_start_that_every_move_improves(seed):
    """Everything on one device is the start: what its moves worsen, nothing, is no measure of how
    far to climb.
    """
    times = (17, 21, 20, 56, 31, 95, 49, 42)
    ops = tuple(op(f"op{i}", time) for i, time in enumerate(times))
    oracle = Oracle(
        Graph("loads", ops),
        joined(3, bandwidth=1),
    )
    loads = (np.bincount(one, times, 3).max() for one in product(range(3), repeat=len(ops)))
    assert search(oracle, "annealing", 3000, seed=seed).cost.step_ps == min(loads) == 112


def test_annealing_beats_random_search():
    ops = [op(f"o{i}", 1 + i % 5, *([f"o{i - 3}"] if i > 2 else []), size=2) for i in range(60)]
    cluster = joined(4)
    oracle = Oracle(Graph("chains", tuple(ops)), cluster)
    found = {method: search(oracle, method, 3000).cost.step_ps for method in SEARCHES}
    assert found["annealing"] < 0.8 * found["random"]
    assert max(found["greedy"], found["cross-entropy"]) < found["random"]


def test_cross_entropy_replaces_its_distribution_by_the_frequencies_among_the_best(monkeypatch):
    """With nothing explored, the chances of the second round are fifths: five placements of fifty
    are followed.
    """
    chances: list[np.ndarray] = []

    def watched(chance: np.ndarray, lucks: np.ndarray) -> np.ndarray:
        chances.append(chance)
        return sampled(chance, lucks)

    monkeypatch.setattr(blackbox, "sampled", watched)
    monkeypatch.setattr(blackbox, "EXPLORE", 0.0)
    search(forks(), "cross-entropy", 60, seed=1)
    fifths = chances[1] * 5
    assert fifths.sum(axis=1) == pytest.approx(5)
    assert fifths == pytest.approx(fifths.round())


def test_the_scenarios_own_placement_is_a_start():
    oracle = forks()
    best = min(product((0, 1), repeat=7), key=lambda one: oracle(one).step_ps)
    scenario = Scenario(oracle.graph, oracle.cluster, oracle.costs, Strategy(oracle.named(best)))
    for method in ("greedy", "annealing"):
        assert search(scenario, method, 3).cost.step_ps == best_of_all(oracle).step_ps


def test_where_nothing_fits_the_least_excess_is_best_and_the_reason_is_told():
    oracle = forks(1)
    found = search(oracle, "random", 500)
    assert not found.cost.feasible
    assert found.cost.memory_excess == best_of_all(oracle).memory_excess
    assert "g0: needs" in found.obstacles[0]
    assert any(
        line.startswith("source: needs 3 bytes to run, more than the 1 of any device")
        for line in found.obstacles
    )


def test_what_persists_may_be_too_much_for_all_devices_together():
    ops = [op(f"o{i}", 1, param_bytes=4) for i in range(3)]
    cluster = joined(2, memory=5)
    found = search(Oracle(Graph("large", tuple(ops)), cluster), "greedy")
    assert (
        found.obstacles[-1]
        == "all devices: 12 bytes of parameters, gradients and states, 10 bytes of memory"
    )


def test_an_interrupt_keeps_the_best_so_far():
    class Stops:
        """Asks for three placements, then Ctrl-C."""

        asked = 0

        def ask(self) -> np.ndarray:
            self.asked += 1
            if self.asked > 3:
                raise KeyboardInterrupt
            return np.full(7, self.asked % 2)

        def tell(self, placement: np.ndarray, cost: Cost) -> None:
            pass

    found = search(forks(), Stops())
    assert (found.provenance["ended"], found.provenance["evaluations"]) == ("interrupted", 3)
    assert found.cost.step_ps == 26


@pytest.mark.parametrize("method", ["dnn-ip", "dnn-latency"])
def test_an_interrupt_of_an_integer_program_keeps_the_split_that_was_known(method, monkeypatch):
    from simdev.search.maxload import placers

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(placers, "integer_program", interrupted)
    monkeypatch.setattr(placers, "latency_program", interrupted)
    found = search(forks(), method)
    assert (found.provenance["ended"], found.provenance["evaluations"]) == ("interrupted", 1)
    assert found.cost.feasible


def test_a_point_of_the_curve_is_never_without_its_placement(trial_of):
    """Ctrl-C while the best is being kept."""

    class Asked(Oracle):
        def placement(self, *given: object) -> np.ndarray:
            if trial.budget.evaluations == 2:
                raise KeyboardInterrupt
            return super().placement(*given)

    small = forks()
    oracle = Asked(small.graph, small.cluster, small.costs)
    trial = trial_of(oracle)
    trial.score(np.zeros(7, np.int64))
    with pytest.raises(KeyboardInterrupt):
        trial.score(np.array([0, 0, 0, 1, 1, 1, 1]))
    best = trial.best
    assert len(best.points) == 1
    assert best.placement[1].step_ps == best.points[-1].step_ps


@pytest.mark.parametrize("method", PLACERS)
def test_groups_hold_where_ops_are_placed_freely_first(method):
    oracle = forks(9)
    found = search(oracle, method, 60, seed=1, prepare=["adjust"], seconds=5)
    assert confirm(oracle, found) == ()
    assert found.strategy.placement["a0"] == found.strategy.placement["a1"]


def test_other_peaks_than_those_told_are_a_finding():
    found = search(forks(9), "single")
    wrong = replace(found, cost=replace(found.cost, peaks=(0, 0)))
    assert [one.rule for one in confirm(forks(9), wrong)] == ["peak"]


def test_a_method_of_ones_own():
    class Sweep:
        """All on one device, then on the other; remembers what it is told."""

        def __init__(self) -> None:
            self.told: list[tuple[int, int]] = []

        def ask(self) -> np.ndarray:
            return np.full(7, len(self.told) % 2)

        def tell(self, placement: np.ndarray, cost: Cost) -> None:
            self.told.append((int(placement[0]), cost.step_ps))

    method = Sweep()
    found = search(forks(), method, 2)
    assert found.cost.step_ps == 26
    assert method.told == [(0, 26), (1, 26)]
    assert found.provenance["method"] == "Sweep"


@pytest.mark.parametrize(
    "method", [name for name in PLACERS if name not in ("single", "pipedream")]
)
def test_groups_keep_to_devices_that_can_run_them(method):
    oracle = mixed()
    found = search(oracle, method, 30)
    assert found.strategy.placement["a"] == "g0"
    assert found.strategy.placement["b"] == "c0"
    assert found.strategy.placement["c"] in ("g0", "c0")


def test_a_trial_counts_walks_and_scores(trial_of):
    oracle = forks()
    trial = trial_of(oracle, limit=4)
    walk = trial.walk(np.zeros(7, np.int64))
    walk.propose(1, 1)
    walk.accept()
    trial.score(np.zeros(7, np.int64))
    assert trial.budget.evaluations == 3
    assert walk.where == [0, 1, 0, 0, 0, 0, 0]
    assert trial.budget.share == 0.75


def test_what_was_scored_once_is_remembered_by_a_digest(trial_of):
    """However many groups there are: what is known of a placement takes as much room."""
    trial, row = trial_of(forks()), np.zeros(7, np.int64)
    assert trial.score_once(row) == trial.score_once(row.copy())
    assert trial.score_once(np.ones(7, np.int64)) is not None
    assert [len(name) for name in trial._known] == [16, 16]
    assert (trial.distinct, trial.budget.evaluations) == (2, 2)


@pytest.mark.parametrize("limit", [None, 9])
def test_placements_scored_on_threads_are_counted_as_one_after_another(trial_of, limit):
    rows = np.random.default_rng(3).integers(2, size=(40, 7))
    different, ends = len(np.unique(rows, axis=0)), []
    for n_jobs in (1, 3):
        trial = trial_of(forks(5), limit=limit)
        trial.score_once(rows[7])
        costs = None
        with suppress(SpentError):
            costs = trial.score_batch(np.concatenate((rows, rows[:3])), n_jobs)
        points = curve(trial.best)
        ends.append((costs, points, trial.distinct, trial.budget.evaluations))
    assert ends[0] == ends[1]
    assert ends[0][2:] == ((limit or different,) * 2)
