"""Planners within their limits: of time, of memory, and of how much work grows with a graph."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import replace
from itertools import count, pairwise
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings

from enumerated import best_in_line, best_layered, best_split, problem
from forks import ring
from profiles import layered
from simdev import Oracle
from simdev.ground.errors import InputError
from simdev.nouns.graph import Graph
from simdev.search import search
from simdev.search.ideals import bits, ideals, nested, table
from simdev.search.listing import Timeline
from simdev.search.maxload.contiguous import blocks_of, splits
from simdev.search.maxload.problem import MaxLoadProblem
from simdev.search.pipedream import placer as pipelines
from simdev.search.pipedream import plan as planner
from simdev.search.pipedream.plan import Level, Profile, partition
from simdev.search.trial import SpentError
from worlds.clusters import joined
from worlds.graphs import chain, op
from worlds.tape import Tape, drawn

PLANNERS = ("heft", "critical-path", "pipedream", "dnn-contiguous", "dnn-ip")


def out_of_time(after: int):
    """A ``due`` that raises when it is called more than so many times."""
    calls = count(1)

    def due() -> None:
        if next(calls) > after:
            raise SpentError

    return due


# Time


@pytest.mark.parametrize("name", PLANNERS)
def test_a_planner_whose_time_is_over_answers_with_a_start(name):
    pytest.importorskip("scipy")
    found = search(ring(), name, seconds=1e-9)
    assert found.provenance["ended"] == "time"
    assert found.details["planned"] is False
    assert found.cost.step_ps == 32  # all on one device


def test_without_time_for_its_linear_program_m_sct_is_m_etf():
    pytest.importorskip("scipy")
    oracle = ring(12, 3)
    found = search(oracle, "m-sct", seconds=1e-9)
    assert found.provenance["ended"] == "time"
    assert found.details["relaxed_makespan_s"] is None
    assert found.cost.step_ps == search(oracle, "m-etf").cost.step_ps


def test_without_time_for_its_integer_program_dnn_latency_is_the_greedy_filling():
    pytest.importorskip("scipy")
    oracle = ring(2)
    apart = Oracle(Graph("apart", (op("a", 4 * 10**9), op("b", 4 * 10**9))), oracle.cluster)
    found = search(apart, "dnn-latency", seconds=1e-9)
    assert found.provenance["ended"] == "time"
    assert found.objectives["latency_ms"] == found.details["greedy_ms"] == pytest.approx(8)
    assert search(apart, "dnn-latency").objectives["latency_ms"] == pytest.approx(4)


@pytest.mark.parametrize("name", ["dnn-contiguous", "dnn-ip"])
def test_the_best_split_so_far_is_the_answer(name, monkeypatch):
    pytest.importorskip("scipy")
    due = out_of_time(2)  # enough for the linear order of so small a graph
    monkeypatch.setattr("simdev.search.trial.Budget.require_time", lambda budget: due())
    found = search(ring(), name, seconds=100)
    assert found.provenance["ended"] != "done"
    assert found.objectives["max_load_ms"] == pytest.approx((16 + 2) / 1e9)


def test_the_best_pipeline_so_far_is_placed(monkeypatch):
    calls, planned = [], pipelines.partition

    def partition(profile, levels, straight=False, due=None):
        calls.append(straight)
        if not straight:
            raise SpentError
        return planned(profile, levels, straight)

    monkeypatch.setattr("simdev.search.pipedream.placer.partition", partition)
    found = search(ring(), "pipedream")
    assert calls == [True, False]
    assert found.details["placed_period_s"] == pytest.approx(16e-12)
    assert "period_s" not in found.objectives


@settings(max_examples=40)
@given(drawn(problem))
def test_splits_get_better_until_time_ends(one):
    blocks = blocks_of(one)
    try:
        best = best_split(blocks)
    except InputError:
        return
    for after in range(6):
        found = []
        try:
            for split in splits(blocks, due=out_of_time(after)):
                found.append(split)
        except SpentError:
            assert all(not split.exact for split in found)
        else:
            assert found[-1] == best
        assert all(a.max_load_ms >= b.max_load_ms - 1e-9 for a, b in pairwise(found))
        assert all(one.fits(split.devices) for split in found)


@pytest.mark.parametrize(
    "call",
    [
        lambda due: ideals(12, [], due=due),
        lambda due: partition(line(6), [Level(2, 1.0), Level(2, 1.0)], due=due),
        lambda due: partition(line(6), [Level(3, 1.0)], straight=True, due=due),
    ],
)
def test_plans_look_at_the_time_all_the_time(call):
    calls = count()
    call(lambda: next(calls))
    assert next(calls) >= 6
    with pytest.raises(SpentError):
        call(out_of_time(3))


# HEFT's gaps


def first_gap(busy: list[tuple[int, int]], ready: int, length: int) -> int:
    """The rule told over all busy intervals."""
    at = bisect_left(busy, (ready, ready))
    begin = max(ready, busy[at - 1][1]) if at else ready
    for start, end in busy[at:]:
        if begin + length <= start:
            return begin
        begin = max(begin, end)
    return begin


def wishes(tape: Tape) -> list[tuple[int, int]]:
    return [(tape.number(30), tape.pick(0, 1, 2, 3, 7)) for _ in range(1 + tape.number(25))]


@given(drawn(wishes))
def test_idle_intervals_tell_the_same_gaps_as_busy_ones(wanted):
    timeline, busy = Timeline(), []
    for ready, length in wanted:
        start = timeline.gap(ready, length)
        assert start == first_gap(busy, ready, length)
        assert timeline.free(ready, length) == max(ready, max((end for _, end in busy), default=0))
        if length:
            timeline.take(start, start + length)
            insort(busy, (start, start + length))
    assert timeline.busy == busy


def test_ops_without_a_gap_between_them_leave_one_idle_interval():
    timeline = Timeline()
    for _ in range(100):
        start = timeline.gap(0, 5)
        timeline.take(start, start + 5)
    assert timeline.idle == [(500, inf)]


# The largest load


@settings(max_examples=60)
@given(drawn(problem))
def test_a_linear_order_is_cut_as_enumeration_cuts_it(one):
    best = best_in_line(one)
    if best == inf:
        with pytest.raises(InputError, match="runs on these devices"):
            best_split(blocks_of(one), 1)
        return
    found = best_split(blocks_of(one), 1)
    assert found.max_load_ms == pytest.approx(best)


def test_what_does_not_fit_along_one_order_is_said_so():
    """Nothing fits of eight ops that nothing orders, of which each is as large as a device."""
    one = MaxLoadProblem(
        on_accelerator=(1.0,) * 8,
        on_cpu=(inf,) * 8,
        cost=(0.0,) * 8,
        size=(4,) * 8,
        readers=((),) * 8,
        backward=(False,) * 8,
        group=tuple(range(8)),
        accelerators=(0, 1),
        cpus=(),
        capacity=4,
    )
    with pytest.raises(InputError, match="there are more than 10 places to cut"):
        best_split(blocks_of(one), 10)
    with pytest.raises(InputError) as told:
        best_split(blocks_of(one))
    assert "along one order" not in str(told.value)


def test_dnn_ip_finds_what_fits_though_nothing_contiguous_does():
    pytest.importorskip("scipy")
    oracle = ring(4, 2, memory=40, size=0)
    ops = [
        replace(one, param_bytes=held)
        for one, held in zip(oracle.graph.ops, (30, 20, 10, 20), strict=True)
    ]
    found = search(Oracle(Graph("held", tuple(ops)), oracle.cluster), "dnn-ip")
    assert found.cost.feasible
    assert "within_memory" not in found.details
    assert found.details["contiguous_ms"] is None


def test_sets_as_tables():
    sets = [0, 5, 1 << 70 | 5]
    assert nested(sets)
    assert not nested([3, 5])
    held = table(sets, 71)
    assert [np.flatnonzero(row).tolist() for row in held] == [bits(one) for one in sets]


# PipeDream


def line(groups: int) -> Profile:
    edges = tuple((i, i + 1) for i in range(groups - 1))
    return Profile((1.0,) * groups, (1,) * groups, (1,) * groups, edges)


@settings(max_examples=60)
@given(drawn(layered, 4, 3))
def test_partitions_on_two_levels_are_the_best_that_enumeration_finds(drawn_layered):
    profile, levels = drawn_layered
    found = partition(profile, levels)
    assert found.seconds == pytest.approx(best_layered(profile, levels))
    assert sum(stage.replicas for stage in found.stages) == levels[0].count * levels[1].count


def test_long_chains_are_cut_at_some_places(monkeypatch):
    """Of each stretch of time the place at which least is handed on: every third here, and stages
    of equal time.
    """
    profile = replace(line(30), activations=tuple(1 if i % 3 == 2 else 100 for i in range(30)))
    exact = partition(profile, [Level(5, 1000.0)])
    assert exact.exact
    monkeypatch.setattr(planner, "MOST", 12)
    found = partition(profile, [Level(5, 1000.0)])
    assert not found.exact
    assert found.seconds == pytest.approx(exact.seconds)
    assert [g for stage in found.stages for g in stage.groups] == list(range(30))


def test_fewer_ideals_are_looked_at_where_there_is_more_to_compare():
    alone = planner.most_ideals([Level(4, 1.0)])
    nodes = [planner.most_ideals([Level(size, 1.0), Level(2, 1.0)]) for size in (4, 8, 64)]
    assert alone == planner.MOST > nodes[0] > nodes[1] > nodes[2] > 1
    assert planner.most_ideals([Level(64, 1.0)], straight=True) == planner.MOST


def test_a_pipeline_that_overflows_is_mended():
    """Stages of equal time are 3 + 1 ops of 10 bytes each; a device holds two."""
    graph = chain(2, 2, 2, 6, param_bytes=10)
    found = search(Oracle(graph, joined(2, memory=25)), "pipedream")
    assert [len(stage["ops"]) for stage in found.details["placed_stages"]] == [3, 1]
    assert found.cost.feasible
    assert found.details["moved"] == 1


def test_a_backward_op_without_a_mate_is_told_what_it_needs():
    ops = (op("a", 1), replace(op("b", 1), phase="backward"))
    cluster = joined(2)
    with pytest.raises(InputError, match=r'"b" stands in no group.*attribute "forward"'):
        search(Oracle(Graph("g", ops), cluster), "pipedream")
