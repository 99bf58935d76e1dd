"""Split ops in orders, oracles, reports and checks; views and collectives by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simdev import Oracle, Scenario, run
from simdev.costs import CostModel
from simdev.execution.check import check
from simdev.ground.errors import InputError
from simdev.lowering import lower
from simdev.measure.calibrate import calibrate
from simdev.measure.calibrate.observe import Measured
from simdev.nouns.cluster import QUEUES, Cluster, Device
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.strategy import Order, Strategy
from simdev.nouns.taskgraph import COLLECTIVE, TRANSFER
from simdev.nouns.trace import Trace
from split_cases import WEIGHT, C, graph_of, parts, ring, simulated, vgg_fc1
from worlds.costs import COSTS
from worlds.graphs import leaf, parameter, tensor
from worlds.split_graphs import cluster, linears

# Orders, the oracle, and the report


def test_a_priority_of_an_op_holds_for_its_shards() -> None:
    order = Order("priority", {"dw2": -2, "u2": -3, "dres": 5})
    strategy = Strategy(partition={"x": C({"sample": 2})}, order=order)
    task_graph = lower(linears(), cluster(), COSTS, strategy)
    column = dict(zip(task_graph.tasks.name, task_graph.tasks.priority.tolist(), strict=True))
    assert column["dw2#0"] == column["dw2#1"] == -2
    assert column["dres#1"] == 5
    assert column["dw2#sync0"] == -3  # the smallest of its readers
    with pytest.raises(InputError, match="no op of this name"):
        lower(
            linears(),
            cluster(),
            COSTS,
            Strategy(partition={"x": C()}, order=Order("priority", {"nobody": 1})),
        )


def test_fixed_sequences_name_shards() -> None:
    graph = graph_of(None)
    order = Order("fixed", sequence={"gpu:0": ("x#0", "y#0"), "gpu:1": ("x#1", "y#1")})
    strategy = Strategy(partition={"x": C({"sample": 2})}, order=order)
    assert simulated(graph, cluster(), strategy).end_ps > 0
    program = Strategy(partition={"x": C({"sample": 2})}, order="program")
    assert simulated(linears(), cluster(), program).end_ps > 0


def test_the_oracle_takes_split_strategies() -> None:
    oracle = Oracle(linears(), cluster(), COSTS)
    strategy = Strategy(partition={"x": C({"sample": 2})})
    trace = simulated(linears(), cluster(), strategy)
    assert oracle(strategy).step_ps == oracle.trace(strategy).end_ps == trace.end_ps
    assert [cost.step_ps for cost in oracle.batch([strategy, strategy], 2)] == [trace.end_ps] * 2


def test_the_report_tells_what_splits_cost() -> None:
    scenario = Scenario(
        vgg_fc1(64), cluster("link", 2), COSTS, Strategy(partition={"x": C({"sample": 2})})
    )
    report = run(scenario)
    rows = {one.op: one for one in report.splits}
    assert set(rows) == {"fc1", "dy", "dw", "dx", "update"}
    assert (rows["dw"].parts, dict(rows["dw"].split), rows["dw"].sync_bytes) == (
        2,
        {"k": 2},
        2 * WEIGHT,
    )
    assert rows["fc1"].bytes_in == 0
    assert rows["fc1"].summed_ps == 2 * rows["fc1"].longest_ps
    assert rows["fc1"].whole_ps is not None
    assert rows["fc1"].longest_ps < rows["fc1"].whole_ps < rows["fc1"].summed_ps
    assert report.transfer_bytes == 2 * WEIGHT
    told = report.to_json()["splits"]
    assert [one["op"] for one in told] == list(rows)
    assert "What splitting costs" in str(report)
    assert "What splitting costs" in report._repr_html_()


def test_a_slow_device_is_not_blamed_on_splitting() -> None:
    machines = cluster("link", 2)
    slow = replace(machines.devices[1], speed=0.5)
    machines = replace(machines, devices=(machines.devices[0], slow))
    strategy = Strategy(partition={"x": C({"sample": 2})})
    even = run(Scenario(vgg_fc1(64), cluster("link", 2), COSTS, strategy)).splits
    uneven = run(Scenario(vgg_fc1(64), machines, COSTS, strategy)).splits
    for fast, mixed in zip(even, uneven, strict=True):
        assert fast.whole_ps is not None
        # Half of each op takes twice as long, and so does half of the unsplit op that it is.
        assert mixed.summed_ps == pytest.approx(1.5 * fast.summed_ps, rel=1e-6)
        assert mixed.whole_ps == pytest.approx(1.5 * fast.whole_ps, rel=1e-6)


def test_fetched_bytes_are_told_of_their_reader() -> None:
    strategy = Strategy(partition={"x": C({"sample": 2}), "fc1": C({"n": 2})})
    rows = {
        one.op: one
        for one in run(Scenario(vgg_fc1(64), cluster("link", 2), COSTS, strategy)).splits
    }
    assert rows["fc1"].bytes_in == 64 * 25088 * 4
    assert rows["dw"].sync_bytes == 0


def test_steps_without_splits_have_no_such_table() -> None:
    report = run(Scenario(linears(), cluster(), COSTS, Strategy({"*": "gpu:0"})))
    assert report.splits == ()
    assert "splits" not in report.to_json()


def test_the_same_split_gives_the_same_graph() -> None:
    split = {"x": C({"sample": 2}), "fc2": C({"k": 2}), "fc3": C({"n": 4})}
    one, other = parts(linears(), split), parts(linears(), dict(reversed(split.items())))
    assert one.graph == other.graph
    assert one.placement == other.placement


@pytest.mark.parametrize("queues", QUEUES)
def test_a_measured_step_of_shards_calibrates(queues: str) -> None:
    """The link's numbers come back from a trace of shards, whose transfers are regions, views and
    sums.
    """
    pytest.importorskip("scipy")
    split = {"x": C({"sample": 2}), "fc2": C({"k": 2}, ("gpu:2", "gpu:3")), "fc3": C({"n": 4})}
    strategy = Strategy(partition=split)
    trace = simulated(linears(), cluster(queues, bandwidth="5.7 GB/s", latency="13 us"), strategy)
    spans = zip(
        trace.task_graph.tasks.name, trace.start.tolist(), trace.finish.tolist(), strict=True
    )
    measured = Measured({name: ((start, finish),) for name, start, finish in spans}, "trace")
    found = calibrate(
        Scenario(linears(), cluster(queues, bandwidth="2 GB/s", latency="3 us"), COSTS, strategy),
        measured,
    )
    link = found.scenario.cluster.links[0]
    assert (float(link.latency), float(link.bandwidth)) == pytest.approx((13e-6, 5.7e9), rel=1e-3)
    assert found.fitted_s * 1e12 == pytest.approx(trace.end_ps, rel=1e-5)


# Views and collectives in graphs written by hand


def test_a_view_keeps_its_base_alive() -> None:
    """Half of a's output is read late on its own device, the other half is sent: 8 bytes live until
    the reader ends.
    """
    outputs = (
        Tensor(8, (8,), "int8"),
        Tensor(4, (4,), "int8", view_of=0),
        Tensor(4, (4,), "int8", view_of=0),
    )
    ops = [
        Op("a", outputs=outputs, time=1),
        Op("late", inputs=("a:1",), time=5),
        Op("away", inputs=("a:2",), time=1),
    ]
    on = Cluster.all_to_all("two", [Device("gpu:0"), Device("gpu:1")], bandwidth=1)
    strategy = Strategy({"a": "gpu:0", "late": "gpu:0", "away": "gpu:1"})
    trace = simulated(Graph("views", tuple(ops)), on, strategy, CostModel())
    tasks = trace.task_graph.tasks
    assert [
        int(size) for size, kind in zip(tasks.bytes, tasks.kind, strict=True) if kind == TRANSFER
    ] == [4]
    assert [memory.peak for memory in trace.memory] == [8, 4]
    assert trace.memory[0].time.tolist() == [0, 6 * 10**12]
    oracle = Oracle(Graph("views", tuple(ops)), on)
    assert oracle.evaluator("fifo") is not None
    assert oracle(strategy).peaks == (8, 4)


@pytest.mark.parametrize(
    ("views", "reason"),
    [
        (
            (Tensor(4, view_of=0),),
            r"outputs\[0\]\.view_of: must be the number of an earlier output, got 0",
        ),
        (
            (Tensor(4), Tensor(8, view_of=0)),
            r"outputs\[1\]\.view_of: has 8 bytes, more than the 4 of output 0",
        ),
        (
            (Tensor(4), Tensor(4, view_of=0), Tensor(4, view_of=1)),
            r"outputs\[2\]\.view_of: output 1 is a view itself",
        ),
        ((Tensor(4), Tensor(4, view_of=True)), r"outputs\[1\]\.view_of: must be the number"),
    ],
)
def test_bad_views(views: tuple[Tensor, ...], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        Graph("bad", (Op("a", outputs=views),))


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (
            ring(["gpu:0"], ("a",)),
            r"ops\[2\]\.attrs\.ranks: must name two devices at least, each once",
        ),
        (
            ring(["gpu:0", "gpu:0"]),
            r"ops\[2\]\.attrs\.ranks: must name two devices at least, each once",
        ),
        (ring("gpu:0"), r"ops\[2\]\.attrs\.ranks: must name two devices at least, each once"),
        (
            ring(["gpu:0", "gpu:9"]),
            r'ops\[2\]\.attrs\.ranks\[1\]: no device that runs ops is named "gpu:9"',
        ),
        (
            ring(["gpu:0", "gpu:1", "gpu:2"]),
            r"ops\[2\]\.inputs: 3 ranks need as many inputs and outputs",
        ),
        (
            ring(["gpu:0", "gpu:1"], size=4),
            r"ops\[2\]\.inputs: all inputs and outputs must have the same bytes",
        ),
        (ring(["gpu:0", "gpu:2"]), r'ops\[2\]\.inputs\[1\]: "b" lies on gpu:1, rank 1 is gpu:2'),
    ],
)
def test_bad_collectives(graph: Graph, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        lower(graph, cluster(), CostModel(), Strategy({"a": "gpu:0", "b": "gpu:1", "sum": "gpu:0"}))


def test_the_checker_knows_what_a_collective_sends() -> None:
    trace = simulated(
        ring(["gpu:0", "gpu:1"]), cluster(), Strategy({"a": "gpu:0", "*": "gpu:1"}), CostModel()
    )
    assert [memory.peak for memory in trace.memory[:2]] == [16, 16]
    tasks = trace.task_graph.tasks
    wrong = tasks.bytes.copy()
    wrong[tasks.kind.index(COLLECTIVE)] -= 1
    task_graph = replace(trace.task_graph, tasks=replace(tasks, bytes=wrong))
    found = check(task_graph, Trace(task_graph, trace.start, trace.finish, trace.engine))
    assert [one.rule for one in found] == ["bytes"]


# What follows from leaves alone is there where it is read


def relu(name: str, read: str) -> Op:
    return Op(name, "relu", inputs=(read,), outputs=(tensor(8, 4),))


HALVES = {"half": C({"d0": 2}, ("gpu:0", "gpu:1"))}


@pytest.mark.parametrize(("whole", "sizes"), [("gpu:0", [128, 64]), ("gpu:1", [64, 128])])
def test_a_device_keeps_one_copy_of_a_weight_that_holds_all_that_is_read_there(
    whole: str, sizes: list[int]
) -> None:
    graph = Graph("read twice", (parameter("w", 8, 4), relu("half", "w"), relu("all", "w")))
    task_graph = lower(graph, cluster(), COSTS, Strategy({"all": whole}, partition=HALVES))
    buffers = task_graph.buffers
    kept = zip(buffers.name, buffers.device.tolist(), buffers.bytes.tolist(), strict=True)
    assert [row[1:] for row in kept if row[0].startswith("w#")] == list(enumerate(sizes))


def test_what_a_weight_alone_makes_is_computed_where_it_is_read_and_no_sample_is() -> None:
    made = relu("made", "w"), relu("half", "made")
    graph = Graph("of a weight", (parameter("w", 8, 4), *made))
    tasks = lower(graph, cluster(), COSTS, Strategy(partition=HALVES)).tasks
    places = dict(zip(tasks.name, tasks.source.tolist(), strict=True))
    assert places == {"w#0": 0, "w#1": 1, "made#0": 0, "made#1": 1, "half#0": 0, "half#1": 1}
    samples = Graph("of samples", (leaf("w", 8, 4), *made))
    with pytest.raises(InputError, match='op "made" has no device, is not split'):
        lower(samples, cluster(), COSTS, Strategy(partition=HALVES))
