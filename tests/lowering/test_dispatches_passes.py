"""Hosts under everything that a strategy does to a graph: splits, collectives, microbatches,
policies, pipelines. Both engines agree, and both judges find nothing.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from simdev.costs import CostModel
from simdev.execution.check import check, host_faults
from simdev.execution.engine import simulate
from simdev.execution.period import simulate_strategy
from simdev.files import read_strategy
from simdev.ground.errors import InputError
from simdev.lowering import Prepared, iterated, lower, lower_step, written_out
from simdev.nouns.cluster import Cluster, Device, Host
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.models.layers import Layer, layer_graph
from simdev.nouns.strategy import POLICIES, Collectives, Order, Parallelism, Strategy, sync_policy
from simdev.nouns.strategy.sync import PRESETS
from simdev.nouns.taskgraph import DISPATCH, TaskGraph
from simdev.nouns.trace import Trace
from worlds.host_worlds import PS
from worlds.split_graphs import cluster, convolutions
from worlds.task_graphs import judged

HOSTS = [
    Host(mode, ahead, threads, launch=7 * PS)
    for mode, ahead, threads in product(("eager", "graph"), (1, 3, 1024), ("device", "node"))
    if mode == "eager" or ahead == 1
]


def with_times(graph: Graph, seed: int = 0) -> Graph:
    """Ops of various lengths and host times."""
    ops = [
        replace(
            op,
            time=op.time if op.time is not None else ((7 * i + seed) % 11) * 10**4 * PS,
            host_time=((5 * i + seed) % 7) * 10**4 * PS,
            launches=(1, 2, 1, 0)[(i + seed) % 4],
        )
        for i, op in enumerate(graph.ops)
    ]
    return Graph(graph.name, tuple(ops))


def with_hosts(prepared: Prepared, strategy: Strategy, repeated: bool = False) -> Trace:
    """The trace of one step, or of three, on which all agree."""
    step = lower_step(prepared, strategy, repeated)
    task_graph = iterated(step, 3 if repeated else 1)
    trace = judged(task_graph)
    assert step.dispatches is not None
    ran = step.dispatches.prepared
    assert host_faults(ran.graph, ran.cluster, ran.costs, trace) == ()
    return trace


def dispatched(task_graph: TaskGraph) -> list[str]:
    """The names of the dispatches, in the order of their ids, which is that of the rows behind."""
    kinds = list(task_graph.tasks.kind)
    first = kinds.index(DISPATCH)
    assert set(kinds[first:]) == {DISPATCH}
    return list(task_graph.tasks.name[first:])


@pytest.mark.parametrize("host", HOSTS, ids=str)
@pytest.mark.parametrize("policy", [policy for policy in POLICIES if policy != "fixed"])
def test_split_ops_their_sums_and_all_reduces(host: Host, policy: str) -> None:
    machine = replace(cluster(devices=2), host=host)
    priority = {"dw2": 2, "conv1": -1} if policy == "priority" else {}
    strategy = Strategy({}, Order(policy, priority), short="data-parallel")
    graph = with_times(convolutions())
    divided = {"time": "divided"}
    written = written_out(graph, machine, strategy, CostModel())
    partition = {
        name: replace(configuration, **divided) for name, configuration in written.partition.items()
    }
    written = replace(written, partition=partition)
    prepared = Prepared(graph, machine, CostModel())
    for expanded in ("closed", "expanded"):
        with_hosts(prepared, replace(written, collectives=Collectives(cost=expanded)))
    with_hosts(prepared, written, repeated=True)
    with_hosts(prepared, replace(written, accumulate=3))
    with_hosts(prepared, replace(written, accumulate=2), repeated=True)


def test_pieces_are_dispatched_by_device_wherever_the_split_names_them() -> None:
    graph = with_times(convolutions())
    names = ["gpu:1", "gpu:0"]
    fields = {"split": {"sample": 2}, "devices": names, "time": "divided"}
    strategy = read_strategy({"partition": {"*": fields}})
    machine = replace(cluster(devices=2), host=Host(threads="node"))
    task_graph = lower(graph, machine, CostModel(), strategy)
    kinds, tasks = list(task_graph.tasks.kind), task_graph.tasks
    rows = [row for row, kind in enumerate(kinds) if kind == DISPATCH]
    pieces = [(tasks.name[row], int(tasks.source[row])) for row in rows]
    conv = [device for name, device in pieces if name.startswith("dispatch conv1#")]
    assert conv == [0, 1]


# The file has one worker after the other: a single thread must be far enough ahead to reach the
# second before it waits for what the first gets from there.
ABLE = [host for host in HOSTS if host.threads == "device" or host.ahead > 1]
# A thousand launches are 400 steps, which take seconds to judge.
NEAR = [replace(host, ahead=min(host.ahead, 64)) for host in ABLE]


@pytest.mark.parametrize(
    ("policy", "host"),
    [
        *product(sorted(PRESETS), NEAR),
        pytest.param("p3", Host(ahead=1024), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_policies_of_synchronisation(policy: str, host: Host) -> None:
    devices = tuple(Device(f"gpu:{d}") for d in range(2))
    graph, placement = layer_graph([Layer(1, 1, 8), Layer(1, 2, 8)], [d.name for d in devices])
    ops = (replace(op, host_time="300 ms", launches=1) for op in graph.ops)
    machine = Cluster.all_to_all("two", devices, "device", bandwidth=8)
    prepared = Prepared(Graph("g", tuple(ops)), replace(machine, host=host), CostModel())
    strategy = Strategy(placement, sync=sync_policy(policy))
    trace, step = simulate_strategy(prepared, strategy)
    assert check(trace.task_graph, trace) == ()
    assert step.dispatches is not None
    ran = step.dispatches.prepared
    assert host_faults(ran.graph, ran.cluster, ran.costs, trace) == ()
    computing = {f"dispatch {op.name}" for op in graph.ops if op.kind != "all_reduce"}
    assert host.mode == "graph" or set(dispatched(trace.task_graph)) >= computing


# Of the heads the smallest place goes first: a thread for both stages gives the second its next
# forward before the first its backward, and needs to be ahead for that.
@pytest.mark.parametrize(
    "host", [h for h in HOSTS if h.threads == "device" or h.ahead > 3], ids=str
)
@pytest.mark.parametrize("schedule", ["GPipe", "1F1B"])
def test_pipelines_over_graphs(host: Host, schedule: str) -> None:
    ops = [Op("x", "input", outputs=(Tensor(4),), time=0)]
    for k in range(4):
        ops.append(Op(f"f{k}", inputs=(ops[-1].name,), outputs=(Tensor(4),)))
    for k in reversed(range(4)):
        reads = (ops[-1].name, f"f{k}")
        forward = {"forward": f"f{k}"}
        ops.append(Op(f"b{k}", "op", "backward", reads, outputs=(Tensor(4),), attrs=forward))
    machine = replace(cluster("device", 2), host=host)
    prepared = Prepared(with_times(Graph("g", tuple(ops))), machine, CostModel())
    strategy = Strategy(pipeline=Parallelism(pp=2, microbatches=4, schedule=schedule))
    trace = with_hosts(prepared, strategy)
    with_hosts(prepared, strategy, repeated=True)
    if host.mode == "eager":
        assert len(dispatched(trace.task_graph)) == 4 * len(ops)


def three(host: Host, **fields: object) -> TaskGraph:
    """a on the first device, an all-reduce of both, b on the second."""
    ranks = ["gpu:0", "gpu:1"]
    ops = [
        Op("a", outputs=(Tensor(8),), time=1 * PS, host_time=1 * PS),
        Op("b", outputs=(Tensor(8),), time=1 * PS, host_time=1 * PS),
        Op(
            "sum", "all_reduce", inputs=("a", "b"), outputs=(Tensor(8), Tensor(8)),
            attrs={"ranks": ranks}, host_time=5 * PS,
        ),
        Op("c", inputs=("sum:1",), time=1 * PS, host_time=1 * PS),
    ]  # fmt: skip
    ops[2] = replace(ops[2], **fields)
    machine = replace(cluster("parallel", 2, bandwidth=10**12, latency=0), host=host)
    homes = {"a": "gpu:0", "b": "gpu:1", "c": "gpu:1", "sum": "gpu:0"}
    return lower(Graph("g", tuple(ops)), machine, CostModel(), Strategy(homes))


def test_a_collective_has_a_dispatch_a_rank_and_waits_for_all() -> None:
    names = ["dispatch a", "dispatch b", "dispatch sum@gpu:0", "dispatch sum@gpu:1", "dispatch c"]
    for threads, begin in (("device", 6), ("node", 12)):
        task_graph = three(Host(threads=threads))
        assert dispatched(task_graph) == names
        trace = simulate(task_graph)
        assert trace.start[list(task_graph.tasks.name).index("sum")] == begin
    assert [queue.name for queue in task_graph.resources[-1:]] == ["thread node 0"]


def test_a_collective_that_blocks_holds_the_next_op_and_not_its_own_ranks() -> None:
    task_graph = three(Host(threads="node"), blocks_host=True)
    trace = simulate(task_graph)
    at = {name: row for row, name in enumerate(task_graph.tasks.name)}
    assert trace.start[at["dispatch c"]] == trace.finish[at["sum"]]
    assert trace.start[at["dispatch sum@gpu:1"]] == trace.finish[at["dispatch sum@gpu:0"]]


def test_an_op_that_blocks_is_refused_where_graphs_are_replayed() -> None:
    with pytest.raises(InputError) as error:
        three(Host("graph"), blocks_host=True)
    assert error.value.problems == tuple(
        f'ops[2].blocks_host: "sum" makes its host wait, but "gpu:{d}" replays its step as one '
        'graph (host.mode "graph")'
        for d in range(2)
    )


def test_a_replayed_step_is_dispatched_once() -> None:
    task_graph = three(Host("graph", launch=5 * PS))
    assert dispatched(task_graph) == ["dispatch graph@gpu:0", "dispatch graph@gpu:1"]
    assert simulate(task_graph).start[0] == 5
