"""Laws that hold (DESIGN.md, "Laws"), as properties; and the anomaly museum: those that do not,
with exact numbers.

Under fifo, priority and fair links less work may take longer (Graham 1966), so nothing here says
that faster is not slower, but for fixed sequences in every queue, where starts are max-plus
expressions of durations.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from simdev.cluster import QUEUES, Cluster, Device, Link
from simdev.engine import simulate
from simdev.graph import Graph, Op, Tensor
from simdev.strategy import Order
from simdev.taskgraph import Rows, TaskGraph
from simdev.trace import Trace
from strategies import UNIT, World, longest_paths, op, rename, task_graphs, worlds

SERIAL = tuple(queues for queues in QUEUES if queues != "fair")


def spans(trace: Trace) -> tuple[list[int], list[int]]:
    return trace.start.tolist(), trace.finish.tolist()


def answer(world: World) -> tuple[object, ...]:
    """Everything that a run answers, names left out."""
    memory = [
        (one.time.tolist(), one.level.tolist(), one.peak, one.excess) for one in world.trace.memory
    ]
    return spans(world.trace), world.step, memory


def times(world: World) -> list[int]:
    return [int(Fraction(one.time) * UNIT) for one in world.graph.ops]


def scaled(task_graph: TaskGraph, k: int) -> TaskGraph:
    tasks = task_graph.tasks
    return replace(
        task_graph,
        tasks=replace(tasks, duration=tasks.duration * k, lag=tasks.lag * k, gap=tasks.gap * k),
    )


# Laws under every policy


@settings(max_examples=250)
@given(task_graphs(), st.integers(2, 1000))
def test_scaling_all_times_scales_every_instant(task_graph, k):
    once, more = spans(simulate(task_graph)), spans(simulate(scaled(task_graph, k)))
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


# Laws of fixed sequences in every queue


@settings(max_examples=500)
@given(task_graphs(policies=("fixed",)))
def test_starts_are_longest_paths_in_the_disjunctive_graph(task_graph):
    assert simulate(task_graph).start.tolist() == longest_paths(task_graph)


@settings(max_examples=300)
@given(worlds(policies=("fixed",), queues=SERIAL))
def test_lowered_starts_are_longest_paths_in_the_disjunctive_graph(world):
    assert world.trace.start.tolist() == longest_paths(world.task_graph)


@settings(max_examples=300)
@given(
    task_graphs(policies=("fixed",)),
    st.integers(0, 11),
    st.sampled_from(("duration", "lag", "gap")),
)
def test_fixed_a_shorter_task_is_never_slower(task_graph, task, what):
    column = np.maximum(
        getattr(task_graph.tasks, what) - (np.arange(len(task_graph.tasks)) == task), 0
    )
    faster = replace(task_graph, tasks=replace(task_graph.tasks, **{what: column}))
    assert (simulate(faster).start <= simulate(task_graph).start).all()


@settings(max_examples=300)
@given(task_graphs(policies=("fixed",)), st.integers(0, 30))
def test_fixed_dropping_a_dependency_is_never_slower(task_graph, number):
    lists = task_graph.tasks.successors.lists()
    edges = [(task, after) for task, later in enumerate(lists) for after in later]
    assume(edges)
    task, after = edges[number % len(edges)]
    lists[task].remove(after)
    looser = replace(task_graph, tasks=replace(task_graph.tasks, successors=Rows.of(lists)))
    assert (simulate(looser).start <= simulate(task_graph).start).all()


@settings(max_examples=300)
@given(task_graphs(policies=("fixed",)), st.integers(0, 2))
def test_fixed_freeing_tasks_of_a_queue_is_never_slower(task_graph, queue):
    """A queue without limits, as from a shared bus to links of their own or to parallel
    transfers.
    """
    held = [[one for one in held if one != queue] for held in task_graph.tasks.resources.lists()]
    resources = tuple(
        replace(q, sequence=() if i == queue else q.sequence)
        for i, q in enumerate(task_graph.resources)
    )
    freer = replace(
        task_graph, tasks=replace(task_graph.tasks, resources=Rows.of(held)), resources=resources
    )
    assert (simulate(freer).start <= simulate(task_graph).start).all()


def halved(one: Op) -> Op:
    return replace(one, time=one.time / 2)


def ticked(one: Op) -> Op:
    return replace(one, time=max(one.time - Fraction(1, UNIT), Fraction(0)))


def smaller(one: Op) -> Op:
    return replace(one, outputs=(Tensor(one.outputs[0].bytes // 2), *one.outputs[1:]))


IMPROVEMENTS = {
    "twice the bandwidth": lambda world: world.with_links(bandwidth=4 * UNIT),
    "no latency": lambda world: world.with_links(latency=0),
    "no gaps": lambda world: world.with_links(gap=0),
    "one op in half the time": lambda world: world.with_ops(
        lambda o: halved(o) if o.name == "o0" else o
    ),
    "all ops a tick shorter": lambda world: world.with_ops(ticked),
    "one tensor of half the size": lambda world: world.with_ops(
        lambda o: smaller(o) if o.name == "o0" else o
    ),
}


@pytest.mark.parametrize("improvement", IMPROVEMENTS)
@settings(max_examples=120)
@given(world=worlds(policies=("fixed",), queues=SERIAL))
def test_fixed_better_is_never_slower(improvement, world):
    # the sequences name each chunk
    assume(not any(device.chunk for device in world.cluster.devices))
    better = IMPROVEMENTS[improvement](world)
    assume(held(world) == held(better))  # another bottleneck may mean another route
    assert better.step <= world.step


def held(world: World) -> list[list[int]]:
    return world.task_graph.tasks.resources.lists()


@settings(max_examples=200)
@given(worlds(policies=("fixed",), queues=SERIAL))
def test_fixed_parallel_transfers_are_never_slower(world):
    assume(not any(device.chunk for device in world.cluster.devices))
    names = {device.name for device in world.cluster.devices}
    computing = {
        queue: names_of
        for queue, names_of in world.strategy.order.sequence.items()
        if queue in names
    }
    parallel = world.but(cluster=replace(world.cluster, queues="parallel")).ordered(
        Order("fixed", sequence=computing)
    )
    assert parallel.step <= world.step


# Determinism

DIGEST = """
import hashlib, json
from strategies import POLICIES, QUEUES, TRANSFERS, Tape, make_world
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
    for seed in ("0", "1", "2", "random"):
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


