"""Laws of fixed sequences: longest paths, and changes that can never cost time."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from simdev.execution.engine import simulate
from simdev.nouns.cluster import QUEUES
from simdev.nouns.graph import Tensor
from simdev.nouns.strategy import Order
from simdev.nouns.taskgraph import Rows
from worlds.clusters import UNIT
from worlds.scenarios import World, worlds
from worlds.sequences import longest_paths
from worlds.task_graphs import task_graphs

SERIAL = tuple(queues for queues in QUEUES if queues != "fair")


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


IMPROVEMENTS = {
    "twice the bandwidth": lambda world: world.with_links(bandwidth=4 * UNIT),
    "no latency": lambda world: world.with_links(latency=0),
    "no gaps": lambda world: world.with_links(gap=0),
    "one op in half the time": lambda world: world.with_ops(
        lambda o: replace(o, time=o.time / 2) if o.name == "o0" else o
    ),
    "all ops a tick shorter": lambda world: world.with_ops(
        lambda o: replace(o, time=max(o.time - Fraction(1, UNIT), Fraction(0)))
    ),
    "one tensor of half the size": lambda world: world.with_ops(
        lambda o: replace(
            o, outputs=(Tensor(o.outputs[0].bytes // (2 if o.name == "o0" else 1)), *o.outputs[1:])
        )
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
