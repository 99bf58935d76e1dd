"""Breaches of rule 9 are found, each by its rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from simdev.costs import CostModel
from simdev.execution.check import Violation, check, host_faults
from simdev.execution.engine import simulate
from simdev.execution.scenario import load_scenario
from simdev.lowering import lower
from simdev.nouns.cluster import Cluster, Device, Host
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.strategy import Order, Strategy
from simdev.nouns.trace import Trace
from simdev.report import run
from worlds.host_worlds import PS
from worlds.runs import rules


def question(**host: object) -> tuple[Graph, Cluster]:
    """a and c on the first device, b and d on the second; c blocks, but for a replayed graph."""
    blocking = "" if host.get("mode") == "graph" else "c"
    ops = [
        Op(name, time=5 * PS, host_time=2 * PS, blocks_host=name == blocking, launches=2)
        for name in "abcd"
    ]
    ops.append(Op("e", time=5 * PS, host_time=2 * PS))
    devices = Device("gpu:0"), Device("gpu:1")
    return Graph("g", tuple(ops)), Cluster("two", devices, host=Host(threads="node", **host))


def answer(**host: object) -> tuple[Graph, Cluster, Trace]:
    graph, cluster = question(**host)
    homes = {op.name: f"gpu:{i % 2}" for i, op in enumerate(graph.ops)}
    return graph, cluster, simulate(lower(graph, cluster, CostModel(), Strategy(homes)))


def moved(trace: Trace, shift: dict[str, int], swap: tuple[str, ...] = ()) -> Trace:
    """The trace with these tasks begun so much later, or two at each other's time."""
    names = list(trace.task_graph.tasks.name)
    by = np.array([shift.get(name, 0) for name in names])
    start, finish = trace.start + by, trace.finish + by
    if swap:
        one, other = (names.index(name) for name in swap)
        for column in (start, finish):
            column[[one, other]] = column[[other, one]]
    return replace(trace, start=start, finish=finish)


def as_computed(trace: Trace) -> Trace:
    """The trace, with the dispatch of b told as an op."""
    tasks = trace.task_graph.tasks
    kinds = tuple(
        "forward" if name == "dispatch b" else kind
        for name, kind in zip(tasks.name, tasks.kind, strict=True)
    )
    return replace(trace, task_graph=replace(trace.task_graph, tasks=replace(tasks, kind=kinds)))


def broken(trace: Trace, graph: Graph, cluster: Cluster) -> set[str]:
    return rules(host_faults(graph, cluster, CostModel(), trace, Order()))


def test_what_engines_do_is_no_breach() -> None:
    for host in ({}, {"ahead": 1}, {"ahead": 3}):
        graph, cluster, trace = answer(**host)
        assert broken(trace, graph, cluster) == set()


@pytest.mark.parametrize(
    ("rule", "host", "change"),
    [
        ("dispatch", {}, lambda trace: moved(trace, {"a": -1})),
        ("dispatch", {}, lambda trace: moved(trace, {"d": -1})),
        ("dispatch", {"mode": "graph", "launch": 3 * PS}, lambda trace: moved(trace, {"a": -1})),
        ("dispatch", {}, as_computed),
        ("thread", {}, lambda trace: moved(trace, {}, ("dispatch a", "dispatch b"))),
        ("thread", {}, lambda trace: moved(trace, {"dispatch b": -1})),
        ("thread", {}, lambda trace: moved(trace, {"dispatch e": 1, "e": 1})),
        ("blocks", {}, lambda trace: moved(trace, {"dispatch d": -3})),
        ("ahead", {"ahead": 1}, lambda trace: moved(trace, {"dispatch c": -1})),
    ],
)
def test_each_breach_is_told_by_its_rule(
    rule: str, host: dict[str, int], change: Callable[[Trace], Trace]
) -> None:
    graph, cluster, trace = answer(**host)
    assert rule in broken(change(trace), graph, cluster)


