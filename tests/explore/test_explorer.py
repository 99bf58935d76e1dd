"""What sliders answer equals what ``simdev.run`` answers of the very machines, on random ones."""

from __future__ import annotations

import sys
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simdev
from simdev.commands.explorer import Explorer, explorer_of, knobs_of
from simdev.commands.explorer.knobs import (
    BANDWIDTH,
    LATENCY,
    MEMORY,
    MICROBATCHES,
    SPEED,
    checked,
    turned,
)
from simdev.execution.scenario import execute, prepare
from simdev.files.examples import scenario_names
from simdev.ground.errors import InputError
from simdev.lowering import (
    can_be_retimed,
    hangs_on_op_times,
    lower_step,
    retimed,
    retimes_to_itself,
)
from simdev.report import analyze
from simdev.report.page import Subject, run_data
from worlds.clusters import UNIT
from worlds.graphs import op
from worlds.scenarios import World, worlds

VALUES = {BANDWIDTH: 3, LATENCY: 0.5, MEMORY: 0.75}
FACTORS = st.fractions(min_value=Fraction(1, 8), max_value=8, max_denominator=64)


def same_tasks(step: Any, other: Any) -> None:
    for name in ("duration", "lag", "gap", "bytes", "source", "destination"):
        assert getattr(step.task_graph.tasks, name).tolist() == (
            getattr(other.task_graph.tasks, name).tolist()
        ), name
    assert step.task_graph.capacity.tolist() == other.task_graph.capacity.tolist()
    assert step.task_graph.bandwidth.tolist() == other.task_graph.bandwidth.tolist()


def answered(explorer: Explorer, **values: Any) -> dict[str, Any]:
    return explorer.page(values, tables=False)


@given(world=worlds(), wider=FACTORS, later=FACTORS, larger=FACTORS, slower=st.integers(1, 3))
@settings(max_examples=100)
def test_a_step_given_other_times_is_the_step_lowered_on_the_other_machines(
    world: World, wider: Fraction, later: Fraction, larger: Fraction, slower: int
) -> None:
    scenario = simdev.Scenario(world.graph, world.cluster, simdev.CostModel(), world.strategy)
    prepared = prepare(scenario)
    if not can_be_retimed(prepared, scenario.strategy):
        return
    changed = turned(scenario, {BANDWIDTH: wider, LATENCY: later, MEMORY: larger})
    try:
        there = prepare(changed)
        if not hangs_on_op_times(changed.strategy):  # a duration that is not known stays below 0
            there = there.lasting(np.where(there.duration > 0, slower, 1) * there.duration)
        expected = lower_step(there, changed.strategy)
    except InputError:  # ops and devices that no route joins
        return
    step = lower_step(prepared, scenario.strategy)
    assert retimes_to_itself(step, prepared)
    same_tasks(retimed(step, prepared.on(changed.cluster).lasting(there.duration)), expected)


def test_where_a_step_is_not_given_its_own_times_each_is_lowered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = [answered(explorer_of("pipeline-1f1b", anew=True), bandwidth=x) for x in (2, 3)]
    monkeypatch.setattr(sys.modules["simdev.lowering.build"], "transfer_ps", lambda *_: 7)
    explorer = explorer_of("pipeline-1f1b")
    for x, answer in zip((2, 3), expected, strict=True):
        assert answered(explorer, bandwidth=x)["timeline"]["tasks"] == answer["timeline"]["tasks"]


def test_a_piece_of_a_staged_route_may_be_another_way_than_that_between_its_ends() -> None:
    # From a to b by way of x: its smallest bandwidth is no worse than by y, and x comes first. From
    # a to s alone y is wider.
    devices = [simdev.Device(name, kind) for name, kind in (("a", "gpu"), ("x", "switch"),
               ("y", "switch"), ("s", "cpu"), ("t", "cpu"), ("b", "gpu"))]  # fmt: skip
    devices = [replace(device, staging=device.kind == "cpu") for device in devices]
    links = [simdev.Link((one, other), bandwidth=width * UNIT, latency=0) for one, other, width in
             (("a", "x", 1), ("a", "y", 4), ("x", "s", 1), ("y", "s", 4), ("s", "t", 2),
              ("t", "b", 1))]  # fmt: skip
    cluster = simdev.Cluster("staged", tuple(devices), tuple(links), "parallel")
    world = World.of([op("p", 2, size=100), op("q", 3, "p")], cluster, [0, 5])
    scenario = simdev.Scenario(world.graph, cluster, simdev.CostModel(), world.strategy)
    explorer = Explorer(scenario, "staged")
    assert answered(explorer)["timeline"]["step"] == 2 + (100 + 50 + 100) + 3
    assert answered(explorer, bandwidth=2)["timeline"]["step"] == 2 + (50 + 25 + 50) + 3


QUICK = ("vgg-16-4x-p100", "pipeline-1f1b", "alexnet-2x-gpu-staged")


