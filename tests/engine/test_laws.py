"""Laws that hold, as properties; and the anomaly museum: those that do not, with exact numbers.

Under fifo, priority and fair links less work may take longer (Graham 1966), so nothing here says
that faster is not slower, but for fixed sequences in every queue, where starts are max-plus
expressions of durations.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from simdev.execution.engine import simulate
from simdev.nouns.cluster import QUEUES, Cluster, Device, Link
from simdev.nouns.graph import Graph, Op
from worlds.clusters import UNIT
from worlds.graphs import rename
from worlds.runs import spans
from worlds.scenarios import World, worlds
from worlds.task_graphs import task_graphs

SERIAL = tuple(queues for queues in QUEUES if queues != "fair")


def answer(world: World) -> tuple[object, ...]:
    """Everything that a run answers, names left out."""
    memory = [
        (one.time.tolist(), one.level.tolist(), one.peak, one.excess) for one in world.trace.memory
    ]
    return spans(world.trace), world.step, memory


def times(world: World) -> list[int]:
    return [int(Fraction(one.time) * UNIT) for one in world.graph.ops]


# Laws under every policy


@settings(max_examples=250)
@given(task_graphs(), st.integers(2, 1000))
def test_scaling_all_times_scales_every_instant(task_graph, k):
    columns = ("duration", "lag", "gap")
    longer = {name: getattr(task_graph.tasks, name) * k for name in columns}
    scaled = replace(task_graph, tasks=replace(task_graph.tasks, **longer))
    once, more = spans(simulate(task_graph)), spans(simulate(scaled))
    assert more == tuple([k * time for time in column] for column in once)


@settings(max_examples=150)
@given(worlds(queues=SERIAL), st.integers(2, 9))
def test_scaling_times_and_sizes_scales_the_step(world, k):
    def larger(one: Op) -> Op:
        outputs = tuple(replace(tensor, bytes=tensor.bytes * k) for tensor in one.outputs)
        return replace(one, time=Fraction(one.time) * k, outputs=outputs)

    assume(not any(device.chunk for device in world.cluster.devices))
    world = world.with_links(bandwidth=UNIT)
    devices = tuple(replace(device, gap=device.gap * k) for device in world.cluster.devices)
    links = tuple(
        replace(link, latency=link.latency * k, gap=link.gap * k) for link in world.cluster.links
    )
    slow = world.but(cluster=replace(world.cluster, devices=devices, links=links)).with_ops(larger)
    assert slow.step == k * world.step


@settings(max_examples=200)
@given(worlds())
def test_renaming_devices_changes_nothing(world):
    names = {device.name: f"renamed {device.name[::-1]}" for device in world.cluster.devices}
    devices = tuple(replace(device, name=names[device.name]) for device in world.cluster.devices)
    links = tuple(
        replace(link, ends=(names[link.ends[0]], names[link.ends[1]]))
        for link in world.cluster.links
    )
    placement = {name: names[device] for name, device in world.strategy.placement.items()}
    assume(world.strategy.order.policy != "fixed")  # its queues are named after devices
    renamed = World(
        world.graph,
        replace(world.cluster, devices=devices, links=links),
        replace(world.strategy, placement=placement),
    )
    assert answer(renamed) == answer(world)


@settings(max_examples=200)
@given(worlds(policies=("fifo", "program")))
def test_renaming_ops_changes_nothing(world):
    names = {one.name: f"{9 - int(one.name[1:])} renamed" for one in world.graph.ops}
    renamed = world.with_ops(
        lambda one: replace(
            one,
            name=names[one.name],
            inputs=tuple(rename(names, text) for text in one.inputs),
            control_inputs=tuple(names[text] for text in one.control_inputs),
        )
    ).but(
        strategy=replace(
            world.strategy, placement={names[o]: d for o, d in world.strategy.placement.items()}
        )
    )
    assert answer(renamed) == answer(world)


@settings(max_examples=200)
@given(worlds(), st.randoms(use_true_random=False))
def test_the_order_of_links_inputs_and_placement_entries_changes_nothing(world, random):
    def shuffled(values: Sequence[object]) -> tuple[object, ...]:
        return tuple(random.sample(values, len(values)))

    turned = [
        random.choice((link, replace(link, ends=link.ends[::-1]))) for link in world.cluster.links
    ]
    placement = dict(shuffled(tuple(world.strategy.placement.items())))
    other = world.but(
        cluster=replace(world.cluster, links=shuffled(turned)),
        strategy=replace(world.strategy, placement=placement),
    ).with_ops(
        lambda one: replace(
            one, inputs=shuffled(one.inputs), control_inputs=shuffled(one.control_inputs)
        )
    )
    assert answer(other) == answer(world)


@settings(max_examples=200)
@given(worlds())
def test_a_disjoint_copy_on_devices_of_its_own_changes_nothing(world):
    assume(world.strategy.order.policy in ("fifo", "program"))
    cluster, ops = world.cluster, world.graph.ops
    again = [replace(device, name=f"{device.name}'") for device in cluster.devices]
    links = [replace(link, ends=tuple(f"{end}'" for end in link.ends)) for link in cluster.links]
    copies = [
        replace(
            one,
            name=f"{one.name}'",
            inputs=tuple(text.replace(":", "':") for text in one.inputs),
            control_inputs=tuple(f"{text}'" for text in one.control_inputs),
        )
        for one in ops
    ]
    both = World(
        Graph("both", (*ops, *copies)),
        replace(cluster, devices=(*cluster.devices, *again), links=(*cluster.links, *links)),
        replace(
            world.strategy,
            placement=world.strategy.placement
            | {f"{o}'": f"{d}'" for o, d in world.strategy.placement.items()},
        ),
    )
    start, count = both.trace.start.tolist(), len(ops)
    assert both.step == world.step
    assert start[:count] == start[count : 2 * count] == world.trace.start[:count].tolist()


@settings(max_examples=200)
@given(worlds())
def test_an_isolated_op_of_no_length_changes_nothing(world):
    """Where other ops take time and no gap stands before it: else it may cost a gap, or a round
    (see the museum).
    """
    assume(world.strategy.order.policy in ("fifo", "program"))
    devices = tuple(replace(device, gap=0) for device in world.cluster.devices)
    world = world.but(cluster=replace(world.cluster, devices=devices))
    world = world.with_ops(lambda one: replace(one, time=one.time or "1 ps"))
    device = world.strategy.placement[world.graph.ops[0].name]
    more = world.but(
        graph=Graph("more", (*world.graph.ops, Op("idle", time="0 ps"))),
        strategy=replace(world.strategy, placement={**world.strategy.placement, "idle": device}),
    )
    assert more.step == world.step


@settings(max_examples=200)
@given(worlds())
def test_an_unused_slower_device_changes_nothing(world):
    used = world.cluster.devices[0].name
    devices = (*world.cluster.devices, Device("slow", "cpu"))
    link = Link((used, "slow"), bandwidth=1, latency=1)
    more = world.but(
        cluster=replace(world.cluster, devices=devices, links=(*world.cluster.links, link))
    )
    assert spans(more.trace) == spans(world.trace)


@settings(max_examples=200)
@given(worlds(), st.sampled_from((None, 0, 1, 100)))
def test_memory_never_changes_time(world, memory):
    devices = tuple(replace(device, memory=memory) for device in world.cluster.devices)
    assert spans(world.but(cluster=replace(world.cluster, devices=devices)).trace) == spans(
        world.trace
    )


@settings(max_examples=100)
@given(worlds())
def test_units_change_nothing(world):
    in_seconds = world.with_ops(lambda one: replace(one, time=f"{float(one.time):.0e}"))
    in_nanoseconds = world.with_ops(
        lambda one: replace(one, time=f"{float(one.time * 10**9):.3f} ns")
    )
    assert answer(in_seconds) == answer(in_nanoseconds) == answer(world)


@settings(max_examples=150)
@given(worlds(policies=("fifo", "priority", "program")))
def test_all_on_one_device_takes_the_sum_of_the_work(world):
    cluster = Cluster("one", (Device("g0"),), queues=world.cluster.queues)
    placement = dict.fromkeys(world.strategy.placement, "g0")
    alone = world.but(cluster=cluster, strategy=replace(world.strategy, placement=placement))
    assert alone.step == sum(times(world))


@settings(max_examples=250)
@given(worlds())
def test_the_step_lies_between_its_bounds(world):
    tasks, work = world.task_graph.tasks, times(world)
    busy = dict.fromkeys(world.strategy.placement.values(), 0)
    for one, time in zip(world.graph.ops, work, strict=True):
        busy[world.strategy.placement[one.name]] += time
    assert max(max(busy.values()), -(-sum(work) // len(busy))) <= world.step
    if world.cluster.queues != "fair":
        assert world.step <= sum((tasks.duration + tasks.lag + tasks.gap).tolist())


@settings(max_examples=250)
@given(worlds())
def test_every_tensor_reaches_every_reader_as_often_as_the_mode_says(world):
    remote: dict[tuple[int, int], list[str]] = {}
    place = world.strategy.placement
    for one, reads in zip(world.graph.ops, world.graph.reads, strict=True):
        for producer, output in reads:
            if place[world.graph.ops[producer].name] != place[one.name]:
                remote.setdefault((producer, output), []).append(place[one.name])
    count = {
        "once-per-device": lambda to: len(set(to)),
        "per-consumer": len,
        "multicast": lambda to: 1,
    }
    tasks = world.task_graph.tasks
    sent: dict[tuple[int, int], int] = {}
    for name, kind, producer, output in zip(
        tasks.name, tasks.kind, tasks.op, tasks.output, strict=True
    ):
        whole = "#" not in name or name.endswith("#0")
        if kind == "transfer" and whole and not name.partition("#")[0].endswith("@hub"):
            sent[int(producer), int(output)] = sent.get((int(producer), int(output)), 0) + 1
    assert sent == {key: count[world.cluster.transfer](to) for key, to in remote.items()}


# Determinism

DIGEST = """
import hashlib, json
from simdev.nouns.cluster import QUEUES, TRANSFERS
from worlds.scenarios import make_world
from worlds.tape import Tape
from worlds.task_graphs import POLICIES
found = []
for seed in range(40):
    tape = Tape(hashlib.shake_256(bytes([seed])).digest(320))
    world = make_world(tape, ("fifo", "priority", "fixed"), QUEUES, TRANSFERS)
    tasks = world.task_graph.tasks
    memory = [[one.device, one.peak, one.at_peak, one.live_at_peak] for one in world.trace.memory]
    found.append([tasks.name, world.trace.start.tolist(), world.trace.finish.tolist(), memory])
print(json.dumps(found))
"""


def test_the_hash_seed_changes_nothing():
    root = str(Path(__file__).resolve().parents[2])
    answers = set()
    for seed in ("1", "random"):
        environment = os.environ | {
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": os.pathsep.join((root, f"{root}/tests")),
        }
        command = [sys.executable, "-c", DIGEST]
        answers.add(
            subprocess.run(
                command, env=environment, capture_output=True, text=True, check=True
            ).stdout
        )
    assert len(answers) == 1
    assert len(json.loads(answers.pop())) == 40
