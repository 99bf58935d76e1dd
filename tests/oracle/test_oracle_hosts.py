"""The oracle on clusters with hosts: closed forms, and by == what lowering and the engine say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simdev import Oracle
from simdev.ground.errors import DeadlockError, InputError
from simdev.nouns.cluster import QUEUES, TRANSFERS, Host
from simdev.nouns.graph import Graph, Op
from simdev.nouns.strategy import Configuration, Order
from split_walks import make_split
from worlds.clusters import joined, limited
from worlds.costs import COSTS
from worlds.hosts import hosted
from worlds.scenarios import World, column, expected, make_world, oracle_of
from worlds.sharded import Case
from worlds.tape import Tape, drawn


def chain(*times: tuple[int, int], **fields: object) -> Graph:
    """Ops that read nothing, of (host, device) times in ps."""
    ops = [
        Op(f"o{i}", time=f"{device} ps", host_time=f"{host} ps", **fields)
        for i, (host, device) in enumerate(times)
    ]
    return Graph("chain", tuple(ops))


def step(graph: Graph, host: Host, placement: list[int] | None = None, policy: str = "fifo") -> int:
    """The step time in ps, which the compiled path must know."""
    placement = placement or [0] * len(graph.ops)
    oracle = Oracle(graph, replace(joined(max(placement) + 1), host=host), order=Order(policy))
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


# Random questions


def make_hosted(tape: Tape) -> World:
    """A world of any order, with hosts."""
    policies = ("fifo", "fifo", "fifo", "program", "priority")
    return hosted(tape, make_world(tape, policies, QUEUES, TRANSFERS))


@settings(max_examples=600)
@given(drawn(make_hosted))
def test_the_oracle_knows_hosts_as_lowering_does(world):
    oracle = oracle_of(world)
    try:
        cost = expected(world)
    except (DeadlockError, InputError) as error:
        with pytest.raises(type(error)):
            oracle(column(world))
        return
    assert oracle(column(world)) == cost
    assert oracle(world.strategy) == cost
    assert oracle.step_ps(column(world)) == cost.step_ps
    short = oracle.evaluator(world.strategy.order.policy)
    if short is not None:
        starts = short.starts(np.array(column(world)))
        ops = len(world.graph.ops)
        assert starts is not None
        assert starts[0].tolist() == world.trace.start[:ops].tolist()
        assert starts[1].tolist() == world.trace.finish[:ops].tolist()


def test_most_random_questions_take_the_short_way():
    rng = np.random.default_rng(3)
    worlds = [make_hosted(Tape(rng.bytes(320))) for _ in range(100)]
    sorted_ones = [world for world in worlds if world.graph.ops[0].name == "o0"]
    short = [oracle_of(world).evaluator("fifo") for world in sorted_ones]
    assert sum(one is not None for one in short) > len(short) / 2


@settings(max_examples=60)
@given(drawn(make_hosted), st.integers(0, 1000))
def test_moves_on_clusters_with_hosts(world, seed):
    cluster = limited(world.cluster, None)
    oracle = Oracle(world.graph, cluster, order=world.strategy.order, cache=0)
    rng, runs = np.random.default_rng(seed), list(cluster.workers)
    try:
        session = oracle.session(column(world))
    except (DeadlockError, InputError):
        return
    for _ in range(6):
        row, device = int(rng.integers(len(session.groups))), int(rng.choice(runs))
        proposed = session.placement
        proposed[list(session.groups[row])] = device
        try:
            full = oracle.in_full(oracle.strategy(proposed))
        except (DeadlockError, InputError) as error:
            with pytest.raises(type(error)):
                session.propose(row, device)
            continue
        assert session.propose(row, device).step_ps == full.step_ps
        if rng.random() < 0.5:
            assert session.accept().step_ps == full.step_ps


def test_repeated_steps_with_hosts_are_the_period():
    """Execution contract, rule 10's example."""
    graph = chain(*[(10, 2)] * 10, *[(2, 10)] * 10)
    for ahead, period in ((1024, 120), (8, 132)):
        oracle = Oracle(graph, replace(joined(1), host=Host(ahead=ahead)), steps="repeated")
        assert oracle([0] * 20).step_ps == oracle.step_ps([0] * 20) == period


# Split ops


@settings(max_examples=15)
@given(
    st.binary(min_size=900, max_size=900).map(lambda content: make_split(Tape(content))),
    st.integers(0, 1000),
)
def test_moves_of_split_ops_on_clusters_with_hosts(case: Case, seed: int) -> None:
    session = Oracle(case.graph, case.cluster, COSTS).session(case.strategy)
    rng, names = np.random.default_rng(seed), [device.name for device in case.cluster.devices]
    forward = [op.name for op in case.graph.ops if op.phase == "forward" and op.inputs]
    for _ in range(4):
        name, device = str(rng.choice(forward)), str(rng.choice(names))
        move = {name: Configuration({}, (device,))}
        moved = {**session.strategy.partition, **move}
        full = session.simulate(replace(session.strategy, partition=moved))
        assert session.propose(move) == replace(full, peaks=())
        if rng.random() < 0.5:
            assert session.accept() == replace(full, peaks=())
