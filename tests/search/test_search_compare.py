"""What search refuses, tables of methods, and results as JSON."""

from __future__ import annotations

import json

import pytest

import simdev.learn.env  # noqa: F401 (registers the environment)
from forks import fork, forks, mixed
from simdev import Oracle
from simdev.execution.scenario import Scenario
from simdev.ground.errors import InputError
from simdev.nouns.graph import Graph, Op
from simdev.nouns.strategy import Order, Strategy
from simdev.oracle import oracle_of
from simdev.search import METHODS, Result, compare, run, search


def test_what_search_refuses():
    with pytest.raises(InputError, match="must be one of single, round-robin, expert, random"):
        search(forks(), "magic", 3)
    with pytest.raises(InputError, match="budget: must be a whole number of at least 1, got 0"):
        search(forks(), "random", 0)
    with pytest.raises(InputError, match="seconds: must be a number > 0"):
        search(forks(), "random", seconds=0.0)
    for seed in (-1, 0.5, "a"):
        with pytest.raises(InputError, match="seed: must be a whole number of at least 0"):
            search(forks(), "random", 1, seed=seed)
    for budget in ("3", 2.5, True):
        with pytest.raises(InputError, match="budget: must be a whole number of at least 1"):
            search(forks(), "random", budget)
    for seconds in ("3", True, float("nan")):
        with pytest.raises(InputError, match="seconds: must be a number > 0"):
            search(forks(), "random", seconds=seconds)
    for unknown in (5, None, object()):
        with pytest.raises(
            InputError, match="method: must be a name, or an object with ask and tell"
        ):
            search(forks(), unknown)
    with pytest.raises(InputError, match="prepare: must be a list of names"):
        search(forks(), "random", 1, prepare="coplace")
    for method in METHODS:
        with pytest.raises(InputError, match="there is nothing to place"):
            search(Oracle(Graph("empty", ()), forks().cluster), method, 1)
    with pytest.raises(InputError, match="there is nothing to place"):
        Oracle(Graph("empty", ()), forks().cluster).session([])
    with pytest.raises(InputError, match="prepare: must be of colocate"):
        search(forks(), "random", 1, prepare=["shuffle"])
    with pytest.raises(InputError, match="no device can run every op"):
        search(mixed(), "single")
    with pytest.raises(InputError, match="every device must be able"):
        search(mixed(), "pipedream")
    nowhere = Oracle(Graph("none", (Op("a", time={"tpu": 1}),)), mixed().cluster)
    for method in METHODS:
        with pytest.raises(InputError, match=r'ops\[0\]: no device on which "a"'):
            search(nowhere, method, 30)
    oracle = forks()
    order = Order("fixed", sequence={"g0": ("source",)})
    with pytest.raises(InputError, match="belong to one placement"):
        search(
            Scenario(oracle.graph, oracle.cluster, oracle.costs, Strategy({"*": "g0"}, order)),
            "single",
        )


def test_compare_prints_the_table_of_papers():
    table = compare(["single", "greedy", "dnn-contiguous"], {"free": forks(), "tight": forks(5)})
    assert table.question.tolist()[:3] == ["free"] * 3
    assert table.method.tolist()[:3] == ["single", "greedy", "dnn-contiguous"]
    free = table[table.question == "free"].set_index("method")
    assert free.step_ms["single"] == 26e-9
    assert free.against_single["single"] == 1.0
    assert free.against_single["greedy"] > 1.0
    assert free.max_load_ms["dnn-contiguous"] > 0


def test_a_method_that_refuses_a_question_has_a_row_that_says_why():
    table = compare(
        ["greedy", "single", "pipedream"], {"mixed": mixed(), "free": forks()}, budget=20
    )
    assert table.shape[0] == 6
    assert table.reason.tolist()[1:3] == [
        "single: no device can run every op of the graph",
        "pipedream: every device must be able to run every op",
    ]
    assert table.step_ms.isna().tolist() == [False, True, True, False, False, False]
    assert table.fits.tolist() == [True, False, False, True, True, True]
    oracle = forks()
    fixed = Strategy({"*": "g0"}, Order("fixed", sequence={"g0": ("source",)}))
    wrong = Scenario(oracle.graph, oracle.cluster, oracle.costs, fixed)
    assert "belong to one placement" in compare(["single"], {"fixed": wrong}).reason[0]
    with pytest.raises(InputError, match="method: must be one of"):
        compare(["single", "magic"], {"free": forks()})


def test_a_table_of_nothing_has_its_columns():
    names = [
        "question",
        "method",
        "step_ms",
        "against_single",
        "fits",
        "peak_bytes",
        "placing_s",
        "evaluations",
    ]
    for table in (compare([], {"free": forks()}), compare(["single"], {})):
        assert list(table.columns) == [*names, "reason"]
        assert table.empty


def test_a_question_is_prepared_once(monkeypatch):
    made = []
    monkeypatch.setattr(
        run, "oracle_of", lambda question: made.append(question) or oracle_of(question)
    )
    compare(["single", "greedy", "annealing"], {"fork": fork()}, budget=10)
    assert [type(one) for one in made].count(Scenario) == 1


def test_a_result_as_json_holds_plain_numbers():
    found = search(forks(5), "annealing", 50)
    assert isinstance(found, Result)
    text = json.dumps(found.to_json(), allow_nan=False)
    told = json.loads(text)
    assert told["step_time_s"] == found.cost.seconds
    assert told["versions"]["simdev"]
    assert told["curve"]["evaluation"][-1] == 50
