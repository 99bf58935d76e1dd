"""Operators of ONNX in the kinds of simdev: the kind, which inputs are data, the attributes.

Kinds, operand order and attributes are those of docs/reference/ops.md, which are PyTorch's where
PyTorch has the operator: so a profile measured there answers. Operators that PyTorch would run as
views (Reshape, Transpose, ..) are none here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from .model import Shape

ELEMENTWISE: Mapping[str, str] = {
    "Abs": "abs", "Add": "add", "And": "logical_and", "Cast": "cast", "CastLike": "cast",
    "Ceil": "ceil", "Clip": "clamp", "Cos": "cos",
    "Div": "div", "Elu": "elu", "Equal": "eq", "Erf": "erf", "Exp": "exp", "Floor": "floor",
    "Gelu": "gelu", "Greater": "gt", "GreaterOrEqual": "ge", "HardSigmoid": "hardsigmoid",
    "HardSwish": "hardswish", "IsNaN": "isnan", "LeakyRelu": "leaky_relu", "Less": "lt",
    "LessOrEqual": "le", "Log": "log", "Max": "maximum", "Min": "minimum", "Mod": "remainder",
    "Mul": "mul", "Neg": "neg", "Not": "logical_not", "Or": "logical_or", "PRelu": "leaky_relu",
    "Pow": "pow", "Reciprocal": "reciprocal", "Relu": "relu", "Round": "round",
    "Sigmoid": "sigmoid", "Sign": "sign", "Sin": "sin", "Softplus": "softplus", "Sqrt": "sqrt",
    "Sub": "sub", "Sum": "add", "Swish": "silu", "Tanh": "tanh", "Where": "where",
}  # fmt: skip
REDUCTIONS: Mapping[str, str] = {
    "ReduceMean": "mean", "ReduceSum": "sum", "ReduceMax": "amax", "ReduceMin": "amin",
    "ReduceProd": "prod", "ReduceL2": "norm", "ReduceL1": "norm", "ReduceLogSumExp": "logsumexp",
    "ArgMax": "argmax", "ArgMin": "argmin",
}  # fmt: skip

Operands = list[tuple[int, Shape]]
"""(index of the input, shape as executed) of each operand that is data."""


@dataclass(frozen=True)
class Operator:
    """An operator as it stands in the model: attributes, shapes of inputs (None: left out) and of
    outputs.

    ``known`` holds the values of inputs that no batch changes, as nested lists, ``weights`` the
    indices of inputs that are initializers.
    """

    kind: str
    attrs: Mapping[str, Any]
    inputs: Sequence[Shape | None]
    outputs: Sequence[Shape]
    known: Mapping[int, Any] = field(default_factory=dict)
    opset: int = 0
    weights: frozenset[int] = frozenset()

    def operands(self, count: int | None = None) -> Operands:
        """The first so many inputs (None: all), without those left out."""
        return [(i, shape) for i, shape in enumerate(self.inputs[:count]) if shape is not None]

    def shape(self, index: int) -> Shape:
        """The shape of an input. Raises ValueError where it is missing."""
        shape = self.inputs[index] if index < len(self.inputs) else None
        if shape is None:
            raise ValueError(f"input {index} is missing")
        return shape

    def becomes(
        self, kind: str, attrs: Mapping[str, Any] | None = None, count: int | None = None
    ) -> Translation:
        """An op of this kind with the first so many operands (None: all), as they are."""
        return Translation(kind, self.operands(count), attrs or {})

    def axis(self, default: int) -> int:
        """The attribute of this name, counted from the front of input 0."""
        return _axis(self.attrs.get("axis", default), len(self.shape(0)))


@dataclass(frozen=True)
class Translation:
    """An op of simdev: its kind, operands and attributes.

    ``made`` are the shapes of its outputs where they differ from the model's, ``pad`` (amounts,
    shape) an op that pads operand 0 before.
    """

    kind: str
    operands: Operands
    attrs: Mapping[str, Any] = field(default_factory=dict)
    made: Sequence[Shape] | None = None
    pad: tuple[list[int], Shape] | None = None


Rule = Callable[[Operator], Translation]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers how operators of these names are translated."""

    def registered(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return registered


def translate(operator: Operator) -> Translation:
    """The op of an operator; an operator that simdev has no kind for keeps its name in small
    letters.

    Raises ValueError.
    """
    if operator.kind in RULES:
        return RULES[operator.kind](operator)
    name = "".join(f"_{c.lower()}" if c.isupper() else c for c in operator.kind).lstrip("_")
    attrs = {
        key: value for key, value in operator.attrs.items() if isinstance(value, (int, str, list))
    }
    return Translation(name, operator.operands(), attrs)


def _axis(axis: int, rank: int) -> int:
    return axis % rank if rank else 0


@rule(*ELEMENTWISE)
def _elementwise(operator: Operator) -> Translation:
    # A number that is the same in every step is no operand: PyTorch hands it to the kernel.
    numbers = {i for i in operator.known if prod(operator.inputs[i] or ()) == 1}
    # The bounds of a clip are numbers too, whoever computes them; the second input of a cast tells
    # a type.
    all_ = operator.operands(1 if operator.kind in ("Clip", "CastLike") else None)
    operands = [(i, shape) for i, shape in all_ if i not in numbers] or operator.operands(1)
    is_power = operator.kind == "Pow" and 1 in numbers
    attrs = {"exponent": operator.known[1]} if is_power else {}
    return Translation(ELEMENTWISE[operator.kind], operands, attrs)


@rule(*REDUCTIONS)
def _reduction(operator: Operator) -> Translation:
    rank = len(operator.shape(0))
    axes: Sequence[int]
    if operator.kind.startswith("Arg"):
        axes = [operator.attrs.get("axis", 0)]
    else:
        # An attribute in older opsets, an input since; none means all.
        axes = operator.known.get(1, operator.attrs.get("axes")) or range(rank)
    attrs: dict[str, Any] = {"dim": sorted(_axis(axis, rank) for axis in axes)}
    if operator.attrs.get("keepdims", 1):
        attrs["keepdim"] = True
    return operator.becomes(REDUCTIONS[operator.kind], attrs, 1)


@rule("Conv")
def _conv(operator: Operator) -> Translation:
    attrs, pads = _window(operator, operator.shape(1)[2:])
    return _padded(f"conv{len(pads) // 2}d", operator.operands(), attrs, pads)


@rule("ConvTranspose")
def _conv_transpose(operator: Operator) -> Translation:
    attrs, pads = _window(operator, operator.shape(1)[2:])
    rank = len(pads) // 2
    attrs["padding"] = pads[:rank]
    extra = operator.attrs.get("output_padding")
    if extra and any(extra):
        attrs["output_padding"] = extra
    return operator.becomes(f"conv_transpose{rank}d", attrs)


@rule("MaxPool", "AveragePool", "LpPool")
def _pool(operator: Operator) -> Translation:
    kernel = list(operator.attrs["kernel_shape"])
    window, pads = _window(operator, kernel)
    attrs: dict[str, Any] = {"kernel_size": kernel, **window}
    kind = "max" if operator.kind == "MaxPool" else "avg"
    # PyTorch's average has no dilation, its maximum none by default.
    if kind == "avg" or attrs["dilation"] == [1] * len(kernel):
        del attrs["dilation"]
    if operator.attrs.get("ceil_mode"):
        attrs["ceil_mode"] = True
    return _padded(f"{kind}_pool{len(kernel)}d", operator.operands(1), attrs, pads)


def _window(operator: Operator, kernel: Sequence[int]) -> tuple[dict[str, Any], list[int]]:
    """The attributes of a window, and the padding before and after each spatial dimension, all of
    the former first.
    """
    given, unit, none = operator.attrs, [1] * len(kernel), [0] * len(kernel)
    strides, dilations = (list(given.get(name, unit)) for name in ("strides", "dilations"))
    attrs: dict[str, Any] = {"stride": strides, "dilation": dilations}
    if given.get("group", 1) != 1:
        attrs["groups"] = given["group"]
    auto = given.get("auto_pad") or "NOTSET"
    if auto == "NOTSET":
        return attrs, list(given.get("pads", none + none))
    if auto == "VALID" or operator.kind == "ConvTranspose":
        return attrs, none + none
    before, after = [], []
    extents = zip(
        operator.shape(0)[2:], operator.outputs[0][2:], kernel, strides, dilations, strict=True
    )
    for size, out, width, step, spread in extents:
        total = max((out - 1) * step + (width - 1) * spread + 1 - size, 0)
        # SAME_UPPER has the odd element behind, SAME_LOWER before.
        before.append(total // 2 if auto == "SAME_UPPER" else total - total // 2)
        after.append(total - before[-1])
    return attrs, before + after


def _padded(
    kind: str, operands: Operands, attrs: Mapping[str, Any], pads: Sequence[int]
) -> Translation:
    """A windowed op; padding that is not the same at both ends is a separate op, as in PyTorch."""
    rank = len(pads) // 2
    before, after = list(pads[:rank]), list(pads[rank:])
    if before == after:
        return Translation(kind, operands, {**attrs, "padding": before})
    shape = operands[0][1]
    grown = (*shape[:2], *map(sum, zip(shape[2:], before, after, strict=True)))
    # constant_pad_nd takes the last dimension first.
    amounts = [amount for axis in reversed(range(rank)) for amount in (before[axis], after[axis])]
    return Translation(
        kind, [(0, grown), *operands[1:]], {**attrs, "padding": [0] * rank}, pad=(amounts, grown)
    )


@rule("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(operator: Operator) -> Translation:
    rank = len(operator.shape(0)) - 2
    kind = "avg" if operator.kind == "GlobalAveragePool" else "max"
    attrs = {"output_size": [1] * rank}
    return operator.becomes(f"adaptive_{kind}_pool{rank}d", attrs, 1)


@rule("Gemm")
def _gemm(operator: Operator) -> Translation:
    flags = {"transpose_a": "transA", "transpose_b": "transB"}
    attrs = {name: True for name, flag in flags.items() if operator.attrs.get(flag)}
    operands = operator.operands()
    return Translation("linear" if len(operands) == 3 else "matmul", operands, attrs)


@rule("MatMul")
def _matmul(operator: Operator) -> Translation:
    first, second = operator.shape(0), operator.shape(1)
    operands = operator.operands()
    # PyTorch runs the rows of all batches together where the second is a matrix, else it makes the
    # batches a single dimension.
    if len(first) > 2 and len(second) == 2:
        rows = (prod(first[:-1]), first[-1])
        return Translation("matmul", [(0, rows), (1, second)], made=[(rows[0], second[1])])
    if len(first) > 2 and first[:-2] == second[:-2]:
        count = prod(first[:-2])
        operands = [(i, (count, *shape[-2:])) for i, shape in operands]
        return Translation("batch_matmul", operands, made=[(count, *operator.outputs[0][-2:])])
    if len(first) == len(second) == 1:
        return Translation("dot", operands)
    return Translation("mv" if (len(first), len(second)) == (2, 1) else "matmul", operands)


@rule("Einsum")
def _einsum(operator: Operator) -> Translation:
    equation = str(operator.attrs["equation"]).replace(" ", "")
    return operator.becomes("einsum", {"equation": equation})


@rule("BatchNormalization")
def _batch_norm(operator: Operator) -> Translation:
    attrs = {"training": True} if operator.attrs.get("training_mode") else {}
    return Translation("batch_norm", operator.operands(), attrs, [operator.outputs[0]])


@rule("LayerNormalization", "RMSNormalization")
def _layer_norm(operator: Operator) -> Translation:
    attrs = {"normalized_shape": list(operator.shape(0)[operator.axis(-1) :])}
    kind = "layer_norm" if operator.kind == "LayerNormalization" else "rms_norm"
    return Translation(kind, operator.operands(), attrs, [operator.outputs[0]])


@rule("GroupNormalization", "InstanceNormalization")
def _group_norm(operator: Operator) -> Translation:
    count, channels, *extents = operator.shape(0)
    groups = operator.attrs.get("num_groups", channels)
    attrs = {"N": count, "C": channels, "HxW": prod(extents), "group": groups}
    return operator.becomes("group_norm", attrs)


@rule("Softmax", "LogSoftmax")
def _softmax(operator: Operator) -> Translation:
    kind = "softmax" if operator.kind == "Softmax" else "log_softmax"
    if operator.opset >= 13:
        # As written, for so PyTorch's keys have it.
        return operator.becomes(kind, {"dim": operator.attrs.get("axis", -1)}, 1)
    # Before opset 13 all dimensions from the axis on are one.
    shape, axis = operator.shape(0), operator.axis(1)
    flat = (prod(shape[:axis]), prod(shape[axis:]))
    return Translation(kind, [(0, flat)], {"dim": 1}, [flat])


@rule("Concat")
def _concat(operator: Operator) -> Translation:
    attrs = {"dim": _axis(operator.attrs["axis"], len(operator.outputs[0]))}
    return operator.becomes("concat", attrs)


@rule("Gather")
def _gather(operator: Operator) -> Translation:
    axis = operator.axis(0)
    if axis == 0 and len(operator.shape(0)) == 2 and 0 in operator.weights:
        return operator.becomes("embedding")
    kind = "index_select" if len(operator.shape(1)) == 1 else "take"
    return operator.becomes(kind, {"dim": axis})


@rule("GatherElements")
def _gather_elements(operator: Operator) -> Translation:
    return operator.becomes("gather", {"dim": operator.axis(0)})


@rule("Pad")
def _pad(operator: Operator) -> Translation:
    pads = operator.known.get(1, operator.attrs.get("pads"))
    rank, operands = len(operator.shape(0)), operator.operands(1)
    if pads is None or 3 in operator.known or len(pads) != 2 * rank:
        return Translation("pad", operands)
    amounts = [amount for axis in reversed(range(rank)) for amount in pads[axis::rank]]
    while len(amounts) > 2 and amounts[-2:] == [0, 0]:
        del amounts[-2:]
    return Translation("constant_pad_nd", operands, {"pad": amounts})


@rule("Tile")
def _tile(operator: Operator) -> Translation:
    attrs = {"repeats": operator.known[1]} if 1 in operator.known else {}
    return operator.becomes("repeat", attrs, 1)


@rule("CumSum")
def _cumsum(operator: Operator) -> Translation:
    axis = operator.known.get(1, 0)
    axis = axis[0] if isinstance(axis, list) else axis
    attrs = {"dim": _axis(axis, len(operator.shape(0)))}
    return operator.becomes("cumsum", attrs, 1)


@rule("Trilu")
def _trilu(operator: Operator) -> Translation:
    kind = "triu" if operator.attrs.get("upper", 1) else "tril"
    return operator.becomes(kind, count=1)
