"""Collective ops in pictures, saved runs and the checker; algorithms, costs and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from collective_ops import (
    FORMS,
    SIZE,
    collective,
    lowered,
    mesh,
    seconds,
    two_nodes,
)
from peers import measured_all_reduces
from simdev.costs import CostModel
from simdev.costs.collectives import CollectiveTable, bus_bandwidth, table_of_rows
from simdev.execution.check import check
from simdev.execution.engine import simulate
from simdev.execution.scenario import load_scenario
from simdev.files import read_preset
from simdev.files.collectives import read_collectives
from simdev.files.run import read_run, write_run
from simdev.lowering import lower
from simdev.nouns.cluster import QUEUES, Cluster
from simdev.nouns.graph import Graph, Op
from simdev.nouns.strategy import ALGORITHMS, Collectives, Configuration, Order, Strategy
from simdev.nouns.taskgraph import COLLECTIVE
from simdev.nouns.trace import Trace
from simdev.oracle import Oracle
from simdev.report import run
from simdev.report.measures.spans import Window, timeline_rows
from simdev.report.measures.spread import sent_bytes
from simdev.report.measures.usage import link_use
from worlds.costs import COSTS
from worlds.split_graphs import linears
from worlds.task_graphs import judged

MIB = 2**20


def test_messages_stand_in_the_rows_of_their_links() -> None:
    trace = judged(lowered(mesh(3, "link"), "all_gather", 3000, cost="expanded"))
    rows = {
        row.name: [trace.task_graph.tasks.name[task] for task in row.tasks]
        for row in timeline_rows(trace)
    }
    assert rows["link g0>g1"] == ["c[0] g0>g1", "c[1] g0>g1"]
    assert list(rows)[:3] == ["g0", "g1", "g2"]
    assert not any("c" in names for names in rows.values())
    use = {
        one.name: (one.transfers, one.bytes)
        for one in link_use(trace, Window(0, trace.end_ps))
        if one.transfers
    }
    assert use == {f"link g{a}>g{(a + 1) % 3}": (2, 2000) for a in range(3)}
    assert sent_bytes(trace.task_graph) == 6000


def test_what_collectives_send_in_all_is_told_right() -> None:
    for kind, algorithm in (
        *FORMS,
        ("broadcast", "ring"),
        ("reduce", "ring"),
        ("all_reduce", "direct"),
    ):
        ranks = 2 if kind == "p2p" else 4
        told = {
            cost: sent_bytes(
                lowered(mesh(ranks, "link"), kind, 4096, algorithm=algorithm, cost=cost, chunks=4)
            )
            for cost in ("closed", "expanded")
        }
        assert told["closed"] == told["expanded"], (kind, algorithm)


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_to_all", "broadcast"])
def test_the_checker_misses_no_lost_byte(kind: str) -> None:
    for cost in ("closed", "expanded"):
        trace = simulate(lowered(mesh(4, "link"), kind, 4096, cost=cost, chunks=1))
        tasks = trace.task_graph.tasks
        less = tasks.bytes.copy()
        less[[task for task, one in enumerate(tasks.kind) if one == COLLECTIVE][-1]] -= 1
        broken = replace(trace.task_graph, tasks=replace(tasks, bytes=less))
        found = check(broken, Trace(broken, trace.start, trace.finish, trace.engine))
        assert {one.rule for one in found} == {"bytes"}, cost


def test_the_checker_sees_a_message_that_overtakes() -> None:
    trace = simulate(lowered(mesh(4, "link"), "all_reduce", 4096, cost="expanded"))
    late = trace.task_graph.tasks.name.index("c[3] g1>g2")
    start, finish = trace.start.copy(), trace.finish.copy()
    start[late], finish[late] = start[late] - 10, finish[late] - 10
    found = check(trace.task_graph, Trace(trace.task_graph, start, finish, trace.engine))
    assert "precedence" in {one.rule for one in found}


@pytest.mark.parametrize("slowdown", [1, "1.3"])
def test_saved_runs_hold_the_messages(slowdown: object, tmp_path: Path) -> None:
    ops, place = collective("c", "all_reduce", ["g0", "g1", "g2"], 3000, cost="expanded")
    strategy = Strategy(place | {"work": "g1"}, collectives=Collectives(slowdown=slowdown))  # type: ignore[arg-type]
    graph = Graph("saved", (*ops, Op("work", time="4 us")))
    trace = judged(lower(graph, mesh(3, "device"), CostModel(), strategy))
    write_run(trace, tmp_path / "run.json.gz")
    again = read_run(tmp_path / "run.json.gz").trace
    assert (again.start == trace.start).all()
    assert check(again.task_graph, again) == ()


def test_the_strategy_says_how_unless_the_op_does() -> None:
    cluster, choice = mesh(4, "link"), Collectives("tree", "expanded")
    names = [device.name for device in cluster.devices]
    ops, place = collective("c", "all_reduce", names, SIZE)
    graph = Graph("one", tuple(ops))
    by_strategy = lower(graph, cluster, CostModel(), Strategy(place, collectives=choice))
    assert (
        by_strategy.tasks.duration
        == lowered(cluster, "all_reduce", SIZE, algorithm="tree", cost="expanded").tasks.duration
    ).all()
    own, _ = collective("c", "all_reduce", names, SIZE, algorithm="ring", cost="closed")
    by_op = lower(
        Graph("one", tuple(own)), cluster, CostModel(), Strategy(place, collectives=choice)
    )
    assert (by_op.tasks.duration == lowered(cluster, "all_reduce", SIZE).tasks.duration).all()


def test_auto_takes_the_least_closed_form() -> None:
    cluster = two_nodes(4, "link")
    for size in (8, 8 * 10**4, 8 * 10**7):
        closed = {
            one: simulate(lowered(cluster, "all_reduce", size, algorithm=one)).end_ps
            for one in ("ring", "tree", "hierarchical", "auto")
        }
        assert closed["auto"] == min(closed.values())
        assert len(set(closed.values())) > 1


@pytest.mark.parametrize("queues", QUEUES)
@pytest.mark.parametrize("algorithm", ["ring", "tree", "hierarchical", "auto"])
def test_gradients_of_a_split_model_under_every_algorithm(queues: str, algorithm: str) -> None:
    """Data parallelism over four GPUs: one task for each of three gradients, or the messages of
    each.
    """
    devices, cluster = [f"g{i}" for i in range(4)], two_nodes(2, queues)
    count = {}
    for cost in ("closed", "expanded"):
        split = {"x": Configuration({"sample": 4}, tuple(devices))}
        strategy = Strategy(partition=split, collectives=Collectives(algorithm, cost))
        task_graph = lower(linears(), cluster, COSTS, strategy)
        judged(task_graph)
        count[cost] = sum(kind == COLLECTIVE for kind in task_graph.tasks.kind)
    assert count["closed"] == 3
    assert count["expanded"] in {3 * 24, 3 * 6, 3 * 16}


def test_the_oracle_and_the_simulation_agree() -> None:
    split = {"x": Configuration({"sample": 4}, tuple(f"g{i}" for i in range(4)))}
    for choice in (Collectives(cost="expanded"), Collectives("tree"), Collectives(slowdown=1.3)):  # type: ignore[arg-type]
        strategy = Strategy(partition=split, collectives=choice)
        step = simulate(lower(linears(), two_nodes(2, "link"), COSTS, strategy)).end_ps
        assert Oracle(linears(), two_nodes(2, "link"), COSTS)(strategy).step_ps == step
    ops, place = collective("c", "all_reduce", [f"g{i}" for i in range(4)], 4000)
    oracle = Oracle(Graph("one", tuple(ops)), two_nodes(2, "link"))
    for algorithm in ALGORITHMS:
        step = simulate(
            lowered(two_nodes(2, "link"), "all_reduce", 4000, algorithm=algorithm)
        ).end_ps
        assert oracle(Strategy(place, collectives=Collectives(algorithm))).step_ps == step


def test_messages_take_the_priority_of_their_collective() -> None:
    """Two all-reduces over one link, the second of which is wanted first: it overtakes between two
    messages.
    """
    first, place = collective("a", "all_reduce", ["g0", "g1"], 4000, cost="expanded")
    second, more = collective("b", "all_reduce", ["g0", "g1"], 4000, cost="expanded")
    graph, cluster = Graph("two", (*first, *second)), mesh(2, "link", latency=0)
    order = Order("priority", {"a": 5, "b": -1})
    trace = judged(lower(graph, cluster, CostModel(), Strategy(place | more, order)))
    starts = dict(zip(trace.task_graph.tasks.name, trace.start.tolist(), strict=True))
    assert [starts[f"{name} g0>g1"] // 10**6 for name in ("a[0]", "b[0]", "b[1]", "a[1]")] == [
        0,
        2,
        4,
        6,
    ]


def table_op(
    cluster: Cluster, kind: str, size: int, ranks: int, tables: Sequence[CollectiveTable]
) -> Fraction:
    names = [device.name for device in cluster.devices if device.runs_ops][:ranks]
    ops, place = collective("c", kind, names, size)
    strategy = Strategy(place, collectives=Collectives(cost="table", tables=tuple(tables)))
    return Fraction(
        judged(lower(Graph("one", tuple(ops)), cluster, CostModel(), strategy)).end_ps, 10**12
    )


@pytest.mark.parametrize("queues", ["link", "fair", "parallel"])
def test_an_op_takes_the_time_of_its_table(queues: str) -> None:
    cluster = replace(read_preset("dgx-h100"), queues=queues)
    tables = read_collectives("h100-sxm")
    for table in tables:
        for size, wanted in table.anchors:
            if size % table.ranks == 0:
                found = table_op(cluster, table.collective, size, table.ranks, tables)
                assert abs(found - wanted) <= Fraction(1, 10**9) * max(1, wanted * 10**6), (
                    table.collective,
                    size,
                )


def test_tables_are_those_of_the_cluster_where_a_scenario_names_none() -> None:
    size, names = 8 * MIB, [f"gpu:{i}" for i in range(8)]
    ops, place = collective("c", "all_reduce", names, size)
    told = [
        {
            "name": op.name,
            "kind": op.kind,
            "inputs": list(op.inputs),
            "attrs": dict(op.attrs),
            "time": 0,
        }
        | {"outputs": [{"bytes": tensor.bytes} for tensor in op.outputs]}
        for op in ops
    ]
    strategy = {"version": 1, "placement": place, "collectives": {"cost": "table"}}
    scenario = {
        "version": 1,
        "graph": {"version": 1, "name": "one", "ops": told},
        "cluster": "dgx-h100",
        "strategy": strategy,
    }
    (table,) = [
        one
        for one in read_collectives("h100-sxm")
        if (one.collective, one.ranks) == ("all_reduce", 8)
    ]
    assert run(load_scenario(scenario)).seconds == pytest.approx(
        float(table.seconds(size)), rel=1e-9
    )
    strategy["collectives"] = {"cost": "table", "tables": "a100-sxm"}
    assert run(load_scenario(scenario)).seconds != pytest.approx(
        float(table.seconds(size)), rel=1e-3
    )


def test_left_out_sizes_through_the_op() -> None:
    """vTrain's all-reduces on 2 to 8 A100: tables of every second size, the others asked as ops."""
    for ranks, measured in measured_all_reduces().items():
        table = table_of_rows("all_reduce", ranks, measured[::2])
        left = measured[1::2][:: max(1, len(measured) // 40)]
        cluster = mesh(ranks, "link")
        errors = [
            abs(float(table_op(cluster, "all_reduce", size, ranks, [table])) / took - 1)
            for size, took in left
        ]
        print(
            f"{ranks} GPUs: {len(left)} sizes left out, mean {np.mean(errors):.2%}, "
            f"largest {max(errors):.1%}"
        )
        assert np.mean(errors) <= 0.02


@pytest.mark.parametrize("name", ["l40s-8x", "rtx-pro-6000-8x"])
def test_pcie_boxes_fall_with_more_gpus_by_table_and_by_message(name: str) -> None:
    box, size = read_preset(name), 512 * MIB
    tables = read_collectives(box.collectives)

    def rate(took: Fraction, ranks: int) -> float:
        return float(bus_bandwidth("all_reduce", ranks, size, took)) / 1e9

    measured = [rate(table_op(box, "all_reduce", size, n, tables), n) for n in (2, 4, 8)]
    expanded = [rate(seconds(box, "all_reduce", size, n, cost="expanded"), n) for n in (2, 4, 8)]
    closed = [rate(seconds(box, "all_reduce", size, n, cost="closed"), n) for n in (2, 4, 8)]
    print(f"{name}: table {measured}, expanded {expanded}, closed {closed} GB/s")
    assert measured[0] > measured[1] > measured[2]
    assert expanded == closed
    if name == "l40s-8x":
        assert expanded == [pytest.approx(one, rel=0.05) for one in measured]
