"""The oracle against lower and simulate, by ==: step time, every peak, feasibility and excess,
starts and finishes.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings

from benchmarks import common
from simdev import Oracle
from simdev.ground.errors import DeadlockError, InputError
from simdev.nouns.cluster import QUEUES, TRANSFERS, Cluster, Device, Link
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.strategy import Order, Strategy
from worlds.clusters import UNIT, devices, joined
from worlds.graphs import chain, op
from worlds.scenarios import World, column, expected, make_world, oracle_of, placed, worlds
from worlds.tape import Tape, drawn

POLICIES = ("fifo", "fifo", "fifo", "priority", "fixed", "program")


# Random questions: worlds, with kinds of device, groups, parameters, and times of
# any magnitude


def varied_op(tape: Tape, one: Op, scale: int, group: str | None) -> Op:
    """The op with times by kind of device, more that it keeps in memory, and perhaps a group."""
    times = {kind: Fraction(tape.pick(0, 1, 2, 3) * scale, UNIT) for kind in ("gpu", "tpu", "cpu")}
    owns = tape.pick(0, 0, 1, 3)
    return replace(
        one,
        kind=tape.pick("op", "op", "parameter"),
        time=tape.pick(one.time * scale, times),
        param_bytes=owns,
        grad_bytes=owns,
        state_bytes=2 * owns,
        colocate=group,
    )


def make_question(tape: Tape) -> World:
    """A world varied; ops of the first group stand together."""
    world = make_world(tape, POLICIES, QUEUES, TRANSFERS)
    scale = tape.pick(1, 1, 7, 1000, 10**9)
    fixed = world.strategy.order.policy == "fixed"
    devices = tuple(
        replace(one, kind=tape.pick("gpu", "tpu"), gap=one.gap * scale)
        if one.kind == "gpu"
        else one
        for one in world.cluster.devices
    )
    links = tuple(
        replace(
            link,
            bandwidth=link.bandwidth / scale,
            latency=link.latency * scale,
            gap=link.gap * scale,
        )
        for link in world.cluster.links
    )
    world = world.but(cluster=replace(world.cluster, devices=devices, links=links))
    groups = [None if fixed else tape.pick(None, None, "one", "two") for _ in world.graph.ops]
    names = iter(groups)
    world = world.with_ops(lambda one: varied_op(tape, one, scale, next(names)))
    place, first = column(world), {}
    return placed(
        world,
        [
            first.setdefault(group, d) if group else d
            for group, d in zip(groups, place, strict=True)
        ],
    )


def moved(tape: Tape, world: World) -> World:
    """The same with every unit of placement elsewhere."""
    hosts = [d for d, device in enumerate(world.cluster.devices) if device.runs_ops]
    found = [0] * len(world.graph.ops)
    for members in oracle_of(world).groups:
        device = tape.pick(*hosts)
        for i in members:
            found[i] = device
    return placed(world, found)


def make_questions(tape: Tape) -> list[World]:
    """One question at several placements (under fixed sequences only its own)."""
    world = make_question(tape)
    more = 0 if world.strategy.order.policy == "fixed" else 2
    return [world, *(moved(tape, world) for _ in range(more))]


def equals_lower_and_simulate(questions: list[World]) -> None:
    oracle = oracle_of(questions[0])
    for world in questions:
        cost = expected(world)
        assert oracle(column(world)) == cost
        assert oracle.step_ps(column(world)) == cost.step_ps
        assert oracle(world.strategy) == cost
        assert cost.feasible == (cost.memory_excess == 0)


@settings(max_examples=500)
@given(drawn(make_questions))
def test_the_oracle_equals_lower_and_simulate(questions):
    equals_lower_and_simulate(questions)


@pytest.mark.slow
@settings(max_examples=5000)
@given(drawn(make_questions))
def test_it_does_on_many_more_questions(questions):
    equals_lower_and_simulate(questions)


@settings(max_examples=500)
@given(worlds(policies=("fifo", "program")))
def test_starts_and_finishes_equal_those_of_the_trace(world):
    oracle = oracle_of(world)
    staged = any(device.staging for device in world.cluster.devices)
    short = oracle.evaluator(world.strategy.order.policy)
    assert (short is None) == (staged or world.cluster.queues == "fair")
    if short is not None:
        ops = len(world.graph.ops)
        start, finish = short.starts(np.array(column(world)))
        assert start.tolist() == world.trace.start[:ops].tolist()
        assert finish.tolist() == world.trace.finish[:ops].tolist()


def test_program_order_of_a_file_that_is_not_sorted_is_simulated():
    ops = (Op("b", inputs=("a",), time="1 ms"), Op("a", time="1 ms", outputs=(Tensor(8),)))
    cluster = joined(2, prefix="gpu:", bandwidth="1 GB/s")
    oracle = Oracle(Graph("backwards", ops), cluster, order=Order("program"))
    assert oracle.evaluator("fifo") is not None
    assert oracle.evaluator("program") is None
    assert oracle([0, 1]).step_ps == 2 * 10**9 + 8000
    with pytest.raises(DeadlockError):
        oracle([0, 0])


@pytest.mark.parametrize("transfer", TRANSFERS)
@pytest.mark.parametrize("queues", QUEUES)
def test_at_full_size(queues, transfer):
    """300 ops of realistic random times and sizes on 9 devices, and memory that some placements
    exceed.
    """
    prepared = common.layered(300, 9, queues, seed=1)
    devices = tuple(
        replace(device, memory=5 * 10**6 * (d + 1))
        for d, device in enumerate(prepared.cluster.devices)
    )
    cluster = replace(prepared.cluster, devices=devices, transfer=transfer)
    world = World(prepared.graph, cluster, Strategy())
    oracle, rng = oracle_of(world), np.random.default_rng(5)
    for most in (1, 2, 9, 9):
        question = placed(world, rng.integers(0, most, 300).tolist())
        assert oracle(column(question)) == expected(question)


@pytest.mark.parametrize("count", [62, 63, 70])  # sets of devices fit an integer, or do not
def test_many_devices_of_one_op_each(count):
    """A root that everyone reads."""
    ops = [op("root", 1, size=3), *(op(f"o{i}", i % 3, "root", size=1) for i in range(count - 1))]
    for queues in ("half-duplex", "link"):
        cluster = joined(count, queues)
        place = [*range(1, count), 0]  # the root on the second
        world = World.of(ops, cluster, place)
        assert oracle_of(world)(place) == expected(world)


# Too large for the keys of the short path


def test_instants_beyond_a_key_are_counted_from_later_on():
    """(time, round, op) needs more than 63 bits, though each fits: 1,000 s and 200 ops of no length
    among 1,000.
    """
    ops = [op(f"o{i}", 0, *([f"o{i - 1}"] if i % 3 else []), size=1) for i in range(1000)]
    ops = [
        replace(one, time=f"{i % 7} s" if i < 300 else "1 ps" if i < 800 else 0)
        for i, one in enumerate(ops)
    ]
    cluster = joined(2)
    world = World.of(ops, cluster, [0, 1] * 500)
    oracle = oracle_of(world)
    compiled = oracle.evaluator("fifo")
    assert compiled is not None
    assert compiled.cost(np.array(column(world))) == expected(world)
    assert oracle.step_ps(column(world)) == expected(world).step_ps


def test_what_waits_too_far_apart_for_keys_is_simulated():
    """An op of a day and a thousand of a second are under way at once."""
    ops = [op("long", 0), *chain(*[0] * 999, size=1).ops, op("end", 0, "long", "o998")]
    ops = [replace(one, time="1e5 s" if one.name == "long" else "1 s") for one in ops]
    cluster = joined(2)
    world = World.of(ops, cluster, [0, *[1] * 999, 0])
    oracle = oracle_of(world)
    compiled = oracle.evaluator("fifo")
    assert compiled is not None
    assert compiled.cost(np.array(column(world))) is None
    assert compiled.starts(np.array(column(world))) is None
    assert oracle(column(world)) == expected(world)
    assert oracle.step_ps(column(world)) == expected(world).step_ps


def test_a_transfer_of_years_hurts_only_who_asks_for_it():
    slow = Link(("g0", "g1"), Fraction(1, 10**6))  # a tensor would take years over it
    cluster = Cluster("slow", tuple(devices(2)), (slow,))
    world = World.of([op("a", 1, size=10**6), op("b", 1, "a")], cluster, [0, 0])
    oracle = oracle_of(world)
    assert oracle([0, 0]) == expected(world)
    with pytest.raises(InputError, match="more than 53 days"):
        oracle([0, 1])


def test_sizes_that_could_overflow_are_lowered():
    ops = [op("a", 1, size=2**60), *(op(f"b{i}", 1, "a", size=2**60) for i in range(4))]
    cluster = joined(4, memory=1, bandwidth=2**60)
    world = World.of(ops, cluster, [0] * 5)
    oracle = oracle_of(world)
    with pytest.raises(InputError, match="all sizes together exceed"):
        oracle([0] * 5)
    with pytest.raises(InputError, match="all sizes together exceed"):
        expected(world)


def test_durations_that_could_overflow_are_lowered():
    ops = [replace(op(f"o{i}", 0), time={"gpu": 1, "cpu": "4e6 s"}) for i in range(5)]
    world = World.of(ops, Cluster("two", (Device("g0"), Device("c0", "cpu"))), [0] * 5)
    assert oracle_of(world)([0] * 5) == expected(world)
    with pytest.raises(InputError, match="53 days"):
        oracle_of(world)([1] * 5)
