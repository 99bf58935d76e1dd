"""Data parallelism over whole steps: who the workers are, and what is sent."""

from __future__ import annotations

import pytest

from simdev import Oracle, Scenario, run
from simdev.costs import CostModel
from simdev.execution.check import check
from simdev.files import read_preset
from simdev.files.device import read_device
from simdev.ground.errors import InputError
from simdev.lowering import partition
from simdev.nouns.cluster import Cluster, Device
from simdev.nouns.graph import Graph, Op
from simdev.nouns.models import build
from simdev.nouns.strategy import SHORT_FORMS, Collectives, Strategy

V100 = CostModel(specs=(read_device("v100"),))
K80 = CostModel(specs=(read_device("k80"), read_device("host-cpu")))


@pytest.mark.parametrize(("preset", "gpus"), [("tofu-8x-k80", 8), ("colocrl-4x-k80", 4)])
@pytest.mark.parametrize("short", [form for form in SHORT_FORMS if form != "expert"])
def test_a_host_beside_accelerators_is_no_worker(preset: str, gpus: int, short: str) -> None:
    cluster, graph = read_preset(preset), build("lenet", batch=64)
    shards = partition(graph, cluster, Strategy(short=short), K80)
    assert set(shards.placement.values()) <= {f"gpu:{i}" for i in range(gpus)}
    run(Scenario(graph, cluster, K80, Strategy(short=short)))


def test_devices_that_are_named_work_whatever_they_are() -> None:
    cluster, graph = read_preset("tofu-8x-k80"), build("lenet", batch=64)
    shards = partition(
        graph, cluster, Strategy(short="data-parallel", devices=("gpu:0", "cpu:0")), K80
    )
    assert set(shards.placement.values()) == {"gpu:0", "cpu:0"}


def workers(*devices: Device) -> list[str]:
    cluster = Cluster("c", devices)
    return [cluster.devices[i].name for i in cluster.workers]


def test_a_single_sample_is_not_cut() -> None:
    cluster, graph = read_preset("c4140-4x-v100"), build("lenet", batch=1)
    with pytest.raises(InputError, match=r"strategy\.short: .* with more than one sample"):
        partition(graph, cluster, Strategy(short="data-parallel"), V100)


def test_hosts_work_where_there_is_nothing_else() -> None:
    assert workers(Device("a", "cpu"), Device("b", "epyc-1core"), Device("s", "switch")) == [
        "a",
        "b",
    ]
    assert workers(Device("g", "h100"), Device("b", "xeon-1core"), Device("h", "host-cpu")) == ["g"]
    assert workers(Device("g", "gpu"), Device("h", "root-complex", staging=True)) == ["g"]


def small(name: str) -> Graph:
    return build(name, batch=8, layers=1, width=64, heads=2, vocabulary=512, length=32, context=64)


@pytest.mark.parametrize("model", ["gpt2-small", "bert-base"])
def test_the_gradient_of_every_weight_is_reduced_once(model: str) -> None:
    """That of the positions too, which is made of a sum over the batch."""
    graph, strategy = small(model), Strategy(short="data-parallel", sync="all-reduce")
    cluster = read_preset("c4140-4x-v100")
    ops = partition(graph, cluster, strategy, V100).graph.ops
    weights = sorted(op.outputs[0].bytes for op in graph.ops if op.kind == "parameter")
    reduced = sorted(op.outputs[0].bytes for op in ops if op.kind == "all_reduce")
    assert reduced == weights
    assert not [op.name for op in ops if "#sum" in op.name]
    assert (
        Oracle(graph, cluster, V100)(strategy).step_ps
        == run(Scenario(graph, cluster, V100, strategy)).trace.end_ps
    )


BERT = small("bert-base")
H100 = CostModel(specs=(read_device("h100-sxm"),))
POD = read_preset("dgx-h100")
MEBI = 2**20