# The anomaly museum: what is no law. Each case has the whole timeline before and after the change


@dataclass(frozen=True)
class Exhibit:
    """Ops with their durations; edges "02" (op0 -> op2); devices and output bytes of the ops; 1
    byte takes 1 ps.
    """

    durations: tuple[int, ...]
    edges: str
    devices: tuple[int, ...]
    sizes: tuple[int, ...] = ()
    queues: str = "link"
    priority: tuple[int, ...] = ()
    bandwidth: int = 1
    latency: int = 0

    def world(self) -> World:
        sizes = self.sizes or (0,) * len(self.durations)
        ops = [
            op(
                f"op{i}",
                ps,
                *(f"op{a}" for a, b in self.edges.split() if int(b) == i),
                size=sizes[i],
            )
            for i, ps in enumerate(self.durations)
        ]
        priority = {f"op{i}": value for i, value in enumerate(self.priority)}
        devices = [Device(f"d{i}") for i in range(max(self.devices) + 1)]
        cluster = Cluster.all_to_all(
            "museum",
            devices,
            self.queues,
            bandwidth=self.bandwidth * UNIT,
            latency=f"{self.latency} ps",
        )
        return World.of(
            ops, cluster, self.devices, Order("priority", priority) if priority else Order()
        )

    def timeline(self) -> str:
        """The step, then every task in the order of start, finish, id; x(2,0) is the transfer of
        op2 to d0.
        """
        world = self.world()
        names = [
            re.sub(r"op(\d+):0>d(\d+)", r"x(\1,\2)", name) for name in world.task_graph.tasks.name
        ]
        rows = sorted(zip(*spans(world.trace), range(len(names)), strict=True))
        return f"{world.step}: " + " ".join(
            f"{names[i]} [{start},{finish})" for start, finish, i in rows
        )


@dataclass(frozen=True)
class Anomaly:
    """What gets better, why the step gets longer, and the timelines before and after."""

    note: str
    base: Exhibit
    change: dict[str, object]
    before: str
    after: str


