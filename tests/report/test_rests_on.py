"""What an estimate rests on, in one line of the first screen."""

from __future__ import annotations

from typing import Any

import pytest

from simdev.execution.engine import simulate
from simdev.execution.scenario import Outcome, load_scenario
from simdev.report import analyze, run

OPS: list[dict[str, Any]] = [
    {
        "name": "x",
        "kind": "input",
        "outputs": [{"bytes": 4096, "shape": [1024], "dtype": "float32"}],
    },
    {
        "name": "a",
        "kind": "relu",
        "inputs": ["x"],
        "outputs": [{"bytes": 4096, "shape": [1024], "dtype": "float32"}],
    },
]
GIVEN = [{"name": "a", "time": "1 ms"}]


@pytest.mark.parametrize(
    ("ops", "more", "line"),
    [
        (GIVEN, {}, "op times 100% given; no host; memory as tensors ask."),
        (OPS, {}, "op times 100% roofline (expected error 50.0%); no host; memory as tensors ask."),
        (
            [*OPS, {"name": "b", "time": "1 s", "inputs": ["a"]}],
            {"options": {"memory": {"framework": "pytorch"}}},
            # A microsecond in a second rounds to nothing.
            "op times 100% given (expected error 0.0%); no host; memory as PyTorch counts.",
        ),
        (
            [{"name": "a", "time": "1 ms", "host_time": "2 us"}, {"name": "b", "time": "3 ms"}],
            {"device": {"host": {"mode": "eager"}}, "options": {"memory": {"optimizer": "adam"}}},
            "op times 100% given; host times 100% given, 1 unknown; memory as its options say.",
        ),
        (
            [*GIVEN, {"name": "b", "time": "3 ms", "host_time": "2 us"}],
            {"device": {"kind": "h100-sxm", "host": {"mode": "eager"}}},
            # By the datasheet within half, the op without a time takes 4.72 + 2.72 bare dispatches
            # of 14.2 us: 105.6 us beside 2 us that are given.
            "op times 100% given; host times 98.1% datasheet, 1.86% given (expected error 49.1%); "
            "memory as tensors ask.",
        ),
    ],
)
def test_the_first_screen_tells_what_the_estimate_rests_on(
    ops: list[dict[str, Any]], more: dict[str, Any], line: str
) -> None:
    device = {"name": "gpu:0", "kind": "t4"} | more.get("device", {})
    parts = {"graph": {"ops": ops}, "cluster": {"devices": [device]}, "strategy": {"*": "gpu:0"}}
    parts |= {"options": more.get("options", {})}
    assert list(run(load_scenario(parts)).lines())[-1] == f"Rests on: {line}"


def test_a_trace_alone_rests_on_nothing_that_is_known() -> None:
    parts = {"graph": {"ops": GIVEN}, "cluster": "dgx-1v", "strategy": {"*": "gpu:0"}}
    trace = run(load_scenario(parts)).trace
    assert not any(
        "Rests on" in text for text in analyze(Outcome(simulate(trace.task_graph))).lines()
    )
