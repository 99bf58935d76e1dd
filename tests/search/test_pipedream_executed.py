"""PipeDream's plan executed: 1F1B over replicas, on the links of a cluster, beside the planner's
period.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings

from peers import PEERS
from profiles import layered
from simdev import Oracle
from simdev.commands import main
from simdev.execution.check import check
from simdev.formats import import_file
from simdev.nouns.cluster import Cluster, Device, Link
from simdev.nouns.graph import Graph
from simdev.search import compare, search
from simdev.search.pipedream.placer import Execution, executed
from simdev.search.pipedream.plan import (
    Level,
    Profile,
    Stage,
    levels_of,
    machines_of,
    partition,
    profile_of,
)
from worlds.clusters import UNIT, joined
from worlds.graphs import layers, op
from worlds.tape import drawn
from worlds.task_graphs import judged

PS = 1e-12


def plan_of(*replicas: int, sync: float = 0.0) -> list[Stage]:
    """A stage for each layer, the machines in a row."""
    ends = np.cumsum((0, *replicas)).tolist()
    return [
        Stage((number,), tuple(range(ends[number], ends[number + 1])), 0.0, sync * (count > 1))
        for number, count in enumerate(replicas)
    ]


def run(oracle: Oracle, plan: list[Stage]) -> Execution:
    """The execution, which both engines and the checker confirm."""
    execution = executed(oracle, plan, machines_of(oracle))
    trace = judged(execution.trace.task_graph)
    assert (trace.start == execution.trace.start).all()
    assert (trace.finish == execution.trace.finish).all()
    return execution


def exactly(execution: Execution) -> float:
    """The period in ps, of a state that was seen to repeat."""
    assert execution.to_json()["steady"]
    return execution.period_s / PS


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_equal_stages_take_as_long_as_planned(stages: int) -> None:
    """Without transfers and synchronisation the period of a straight pipeline is f + b, planned and
    executed.
    """
    oracle = Oracle(layers(*[(2, 4)] * stages), joined(stages))
    plan = partition(profile_of(oracle), levels_of(oracle), straight=True)
    assert [stage.replicas for stage in plan.stages] == [1] * stages
    execution = run(oracle, list(plan.stages))
    assert exactly(execution) == 6
    assert plan.seconds / PS == pytest.approx(6)
    assert execution.use.versions == tuple(range(stages, 0, -1))
    assert execution.use.latency_ps == 6 * stages


def test_transfers_wait_for_the_round_trip() -> None:
    """c each way and p minibatches in flight: f + b + 2 (p - 1) c / p, as from stage times."""
    oracle = Oracle(layers((2, 4), (2, 4), (2, 4), size=3), joined(3, queues="parallel"))
    execution = run(oracle, plan_of(1, 1, 1))
    assert execution.together_s == pytest.approx(6 * PS)
    assert exactly(execution) == 6 + 2 * 2 * 3 / 3
    assert execution.use.latency_ps == 3 * 6 + 4 * 3


@pytest.mark.parametrize("replicas", [2, 3, 5])
def test_one_stage_is_data_parallel(replicas: int) -> None:
    """(f + b + synchronisation) / r, as it is planned: nothing hides the synchronisation."""
    oracle = Oracle(layers((30, 60), parameters=10), joined(replicas))
    plan = partition(profile_of(oracle), levels_of(oracle))
    assert [stage.replicas for stage in plan.stages] == [replicas]
    synced = 4 * (replicas - 1) * 10 / replicas  # a byte takes 1 ps
    assert plan.stages[0].sync_seconds / PS == pytest.approx(synced)
    execution = run(oracle, list(plan.stages))
    assert exactly(execution) == pytest.approx(plan.seconds / PS, abs=1)
    assert exactly(execution) == pytest.approx((90 + synced) / replicas, abs=1)
    assert execution.in_turn_s / PS == pytest.approx(90 / replicas)


def test_a_slow_replica_sets_the_rhythm() -> None:
    """The planner takes the mean of all devices; whose turn it is does not ask who is fast."""
    times = [{"fast": f * PS, "slow": 3 * f * PS} for f in (30, 60)]
    graph = layers((1, 1))
    graph = replace(
        graph, ops=tuple(replace(o, time=t) for o, t in zip(graph.ops, times, strict=True))
    )
    kinds = ("fast", "fast", "slow")
    devices = [Device(f"g{d}", kind=kind) for d, kind in enumerate(kinds)]
    oracle = Oracle(graph, joined(devices))
    plan = partition(profile_of(oracle), levels_of(oracle))
    assert plan.seconds / PS == pytest.approx((90 + 90 + 270) / 3 / 3)
    execution = run(oracle, list(plan.stages))
    assert exactly(execution) == 270 / 3
    assert execution.alone_s / PS == pytest.approx(90)
    # Also where they do not wait for one another.
    assert execution.in_turn_s == execution.alone_s


def test_vgg_16_with_15_replicas_and_one() -> None:
    """The plan of the paper (table 1) for 16 workers, from its own profile."""
    imported = import_file(PEERS / "pipedream" / "vgg16" / "graph.txt", devices=16,
                           bandwidth="2.5 GB/s")  # fmt: skip
    oracle = Oracle(imported.graph, imported.cluster)
    plan = partition(profile_of(oracle), levels_of(oracle))
    assert [stage.replicas for stage in plan.stages] == [15, 1]
    execution = executed(oracle, plan.stages, machines_of(oracle))
    told = execution.to_json()
    assert told["steady"]
    assert (told["in_flight"], told["weight_versions"]) == (2, [2, 1])  # NOAM = ceil(16 / 15)
    assert execution.period_s == pytest.approx(plan.seconds, rel=1e-9)
    assert execution.in_turn_s == execution.alone_s == pytest.approx(0.0423406)
    assert check(execution.trace.task_graph, execution.trace) == ()


def test_what_a_plan_of_many_replicas_waits_for() -> None:
    """Four GPUs at 1 GB/s: VGG-16 is faster than planned, for a cut counts both ways there; ResNet
    and GNMT are slower, for transfers stand in the way of the few minibatches in flight.
    """
    found = {}
    for name in ("vgg16", "resnet50", "gnmt_large"):
        imported = import_file(PEERS / "pipedream" / name / "graph.txt")
        oracle = Oracle(imported.graph, imported.cluster)
        plan = partition(profile_of(oracle), levels_of(oracle))
        execution = executed(oracle, plan.stages, machines_of(oracle))
        assert execution.together_s <= plan.seconds * (1 + 1e-9)
        found[name] = plan.seconds, execution.period_s
    assert found["vgg16"] == pytest.approx((0.205520896, 0.202193628))
    assert found["resnet50"] == pytest.approx((0.162880924, 0.182699742))
    assert found["gnmt_large"] == pytest.approx((0.137129, 0.164716258))


def test_memory_of_stages() -> None:
    """Weights in as many versions as there are minibatches in flight, an activation for each, and
    what was received; states, gradients and workspace once.
    """
    graph = layers((2, 4), (2, 4), size=16, parameters=100, grad_bytes=7, state_bytes=5,
                   workspace_bytes=3)  # fmt: skip
    execution = run(Oracle(graph, joined(2)), plan_of(1, 1))
    # A gradient is read while the next one comes in; an input stays until the backward.
    assert execution.to_json()["peak_bytes"] == [2 * 100 + 15 + 4 * 16, 100 + 15 + 3 * 16]
    assert execution.to_json()["fits"]
    full = Oracle(graph, joined(2, memory=250))
    told = executed(full, plan_of(1, 1), [0, 1]).to_json()
    assert (told["fits"], told["memory_excess_bytes"]) == (False, 29)


def test_gradients_live_until_they_are_summed() -> None:
    """What updates read is there from the backward to the end of the synchronisation."""
    forward = op("f", 2, param_bytes=100, colocate="l")
    backward = op("b", 4, "f", size=100, phase="backward", colocate="l")
    update = op("u", 1, "b", phase="update", colocate="l")
    oracle = Oracle(Graph("one", (forward, backward, update)), joined(2))
    execution = run(oracle, plan_of(2, sync=5 * PS))
    assert exactly(execution) == (2 + 4 + 1 + 5) / 2
    assert execution.to_json()["peak_bytes"] == [200, 200]
    rows = execution.trace.task_graph.buffers
    assert rows.name.count("gradients of 0B0") == 1


def test_what_skips_a_stage_is_handed_on() -> None:
    """Bytes behind each stage: its own, and what a later stage reads of an earlier one; backward
    the same way, a tensor once.
    """
    graph = layers((1, 1), (1, 1), (1, 1), size=8)
    ops = [replace(o, inputs=(*o.inputs, "f0")) if o.name in ("f2", "b2") else o for o in graph.ops]
    ops = [replace(o, inputs=(*o.inputs, "b2")) if o.name == "b0" else o for o in ops]
    execution = run(Oracle(Graph("skip", tuple(ops)), joined(3)), plan_of(1, 1, 1))
    tasks = execution.trace.task_graph.tasks
    sent = {name: int(size) for name, size in zip(tasks.name, tasks.bytes, strict=True) if size}
    assert [sent[name] for name in ("0F0:0>g1", "1F0:0>g2")] == [8, 16]
    assert [sent[name] for name in ("2B0:0>g1", "1B0:0>g0")] == [8, 16]


@pytest.mark.parametrize("queues", ["parallel", "device", "half-duplex", "link", "fair"])
def test_queues_of_the_cluster_hold(queues: str) -> None:
    """Two replicas send to one stage: at a device's queue they wait for each other."""
    oracle = Oracle(layers((4, 4), (2, 2), size=3), joined(3, queues=queues))
    execution = run(oracle, plan_of(2, 1))
    assert exactly(execution) >= 4
    free = run(Oracle(layers((4, 4), (2, 2), size=3), joined(3, queues="parallel")), plan_of(2, 1))
    assert execution.period_s >= free.period_s * (1 - 1e-9)