def page_of(scenario: simdev.Scenario, like: Explorer, tables: bool) -> dict[str, Any]:
    report = analyze(execute(scenario), replays=tables)
    return run_data(Subject(like.name, report, scenario, strategy=like.strategy), tables=tables)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name in scenario_names()
    ],
)
def test_answers_are_those_of_a_simulation_of_the_other_machines(name: str) -> None:
    explorer = explorer_of(name)
    there = {knob.name: knob.value for knob in explorer.knobs}
    values = {name: value for name, value in VALUES.items() if name in there}
    questions = [{name: value} for name, value in values.items()] + [values]
    if MICROBATCHES in there:
        fewer = {MICROBATCHES: max(1, int(there[MICROBATCHES]) // 2)}
        # A step of other microbatches is lowered at its first question, and kept at its second.
        questions += [fewer, fewer | {BANDWIDTH: 2}, fewer | {LATENCY: 2}]
    for question in questions:
        exact = {knob: Fraction(value) for knob, value in question.items() if knob in there}
        tables = question is values
        data = explorer.page({knob: question[knob] for knob in exact}, tables)
        del data["timeline"]["shape"]
        assert data == page_of(turned(explorer.scenario, exact), explorer, tables), question
    if SPEED in there:
        anew = explorer_of(name, anew=True)
        assert explorer.page({SPEED: 1.7}) | {"timeline": None} == (
            anew.page({SPEED: 1.7}) | {"timeline": None}
        )
        assert (
            answered(explorer, speed=1.7)["timeline"]["rows"]
            == (answered(anew, speed=1.7)["timeline"]["rows"])
        )


def test_an_answer_leaves_out_what_the_page_has_and_only_that() -> None:
    explorer = explorer_of("pipeline-1f1b")
    first = answered(explorer)["timeline"]
    whole = answered(explorer, bandwidth=2)["timeline"]
    assert whole["shape"] == first["shape"]
    short = explorer.page({"bandwidth": 2}, tables=False, shape=first["shape"])["timeline"]
    assert "before" not in short
    lasting = {column: first["tasks"][column] for column in first["tasks"].keys() - short["tasks"]}
    assert lasting.keys() >= {"name", "bytes"}
    assert short | {"before": first["before"], "tasks": lasting | short["tasks"]} == whole
    # what is not known, or is of other microbatches, comes whole
    assert explorer.page({}, tables=False, shape=-1)["timeline"] == first
    large = explorer_of("mixtral-8x7b-32x-h100")
    known = answered(large)["timeline"]["shape"]
    more = large.page({MICROBATCHES: 2}, tables=False, shape=known)["timeline"]
    assert more["shape"] != known
    assert "name" in more["tasks"]


def test_a_device_of_twice_the_speed_halves_what_computes_and_nothing_else() -> None:
    explorer = Explorer(two_ops(), "two")
    # 2 ms, then 1 ms on the way (1 GB/s), then 3 ms
    assert answered(explorer)["timeline"]["step"] == 6 * 10**9
    assert answered(explorer, speed=2)["timeline"]["step"] == (1 + 1) * 10**9 + 15 * 10**8
    assert answered(explorer, bandwidth=0.5)["timeline"]["step"] == 7 * 10**9


def test_memory_that_shrinks_no_longer_fits() -> None:
    explorer = Explorer(two_ops(), "two")
    assert answered(explorer)["fits"]
    small = answered(explorer, memory=0.125)
    assert not small["fits"]
    assert "DOES NOT FIT" in small["headline"]


def test_microbatches_are_counted_and_change_the_batch() -> None:
    scenario = simdev.load_scenario("llama3-70b-64x-h100")
    (knob,) = (knob for knob in knobs_of(scenario) if knob.name == MICROBATCHES)
    assert not knob.factor
    pipeline = scenario.strategy.pipeline
    assert pipeline is not None
    assert knob.value == pipeline.microbatches
    changed = turned(scenario, {MICROBATCHES: Fraction(2)}).strategy.pipeline
    assert changed is not None
    assert changed.microbatches == 2


def test_speed_is_no_knob_where_ops_are_split_or_kernels_are_modelled() -> None:
    names = ("vgg-16-4x-p100-flexflow", "llama3-70b-64x-h100")
    for scenario in map(simdev.load_scenario, names):
        assert SPEED not in [knob.name for knob in knobs_of(scenario)]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"colour": 2}, 'settings."colour": there are bandwidth, '),
        ({"bandwidth": 9}, "settings.bandwidth: must be from 0.125 to 8, got 9"),
        ({"bandwidth": 0}, "must be from 0.125"),
        ({"bandwidth": "2"}, 'must be a number, got "2"'),
        ({"bandwidth": True}, "must be a number"),
        ({"speed": float("nan")}, "must be from 0.125"),
        ({"memory": None}, "must be a number"),
    ],
)
def test_settings_that_no_slider_has_are_refused(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError) as caught:
        checked(knobs_of(two_ops()), values)
    assert reason in str(caught.value)


def two_ops() -> simdev.Scenario:
    ops = (
        simdev.Op("a", outputs=(simdev.Tensor(10**6),), time="2 ms"),
        simdev.Op("b", inputs=("a",), time="3 ms"),
    )
    devices = [simdev.Device(f"gpu:{d}", memory="2 MB") for d in range(2)]
    cluster = simdev.Cluster.all_to_all("pair", devices, bandwidth="1 GB/s", latency=0)
    strategy = simdev.Strategy({"a": "gpu:0", "b": "gpu:1"})
    return simdev.Scenario(simdev.Graph("two", ops), cluster, simdev.CostModel(), strategy)
