"""Queue modes: one table by which transfers, flows, messages and collectives go; new modes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from simdev.costs import CostModel
from simdev.costs.collectives import CollectiveModel, flows_wire
from simdev.execution.scenario import Scenario, execute
from simdev.ground.errors import InputError
from simdev.lowering import Prepared, lower
from simdev.nouns import cluster as clusters
from simdev.nouns import fabric as fabrics
from simdev.nouns.cluster import QUEUE_PREFIXES, QUEUES, Cluster, Device, Link
from simdev.nouns.fabric import MODES, QUEUED, SHARED, Bank, Fabric, QueueMode
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.models.layers import Layer, layer_graph
from simdev.nouns.strategy import PRESETS, Collectives, Strategy, sync_policy
from simdev.nouns.taskgraph import COLLECTIVE, TRANSFER, TaskGraph
from simdev.oracle import Oracle
from worlds.clusters import UNIT, joined
from worlds.graphs import op
from worlds.scenarios import World, worlds
from worlds.task_graphs import judged

NODE = Bank("node", lambda device: str(device.node))
MORE = {
    "ingress": QueueMode(arriving=Bank("recv")),
    "node": QueueMode(leaving=NODE, arriving=NODE),
    "engines": QueueMode(leaving=Bank("send"), arriving=Bank("recv"), links=QUEUED),
}
"""Modes that nobody offers: each is one entry, and nothing else has to know it."""
ALL = (*QUEUES, *MORE)

LINKS = "link {0}>hub", "link hub>{1}"
HELD: dict[str, tuple[str, ...]] = {
    "parallel": (),
    "device": ("send {0}", "recv {1}"),
    "half-duplex": ("channel {0}", "channel {1}"),
    "egress": ("send {0}",),
    "link": LINKS,
    "fair": LINKS,
    "ingress": ("recv {1}",),
    "node": ("node {2}", "node {3}"),
    "engines": ("send {0}", *LINKS, "recv {1}"),
}
"""What is held, or under fair links shared, from {0} to {1}, which are of nodes {2} and {3}."""
PAIRS = {
    "source": [("a", "b"), ("a", "c")],
    "destination": [("a", "b"), ("c", "b")],
    "opposite": [("a", "b"), ("b", "a")],
    "chain": [("a", "b"), ("b", "c")],
    "apart": [("a", "b"), ("c", "d")],
}
"""Two transfers at once."""
WAITS = {
    "parallel": set(),
    "device": {"source", "destination"},
    "half-duplex": {"source", "destination", "opposite", "chain"},
    "egress": {"source"},
    "link": {"source", "destination"},
    "fair": {"source", "destination"},
    "ingress": {"destination"},
    "node": {"source", "destination", "opposite", "chain"},
    "engines": {"source", "destination"},
}
"""Which of the pairs wait for each other."""


@pytest.fixture(autouse=True, scope="module")
def more_modes() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fabrics, "MODES", {**MODES, **MORE})
        patch.setattr(clusters, "QUEUES", ALL)
        yield


def star(queues: str, count: int = 4, transfer: str = "once-per-device", **hub: Any) -> Cluster:
    """Devices a, b, .. each in a node of its own around a hub, 1 byte a picosecond each way."""
    names = [chr(ord("a") + d) for d in range(count)]
    devices = [Device(name, node=d) for d, name in enumerate(names)]
    devices.append(Device("hub", **{"kind": "switch"} | hub))
    links = tuple(Link((name, "hub"), UNIT) for name in names)
    return Cluster("star", tuple(devices), links, queues, transfer)


def holds(task_graph: TaskGraph, task: int) -> tuple[str, ...]:
    """The names of the queues that a task holds, or of the links that it shares."""
    tasks = task_graph.tasks
    assert not (len(tasks.resources[task]) and len(tasks.links[task]))
    queues = [task_graph.resources[row].name for row in tasks.resources[task].tolist()]
    return (*queues, *(task_graph.links[row] for row in tasks.links[task].tolist()))


def rows(task_graph: TaskGraph, kind: str) -> list[int]:
    return [task for task, one in enumerate(task_graph.tasks.kind) if one == kind]


def held(queues: str, source: str, destination: str) -> tuple[str, ...]:
    nodes = [ord(name) - ord("a") for name in (source, destination)]
    return tuple(name.format(source, destination, *nodes) for name in HELD[queues])


def sent(cluster: Cluster, *pairs: tuple[str, str], size: int = 10) -> TaskGraph:
    """One transfer from each first device to each second, all at once."""
    ops = [op(f"x{i}", 0, size=size) for i in range(len(pairs))]
    ops += [op(f"y{i}", 0, f"x{i}") for i in range(len(pairs))]
    place = {f"x{i}": source for i, (source, _) in enumerate(pairs)}
    place |= {f"y{i}": destination for i, (_, destination) in enumerate(pairs)}
    return lower(Graph("pairs", tuple(ops)), cluster, CostModel(), Strategy(place))


# The table


def test_the_table_has_the_modes_that_a_cluster_may_name() -> None:
    assert tuple(MODES) == QUEUES
    assert set(HELD) == set(WAITS) == set(ALL)
    for queues in QUEUES:
        fabric = Fabric(star(queues))
        assert all(queue.name.startswith(QUEUE_PREFIXES) for queue in fabric.queues)
        assert len({queue.name for queue in fabric.queues}) == len(fabric.queues)


def test_flows_hold_no_queue() -> None:
    with pytest.raises(ValueError, match="flows hold no queue"):
        QueueMode(leaving=Bank("send"), links=SHARED)


@pytest.mark.parametrize("queues", ["", "Fair", "no such"])
def test_an_unknown_mode_is_refused(queues: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even one that a cluster may name: it never runs as another."""
    with pytest.raises(InputError, match=r"queues: must be one of parallel, device, .*, got"):
        star(queues)
    monkeypatch.setattr(clusters, "QUEUES", (*ALL, queues))
    cluster = star(queues)
    graph = Graph("two", (op("x", 1, size=8), op("y", 1, "x")))
    strategy = Strategy({"x": "a", "y": "a"})
    message = rf'queues: must be one of parallel, device, .*, got "{queues}"'
    for ask in (
        lambda: Fabric(cluster),
        lambda: lower(graph, cluster, CostModel(), strategy),
        lambda: execute(Scenario(graph, cluster, CostModel(), strategy)),
        lambda: Oracle(graph, cluster)([0, 0]),
        lambda: CollectiveModel(cluster).cost("all_reduce", ["a", "b"], 8),
    ):
        with pytest.raises(InputError, match=message):
            ask()


