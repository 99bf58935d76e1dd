"""Traces of a GPU, written by hand: what a trace of CUDA holds, and how it misleads."""

from __future__ import annotations

import json

import pytest

from kineto import MATRIX, kernel, launch, operator, span, trace
from simdev.ground.errors import InputError
from simdev.measure import trace_profile
from simdev.measure.traces.events import parse_events

torch = pytest.importorskip("torch")
F = torch.nn.functional


def rows(text: str, **asked: object) -> dict[tuple[str, str], dict]:
    found = trace_profile(text, **asked)
    return {
        (row.details["op"], row.details["phase"]): row.details
        for row in found.profile.rows.values()
    }


def test_a_kernel_counts_for_the_operator_that_launched_it():
    """Launched at 5 us, run long after the operator's end; the time is the kernel's, in ns, not the
    host's.
    """
    (row,) = rows(
        trace(operator("aten::mm", 0, 10, MATRIX, 1), launch(5, 77), kernel(5000.5, 40.25, 77))
    ).values()
    assert row["op"] == "matmul"
    assert row["in"] == ((64, 32), (32, 16))
    assert row["out"] == ((64, 16),)
    assert (row["t_ns"]["p50"], row["host_ns"], row["launches"]) == (40_250, 10_000, 1)
    assert row["dev"] == "h100-sxm"


@pytest.mark.parametrize(
    "change",
    [
        {"cat": ["a"]},
        {"cat": {"a": 1}},
        *(
            {"args": {"Input Dims": dims}}
            for dims in ([[2**63, 2], [2, 3]], [[2**40, 2**40]] * 2, [], 7, [[-1]], [["a"]])
        ),
        *({"args": {"Input type": kinds}} for kinds in ([["float"], {}], "float", [None, 3])),
        *(
            {"args": {"Input Strides": strides}}
            for strides in ([[2**63, 1], [1, 1]], 7, [["a", 1], 2])
        ),
        {"args": {"External id": [1]}},
        {"name": "aten::ones_like", "args": {"Input Dims": []}},
        {"name": "ProfilerStep#" + "9" * 5000, "cat": "user_annotation"},
    ],
    ids=lambda change: str(change)[:60],
)
def test_nonsense_in_one_operator_is_no_end_of_the_trace(change):
    strange = operator("aten::mm", 20, 10, MATRIX, 2)
    strange |= change | {"args": strange["args"] | change.get("args", {})}
    odd = [launch(22, [78]), kernel(6000, 9, {"a": 78})]
    (row,) = rows(
        trace(
            operator("aten::mm", 0, 10, MATRIX, 1),
            launch(5, 77),
            kernel(5000, 40, 77),
            strange,
            *odd,
        )
    ).values()
    assert (row["op"], row["t_ns"]["n"]) == ("matmul", 1)


def test_nested_operators_count_once():
    """linear calls addmm calls a helper; matmul is a composite, addmm is the operator, all it
    launches is its own.
    """
    bias = [("float", [16], ""), *MATRIX, ("Scalar", [], "1"), ("Scalar", [], "1")]
    linear = [("float", [64, 32], ""), ("float", [16, 32], ""), ("float", [16], "")]
    events = [
        operator("aten::linear", 0, 30, linear, 1),
        operator("aten::t", 1, 2, [("float", [16, 32], "")], 2),
        operator("aten::addmm", 5, 20, bias, 3),
        operator(
            "aten::expand",
            6,
            2,
            [("float", [16], ""), ("ScalarList", [], "[64, 16]"), ("Scalar", [], "False")],
            4,
        ),
        launch(9, 1),
        launch(12, 2),
        kernel(100, 7, 1),
        kernel(107, 5, 2),
    ]
    found = rows(trace(*events))
    assert list(found) == [("linear", "fwd")]
    assert (found["linear", "fwd"]["t_ns"]["p50"], found["linear", "fwd"]["launches"]) == (
        12_000,
        2,
    )
    # Kernels on two streams at once: the time in which the operator is at work.
    events[-1] = kernel(103, 9, 2, stream=8)
    assert rows(trace(*events))["linear", "fwd"]["t_ns"]["p50"] == 12_000
    # On a CPU the operator's own time counts, with all inside it, and never the composite's.
    (row,) = rows(trace(*events[:4], devices=[]), device="cpu").values()
    assert (row["op"], row["t_ns"]["p50"]) == ("linear", 20_000)


