"""Steps that follow one another: a parameter waits for its updates, wherever these run."""

from __future__ import annotations

import numpy as np
import pytest

from simdev.costs import CostModel
from simdev.execution.check import check
from simdev.execution.engine import simulate
from simdev.execution.period import Steady, steady_state
from simdev.execution.scenario import Scenario, execute
from simdev.nouns.cluster import Cluster, Device, Host
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.strategy import Configuration, Order, Strategy, sync_policy
from simdev.nouns.trace import Trace
from worlds.clusters import machines

PS = 10**12


def offloaded(workers: int = 1, seconds: int = 5) -> tuple[Graph, dict[str, str]]:
    """On each worker 1 s forward and 1 s backward; its update of so many seconds runs elsewhere."""
    ops: list[Op] = []
    placement: dict[str, str] = {}
    for r in range(workers):
        own = [
            Op(f"x.{r}", "input", outputs=(Tensor(8),), time=0),
            Op(f"w.{r}", "parameter", outputs=(Tensor(8),), param_bytes=8, time=0),
            Op(f"f.{r}", inputs=(f"x.{r}", f"w.{r}"), outputs=(Tensor(8),), time=1),
            Op(f"g.{r}", phase="backward", inputs=(f"f.{r}",), outputs=(Tensor(8),), time=1),
        ]
        placement |= {op.name: f"gpu:{r}" for op in own}
        ops += own
    for r in range(workers):
        update = Op(f"u.{r}", phase="update", inputs=(f"w.{r}", f"g.{r}"), time=seconds)
        placement[update.name] = "host:0"
        ops.append(update)
    return Graph("offloaded", tuple(ops)), placement


def agreed(graph: Graph, strategy: Strategy, cluster: Cluster) -> tuple[Trace, Steady]:
    """The trace on which both engines and the checker agree, and how its steps repeat."""
    trace = execute(Scenario(graph, cluster, CostModel(), strategy, steps="repeated")).trace
    other = simulate(trace.task_graph, "compiled")
    assert np.array_equal(trace.start, other.start)
    assert np.array_equal(trace.finish, other.finish)
    assert check(trace.task_graph, trace) == ()
    steady = steady_state(trace)
    assert steady is not None
    return trace, steady


@pytest.mark.parametrize("order", ["fifo", "priority", "program"])
@pytest.mark.parametrize("host", [None, Host("eager", 3, "device", 0)])
@pytest.mark.parametrize("seconds", [0, 5])
def test_a_parameter_waits_for_its_update_on_another_device(
    order: str, host: Host | None, seconds: int
) -> None:
    """Forward, backward and the gradient's way (1 s each), then the update."""
    graph, placement = offloaded(seconds=seconds)
    cluster = machines(1, host=True)
    devices = tuple(Device(d.name, d.kind, host=host) for d in cluster.devices)
    cluster = Cluster(cluster.name, devices, cluster.links, cluster.queues)
    trace, steady = agreed(graph, Strategy(placement, Order(order)), cluster)
    assert steady.repeats
    assert steady.period_ps == (3 + seconds) * PS
    assert trace.memory[0].peak == 8 + 8 + 8  # w, and of one step x and f, then f and g


@pytest.mark.parametrize("count", [1, 3])
def test_microbatches_come_before_an_update_on_another_device(count: int) -> None:
    graph, placement = offloaded()
    _, steady = agreed(graph, Strategy(placement, accumulate=count), machines(1, host=True))
    assert steady.period_ps == (2 * count + 1 + 5) * PS


