"""What hosts dispatch (rule 9): against a model written from the contract alone, in closed forms
and by example.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from simdev.costs import CostModel
from simdev.execution.check import check, host_faults
from simdev.execution.engine import ENGINES, simulate
from simdev.execution.period import simulate_strategy, step_time_ps
from simdev.ground.errors import DeadlockError
from simdev.lowering import Prepared
from simdev.nouns.cluster import Cluster, Device, Host
from simdev.nouns.graph import Graph, Op
from simdev.nouns.strategy import Strategy
from simdev.nouns.trace import Trace
from worlds.host_worlds import PS, HostWorld, finishes, host_world
from worlds.runs import steady_of
from worlds.tape import drawn


def judged(world: HostWorld, steps: int) -> None:
    task_graph, model = world.steps(steps)
    try:
        expected = model.finishes()
    except AssertionError:
        for engine in ENGINES:
            with pytest.raises(DeadlockError):
                simulate(task_graph, engine)
        return
    traces = [simulate(task_graph, engine) for engine in ENGINES]
    assert finishes(world, task_graph, traces[0].finish.tolist()) == expected
    assert (traces[0].start == traces[1].start).all()
    assert check(task_graph, traces[0]) == ()
    prepared, order = world.prepared, world.strategy.order
    assert host_faults(prepared.graph, prepared.cluster, prepared.costs, traces[0], order) == ()


@settings(max_examples=300)
@given(drawn(host_world))
def test_a_step_with_hosts_is_what_the_contract_says(world: HostWorld) -> None:
    judged(world, 1)


@settings(max_examples=150)
@given(drawn(host_world))
def test_steps_with_hosts_follow_one_another_as_the_contract_says(world: HostWorld) -> None:
    judged(world, 3)


@given(drawn(host_world))
def test_times_looked_up_where_ops_run_are_those_of_the_tables(world: HostWorld) -> None:
    prepared = world.prepared
    shape = len(prepared.graph.ops), len(prepared.cluster.devices)
    ops, devices = (places.ravel() for places in np.indices(shape))
    lengths, launches = prepared.dispatches_at(ops, devices)
    for looked_up, name in ((lengths, "host_ps"), (launches, "launches")):
        assert looked_up.tolist() == getattr(prepared, name).ravel().tolist()
    duration = prepared.duration_at(ops, devices).reshape(shape)
    assert duration.tolist() == prepared.duration.tolist()
    # A pass may give other times, by a table of its own.
    given = prepared.lasting(duration + 1)
    assert given.duration_at(ops, devices).reshape(shape).tolist() == (duration + 1).tolist()


def alone(count: int, host: int, device: int, steps: str = "once", **fields: object) -> int:
    """The step time in ps of ops of one launch each, on one device."""
    ops = [Op(f"op{i}", time=device * PS, host_time=host * PS) for i in range(count)]
    return step_ps(ops, Host(**fields), steps)


def step_ps(ops: list[Op], host: Host, steps: str = "once") -> int:
    return step_time_ps(trace_of(ops, host, steps))


def trace_of(ops: list[Op], host: Host, steps: str) -> Trace:
    cluster = Cluster("alone", (Device("gpu:0"),), host=host)
    prepared = Prepared(Graph("alone", tuple(ops)), cluster, CostModel())
    strategy = Strategy({op.name: "gpu:0" for op in ops})
    traces = [simulate_strategy(prepared, strategy, engine, steps)[0] for engine in ENGINES]
    assert (traces[0].finish == traces[1].finish).all()
    return traces[0]


@pytest.mark.parametrize(("n", "h", "d"), [(1, 3, 2), (5, 2, 7), (5, 7, 2), (4, 3, 3), (3, 0, 4)])
def test_the_closed_forms_of_the_contract(n: int, h: int, d: int) -> None:
    for ahead in (2, 3, 1024):
        assert alone(n, h, d, ahead=ahead) == (h + n * d if d >= h else n * h + d)
    assert alone(n, h, d, ahead=1) == n * (h + d)
    assert alone(n, h, d, mode="graph", launch=5 * PS) == 5 + n * d
    assert alone(n, h, d, mode="none") == n * d


TWO_HALVES = [
    *(Op(f"slow{i}", time=2 * PS, host_time=10 * PS) for i in range(10)),
    *(Op(f"fast{i}", time=10 * PS, host_time=2 * PS) for i in range(10)),
]
"""Ten ops of host 10 and device 2, then ten of host 2 and device 10."""


def test_a_host_that_gets_further_ahead_is_followed_until_it_may_not() -> None:
    """By a unit each step, until it is 60 launches ahead: what holds then is the period."""
    ops = [Op(f"op{i}", time=4 * PS, host_time=(9 if i == 3 else 2) * PS) for i in range(4)]
    steady = steady_of(trace_of(ops, Host(ahead=60), "repeated"))
    assert steady.repeats
    assert (steady.step_ps, steady.first_ps) == (16, 19)
    assert steady.steps > 52
    # The long dispatch waits for op1: from its end it is 9 to op3, and 4 each for op3, op0, op1.
    assert steady_of(trace_of(ops, Host(ahead=2), "repeated")).step_ps == 9 + 3 * 4


@settings(max_examples=20)
@given(drawn(host_world, 9))
def test_periods_are_those_of_many_steps_of_the_contract(world: HostWorld) -> None:
    try:
        trace, _ = simulate_strategy(world.prepared, world.strategy, "compiled", "repeated")
    except DeadlockError:
        return
    steady = steady_of(trace)
    # What repeats is the period for ever, whatever came before; else it is a mean.
    if steady.repeats:
        q, count = steady.cycle, max(steady.steps, 40)
        ends = [0] * (count + q)
        for node, finish in world.steps(count + q)[1].finishes().items():
            ends[node[1]] = max(ends[node[1]], finish)
        assert ends[-1] - ends[-1 - q] == steady.period_ps * q


def test_replayed_steps_repeat_however_far_ahead_their_host_is() -> None:
    ops = [Op(f"op{i}", time=4 * PS) for i in range(4)]
    for launch, period in ((1, 16), (16, 16), (20, 20)):
        steady = steady_of(trace_of(ops, Host("graph", launch=launch * PS), "repeated"))
        assert (steady.cycle, steady.step_ps, steady.first_ps) == (1, period, launch + 16)


def test_rule_10s_example() -> None:
    assert step_ps(TWO_HALVES, Host()) == 202
    assert step_ps(TWO_HALVES, Host(), "repeated") == 120
    assert step_ps(TWO_HALVES, Host(ahead=8), "repeated") == 132