# What is held


@pytest.mark.parametrize("queues", ALL)
def test_transfers_collectives_and_messages_hold_what_the_mode_says(queues: str) -> None:
    cluster, ways = star(queues), [held(queues, "a", "b"), held(queues, "b", "a")]
    step = sent(cluster, ("a", "b"), ("b", "a"))
    assert [holds(step, task) for task in rows(step, TRANSFER)] == ways
    assert {step.tasks.flow[task] for task in rows(step, TRANSFER)} == {queues == "fair"}
    ranks = {"ranks": ["a", "b"]}
    ops = [op("x", 0, size=8), op("y", 0, size=8)]
    ops.append(Op("c", "all_reduce", inputs=("x", "y"), outputs=(Tensor(8),) * 2, attrs=ranks))
    place = {"x": "a", "y": "b", "c": "a"}
    for cost in ("closed", "expanded"):
        strategy = Strategy(place, collectives=Collectives(cost=cost))
        whole = lower(Graph("sum", tuple(ops)), cluster, CostModel(), strategy)
        judged(whole)
        found = [holds(whole, task) for task in rows(whole, COLLECTIVE)]
        if cost == "closed":
            assert [set(names) for names in found] == [set(ways[0] + ways[1])]
        else:
            assert set(found) == set(ways)
    graph, placement = layer_graph([Layer(1, 1, 6)], ["a", "b"])
    for hold in ("together", "in-turn"):
        sync = sync_policy("p3", servers="star", hold=hold, segment=4)
        outcome = execute(Scenario(graph, cluster, CostModel(), Strategy(placement, sync=sync)))
        step = outcome.trace.task_graph
        messages = {holds(step, task) for task in rows(step, TRANSFER)}
        in_turn = hold == "in-turn" and queues != "fair" and len(HELD[queues]) > 1
        assert messages == ({(name,) for way in ways for name in way} if in_turn else set(ways))


@pytest.mark.parametrize("queues", ALL)
@pytest.mark.parametrize("pair", PAIRS)
def test_transfers_wait_for_each_other_as_the_mode_says(queues: str, pair: str) -> None:
    trace = judged(sent(star(queues), *PAIRS[pair]))
    assert trace.end_ps == (20 if pair in WAITS[queues] else 10)


