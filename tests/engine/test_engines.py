"""Equality of engines: the SimPy engine, the compiled one and, where every queue has a sequence,
longest paths.

Over 3,000 random programs full of ties and zeros: every start and finish is equal, and the checker,
which shares no code with the engines, accepts every trace. On programs of up to 7 ops an exhaustive
search bounds every policy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import permutations, product
from math import factorial, prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import common
from simdev.execution.engine import simulate
from simdev.ground.errors import DeadlockError
from simdev.lowering import lower_prepared
from simdev.nouns.cluster import QUEUES, Cluster, Device
from simdev.nouns.strategy import POLICIES as ORDERS
from simdev.nouns.strategy import Order, Strategy
from simdev.nouns.taskgraph import TaskGraph
from simdev.nouns.trace import Trace
from worlds.clusters import joined
from worlds.graphs import op
from worlds.runs import spans
from worlds.scenarios import World, make_world, worlds
from worlds.sequences import fixed, longest_paths
from worlds.tape import Tape, drawn
from worlds.task_graphs import POLICIES, judged, repeated, task_graphs

SERIAL = tuple(queues for queues in QUEUES if queues != "fair")
TIMED = ("fifo", "priority")


def same(task_graph: TaskGraph) -> Trace:
    """The trace on which both engines agree, accepted by the checker, and equal to longest paths
    where they apply.
    """
    trace = judged(task_graph)
    tasks = task_graph.tasks
    if all(queue.policy == "fixed" for queue in task_graph.resources) and not tasks.flow.any():
        start = longest_paths(task_graph)
        assert spans(trace) == (start, (np.array(start, np.int64) + tasks.duration).tolist())
    return trace


# 4,100 random programs: task graphs drawn directly, then whole questions in every queue and
# transfer mode


@settings(max_examples=1500)
@given(task_graphs(POLICIES))
def test_engines_agree_on_queues(task_graph):
    same(task_graph)


@settings(max_examples=800)
@given(task_graphs(TIMED, flows=True))
def test_engines_agree_on_flows(task_graph):
    same(task_graph)


@settings(max_examples=500)
@given(task_graphs(("fixed",), flows=False))
def test_engines_agree_with_longest_paths(task_graph):
    same(task_graph)


@settings(max_examples=1200)
@given(worlds())
def test_engines_agree_on_lowered_programs(world):
    same(world.task_graph)


@settings(max_examples=60)
@given(st.one_of(task_graphs(TIMED), task_graphs(TIMED, flows=True)), st.integers(2, 20))
def test_engines_agree_on_many_queues(task_graph, copies):
    same(repeated(task_graph, copies))


@settings(max_examples=60)
@given(worlds(policies=("fixed",), queues=SERIAL), st.randoms(use_true_random=False))
def test_engines_agree_on_deadlocks(world, random):
    """Shuffled sequences often contradict the dependencies: then both engines name the same
    tasks.
    """

    def shuffled(tasks: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(random.sample(tasks, len(tasks)))

    queues = tuple(
        replace(queue, sequence=shuffled(queue.sequence)) for queue in world.task_graph.resources
    )
    task_graph = replace(world.task_graph, resources=queues)
    assert outcome(task_graph, "compiled") == outcome(task_graph, "simpy")


def outcome(task_graph: TaskGraph, engine: str) -> object:
    try:
        return spans(simulate(task_graph, engine))
    except DeadlockError as error:
        return error.waiting


@pytest.mark.parametrize("queues", QUEUES)
@pytest.mark.parametrize("policy", ORDERS)
def test_engines_agree_at_full_size(queues, policy):
    """200 ops of realistic random times on 5 devices: large sums and long queues instead of
    ties.
    """
    prepared = common.layered(200, 5, queues, seed=3)
    names = [device.name for device in prepared.cluster.devices]
    rng = np.random.default_rng(4)
    placement = {
        one.name: names[d]
        for one, d in zip(prepared.graph.ops, rng.integers(0, 5, 200), strict=True)
    }
    priority = {
        one.name: int(p) for one, p in zip(prepared.graph.ops, rng.integers(0, 4, 200), strict=True)
    }
    order = {"priority": Order("priority", priority), "program": Order("program")}.get(
        policy, Order()
    )
    task_graph = lower_prepared(prepared, Strategy(placement, order))
    if policy == "fixed":
        task_graph = fixed(task_graph, rng.integers(0, 50, len(task_graph.tasks)).tolist())
    same(task_graph)


# Brute force: no policy beats the best of all orders


@dataclass(frozen=True)
class Best:
    """The least step over all orders, by branch and bound on partial schedules: no engine is
    asked.
    """

    task_graph: TaskGraph

    def step(self) -> int:
        tasks, count = self.task_graph.tasks, len(self.task_graph.tasks)
        duration, lag, gap = tasks.duration.tolist(), tasks.lag.tolist(), tasks.gap.tolist()
        held, successors = tasks.resources.lists(), tasks.successors.lists()
        before = [[p for p in range(count) if task in successors[p]] for task in range(count)]
        best, seen = sum(duration) + sum(lag) + sum(gap), set()

        def place(release: dict[int, int], free: tuple[int, ...], end: int) -> None:
            """Put any task that could come next at the end of its queues."""
            nonlocal best
            state = (tuple(sorted(release.items())), free)
            if end >= best or state in seen:
                return
            if len(release) == count:
                best = end
                return
            seen.add(state)
            for task in range(count):
                if task in release or any(p not in release for p in before[task]):
                    continue
                start = max(
                    [release[p] for p in before[task]] + [free[r] for r in held[task]], default=0
                )
                finish = start + duration[task]
                later = tuple(
                    finish + gap[task] if r in held[task] else time for r, time in enumerate(free)
                )
                place({**release, task: finish + lag[task]}, later, max(end, finish + lag[task]))

        best += 1
        place({}, (0,) * len(self.task_graph.resources), 0)
        return best


def queue_orders(task_graph: TaskGraph) -> Iterator[TaskGraph]:
    """The same with every choice of a sequence for every queue."""
    held = task_graph.tasks.resources.lists()
    members = [
        [task for task, on in enumerate(held) if r in on] for r in range(len(task_graph.resources))
    ]
    for sequences in product(*map(permutations, members)):
        queues = zip(task_graph.resources, sequences, strict=True)
        resources = tuple(
            replace(queue, policy="fixed", sequence=sequence) for queue, sequence in queues
        )
        yield replace(task_graph, resources=resources)


def orders(task_graph: TaskGraph) -> int:
    held = task_graph.tasks.resources.ids
    return prod(factorial(int(size)) for size in np.bincount(held, minlength=1))


def steps(task_graphs: Iterator[TaskGraph]) -> Iterator[int]:
    for task_graph in task_graphs:
        try:
            yield simulate(task_graph, "compiled").end_ps
        except DeadlockError:
            continue


def policies(world: World) -> Iterator[Order]:
    names = [one.name for one in world.graph.ops]
    yield Order()
    yield Order("priority", {name: i for i, name in enumerate(names)})
    yield Order("priority", {name: -i for i, name in enumerate(names)})
    if names[0] == "o0":  # listed backwards, program order would deadlock
        yield Order("program")


def small_world(tape: Tape) -> World:
    """Up to 7 ops on up to two devices, with few enough orders to try them all."""
    while True:
        world = make_world(
            tape, ("fifo",), ("parallel", "egress", "link"), ("once-per-device", "per-consumer")
        )
        hosts = [device.name for device in world.cluster.devices if device.runs_ops][:2]
        placement = {one.name: tape.pick(*hosts) for one in world.graph.ops}
        world = world.but(strategy=Strategy(placement))
        if tape.position >= len(tape.content) or (
            len(placement) <= 7 and orders(world.task_graph) <= 300
        ):
            return world


@settings(max_examples=250)
@given(drawn(small_world))
def test_no_policy_beats_the_best_order_and_exhaustive_search_finds_it(world):
    best = Best(world.task_graph).step()
    if orders(world.task_graph) <= 300:
        assert min(steps(queue_orders(world.task_graph))) == best
    for order in policies(world):
        assert same(world.ordered(order).task_graph).end_ps >= best


def test_seven_ops_on_one_device():
    """All 5,040 orders of 7 ops, two of them chains: on one device every order takes the sum of the
    work.
    """
    ops = [op(f"o{i}", 1 + i % 3, *([f"o{i - 1}"] if i in (2, 5) else [])) for i in range(7)]
    task_graph = World.of(ops, Cluster("one", (Device("g0"),)), [0] * 7).task_graph
    found = list(steps(queue_orders(task_graph)))
    assert set(found) == {Best(task_graph).step()} == {13}
    assert len(found) == 5040 // 4  # each chain of two halves the orders that do not deadlock


# Closed: every graph of three ops, at every placement on two devices


@pytest.mark.parametrize("queues", ["parallel", "half-duplex", "device"])
def test_every_graph_of_three_ops_on_two_devices(queues):
    edges, pair = [(0, 1), (0, 2), (1, 2)], joined(2, queues)
    for chosen in product((False, True), repeat=3):
        reads = [
            [f"o{a}" for (a, b), there in zip(edges, chosen, strict=True) if there and b == i]
            for i in range(3)
        ]
        for times in product((0, 1, 2), repeat=3):
            ops = [op(f"o{i}", times[i], *reads[i], size=i) for i in range(3)]
            for placement in product((0, 1), repeat=2):
                world = World.of(ops, pair, (0, *placement))
                assert same(world.task_graph).end_ps >= Best(world.task_graph).step()
