"""Gradient accumulation, and steps of ordinary graphs that follow one another (rule 10)."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simdev import Oracle, Scenario, load_scenario, run
from simdev.commands import main
from simdev.costs import CostModel, DeviceSpec
from simdev.execution.check import check
from simdev.execution.period import step_time_ps
from simdev.execution.scenario import execute
from simdev.files import read_strategy, write_strategy
from simdev.ground.errors import InputError
from simdev.nouns.cluster import QUEUES
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.models import build
from simdev.nouns.strategy import Order, Strategy, sync_policy
from simdev.oracle import oracle_of
from worlds.clusters import machines
from worlds.runs import executed
from worlds.scenarios import lenet

PS = 10**12
SPEC = DeviceSpec("gpu", {"float32": Fraction(10**12)}, Fraction(10**11))
COSTS = CostModel(specs=(SPEC,))


def layers(times: list[tuple[int, int]], update: int = 1) -> Graph:
    """A chain of layers with a weight each: (forward, backward) seconds; tensors of 8 bytes."""
    ops, back = [Op("batch", "input", outputs=(Tensor(8),), time=0)], list[Op]()
    below = "batch"
    for k, (forward, backward) in enumerate(times):
        ops += [
            Op(f"w{k}", "parameter", outputs=(Tensor(8),), param_bytes=8, time=0),
            Op(f"f{k}", inputs=(below, f"w{k}"), outputs=(Tensor(8),), time=forward),
        ]
        below = f"f{k}"
        above = f"b{k + 1}:1" if k + 1 < len(times) else f"f{k}"
        made = (Tensor(16), Tensor(8))
        back.insert(
            0, Op(f"b{k}", phase="backward", inputs=(above, f"f{k}"), outputs=made, time=backward)
        )
    updates = [
        Op(f"u{k}", phase="update", inputs=(f"w{k}", f"b{k}"), time=update)
        for k in range(len(times))
    ]
    return Graph("layers", (*ops, *back, *updates))


def placed(graph: Graph, device_of: dict[str, int] | None = None) -> dict[str, str]:
    """Ops on gpu:0, or layers on the device of their number."""
    told = device_of or {}
    return {op.name: f"gpu:{told.get(op.name[1:], 0)}" for op in graph.ops}


CHAIN = layers([(2, 3), (1, 4)])


@pytest.mark.parametrize("order", ["fifo", "program"])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_microbatches_add_forward_and_backward_but_no_update(order: str, count: int) -> None:
    strategy = Strategy(placed(CHAIN), Order(order), accumulate=count)
    report = run(Scenario(CHAIN, machines(1), CostModel(), strategy))
    assert report.step_ps == (10 * count + 2) * PS
    assert check(report.trace.task_graph, report.trace) == ()


def test_gradients_are_one_buffer_each_and_activations_those_of_one_microbatch() -> None:
    """The peak: weights 16, f0 8, and what b1 and b0 make, 24 each."""
    peaks = []
    for count in (1, 2, 3, 8):
        strategy = Strategy(placed(CHAIN), accumulate=count)
        report = run(Scenario(CHAIN, machines(1), CostModel(), strategy))
        peaks.append(report.devices[0].memory.peak)
        buffers = report.trace.task_graph.buffers
        assert sum(name == "b0:0" for name in buffers.name) == 1
        assert sum(name.startswith("f0:0") for name in buffers.name) == count
    assert peaks == [72] * 4


def test_what_a_parameter_sends_is_sent_once_and_activations_in_every_microbatch() -> None:
    graph = Graph(
        "shared",
        (
            Op("w", "parameter", outputs=(Tensor(100),), param_bytes=100, time=0),
            Op("x", "input", outputs=(Tensor(8),), time=0),
            Op("f", inputs=("x", "w"), outputs=(Tensor(8),), time=1),
            Op("b", phase="backward", inputs=("f",), outputs=(Tensor(100),), time=1),
            Op("u", phase="update", inputs=("w", "b"), time=1),
        ),
    )
    placement = {"w": "gpu:0", "x": "gpu:1", "f": "gpu:1", "b": "gpu:1", "u": "gpu:0"}
    for count in (1, 4):
        strategy = Strategy(placement, accumulate=count)
        report = run(Scenario(graph, machines(2, bandwidth=100), CostModel(), strategy))
        # The weight goes out in 1 s, its gradient comes back in 1 s after the last microbatch.
        assert report.step_ps == (1 + 2 * count + 1 + 1) * PS
        assert (report.transfer_count, report.transfer_bytes) == (2, 200)
    split = {"w": "gpu:0", "x": "gpu:0", "f": "gpu:0", "b": "gpu:1", "u": "gpu:0"}
    report = run(
        Scenario(graph, machines(2, bandwidth="1 GB/s"), CostModel(), Strategy(split, accumulate=4))
    )
    assert report.transfer_bytes == 4 * 8 + 100


def test_gradients_are_synchronised_once() -> None:
    """DDP's no_sync: as many bytes as one microbatch sends."""
    graph, cluster = build("lenet", batch=8), machines(2, bandwidth="1 GB/s")
    for form in (
        Strategy(short="data-parallel"),
        Strategy(short="data-parallel", sync=sync_policy("bucketed")),
    ):
        reports = [
            run(Scenario(graph, cluster, COSTS, replace(form, accumulate=count)))
            for count in (1, 4)
        ]
        assert reports[0].transfer_bytes == reports[1].transfer_bytes > 0
        assert reports[0].transfer_count == reports[1].transfer_count
        assert reports[0].step_ps < reports[1].step_ps < 4 * reports[0].step_ps
        assert check(reports[1].trace.task_graph, reports[1].trace) == ()


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=4),
    st.integers(1, 4),
    st.sampled_from(QUEUES),
    st.lists(st.integers(0, 2), min_size=4, max_size=4),
    st.sampled_from(["once", "repeated"]),
)
def test_engines_and_checker_agree(
    times: list[tuple[int, int]], count: int, queues: str, homes: list[int], steps: str
) -> None:
    graph = layers(times)
    placement = placed(graph, {str(k): home for k, home in enumerate(homes)})
    strategy = Strategy(placement, accumulate=count)
    scenario = Scenario(graph, machines(3, queues), CostModel(), strategy, "simpy", steps=steps)
    trace = executed(scenario).trace
    cost = oracle_of(scenario)(strategy)
    assert cost.step_ps == step_time_ps(trace)
    assert cost.peaks == tuple(memory.peak for memory in trace.memory)


