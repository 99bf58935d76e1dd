"""Elementwise ops with broadcasting, and generators, which read nothing.

Operations an element are those of the plain formula, each scalar operation (exp, sqrt, tanh, erf, a
division too) counting one: a sigmoid is a negation, exp, sum and division.
"""

from __future__ import annotations

from ..description import ALL, Access, Call, Describer, Description, Output, per
from ..registry import register
from ..traits import LEAF_ROLES, Linear, Traits
from .common import broadcast_read, numbered, sized

OPERATIONS = {
    "abs": 1,
    "add": 1,
    "addcdiv": 3,
    "addcmul": 3,
    "ceil": 1,
    "clamp": 2,
    "clamp_max": 1,
    "clamp_min": 1,
    "cos": 1,
    "div": 1,
    "elu": 3,
    "elu_backward": 3,
    "erf": 1,
    "exp": 1,
    "floor": 1,
    "fmod": 1,
    "gelu": 5,
    "gelu_backward": 11,
    "hardsigmoid": 4,
    "hardsigmoid_backward": 2,
    "hardswish": 5,
    "hardswish_backward": 5,
    "hardtanh": 2,
    "hardtanh_backward": 2,
    "leaky_relu": 2,
    "leaky_relu_backward": 2,
    "lerp": 3,
    "log": 1,
    "log10": 1,
    "log1p": 2,
    "log2": 1,
    "masked_fill": 1,
    "maximum": 1,
    "minimum": 1,
    "mul": 1,
    "neg": 1,
    "pow": 1,
    "reciprocal": 1,
    "relu": 1,
    "relu_backward": 1,
    "remainder": 1,
    "round": 1,
    "rsqrt": 2,
    "rsub": 1,
    "sigmoid": 4,
    "sigmoid_backward": 3,
    "sign": 1,
    "silu": 5,
    "silu_backward": 9,
    "sin": 1,
    "softplus": 3,
    "softplus_backward": 4,
    "sqrt": 1,
    "square": 1,
    "sub": 1,
    "tanh": 1,
    "tanh_backward": 3,
    "threshold": 1,
    "where": 1,
    "dropout_backward": 2,
}
"""Operations an element of the output; gelu by erf: 0.5 x (1 + erf(x / sqrt 2))."""

TESTS = ("eq", "ge", "gt", "isnan", "le", "logical_and", "logical_not", "logical_or", "lt", "ne")
BITS = ("bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor")
COPIES = ("cast", "clone", "contiguous", "copy", "tril", "triu")
GENERATORS = ("arange", "full", "full_like", "ones", "ones_like", "zero", "zeros", "zeros_like")
RANDOM = {
    "bernoulli": 2,
    "normal": 8,
    "rand": 1,
    "rand_like": 1,
    "randn": 8,
    "randn_like": 8,
    "uniform": 1,
}
LINEAR: dict[str, Linear] = {
    "add": "sum",
    "sub": "sum",
    "neg": "sum",
    "mul": "scale",
    "div": "scale",
}
COMBINES = {"add": "sum", "maximum": "max", "minimum": "min", "mul": "prod"}
POSITIVE = ("log", "log10", "log1p", "log2", "pow", "rsqrt", "sqrt")
LINEAR_COPIES = ("cast", "clone", "contiguous", "copy")


def _elementwise(operations: int, dtype: str | None = None) -> Describer:
    def describe(call: Call) -> Description:
        points = numbered(call.outputs[0])
        outputs = tuple(Output(points, dtype=dtype) for _ in call.outputs)
        reads = tuple(broadcast_read(shape, points) for shape in call.inputs)
        return Description(outputs, reads, (per(operations, *points),))

    return describe


def dropout(call: Call) -> Description:
    """Dropout: y = x * mask / (1 - p), with the mask drawn: a draw, a comparison, two products."""
    points = numbered(call.outputs[0])
    outputs = tuple(Output(points, dtype="bool" if i else None) for i in range(len(call.outputs)))
    return Description(
        outputs, tuple(broadcast_read(shape, points) for shape in call.inputs), (per(4, *points),)
    )


def _generator(operations: int) -> Describer:
    def describe(call: Call) -> Description:
        points = numbered(call.outputs[0])
        # A tensor given is only asked for its shape, dtype or device.
        reads = tuple(
            Access(points if shape == call.outputs[0] else (ALL,) * len(shape), read=False)
            for shape in call.inputs
        )
        return Description(
            (Output(points),), reads, (per(operations, *points),), local=sized(size=points)
        )

    return describe


def _leaf(weight: bool) -> Describer:
    def describe(call: Call) -> Description:
        points = numbered(call.outputs[0])
        return Description((Output(points),), (), gradients=(0,) if weight else (), moves=False)

    return describe


for _name, _count in OPERATIONS.items():
    register(
        _name,
        _elementwise(_count),
        "elementwise",
        traits=Traits(
            linear=LINEAR.get(_name), combines=COMBINES.get(_name), positive=_name in POSITIVE
        ),
        operands="any number, broadcast to y"
        if not _name.endswith("_backward")
        else "dy, then x or y",
        outputs="y" if not _name.endswith("_backward") else "dx",
        attributes="other (a scalar operand)"
        if _name in ("add", "sub", "mul", "div", "rsub", "pow")
        else "",
    )
for _name in TESTS:
    register(
        _name,
        _elementwise(1, "bool"),
        "elementwise",
        operands="any number, broadcast to y",
        outputs="y (bool)",
    )
for _name in BITS:
    register(
        _name, _elementwise(1), "elementwise", operands="any number, broadcast to y", outputs="y"
    )
register("dropout", dropout, "elementwise", operands="x", outputs="y, mask (bool)")
for _name in COPIES:
    register(
        _name,
        _elementwise(0),
        "data_movement",
        traits=Traits(linear="sum" if _name in LINEAR_COPIES else None),
        operands="x",
        outputs="y",
        attributes="dtype",
    )
for _name in GENERATORS:
    register(
        _name,
        _generator(0),
        "data_movement",
        operands="one or none (shape only)",
        outputs="y",
        attributes="size",
    )
for _name, _count in RANDOM.items():
    register(
        _name,
        _generator(_count),
        "elementwise",
        traits=Traits(drawn=True),
        operands="one or none (shape only)",
        outputs="y",
        attributes="size",
    )
for _role in LEAF_ROLES:
    register(
        _role,
        _leaf(_role == "parameter"),
        "other",
        traits=Traits(leaf=_role),
        outputs="the tensor, which costs nothing",
    )
