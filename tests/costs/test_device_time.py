"""What a measured row says of the device's time: its kernels and a launch gap each."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from devices import SPEC, US, key, profile
from simdev import CostModel
from simdev.costs import Row
from simdev.files import read_profile
from simdev.files.device import device_presets
from simdev.files.graph import read_graph

H100 = Path(__file__).parents[2] / "profiles" / "h100"
SGD = ("mlp", "resnet-50", "rnnlm", "small", "vgg-19")
"""Models whose profiles and replayed graphs have one optimizer."""


def row(p50: float, **details: object) -> Row:
    return Row(key([(8,)], (8,), "relu"), Fraction(p50) * US, details=details)


@pytest.mark.parametrize(
    ("p50", "details", "expected"),
    [
        (9, {"kernel_ns": 1600, "launches": 3}, 4),  # 1.6 us + 3 gaps of 0.8 us
        (9, {"kernel_ns": 1600}, 9),  # nothing tells the gaps
        (9, {"launches": 3}, 9),
        (9, {"kernel_ns": 0, "launches": 0}, 9),  # no kernel was seen
        (499, {"kernel_ns": 400_000, "launches": 1}, "400.8"),
        (620, {"kernel_ns": 520_000, "launches": 1}, 600),  # at the clock of one call alone
        (530, {"kernel_ns": 520_000, "launches": 5}, 524),
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


@pytest.mark.parametrize("model", SGD)
def test_rows_of_an_h100_add_up_to_the_step_as_a_replayed_graph(model: str) -> None:
    lines = (H100 / "measured/graphs.jsonl").read_text().splitlines()
    measured = [json.loads(line) for line in lines]
    (graph_ms,) = (
        step["graph_ms"]
        for step in measured
        if step["model"] == model and step["sizes"].get("batch") != 4
    )
    rows = read_profile(H100 / f"{model}.h100-sxm.jsonl")
    graph = read_graph(H100 / rows.header["header"]["graph"])
    costs = CostModel((rows,), device_presets(), strict=True)
    found = [costs.cost(graph, i, "h100-sxm") for i in range(len(graph.ops))]
    total = float(sum(cost.seconds for cost in found if cost is not None))
    assert None not in found
    assert total == pytest.approx(graph_ms / 1e3, rel=0.03)