def test_links_that_all_share_are_the_bottleneck() -> None:
    """Three replicas behind one wire to the last stage: 20 bytes a minibatch each way."""
    devices = [Device(f"g{d}", node=d // 3) for d in range(4)]
    switch = Device("switch", "switch")
    inside = [Link((f"g{d}", "switch"), bandwidth=100 * UNIT) for d in range(3)]
    wire = Link(("switch", "g3"), bandwidth=UNIT)
    cluster = Cluster("wire", (*devices, switch), (*inside, wire), queues="link")
    oracle = Oracle(layers((3, 3), (1, 1), size=20), cluster)
    assert exactly(run(oracle, plan_of(3, 1))) == pytest.approx(20)


def test_a_gap_follows_every_op() -> None:
    devices = [Device("g0", gap=1 * PS)]
    oracle = Oracle(layers((2, 4)), Cluster("one", tuple(devices), ()))
    assert exactly(run(oracle, plan_of(1))) == 2 + 1 + 4 + 1


@settings(max_examples=60)
@given(drawn(layered, 5, 4))
def test_every_machine_has_one_place(drawn_layers: tuple[Profile, list[Level]]) -> None:
    """All machines are used once, and a minibatch that stays in one machine of the outer level
    stays there from stage to stage.
    """
    profile, levels = drawn_layers
    stages = partition(profile, levels).stages
    machines = [machine for stage in stages for machine in stage.machines]
    assert sorted(machines) == list(range(levels[0].count * levels[1].count))
    for one, other in pairwise(stages):
        nodes = [[m // levels[0].count for m in stage.machines] for stage in (one, other)]
        if set(nodes[0]) == set(nodes[1]):
            assert all(nodes[0][i % one.replicas] == nodes[1][i % other.replicas]
                       for i in range(one.replicas * other.replicas))  # fmt: skip


def test_the_search_tells_both_periods(capsys: pytest.CaptureFixture[str], tmp_path) -> None:
    oracle = Oracle(layers((2, 4), (2, 4), size=1, parameters=1), joined(2))
    found = search(oracle, "pipedream")
    assert set(found.objectives) == {"step_time_s", "period_s", "executed_period_s"}
    assert found.details["executed_period_s"] == found.objectives["executed_period_s"]
    assert found.details["execution"]["period_s"] == found.objectives["executed_period_s"]
    table = compare(["single", "pipedream"], {"two": oracle})
    assert table.executed_period_s.isna().tolist() == [True, False]
    profile = PEERS / "pipedream" / "vgg16" / "graph.txt"
    scenario = tmp_path / "vgg.json"
    assert main(["import", str(profile), "-o", str(scenario)]) == 0
    capsys.readouterr()
    main(["search", str(scenario), "--method", "pipedream"])
    lines = capsys.readouterr().out.splitlines()
    first, marks, placed, fits, line, *_ = [lines[0], *lines[2:]]
    assert first.endswith(
        " s of a minibatch through the placed pipeline: 2 stages, one device each"
    )
    assert marks.startswith("one device: ")
    assert placed == "placed 40 groups of 80 ops, prepared by pair"
    assert fits.startswith("the placed pipeline fits; ")
    assert line.startswith(
        "the plan (stages of 3-1 replicas; executed, not placed): planned 205.521 ms, executed "
        "202.194 ms a minibatch (-1.6%): its slowest stage alone takes 171.4 ms, all stages in "
        "turn 171.4 ms, with replicas that synchronise 177.6 ms, and transfers make the rest; the "
        "plan fits"
    )
    main(["search", str(scenario), "--method", "pipedream", "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["executed_period_s"] == pytest.approx(0.202193628)
    assert answer["details"]["execution"]["weight_versions"] == [2, 1]


def test_a_plan_between_devices_without_a_route_is_not_executed() -> None:
    graph = layers((2, 4), (2, 4), size=1)
    apart = Oracle(graph, Cluster("apart", (Device("g0"), Device("g1")), ()))
    found = search(apart, "pipedream")
    assert "no route" in found.details["not_executed"]
    assert "executed_period_s" not in found.objectives
    assert found.objectives["period_s"] == pytest.approx(6 * PS)