MUSEUM = {
    "a faster link": Anomaly(
        (
            "AN1: op1 reaches d1 early, op4 is queued there before op2, and the longest "
            "tail starts later"
        ),
        Exhibit((5, 1, 5, 4, 1), "02 03 13 14 23", (1, 0, 1, 0, 1), (2, 4, 1, 3, 2)),
        {"bandwidth": 2},
        (
            "15: op1 [0,1) op0 [0,5) x(1,1) [1,5) x(0,0) [5,7) op2 [5,10) op4 [10,11) "
            "x(2,0) [10,11) op3 [11,15)"
        ),
        (
            "16: op1 [0,1) op0 [0,5) x(1,1) [1,3) op4 [5,6) x(0,0) [5,6) op2 [6,11) x(2,0) "
            "[11,12) op3 [12,16)"
        ),
    ),
    "a faster op": Anomaly(
        "AN2: op2 is ready together with op3 now and goes first by its id, and op4 waits for op3",
        Exhibit((5, 4, 6, 4, 6), "02 04 12 13 14 34", (0, 1, 0, 0, 1), (6, 0, 5, 1, 4)),
        {"durations": (4, 4, 6, 4, 6)},
        (
            "18: op1 [0,4) op0 [0,5) x(1,0) [4,4) op3 [5,9) x(0,1) [5,11) op2 [9,15) "
            "x(3,1) [11,12) op4 [12,18)"
        ),
        (
            "21: op0 [0,4) op1 [0,4) x(1,0) [4,4) op2 [4,10) x(0,1) [4,10) op3 [10,14) "
            "x(3,1) [14,15) op4 [15,21)"
        ),
    ),
    "fewer dependencies": Anomaly(
        "AN3: op2 need not wait any more, and takes d1 before op1, whose tensor op3 waits for",
        Exhibit((2, 5, 3, 2), "01 03 12 13", (1, 1, 1, 0), (3, 1, 3, 5)),
        {"edges": "01 03 13"},
        "10: op0 [0,2) x(0,0) [2,5) op1 [2,7) x(1,0) [7,8) op2 [7,10) op3 [8,10)",
        "13: op0 [0,2) op2 [2,5) x(0,0) [2,5) op1 [5,10) x(1,0) [10,11) op3 [11,13)",
    ),
    "a faster op before a shared channel": Anomaly(
        "op1 sends first now, and keeps the channel that the longer op3 waits for",
        Exhibit((3, 3, 1, 5), "03 12", (0, 1, 0, 1), (2, 2, 0, 3), "half-duplex"),
        {"durations": (3, 2, 1, 5)},
        "10: op0 [0,3) op1 [0,3) x(0,1) [3,5) x(1,0) [5,7) op3 [5,10) op2 [7,8)",
        "11: op1 [0,2) op0 [0,3) x(1,0) [2,4) op2 [4,5) x(0,1) [4,6) op3 [6,11)",
    ),
    "fewer dependencies, one device": Anomaly(
        "op2 overtakes op1 on d0, and op1's transfer and the remote op3 come late",
        Exhibit((1, 4, 5, 4), "01 12 13", (0, 0, 0, 1), (1, 3, 3, 3), "half-duplex"),
        {"edges": "01 13"},
        "12: op0 [0,1) op1 [1,5) x(1,1) [5,8) op2 [5,10) op3 [8,12)",
        "17: op0 [0,1) op2 [1,6) op1 [6,10) x(1,1) [10,13) op3 [13,17)",
    ),
    "a smaller tensor": Anomaly(
        "x(0,0) arrives while op1 runs: op2 now stands before op3, whose large transfer goes last",
        Exhibit((3, 5, 5, 2, 1), "02 04 13 24 34", (1, 0, 0, 0, 1), (3, 0, 5, 4, 1)),
        {"sizes": (1, 0, 5, 4, 1)},
        (
            "18: op0 [0,3) op1 [0,5) x(0,0) [3,6) op3 [5,7) x(3,1) [7,11) op2 [7,12) "
            "x(2,1) [12,17) op4 [17,18)"
        ),
        (
            "20: op0 [0,3) op1 [0,5) x(0,0) [3,4) op2 [5,10) op3 [10,12) x(2,1) [10,15) "
            "x(3,1) [15,19) op4 [19,20)"
        ),
    ),
    "no latency": Anomaly(
        "op3 is ready before op1 and runs first; op1's large transfer starts later",
        Exhibit((3, 4, 2, 3, 5), "01 14 23", (0, 0, 1, 0, 1), (2, 5, 0, 4, 4), latency=1),
        {"latency": 0},
        "18: op2 [0,2) op0 [0,3) x(2,0) [2,3) op1 [3,7) op3 [7,10) x(1,1) [7,13) op4 [13,18)",
        "20: op2 [0,2) op0 [0,3) x(2,0) [2,2) op3 [3,6) op1 [6,10) x(1,1) [10,15) op4 [15,20)",
    ),
    "transfers that never wait": Anomaly(
        "without the queue x(1,1) arrives first, and op3 runs before op2, on which op4 waits",
        Exhibit((2, 1, 3, 4, 2), "02 12 13 14 24", (0, 0, 1, 1, 0), (4, 1, 5, 4, 4)),
        {"queues": "parallel"},
        (
            "17: op0 [0,2) op1 [2,3) x(0,1) [2,6) x(1,1) [6,7) op2 [7,10) op3 [10,14) "
            "x(2,0) [10,15) op4 [15,17)"
        ),
        (
            "18: op0 [0,2) op1 [2,3) x(0,1) [2,6) x(1,1) [3,4) op3 [4,8) op2 [8,11) x(2,0) "
            "[11,16) op4 [16,18)"
        ),
    ),
    "a faster op under priorities": Anomaly(
        "op3 is ready when d1 falls idle, not a round later, and goes before op1 by its priority",
        Exhibit(
            (5, 3, 5, 2, 2), "03 14 23", (1, 1, 0, 1, 0), (4, 3, 0, 0, 1), "link", (0, 2, 0, 1, 2)
        ),
        {"durations": (5, 3, 4, 2, 2)},
        "13: op0 [0,5) op2 [0,5) x(2,1) [5,5) op1 [5,8) op3 [8,10) x(1,0) [8,11) op4 [11,13)",
        "15: op2 [0,4) op0 [0,5) x(2,1) [4,4) op3 [5,7) op1 [7,10) x(1,0) [10,13) op4 [13,15)",
    ),
    "a faster link under priorities": Anomaly(
        "op3 arrives while d0 is idle and starts, just before the more urgent op2 is ready",
        Exhibit(
            (1, 3, 5, 1, 1), "03 12 24", (1, 0, 0, 0, 1), (4, 1, 0, 4, 3), "link", (2, 2, 1, 0, 1)
        ),
        {"bandwidth": 2},
        "9: op0 [0,1) op1 [0,3) x(0,0) [1,5) op2 [3,8) x(2,1) [8,8) op3 [8,9) op4 [8,9)",
        "10: op0 [0,1) op1 [0,3) x(0,0) [1,3) op3 [3,4) op2 [4,9) x(2,1) [9,9) op4 [9,10)",
    ),
    "fewer dependencies under priorities": Anomaly(
        "op1 need not wait for op0 and goes before it, by its priority",
        Exhibit((3, 1, 1), "01 02", (1, 1, 0), (0, 4, 4), "link", (2, 1, 0)),
        {"edges": "02"},
        "4: op0 [0,3) x(0,0) [3,3) op1 [3,4) op2 [3,4)",
        "5: op1 [0,1) op0 [1,4) x(0,0) [4,4) op2 [4,5)",
    ),
    "transfers that never wait, under equal priorities": Anomaly(
        (
            "x(1,1) comes no longer a round after x(0,1): op2 is ready with op3 and goes "
            "first, and op4 waits for op3"
        ),
        Exhibit(
            (1, 3, 4, 2, 3),
            "02 03 12 14 34",
            (0, 0, 1, 1, 0),
            (5, 0, 5, 0, 3),
            "half-duplex",
            (0, 1, 1, 1, 1),
        ),
        {"queues": "parallel"},
        (
            "12: op0 [0,1) op1 [1,4) x(0,1) [1,6) x(1,1) [6,6) op3 [6,8) x(3,0) [8,8) op4 "
            "[8,11) op2 [8,12)"
        ),
        (
            "15: op0 [0,1) op1 [1,4) x(0,1) [1,6) x(1,1) [4,4) op2 [6,10) op3 [10,12) "
            "x(3,0) [12,12) op4 [12,15)"
        ),
    ),
    "a faster op beside fair links": Anomaly(
        "op1 sends while x(0,1) does: both end late, and x(2,1) with them",
        Exhibit((5, 4, 1, 4), "03 13 23", (0, 0, 0, 1), (4, 1, 1, 2), "fair"),
        {"durations": (5, 3, 1, 4)},
        "15: op0 [0,5) op1 [5,9) x(0,1) [5,9) op2 [9,10) x(1,1) [9,10) x(2,1) [10,11) op3 [11,15)",
        "16: op0 [0,5) op1 [5,8) x(0,1) [5,11) op2 [8,9) x(1,1) [8,11) x(2,1) [9,12) op3 [12,16)",
    ),
    "a smaller tensor on fair links": Anomaly(
        "x(2,1) ends first now: op4 runs before op1, whose transfer op3 waits for",
        Exhibit((4, 4, 1, 5, 3), "01 13 23 24", (0, 1, 0, 0, 1), (4, 3, 4, 5, 5), "fair"),
        {"sizes": (4, 3, 2, 5, 5)},
        (
            "23: op0 [0,4) op2 [4,5) x(0,1) [4,11) x(2,1) [5,12) op1 [11,15) op4 [15,18) "
            "x(1,0) [15,18) op3 [18,23)"
        ),
        (
            "24: op0 [0,4) op2 [4,5) x(0,1) [4,10) x(2,1) [5,9) op4 [9,12) op1 [12,16) "
            "x(1,0) [16,19) op3 [19,24)"
        ),
    ),
}


