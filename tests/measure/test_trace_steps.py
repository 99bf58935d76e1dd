"""Steps of traces as graphs with hosts: the traced step comes out again, and no time of the device
is lost.
"""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import pytest

from kineto import MATRIX, kernel, launch, operator, span, trace
from simdev import load_scenario
from simdev.commands import main
from simdev.costs import CostModel
from simdev.files import read_device
from simdev.nouns.cluster import Device
from simdev.report import run

torch = pytest.importorskip("torch")

from kineto import simulated_us  # noqa: E402
from simdev.measure import trace_profile, trace_step  # noqa: E402
from simdev.measure.traces.events import parse_events  # noqa: E402

TRACES = Path(__file__).resolve().parents[2] / "profiles" / "h100" / "measured" / "traces"
REAL = sorted(path.name.removesuffix("-trace.json.gz") for path in TRACES.glob("*.json.gz"))


PEAKS = {
    "gpt2-small-batch1-length256": 2380641280,
    "llama3-8b-4l-batch1-length4096": 11470812160,
    "resnet-50-batch4": 693934080,
    "resnet-50-batch64": 5854197760,
}
"""Peaks of the same steps as PyTorch counted them (profiles/h100/measured/steps.jsonl)."""


def microseconds(text: str, **options) -> float:
    return simulated_us(trace_step(text, "h100-sxm", **options))


def multiply(start, number, device_start, duration, host=10):
    """An operator of one kernel, launched in the middle of it."""
    return [
        operator("aten::mm", start, host, MATRIX, number),
        launch(start + host / 2, number),
        kernel(device_start, duration, number),
    ]


def test_there_are_four_real_traces():
    assert len(REAL) == 4


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name == "resnet-50-batch64" else [])
        for name in REAL
    ],
)
def test_a_real_trace_loses_nothing_and_gives_its_step_again(name, tmp_path):
    text = gzip.decompress((TRACES / f"{name}-trace.json.gz").read_bytes()).decode()
    events = parse_events(text)
    device = sum(kernel.duration for kernel in events.kernels) / 1e9
    profile = trace_profile(text).profile
    rows = profile.header["header"]["step"]["rows_s"]
    assert rows == pytest.approx(device, rel=0.01)
    starts = [root.start for root in events.roots]
    traced = (max(kernel.end for kernel in events.kernels) - min(starts)) / 1e9
    out = str(tmp_path / "step.json")
    assert main(["import", str(TRACES / f"{name}-trace.json.gz"), "-o", out]) == 0
    scenario = load_scenario(out)
    ops = scenario.graph.ops
    held = sum(float(op.seconds_on("h100-sxm") or 0) for op in ops)
    assert device <= held < 1.03 * device  # gaps between kernels that queued
    report = run(scenario)
    assert report.step_ps / 10**12 == pytest.approx(traced, rel=0.03)
    # Who reads what is a guess; PyTorch's counter has scratch memory of libraries besides.
    assert report.devices[0].memory.peak == pytest.approx(PEAKS[name], rel=0.15)
    # Elsewhere the ladder answers, and what it does not know keeps its time.
    other = replace(scenario.cluster, devices=(Device("gpu:0", "a100-80"),))
    costs = CostModel((), (read_device("a100-80"),))
    assert run(replace(scenario, cluster=other, costs=costs)).step_ps > report.step_ps
    # The device alone would be done much earlier where the host holds it up.
    alone = replace(scenario, cluster=replace(scenario.cluster, host=None))
    assert run(alone).step_ps / 10**12 == pytest.approx(held, rel=1e-6)
    assert (held < 0.7 * traced) == (not name.startswith("llama"))


def test_the_host_holds_up_a_device_that_is_faster():
    events = [event for i in range(5) for event in multiply(100 * i, i, 100 * i + 8, 20)]
    step = trace_step(trace(*events))
    assert microseconds(trace(*events)) == 428
    assert [op.host_time * 10**6 for op in step.graph.ops] == [8, 100, 100, 100, 100]
    assert [op.launches for op in step.graph.ops] == [1] * 5
    assert (step.host.mode, step.host.ahead) == ("eager", 1024)


