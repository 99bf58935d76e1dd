"""Chains of a local search: the same answers however many processes work; what they exchange."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import joblib
import numpy as np
import pytest

import simdev.search.blackbox
from dask_runs import ALIKE, require_equal
from simdev import Oracle, Scenario, load_scenario
from simdev.ground.errors import InputError
from simdev.search import METHODS, search
from simdev.search.chains import Chain, _dealt, exchanged
from simdev.search.space import WORST
from simdev.search.trial import Budget
from toys import curve, optimum, toy

CHAINED = [name for name, method in METHODS.items() if method.chains]
# What splits ops is compiled for long, and evaluates slowly.
MARKED = [
    pytest.param(name, marks=pytest.mark.slow) if METHODS[name].splits else name for name in CHAINED
]


def question(method: str) -> Oracle | Scenario:
    if method != "flexflow":
        return toy()
    cluster = {"preset": "flexflow-p100", "nodes": 1}
    document = {"graph": {"model": "lenet"}, "cluster": cluster, "strategy": "data-parallel"}
    return load_scenario({"version": 1, **document})


@contextmanager
def threads() -> Iterator[None]:
    with joblib.parallel_config(backend="threading", n_jobs=3):
        yield


def test_local_searches_can_be_chained():
    assert CHAINED == ["greedy", "annealing", "adaptive", "flexflow"]


@pytest.mark.parametrize("method", MARKED)
def test_answers_do_not_depend_on_who_works(method):
    problem, budget = question(method), 30 if method == "flexflow" else 200
    serial = search(problem, method, budget, seed=2, chains=3, n_jobs=1)
    with threads():
        other = search(problem, method, budget, seed=2, chains=3)
    assert curve(serial) == curve(other)
    assert serial.strategy == other.strategy
    assert serial.cost == other.cost
    assert serial.provenance["chains"] == 3
    for result in (serial, other):
        ended = result.provenance["ended"]
        assert (result.provenance["evaluations"] == budget) == (ended == "budget")
        times = [step_ps for _, step_ps in curve(result)]
        assert times == sorted(set(times), reverse=True)
        assert times[-1] == result.cost.step_ps
        at = [evaluation for evaluation, _ in curve(result)]
        assert at == sorted(at)


@pytest.mark.slow
def test_processes_give_the_same_answer():
    by_jobs = [search(toy(), "annealing", 200, chains=3, n_jobs=n_jobs) for n_jobs in (1, 2)]
    assert curve(by_jobs[0]) == curve(by_jobs[1])
    assert by_jobs[0].strategy == by_jobs[1].strategy


@pytest.mark.parametrize("method", MARKED)
def test_one_chain_is_the_plain_search(method):
    problem, budget = question(method), 30 if method == "flexflow" else 200
    plain, single = search(problem, method, budget), search(problem, method, budget, chains=1)
    assert curve(plain) == curve(single)
    assert "chains" not in single.provenance


@pytest.mark.parametrize("method", ["annealing", "adaptive"])
def test_chains_find_the_optimum_of_a_toy(method):
    assert search(toy(), method, 1000, chains=4).cost.step_ps == optimum()[0]


def test_greedy_chains_end_where_no_move_is_better():
    result = search(toy(), "greedy", chains=4)
    assert result.provenance["ended"] == "done"
    again = search(toy(), "greedy", chains=4, seed=5)
    assert again.provenance["ended"] == "done"


def chain(step_ps: int, name: int) -> Chain:
    rank = (0, 0, step_ps)
    return Chain(np.random.default_rng(name), np.full(2, name), rank, memory=name)


def test_the_worse_half_goes_on_from_the_better_half():
    before = [chain(30, 0), chain(10, 1), chain(40, 2), chain(20, 3), chain(25, 4)]
    before[1].ended = True
    after = exchanged(before)
    assert [one.where.tolist() for one in after] == [[3, 3], [1, 1], [1, 1], [3, 3], [4, 4]]
    assert [one.rank[2] for one in after] == [20, 10, 10, 20, 25]
    assert [one.ended for one in after] == [False, True, True, False, False]
    # What they remember and draw stays their own, and nothing is shared.
    assert [one.memory for one in after] == [0, 1, 2, 3, 4]
    assert all(new.random is old.random for new, old in zip(after, before, strict=True))
    after[2].where[0] = 9
    assert before[1].where.tolist() == [1, 1]


def test_chains_that_stand_alike_stay():
    before = [chain(10, 0), chain(10, 1)]
    assert exchanged(before) == before


def test_evaluations_are_dealt_evenly_among_those_that_walk():
    chains = [chain(1, number) for number in range(4)]
    assert _dealt(10, chains) == [2, 2, 3, 3]
    chains[1].ended = True
    assert _dealt(10, chains) == [3, 0, 3, 4]
    assert _dealt(2, chains) == [0, 0, 1, 1]
    assert _dealt(None, chains) == [None] * 4


@pytest.mark.parametrize("budget", [1, 2, 3, 7, 70, 71])
def test_a_budget_is_never_exceeded(budget):
    for method in ("greedy", "annealing", "adaptive"):
        result = search(toy(), method, budget, chains=4)
        assert result.provenance["evaluations"] <= budget
        assert result.cost.step_ps < WORST[2]


def test_a_round_without_time_is_over_when_it_begins():
    assert Budget(None, 0.0).share == 1.0
    assert Budget(100, 0.0).share == 1.0
    assert Budget(100, None).share == 0.0


def test_seconds_end_the_chains_together():
    result = search(toy(), "annealing", seconds=0.3, chains=3)
    assert result.provenance["ended"] == "time"
    assert result.provenance["seconds"] < 10


@pytest.mark.parametrize("sweeps", [0, 1, 2, 4])
def test_an_interrupt_keeps_what_any_chain_has(monkeypatch, sweeps):
    sweep, calls = simdev.search.blackbox._sweep, []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) > sweeps:
            raise KeyboardInterrupt
        return sweep(*arguments)

    whole = search(toy(), "greedy", chains=3, seed=1)
    monkeypatch.setattr(simdev.search.blackbox, "_sweep", interrupted)
    result = search(toy(), "greedy", chains=3, seed=1)
    assert result.provenance["ended"] == "interrupted"
    assert len(calls) == sweeps + 1  # the other chains do not begin
    assert curve(result) == curve(whole)[: len(result.points)]


@pytest.mark.parametrize(
    ("method", "options", "problem"),
    [
        (
            "m-sct",
            {"chains": 2},
            r"chains: goes with methods that walk \(greedy, .*\), not with m-",
        ),
        ("post", {"chains": 2}, "chains: goes with methods that walk"),
        ("greedy", {"chains": 0}, "chains: must be a whole number of at least 1, got 0"),
        ("greedy", {"chains": True}, "chains: must be a whole number of at least 1, got True"),
        ("greedy", {"chains": 1.5}, "chains: must be a whole number of at least 1, got 1.5"),
        ("greedy", {"chains": 2, "n_jobs": 0}, "n_jobs: must be a whole number, not 0, got 0"),
        ("greedy", {"n_jobs": 2}, "n_jobs: goes with methods that learn"),
    ],
)
def test_chains_that_cannot_be_are_refused(method, options, problem):
    with pytest.raises(InputError, match=f"^{problem}"):
        search(toy(), method, **options)


@pytest.mark.slow
def test_a_dask_cluster_answers_like_one_process(tmp_path):
    imports = "from simdev.search import search\nfrom toys import curve, toy"
    require_equal(tmp_path, imports, "search(toy(), 'adaptive', 200, chains=3)", ALIKE)
