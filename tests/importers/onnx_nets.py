"""Networks written by ONNX, node by node."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper


def value(name: str, *shape: int | str | None, kind: int = TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, list(shape))


def weight(name: str, *shape: int):
    return numpy_helper.from_array(np.zeros(shape, np.float32), name)


def whole(name: str, *numbers: int):
    return numpy_helper.from_array(np.array(numbers, np.int64), name)


def model(nodes, inputs, weights=(), opset=18, **extra):
    made = {name for node in nodes for name in node.output}
    read = {name for node in nodes for name in node.input}
    outputs = [
        helper.make_value_info(name, helper.make_tensor_type_proto(TensorProto.FLOAT, None))
        for name in sorted(made - read)
        if name
    ]
    graph = helper.make_graph(nodes, "net", inputs, outputs, list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], **extra)


def node(kind: str, inputs: list[str], *outputs: str, **attrs: object):
    return helper.make_node(
        kind, inputs, list(outputs), name=attrs.pop("name", outputs[0]), **attrs
    )


def convolutional():
    nodes = [
        node(
            "Conv", ["x", "w", "b"], "conv", kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]
        ),
        node("BatchNormalization", ["conv", "s", "t", "m", "v"], "bn"),
        node("Relu", ["bn"], "relu"),
        node("MaxPool", ["relu"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("Shape", ["pool"], "shape"),
        node("Gather", ["shape", "zero"], "batch"),
        node("Unsqueeze", ["batch", "axis"], "batch1"),
        node("Concat", ["batch1", "rest"], "wanted", axis=0),
        node("Reshape", ["pool", "wanted"], "flat"),
        node("Gemm", ["flat", "fw", "fb"], "fc", transB=1),
        node("Mul", ["fc", "half"], "scaled"),
        node("Softmax", ["scaled"], "y", axis=-1),
    ]
    weights = [
        weight("w", 8, 3, 3, 3),
        *(weight(name, 8) for name in ("b", "s", "t", "m", "v")),
        weight("fw", 10, 32),
        weight("fb", 10),
        whole("axis", 0),
        whole("rest", -1),
        numpy_helper.from_array(np.array(0, np.int64), "zero"),
        numpy_helper.from_array(np.array(0.5, np.float32), "half"),
    ]
    return model(nodes, [value("x", "batch", 3, 8, 8)], weights)