def buckets(graph: Graph, cluster: Cluster = POD) -> list[list[int]]:
    """Bytes of the gradients of each bucket, those first that are ready first."""
    ops = partition(graph, cluster, Strategy(short="data-parallel"), H100).graph.ops
    found = []
    for op in (op for op in ops if op.kind == "all_reduce"):
        parts = [tensor.bytes for tensor in op.outputs if tensor.view_of == 0]
        assert sum(parts) == op.outputs[0].bytes
        found.append(parts)
    return found


def test_buckets_are_those_of_distributed_data_parallel() -> None:
    """Closed at 1 MiB, then at 25; each gradient in one, as it is made (figures of PyTorch's
    DDP).
    """
    graph = build("bert-base", batch=8, layers=3)
    found = sorted(buckets(graph), key=len)
    weights = sorted(op.outputs[0].bytes for op in graph.ops if op.kind == "parameter")
    assert sorted(size for parts in found for size in parts) == weights
    closed = [parts for parts in found if sum(parts) >= 25 * MEBI or sum(parts) >= MEBI]
    assert len(closed) >= len(found) - 1
    first = [parts for parts in found if sum(parts) < 25 * MEBI]
    assert len(first) <= 2  # the first, and the last if it is not full
    assert all(sum(parts[:-1]) < 25 * MEBI for parts in found)


def test_buckets_cost_far_less_than_a_collective_a_weight() -> None:
    graph = build("bert-base", batch=16, layers=2)
    cluster = read_preset("dgx-h100", 2)
    # One ring over all: a small collective pays its latency 30 times, whatever its size.
    common = {"short": "data-parallel", "collectives": Collectives(algorithm="ring")}
    steps = {
        sync: run(Scenario(graph, cluster, H100, Strategy(**common, sync=sync)))
        for sync in ("", "bucketed", "all-reduce")
    }
    assert steps[""].step_ps == steps["bucketed"].step_ps < 0.5 * steps["all-reduce"].step_ps
    assert steps[""].transfer_bytes == steps["all-reduce"].transfer_bytes


def test_buckets_go_in_the_order_in_which_they_are_ready() -> None:
    graph = build("bert-base", batch=8, layers=3)
    trace = run(Scenario(graph, POD, H100, Strategy(short="data-parallel"))).trace
    names = trace.task_graph.tasks.name
    spans = sorted(
        (int(trace.start[i]), names[i]) for i in range(len(names)) if "#sync" in names[i]
    )
    made = {op.name: i for i, op in enumerate(graph.ops)}
    order = [made[name.partition("#")[0]] for _, name in spans]
    assert order == sorted(order)
    assert check(trace.task_graph, trace) == ()


def test_the_oracle_scores_the_default_as_run_does() -> None:
    strategy = Strategy(short="data-parallel")
    oracle, step = Oracle(BERT, POD, H100), run(Scenario(BERT, POD, H100, strategy)).step_ps
    assert (
        oracle("data-parallel").step_ps
        == oracle(strategy).step_ps
        == oracle.session("data-parallel").cost.step_ps
    )
    assert oracle(strategy).step_ps == step
    assert oracle(Strategy(short="data-parallel", sync="all-reduce")).step_ps > step


def test_gradients_that_others_read_are_reduced_by_themselves() -> None:
    """A norm over all gradients, as clipping takes it, cannot wait for a bucket that waits for
    it.
    """
    ops = list(small("gpt2-small").ops)
    gradients = [op.inputs[1] for op in ops if op.phase == "update"][:3]
    for i, name in enumerate(gradients):
        producer = next(op for op in ops if op.name == name.partition(":")[0])
        made = producer.outputs[int(name.partition(":")[2] or 0)]
        ops.append(Op(f"norm_{i}", "mul", "backward", (name, name), outputs=(made,)))
    found = partition(
        Graph("clipped", tuple(ops)), POD, Strategy(short="data-parallel"), H100
    ).graph
    rings = [op for op in found.ops if op.kind == "all_reduce"]
    alone = [op for op in rings if all(tensor.view_of is None for tensor in op.outputs)]
    assert len(alone) >= len(gradients)
