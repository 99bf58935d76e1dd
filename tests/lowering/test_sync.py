"""Synchronisation policies: closed forms, the papers' examples, laws, and what is wrong with bad
ones.
"""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from simdev.check import check
from simdev.cli import main
from simdev.cluster import QUEUES, Cluster, Device
from simdev.costs import CostModel, DeviceSpec
from simdev.engine import simulate
from simdev.errors import InputError
from simdev.files import read_strategy, write_strategy
from simdev.graph import Graph, Op, Tensor
from simdev.lowering import Prepared, iterated, lower_prepared, lower_step
from simdev.lowering.sync import Layer, layer_graph, timing_aware_order, timing_independent_order
from simdev.memory import MemoryModel
from simdev.models import build, parameter_count
from simdev.oracle import Oracle
from simdev.period import steady_state, step_time_ps
from simdev.report import run
from simdev.scenario import Outcome, Scenario, execute
from simdev.strategy import PRESETS, Strategy, Sync, sync_policy
from simdev.taskgraph import TRANSFER, TaskGraph
from simdev.trace import Trace

PS = 10**12
WHOLE = {"slice_parameters": None, "even_parameters": None, "bucket": None}
LATER = {"priority": "none", "server_order": "fifo"}


def machines(workers: int, queues: str = "device", host: bool = False, **link: object) -> Cluster:
    """So many GPUs, and perhaps a host, any two joined by a link of 8 bytes a second."""
    devices = [Device(f"gpu:{r}") for r in range(workers)] + [Device("host:0", "cpu")] * host
    return Cluster.all_to_all("machines", devices, queues, **({"bandwidth": 8} | link))


def asked(layers: list[Layer], cluster: Cluster, sync: Sync, engine: str = "simpy") -> Scenario:
    """Layers on all GPUs of a cluster."""
    workers = [device.name for device in cluster.devices if device.kind == "gpu"]
    graph, placement = layer_graph(layers, workers)
    return Scenario(graph, cluster, CostModel(), Strategy(placement, sync=sync), engine)


def answered(layers: list[Layer], cluster: Cluster, sync: Sync) -> Outcome:
    """What both engines and the checker agree on."""
    outcome = execute(asked(layers, cluster, sync))
    other = simulate(outcome.trace.task_graph, "compiled")
    assert np.array_equal(outcome.trace.start, other.start)
    assert np.array_equal(outcome.trace.finish, other.finish)
    assert check(outcome.trace.task_graph, outcome.trace) == ()
    return outcome


def period(layers: list[Layer], cluster: Cluster, sync: Sync) -> Fraction:
    """The exact steady-state period in seconds."""
    steady = steady_state(answered(layers, cluster, sync).trace)
    assert steady is not None
    assert steady.repeats
    return steady.period_ps / PS


EXAMPLE = [Layer(1, 1, 3), Layer(1, 1, 6), Layer(1, 1, 3)]
"""ByteScheduler's: transfers of 1.5, 3 and 1.5 seconds at 8 bytes a second; a slice of one
parameter takes 0.5.
"""


@pytest.mark.parametrize(
    ("settings_of", "seconds"),
    [
        (WHOLE | LATER, 13),
        (WHOLE, 13),
        ({"slice_parameters": 1} | LATER, Fraction(21, 2)),
        ({"slice_parameters": 1}, 9),
        ({"slice_parameters": 1, "credit": 4}, 9),
        ({"slice_parameters": 1, "credit": 10**6}, Fraction(21, 2)),
    ],
    ids=[
        "whole",
        "priority only",
        "slices only",
        "both",
        "credit of one slice",
        "credit without end",
    ],
)
def test_the_example_of_bytescheduler(settings_of: dict[str, object], seconds: Fraction) -> None:
    sync = sync_policy("p3", servers=("host:0",), **settings_of)
    assert period(EXAMPLE, machines(1, "egress", host=True), sync) == seconds


def test_the_example_holds_for_each_of_two_workers_with_links_of_their_own() -> None:
    assert (
        period(
            EXAMPLE,
            machines(2, "link", host=True),
            sync_policy("p3", servers=("host:0",), slice_parameters=1),
        )
        == 9
    )


