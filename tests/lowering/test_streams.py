"""Streams of a device: queues beside its compute queue, worked out by hand. Times are ps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simdev import load_scenario
from simdev.costs import CostModel
from simdev.execution.check import check, host_faults
from simdev.execution.engine import ENGINES, simulate
from simdev.execution.scenario import execute
from simdev.files.graph import graph_text, read_graph
from simdev.ground.errors import InputError
from simdev.lowering import Prepared, iterated, lower_step, split
from simdev.nouns.cluster import Cluster, Host
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.strategy import Collectives, Configuration, Order, Parallelism, Strategy
from simdev.nouns.trace import Trace
from simdev.oracle.cluster import is_covered
from simdev.report import analyze
from simdev.report.measures.spans import timeline_rows
from worlds.clusters import UNIT, joined
from worlds.graphs import leaf, op, tensor
from worlds.scenarios import World, question, worlds

PLACES = {"a": "g0", "b": "g0"}


def traced(
    ops: Sequence[Op],
    cluster: Cluster,
    placement: dict[str, str] | None = None,
    order: str | Order = "fifo",
    steps: int = 1,
    **strategy: Any,
) -> Trace:
    """The trace that both engines agree on and the checker passes; left out, all ops are on g0."""
    placement = placement or {each.name: "g0" for each in ops}
    graph, plan = Graph("streams", tuple(ops)), Strategy(placement, order, **strategy)
    prepared = Prepared(graph, cluster, CostModel())
    step = lower_step(prepared, plan, repeated=steps > 1)
    task_graph = iterated(step, steps)
    traces = [simulate(task_graph, engine) for engine in ENGINES]
    assert (traces[0].start == traces[1].start).all()
    assert check(task_graph, traces[0]) == ()
    ran = split(prepared, plan)[0]
    assert host_faults(ran.graph, cluster, ran.costs, traces[0], plan.order) == ()
    return traces[0]


def spans(trace: Trace, *names: str) -> list[tuple[int, int]]:
    every = dict(zip(trace.task_graph.tasks.name, range(len(trace.start)), strict=True))
    return [(int(trace.start[every[n]]), int(trace.finish[every[n]])) for n in names]


@pytest.mark.parametrize("order", ["fifo", "program", "priority"])
def test_streams_of_a_device_run_beside_each_other(order: str) -> None:
    ops = [op("a", 10), op("b", 7, stream="s"), op("c", 5, stream="t")]
    trace = traced(ops, joined(1), order=order)
    assert spans(trace, "a", "b", "c") == [(0, 10), (0, 7), (0, 5)]


def test_ops_of_one_stream_run_one_at_a_time_and_in_the_order_of_the_program() -> None:
    # b could start at once; but a stream is no queue that serves who comes first.
    ops = [op("x", 4), op("a", 10, "x", stream="s"), op("b", 7, stream="s"), op("c", 5, stream="s")]
    trace = traced(ops, joined(1))
    assert spans(trace, "a", "b", "c") == [(4, 14), (14, 21), (21, 26)]


def test_streams_of_one_name_on_two_devices_are_two() -> None:
    ops = [op("a", 10, stream="s"), op("b", 7, stream="s")]
    trace = traced(ops, joined(2), {"a": "g0", "b": "g1"})
    assert spans(trace, "a", "b") == [(0, 10), (0, 7)]


def test_a_host_dispatches_all_streams_in_one_order() -> None:
    # Dispatches end at 2, 4, 6; b waits for its own alone, c for its stream.
    ops = [
        op("a", 10, host_time="2 ps"),
        op("b", 7, host_time="2 ps", stream="s"),
        op("c", 1, host_time="2 ps", stream="s"),
    ]
    cluster = replace(joined(1), host=Host())
    trace = traced(ops, cluster, order="program")
    assert spans(trace, "a", "b", "c") == [(2, 12), (4, 11), (11, 12)]
    # A host that may be one launch ahead waits for a before it dispatches b.
    held = traced(ops, replace(joined(1), host=Host(ahead=1)), order="program")
    assert spans(held, "a", "b", "c") == [(2, 12), (14, 21), (23, 24)]


def gather(name: str = "ag", **fields: Any) -> Op:
    """An all_gather of 4 bytes a rank over two devices, 4 ps at a byte a ps."""
    return Op(
        name,
        "all_gather",
        inputs=("x0", "x1"),
        outputs=(Tensor(8), Tensor(8)),
        attrs={"ranks": ["g0", "g1"]},
        **fields,
    )


SHARDS = [op("x0", 0, size=4), op("x1", 0, size=4)]
RANKS = {"x0": "g0", "x1": "g1", "ag": "g0"}


@pytest.mark.parametrize("queues", ["device", "link", "parallel", "fair"])
@pytest.mark.parametrize("cost", ["closed", "expanded"])
@pytest.mark.parametrize("order", ["fifo", "program"])
def test_a_collective_takes_its_turn_in_the_streams_of_all_ranks(
    order: str, cost: str, queues: str
) -> None:
    ops = [
        *SHARDS,
        op("a", 10, stream="s"),
        gather(stream="s"),
        op("b", 3, stream="s"),
        op("c", 3, stream="s"),
        op("d", 3),
    ]
    placement = RANKS | {"a": "g0", "b": "g1", "c": "g0", "d": "g0"}
    trace = traced(ops, joined(2, queues), placement, order, collectives=Collectives(cost=cost))
    # b waits on another device than a, for the collective alone.
    assert spans(trace, "a", "b", "c", "d") == [(0, 10), (14, 17), (14, 17), (0, 3)]


def test_who_waits_for_a_collective_waits_on_its_own_rank() -> None:
    ops = [
        *SHARDS,
        gather(),
        op("a", 1, control_inputs=("ag",)),
        op("b", 1, control_inputs=("ag",)),
    ]
    cluster = joined(2, "device", latency="5 ps")
    trace = traced(ops, cluster, RANKS | {"a": "g0", "b": "g1"})
    assert spans(trace, "a", "b") == [(9, 10), (9, 10)]


def test_a_send_of_a_pipeline_joins_the_streams_of_two_devices() -> None:
    send = Op(
        "send",
        "p2p",
        inputs=("a",),
        outputs=(Tensor(8),),
        attrs={"ranks": ["g0", "g1"]},
        stream="pp",
    )
    ops = [op("a", 5, size=8), send, op("b", 3, "send"), op("c", 2, stream="pp")]
    placement = {"a": "g0", "send": "g0", "b": "g1", "c": "g1"}
    trace = traced(ops, joined(2, "device"), placement, "program")
    assert spans(trace, "send", "b", "c") == [(5, 13), (13, 16), (13, 15)]
    # What is received lies on the second device alone.
    assert [memory.peak for memory in trace.memory] == [8, 8]


def test_a_stream_goes_on_in_the_next_step() -> None:
    # Flows hold no queue, and what the next one reads is there before this one ends.
    ops = [*SHARDS, op("y0", 1, "x0"), op("y1", 1, "x1"), gather(stream="s")]
    trace = traced(ops, joined(2, "fair"), RANKS | {"y0": "g0", "y1": "g1"}, steps=3)
    assert spans(trace, "x0~1", "x1~1", "ag~1", "ag~2") == [(1, 1), (1, 1), (4, 8), (8, 12)]


def forwards(world: World) -> bool:
    """Whether its ops are listed in an order in which they could run."""
    return world.graph.ops[0].name == "o0"


@settings(max_examples=100)
@given(worlds(("fifo",)).filter(forwards))
def test_a_stream_of_all_ops_is_a_compute_queue_in_program_order(world: World) -> None:
    streamed = world.with_ops(lambda each: replace(each, stream="s"))
    ordered = world.ordered(Order("program"))
    assert streamed.trace.start.tolist() == ordered.trace.start.tolist()


@settings(max_examples=100)
@given(
    worlds(("fifo", "program", "priority")).filter(forwards),
    st.lists(st.sampled_from([None, "s", "t"]), min_size=8, max_size=8),
)
def test_the_checker_passes_any_streams(world: World, streams: list[str | None]) -> None:
    streamed = iter(streams)
    world = world.with_ops(lambda each: replace(each, stream=next(streamed)))
    names = {op.name: world.strategy.placement[op.name] for op in world.graph.ops}
    traced(world.graph.ops, world.cluster, names, world.strategy.order)


def written(ops: Sequence[Op]) -> dict[str, Any]:
    """The graph of these ops as its file has it."""
    fields: dict[str, Any] = json.loads(graph_text(Graph("streams", tuple(ops))))
    return fields


def test_reports_and_charts_have_a_row_for_each_stream() -> None:
    ops = [*SHARDS, op("a", 10), gather(stream="nccl"), op("b", 8, stream="side")]
    placement = RANKS | {"a": "g0", "b": "g0"}
    cluster = {
        "devices": [{"name": "g0"}, {"name": "g1"}],
        "links": [{"ends": ["g0", "g1"], "bandwidth": UNIT}],
        "queues": "device",
    }
    strategy = {"placement": placement, "order": "program"}
    scenario = load_scenario(question(written(ops), cluster, strategy))
    outcome = execute(scenario)
    rows = {row.name: row for row in timeline_rows(outcome.trace)}
    assert list(rows)[:3] == ["g0", "stream nccl g0", "stream side g0"]
    assert len(rows["stream nccl g0"].tasks) == len(rows["stream nccl g1"].tasks) == 1
    uses = {use.name: use for use in analyze(outcome).devices}
    # Busy is the union over streams, so no device is busy for more than the step.
    assert (uses["g0"].busy_ps, uses["g0"].utilization) == (10, 1.0)
    assert not any("stream" in link.name for link in analyze(outcome).links)
    assert outcome.trace.end_ps == 10


def test_a_file_keeps_streams() -> None:
    ops = (op("a", 1, stream="s"), op("b", 1))
    assert read_graph(written(ops)).ops == ops


def test_the_parts_of_an_op_run_in_its_stream() -> None:
    relu = Op("r", "relu", inputs=("x",), outputs=(tensor(8, 4),), time="8 ps", stream="s")
    ops = [leaf("x", 8, 4), relu]
    parts = {"r": Configuration({"sample": 2}, ("g0", "g1"), "divided")}
    trace = traced(ops, joined(2, "parallel"), {"x": "g0"}, partition=parts)
    rows = {row.name: len(row.tasks) for row in timeline_rows(trace)}
    assert (rows["stream s g0"], rows["stream s g1"]) == (1, 1)


@pytest.mark.parametrize(
    ("host", "strategy", "reason"),
    [
        (None, Strategy(PLACES, accumulate=2), "strategy.accumulate: each further microbatch"),
        (None, Strategy(pipeline=Parallelism(pp=1)), "strategy.pipeline: a schedule"),
        (None, Strategy(PLACES, sync="p3"), "strategy.sync: a policy"),
        (Host(), Strategy(PLACES, "priority"), "strategy.order: a host that dispatches"),
    ],
)
def test_other_orders_than_that_of_the_program_are_refused(
    host: Host | None, strategy: Strategy, reason: str
) -> None:
    graph = Graph("streams", (op("a", 1), op("b", 1, stream="s")))
    prepared = Prepared(graph, replace(joined(1), host=host), CostModel())
    with pytest.raises(InputError, match=reason):
        lower_step(prepared, strategy)


def test_the_kernels_of_the_oracle_leave_streams_to_lowering() -> None:
    plain, streamed = (
        Prepared(Graph("g", (op("a", 1, stream=s),)), joined(1), CostModel()) for s in (None, "s")
    )
    assert is_covered(plain)
    assert not is_covered(streamed)


@pytest.mark.parametrize("stream", ["", 3, "a\n"])
def test_a_stream_has_a_name(stream: Any) -> None:
    with pytest.raises(InputError, match=r"ops\[0\].stream: must be 1 to 256 printable"):
        Graph("g", (op("a", 1, stream=stream),))
