"""Elementwise ops with broadcasting, generators, which read nothing, and updates of parameters.

Operations for an element are counted by the plain formula, each scalar operation (exp, sqrt, tanh,
erf, a division too) counting one: a sigmoid is a negation, exp, sum and division. An update counts
the operations of PyTorch's single-tensor update.

An optimizer's update is a row of ``UPDATES``; its state in memory is in ``simdev/nouns/memory.py``.
"""

from __future__ import annotations

from ..description import ALL, Access, Call, Describer, Description, Output, per
from ..registry import LEAF_ROLES, Linear, Traits, register
from . import made, numbered, pointwise, register_each, sized

OPERATIONS = {
    1: "abs add ceil clamp_max clamp_min cos div erf exp floor fmod log log10 log2 masked_fill "
    "maximum minimum mul neg pow reciprocal relu relu_backward remainder round rsub sign sin sqrt "
    "square sub tanh threshold where",
    2: "clamp dropout_backward hardsigmoid_backward hardtanh hardtanh_backward leaky_relu "
    "leaky_relu_backward log1p rsqrt",
    3: "addcdiv addcmul elu elu_backward lerp sigmoid_backward softplus tanh_backward",
    4: "hardsigmoid sigmoid softplus_backward",
    5: "gelu hardswish hardswish_backward silu",
    9: "silu_backward",
    11: "gelu_backward",
}
"""Kinds by their operations for each element of the output; gelu is by erf: 0.5 x (1 + erf(x / sqrt
2)).
"""

TESTS = "eq ge gt isnan le logical_and logical_not logical_or lt ne"
BITS = "bitwise_and bitwise_not bitwise_or bitwise_xor"
LINEAR_COPIES = "cast clone contiguous"
TRIANGLES = "tril triu"
GENERATORS = "arange full full_like ones ones_like zero zeros zeros_like"
RANDOM = {1: "rand rand_like randint uniform", 2: "bernoulli", 8: "normal randn randn_like"}
LINEAR: dict[str, Linear] = {
    "add": "sum",
    "sub": "sum",
    "neg": "sum",
    "mul": "scale",
    "div": "scale",
}
COMBINES = {"add": "sum", "maximum": "max", "minimum": "min", "mul": "prod"}
POSITIVE = ("log", "log10", "log1p", "log2", "pow", "rsqrt", "sqrt")
WITH_SCALAR = ("add", "sub", "mul", "div", "rsub", "pow")

UPDATES = {
    "sgd_update": (0, 2),
    "sgd_momentum_update": (1, 4),
    "adam_update": (2, 13),
    "adamw_update": (2, 14),
    "adagrad_update": (1, 7),
    "rmsprop_update": (1, 9),
}
"""State tensors of a parameter and operations for each element, by kind of update."""


def _generator(operations: int) -> Describer:
    def describe(call: Call) -> Description:
        points = numbered(call.outputs[0])
        # Of a given tensor only the shape, dtype or device is used.
        reads = tuple(
            Access(points if shape == call.outputs[0] else (ALL,) * len(shape), read=False)
            for shape in call.inputs
        )
        return made(points, reads, operations, local=sized(size=points))

    return describe


def _leaf(is_weight: bool) -> Describer:
    def describe(call: Call) -> Description:
        outputs = (Output(numbered(call.outputs[0])),)
        return Description(outputs, (), gradients=(0,) if is_weight else (), moves=False)

    return describe


def _update(states: int, operations: int) -> Describer:
    """Describer of an in-place update of a parameter by its gradient, with its state tensors."""

    def describe(call: Call) -> Description:
        points = numbered(call.inputs[0])
        given = tuple(range(2, len(call.inputs)))  # state tensors that are operands of the graph
        return Description(
            outputs=tuple(Output(points) for _ in call.outputs),
            inputs=tuple(Access(points) for _ in call.inputs),
            flops=(per(operations, *points),),
            parameters=(0, 1, *given),
            sample=None,
            # With an output, the new parameter is a tensor of its own and the old one stays.
            updated=given if call.outputs else (0, *given),
            states=max(0, states - len(given)),
        )

    return describe


_BROADCAST = "any number, broadcast to y"
_SHAPE_ONLY = "one or none (shape only)"
for _count, _names in OPERATIONS.items():
    for _name in _names.split():
        register(
            _name,
            pointwise(_count),
            "elementwise",
            *(("dy, then x or y", "dx") if _name.endswith("_backward") else (_BROADCAST, "y")),
            "other (a scalar operand)" if _name in WITH_SCALAR else "",
            Traits(
                linear=LINEAR.get(_name), combines=COMBINES.get(_name), positive=_name in POSITIVE
            ),
        )
register_each(TESTS, pointwise(1, "bool"), "elementwise", _BROADCAST, "y (bool)")
register_each(BITS, pointwise(1), "elementwise", _BROADCAST, "y")
# A draw, a comparison and two products: y = x * mask / (1 - p).
register("dropout", pointwise(4, later="bool"), "elementwise", "x", "y, mask (bool)")
for _names, _traits in (
    (LINEAR_COPIES, Traits(linear="sum")),
    ("copy", Traits(linear="sum", bare=True)),
    (TRIANGLES, Traits()),
):
    register_each(_names, pointwise(0), "data_movement", "x", "y", "dtype", _traits)
register_each(GENERATORS, _generator(0), "data_movement", _SHAPE_ONLY, "y", "size")
for _count, _names in RANDOM.items():
    _traits = Traits(drawn=True)
    register_each(_names, _generator(_count), "elementwise", _SHAPE_ONLY, "y", "size", _traits)
for _role in LEAF_ROLES:
    register(
        _role,
        _leaf(_role == "parameter"),
        outputs="the tensor, which costs nothing",
        traits=Traits(leaf=_role),
    )
for _name, (_states, _count) in UPDATES.items():
    register(
        _name,
        _update(_states, _count),
        "optimizer",
        "parameter, gradient",
        "none (in place); the parameter's state_bytes hold the state",
        traits=Traits(positive=_name == "adam_update"),
    )
