"""What a measured row says of the device's time: its kernels and a launch gap each."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from devices import SPEC, US, key, profile
from simdev import CostModel, Graph
from simdev.costs import Profile, Row
from simdev.costs.roofline import pace_of
from simdev.files import read_profile
from simdev.files.device import device_presets
from simdev.files.graph import read_graph
from simdev.ground.errors import InputError

H100 = Path(__file__).parents[2] / "profiles" / "h100"
SGD = ("mlp", "resnet-50", "rnnlm", "small", "vgg-19")
"""Models whose profiles and replayed graphs have one optimizer."""


def row(p50: float, **details: object) -> Row:
    return Row(key([(8,)], (8,), "relu"), Fraction(p50) * US, details=details)


def h100(model: str) -> tuple[Profile, CostModel, Graph]:
    """A model's profile, costs by its rows alone, and the graph of its step."""
    rows = read_profile(H100 / f"{model}.h100-sxm.jsonl")
    graph = read_graph(H100 / rows.header["header"]["graph"])
    return rows, CostModel((rows,), device_presets(), strict=True), graph


@pytest.mark.parametrize(
    ("p50", "details", "expected"),
    [
        (9, {"kernel_ns": 1600, "launches": 3}, 4),  # 1.6 us + 3 gaps of 0.8 us
        (9, {"kernel_ns": 1600}, 9),  # nothing tells the gaps
        (9, {"launches": 3}, 9),
        (9, {"kernel_ns": 0, "launches": 0}, 9),  # no kernel was seen
        (620, {"kernel_ns": 520_000, "launches": 1, "flops": 4 * 10**11}, "520.8"),
    ],
)
def test_kernels_and_gaps_are_what_an_op_takes(
    p50: float, details: dict[str, object], expected: str
) -> None:
    assert row(p50, **details).device_seconds() == Fraction(expected) * US


def test_the_gap_is_that_of_the_datasheet() -> None:
    rows = profile([row(9, kernel_ns=1600, launches=2)])
    spec = replace(SPEC, launch_gap=2 * US)
    for specs, expected in (((), "3.2"), ((SPEC,), "3.2"), ((spec,), "5.6")):
        costs = CostModel((rows,), specs)
        found = costs.cost_of_key(key([(8,)], (8,), "relu"), "relu", "fast")
        assert found is not None
        assert (found.seconds, found.rung) == (Fraction(expected) * US, "measured")


def test_no_estimate_is_below_a_kernel_and_its_gap() -> None:
    sheet = replace(SPEC, launch=Fraction(0), launch_gap=Fraction(8, 10) * US)
    tiny, large = (key([(size,)], (size,), "relu") for size in (1, 10**9))
    for spec, expected in ((sheet, Fraction("1.95") * US), (replace(sheet, launch_gap=None), None)):
        costs = CostModel((), (spec,))
        least, most = (costs.cost_of_key(text, "relu", "fast") for text in (tiny, large))
        assert least is not None
        assert most is not None
        assert (least.seconds == expected) == (expected is not None)
        assert ("no less than a launch" in least.basis) == (expected is not None)
        assert most.seconds > 1000 * US


def test_products_near_the_peak_do_not_keep_the_rate_of_one_call() -> None:
    sheet = replace(SPEC, flops={"bfloat16": Fraction(10**15)}, sustained_clock=Fraction(9, 10))
    cool, hot = (row(9, kernel_ns=90, launches=1, flops=rate * 90) for rate in (599_999, 600_001))
    assert cool.device_seconds(pace_of(sheet)) == Fraction("0.89") * US
    assert hot.device_seconds(pace_of(sheet)) == Fraction("0.9") * US
    assert hot.device_seconds(pace_of(SPEC)) == Fraction("0.89") * US
    with pytest.raises(InputError, match="sustained_clock: must be a share in"):
        replace(SPEC, sustained_clock=Fraction(0))


@pytest.mark.parametrize("model", ["llama-1b", "llama-70b-1l", "llama3-8b-4l"])
def test_forward_and_backward_of_stacks_in_bfloat16_last_as_they_were_measured(model: str) -> None:
    rows, costs, graph = h100(model)
    phases = rows.header["header"]["step"]["phases"]
    for phase in ("forward", "backward"):
        ops = [i for i, op in enumerate(graph.ops) if op.phase == phase]
        found = [costs.cost(graph, i, "h100-sxm") for i in ops]
        total = float(sum(cost.seconds for cost in found if cost is not None))
        assert total == pytest.approx(phases[phase]["measured_step_s"], rel=0.06)


@pytest.mark.parametrize("model", SGD)
def test_rows_of_an_h100_add_up_to_the_step_as_a_replayed_graph(model: str) -> None:
    lines = (H100 / "measured/graphs.jsonl").read_text().splitlines()
    measured = [json.loads(line) for line in lines]
    (graph_ms,) = (
        step["graph_ms"]
        for step in measured
        if step["model"] == model and step["sizes"].get("batch") != 4
    )
    _, costs, graph = h100(model)
    found = [costs.cost(graph, i, "h100-sxm") for i in range(len(graph.ops))]
    total = float(sum(cost.seconds for cost in found if cost is not None))
    assert None not in found
    assert total == pytest.approx(graph_ms / 1e3, rel=0.03)