def test_a_host_that_lowering_does_not_know_of_is_missed() -> None:
    graph, cluster, trace = answer()
    other = replace(cluster, host=replace(cluster.host, ahead=1))
    assert broken(trace, graph, other) == {"ahead"}
    none = replace(cluster, host=Host("none"))
    assert broken(trace, graph, none) == {"dispatch"}
    told = list(map(str, host_faults(graph, none, CostModel(), trace, Order())))
    assert 'dispatch: "dispatch a" takes 2 ps; it should take 0' in told
    assert broken(trace, graph, replace(cluster, host=Host("graph"))) == {"dispatch"}
    dear = Graph("g", tuple(replace(op, host_time=3 * PS) for op in graph.ops))
    assert broken(trace, dear, cluster) == {"dispatch"}


def test_breaches_are_also_those_of_the_task_graph() -> None:
    *_, trace = answer()
    early = moved(trace, {"dispatch d": -3})
    faults: tuple[Violation, ...] = check(trace.task_graph, early)
    assert {fault.rule for fault in faults} >= {"precedence"}


@pytest.mark.parametrize("host", [None, {}])
def test_a_collective_s_output_may_be_read_elsewhere(host: dict[str, object] | None) -> None:
    """What carries it there is a transfer, and no message of the collective."""
    ops = [
        {"name": "a", "time": "1 ps", "outputs": [{"bytes": 4}]},
        {"name": "b", "time": "1 ps", "outputs": [{"bytes": 4}]},
        {
            "name": "ar",
            "kind": "all_reduce",
            "inputs": ["a", "b"],
            "outputs": [{"bytes": 4}, {"bytes": 4}],
            "attrs": {"ranks": ["g0", "g1"]},
        },
        {"name": "c", "time": "1 ps", "inputs": ["ar:0"]},
    ]
    cluster = {
        "devices": [{"name": "g0"}, {"name": "g1"}],
        "links": {"all_to_all": {"bandwidth": 1e12}},
    } | ({} if host is None else {"host": host})
    places = {"a": "g0", "b": "g1", "ar": "g0", "c": "g1"}
    scenario = load_scenario(
        {"version": 1, "graph": {"version": 1, "ops": ops}, "cluster": cluster}
        | {"strategy": {"placement": places}}
    )
    trace = run(scenario).trace
    assert host_faults(scenario.graph, scenario.cluster, scenario.costs, trace, Order()) == ()


def test_a_host_waits_for_the_last_message_of_a_collective_that_blocks() -> None:
    """Messages of an expanded collective arrive one latency after they are sent, which the sum of
    the finish and the lag of the last one tells: 3 us for each of its two phases.
    """
    devices = tuple(Device(f"g{i}") for i in range(2))
    links = {"bandwidth": 10**6, "latency": "3 us", "hold_latency": False}
    joined = Cluster.all_to_all("pair", devices, "device", **links)
    cluster = replace(joined, host=Host(threads="node"))
    reads = tuple(Op(f"in{i}", outputs=(Tensor(4),), time=0) for i in range(2))
    attrs = {"ranks": ["g0", "g1"], "algorithm": "ring", "cost": "expanded"}
    outputs = (Tensor(4), Tensor(4))
    whole = Op("ar", "all_reduce", inputs=("in0", "in1"), outputs=outputs, attrs=attrs)
    blocking = replace(whole, blocks_host=True, host_time=1 * PS)
    graph = Graph("g", (*reads, blocking, Op("after", time=1 * PS, host_time=1 * PS)))
    homes = {"in0": "g0", "in1": "g1", "ar": "g0", "after": "g0"}
    trace = simulate(lower(graph, cluster, CostModel(), Strategy(homes)))
    assert broken(trace, graph, cluster) == set()
    assert broken(moved(trace, {"dispatch after": -1}), graph, cluster) == {"blocks"}


def test_an_op_that_overtakes_another_of_its_stream_is_found() -> None:
    ops = [Op(name, time=5 * PS, stream="s") for name in "ab"]
    graph, cluster = Graph("g", tuple(ops)), Cluster("one", (Device("gpu:0"),))
    placement = {"a": "gpu:0", "b": "gpu:0"}
    trace = simulate(lower(graph, cluster, CostModel(), Strategy(placement)))
    assert broken(trace, graph, cluster) == set()
    for wrong in (moved(trace, {}, ("a", "b")), moved(trace, {"b": -1})):
        assert broken(wrong, graph, cluster) == {"stream"}
