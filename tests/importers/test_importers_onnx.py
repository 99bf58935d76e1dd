"""ONNX models: kinds, operand order and attributes, views folded away, shapes that only the model
computes.
"""

from __future__ import annotations

import pytest

from simdev import load_scenario
from simdev.formats import (
    Machine,
    import_file,
    model_graph,
    model_scenario,
    read_model,
    write_imported,
)
from simdev.ground.errors import InputError
from simdev.ground.frozen import FrozenDict
from simdev.nouns.semantics import op_work
from simdev.report import run

onnx = pytest.importorskip("onnx")
helper, numpy_helper, TensorProto = onnx.helper, onnx.numpy_helper, onnx.TensorProto

from onnx_nets import convolutional, model, node, value, weight, whole  # noqa: E402


def ops_of(nodes, inputs, weights=(), opset=18, **dims: int):
    graph = model_graph(read_model(model(nodes, inputs, weights, opset), dims))
    return {op.name: op for op in graph.ops}, graph


def test_a_model_becomes_its_operators_and_nothing_else():
    graph = model_graph(read_model(convolutional(), {"batch": 4}))
    kinds = [op.kind for op in graph.ops if op.kind not in ("parameter", "input")]
    assert kinds == ["conv2d", "batch_norm", "relu", "max_pool2d", "linear", "mul", "softmax"]
    ops = {op.name: op for op in graph.ops}
    assert ops["conv"].inputs == ("x", "w", "b")
    assert ops["conv"].attrs == {"stride": (2, 2), "padding": (1, 1), "dilation": (1, 1)}
    assert ops["fc"].attrs == {"transpose_b": True, "in": ((4, 32), (10, 32), (10,))}
    assert ops["fc"].inputs == ("pool", "fw", "fb")
    assert ops["scaled"].inputs == ("fc",)  # a number is no operand
    assert ops["w"].param_bytes == 8 * 27 * 4
    assert ops["x"].outputs[0].bytes == 4 * 3 * 64 * 4
    assert op_work(graph, graph.index["conv"]).flops == 2 * 4 * 8 * 16 * 27


def test_the_same_operators_have_the_profile_keys_of_captured_ones():
    torch = pytest.importorskip("torch")
    from simdev.costs import op_key
    from simdev.measure import import_program

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = torch.nn.Conv2d(3, 8, 3, 2, 1), torch.nn.BatchNorm2d(8)
            self.pool, self.fc = torch.nn.MaxPool2d(2), torch.nn.Linear(32, 10)

        def forward(self, x):
            return torch.softmax(
                self.fc(self.pool(torch.relu(self.norm(self.conv(x)))).flatten(1)) * 0.5, -1
            )

    captured = import_program(Net().eval(), (torch.zeros(4, 3, 8, 8),)).graph
    imported = model_graph(read_model(convolutional(), {"batch": 4}))

    def keys(graph) -> dict[str, str]:
        return {op.kind: op_key(graph, i, "x") for i, op in enumerate(graph.ops)}

    ours, theirs = keys(imported), keys(captured)
    for kind in ("conv2d", "relu", "linear", "mul", "softmax"):
        assert ours[kind] == theirs[kind]


def test_an_imported_model_runs_from_a_datasheet(tmp_path):
    onnx.save(convolutional(), tmp_path / "net.onnx")
    imported = import_file(tmp_path / "net.onnx", device="v100", dims={"batch": 64})
    assert imported.notes == (
        "an ONNX model is a forward pass: there is no backward and no update",
    )
    write_imported(imported, tmp_path / "s.json")
    scenario = load_scenario(tmp_path / "s.json")
    assert scenario.graph == imported.graph
    assert run(scenario).step_ps > 6 * 3 * 10**6  # each op costs its launch at least
    unknown = import_file(tmp_path / "net.onnx", device="abacus", dims={"batch": 1})
    assert any(
        "7 of 16 ops tell no time, and abacus has no datasheet" in note for note in unknown.notes
    )


def test_products_run_as_pytorch_runs_them():
    ops, _ = ops_of(
        [
            node("MatMul", ["x", "w"], "rows"),
            node("Transpose", ["x"], "turned", perm=[0, 2, 1]),
            node("MatMul", ["x", "turned"], "scores"),
            node("MatMul", ["scores", "x"], "mixed"),
            node("Add", ["mixed", "x"], "y"),
        ],
        [value("x", 2, 5, 8)],
        [weight("w", 8, 3)],
    )
    assert (ops["rows"].kind, ops["rows"].attrs["in"]) == ("matmul", ((10, 8), (8, 3)))
    assert ops["rows"].outputs[0].shape == (10, 3)
    assert ops["scores"].attrs == {"transpose_b": True}
    assert ops["scores"].inputs == ("x", "x")
    assert ops["mixed"].kind == "batch_matmul"
    assert "turned" not in ops


