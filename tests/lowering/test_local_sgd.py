"""Local SGD: rounds of steps of which the last averages the parameters (``Sync.every``)."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simdev import Oracle
from simdev.commands import main
from simdev.costs import CostModel
from simdev.execution.check import host_faults
from simdev.execution.engine import simulate
from simdev.execution.period import Steady
from simdev.execution.scenario import Scenario, execute, load_scenario
from simdev.files import read_run
from simdev.ground.errors import InputError
from simdev.lowering import Prepared, iterated, lower_step
from simdev.lowering.sync.weights import updates_behind
from simdev.nouns.cluster import Host
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.models.layers import Layer, layer_graph
from simdev.nouns.strategy import Strategy, Sync, sync_policy
from simdev.report import run
from sync_cases import PS, WHOLE, period
from worlds.clusters import machines
from worlds.runs import executed, repeated, steady_of
from worlds.scenarios import lenet, synchronised


def local_sgd(every: int, **changes: Any) -> Sync:
    return sync_policy("local-sgd", every=every, **changes)


def updating(scenario: Scenario, seconds: int) -> Scenario:
    """The scenario with updates that take so long."""
    graph = scenario.graph
    assert isinstance(graph, Graph)
    ops = (replace(op, time=seconds) if op.phase == "update" else op for op in graph.ops)
    return replace(scenario, graph=Graph(graph.name, tuple(ops)))


# Against closed forms.


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("every", [1, 2, 3, 8])
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_a_round_is_its_steps_and_one_reduction(workers: int, every: int, overlap: bool) -> None:
    """k (c + u) + r, with r = 2 (n - 1) / n x S / B of a ring (Patarasuk, Yuan, JPDC 2009)."""
    size = 8 * 12 * workers
    layers, cluster = [Layer(3, 2, size // 4)], machines(workers)
    ring = Fraction(2 * (workers - 1) * size, workers * 8)
    sync = local_sgd(every, overlap=overlap, bucket=size)
    scenario = updating(synchronised(layers, cluster, sync), 4)
    trace = executed(scenario).trace
    steady = repeated(trace)
    assert steady.period_ps * every == (every * (3 + 2 + 4) + ring) * PS
    assert (steady.round, steady.cycle) == (every, every)
    assert steady.periods_ps[-every:].count(9 * PS) == every - 1
    assert trace.task_graph.steps == steady.steps == every * trace.task_graph.rounds
    kinds = list(trace.task_graph.tasks.kind)
    assert kinds.count("collective") == trace.task_graph.rounds


def test_the_bytes_of_a_round_are_those_of_a_ring_over_the_parameters() -> None:
    workers, every, layers = 4, 5, [Layer(1, 1, 10), Layer(1, 1, 30)]
    scenario = synchronised(layers, machines(workers), local_sgd(every))
    ring = 2 * (workers - 1) * 4 * (10 + 30)
    report = run(scenario)
    assert report.transfer_bytes == ring / every
    sent = [link.bytes for link in report.links if link.name.startswith("send")]
    assert sent == [ring / workers / every] * workers
    assert report.transfer_count == 1  # a fifth of one, rounded up


SECONDS = st.integers(0, 4)
LAYERS = st.lists(st.builds(Layer, SECONDS, SECONDS, st.integers(1, 40)), min_size=1, max_size=4)


@settings(max_examples=40, deadline=None)
@given(LAYERS, st.integers(2, 4), st.integers(2, 9), st.sampled_from([None, 9, 64, 2**59]))
def test_rounds_of_any_length(
    layers: list[Layer], workers: int, every: int, bucket: int | None
) -> None:
    """A round costs its local steps more than a round of one; with overlap never more than
    without, and what is told of few rounds holds for many.
    """
    layers = [*layers, Layer(1, 0, 1)]
    cluster = machines(workers)

    def seconds(sync: Sync) -> Fraction:
        return period(layers, cluster, sync)

    computing = sum(Fraction(layer.forward) + Fraction(layer.backward) for layer in layers)
    apart = seconds(local_sgd(every, bucket=bucket))
    assert every * apart == (every - 1) * computing + seconds(local_sgd(1, bucket=bucket))
    scenario = synchronised(layers, cluster, local_sgd(every, bucket=bucket, overlap=True))
    steady = repeated(executed(scenario).trace)
    assert computing <= steady.period_ps / PS <= apart
    step = lower_step(Prepared(scenario.graph, cluster, scenario.costs), scenario.strategy)
    trace = simulate(iterated(step, 24), "compiled")
    ends = trace.task_graph.by_round(trace.finish + trace.task_graph.tasks.lag).max(axis=1)
    rounds = steady.cycle // every
    assert ends[23] - ends[23 - rounds] == steady.period_ps * steady.cycle


@settings(max_examples=20, deadline=None)
@given(LAYERS, st.integers(2, 4), st.booleans())
def test_a_round_of_one_step_is_a_bulk_synchronous_step(
    layers: list[Layer], workers: int, whole: bool
) -> None:
    """The nearest policy: it sends before the update, and not after; updates take no time here."""
    cuts = WHOLE if whole else {"bucket": 64}
    bulk = sync_policy("bulk-synchronous", **cuts)
    average = local_sgd(1, **cuts)
    cluster = machines(workers)
    assert period(layers, cluster, average) == period(layers, cluster, bulk)


def test_with_overlap_a_parcel_goes_once_its_own_parameters_are_updated() -> None:
    """Two parcels of 4 s, of which the first goes while the other layer is updated (1 s)."""
    layers, cluster = [Layer(4, 1, 8), Layer(4, 1, 8)], machines(2)
    apart, beside = (
        repeated(
            executed(
                updating(synchronised(layers, cluster, local_sgd(2, bucket=None, overlap=o)), 1)
            ).trace
        )
        for o in (False, True)
    )
    assert apart.period_ps == Fraction(2 * 12 + 2 * 4, 2) * PS
    assert beside.period_ps == apart.period_ps - Fraction(1, 2) * PS


def test_microbatches_come_before_the_update_of_each_step() -> None:
    scenario = synchronised([Layer(3, 2, 8)], machines(2), local_sgd(3))
    scenario = replace(scenario, strategy=replace(scenario.strategy, accumulate=2))
    steady = repeated(executed(updating(scenario, 1)).trace)
    assert steady.period_ps == Fraction(3 * (2 * 5 + 1) + 4, 3) * PS


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_hosts_dispatch_every_step_of_a_round(mode: str) -> None:
    cluster = replace(machines(2), host=Host(mode, 3, "node", "1 s"))
    scenario = synchronised([Layer(2, 1, 8), Layer(1, 2, 8)], cluster, local_sgd(3))
    ops = tuple(replace(op, host_time=1) for op in scenario.graph.ops)
    scenario = replace(scenario, graph=Graph("hosted", ops))
    trace = executed(scenario).trace
    steady = repeated(trace)
    assert steady.cycle % 3 == 0
    prepared = Prepared(scenario.graph, cluster, scenario.costs)
    step = lower_step(prepared, scenario.strategy)
    assert step.dispatches is not None
    graph = step.dispatches.prepared.graph
    assert host_faults(graph, cluster, scenario.costs, trace) == ()
    names = [name for name in trace.task_graph.tasks.name if name.startswith("dispatch")]
    assert len(set(names)) == len(names) == len(step.dispatches.task) * steady.steps or (
        mode == "graph" and len(names) == 2 * steady.steps
    )


@pytest.mark.parametrize("every", [1, 2, 3])
def test_a_loader_makes_a_batch_for_every_step_of_a_round(every: int) -> None:
    sync = {"policy": "local-sgd", "every": every}
    strategy = {"version": 1, "short": "data-parallel", "sync": sync}
    document = {"version": 1, "graph": {"model": "lenet"}, "cluster": "colocrl-4x-k80"}
    slow = {"device": "cpu:0", "time": "80 ms"}
    trace = execute(load_scenario({**document, "strategy": {**strategy, "loader": slow}})).trace
    steady = steady_of(trace)
    assert steady.round == every
    # A loader that is much slower than the workers and their averages decides the step.
    assert 80 * PS // 1000 <= steady.step_ps < 81 * PS // 1000
    assert trace.task_graph.steps % every == 0


def test_other_collectives_run_in_every_step_of_a_round() -> None:
    """An all-reduce that the forward reads is none of the round's."""
    graph, placement = layer_graph([Layer(1, 1, 8)], ["gpu:0", "gpu:1"])
    made = {op.name: op for op in graph.ops}
    for r in range(2):
        forward = made[f"forward 0.{r}"]
        part = Op(f"part.{r}", inputs=(f"weight 0.{r}",), outputs=(Tensor(8),), time=1)
        made[part.name] = part
        made[forward.name] = replace(forward, inputs=(*forward.inputs, f"act:{r}"))
        placement[part.name] = f"gpu:{r}"
    both = {"ranks": ["gpu:0", "gpu:1"]}
    outputs = (Tensor(8), Tensor(8))
    made["act"] = Op("act", "all_reduce", inputs=("part.0", "part.1"), outputs=outputs, attrs=both)
    placement["act"] = "gpu:0"
    strategy = Strategy(placement, sync=local_sgd(3))
    graph = Graph("tensor parallel", tuple(made.values()))
    trace = executed(Scenario(graph, machines(2), CostModel(), strategy)).trace
    steady = repeated(trace)
    assert list(trace.task_graph.tasks.kind).count("collective") == steady.steps * 4 // 3
    assert steady.period_ps == Fraction(3 * (1 + 1 + 1 + 1) + 4, 3) * PS


