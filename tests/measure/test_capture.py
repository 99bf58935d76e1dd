"""Capturing PyTorch steps: graphs in program order, shapes, names, what the backward keeps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from captures import STEPS, Step, conv_net, graph_of, lstm, ops_of  # noqa: E402
from simdev.ground.errors import InputError  # noqa: E402
from simdev.measure.capture import Capture, capture  # noqa: E402
from simdev.measure.torch_models.classifiers import mlp  # noqa: E402
from simdev.measure.torch_models.recurrent import gnmt  # noqa: E402
from simdev.nouns.graph import PHASES  # noqa: E402


@pytest.mark.parametrize("build", STEPS)
def test_a_captured_graph_is_well_formed_and_in_program_order(build: Callable[[], Step]) -> None:
    graph = graph_of(capture(*build()))
    assert all(producer < i for i, reads in enumerate(graph.reads) for producer, _ in reads)
    assert {op.phase for op in graph.ops} == set(PHASES)


@pytest.mark.parametrize("build", STEPS)
def test_outputs_have_the_bytes_of_their_shape(build: Callable[[], Step]) -> None:
    for op in capture(*build()).graph["ops"]:
        for tensor in op["outputs"]:
            assert (
                tensor["bytes"]
                == math.prod(tensor["shape"]) * getattr(torch, tensor["dtype"]).itemsize
            )


@pytest.mark.parametrize("build", STEPS)
def test_every_parameter_has_one_update_that_reads_its_gradient(build: Callable[[], Step]) -> None:
    step = build()
    captured = capture(*step, optimizer="adam")
    ops = {op["name"]: op for op in captured.graph["ops"]}
    for name, parameter in step[0].named_parameters():
        path = name.replace(".", "/")
        owner, update = ops[path], ops[f"update/{path}"]
        size = parameter.numel() * 4
        assert (owner["param_bytes"], owner["state_bytes"], owner["time"]) == (size, 2 * size, 0)
        assert update["inputs"][0] == path
        assert update["outputs"] == []
        assert owner["colocate"] == update["colocate"]
        gradient = ops[update["inputs"][1].rpartition(":")[0] or update["inputs"][1]]
        assert gradient["phase"] == "backward"


def test_a_linear_backward_is_two_products_of_their_own_shapes() -> None:
    captured = capture(*mlp(batch=8, width=16, layers=1, classes=4))
    products = [op for op in ops_of(captured, "matmul") if op["phase"] == "backward"]
    assert [op["outputs"][0]["shape"] for op in products] == [[8, 16], [4, 16], [16, 16]]
    assert products[1]["attrs"] == {"transpose_a": True}
    assert ops_of(captured, "linear")[0]["attrs"] == {"transpose_b": True}


def test_a_convolution_backward_is_split_and_only_what_is_wanted_stays() -> None:
    captured = capture(*conv_net())
    assert ops_of(captured, "conv2d_backward_input") == []  # images have no gradient
    (weight,) = ops_of(captured, "conv2d_backward_weight")
    assert [tensor["shape"] for tensor in weight["outputs"]] == [[4, 3, 3, 3], [4]]
    assert weight["inputs"][1] == "x"


def test_two_convolutions_have_an_input_gradient_between_them() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.Conv2d(4, 5, 3, bias=False))
    captured = capture(module, (torch.randn(2, 3, 8, 8),), lambda m, x: m(x).sum())
    (gradient,) = ops_of(captured, "conv2d_backward_input")
    assert gradient["name"] == "grad/1/conv2d_backward_input"
    assert gradient["outputs"][0]["shape"] == [2, 4, 6, 6]
    assert gradient["inputs"][1] == "1/weight"


def test_views_are_folded_and_their_readers_tell_the_shapes_they_see() -> None:
    captured = capture(*conv_net())
    assert not [
        op for op in captured.graph["ops"] if op["kind"] in ("view", "t", "detach", "expand")
    ]
    (linear,) = ops_of(captured, "linear")
    assert linear["inputs"][0] == "3/max_pool2d"
    assert linear["attrs"]["in"] == [[2, 36], [5, 36], [5]]


def test_an_operator_in_place_makes_a_new_version() -> None:
    captured = capture(*conv_net())
    (relu,), (pool,) = ops_of(captured, "relu"), ops_of(captured, "max_pool2d")
    assert pool["inputs"] == [relu["name"]]


def test_names_follow_modules_and_number_their_calls() -> None:
    names = {op["name"] for op in capture(*lstm()).graph["ops"]}
    assert {
        "cell@0/linear",
        "cell@1/linear",
        "grad/cell@1/sigmoid_backward",
        "cell/weight_hh",
    } <= names


def test_a_dropout_is_captured_without_its_allocations() -> None:
    captured = capture(
        nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)),
        (torch.randn(2, 4),),
        lambda m, x: m(x).sum(),
    )
    (mask,) = ops_of(captured, "bernoulli")
    assert mask["inputs"] == []
    assert ops_of(captured, "empty_like") == []


def test_a_step_that_reads_values_is_refused() -> None:
    with pytest.raises(InputError, match="cannot be captured"):
        capture(
            nn.Linear(2, 1),
            (torch.randn(3, 2),),
            lambda m, x: m(x).sum() * float(m(x).sum().item() > 0),
        )


def test_an_unknown_optimizer_is_refused() -> None:
    with pytest.raises(InputError, match="optimizer: must be one of"):
        capture(*mlp(), optimizer="newton")


def test_names_of_steps_tell_the_call() -> None:
    small = capture(*gnmt(batch=2, length=2, hidden=4, layers=4, vocabulary=8))
    assert any(op["name"].startswith("grad/decoder/layer_3@1/cell/") for op in small.graph["ops"])


# What the backward keeps, and workspace.


def saved_of(captured: Capture, kind: str) -> int:
    (key,) = [
        key for key, row in captured.rows.items() if row["op"] == kind and row["phase"] == "fwd"
    ]
    return captured.saved[key]


def test_saved_bytes_are_what_autograd_keeps_beside_parameters() -> None:
    captured = capture(*conv_net())
    images, channels = 2 * 3 * 8 * 8 * 4, 2 * 4 * 6 * 6 * 4
    assert saved_of(captured, "conv2d") == images
    # its input, and mean and deviation of 4 channels
    assert saved_of(captured, "batch_norm") == channels + 2 * 4 * 4
    assert saved_of(captured, "relu") == channels
    # its input, and where the maxima are
    assert saved_of(captured, "max_pool2d") == channels + 2 * 4 * 3 * 3 * 8
    assert saved_of(captured, "linear") == 2 * 36 * 4
    assert all(
        captured.saved[key] == 0 for key, row in captured.rows.items() if row["phase"] == "bwd"
    )


def test_a_function_of_ones_own_has_its_saved_tensors_counted() -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Any) -> Any:
            context.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:  # type: ignore[override]
            return gradient * 2 * context.saved_tensors[0]

    captured = capture(nn.Linear(6, 5), (torch.randn(3, 6),), lambda m, x: Square.apply(m(x)).sum())
    assert saved_of(captured, "mul") == 3 * 5 * 4


def test_an_expanded_tensor_is_saved_once() -> None:
    captured = capture(
        nn.Linear(6, 5), (torch.randn(1, 6),), lambda m, x: (m(x).expand(4, 5) * m(x)).sum()
    )
    assert saved_of(captured, "mul") == 2 * 5 * 4