def test_padding_that_is_not_alike_on_both_sides_is_an_op():
    for attrs in ({"pads": [0, 0, 1, 1]}, {"auto_pad": "SAME_UPPER"}):
        ops, graph = ops_of(
            [node("Conv", ["x", "w"], "y", kernel_shape=[2, 2], **attrs)],
            [value("x", 1, 3, 8, 8)],
            [weight("w", 4, 3, 2, 2)],
        )
        assert ops["y/constant_pad_nd"].attrs == {"pad": (0, 1, 0, 1)}
        assert ops["y"].inputs == ("y/constant_pad_nd", "w")
        assert (ops["y"].attrs["padding"], ops["y"].outputs[0].shape) == ((0, 0), (1, 4, 8, 8))
        assert op_work(graph, graph.index["y"]).flops == 2 * 4 * 64 * 12


@pytest.mark.parametrize(
    ("nodes", "inputs", "weights", "kind", "attrs"),
    [
        (
            [node("GlobalAveragePool", ["x"], "y")],
            [value("x", 2, 4, 7, 7)],
            [],
            "adaptive_avg_pool2d",
            {"output_size": [1, 1]},
        ),
        (
            [node("AveragePool", ["x"], "y", kernel_shape=[3, 3], pads=[1, 1, 1, 1])],
            [value("x", 2, 4, 7, 7)],
            [],
            "avg_pool2d",
            {"kernel_size": [3, 3], "stride": [1, 1], "padding": [1, 1]},
        ),
        (
            [node("LayerNormalization", ["x", "s", "b"], "y")],
            [value("x", 2, 8)],
            [weight("s", 8), weight("b", 8)],
            "layer_norm",
            {"normalized_shape": [8]},
        ),
        (
            [node("Gather", ["table", "x"], "y")],
            [value("x", 2, 5, kind=TensorProto.INT64)],
            [weight("table", 50, 8)],
            "embedding",
            {},
        ),
        (
            [node("ReduceMean", ["x", "axes"], "y", keepdims=0)],
            [value("x", 2, 3, 4)],
            [whole("axes", -1)],
            "mean",
            {"dim": [2]},
        ),
        ([node("Concat", ["x", "x"], "y", axis=-1)], [value("x", 2, 3)], [], "concat", {"dim": 1}),
        (
            [node("Pow", ["x", "two"], "y")],
            [value("x", 2, 3)],
            [whole("two", 2)],
            "pow",
            {"exponent": [2]},
        ),
        (
            [node("ConvTranspose", ["x", "w"], "y", strides=[2, 2])],
            [value("x", 1, 4, 5, 5)],
            [weight("w", 4, 2, 2, 2)],
            "conv_transpose2d",
            {"stride": [2, 2], "dilation": [1, 1], "padding": [0, 0]},
        ),
        (
            [node("Conv", ["x", "w"], "y", group=4)],
            [value("x", 1, 4, 9)],
            [weight("w", 4, 1, 3)],
            "conv1d",
            {"stride": [1], "dilation": [1], "padding": [0], "groups": 4},
        ),
        (
            [node("InstanceNormalization", ["x", "s", "b"], "y")],
            [value("x", 2, 4, 5, 5)],
            [weight("s", 4), weight("b", 4)],
            "group_norm",
            {"N": 2, "C": 4, "HxW": 25, "group": 4},
        ),
        (
            [node("Einsum", ["x", "x"], "y", equation="bi, bj -> bij")],
            [value("x", 2, 3)],
            [],
            "einsum",
            {"equation": "bi,bj->bij"},
        ),
        (
            [node("Pad", ["x", "pads"], "y")],
            [value("x", 2, 3)],
            [whole("pads", 0, 1, 0, 2)],
            "constant_pad_nd",
            {"pad": [1, 2]},
        ),
        ([node("Clip", ["x"], "y")], [value("x", 2, 3)], [], "clamp", {}),
        ([node("Cast", ["x"], "y", to=TensorProto.FLOAT16)], [value("x", 2, 3)], [], "cast", {}),
    ],
)
def test_operators_have_kinds_that_simdev_can_reckon_with(nodes, inputs, weights, kind, attrs):
    imported = model_scenario(read_model(model(nodes, inputs, weights)), Machine(device="v100"))
    op = imported.graph.ops[imported.graph.index["y"]]
    assert (op.kind, op.attrs) == (kind, FrozenDict(attrs))
    assert op_work(imported.graph, imported.graph.index["y"]) is not None
    assert not any("cannot reckon" in note for note in imported.notes)


def test_softmax_before_opset_13_runs_over_all_that_follows():
    ops, _ = ops_of([node("Softmax", ["x"], "y")], [value("x", 2, 3, 4)], opset=11)
    assert ops["y"].attrs == {"dim": 1, "in": ((2, 12),)}


