"""The checker accepts what the contract allows and nothing else: hand-broken traces trip the rule
that is meant.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simdev.execution.check import RULES, Claim, Violation, check
from simdev.execution.engine import simulate
from simdev.nouns.cluster import Cluster, Device
from simdev.nouns.taskgraph import Resource, Rows, TaskGraph
from simdev.nouns.trace import Trace
from worlds.graphs import op
from worlds.programs import (
    T,
    behind,
    gapped,
    pair,
    program,
    ranked,
    remote,
    rounds,
    sequence,
    sequenced,
)
from worlds.runs import rules
from worlds.scenarios import World, worlds
from worlds.tape import Tape
from worlds.task_graphs import make_task_graph, repeated, task_graphs

# What valid programs look like from outside


@settings(max_examples=600)
@given(task_graphs())
def test_queues_of_every_policy_are_accepted(task_graph):
    assert check(task_graph, simulate(task_graph, engine="simpy")) == ()


@settings(max_examples=400)
@given(task_graphs(flows=True))
def test_flows_are_accepted(task_graph):
    assert check(task_graph, simulate(task_graph, engine="simpy")) == ()


@settings(max_examples=600)
@given(worlds())
def test_whole_questions_are_accepted(world):
    assert check(world.task_graph, world.trace) == ()


@settings(max_examples=400)
@given(task_graphs(), st.integers(0, 11), st.sampled_from((-2, -1, 1, 2, 5)))
def test_every_other_start_is_refused(task_graph, task, shift):
    trace = simulate(task_graph, engine="simpy")
    if task < len(trace.start):
        moved = np.arange(len(trace.start)) == task
        assert check(
            task_graph,
            replace(trace, start=trace.start + shift * moved, finish=trace.finish + shift * moved),
        )


@settings(max_examples=400)
@given(task_graphs(("fifo",)), st.permutations(range(12)), st.sampled_from(("fifo", "priority")))
def test_a_trace_of_other_rules_is_accepted_only_where_it_is_the_same(
    task_graph, renumbered, policy
):
    other = replace(
        task_graph,
        tasks=replace(task_graph.tasks, priority=np.array(renumbered)[: len(task_graph.tasks)]),
        resources=tuple(replace(queue, policy="priority") for queue in task_graph.resources),
    )
    trace = simulate(other, engine="simpy")
    judged = task_graph if policy == "fifo" else replace(other, tasks=task_graph.tasks)
    same = simulate(judged, engine="simpy").start.tolist() == trace.start.tolist()
    assert (check(judged, Trace(judged, trace.start, trace.finish, "other")) == ()) == same


@settings(max_examples=200)
@given(task_graphs(flows=True), st.integers(0, 11), st.sampled_from((-2, 2)))
def test_every_other_finish_of_a_flow_is_refused(task_graph, task, shift):
    """One picosecond late may be float64's: a last byte sent exactly on a picosecond, or just after
    it.
    """
    trace = simulate(task_graph, engine="simpy")
    if task < len(trace.start):
        assert check(
            task_graph,
            replace(trace, finish=trace.finish + shift * (np.arange(len(trace.start)) == task)),
        )


# Broken traces: each trips the rule that is meant, and no other


def spans(task_graph: TaskGraph, **moved: int | tuple[int, int]) -> Trace:
    """The simulated trace, with other starts (or starts and finishes) for the tasks named."""
    trace = simulate(task_graph, engine="simpy")
    start, finish = trace.start.copy(), trace.finish.copy()
    for name, to in moved.items():
        row = task_graph.tasks.name.index(name)
        start[row], finish[row] = (
            to if isinstance(to, tuple) else (to, to + finish[row] - start[row])
        )
    return Trace(task_graph, start, finish, "broken")


def flows(**moved: int | tuple[int, int]) -> Trace:
    """a:0>g1 [1, 7) and b:0>g1 [2, 6): each at half the link while both send."""
    task_graph = remote().task_graph
    names = {name: name[0] + "x" if ">" in name else name for name in task_graph.tasks.name}
    tasks = replace(task_graph.tasks, name=tuple(names.values()))
    return spans(replace(task_graph, tasks=tasks), **moved)


def column(change: Callable[[np.ndarray], np.ndarray]) -> Trace:
    trace = spans(sequence())
    return replace(trace, start=change(trace.start))


def task_graph_with(world: World, **columns: object) -> Trace:
    """The trace of a question whose task columns were changed after lowering."""
    task_graph = replace(world.task_graph, tasks=replace(world.task_graph.tasks, **columns))
    return simulate(task_graph, engine="simpy")


def doubled_copies() -> Trace:
    task_graph = remote("parallel").task_graph
    buffers = task_graph.buffers
    copies = np.array([">" in name for name in buffers.name])
    return simulate(
        replace(task_graph, buffers=replace(buffers, bytes=buffers.bytes * (1 + copies))),
        engine="simpy",
    )


def cycle() -> Trace:
    """Two tasks of length zero that wait for each other, run at once."""
    task_graph = program([T("a", 0), T("b", 0)])
    tasks = replace(task_graph.tasks, successors=Rows.of([[1], [0]]))
    return Trace(replace(task_graph, tasks=tasks), np.array([0, 0]), np.array([0, 0]), "broken")


def outsider() -> Trace:
    """A task that its fixed queue does not know."""
    task_graph = program([T("a", 1, "q"), T("b", 1, "q")])
    queue = Resource("q", "fixed", (0,))
    return replace(
        simulate(task_graph, engine="simpy"), task_graph=replace(task_graph, resources=(queue,))
    )


BROKEN: dict[str, tuple[str, Callable[[], Trace]]] = {
    "a task is missing": ("columns", lambda: column(lambda start: start[:-1])),
    "times are floats": ("columns", lambda: column(lambda start: start + 0.5)),
    "a start beyond 53 days": ("columns", lambda: column(lambda start: start + 2**62 + 1)),
    "a task that never ran": ("ran", lambda: spans(sequence(), c=(-1, -1))),
    "a task that never ended": ("ran", lambda: spans(sequence(), c=(4, -1))),
    "a task too short": ("duration", lambda: spans(sequence(), c=(4, 4))),
    "a task too long": ("duration", lambda: spans(sequence(), c=(4, 6))),
    "a task that ends before it starts": ("duration", lambda: spans(sequence(), c=(4, 3))),
    "a task of length zero that takes time": ("duration", lambda: spans(gapped(), z=(5, 6))),
    "a flow without time for its bytes": ("duration", lambda: flows(bx=(2, 2), ax=(1, 1))),
    "a start before its predecessor's finish": ("precedence", lambda: spans(sequence(), c=3)),
    "a lag that is not waited for": ("precedence", lambda: spans(sequence(), d=4)),
    "two tasks at once in one queue": ("overlap", lambda: spans(sequence(), b=1)),
    "a start inside a gap": ("overlap", lambda: spans(gapped(), y=3)),
    "a task of length zero inside another": ("overlap", lambda: spans(gapped(), z=1)),
    "one of two queues not held": ("overlap", lambda: spans(pair(), v=1)),
    "a queue not held for the whole": ("overlap", lambda: spans(pair(), u=1)),
    "a dependency lost in lowering": (
        "data", lambda: task_graph_with(remote("parallel"), successors=Rows.of([[]] * 5))
    ),
    "bytes lost on the way": (
        "bytes", lambda: task_graph_with(remote("parallel"), bytes=np.array([0, 0, 0, 3, 1]))
    ),
    "more received than sent": ("bytes", doubled_copies),
    "equal readiness served against the ids": ("order", lambda: spans(sequence(), b=0, a=2, c=2)),
    "first come, not first served": ("order", lambda: spans(rounds(), m=1, n=3)),
    "a priority ignored": ("order", lambda: spans(ranked(), later=1, urgent=3)),
    "a sequence ignored": ("order", lambda: spans(sequenced(), a=0, b=2)),
    "a task that passes the head of its queue": ("order", lambda: spans(behind(), tail=0)),
    "a task of length zero before its turn": ("order", lambda: spans(gapped(), z=4)),
    "a cycle run at once": ("order", cycle),
    "a task that its queue does not know": ("order", outsider),
    "a queue idle with a task waiting": ("waiting", lambda: spans(sequence(), d=6)),
    "a source that starts late": ("waiting", lambda: spans(program([T("a", 2, "q")]), a=1)),
    "a task without queues that waits": ("waiting", lambda: spans(gapped(), free=1)),
    "a wait beyond the end of a gap": ("waiting", lambda: spans(gapped(), y=5, z=6)),
    "two idle queues and a task waiting": ("waiting", lambda: spans(behind(), head=5, tail=6)),
    "a sequence that pauses": ("waiting", lambda: spans(sequenced(), a=3)),
    "a flow that waits": ("waiting", lambda: flows(bx=(3, 7))),
    "a flow a picosecond early": ("flow", lambda: flows(bx=(2, 5))),
    "a flow two picoseconds late": ("flow", lambda: flows(ax=(1, 9), c=9)),
    "one flow after the other": ("flow", lambda: flows(ax=(1, 5), bx=(2, 7))),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_trace_trips_the_rule_that_is_meant(case):
    rule, build = BROKEN[case]
    trace = build()
    found = check(trace.task_graph, trace)
    assert rules(found) == {rule}, list(map(str, found))


@pytest.mark.parametrize("build", [sequence, gapped, pair, ranked, sequenced, rounds, behind])
def test_what_was_broken_is_accepted_unbroken(build):
    assert check(build(), spans(build())) == ()
    assert check(flows().task_graph, flows()) == ()


CLAIMS: dict[str, tuple[str, Callable[[Claim], Claim]]] = {
    "a step too short": ("step", lambda true: replace(true, trace_ps=true.trace_ps - 1)),
    "a step too long": ("step", lambda true: replace(true, trace_ps=true.trace_ps + 1)),
    "a peak too low": (
        "peak",
        lambda true: replace(true, peaks=true.peaks | {"g1": true.peaks["g1"] - 1}),
    ),
    "a peak too high": ("peak", lambda true: replace(true, peaks=true.peaks | {"g0": 99})),
    "a device left out": ("peak", lambda true: replace(true, peaks={"g0": true.peaks["g0"]})),
    "memory never freed": (
        "levels",
        lambda true: replace(true, levels=true.levels | {"g1": true.levels["g1"][:-1]}),
    ),
    "a level below zero": (
        "levels",
        lambda true: replace(true, levels=true.levels | {"g0": [(0, -1), (1, 0)]}),
    ),
    "a level a byte too high": (
        "levels",
        lambda true: replace(
            true, levels=true.levels | {"g1": [(t, b + (b > 0)) for t, b in true.levels["g1"]]}
        ),
    ),
    "memory filled late": (
        "levels",
        lambda true: replace(
            true, levels=true.levels | {"g1": [(t + 1, b) for t, b in true.levels["g1"]]}
        ),
    ),
    "an overflow kept silent": (
        "overflow",
        lambda true: replace(true, overflows={"g0": None, "g1": None}),
    ),
    "an overflow told late": (
        "overflow",
        lambda true: replace(true, overflows={"g0": None, "g1": (7, "c", 3)}),
    ),
    "an overflow blamed on another": (
        "overflow",
        lambda true: replace(true, overflows={"g1": (2, "c", 2)}),
    ),
    "said to fit": ("feasible", lambda true: replace(true, feasible=True)),
}


@pytest.mark.parametrize("case", CLAIMS)
def test_a_false_claim_trips_the_rule_that_is_meant(case):
    rule, distort = CLAIMS[case]
    world = remote()
    true = Claim.of(world.trace)
    assert true.overflows == {"g0": None, "g1": (2, "b:0>g1", 2)}
    assert check(world.task_graph, world.trace, true) == ()
    assert rules(check(world.task_graph, world.trace, distort(true))) == {rule}


def test_a_claim_may_say_nothing():
    world = remote()
    assert check(world.task_graph, world.trace, Claim()) == ()


def test_a_lag_counts_in_the_step():
    task_graph = program([T("a", 1, lag=2)])
    assert rules(check(task_graph, spans(task_graph), Claim(1))) == {"step"}


def test_frees_come_before_allocations():
    """a:0 (1 byte) is freed at 2, when c's output (1 byte) is filled: a peak of 2, never of 3."""
    ops = [op("a", 1, size=1), op("b", 1, "a", size=1), op("c", 1, "b", size=1)]
    world = World.of(ops, Cluster("one", (Device("g0"),)), [0, 0, 0])
    assert check(world.task_graph, world.trace, Claim(3, {"g0": 2})) == ()
    assert rules(check(world.task_graph, world.trace, Claim(3, {"g0": 3}))) == {"peak"}