# What is sent, and where it lies.


def test_parameters_are_sent_in_their_own_dtype() -> None:
    """Master weights of float32 whose gradients are float16."""
    graph, placement = layer_graph([Layer(1, 1, 8)], ["gpu:0", "gpu:1"])
    half = Tensor(16, (8,), "float16")
    ops = tuple(
        replace(op, outputs=tuple(half if t.bytes else t for t in op.outputs))
        if op.phase == "backward"
        else op
        for op in graph.ops
    )
    graph = Graph("mixed", ops)
    for sync, size in ((local_sgd(2), 32), (sync_policy("bucketed"), 16)):
        scenario = Scenario(graph, machines(2), CostModel(), Strategy(placement, sync=sync))
        tasks = execute(scenario).trace.task_graph.tasks
        assert max(tasks.bytes.tolist()) == size


def test_updates_behind_an_op_that_clips_are_waited_for() -> None:
    ops = (
        Op("w", "parameter", outputs=(Tensor(8),), param_bytes=8),
        Op("gate", "input", "update", outputs=(Tensor(8),)),
        Op("clip", phase="update", inputs=("gate",), outputs=(Tensor(8),)),
        Op("u", phase="update", inputs=("w", "clip")),
        Op("near", phase="update", inputs=("w", "other")),
        Op("other", "input", "update", outputs=(Tensor(8),)),
    )
    assert updates_behind(Graph("clipped", ops), [1, 5]) == {1: [2, 3], 5: [4]}


