"""Every what-if line of a scenario is a run of the changed one, built here from the question.

A faster device is of a kind of its own, on which every op is told to take half the time; a faster
class of ops is told half its times; a faster link has twice the bandwidth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import simdev.execution.period
from simdev import CostModel, Graph, Op, Scenario, Strategy, Tensor, run
from simdev.costs.collectives import CollectiveTable
from simdev.execution.scenario import prepare
from simdev.ground.errors import DeadlockError, InputError
from simdev.lowering import split
from simdev.nouns.cluster import QUEUES, TRANSFERS, Cluster, Device
from simdev.nouns.models.layers import Layer, layer_graph
from simdev.nouns.strategy import (
    POLICIES,
    PRESETS,
    SYNCS,
    Collectives,
    Configuration,
    Parallelism,
    Sync,
    sync_policy,
)
from simdev.report.page import what_ifs
from worlds.clusters import make_cluster
from worlds.scenarios import make_world
from worlds.tape import Tape, drawn

KINDS = ("op", "conv", "fc")
PS = Fraction(1, 10**12)


@pytest.fixture(autouse=True)
def few_steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of steps that do not repeat themselves, lines and runs have the same number, few or many."""
    if not request.node.get_closest_marker("slow"):
        monkeypatch.setattr(simdev.execution.period, "COUNTS", (4, 8))


def faster(scenario: Scenario, what: str, name: str, by_kind: bool) -> Scenario | None:
    """The scenario in which this is twice as fast; None where no question tells it."""
    graph, cluster = scenario.graph, scenario.cluster
    if what == "devices":
        return replace(scenario, graph=timed(graph, cluster, lambda op, kind: 2))
    if what == "device":
        d = cluster.index[name]
        device = replace(cluster.devices[d], kind=f"{cluster.devices[d].kind}, faster")
        devices = (*cluster.devices[:d], device, *cluster.devices[d + 1 :])
        there = replace(cluster, devices=devices)
        ops = timed(graph, there, lambda op, kind: 2 if kind == device.kind else 1)
        return replace(scenario, graph=ops, cluster=there)
    if what in ("link", "links"):
        chosen = [link for link in cluster.links if name in ("all", " - ".join(link.ends))]
        wider = [
            replace(link, bandwidth=Fraction(link.bandwidth) * 2, measured_bandwidth=link.bandwidth)
            for link in chosen
        ]
        kept = [link for link in cluster.links if link not in chosen]
        return replace(scenario, cluster=replace(cluster, links=(*wider, *kept)))
    if name == "collectives":
        return with_tables(scenario)
    chosen = {op.name for op in graph.ops if name == (op.kind if by_kind else op.phase)}
    return replace(scenario, graph=timed(graph, cluster, lambda op, _: 1 + (op.name in chosen)))


def timed(graph: Graph, cluster: Cluster, factor: Callable[[Op, str], int]) -> Graph:
    """The graph with the given times of its ops divided, on every kind of device."""
    kinds = {device.kind for device in cluster.devices}
    given = {kind: kind.removesuffix(", faster") for kind in kinds}
    ops = []
    for op in graph.ops:
        times = {kind: op.seconds_on(old) for kind, old in given.items()}
        known = {k: one / factor(op, k) for k, one in times.items() if one is not None}
        ops.append(replace(op, time=known or None))
    return Graph(graph.name, tuple(ops))


def with_tables(scenario: Scenario) -> Scenario | None:
    collectives = scenario.strategy.collectives
    if collectives.cost != "table":
        return None
    halved = []
    for table in collectives.tables:
        halved.append(replace(table, anchors=[(size, one / 2) for size, one in table.anchors]))
    told = replace(collectives, tables=halved)
    return replace(scenario, strategy=replace(scenario.strategy, collectives=told))