def test_tictac_orders() -> None:
    """r1 takes 1 and lets 5 be computed, r2 takes 5 and lets 1 be computed: r1 goes first."""
    waits = np.array([[True, False], [False, True]])
    assert timing_aware_order(waits, np.array([5, 1]), np.array([1, 5])) == [0, 1]
    assert timing_aware_order(waits[:, ::-1], np.array([5, 1]), np.array([5, 1])) == [1, 0]
    # Op k of a chain waits for parameters 0 to k: 0 and 1 are the least that any op waits for
    # together.
    assert timing_independent_order(np.tri(4, dtype=np.bool_)) == [0, 0, 1, 2]
    assert timing_independent_order(np.eye(3, dtype=np.bool_)) == [0, 0, 0]


@pytest.mark.parametrize("policy", ["tic", "tac"])
def test_tictac_sends_a_chain_in_the_order_of_its_forward(policy: str) -> None:
    layers = [Layer(1, 1, 2), Layer(1, 1, 8), Layer(1, 1, 2), Layer(1, 1, 5)]
    cluster = machines(3, host=True)
    forward = sync_policy(policy, priority="forward", servers=("host:0",))
    assert period(layers, cluster, sync_policy(policy, servers=("host:0",))) == period(
        layers, cluster, forward
    )