def test_warm_up_steps_and_what_lies_outside_of_steps_are_left_out():
    events = []
    for step in range(4):
        start = 1000 * step
        events.append(span(f"ProfilerStep#{step + 7}", start, 900, "user_annotation"))
        events += [operator("aten::mm", start + 10, 10, MATRIX, step), launch(start + 12, step)]
        events.append(kernel(start + 2500, [900, 10, 30, 20][step], step))
    events += [operator("aten::mm", 4000, 10, MATRIX, 9), launch(4002, 9), kernel(4100, 999, 9)]
    (row,) = rows(trace(*events)).values()
    assert (row["t_ns"]["n"], row["t_ns"]["p50"]) == (3, 20_000)
    (row,) = rows(trace(*events), warm_up=0).values()
    assert row["t_ns"]["n"] == 4
    (row,) = rows(trace(*events), warm_up=3).values()
    assert row["t_ns"]["p50"] == 20_000
    for wrong, reason in ((4, "4 of 4 steps leaves none"), (-1, "must not be negative")):
        with pytest.raises(InputError, match=reason):
            rows(trace(*events), warm_up=wrong)


def test_the_backward_is_known_by_autograds_spans_on_a_thread_of_its_own():
    events = [
        span("ProfilerStep#1", 0, 1000, "user_annotation"),
        operator("aten::mm", 10, 10, MATRIX, 1),
        launch(12, 1),
        kernel(50, 3, 1),
        span("autograd::engine::evaluate_function: MmBackward0", 100, 50, thread=2),
        span("MmBackward0", 101, 40, thread=2),
        operator("aten::mm", 105, 10, MATRIX, 2, thread=2),
        launch(106, 2, thread=2),
        kernel(200, 4, 2),
    ]
    found = rows(trace(*events))
    assert {key: row["t_ns"]["p50"] for key, row in found.items()} == {
        ("matmul", "fwd"): 3000,
        ("matmul", "bwd"): 4000,
    }


def test_the_backward_of_a_convolution_is_divided_by_operations():
    image, filters, grad = (
        ("float", [2, 3, 8, 8], ""),
        ("float", [4, 3, 3, 3], ""),
        ("float", [2, 4, 8, 8], ""),
    )
    numbers = ["[4]", "[1, 1]", "[1, 1]", "[1, 1]"]
    told = [
        grad,
        image,
        filters,
        *(("ScalarList", [], one) for one in numbers),
        ("Scalar", [], "False"),
        ("ScalarList", [], "[0, 0]"),
        ("Scalar", [], "1"),
        ("ScalarList", [], "[True, True, True]"),
    ]
    events = [
        span("autograd::engine::evaluate_function: ConvolutionBackward0", 0, 90),
        operator("aten::convolution_backward", 5, 50, told, 1),
        launch(7, 1),
        kernel(100, 30, 1),
    ]
    found = trace_profile(trace(*events))
    both = {row.details["op"]: row for row in found.profile.rows.values()}
    assert set(both) == {"conv2d_backward_input", "conv2d_backward_weight"}
    assert sum(row.details["t_ns"]["p50"] for row in both.values()) == 30_000
    assert {row.source for row in both.values()} == {"fitted"}
    assert any("2 rows are no measurements" in note for note in found.notes)


def test_what_an_optimizer_does_is_divided_over_its_parameters():
    lists = [
        ("TensorList", [[10, 10], [300]], ""),
        ("TensorList", [[10, 10], [300]], ""),
        ("Scalar", [], "1"),
    ]
    events = [
        operator("aten::mm", 0, 5, MATRIX, 1),
        launch(1, 1),
        kernel(50, 3, 1),
        span("Optimizer.step#Adam.step", 100, 100, "user_annotation"),
        operator("aten::_foreach_lerp_", 110, 5, lists, 2),
        launch(111, 2),
        kernel(300, 10, 2),
        operator("aten::_foreach_addcdiv_", 120, 5, lists, 3),
        launch(121, 3),
        kernel(320, 30, 3),
    ]
    found = trace_profile(trace(*events)).profile.rows.values()
    updates = {
        tuple(row.details["in"][0]): row.details["t_ns"]["p50"]
        for row in found
        if row.details["phase"] == "opt"
    }
    assert updates == {(10, 10): 10_000, (300,): 30_000}
    assert {row.details["op"] for row in found} == {"matmul", "adam_update"}


