"""The oracle on clusters with hosts: closed forms, and by == what lowering and the engine say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simdev import Oracle
from simdev.cluster import Cluster, Device, Host
from simdev.graph import Graph, Op
from simdev.strategy import Order


def chain(*times: tuple[int, int], **fields: object) -> Graph:
    """Ops that read nothing, of (host, device) times in ps."""
    ops = [
        Op(f"o{i}", time=f"{device} ps", host_time=f"{host} ps", **fields)
        for i, (host, device) in enumerate(times)
    ]
    return Graph("chain", tuple(ops))


def devices(count: int, host: Host | None) -> Cluster:
    """So many devices of one node, with UNIT between them."""
    gpus = [Device(f"g{d}") for d in range(count)]
    return replace(Cluster.all_to_all("hosted", gpus, bandwidth="1 TB/s"), host=host)


def step(graph: Graph, host: Host, placement: list[int] | None = None, policy: str = "fifo") -> int:
    """The step time in ps, which the compiled path must know."""
    placement = placement or [0] * len(graph.ops)
    oracle = Oracle(graph, devices(max(placement) + 1, host), order=Order(policy))
    assert oracle.evaluator(policy) is not None
    assert oracle(placement).step_ps == oracle.step_ps(placement)
    return oracle.step_ps(placement)


@pytest.mark.parametrize("policy", ["fifo", "program"])
@pytest.mark.parametrize(("host", "device"), [(3, 7), (7, 3), (5, 5), (0, 4), (4, 0), (0, 0)])
def test_the_slower_of_host_and_device_holds_the_step(host, device, policy):
    graph, count = chain(*[(host, device)] * 9), 9
    longer = host + count * device if device >= host else count * host + device
    for ahead in (2, 3, 9, 1024):
        assert step(graph, Host(ahead=ahead), policy=policy) == longer
    assert step(graph, Host(ahead=1), policy=policy) == count * (host + device)
    assert step(graph, Host(mode="none"), policy=policy) == count * device
    assert step(graph, Host(mode="graph", launch="2 ps"), policy=policy) == 2 + count * device


@pytest.mark.parametrize("threads", ["device", "node"])
def test_an_op_that_blocks_leaves_the_host_behind(threads):
    blocking = chain(*[(3, 7)] * 9, blocks_host=True)
    assert step(blocking, Host(threads=threads)) == 9 * 10
    ops = (*chain(*[(3, 7)] * 4).ops, replace(blocking.ops[4], name="item"), *blocking.ops[5:])
    assert step(Graph("some", ops), Host(threads=threads)) == 3 + 5 * 7 + 4 * 10


def test_a_host_far_ahead_fills_what_it_would_leave():
    graph = chain(*[(10, 2)] * 10, *[(2, 10)] * 10)
    assert step(graph, Host()) == 202


def test_one_thread_of_a_node_serves_its_devices_in_turn():
    graph = chain(*[(5, 1)] * 8)
    assert step(graph, Host(), [0, 1] * 4) == 4 * 5 + 1
    assert step(graph, Host(threads="node"), [0, 1] * 4) == 8 * 5 + 1
    assert step(graph, Host("graph", threads="node", launch="5 ps"), [0, 1] * 4) == 2 * 5 + 4


def test_launches_count_against_what_a_host_may_be_ahead():
    graph = chain(*[(1, 10)] * 6, launches=2)
    assert step(graph, Host(ahead=2)) == step(chain(*[(1, 10)] * 6), Host(ahead=1)) == 66
    assert step(graph, Host(ahead=4)) == step(chain(*[(1, 10)] * 6), Host(ahead=2)) == 61