def test_a_device_that_is_slower_takes_its_kernels_and_the_gaps_between_them():
    """Kernels that queue follow each other by 1 us; the gap is the device's, for it was there."""
    events = [event for i in range(5) for event in multiply(10 * i, i, 8 + 101 * i, 100)]
    assert microseconds(trace(*events)) == 8 + 5 * 100 + 4


def test_several_kernels_of_an_operator_are_one_op_released_by_the_latest():
    """Launched at 5 and 45 us, of 10 us each: the second decides."""
    events = [
        operator("aten::mm", 0, 60, MATRIX, 1),
        *(launch(5, 1), launch(45, 2), kernel(7, 10, 1), kernel(48, 10, 2)),
    ]
    step = trace_step(trace(*events))
    (op,) = step.graph.ops
    assert (op.launches, op.time["h100-sxm"] * 10**6) == (2, 20)
    assert microseconds(trace(*events)) == 58


def test_what_the_host_waits_for_is_no_time_of_the_host():
    """An .item() in the middle: the copy blocks, and the next op's host time counts from the moment
    at which the copy is over: the call that waits wakes up 33 us later.
    """
    events = [
        *multiply(0, 1, 8, 500),
        operator("aten::_local_scalar_dense", 20, 530, [("float", [], "")], 2),
        launch(25, 2) | {"name": "cudaMemcpyAsync"},
        kernel(510, 2, 2, name="Memcpy DtoH (Device -> Pageable)", category="gpu_memcpy"),
        span("cudaStreamSynchronize", 30, 515, "cuda_runtime"),
        *multiply(560, 3, 568, 10),
    ]
    step = trace_step(trace(*events))
    assert [op.blocks_host for op in step.graph.ops] == [False, True, False]
    assert [op.kind for op in step.graph.ops] == ["matmul", "copy_to_host", "matmul"]
    host = [float(op.host_time * 10**6) for op in step.graph.ops]
    assert host == [8, 19, 568 - 512]
    assert microseconds(trace(*events)) == 578


def test_a_copy_that_returns_when_it_is_over_blocks_without_a_call_that_waits():
    events = [
        *multiply(0, 1, 8, 100),
        operator("aten::copy_", 20, 100, [("float", [8], ""), ("float", [8], "")], 2),
        launch(25, 2, duration=90) | {"name": "cudaMemcpyAsync"},
        kernel(109, 3, 2, name="Memcpy HtoD (Pageable -> Device)", category="gpu_memcpy"),
        *multiply(130, 3, 138, 10),
    ]
    events[-4]["args"]["bytes"] = 32
    step = trace_step(trace(*events))
    copy = step.graph.ops[1]
    assert (copy.kind, copy.attrs["bytes"], copy.blocks_host) == ("copy_to_device", 32, True)
    assert microseconds(trace(*events)) == pytest.approx(148, abs=4)


def test_an_operator_in_which_the_host_waits_is_two_ops():
    events = [
        operator("aten::nonzero", 0, 200, [("float", [64], "")], 1),
        *(launch(5, 1), kernel(8, 40, 1), span("cudaStreamSynchronize", 10, 45, "cuda_runtime")),
        *(launch(100, 2), kernel(103, 20, 2)),
    ]
    step = trace_step(trace(*events))
    assert [op.kind for op in step.graph.ops] == ["nonzero (part)", "nonzero"]
    assert [op.blocks_host for op in step.graph.ops] == [True, False]
    assert microseconds(trace(*events)) == pytest.approx(123, abs=8)


def test_launches_that_wait_for_room_are_no_work_of_the_host():
    """Of 1,500 launches of 5 us each those behind the thousandth wait for a device of 50 us."""
    events, now = [], 0
    for i in range(1500):
        ready = 50 * max(0, i - 1000)
        took = 5 if i < 1002 else max(5, ready - now)
        events += [operator("aten::mm", now, took + 1, MATRIX, i), launch(now, i, duration=took)]
        events.append(kernel(10 + 50 * i, 50, i))
        now += took + 1
    step = trace_step(trace(*events))
    assert microseconds(trace(*events)) == pytest.approx(10 + 1500 * 50, rel=0.001)
    assert sum(op.host_time for op in step.graph.ops) * 10**6 < 1500 * 7


