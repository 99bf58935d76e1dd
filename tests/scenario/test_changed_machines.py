"""A change of a machine touches its own parts alone, and stops at the most that a rate may be."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from simdev.costs import CostModel
from simdev.execution.changes import (
    FLOPS,
    LINKS,
    MOST_MEMORY,
    NETWORK,
    kinds_of,
    links_of,
    with_datasheets,
    with_hosts,
    with_launches,
    with_links,
    with_memories,
    with_microbatches,
)
from simdev.execution.scenario import Scenario, load_scenario
from simdev.ground.units import MAX_BYTES, MAX_FLOPS
from simdev.nouns.cluster import Cluster, Device, Host, Link
from simdev.nouns.graph import Graph
from simdev.nouns.strategy import Strategy
from worlds.costs import SPEC
from worlds.scenarios import pipelined

TWO_LAYERS = {"model": "gpt-1.7b", "layers": 2}

GRAPH = Host("graph", launch="12 us")


MACHINES = Cluster(
    "machines",
    (
        Device("a", memory=100, host=GRAPH),
        Device("b"),
        Device("nic", "switch"),
        Device("switch", "switch", node=2),
        Device("far", node=1),
    ),
    (
        Link(("a", "b"), 8, 2, kind="nvlink"),
        Link(("a", "nic"), 4, 1, kind="nic"),
        Link(("nic", "switch"), 4, 1, kind="network"),
        Link(("far", "switch"), 4, 1, kind="ethernet"),
    ),
)
"""Two devices of a node with an adapter, a device of another node, and a switch between."""


ALONE = Scenario(Graph("none", ()), MACHINES, CostModel(specs=(SPEC,)), Strategy({"*": "a"}))


def test_links_are_of_the_network_by_their_ends_or_by_their_kind() -> None:
    cluster = MACHINES
    assert links_of(cluster, network=False) == [0]
    assert links_of(cluster, network=True) == [1, 2, 3]
    assert kinds_of(cluster, LINKS) == ["nvlink"]
    assert kinds_of(cluster, NETWORK) == ["ethernet", "nic"]
    assert kinds_of(cluster, FLOPS) == []


def test_links_change_where_they_are_asked_to() -> None:
    cluster = MACHINES
    assert with_links(cluster, 2, rows=()) is with_links(cluster, rows=[0]) is cluster
    one = with_links(cluster, 3, 2, rows=[0])
    assert one.links[1:] == cluster.links[1:]
    assert (one.links[0].bandwidth, one.links[0].latency) == (24, 4)
    assert (one.links[0].measured_bandwidth, one.links[0].measured_latency) == (8, 2)
    assert with_links(cluster, later=3).links[0] == replace(
        cluster.links[0], latency=6, measured_latency=2
    )
    assert [link.bandwidth for link in with_links(cluster, 2).links] == [16, 8, 8, 8]
    assert with_links(cluster, MAX_BYTES).links[0].bandwidth == MAX_BYTES


def test_memories_grow_where_they_have_a_limit() -> None:
    def memories(larger: Fraction | int) -> list[int | None]:
        return [device.memory for device in with_memories(MACHINES, larger).devices]

    assert memories(2) == [200, None, None, None, None]
    assert memories(Fraction(1, 3)) == [33, None, None, None, None]
    assert memories(MAX_BYTES) == [MAX_BYTES, None, None, None, None]


def test_hosts_launch_faster_where_there_are_any() -> None:
    first, *others = with_launches(MACHINES, 3).devices
    assert first.host == replace(GRAPH, launch="4 us")
    assert tuple(others) == MACHINES.devices[1:]


def test_a_datasheet_changes_in_what_is_asked_for_alone() -> None:
    spec = replace(
        SPEC, sustained={"bfloat16": Fraction(8 * 10**13)}, burst={"bfloat16": Fraction(9 * 10**13)}
    )
    plain = replace(ALONE, costs=CostModel(specs=(spec,)))
    (computing,) = with_datasheets(plain, 2).costs.specs
    assert computing == replace(
        spec,
        flops={"bfloat16": Fraction(2 * 10**14)},
        sustained={"bfloat16": Fraction(16 * 10**13)},
        burst={"bfloat16": Fraction(18 * 10**13)},
    )
    (moving,) = with_datasheets(plain, moving=2).costs.specs
    assert moving == replace(spec, memory_bandwidth=Fraction(2 * 10**12))
    assert with_datasheets(plain, 2, 2) == with_datasheets(with_datasheets(plain, 2), moving=2)
    (most,) = with_datasheets(plain, 10**12, 10**12).costs.specs
    assert most.flops == {"bfloat16": MAX_FLOPS}
    assert most.memory_bandwidth == MOST_MEMORY == 10**18


def test_another_number_of_microbatches_is_another_global_batch() -> None:
    spread = load_scenario(pipelined(TWO_LAYERS, tp=8, microbatches=4, global_batch=4))
    assert with_microbatches(spread, 4) is spread
    told = with_microbatches(spread, 6).strategy.pipeline
    assert told == replace(spread.strategy.pipeline, microbatches=6, global_batch=None)
    whole = ALONE
    assert with_microbatches(whole, 4) is whole


def test_faster_hosts_dispatch_and_are_reached_faster() -> None:
    told = {"offload": ["activations"], "host_bandwidth": "51 GB/s"}
    plain = load_scenario(pipelined(TWO_LAYERS | {"host_time": {"forward": "8 us"}}, tp=8, **told))
    assert with_hosts(plain, 1) is plain
    faster = with_hosts(plain, 2)
    assert faster.graph.host_time == {
        phase: time / 2 for phase, time in plain.graph.host_time.items()
    }
    assert faster.strategy.pipeline.host_rate == 102 * 10**9
    assert with_hosts(plain, MAX_BYTES).strategy.pipeline.host_rate == MAX_BYTES
