"""Calls that traces of GPUs hold and that are hard to put together again, as torch wrote them."""

from __future__ import annotations

import pytest

from kineto import MATRIX, kernel, launch, operator, span, trace

torch = pytest.importorskip("torch")

from simdev.measure import trace_profile  # noqa: E402

NONE = ("", [], "")
TYPE = "c10::BFloat16"


def rows(*events) -> list[dict]:
    profile = trace_profile(trace(*events))
    assert not [note for note in profile.notes if "left out" in note]
    return [row.details for row in profile.profile.rows.values()]


def called(name, inputs, *inside, number=1):
    """An operator that launches a kernel itself, and what it calls."""
    return [
        operator(name, 10, 50, inputs, number),
        *inside,
        launch(30, number),
        kernel(40, 7, number),
    ]


BACKWARD = span("autograd::engine::evaluate_function: SomeBackward0", 0, 90)
HEADS = (TYPE, [1, 32, 4096, 128], "")
CUDNN = [
    *[HEADS] * 5,
    ("float", [1, 32, 4096, 1], ""),
    *[("long int", [], "")] * 2,
    *[NONE] * 3,
    *[("Scalar", [], "4096")] * 2,
    ("Scalar", [], "0."),
    ("Scalar", [], "True"),
    NONE,
]
EFFICIENT = [
    *[HEADS] * 4,
    NONE,
    HEADS,
    ("float", [1, 32, 4096], ""),
    *[("long int", [], "")] * 2,
    ("Scalar", [], "0."),
    ("ScalarList", [], "[True, True, True, False]"),
    ("Scalar", [], "True"),
    NONE,
]


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("_scaled_dot_product_cudnn_attention_backward", CUDNN),
        ("_scaled_dot_product_efficient_attention_backward", EFFICIENT),
    ],
)
def test_the_backward_of_an_attention_without_a_bias(name, inputs):
    """Its schema wants a tensor; the trace has none, as the call had."""
    (row,) = rows(BACKWARD, *called(f"aten::{name}", inputs))
    assert (row["op"], row["phase"]) == (name.strip("_"), "bwd")
    assert row["attrs"]["is_causal"]
    assert row["in"].count((1, 32, 4096, 128)) == 5
    assert row["out"][:3] == ((1, 32, 4096, 128),) * 3
    assert row["dt"][-2:] == ("int64", "int64")  # the seed and its offset are no numbers


def test_a_composite_that_launches_a_kernel_itself_is_an_operator():
    shape = ("ScalarList", [], "[4096]")
    inputs = [(TYPE, [8, 4096], ""), shape, (TYPE, [4096], ""), NONE]
    inside = operator("aten::empty", 15, 5, [("ScalarList", [], "[8, 4096]")], 2)
    (row,) = rows(*called("aten::_fused_rms_norm", inputs, inside))
    assert row["op"] == "fused_rms_norm"
    assert row["out"] == ((8, 4096), (8, 1))
    assert (row["t_ns"]["p50"], row["kernel_ns"], row["launches"]) == (7000, 7000, 1)


@pytest.mark.parametrize("value", ["-inf", "inf", "nan", "0"])
def test_numbers_that_python_has_no_literals_for(value):
    inputs = [("float", [4, 4], ""), ("bool", [4, 4], ""), ("Scalar", [], value)]
    (row,) = rows(*called("aten::masked_fill", inputs))
    assert (row["op"], row["in"]) == ("masked_fill", ((4, 4), (4, 4)))


def test_a_product_that_writes_into_a_given_tensor_is_the_product():
    (row,) = rows(*called("aten::mm", [*MATRIX, ("float", [64, 16], "")]))
    (plain,) = rows(*called("aten::mm", MATRIX))
    assert {name: row[name] for name in ("op", "in", "out")} == {
        name: plain[name] for name in ("op", "in", "out")
    }


def test_of_several_types_of_a_shape_a_list_has_the_one_that_is_no_mask():
    inputs = [("float", [64, 32], ""), ("bool", [64, 32], ""), ("Scalar", [], "1.")]
    concat = [("TensorList", [[64, 32], [64, 32]], ""), ("Scalar", [], "1")]
    (_, row) = rows(
        *called("aten::native_dropout_backward", inputs),
        operator("aten::cat", 70, 10, concat, 2),
        launch(72, 2),
        kernel(90, 4, 2),
    )
    assert (row["op"], row["dt"]) == ("concat", ("float32", "float32"))


def test_a_loop_of_updates_tells_whose_they_are():
    """A small parameter takes what a launch takes, not its share of the elements."""
    events = [span("Optimizer.step#SGD.step", 0, 500, "user_annotation")]
    for i, (extent, duration) in enumerate([(1000, 9), (10, 2), (10, 3)]):
        shape = ("float", [extent], "")
        for k, name in enumerate(("mul_", "add_")):
            number = 2 * i + k
            at = 100 * i + 50 * k
            other = ("double", [], "") if name == "mul_" else shape
            events.append(operator(f"aten::{name}", at + 1, 20, [shape, other], number))
            events += [launch(at + 5, number), kernel(at + 10, duration, number)]
    found = rows(*events)
    assert {row["in"][0]: row["t_ns"]["p50"] for row in found} == {(1000,): 18_000, (10,): 5_000}
    assert {row["in"][0]: row["t_ns"]["n"] for row in found} == {(1000,): 1, (10,): 2}
    assert {(row["host_ns"], row["launches"]) for row in found} == {(166_666, 2)}


def test_few_kernels_over_lists_of_all_parameters_are_no_launch_of_each():
    """Two kernels update ten parameters: with a gap a row the update would take 8 us more."""
    shapes = [("TensorList", [[100 + i] for i in range(10)], "")] * 2
    events = [span("Optimizer.step#SGD.step", 0, 500, "user_annotation")]
    for number, name in enumerate(("_foreach_mul_", "_foreach_add_")):
        events += [
            operator(f"aten::{name}", 1 + 50 * number, 20, shapes, number),
            launch(5 + 50 * number, number),
            kernel(100 + 50 * number, 20, number),
        ]
    found = rows(*events)
    assert len(found) == 10
    assert not any("launches" in row or "kernel_ns" in row for row in found)
    assert sum(row["t_ns"]["p50"] for row in found) == pytest.approx(40_000, abs=10)


@pytest.mark.parametrize("gpu", [True, False])
def test_operators_of_an_optimizer_that_is_not_known_launch_what_they_did(gpu):
    """On a CPU nothing is launched: a gap would be added to its rows."""
    events = [
        span("Optimizer.step#Adadelta.step", 0, 500, "user_annotation"),
        operator("aten::sqrt", 10, 20, [("float", [8, 8], "")], 1),
    ]
    if gpu:
        events += [launch(15, 1), launch(20, 2), kernel(40, 4, 1), kernel(45, 3, 2)]
    found = trace_profile(trace(*events), device="some-kind").profile
    (row,) = (row.details for row in found.rows.values())
    assert row["phase"] == "opt"
    if gpu:
        assert (row["launches"], row["kernel_ns"], "host_step_ns" in row) == (2, 7000, True)
    else:
        assert (row["t_ns"]["p50"], "launches" in row, "kernel_ns" in row) == (20_000, False, False)


def test_what_the_host_takes_in_a_step_is_more_than_the_operator_itself():
    events = [
        event
        for i in range(5)
        for event in (
            operator("aten::mm", 100 * i, 30, MATRIX, i),
            launch(100 * i + 20, i),
            kernel(100 * i + 25, 7, i),
        )
    ]
    (row,) = rows(*events)
    assert (row["host_ns"], row["host_step_ns"]) == (30_000, 100_000)