# Steps that follow one another.


def test_repeated_steps_on_one_device_take_their_time_each() -> None:
    scenario = Scenario(CHAIN, machines(1), CostModel(), Strategy(placed(CHAIN)), steps="repeated")
    report = run(scenario)
    assert report.steady is not None
    assert (report.step_ps, report.steady.cycle) == (12 * PS, 1)
    assert report.to_json()["first_step_s"] == 12
    assert report.devices[0].utilization == 1


def test_consecutive_steps_overlap_where_nothing_joins_them() -> None:
    """Stage 1 updates while stage 0 goes forward again: 2 + 1 + 4 + 3, and one update behind it."""
    placement = placed(CHAIN, {"0": 0, "1": 1})
    alone = run(Scenario(CHAIN, machines(2, bandwidth=10**18), CostModel(), Strategy(placement)))
    scenario = Scenario(
        CHAIN, machines(2, bandwidth=10**18), CostModel(), Strategy(placement), steps="repeated"
    )
    repeated = run(scenario)
    assert alone.step_ps // PS == 11
    assert repeated.step_ps // PS == 11
    slow = replace(scenario, graph=layers([(2, 3), (1, 4)], update=9))
    # The second update of 9 s begins 3 s earlier and ends while the first still runs.
    assert run(replace(slow, steps="once")).step_ps // PS == 19
    assert run(slow).step_ps // PS == 19
    ops = [replace(op, time=15) if op.name == "u1" else op for op in slow.graph.ops]
    late = replace(slow, graph=Graph(slow.graph.name, tuple(ops)))
    # Alone the step waits for it; repeated, the next forward of stage 0 hides 2 s of it.
    assert run(replace(late, steps="once")).step_ps // PS == 22
    assert run(late).step_ps // PS == 20