@pytest.mark.parametrize("name", MUSEUM)
def test_the_anomaly_is_reproduced_exactly(name):
    anomaly = MUSEUM[name]
    better = replace(anomaly.base, **anomaly.change)
    assert (anomaly.base.timeline(), better.timeline()) == (anomaly.before, anomaly.after)
    assert better.world().step > anomaly.base.world().step


def test_an_idle_op_of_no_length_can_cost_time():
    """It takes one round of g0, so that b's tensor reaches g2 a round after v's, and c stands
    behind the longer d.
    """
    ops = [
        op("a", 2),
        op("s", 1),
        op("b", 0, "s"),
        op("c", 1, "b"),
        op("u", 2),
        op("v", 0, "u"),
        op("d", 3, "v"),
    ]
    ops.append(op("e", 5, "c"))
    cluster = Cluster.all_to_all(
        "four", [Device(f"g{d}") for d in range(4)], "parallel", bandwidth=UNIT
    )
    placement = [0, 1, 0, 2, 3, 3, 2, 3]
    assert World.of(ops, cluster, placement).step == 8
    assert World.of([*ops, op("idle", 0)], cluster, [*placement, 0]).step == 11


def test_an_idle_op_of_no_length_waits_for_a_gap():
    """The gap of a last op does not count in the step, but an op that stands behind it does."""
    cluster = Cluster("one", (Device("g0", gap="1 ps"),))
    assert World.of([op("a", 1)], cluster, [0]).step == 1
    assert World.of([op("a", 1), op("idle", 0)], cluster, [0, 0]).step == 2


# The tiny worlds of conftest.py


def starts(world: World) -> dict[str, int]:
    return dict(zip(world.task_graph.tasks.name, world.trace.start.tolist(), strict=True))


def test_a_chain(chain):
    assert (starts(chain), chain.step) == ({"a": 0, "b": 1, "c": 3}, 6)


def test_a_diamond(diamond):
    assert (starts(diamond), diamond.step) == ({"a": 0, "b": 1, "c": 3, "d": 6}, 7)


def test_two_gpus(two_gpus):
    """The transfers follow one another in the send queue: [1, 3) and [3, 4)."""
    assert (starts(two_gpus), two_gpus.step) == (
        {"a": 0, "b": 1, "c": 4, "a:0>gpu:1": 1, "b:0>gpu:1": 3},
        6,
    )


def test_a_pipeline_of_four_stages(pipeline):
    """(m + p - 1)(f + b) of GPipe, and six transfers on the way: m = 2, p = 4, f = 1, b = 2."""
    assert pipeline.step == (2 + 4 - 1) * (1 + 2) + 6