def assert_lines_are_runs(scenario: Scenario, by_kind: bool = True) -> int:
    """Compare every line that a question tells; how many there were."""
    try:
        report = run(scenario)
    except (InputError, DeadlockError):
        assume(False)
    kinds: Mapping[str, str] | None = None
    if by_kind:
        ops = split(prepare(scenario), scenario.strategy).prepared.graph.ops
        kinds = {op.name: op.kind for op in ops}
    compared = 0
    for line in what_ifs(report, kinds, scenario):
        changed = faster(scenario, line.kind, line.name, by_kind)
        if changed is not None:
            again = run(changed).step_ps
            assert line.step_ps == again, (line.kind, line.name)
            assert line.gain == ((report.step_ps - again) / report.step_ps if report.step_ps else 0)
            compared += 1
    return compared


def make_placed(tape: Tape) -> Scenario:
    """Random ops on random devices, in any order, over staging hosts, under any queues."""
    world = make_world(tape, POLICIES, QUEUES, TRANSFERS)
    graph = Graph("g", tuple(replace(op, kind=tape.pick(*KINDS)) for op in world.graph.ops))
    steps = tape.pick("once", "repeated")
    return Scenario(graph, world.cluster, CostModel(), world.strategy, steps=steps)


@settings(max_examples=60)
@given(drawn(make_placed), st.booleans())
def test_lines_of_placed_ops_are_runs(scenario: Scenario, by_kind: bool) -> None:
    assert_lines_are_runs(scenario, by_kind)


def make_layers(tape: Tape, policy: str) -> Scenario:
    """A few layers on two to four workers, their gradients added up as a policy says."""
    cluster = make_cluster(tape, QUEUES, ("once-per-device", "per-consumer"))
    workers = [device.name for device in cluster.devices if device.runs_ops and not device.staging]
    count = 1 + tape.number(4)
    sizes = [(tape.number(40), 1 + tape.number(40), 1 + tape.number(6)) for _ in range(count)]
    layers = [Layer(forward * PS, backward * PS, weights) for forward, backward, weights in sizes]
    graph, placement = layer_graph(layers, workers)
    ops = [replace(op, kind=tape.pick(*KINDS)) if op.kind == "op" else op for op in graph.ops]
    sync: str | Sync = policy if policy in SYNCS else made_policy(tape, policy)
    strategy = Strategy(
        placement,
        sync=sync,
        collectives=made_collectives(tape, sync),
        accumulate=tape.pick(1, 1, 2),
    )
    steps = tape.pick("once", "repeated")
    return Scenario(Graph("layers", tuple(ops)), cluster, CostModel(), strategy, steps=steps)


def made_policy(tape: Tape, policy: str) -> Sync:
    changes: dict[str, object] = {"segment": tape.pick(200_000, 4)}
    changes["hold"] = tape.pick("in-turn", "together")
    if PRESETS[policy].get("transport") != "all-reduce":
        if "slice_parameters" in PRESETS[policy]:
            changes["slice_parameters"] = 1 + tape.number(3)
        if "credit" in PRESETS[policy]:
            changes |= {"credit": tape.pick(4, 8, 20), "credit_rule": tape.pick("wait", "skip")}
        changes["aggregation"] = tape.pick(None, 10**12)
    return sync_policy(policy, **changes)


def made_collectives(tape: Tape, sync: str | Sync) -> Collectives:
    anchors = [(4, 3 * PS), (16, 9 * PS)]
    tables = [CollectiveTable("all_reduce", ranks, anchors) for ranks in (2, 3, 4)]
    slowdown = tape.pick(Fraction(13, 10), Fraction(1), Fraction(2))
    slowdown = slowdown if isinstance(sync, str) else Fraction(1)  # policies do not know it
    cost = tape.pick("closed", "table", "expanded")
    return Collectives(cost=cost, tables=tables if cost == "table" else (), slowdown=slowdown)


SYNC_POLICIES = (*SYNCS, *PRESETS)
CREDITED = ("byte-scheduler",)  # what a credit lets go takes many simulations to find


@pytest.mark.parametrize("policy", [policy for policy in SYNC_POLICIES if policy not in CREDITED])
@settings(max_examples=4)
@given(data=st.data())
def test_lines_under_every_policy_are_runs(policy: str, data: st.DataObject) -> None:
    assert_lines_are_runs(data.draw(drawn(make_layers, policy)))