@pytest.mark.parametrize("order", ["fifo", "program"])
def test_a_loader_keeps_one_batch(order: str) -> None:
    """On a device that holds nothing but the batch the next one waits for its readers."""
    placement = placed(CHAIN) | {"batch": "gpu:1"}
    strategy = Strategy(placement, Order(order))
    report = run(Scenario(CHAIN, machines(2, bandwidth=8), CostModel(), strategy, steps="repeated"))
    assert report.steady is not None
    assert report.steady.cycle == 1
    assert 12 * PS <= report.step_ps <= 13 * PS


def test_options_of_a_file_reach_every_door(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "s.json"
    told = lenet(accumulate=4) | {"options": {"steps": "repeated"}}
    path.write_text(json.dumps(told))
    assert (
        main(["simulate", str(path), "--json", "--check", "--gantt", str(tmp_path / "g.png")]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found["cycle"] >= 1
    scenario = load_scenario(path)
    assert oracle_of(scenario)(scenario.strategy).step_ps == found["step_time_ps"]
    once = Oracle(scenario.graph, scenario.cluster, scenario.costs)  # type: ignore[arg-type]
    assert once(scenario.strategy).step_ps >= found["step_time_ps"]
    assert found["transfers"] == run(load_scenario(lenet())).to_json()["transfers"]


def test_strategies_are_written_and_read(tmp_path: Path) -> None:
    strategy = Strategy({"a": "gpu:0"}, accumulate=4)
    write_strategy(strategy, tmp_path / "s.json")
    assert read_strategy(tmp_path / "s.json") == strategy


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "4", 10**9])
def test_bad_counts_are_refused(
    value: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match="accumulate: must be a whole number from 1 to 10000"):
        Strategy(accumulate=value)
    (tmp_path / "s.json").write_text(json.dumps(lenet(accumulate=value)))
    assert main(["simulate", str(tmp_path / "s.json")]) == 2
    assert "strategy.accumulate: " in capsys.readouterr().err


def test_an_unknown_way_of_steps_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s.json").write_text(json.dumps(lenet() | {"options": {"steps": "twice"}}))
    assert main(["simulate", str(tmp_path / "s.json")]) == 2
    assert 'options.steps: must be one of once, repeated, got "twice"' in capsys.readouterr().err


def test_what_is_sent_once_stands_in_the_last_microbatch() -> None:
    """A backward op sends a weight's gradient and its input's at once: in the last microbatch they
    go in the order in which they go in a step of one.
    """
    some = (Tensor(8),)
    ops = (
        Op("batch", "input", outputs=some, time=0),
        Op("w", "parameter", outputs=some, param_bytes=8, time=0),
        Op("f1", inputs=("batch",), outputs=some, time=1),
        Op("f2", inputs=("f1", "w"), outputs=some, time=1),
        Op("b2", phase="backward", inputs=("f2",), outputs=(Tensor(8), Tensor(8)), time=1),
        Op("b1", phase="backward", inputs=("b2:0",), outputs=some, time=1),
        Op("u", phase="update", inputs=("w", "b2:1"), time=1),
    )
    on = {op.name: "gpu:0" if op.name in ("f2", "b2") else "gpu:1" for op in ops}
    scenario = Scenario(
        Graph("two", ops),
        machines(2, bandwidth="1 GB/s"),
        COSTS,
        Strategy(on, accumulate=3),
        engine="simpy",
    )
    trace = execute(scenario).trace
    sends = [name for name in trace.task_graph.tasks.name if name.startswith("b2:")]
    assert sends == ["b2:0>gpu:1", "b2:0>gpu:1@1", "b2:0>gpu:1@2", "b2:1>gpu:1"]
    # The gradient of the input goes first, as its output stands first; both are ready at once.
    start = dict(zip(trace.task_graph.tasks.name, trace.start.tolist(), strict=True))
    assert start["b2:0>gpu:1@2"] < start["b2:1>gpu:1"]
    assert check(trace.task_graph, trace) == ()
