"""The least latency of one inference, against enumeration."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings

from enumerated import WORKLOADS, best_latency, problem
from peers import PEERS
from simdev import Oracle
from simdev.formats import import_file
from simdev.ground.errors import InputError
from simdev.nouns.cluster import Device
from simdev.nouns.graph import Graph
from simdev.search import search
from simdev.search.maxload.placers import latency_program
from simdev.search.maxload.problem import MaxLoadProblem, filled, latency, least
from waiting import HANGS
from worlds.clusters import joined
from worlds.graphs import chain, op
from worlds.tape import Tape, drawn


def inference(tape: Tape) -> MaxLoadProblem:
    one = problem(tape)
    return replace(one, backward=(False,) * len(one.cost))


@given(drawn(inference))
@settings(max_examples=60, deadline=None)
def test_the_least_latency_is_what_enumeration_finds(one):
    pytest.importorskip("scipy")
    best = best_latency(one)
    if best == inf:
        with pytest.raises(InputError, match="nothing runs on these devices"):
            latency_program(one, 20)
        return
    assert latency_program(one, 20).value_ms == pytest.approx(best, rel=1e-5, abs=1e-5)
    assert least(one) <= best + 1e-9
    greedy = filled(one)
    assert greedy is None or not one.fits(greedy) or latency(one, greedy) >= best - 1e-9


def test_a_unit_waits_for_all_that_comes_in_and_ends_as_one():
    """The CPU runs a and d (3 each), an accelerator b and c (1 each), and every tensor costs 2."""
    one = MaxLoadProblem(
        on_accelerator=(1.0, 1.0, 1.0, 1.0),
        on_cpu=(3.0, 3.0, 3.0, 3.0),
        cost=(2.0, 2.0, 2.0, 2.0),
        size=(0, 0, 0, 0),
        readers=((1, 2), (3,), (3,), ()),
        backward=(False,) * 4,
        group=(0, 1, 2, 3),
        accelerators=(0,),
        cpus=(1,),
    )
    assert latency(one, [1, 0, 0, 1]) == 3 + 2 + (1 + 1) + (2 + 2) + 3
    assert latency(one, [1, 1, 1, 1]) == 9
    assert latency(one, [0, 0, 0, 0]) == 4
    assert latency(one, [0, 1, 0, 0]) == inf  # the accelerator would wait for itself
    assert least(one) == 3


def test_latency_is_that_of_inference():
    training = Graph("t", (op("a", 1), replace(op("b", 1, "a"), phase="backward")))
    oracle = Oracle(training, joined(2))
    with pytest.raises(InputError, match="the problem is that of inference"):
        search(oracle, "dnn-latency")


def test_one_accelerator_runs_a_chain_soonest():
    imported = import_file(PEERS / "dnn_partitioning" / "LayerGraphs" / "bert24_inference.json.gz")
    found = search(Oracle(imported.graph, imported.cluster), "dnn-latency", seconds=HANGS)
    # the sum of its layers
    assert found.objectives["latency_ms"] == pytest.approx(92.406, abs=1e-3)
    assert found.details["bound_ms"] == pytest.approx(found.objectives["latency_ms"])


def test_the_integer_program_is_never_worse_than_the_contiguous_split():
    pytest.importorskip("scipy")
    imported = import_file(PEERS / "dnn_partitioning" / "LayerGraphs" / "bert24_inference.json.gz")
    found = search(Oracle(imported.graph, imported.cluster), "dnn-ip", seconds=3)
    assert (
        found.details["bound_ms"]
        <= found.objectives["max_load_ms"]
        <= WORKLOADS["LayerGraphs/bert24_inference"]
    )


def test_a_graph_that_nobody_imported_has_loads_too():
    found = search(Oracle(chain(*[4] * 6, size=2), joined(2)), "dnn-contiguous")
    assert found.objectives["max_load_ms"] == pytest.approx((12 + 2) / 1e9)
    assert sorted(found.details["loads_ms"].values()) == pytest.approx([14e-9, 14e-9])


def test_unlike_accelerators_are_refused():
    cluster = joined([Device("g0"), Device("g1", memory=5)])
    with pytest.raises(InputError, match="must be alike"):
        search(Oracle(Graph("one", (op("a", 1),)), cluster), "dnn-contiguous")