def test_a_flat_copy_lies_beside_the_parameters_while_it_is_averaged() -> None:
    scenario = synchronised([Layer(1, 1, 8), Layer(1, 1, 4)], machines(2), local_sgd(4))
    trace = executed(scenario).trace
    buffers = trace.task_graph.buffers
    flat = [row for row, name in enumerate(buffers.name) if name.startswith("bucket 0")]
    assert len(flat) == 2 * trace.task_graph.rounds
    begin, end = trace.lifetimes
    for row in flat:
        filler = int(buffers.filler[row])
        assert buffers.bytes[row] == 48
        assert (begin[row], end[row]) == (trace.start[filler], trace.finish[filler])
    # Gradients need not wait for others: they are gone with the update of their own step.
    assert trace.memory[0].at_peak["activations"] <= 48 + 48


def test_names_tell_the_step() -> None:
    step_of = synchronised([Layer(1, 1, 8)], machines(2), local_sgd(3))
    prepared = Prepared(step_of.graph, step_of.cluster, step_of.costs)
    graph = iterated(lower_step(prepared, step_of.strategy), 2)
    assert (graph.steps, graph.rounds, len(graph.round)) == (6, 2, 3)
    sums = [row for row, kind in enumerate(graph.tasks.kind) if kind == "collective"]
    assert [graph.tasks.name[row] for row in sums] == ["bucket 0~2", "bucket 0~5"]
    begins = graph.step_begins.tolist()
    assert [name for name in graph.tasks.name if name.startswith("forward 0.1")] == [
        "forward 0.1", *(f"forward 0.1~{k}" for k in range(1, 6)),
    ]  # fmt: skip
    assert [begins[2] <= sums[0] < begins[3], begins[5] <= sums[1] < begins[6]] == [True, True]
    assert len(set(graph.tasks.name)) == len(graph.tasks)
    assert graph.whole_step == slice(begins[2], begins[3])
    assert graph.whole_step.start + graph.round[2] == graph.whole_step.stop


def test_the_mean_of_rounds_that_do_not_repeat_is_one_of_whole_rounds() -> None:
    steady = Steady(1, (1, 4, 1, 1, 5, 1, 1, 6, 1, 1, 7), 15, 0, 30, 3)
    assert steady.later_ps == (1, 1, 6, 1, 1, 7)
    assert Steady(1, (1, 4, 1, 1, 5), 7, 0, 12).later_ps == (1, 1, 5)


def test_a_worker_alone_has_no_rounds() -> None:
    report = run(synchronised([Layer(1, 1, 8)], machines(1), local_sgd(4)))
    assert "No gradient is synchronised" in str(report)
    assert "averaged" not in str(report)
    assert report.steady is not None
    assert (report.steady.round, report.step_ps) == (1, 2 * PS)


# Files, the command line, and bad input.