def test_kernels_of_two_streams_at_once_count_once():
    events = [*multiply(0, 1, 10, 100), *multiply(20, 2, 30, 100)]
    events[-1]["args"]["stream"] = 9
    assert microseconds(trace(*events)) == 130


def test_kernels_without_an_operator_are_ops_by_their_names():
    events = [
        *multiply(0, 1, 8, 10),
        launch(30, 2),
        kernel(40, 250, 2, name="void cutlass::Kernel2<a, b>(Params)"),
    ]
    step = trace_step(trace(*events))
    assert [op.kind for op in step.graph.ops] == ["matmul", "cutlass::Kernel2"]
    assert microseconds(trace(*events)) == 290
    assert any("1 of 2 ops, 96.2% of the device's time, are operators" in n for n in step.notes)


def test_of_several_marked_steps_the_one_of_median_length_is_taken_with_its_end():
    events = []
    for i, length in enumerate((900, 300, 400, 350)):
        start = 1000 * i
        events.append(span(f"ProfilerStep#{i}", start, length, "user_annotation"))
        events += multiply(start + 10, i, start + 20, 30)
    step = trace_step(trace(*events))
    assert step.graph.ops[-1].name == "rest of the step"
    assert step.figures["step_s"] == pytest.approx(350e-6)
    assert microseconds(trace(*events)) == 350
    assert "the step of median length of 3, 1 left out as warm-up" in step.notes


def test_without_marks_the_steps_of_an_optimizer_tell_the_steps():
    events = []
    for i in range(3):
        start = 1000 * i
        events += multiply(start, 2 * i, start + 10, 30)
        events.append(span("Optimizer.step#SGD.step", start + 500, 100, "user_annotation"))
        tensors = [("float", [64, 32], "")] * 2 + [("Scalar", [], "-0.1")]
        events += [operator("aten::add_", start + 510, 20, tensors, 2 * i + 1)]
        events += [launch(start + 515, 2 * i + 1), kernel(start + 520, 7, 2 * i + 1)]
    step = trace_step(trace(*events))
    assert "the trace marks no steps: 3 are told by the optimizer's" in step.notes
    assert [op.phase for op in step.graph.ops] == ["forward", "update"]
    assert microseconds(trace(*events)) == 927
    rows = trace_profile(trace(*events)).profile.rows.values()
    assert [row.details["t_ns"]["n"] for row in rows] == [2, 2]


def test_several_optimizers_of_a_step_are_told():
    events = [span("ProfilerStep#1", 0, 900, "user_annotation"), *multiply(10, 1, 20, 100)]
    events += [span("Optimizer.step#Adam.step", at, 9, "user_annotation") for at in (200, 300)]
    (note,) = [note for note in trace_step(trace(*events)).notes if "optimizers" in note]
    assert note == "2 optimizers in a step: memory counts the parameters of the first"


def test_a_step_of_a_cpu_needs_no_name_of_its_kind():
    assert trace_step(trace(operator("aten::mm", 0, 1, MATRIX, 1), devices=[])).kind == "cpu"


@pytest.mark.parametrize("name", ["weird\n:0", "a:0", "", "^x", "x" * 5000, "triton_poi_fused_:0"])
def test_names_that_no_op_can_have_are_no_end_of_the_trace(name):
    events = [operator(name, 0, 10, MATRIX, 1), launch(5, 1), kernel(8, 10, 1)]
    events += [launch(30, 2), kernel(40, 10, 2, name=name)]
    step = trace_step(trace(*events))
    assert len(step.graph.ops) == 2
    assert simulated_us(step) == 50


def test_kernels_of_several_devices_are_told():
    events = [*multiply(0, 1, 8, 10), *multiply(20, 2, 28, 10)]
    events[-1]["args"]["device"] = 1
    step = trace_step(trace(*events))
    assert "kernels of 2 devices are one after another on a single one" in step.notes
