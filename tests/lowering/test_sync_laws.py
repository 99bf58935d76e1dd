"""What holds under any synchronisation policy, and in steps that follow one another."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from simdev.execution.check import check
from simdev.execution.engine import ENGINES, simulate
from simdev.execution.period import steady_state
from simdev.execution.scenario import execute
from simdev.lowering import Prepared, iterated, lower_prepared, lower_step
from simdev.nouns.cluster import QUEUES
from simdev.nouns.memory import MemoryModel
from simdev.nouns.models.layers import Layer
from simdev.nouns.strategy import PRESETS, Sync, sync_policy
from simdev.nouns.taskgraph import TRANSFER, TaskGraph
from simdev.nouns.trace import Trace
from simdev.report import run
from sync_cases import EXAMPLE, PS, WHOLE, _question, period
from worlds.clusters import machines
from worlds.runs import executed, steady_of
from worlds.scenarios import synchronised

SECONDS = st.integers(1, 3)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(SECONDS, SECONDS, st.integers(1, 12)), min_size=1, max_size=6),
    st.integers(1, 4),
)
@example([(1, 1, 3), (1, 1, 6), (1, 1, 3)], 1)
def test_priority_is_never_slower_than_fifo_on_one_link(
    layers: list[tuple[int, int, int]], size: int
) -> None:
    """K13: equal slices of a layered chain, one link each way, preemption at the borders of
    slices.
    """
    chain = [Layer(f, b, n * size) for f, b, n in layers]
    cluster = machines(1, "egress", host=True)
    told = {"servers": ("host:0",), "slice_parameters": size}
    fifo = steady_state(execute(synchronised(chain, cluster, sync_policy("sliced", **told))).trace)
    best = steady_state(execute(synchronised(chain, cluster, sync_policy("p3", **told))).trace)
    assert fifo is not None
    assert best is not None
    assert best.period_ps <= fifo.period_ps
    busy = 4 * sum(layer.parameters for layer in chain)
    assert best.period_ps >= PS * max(sum(f + b for f, b, _ in layers), Fraction(busy, 8))


def any_policy(name: str, **settings: object) -> Sync:
    """A policy with settings that all have; local SGD may overlap only bucket by bucket."""
    return sync_policy(name, **settings, **({"bucket": 8} if name == "local-sgd" else {}))


SYNCS_TRIED = st.builds(
    any_policy,
    st.sampled_from(sorted(PRESETS)),
    message=st.sampled_from([0, "100 ms"]),
    hold=st.sampled_from(["in-turn", "together"]),
    overlap=st.booleans(),
    segment=st.sampled_from([8, 200_000]),
)


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 9)), min_size=1, max_size=4
    ),
    st.integers(1, 4),
    st.sampled_from(QUEUES),
    SYNCS_TRIED,
    st.sampled_from(["sharded", "star", ("host:0",)]),
    st.sampled_from([None, "4 B/s"]),
    st.integers(1, 5),
)
def test_engines_checker_and_memory_agree_on_any_policy(
    layers: list[tuple[int, int, int]],
    workers: int,
    queues: str,
    sync: Sync,
    servers: str | tuple[str, ...],
    rate: str | None,
    size: int,
) -> None:
    if sync.transport == "server":
        sync = replace(sync, servers=servers, aggregation=rate)
        cuts = [name for name in ("slice_parameters", "even_parameters") if getattr(sync, name)]
        sync = replace(sync, **dict.fromkeys(cuts, size))
        sync = replace(sync, credit=8 * size) if sync.credit else sync
    layers_told = [Layer(*layer) for layer in layers]
    cluster = machines(
        workers, queues, host=True, latency="50 ms", gap="10 ms", hold_latency=size % 2 == 0
    )
    prepared, strategy = _question(layers_told, cluster, sync)
    step = lower_step(prepared, strategy)
    graph = iterated(step, 3)
    traces = [simulate(graph, engine) for engine in ENGINES]
    assert np.array_equal(traces[0].start, traces[1].start)
    assert np.array_equal(traces[0].finish, traces[1].finish)
    assert check(graph, traces[0]) == ()
    _require_conservation(step.task_graph, prepared, layers_told, workers, sync)


def _require_conservation(
    graph: TaskGraph, prepared: Prepared, layers: list[Layer], workers: int, sync: Sync
) -> None:
    """Every worker pushes all that it does not serve itself, and gets as much back."""
    if sync.transport != "server" or workers == 1:
        return
    tasks = graph.tasks
    sent = np.zeros(len(prepared.cluster.devices), np.int64)
    got = sent.copy()
    for row in range(len(tasks)):
        if tasks.kind[row] == TRANSFER and tasks.output[row] == 0:
            sent[tasks.source[row]] += tasks.bytes[row]
            got[tasks.destination[row]] += tasks.bytes[row]
    whole = 4 * sum(layer.parameters for layer in layers)
    here = workers - 1 if not isinstance(sync.servers, tuple) else workers
    assert sent.sum() == got.sum() == 2 * here * whole
    assert np.array_equal(sent, got)


@settings(max_examples=25)
@given(
    st.lists(st.tuples(SECONDS, SECONDS, st.integers(1, 8)), min_size=1, max_size=4),
    st.integers(2, 3),
    st.integers(1, 4),
    st.sampled_from(["wait", "skip"]),
)
def test_credit_is_never_overdrawn_by_more_than_one_message(
    layers: list[tuple[int, int, int]], workers: int, credit: int, rule: str
) -> None:
    """What is under way at the start of a push fits, but for one message that may overdraw (wait),
    or fits whole unless it is alone (skip).
    """
    # Which of them overdraws is not known here: messages may start in another order than that in
    # which they are let go, so it is taken to be the largest.
    sync = sync_policy(
        "p3", servers=("host:0",), slice_parameters=2, credit=4 * credit, credit_rule=rule
    )
    scenario = synchronised([Layer(*layer) for layer in layers], machines(workers, host=True), sync)
    trace = execute(scenario).trace
    step = lower_step(Prepared(scenario.graph, scenario.cluster, scenario.costs), scenario.strategy)
    rows, graph = len(step.task_graph.tasks), trace.task_graph
    assert check(graph, trace) == ()
    for worker in range(workers):
        pushes = [
            (
                int(trace.start[one.first + k * rows]),
                int(trace.finish[one.last + k * rows]),
                one.size,
            )
            for k in range(len(graph.tasks) // rows)
            for one in step.pushes
            if int(graph.tasks.source[one.first]) == worker
        ]
        for start, _, size in pushes:
            sizes = [size, *(other for begin, end, other in pushes if begin < start < end)]
            assert sum(sizes) - max(sizes) < 4 * credit
            if rule == "skip" and len(sizes) > 1:
                assert sum(sizes) <= 4 * credit


def test_credit_without_end_is_first_in_first_out() -> None:
    layers = [Layer(1, 2, 5), Layer(2, 1, 9), Layer(1, 1, 4)]
    told = {"servers": ("host:0",), "slice_parameters": 2, "server_order": "fifo"}
    cluster = machines(3, host=True)
    endless = period(layers, cluster, sync_policy("p3", credit=10**9, **told))
    assert endless == period(layers, cluster, sync_policy("p3", priority="none", **told))


# Steps that follow one another.


def test_steps_are_gated_by_updates_and_by_the_stream_of_their_device() -> None:
    """Worker 0 begins its next step with the update of its first layer, not with that of its
    last.
    """
    layers = [Layer(1, 1, 4), Layer(1, 1, 40)]
    outcome = executed(synchronised(layers, machines(2), sync_policy("sliced", **WHOLE)))
    tasks, trace = outcome.trace.task_graph.tasks, outcome.trace
    at = {
        name: (int(trace.start[row]), int(trace.finish[row])) for row, name in enumerate(tasks.name)
    }
    assert at["forward 0.0~1"][0] >= at["update 0.0"][1]
    assert at["forward 1.0~1"][0] >= at["update 1.0"][1]
    assert at["forward 0.0~1"][0] < at["update 1.0"][1]
    assert at["batch.0~1"][0] >= at["backward 0.0"][1]


def test_one_step_is_what_lower_gives() -> None:
    prepared, strategy = _question(EXAMPLE, machines(2), sync_policy("p3"))
    graph = lower_prepared(prepared, strategy)
    assert len(graph.tasks) == len(lower_step(prepared, strategy).task_graph.tasks)
    again = iterated(lower_step(prepared, strategy), 1)
    assert np.array_equal(simulate(graph).finish, simulate(again).finish)


def test_what_lasts_is_held_once_and_what_passes_in_every_step() -> None:
    step = lower_step(
        *_question([Layer(1, 1, 10), Layer(1, 1, 20)], machines(2), sync_policy("sliced"))
    )
    buffers, several = step.task_graph.buffers, iterated(step, 5).buffers
    lasting = int((buffers.filler == -1).sum())
    assert len(several) == lasting + 5 * (len(buffers) - lasting)
    peaks = [memory.peak for memory in simulate(iterated(step, 5)).memory]
    assert max(peaks) < 2 * max(memory.peak for memory in simulate(iterated(step, 1)).memory)


def test_memory_of_a_server() -> None:
    """Parameters and gradients on the worker; the sum, the pushes and nothing else on the
    server.
    """
    scenario = synchronised(
        [Layer(1, 1, 25)],
        machines(2, host=True),
        sync_policy("sliced", servers=("host:0",), **WHOLE),
    )
    report = run(scenario)
    peaks = {device.name: device.memory.peak for device in report.devices}
    assert peaks["host:0"] == 100 + 2 * 100
    assert peaks["gpu:0"] == 100 + 100
    outputs = replace(scenario, memory=MemoryModel(model="outputs_only"))
    assert run(outputs).devices[2].memory.peak == 0


def test_program_order_is_kept_in_every_step() -> None:
    scenario = synchronised(EXAMPLE, machines(2), sync_policy("p3", slice_parameters=1))
    ordered = replace(scenario, strategy=replace(scenario.strategy, order="program"))  # type: ignore[arg-type]
    outcome = execute(ordered)
    assert check(outcome.trace.task_graph, outcome.trace) == ()
    steady = steady_of(outcome.trace)
    assert steady.repeats


def test_a_cycle_of_two_is_found_and_exact() -> None:
    """Periods 3 and 5 in turn: the mean is 4, and every other step is alike."""
    steady = steady_of(_ending([10, 3, 5, 3, 5, 3, 5, 3]))
    assert (steady.cycle, steady.period_ps) == (2, 4 * PS)
    assert sorted(steady.later_ps) == [3 * PS, 5 * PS]


def test_what_never_repeats_is_told() -> None:
    steady = steady_of(_ending([7, 1, 2, 3, 4, 5, 6, 7]))
    assert (steady.cycle, steady.period_ps, steady.first_ps) == (0, 5 * PS, 7 * PS)
    assert any("NOT STEADY" in line for line in steady.lines())


def _ending(seconds: list[int]) -> Trace:
    """Steps of which each ends so much later than the one before."""
    step = lower_step(*_question([Layer(1, 1, 1)], machines(1), sync_policy("p3")))
    times = np.repeat(np.cumsum(seconds) * PS, len(step.task_graph.tasks))
    return Trace(iterated(step, len(seconds)), times, times, "by hand")