@pytest.fixture
def scenario_file(tmp_path: Path) -> Path:
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps(lenet("dgx-1v", sync={"policy": "local-sgd", "every": 6})))
    return path


def test_the_report_tells_of_rounds(
    scenario_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", str(scenario_file), "--check"]) == 0
    printed = capsys.readouterr()
    assert "the period of a round of 6 steps, divided by 6. First step " in printed.out
    assert "Every 6 steps the same comes again in every task" in printed.out
    assert "averaged by local-sgd after each round of 6 steps, all at once." in printed.out
    assert "no violation" in printed.err
    assert main(["simulate", str(scenario_file), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["round"], answer["cycle"], answer["steps"] % 6) == (6, 6, 0)
    assert answer["step_time_ps"] == -(-round(sum(answer["periods_s"][-6:]) * PS) // 6)
    assert answer["period_min_s"] < answer["period_max_s"]


def test_a_bare_name_is_a_round_of_four(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps(lenet("dgx-1v", sync="local-sgd")))
    assert main(["simulate", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["round"] == 4


def test_a_saved_run_keeps_its_rounds(
    scenario_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, chart, events = (tmp_path / name for name in ("run.json", "chart.png", "events.json"))
    arguments = ["simulate", str(scenario_file), "--save", str(saved), "--gantt", str(chart)]
    assert main([*arguments, "--trace", str(events)]) == 0
    assert chart.stat().st_size > 10_000
    traced = json.loads(events.read_text())
    assert "bucket 0~5" in {event["name"] for event in traced["traceEvents"]}
    graph = read_run(saved).task_graph
    assert graph.steps == 6 * graph.rounds
    assert graph.round[:5] == graph.round[:1] * 5
    assert graph.round[5] > graph.round[0]
    assert main(["check", str(saved)]) == 0
    fields = json.loads(saved.read_text())
    for wrong, message in (
        ([*graph.round, 1], "round: 24 steps are no rounds of 7 steps"),
        ([1] * 6, f"round: {len(graph.tasks)} tasks are no 4 rounds of 6 tasks each"),
    ):
        saved.write_text(json.dumps(fields | {"round": wrong}))
        capsys.readouterr()
        assert main(["check", str(saved)]) == 2
        assert message in capsys.readouterr().err


def test_two_strategies_are_compared_by_step(
    scenario_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.json"
    other.write_text(json.dumps(lenet("dgx-1v", sync={"policy": "bucketed"})))
    assert main(["compare", str(scenario_file), str(other)]) == 0
    assert "B (other.json) takes " in capsys.readouterr().out


def test_the_oracle_answers_with_the_same_step() -> None:
    scenario = synchronised([Layer(1, 2, 24), Layer(1, 1, 8)], machines(3), local_sgd(5))
    oracle = Oracle(scenario.graph, scenario.cluster, scenario.costs)
    assert oracle(scenario.strategy).step_ps == run(scenario).step_ps


@pytest.mark.parametrize("every", [0, -3, 1.5, True, "4", 10_001, 10**30])
def test_lengths_that_no_round_has(every: Any) -> None:
    with pytest.raises(InputError, match=r"sync\.every: must be a whole number of steps from 1 to"):
        local_sgd(every)


@pytest.mark.parametrize(
    ("policy", "settings_of", "message"),
    [
        ("p3", {}, 'goes with the transport "all-reduce"'),
        ("parameter-server", {}, 'goes with the transport "all-reduce"'),
        ("bucketed", {"priority": "tic"}, 'goes without the priority "tic"'),
    ],
)
def test_policies_that_average_no_parameters(
    policy: str, settings_of: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=f"sync.every: {message}"):
        sync_policy(policy, every=4, **settings_of)


def test_what_goes_at_once_overlaps_with_nothing() -> None:
    with pytest.raises(InputError, match=r"sync\.overlap: all parameters go at once"):
        sync_policy("local-sgd", overlap=True)
    assert sync_policy("local-sgd", overlap=True, bucket="25 MB").overlap
    assert sync_policy("bucketed", every=4).overlap


def test_a_file_is_told_of_a_wrong_length(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps(lenet("dgx-1v", sync={"policy": "local-sgd", "every": 0})))
    assert main(["simulate", str(path)]) == 2
    assert "sync.every: must be a whole number of steps from 1 to 10,000, got 0" in (
        capsys.readouterr().err
    )


def test_rounds_of_too_many_tasks_are_refused() -> None:
    scenario = synchronised([Layer(1, 1, 8)] * 40, machines(4), local_sgd(10_000))
    with pytest.raises(InputError, match=r"40000 steps lower to more than 10000000 tasks"):
        execute(replace(scenario, limit="none"))