# Closed forms: one weight of S bytes, no compute.


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_one_server_takes_every_push_and_sends_every_answer(workers: int) -> None:
    """K8: N S / B in, then N S / B out, for the first step; in turn a segment more in each
    direction.

    In later ones the pushes of the first worker meet the answers of the last; a direction still
    takes N S / B.
    """
    size, segment = 240, 24
    once = Fraction(size, 8)
    layers = [Layer(0, 0, size // 4)]
    sync = sync_policy("sliced", servers=("host:0",), segment=segment, **WHOLE)
    cluster = machines(workers, host=True)
    for told, more in ((replace(sync, hold="together"), 0), (sync, 2 * Fraction(segment, 8))):
        steady = steady_state(answered(layers, cluster, told).trace)
        assert steady is not None
        assert Fraction(steady.first_ps, PS) == 2 * workers * once + more
        assert steady.period_ps / PS >= workers * once
    sliced = steady_state(
        answered(layers, cluster, replace(sync, slice_parameters=segment // 4)).trace
    )
    assert sliced is not None
    assert Fraction(sliced.first_ps, PS) >= workers * once + workers * Fraction(segment, 8)
    assert Fraction(sliced.first_ps, PS) < 2 * workers * once


@pytest.mark.parametrize("workers", [2, 3, 4, 6])
def test_sharded_servers_meet_their_closed_form(workers: int) -> None:
    """G10, K8: 2 S (W-1) / W / B, both in time and in the bytes of every NIC in each direction."""
    size = 4 * 60
    sync = sync_policy("parameter-server", reply="broadcast", even_parameters=1, segment=4)
    layers, cluster = [Layer(0, 0, size // 4)], machines(workers)
    closed = Fraction(2 * size * (workers - 1), workers * 8)
    assert period(layers, cluster, replace(sync, hold="together")) == closed
    outcome = answered(layers, cluster, sync)
    steady = steady_state(outcome.trace)
    assert steady is not None
    assert closed <= steady.period_ps / PS <= closed + 2 * Fraction(4, 8)
    uses = {use.name: use.bytes for use in run(asked(layers, cluster, sync)).links if use.transfers}
    each = size * 2 * (workers - 1) // workers
    assert uses == {f"{way} gpu:{r}": each for way in ("send", "recv") for r in range(workers)}


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("policy", ["bulk-synchronous", "bucketed"])
def test_an_all_reduce_takes_its_closed_form(workers: int, policy: str) -> None:
    """K7, K12: 2 (n-1) S / n / B after the compute where nothing overlaps."""
    layers = [Layer(3, 5, 60)]
    assert period(layers, machines(workers), sync_policy(policy)) == 8 + Fraction(
        2 * (workers - 1) * 240, workers * 8
    )


def test_buckets_gather_gradients_in_the_order_in_which_they_are_made() -> None:
    layers = [Layer(1, 1, 2), Layer(1, 1, 3), Layer(1, 1, 10), Layer(1, 1, 1)]
    step = lower_step(*_question(layers, machines(2), sync_policy("bucketed", bucket=12)))
    tasks = step.task_graph.tasks
    buckets = {
        tasks.name[row]: int(tasks.bytes[row])
        for row in range(len(tasks))
        if tasks.kind[row] == "collective"
    }
    assert buckets == {"bucket 0": 4 * 11, "bucket 1": 4 * 3, "bucket 2": 4 * 2}


def _question(layers: list[Layer], cluster: Cluster, sync: Sync) -> tuple[Prepared, Strategy]:
    scenario = asked(layers, cluster, sync)
    return Prepared(scenario.graph, cluster, scenario.costs), scenario.strategy


def test_overlapping_hides_all_but_head_and_tail() -> None:
    """Bulk-synchronous: compute + communication.

    Sent as they are made: the larger of both, and what is left over.
    """
    layers = [Layer(1, 2, 8)] * 4
    bulk = period(layers, machines(2), sync_policy("bulk-synchronous"))
    assert bulk == 12 + 4 * Fraction(2 * 32, 2 * 8)
    assert period(layers, machines(2), sync_policy("bulk-synchronous", overlap=True)) < bulk


def test_sums_are_a_serial_resource() -> None:
    """One server adds up W pushes of S bytes, one after another, at its rate."""
    sync = sync_policy("sliced", servers=("host:0",), aggregation="2 B/s", **WHOLE)
    seconds = period([Layer(0, 0, 2)], machines(3, "parallel", host=True), sync)
    assert seconds == 1 + 3 * Fraction(8, 2) + 1


def test_pulling_costs_two_more_messages() -> None:
    sync = sync_policy("sliced", servers=("host:0",), message="1 s", **WHOLE)
    cluster = machines(1, "egress", host=True)
    assert period([Layer(0, 0, 2)], cluster, sync) == 2 * (1 + 1)
    assert period([Layer(0, 0, 2)], cluster, replace(sync, reply="pull")) == 2 * (1 + 1) + 2 * (
        1 + Fraction(100, 8)
    )


# P3 and its trap.


def test_holding_both_queues_at_once_turns_the_gain_of_p3_into_a_loss() -> None:
    """A backlog at a receiver blocks its senders: slices that could go elsewhere wait behind."""
    layers = [
        Layer(1, 6, 100),
        Layer(1, 4, 100),
        Layer(2, 6, 4),
        Layer(3, 2, 40),
        Layer(2, 6, 8),
        Layer(1, 5, 100),
    ]
    cluster = machines(4, bandwidth=40)

    def seconds(policy: str, **told: object) -> float:
        outcome = answered(layers, cluster, sync_policy(policy, **told))
        return step_time_ps(outcome.trace) / PS

    base = seconds("parameter-server", even_parameters=50)
    assert seconds("p3", slice_parameters=4) < base
    assert seconds("p3", slice_parameters=4, hold="together") > base


@pytest.mark.parametrize("policy", PRESETS)
def test_without_limits_every_policy_takes_the_compute_time(policy: str) -> None:
    """G5: unlimited bandwidth and server rate, no cost of a message; each hop is rounded up to a
    picosecond.
    """
    layers = [Layer(1, 2, 1000), Layer(2, 3, 5_000_000), Layer(1, 1, 70)]
    cluster = machines(3, bandwidth=10**18)
    slack = Fraction(100_000, PS)
    assert 10 <= period(layers, cluster, sync_policy(policy)) <= 10 + slack


@pytest.mark.parametrize("policy", PRESETS)
def test_one_worker_sends_nothing(policy: str) -> None:
    outcome = answered([Layer(1, 2, 1000), Layer(2, 3, 9)], machines(1), sync_policy(policy))
    assert step_time_ps(outcome.trace) == 8 * PS
    assert TRANSFER not in outcome.trace.task_graph.tasks.kind


def test_byteps_cuts_pieces_of_its_own_size_and_skips_where_it_has_a_credit() -> None:
    """Of 4,096,000 bytes; on one link it is P3 with such slices, its sums asked for."""
    layers, cluster = (
        [Layer(1, 1, 2_500_000), Layer(1, 1, 400)],
        machines(2, "egress", bandwidth=10**6),
    )
    sync = sync_policy("byteps")
    names = answered(layers, cluster, sync).trace.task_graph.tasks.name
    assert {f"sum 0[{k}] sum" for k in range(3)} <= set(names)
    assert "sum 0[3] sum" not in set(names)
    like = sync_policy(
        "p3", slice_parameters=1_024_000, spread="hashed", reply="pull", server_order="fifo"
    )
    assert period(layers, cluster, sync) == period(layers, cluster, like)
    small = replace(sync, slice_parameters=400, credit=2_000)
    assert period(layers[1:], cluster, replace(small, credit_rule="skip")) > 0


def test_a_single_layer_leaves_no_choice() -> None:
    layers, cluster = [Layer(3, 5, 60)], machines(3)
    assert period(layers, cluster, sync_policy("p3", slice_parameters=7)) == period(
        layers, cluster, sync_policy("sliced", slice_parameters=7)
    )


def test_the_models_of_p3() -> None:
    vgg = build("vgg-19", batch=1)
    largest = max(op.param_bytes for op in vgg.ops) // 4
    assert parameter_count(vgg) == 143_667_240
    assert round(100 * largest / parameter_count(vgg), 1) == 71.5


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
    fifo = steady_state(execute(asked(chain, cluster, sync_policy("sliced", **told))).trace)
    best = steady_state(execute(asked(chain, cluster, sync_policy("p3", **told))).trace)
    assert fifo is not None
    assert best is not None
    assert best.period_ps <= fifo.period_ps
    busy = 4 * sum(layer.parameters for layer in chain)
    assert best.period_ps >= PS * max(sum(f + b for f, b, _ in layers), Fraction(busy, 8))


SYNCS_TRIED = st.builds(
    sync_policy,
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
    traces = [simulate(graph, engine) for engine in ("simpy", "compiled")]
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
    scenario = asked([Layer(*layer) for layer in layers], machines(workers, host=True), sync)
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
    outcome = answered(layers, machines(2), sync_policy("sliced", **WHOLE))
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
    scenario = asked(
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
    scenario = asked(EXAMPLE, machines(2), sync_policy("p3", slice_parameters=1))
    ordered = replace(scenario, strategy=replace(scenario.strategy, order="program"))  # type: ignore[arg-type]
    outcome = execute(ordered)
    assert check(outcome.trace.task_graph, outcome.trace) == ()
    steady = steady_state(outcome.trace)
    assert steady is not None
    assert steady.repeats


def test_a_cycle_of_two_is_found_and_exact() -> None:
    """Periods 3 and 5 in turn: the mean is 4, and every other step is alike."""
    steady = steady_state(_ending([10, 3, 5, 3, 5, 3, 5, 3]))
    assert steady is not None
    assert (steady.cycle, steady.period_ps) == (2, 4 * PS)
    assert sorted(steady.later_ps) == [3 * PS, 5 * PS]


def test_what_never_repeats_is_told() -> None:
    steady = steady_state(_ending([7, 1, 2, 3, 4, 5, 6, 7]))
    assert steady is not None
    assert (steady.cycle, steady.period_ps, steady.first_ps) == (0, 5 * PS, 7 * PS)
    assert any("NOT STEADY" in line for line in steady.lines())


def _ending(seconds: list[int]) -> Trace:
    """Steps of which each ends so much later than the one before."""
    step = lower_step(*_question([Layer(1, 1, 1)], machines(1), sync_policy("p3")))
    times = np.repeat(np.cumsum(seconds) * PS, len(step.task_graph.tasks))
    return Trace(iterated(step, len(seconds)), times, times, "by hand")


# Whole models.


@pytest.mark.parametrize("policy", PRESETS)
@pytest.mark.parametrize("queues", ["device", "fair", "half-duplex"])
def test_policies_of_a_partitioned_model(policy: str, queues: str) -> None:
    spec = DeviceSpec("gpu", {"float32": Fraction(10**12)}, Fraction(10**11))
    cluster = machines(2, queues, bandwidth="1 GB/s")
    sync = sync_policy(policy)
    sync = replace(sync, slice_parameters=20_000) if sync.slice_parameters else sync
    strategy = Strategy(short="data-parallel", sync=sync)
    prepared = Prepared(build("lenet", batch=8), cluster, CostModel(specs=(spec,)))
    step = lower_step(prepared, strategy)
    graph = iterated(step, 3)
    one, other = (simulate(graph, engine) for engine in ("simpy", "compiled"))
    assert np.array_equal(one.start, other.start)
    assert np.array_equal(one.finish, other.finish)
    assert check(graph, one) == ()
    assert step.across


def test_lower_takes_one_step_but_no_credit_and_the_oracle_answers_with_the_period() -> None:
    prepared, strategy = _question(EXAMPLE, machines(2, host=True), sync_policy("byte-scheduler"))
    with pytest.raises(InputError, match=r"sync\.credit: .*simulate the scenario"):
        lower_prepared(prepared, strategy)
    free = replace(strategy, sync=sync_policy("p3", slice_parameters=1))
    oracle = Oracle(prepared.graph, prepared.cluster, prepared.costs)
    for policy in (free, strategy):
        scenario = Scenario(prepared.graph, prepared.cluster, prepared.costs, policy)
        assert oracle(policy).step_ps == run(scenario).step_ps
        assert np.array_equal(oracle.trace(policy).start, execute(scenario).trace.start)
    assert simulate(lower_prepared(prepared, free)).end_ps > oracle(free).step_ps


PAGE = Path(__file__).parents[2] / "docs" / "sync.md"


def test_the_page_runs_and_tells_every_policy_and_setting(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = PAGE.read_text()
    for source in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(source, "sync.md", "exec"), {})
    assert capsys.readouterr().out.endswith("\n13.0\n9.0\n")
    for source in re.findall(r"```json\n(.*?)```", text, re.DOTALL):
        assert isinstance(read_strategy(json.loads(source)).sync, Sync)
    told = set(
        re.findall(
            r"`([\w-]+)`", " ".join(line for line in text.splitlines() if line.startswith("| `"))
        )
    )
    assert {*PRESETS, *(one.name for one in fields(Sync) if one.name != "policy")} <= told


# Files, the command line, and bad input.


@pytest.mark.parametrize("policy", PRESETS)
def test_strategies_are_written_and_read(tmp_path: Path, policy: str) -> None:
    more = (
        {"message": "30 us", "servers": ("host:0", "host:1")}
        if PRESETS[policy].get("transport") is None
        else {}
    )
    strategy = Strategy(sync=sync_policy(policy, **more))
    write_strategy(strategy, tmp_path / "s.json")
    assert read_strategy(tmp_path / "s.json") == strategy


BAD = {
    "unknown policy": ({"policy": "p4"}, "sync.policy: must be one of"),
    "no policy": ({"slice_parameters": 1}, "sync.policy: missing"),
    "slice of zero": (
        {"policy": "p3", "slice_parameters": 0},
        "sync.slice_parameters: must be > 0, got 0",
    ),
    "negative credit": (
        {"policy": "p3", "credit": -1},
        "sync.credit: must not be negative, got -1",
    ),
    "credit of zero": ({"policy": "p3", "credit": 0}, "sync.credit: must be > 0, got 0"),
    "unknown servers": (
        {"policy": "p3", "servers": "moon"},
        "sync.servers: must be one of sharded, star",
    ),
    "servers of numbers": ({"policy": "p3", "servers": {"machine": 3}}, "sync.servers: must be"),
    "no such machine": (
        {"policy": "p3", "servers": {"machine": "gpu:9"}},
        'sync.servers: no device named "gpu:9"',
    ),
    "a rate of zero": ({"policy": "p3", "aggregation": 0}, "sync.aggregation: must be > 0"),
    "two cuts": (
        {"policy": "p3", "bucket": 9, "slice_parameters": 9},
        "sync.bucket: goes without slice_parameters",
    ),
    "rate of an all-reduce": (
        {"policy": "bucketed", "aggregation": 9},
        "sync.aggregation: goes with the transport",
    ),
    "rule without credit": (
        {"policy": "p3", "credit_rule": "skip"},
        "sync.credit_rule: means something only with",
    ),
    "unknown key": ({"policy": "p3", "slices": 3}, "sync.slices: unknown key"),
    "a text": ("p3", "sync: must be one of all-reduce"),
    "negative message": (
        {"policy": "p3", "message": "-1 us"},
        "sync.message: must not be negative",
    ),
    "segment of zero": ({"policy": "p3", "segment": 0}, "sync.segment: must be > 0"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_policies_name_what_is_wrong(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sync, message = BAD[name]
    assert main(["simulate", _scenario_file(tmp_path, sync)]) == 2
    told = capsys.readouterr()
    assert message in told.err
    assert not told.out


def _scenario_file(folder: Path, sync: object, **strategy: object) -> str:
    question = {
        "version": 1,
        "graph": {"model": "lenet", "batch": 8},
        "cluster": {
            "version": 1,
            "name": "two",
            "queues": "device",
            "devices": [{"name": "gpu:0", "kind": "t4"}, {"name": "gpu:1", "kind": "t4"}],
            "links": {"all_to_all": {"bandwidth": "1 GB/s"}},
        },
        "strategy": {"version": 1, "short": "data-parallel", "sync": sync} | strategy,
    }
    path = folder / "scenario.json"
    path.write_text(json.dumps(question))
    return str(path)


def test_a_sequence_for_what_is_sent_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    order = {"policy": "fixed", "sequence": {"send gpu:0": [], "recv gpu:1": []}}
    assert main(["simulate", _scenario_file(tmp_path, {"policy": "p3"}, order=order)]) == 2
    assert (
        'order.sequence["send gpu:0"]: a synchronisation policy orders what is sent'
        in capsys.readouterr().err
    )


def test_unjoined_servers_are_told() -> None:
    devices = (Device("gpu:0"), Device("gpu:1"), Device("host:0", "cpu"))
    cluster = Cluster.all_to_all("apart", devices[:2], "device", bandwidth=8)
    apart = replace(cluster, devices=devices)
    with pytest.raises(InputError, match='sync: no route joins "gpu:'):
        execute(asked([Layer(1, 1, 4)], apart, sync_policy("p3", servers=("host:0",))))


def test_the_report_tells_the_period(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _scenario_file(tmp_path, {"policy": "p3", "slice_parameters": 10_000})
    assert (
        main(
            [
                "simulate",
                path,
                "--check",
                "--gantt",
                str(tmp_path / "g.png"),
                "--save",
                str(tmp_path / "r.json"),
            ]
        )
        == 0
    )
    told = capsys.readouterr()
    assert told.out.startswith("Step time ")
    assert "Steps follow one another: this is their period. First step " in told.out
    assert "no violation" in told.err
    assert (tmp_path / "g.png").stat().st_size > 10_000
    assert main(["check", str(tmp_path / "r.json")]) == 0
    capsys.readouterr()
    assert main(["simulate", path, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["step_time_s"] < found["first_step_s"] <= found["trace_s"]
    assert found["steps"] == len(found["periods_s"]) + 2
    assert found["cycle"] >= 1
    assert found["transfers"]["count"] > 0


def test_what_splitting_costs_counts_one_step() -> None:
    spec = DeviceSpec("gpu", {"float32": Fraction(10**12)}, Fraction(10**11))
    graph = build("lenet", batch=8)
    told = Strategy(short="data-parallel", sync=sync_policy("sliced"))
    scenario = Scenario(graph, machines(2, bandwidth="1 GB/s"), CostModel(specs=(spec,)), told)
    sums = {one.op: one.sync_bytes for one in run(scenario).splits}
    weight = next(op for op in graph.ops if op.name == "grad/fc_5/matmul_1")
    # Two workers: one pushes to the other and gets the sum back.
    assert sums[weight.name] == 2 * weight.outputs[0].bytes


def test_only_gradients_are_synchronised() -> None:
    """An all-reduce that the forward reads stays what it is."""
    both = {"ranks": ["gpu:0", "gpu:1"]}
    ops = (
        Op("a", outputs=(Tensor(8),), time=1),
        Op("b", outputs=(Tensor(8),), time=1),
        Op("sum", "all_reduce", inputs=("a", "b"), outputs=(Tensor(8), Tensor(8)), attrs=both),
        Op("c", inputs=("sum:0",), time=1),
        Op("d", inputs=("sum:1",), time=1),
    )
    placement = {"a": "gpu:0", "b": "gpu:1", "sum": "gpu:0", "c": "gpu:0", "d": "gpu:1"}
    strategy = Strategy(placement, sync=sync_policy("p3"))
    step = lower_step(Prepared(Graph("sums", ops), machines(2), CostModel()), strategy)
    assert step.task_graph.tasks.kind[2] == "collective"