def test_an_operator_without_a_kind_keeps_its_name_and_is_told():
    imported = model_scenario(
        read_model(model([node("Mish", ["x"], "y")], [value("x", 2, 3)])), Machine()
    )
    assert imported.graph.ops[-1].kind == "mish"
    assert "kinds that simdev cannot reckon with: mish (1)" in imported.notes


def test_a_weight_under_two_names_is_one_and_small_types_have_their_bytes():
    nodes = [
        node("Identity", ["w"], "w2"),
        node("MatMul", ["x", "w"], "a"),
        node("MatMul", ["a", "w2"], "b"),
        node("Cast", ["b"], "y", to=TensorProto.BFLOAT16),
    ]
    ops, _ = ops_of(nodes, [value("x", 4, 4)], [weight("w", 4, 4)])
    assert [op.name for op in ops.values() if op.kind == "parameter"] == ["w"]
    assert ops["b"].inputs == ("a", "w")
    assert (ops["y"].outputs[0].dtype, ops["y"].outputs[0].bytes) == ("bfloat16", 32)


def test_names_that_ops_cannot_have_are_changed():
    ops, _ = ops_of(
        [
            node("Relu", ["x:0"], "y:0", name="/a/Relu:0"),
            node("Relu", ["y:0"], "z", name="/a/Relu:0"),
        ],
        [value("x:0", 2)],
    )
    assert list(ops) == ["x_0", "a/Relu_0", "a/Relu_0_1"]


def test_local_functions_are_inlined():
    body = [helper.make_node("Relu", ["a"], ["r"]), helper.make_node("Neg", ["r"], ["b"])]
    function = helper.make_function(
        "own", "Both", ["a"], ["b"], body, [helper.make_opsetid("", 18)]
    )
    made = model(
        [helper.make_node("Both", ["x"], ["y"], domain="own", name="both")],
        [value("x", 2, 3)],
        functions=[function],
    )
    made.opset_import.append(helper.make_opsetid("own", 1))
    graph = model_graph(read_model(made))
    assert [op.kind for op in graph.ops] == ["input", "relu", "neg"]


@pytest.mark.parametrize(
    ("made", "dims", "problem"),
    [
        (
            lambda: convolutional(),
            {},
            "input x: dimension 0 has no number: tell it by --dim batch=N",
        ),
        (lambda: convolutional(), {"batch": 0}, "--dim: batch: must be at least 1, got 0"),
        (
            lambda: convolutional(),
            {"batch": 1, "bath": 2},
            "--dim: bath: no dimension of an input is called so",
        ),
        (
            lambda: model([node("Relu", ["x"], "y")], [value("x", 2, None)]),
            {},
            "tell it by --dim x.1=N",
        ),
        (
            lambda: model([node("NonZero", ["x"], "i"), node("Neg", ["i"], "y")], [value("x", 4)]),
            {},
            "node i (NonZero): the shape of its output i cannot be told",
        ),
        (
            lambda: model(
                [node("MatMul", ["x", "w"], "y")], [value("x", 2, 3)], [weight("w", 4, 5)]
            ),
            {},
            "node y (MatMul)",
        ),
        (
            lambda: helper.make_model(helper.make_graph([], "g", [], [])),
            {},
            "its graph has no nodes",
        ),
    ],
)
def test_models_that_cannot_be_read_are_refused(made, dims, problem):
    with pytest.raises(InputError) as caught:
        model_graph(read_model(made(), dims))
    assert problem in str(caught.value)


def test_control_flow_is_refused():
    inner = helper.make_graph([helper.make_node("Relu", ["x"], ["b"])], "then", [], [value("b", 2)])
    made = model(
        [node("If", ["c"], "y", then_branch=inner, else_branch=inner)],
        [value("c", kind=TensorProto.BOOL), value("x", 2)],
    )
    with pytest.raises(InputError, match=r"node y \(If\): what runs depends on values"):
        read_model(made)


def test_a_constant_is_never_unfolded_without_bound():
    """A few bytes of model that ask for 8 TB of zeros."""
    nodes = [
        node("Constant", [], "n", value=whole("n", 10**6, 10**6)),
        node("ConstantOfShape", ["n"], "zeros"),
        node("Add", ["x", "zeros"], "y"),
    ]
    ops, _ = ops_of(nodes, [value("x", 1)])
    assert ops["y"].outputs[0].shape == (10**6, 10**6)


def test_a_file_that_is_cut_off_is_refused(tmp_path):
    data = convolutional().SerializeToString()
    (tmp_path / "m.onnx").write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError, match=r"m\.onnx: not an ONNX model: damaged, or cut off"):
        import_file(tmp_path / "m.onnx")