def test_what_is_no_operator_of_pytorch_is_told_with_its_time():
    events = [
        span("ProfilerStep#1", 0, 1000, "user_annotation"),
        operator("aten::mm", 10, 10, MATRIX, 1),
        launch(12, 1),
        kernel(50, 3, 1),
        operator("triton_fused_add", 30, 10, MATRIX, 2),
        launch(32, 2),
        kernel(60, 500, 2),
        launch(600, 3),
        kernel(700, 250, 3, name="ncclDevKernel_AllReduce"),
    ]
    found = trace_profile(trace(*events))
    assert [row.details["op"] for row in found.profile.rows.values()] == ["matmul"]
    assert any(
        note.startswith("left out triton_fused_add (0.500 ms a step)") for note in found.notes
    )
    assert any(
        note.startswith("0.250 ms a step of kernels belong to no operator") for note in found.notes
    )


def test_kernels_without_a_launch_are_found_by_their_operator():
    events = [operator("aten::mm", 0, 10, MATRIX, 41), kernel(50, 6, 9)]
    events[1]["args"]["External id"] = 41
    (row,) = rows(trace(*events)).values()
    assert row["t_ns"]["p50"] == 6000


def test_lists_of_tensors_take_the_type_that_their_shape_has_elsewhere():
    half = [("c10::Half", [64, 32], ""), ("c10::Half", [32, 16], "")]
    concat = [("TensorList", [[64, 32], [64, 32]], ""), ("Scalar", [], "1")]
    events = [
        operator("aten::mm", 0, 10, half, 1),
        launch(1, 1),
        kernel(50, 3, 1),
        operator("aten::cat", 20, 10, concat, 2),
        launch(21, 2),
        kernel(60, 4, 2),
    ]
    events[3]["args"]["Input Strides"][0] = [[32, 1], [32, 1]]
    found = rows(trace(*events))
    assert (found["concat", "fwd"]["dt"], found["concat", "fwd"]["out"]) == (
        ("float16", "float16"),
        ((64, 64),),
    )
    unknown = trace_profile(
        trace(
            *events[3:],
            *[
                operator("aten::relu", 90, 5, [("float", [3], "")], 5),
                launch(91, 5),
                kernel(99, 1, 5),
            ],
        )
    )
    assert any("aten::cat" in note for note in unknown.notes)


def test_numbers_of_python_are_no_tensors():
    told = [("float", [8, 8], ""), ("double", [], "")]
    events = [operator("aten::mul", 0, 10, told, 1), launch(1, 1), kernel(50, 3, 1)]
    assert rows(trace(*events))["mul", "fwd"]["in"] == ((8, 8),)


@pytest.mark.parametrize(
    ("text", "asked", "problem"),
    [
        ("{", {}, "line 1, column 2: not JSON"),
        ('{"traceEvents": 3}', {}, "needs a list of traceEvents"),
        ("[]", {}, "no operators (cpu_op)"),
        (trace(kernel(1, 2, 3)), {}, "no operators (cpu_op)"),
        (trace(span("aten::mm", 0, 9), launch(1, 1), kernel(5, 1, 1)), {}, "record_shapes=True"),
        (
            trace(operator("aten::mm", 0, 1, MATRIX, 1), devices=[]),
            {},
            "--device: missing; a trace of a CPU",
        ),
        (
            trace(operator("aten::mm", 0, 1, MATRIX, 1), launch(0, 1), kernel(5, 1, 1), devices=[]),
            {},
            "names no GPU",
        ),
        (
            trace(operator("aten::mm", -1, 1, MATRIX, 1)),
            {},
            "traceEvents[0].ts: must be a number of us >= 0, got -1",
        ),
        (
            trace(operator("aten::mm", 0, "x", MATRIX, 1)),
            {},
            "traceEvents[0].dur: must be a number of us >= 0",
        ),
        ('{"traceEvents": [7]}', {}, "traceEvents[0]: must be an object"),
        (
            trace(operator("aten::mm", 0, 1, MATRIX[:1], 1)),
            {"device": "x"},
            "no operator of which a row could be made",
        ),
        (
            trace(operator("aten::mm", 0, 1, MATRIX, 1)),
            {"device": "x", "warm_up": 1},
            "the trace marks no steps",
        ),
    ],
)
def test_broken_traces_are_refused(text, asked, problem):
    with pytest.raises(InputError) as caught:
        trace_profile(text, **asked)
    assert problem in str(caught.value)


def test_a_list_alone_is_a_trace_too():
    events = json.loads(trace(operator("aten::mm", 0, 1, MATRIX, 1)))["traceEvents"]
    assert len(trace_profile(json.dumps(events), "x").profile.rows) == 1


def test_spans_that_only_touch_are_not_nested():
    found = parse_events(trace(span("a", 0, 10), span("b", 10, 5), span("c", 11, 2)))
    assert [one.name for one in found.roots] == ["a", "b"]
    assert [one.name for one in found.roots[1].children] == ["c"]