@pytest.mark.parametrize(("policy", "seconds"), [("bulk-synchronous", 14), ("local-sgd", 11)])
def test_policies_wait_for_updates_on_another_device(policy: str, seconds: int) -> None:
    """Two workers, whose updates (5 s) take turns on one host: 2 s forward and backward, 1 s for
    the sum and 1 s to the host; of a round of four, 3 s before the host, which then is always busy,
    and 1 s for the average.
    """
    graph, placement = offloaded(2)
    ops = {op.name: op for op in graph.ops}
    sums = Op("sum", "all_reduce", "backward", inputs=("g.0", "g.1"),
              outputs=(Tensor(8), Tensor(8)), attrs={"ranks": ["gpu:0", "gpu:1"]})  # fmt: skip
    for r in range(2):
        updates = Op(f"u.{r}", phase="update", inputs=(f"w.{r}", f"sum:{r}"), time=5)
        ops[updates.name] = updates
    graph = Graph("synchronised", (*ops.values(), sums))
    strategy = Strategy(placement | {"sum": "gpu:0"}, sync=sync_policy(policy))
    trace, steady = agreed(graph, strategy, machines(2, host=True))
    assert steady.repeats
    assert steady.period_ps == seconds * PS
    assert {memory.peak for memory in trace.memory} <= {24, 32}


def dense(parts: int) -> tuple[Graph, Strategy]:
    """1 s forward, 1 s backward, over so many GPUs; the one update of 5 s runs on a host."""
    rows, weight = Tensor(128, (8, 4), "float32"), Tensor(64, (4, 4), "float32")
    ops = (
        Op("x", "input", outputs=(rows,), time=0),
        Op("w", "parameter", outputs=(weight,), param_bytes=64, time=0),
        Op("f", "linear", inputs=("x", "w"), outputs=(rows,), attrs={"transpose_b": True}, time=1),
        Op("g", "matmul", inputs=("f", "x"), outputs=(weight,), attrs={"transpose_a": True},
           phase="backward", time=1),
        Op("u", "sgd_update", phase="update", inputs=("w", "g"), time=5),
    )  # fmt: skip
    devices = tuple(f"gpu:{i}" for i in range(parts))
    axes = {"x": "d0", "f": "m", "g": "k"}
    splits = {op: Configuration({axis: parts}, devices, "divided") for op, axis in axes.items()}
    return Graph("dense", ops), Strategy(placement={"u": "host:0"}, partition=splits)


@pytest.mark.parametrize(
    ("parts", "seconds"),
    [
        (1, 1 + 1 + 1 + 5),  # the gradient takes a second to the host
        (2, 0.5 + 0.5 + 1 + 1 + 5),  # a sum of the gradients comes before its way to the host
    ],
)
def test_parts_of_a_parameter_wait_for_its_update_on_another_device(
    parts: int, seconds: float
) -> None:
    """The update reads a copy of the parameter of its own, on its own device."""
    graph, strategy = dense(parts)
    gpus = tuple(Device(f"gpu:{i}") for i in range(2))
    cluster = Cluster.all_to_all(
        "c", (*gpus, Device("host:0", "cpu")), bandwidth=64, queues="device"
    )
    _, steady = agreed(graph, strategy, cluster)
    assert steady.repeats
    assert steady.period_ps == seconds * 10**12


def test_a_part_waits_for_the_parts_of_the_update_that_overlap_with_it() -> None:
    """A weight of two parts: each is updated on a host of its own, in 2 s and in 2 s."""
    graph, _ = dense(1)
    devices = ("gpu:0", "gpu:1")
    hosts = ("host:0", "host:1")
    splits = {
        "f": Configuration({"n": 2}, devices, "divided"),
        "g": Configuration({"m": 2}, devices, "divided"),
        "u": Configuration({"d0": 2}, hosts, "divided"),
    }
    gpus = [Device(name) for name in devices]
    cpus = [Device(name, "cpu") for name in hosts]
    cluster = Cluster.all_to_all("c", (*gpus, *cpus), bandwidth=64, queues="device")
    trace, _ = agreed(graph, Strategy(partition=splits), cluster)
    names, count = trace.task_graph.tasks.name, len(trace.start) // trace.task_graph.steps
    start = dict(zip(names, trace.start.tolist(), strict=True))
    finish = dict(zip(names, trace.finish.tolist(), strict=True))
    assert count * trace.task_graph.steps == len(names)
    for part in range(2):
        assert start[f"f#{part}~2"] >= finish[f"u#{part}"]