@pytest.mark.parametrize("queues", ALL)
def test_a_multicast_holds_the_queues_of_all_its_routes(queues: str) -> None:
    ops = (op("x", 0, size=10), op("y", 0, "x"), op("z", 0, "x"))
    cluster = star(queues, transfer="multicast")
    step = lower(Graph("m", ops), cluster, CostModel(), Strategy({"x": "a", "y": "b", "z": "c"}))
    (task,) = rows(step, TRANSFER)
    assert set(holds(step, task)) == {*held(queues, "a", "b"), *held(queues, "a", "c")}
    assert judged(step).end_ps == 10


@pytest.mark.parametrize("queues", ALL)
def test_chunks_over_a_staging_device_follow_one_another(queues: str) -> None:
    """Two pieces of 12 ps in 3 chunks: 12 + 4 where the host receives and sends at once."""
    cluster = star(queues, 2, kind="cpu", staging=True, chunk=4, node=2)
    step = sent(cluster, ("a", "b"), size=12)
    assert judged(step).end_ps == (24 if "opposite" in WAITS[queues] else 16)
    lanes = [queue.name for queue in step.resources if queue.name.startswith("lane ")]
    assert len(lanes) == (2 if not HELD[queues] else 0)


def test_devices_of_one_owner_have_one_queue() -> None:
    devices = tuple(Device(name, node=node) for name, node in (("a", 0), ("b", 0), ("c", 1)))
    cluster = joined(devices, "node")
    fabric = Fabric(cluster)
    assert [tuple(queue) for queue in fabric.queues] == [("node 0", -1), ("node 1", 2)]
    inside = sent(cluster, ("a", "b"))
    assert holds(inside, rows(inside, TRANSFER)[0]) == ("node 0",)
    assert flows_wire(fabric, [(0, 2), (1, 2)]).bandwidth == UNIT // 2
    assert judged(sent(cluster, ("a", "b"), ("c", "a"), ("b", "c"))).end_ps == 30


def test_a_message_passes_each_link_at_its_own_rate_and_devices_at_that_of_its_route() -> None:
    devices = (Device("a"), Device("b"), Device("hub", "switch"))
    links = (Link(("a", "hub"), 8), Link(("b", "hub"), 2))
    rates = {}
    for queues in ("link", "engines", "device"):
        fabric = Fabric(Cluster("uneven", devices, links, queues))
        (segment,) = fabric.segments(0, 1) or ()
        rates[queues] = [int(rate) for _, rate in fabric.in_turn(segment)]
    assert rates == {"link": [8, 2], "engines": [2, 8, 2, 2], "device": [2, 2]}


# Everything else goes by the fabric


@settings(max_examples=200)
@given(worlds(queues=ALL))
def test_engines_oracle_and_checker_agree_in_every_mode(world: World) -> None:
    trace = judged(world.task_graph)
    oracle = Oracle(world.graph, world.cluster, order=world.strategy.order)
    assert oracle(world.strategy).step_ps == trace.end_ps
    fabric = Fabric(world.cluster)
    names = [queue.name for queue in fabric.queues]
    first = len(world.cluster.devices)
    assert [one.name for one in world.task_graph.resources][first : first + len(names)] == names


@pytest.mark.parametrize("policy", PRESETS)
@pytest.mark.parametrize("queues", ALL)
def test_every_policy_runs_in_every_mode(queues: str, policy: str) -> None:
    graph, placement = layer_graph([Layer(1, 2, 5), Layer(2, 1, 7)], ["a", "b", "c"])
    sync = sync_policy(policy)
    outcome = execute(Scenario(graph, star(queues), CostModel(), Strategy(placement, sync=sync)))
    judged(outcome.trace.task_graph)


@pytest.mark.parametrize("queues", ALL)
def test_split_ops_and_their_sums_are_costed_alike_by_oracle_and_engine(queues: str) -> None:
    from worlds.costs import COSTS  # its import builds graphs
    from worlds.split_graphs import linears

    cluster = replace(star(queues), transfer="once-per-device")
    strategy = Strategy(short="data-parallel")
    oracle = Oracle(linears(), cluster, COSTS)
    step = lower(linears(), cluster, COSTS, strategy)
    assert oracle(strategy).step_ps == judged(step).end_ps


def test_questions_on_one_cluster_share_its_routes() -> None:
    prepared = Prepared(Graph("none", ()), star("link"), CostModel())
    other = prepared.of(Graph("other", (op("x", 1),)), Collectives())
    assert other.fabric is prepared.fabric
    there = star("device")
    assert prepared.on(there).fabric.cluster is there