# The checker itself


def test_a_violation_names_a_known_rule():
    tried = (
        {rule for rule, _ in (*BROKEN.values(), *CLAIMS.values())}
        # hosts: test_check_hosts.py
        | {"bounds", "dispatch", "thread", "ahead", "blocks", "stream"}
    )
    assert tried == set(RULES)
    with pytest.raises(ValueError, match="rule: must be one of"):
        Violation("other", (), "")


def test_violations_name_tasks_and_resources():
    found = check(gapped(), spans(gapped(), y=3))
    assert [one.names for one in found] == [("x", "y", "q")]
    assert str(found[0]) == 'overlap: "q" serves "x" until 4 (gap included), but "y" starts at 3'


def test_a_task_out_of_turn_is_told_beside_the_first_that_stands_before_it():
    """The first task of all stands before it in both of its queues."""
    task_graph = program([T("a", 2, "q r"), T("b", 2, "q r")])
    (violation,) = check(task_graph, spans(task_graph, a=2, b=0))
    assert violation.names == ("b", "a", "q")
    assert str(violation) == 'order: "b" starts at 0, out of turn: "a" stands before it in "q"'


def test_nothing_to_do_is_valid():
    task_graph = program([])
    assert check(task_graph, simulate(task_graph, engine="simpy")) == ()


@pytest.mark.slow
@pytest.mark.parametrize("flows", [False, True])
def test_large_programs_are_accepted(flows):
    """Hundreds of copies of one program at once (its speed is printed, not judged)."""
    for copies in (200, 800):
        task_graph = repeated(
            make_task_graph(Tape(bytes(range(12, 252))), ("fifo",), flows), copies
        )
        trace = simulate(task_graph, engine="simpy")
        begin = time.perf_counter()
        assert check(task_graph, trace) == ()
        print(f"{len(task_graph.tasks)} tasks: {time.perf_counter() - begin:.2f} s")