@settings(max_examples=3)
@given(drawn(make_layers, *CREDITED))
def test_lines_under_a_credit_are_runs(scenario: Scenario) -> None:
    assert_lines_are_runs(scenario)


@pytest.mark.slow
@pytest.mark.parametrize("policy", SYNC_POLICIES)
@settings(max_examples=40)
@given(data=st.data())
def test_lines_of_many_scenarios_under_every_policy_are_runs(policy, data) -> None:
    assert_lines_are_runs(data.draw(drawn(make_layers, policy)))


def make_split(tape: Tape) -> Scenario:
    """A chain of products of which some are cut, their times divided; or stages of equal time."""
    count = 2 + tape.number(6)
    made = Graph("chain", tuple(chain(tape, count)))
    queues = tape.pick(*QUEUES)
    devices = [Device(f"gpu:{d}", kind=tape.pick("gpu", "other")) for d in range(4)]
    cluster = Cluster.all_to_all("c", devices, queues, bandwidth=10**12, latency=tape.pick(0, PS))
    slowdown = Fraction(1) if queues == "fair" else tape.pick(Fraction(1), Fraction(3, 2))
    collectives = Collectives(slowdown=slowdown)
    if tape.pick(True, False):
        strategy = Strategy(short="model-parallel", collectives=collectives)
    else:
        axes = [tape.pick("sample", "channel") for _ in range(count)]
        cuts = {f"y{k}": Configuration({axis: 2}, (), "divided") for k, axis in enumerate(axes)}
        strategy = Strategy({"*": "gpu:3"}, partition=cuts, collectives=collectives)
    return Scenario(made, cluster, CostModel(), strategy)


def chain(tape: Tape, count: int) -> Iterator[Op]:
    """x, then y = relu or product of it and so on, each with times on two kinds of device."""
    tensor = (Tensor(8 * 8 * 4, (8, 8), "float32"),)
    yield Op("x", "input", outputs=tensor, time=0)
    last = "x"
    for k in range(count):
        times = {"gpu": (1 + tape.number(50)) * PS, "other": (1 + tape.number(50)) * PS}
        yield Op(f"w{k}", "parameter", outputs=tensor, param_bytes=256, time=0)
        kind, inputs = tape.pick(("matmul", (last, f"w{k}")), ("relu", (last,)))
        yield Op(f"y{k}", kind, inputs=inputs, outputs=tensor, time=times)
        last = f"y{k}"


def make_pipeline(tape: Tape) -> Scenario:
    """Layers in stages of equal time, or as named, one microbatch after another."""
    count = 2 + tape.number(5)
    sizes = [(tape.number(40), 1 + tape.number(40), 1 + tape.number(6)) for _ in range(count)]
    layers = [Layer(forward * PS, backward * PS, weights) for forward, backward, weights in sizes]
    graph, _ = layer_graph(layers, ["gpu:0"])
    ops = [replace(op, kind=tape.pick(*KINDS)) if op.kind == "op" else op for op in graph.ops]
    devices = [Device(f"gpu:{d}", kind=tape.pick("gpu", "other")) for d in range(2)]
    cluster = Cluster.all_to_all("c", devices, tape.pick(*QUEUES), bandwidth=10**12)
    stages = tape.pick((), ("forward 1.0",))
    pipeline = Parallelism(pp=2, microbatches=1 + tape.number(3), stages=stages)
    told, steps = Strategy(pipeline=pipeline), tape.pick("once", "repeated")
    return Scenario(Graph("layers", tuple(ops)), cluster, CostModel(), told, steps=steps)


@settings(max_examples=30)
@given(drawn(make_pipeline))
def test_lines_of_pipelines_are_runs(scenario: Scenario) -> None:
    assert_lines_are_runs(scenario)


@settings(max_examples=60)
@given(drawn(make_split))
def test_lines_of_split_ops_are_runs(scenario: Scenario) -> None:
    assert_lines_are_runs(scenario)
