"""Synchronisation policies against closed forms and the papers' examples."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from simdev.execution.engine import simulate
from simdev.execution.period import steady_state, step_time_ps
from simdev.execution.scenario import execute
from simdev.lowering import lower_step
from simdev.lowering.sync.parcels import timing_aware_order, timing_independent_order
from simdev.nouns.models import build, parameter_count
from simdev.nouns.models.layers import Layer
from simdev.nouns.strategy import PRESETS, sync_policy
from simdev.nouns.taskgraph import TRANSFER, TaskGraph
from simdev.nouns.trace import Trace
from simdev.report import run
from sync_cases import EXAMPLE, PS, WHOLE, _question, period
from worlds.clusters import machines
from worlds.runs import executed, steady_of
from worlds.scenarios import synchronised

LATER = {"priority": "none", "server_order": "fifo"}


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
        # A byte that is left of the credit lets one slice more go; none that is left, none.
        ({"slice_parameters": 1, "credit": 5}, Fraction(19, 2)),
        ({"slice_parameters": 1, "credit": 8}, Fraction(19, 2)),
        ({"slice_parameters": 1, "credit": 5, "credit_rule": "skip"}, 9),
        ({"slice_parameters": 1, "credit": 8, "credit_rule": "skip"}, Fraction(19, 2)),
        ({"slice_parameters": 1, "credit": 10**6}, Fraction(21, 2)),
    ],
    ids=[
        "whole",
        "priority only",
        "slices only",
        "both",
        "credit of one slice",
        "a byte more than a slice",
        "two slices",
        "a byte more, of which only whole slices go",
        "two whole slices",
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
        steady = steady_of(executed(synchronised(layers, cluster, told)).trace)
        assert Fraction(steady.first_ps, PS) == 2 * workers * once + more
        assert steady.period_ps / PS >= workers * once
    sliced = steady_state(
        executed(synchronised(layers, cluster, replace(sync, slice_parameters=segment // 4))).trace
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
    outcome = executed(synchronised(layers, cluster, sync))
    steady = steady_of(outcome.trace)
    assert closed <= steady.period_ps / PS <= closed + 2 * Fraction(4, 8)
    uses = {
        use.name: use.bytes
        for use in run(synchronised(layers, cluster, sync)).links
        if use.transfers
    }
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
        outcome = executed(synchronised(layers, cluster, sync_policy(policy, **told)))
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
    outcome = executed(
        synchronised([Layer(1, 2, 1000), Layer(2, 3, 9)], machines(1), sync_policy(policy))
    )
    assert step_time_ps(outcome.trace) == 8 * PS
    assert TRANSFER not in outcome.trace.task_graph.tasks.kind


def test_byteps_cuts_pieces_of_its_own_size_and_skips_where_it_has_a_credit() -> None:
    """Of 4,096,000 bytes; on one link it is P3 with such slices, its sums asked for."""
    layers, cluster = (
        [Layer(1, 1, 2_500_000), Layer(1, 1, 400)],
        machines(2, "egress", bandwidth=10**6),
    )
    sync = sync_policy("byteps")
    names = executed(synchronised(layers, cluster, sync)).trace.task_graph.tasks.name
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


@pytest.mark.parametrize("rule", ["wait", "skip"])
@pytest.mark.parametrize("credit", [4, 5, 8, 9, 16, 17])
def test_a_credited_schedule_without_ties_is_right_at_the_first_try(
    credit: int, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference engine decides while it runs who may go; replaying its trace must decide alike,
    so each number of steps is simulated once.
    """
    sizes = list[int]()

    def counted(graph: TaskGraph, engine: str) -> Trace:
        sizes.append(len(graph.tasks))
        return simulate(graph, engine)

    monkeypatch.setattr("simdev.execution.period.simulate", counted)
    layers = [Layer(1, 1, 3), Layer(1.37, 1.11, 6), Layer(1.73, 1.29, 4)]
    policy = {"slice_parameters": 2, "credit": credit, "credit_rule": rule}
    sync = sync_policy("p3", servers=("host:0",), **policy)
    execute(synchronised(layers, machines(1, "egress", host=True), sync))
    assert len(sizes) == len(set(sizes)) > 0
