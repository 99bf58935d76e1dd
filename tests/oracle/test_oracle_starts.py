"""The starts that the oracle tells of every op and group, against those of whole traces."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from simdev import Oracle
from simdev.ground.errors import DeadlockError, InputError
from simdev.nouns.cluster import QUEUES, TRANSFERS, Cluster, Device, Host
from simdev.nouns.graph import Graph
from simdev.nouns.models.layers import Layer, layer_graph
from simdev.nouns.strategy import Order, sync_policy
from simdev.oracle import Starts, cost_of
from worlds.clusters import joined
from worlds.graphs import op
from worlds.hosts import hosted
from worlds.scenarios import World, column, make_world, oracle_of
from worlds.tape import Tape, drawn

POLICIES = ("fifo", "fifo", "program", "priority", "fixed")


def make_question(tape: Tape) -> World:
    """A world of any order, half of them with hosts, with groups where these agree with it."""
    world = make_world(tape, POLICIES, QUEUES, TRANSFERS)
    if tape.pick(True, False):
        world = hosted(tape, world)
    together = tape.pick(True, False)
    return world.with_ops(
        lambda one: replace(one, colocate=world.strategy.placement[one.name] if together else None)
    )


def agree(oracle: Oracle, starts: Starts, op_ps: list[int]) -> None:
    assert starts.op_ps.tolist() == op_ps
    assert starts.group_ps.tolist() == [min(op_ps[i] for i in members) for members in oracle.groups]


@settings(max_examples=200)
@given(drawn(make_question))
def test_starts_are_those_of_the_trace(world):
    oracle = oracle_of(world)
    try:
        trace = world.trace
    except (DeadlockError, InputError) as error:
        with pytest.raises(type(error)):
            oracle.starts(column(world))
        return
    starts = oracle.starts(column(world))
    assert starts.cost == cost_of(trace)
    agree(oracle, starts, trace.start[: len(world.graph.ops)].tolist())


def pairs(**fields: object) -> Oracle:
    """A chain over two devices, two of its ops in one group."""
    ops = [op("a", 2, size=3), op("b", 4, "a", size=1), op("c", 3, "b", size=2), op("d", 1, "c")]
    ops = [replace(one, colocate="ends" if one.name in "ad" else None) for one in ops]
    cluster = joined(2)
    return Oracle(Graph("pairs", tuple(ops)), cluster, **fields)


def test_starts_of_a_chain_by_hand():
    starts = pairs().starts([0, 1, 0])
    assert starts.op_ps.tolist() == [0, 5, 10, 13]
    assert starts.group_ps.tolist() == [0, 5, 10]
    assert starts.cost.step_ps == 14


@pytest.mark.parametrize(
    "fields",
    [{"accumulate": 3}, {"steps": "repeated"}, {"accumulate": 2, "order": Order("program")}],
)
def test_of_what_runs_several_times_the_first_counts(fields):
    oracle = pairs(**fields)
    trace, starts = oracle.trace([0, 1, 0]), oracle.starts([0, 1, 0])
    assert len(trace.start) > 6
    runs = {name: row for row, name in enumerate(trace.task_graph.tasks.name)}
    agree(oracle, starts, [int(trace.start[runs[name]]) for name in "abcd"])
    assert starts.cost == oracle([0, 1, 0])
    assert starts.op_ps.tolist()[:2] == [0, 5]


@pytest.mark.parametrize("sync", [sync_policy("parameter-server"), sync_policy("byte-scheduler")])
def test_an_all_reduce_that_a_policy_takes_out_starts_with_what_stands_for_it(sync):
    """Its gates are ready where the summed gradient is there; updates wait for these."""
    names = ["g0", "g1"]
    graph, placement = layer_graph([Layer(1, 1, 3), Layer(1, 1, 6)], names)
    cluster = joined(names, bandwidth=8)
    oracle = Oracle(graph, cluster, sync=sync)
    trace, starts = oracle.trace(placement), oracle.starts(placement)
    assert starts.cost == oracle(placement)
    tasks, first = trace.task_graph.tasks.name, dict[str, int]()
    for row, name in enumerate(tasks):
        first.setdefault(name, int(trace.start[row]))
    replaced = [one for one in graph.ops if one.name not in first]
    assert [one.kind for one in replaced] == ["all_reduce"] * 2
    for one in replaced:
        first[one.name] = min(first[f"{one.name}.{rank}"] for rank in range(2))
    agree(oracle, starts, [first[one.name] for one in graph.ops])


def test_a_start_is_an_evaluation_that_is_remembered_as_a_cost():
    oracle = pairs()
    first, again = oracle.starts([0, 1, 0]), oracle.starts([0, 1, 0])
    assert oracle.evaluations == 2
    assert oracle([0, 1, 0]) is again.cost
    assert first.op_ps is not again.op_ps
    before = first.op_ps.tolist()
    oracle.starts([1, 1, 1])
    assert first.op_ps.tolist() == before


def test_starts_of_what_cannot_be_raise():
    apart = Cluster("apart", (Device("g0"), Device("g1")))
    oracle = Oracle(pairs().graph, apart)
    with pytest.raises(InputError, match="no route joins them"):
        oracle.starts([0, 1, 0])
    with pytest.raises(InputError, match="is not in"):
        oracle.starts([0, 2, 0])
    with pytest.raises(InputError, match="must have 4 devices"):
        oracle.starts([0])


def test_starts_of_an_empty_graph_are_empty():
    for cluster in (Cluster("one", (Device("g0"),)), Cluster("one", (Device("g0"),), host=Host())):
        for accumulate in (1, 2):
            starts = Oracle(Graph("empty", ()), cluster, accumulate=accumulate).starts([])
            assert (len(starts.op_ps), len(starts.group_ps), starts.cost.step_ps) == (0, 0, 0)
