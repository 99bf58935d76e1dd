"""Data parallelism over whole steps: who the workers are, and what is sent."""

from __future__ import annotations

import pytest

from simdev import Oracle, Scenario, run
from simdev.cluster import Cluster, Device
from simdev.files import read_preset
from simdev.files.device import read_device
from simdev.graph import Graph
from simdev.lowering import partition
from simdev.models import build
from simdev.profile import CostModel
from simdev.strategy import Strategy

V100 = CostModel(specs=(read_device("v100"),))
K80 = CostModel(specs=(read_device("k80"), read_device("host-cpu")))


@pytest.mark.parametrize(("preset", "gpus"), [("tofu-8x-k80", 8), ("colocrl-4x-k80", 4)])
@pytest.mark.parametrize("short", ["data-parallel", "model-parallel", "owt"])
def test_a_host_beside_accelerators_is_no_worker(preset: str, gpus: int, short: str) -> None:
    cluster, graph = read_preset(preset), build("lenet", batch=64)
    shards = partition(graph, cluster, Strategy(short=short), K80)
    assert set(shards.placement.values()) <= {f"gpu:{i}" for i in range(gpus)}
    run(Scenario(graph, cluster, K80, Strategy(short=short)))


def test_devices_that_are_named_work_whatever_they_are() -> None:
    cluster, graph = read_preset("tofu-8x-k80"), build("lenet", batch=64)
    shards = partition(graph, cluster, Strategy(short="data-parallel", devices=("gpu:0", "cpu:0")), K80)
    assert set(shards.placement.values()) == {"gpu:0", "cpu:0"}


def workers(*devices: Device) -> list[str]:
    cluster = Cluster("c", devices)
    return [cluster.devices[i].name for i in cluster.workers]


def test_hosts_work_where_there_is_nothing_else() -> None:
    assert workers(Device("a", "cpu"), Device("b", "epyc-1core"), Device("s", "switch")) == ["a", "b"]
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
    assert Oracle(graph, cluster, V100)(strategy).step_ps == run(Scenario(graph, cluster, V100, strategy)).trace.step_ps
