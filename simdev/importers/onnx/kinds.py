"""How an operator of ONNX is told in the kinds of simdev: its kind, which inputs are data, its
attributes.

Kinds, operand order and attributes are those of docs/ops.md, which are PyTorch's where PyTorch has
the operator: so a profile measured there answers. Operators that PyTorch would run as views
(Reshape, Transpose, ..) are none here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from .model import Shape

ELEMENTWISE: Mapping[str, str] = {
    "Abs": "abs", "Add": "add", "And": "logical_and", "Ceil": "ceil", "Clip": "clamp", "Cos": "cos",
    "Div": "div",
    "Elu": "elu", "Equal": "eq", "Erf": "erf", "Exp": "exp", "Floor": "floor", "Gelu": "gelu",
    "Greater": "gt",
    "GreaterOrEqual": "ge", "HardSigmoid": "hardsigmoid", "HardSwish": "hardswish",
    "IsNaN": "isnan",
    "LeakyRelu": "leaky_relu", "Less": "lt", "LessOrEqual": "le", "Log": "log", "Max": "maximum",
    "Min": "minimum",
    "Mod": "remainder", "Mul": "mul", "Neg": "neg", "Not": "logical_not", "Or": "logical_or",
    "PRelu": "leaky_relu",
    "Pow": "pow", "Reciprocal": "reciprocal", "Relu": "relu", "Round": "round",
    "Sigmoid": "sigmoid", "Sign": "sign",
    "Sin": "sin", "Softplus": "softplus", "Sqrt": "sqrt", "Sub": "sub", "Sum": "add",
    "Swish": "silu", "Tanh": "tanh",
    "Where": "where",
}  # fmt: skip
REDUCTIONS: Mapping[str, str] = {
    "ReduceMean": "mean", "ReduceSum": "sum", "ReduceMax": "amax", "ReduceMin": "amin",
    "ReduceProd": "prod",
    "ReduceL2": "norm", "ReduceL1": "norm", "ReduceLogSumExp": "logsumexp", "ArgMax": "argmax",
    "ArgMin": "argmin",
}  # fmt: skip


@dataclass(frozen=True)
class Read:
    """An operator as it stands in the model: attributes, shapes of inputs (None: left out) and of
    outputs.

    ``known`` holds the values of inputs that no batch changes, as nested lists.
    """

    kind: str
    attrs: Mapping[str, Any]
    inputs: Sequence[Shape | None]
    outputs: Sequence[Shape]
    known: Mapping[int, Any] = field(default_factory=dict)
    opset: int = 0
    weights: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Told:
    """An op of simdev: its kind, attributes, and data inputs as (index, shape as executed).

    ``made`` are the shapes of its outputs where they differ from the model's, ``pad`` an op that
    pads operand 0 before.
    """

    kind: str
    attrs: Mapping[str, Any]
    operands: Sequence[tuple[int, Shape]]
    made: Sequence[Shape] | None = None
    pad: tuple[list[int], Shape] | None = None


Rule = Callable[[Read], Told]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers how operators of these names are told."""

    def registered(found: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, found))
        return found

    return registered


def tell(read: Read) -> Told:
    """The op of an operator; one that simdev has no kind for keeps its name in small letters.

    Raises ValueError.
    """
    found = RULES.get(read.kind)
    if found is not None:
        return found(read)
    name = "".join(f"_{c.lower()}" if c.isupper() else c for c in read.kind).lstrip("_")
    plain = {key: value for key, value in read.attrs.items() if isinstance(value, (int, str, list))}
    return Told(name, plain, _all(read))


def _all(read: Read) -> list[tuple[int, Shape]]:
    return [(i, shape) for i, shape in enumerate(read.inputs) if shape is not None]


def _first(read: Read, count: int = 1) -> list[tuple[int, Shape]]:
    return [(i, shape) for i, shape in _all(read) if i < count]


def _shape(read: Read, index: int) -> Shape:
    found = read.inputs[index] if index < len(read.inputs) else None
    if found is None:
        raise ValueError(f"input {index} is missing")
    return found


def _axis(axis: int, rank: int) -> int:
    return axis % rank if rank else 0


@rule(*ELEMENTWISE)
def _elementwise(read: Read) -> Told:
    # A number that is the same in every step is no operand: PyTorch hands it to the kernel.
    numbers = {i for i in read.known if prod(read.inputs[i] or ()) == 1}
    count = 1 if read.kind == "Clip" else len(read.inputs)
    operands = [(i, shape) for i, shape in _first(read, count) if i not in numbers] or _first(read)
    attrs = {"exponent": read.known[1]} if read.kind == "Pow" and 1 in numbers else {}
    return Told(ELEMENTWISE[read.kind], attrs, operands)


@rule(*REDUCTIONS)
def _reduction(read: Read) -> Told:
    rank = len(_shape(read, 0))
    if read.kind.startswith("Arg"):
        axes = [read.attrs.get("axis", 0)]
    else:
        axes = read.known.get(1, read.attrs.get("axes")) or list(range(rank))
    attrs: dict[str, Any] = {"dim": sorted(_axis(axis, rank) for axis in axes)}
    if read.attrs.get("keepdims", 1):
        attrs["keepdim"] = True
    return Told(REDUCTIONS[read.kind], attrs, _first(read))


@rule("Conv", "ConvTranspose")
def _conv(read: Read) -> Told:
    rank = len(_shape(read, 1)) - 2
    kernel = list(_shape(read, 1)[2:])
    attrs = _window(read, rank)
    pads = _pads(read, kernel, attrs, rank)
    if read.attrs.get("group", 1) != 1:
        attrs["groups"] = read.attrs["group"]
    if read.kind == "ConvTranspose":
        extra = read.attrs.get("output_padding")
        told = {
            **attrs,
            "padding": pads[:rank],
            **({"output_padding": extra} if extra and any(extra) else {}),
        }
        return Told(f"conv_transpose{rank}d", told, _all(read))
    return _padded(f"conv{rank}d", attrs, _all(read), pads)


@rule("MaxPool", "AveragePool", "LpPool")
def _pool(read: Read) -> Told:
    rank = len(_shape(read, 0)) - 2
    kernel = list(read.attrs["kernel_shape"])
    attrs = {"kernel_size": kernel, **_window(read, rank)}
    pads = _pads(read, kernel, attrs, rank)
    if read.kind != "MaxPool" or attrs["dilation"] == [1] * rank:
        attrs.pop("dilation")
    if read.attrs.get("ceil_mode"):
        attrs["ceil_mode"] = True
    return _padded(
        ("max" if read.kind == "MaxPool" else "avg") + f"_pool{rank}d", attrs, _first(read), pads
    )


def _window(read: Read, rank: int) -> dict[str, Any]:
    ones = [1] * rank
    return {
        "stride": list(read.attrs.get("strides", ones)),
        "dilation": list(read.attrs.get("dilations", ones)),
    }


def _pads(read: Read, kernel: Sequence[int], attrs: Mapping[str, Any], rank: int) -> list[int]:
    """Padding before and after each spatial dimension, all of the former first."""
    auto = read.attrs.get("auto_pad", "NOTSET")
    if auto in ("NOTSET", ""):
        return list(read.attrs.get("pads", [0] * (2 * rank)))
    if auto == "VALID" or read.kind == "ConvTranspose":
        return [0] * (2 * rank)
    before, after = [], []
    extents = zip(
        _shape(read, 0)[2:],
        read.outputs[0][2:],
        kernel,
        attrs["stride"],
        attrs["dilation"],
        strict=True,
    )
    for size, out, width, step, spread in extents:
        total = max((out - 1) * step + (width - 1) * spread + 1 - size, 0)
        before.append(total // 2 if auto == "SAME_UPPER" else total - total // 2)
        after.append(total - before[-1])
    return before + after


def _padded(
    kind: str, attrs: dict[str, Any], operands: list[tuple[int, Shape]], pads: list[int]
) -> Told:
    """A windowed op; padding that is not the same at both ends is an op of its own, as in
    PyTorch.
    """
    rank = len(pads) // 2
    before, after = pads[:rank], pads[rank:]
    if before == after:
        return Told(kind, {**attrs, "padding": before}, operands)
    shape = operands[0][1]
    grown = (*shape[:2], *(n + a + b for n, a, b in zip(shape[2:], before, after, strict=True)))
    flat = [one for a, b in reversed(list(zip(before, after, strict=True))) for one in (a, b)]
    return Told(
        kind, {**attrs, "padding": [0] * rank}, [(0, grown), *operands[1:]], pad=(flat, grown)
    )


@rule("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(read: Read) -> Told:
    rank = len(_shape(read, 0)) - 2
    kind = "avg" if read.kind == "GlobalAveragePool" else "max"
    return Told(f"adaptive_{kind}_pool{rank}d", {"output_size": [1] * rank}, _first(read))


@rule("Gemm")
def _gemm(read: Read) -> Told:
    attrs = {
        name: True
        for name, old in (("transpose_a", "transA"), ("transpose_b", "transB"))
        if read.attrs.get(old)
    }
    return Told("linear" if len(_all(read)) == 3 else "matmul", attrs, _all(read))


@rule("MatMul")
def _matmul(read: Read) -> Told:
    """As PyTorch runs it: rows of all batches together where the second is one matrix, else batches
    as one.
    """
    first, second = _shape(read, 0), _shape(read, 1)
    if len(second) == 2 and len(first) > 2:
        rows = (prod(first[:-1]), first[-1])
        return Told("matmul", {}, [(0, rows), (1, second)], [(rows[0], second[1])])
    if len(first) > 2 and first[:-2] == second[:-2]:
        count, made = prod(first[:-2]), read.outputs[0]
        operands = [(i, (count, *shape[-2:])) for i, shape in ((0, first), (1, second))]
        return Told("batch_matmul", {}, operands, [(count, *made[-2:])])
    if len(first) == 1 or len(second) == 1:
        kind = "dot" if len(first) == len(second) else "mv" if len(first) == 2 else "matmul"
        return Told(kind, {}, _all(read))
    return Told("matmul", {}, _all(read))


@rule("Einsum")
def _einsum(read: Read) -> Told:
    return Told("einsum", {"equation": str(read.attrs["equation"]).replace(" ", "")}, _all(read))


@rule("BatchNormalization")
def _batch_norm(read: Read) -> Told:
    attrs = {"training": True} if read.attrs.get("training_mode") else {}
    return Told("batch_norm", attrs, _all(read), [read.outputs[0]])


@rule("LayerNormalization", "RMSNormalization")
def _layer_norm(read: Read) -> Told:
    shape = _shape(read, 0)
    over = list(shape[_axis(read.attrs.get("axis", -1), len(shape)) :])
    kind = "layer_norm" if read.kind.startswith("Layer") else "rms_norm"
    return Told(kind, {"normalized_shape": over}, _all(read), [read.outputs[0]])


@rule("GroupNormalization", "InstanceNormalization")
def _group_norm(read: Read) -> Told:
    count, channels, *rest = _shape(read, 0)
    groups = read.attrs.get("num_groups", channels)
    return Told(
        "group_norm", {"N": count, "C": channels, "HxW": prod(rest), "group": groups}, _all(read)
    )


@rule("Softmax", "LogSoftmax")
def _softmax(read: Read) -> Told:
    shape = _shape(read, 0)
    kind = "softmax" if read.kind == "Softmax" else "log_softmax"
    if read.opset >= 13:
        # as written: so PyTorch's keys have it
        return Told(kind, {"dim": read.attrs.get("axis", -1)}, _first(read))
    # Before opset 13 all dimensions from the axis on are one.
    axis = _axis(read.attrs.get("axis", 1), len(shape))
    flat = (prod(shape[:axis]), prod(shape[axis:]))
    return Told(kind, {"dim": 1}, [(0, flat)], [flat])


@rule("Concat")
def _concat(read: Read) -> Told:
    return Told("concat", {"dim": _axis(read.attrs["axis"], len(read.outputs[0]))}, _all(read))


@rule("Gather")
def _gather(read: Read) -> Told:
    data, index = _shape(read, 0), _shape(read, 1)
    axis = _axis(read.attrs.get("axis", 0), len(data))
    if axis == 0 and len(data) == 2 and 0 in read.weights:
        return Told("embedding", {}, _all(read))
    if len(index) == 1:
        return Told("index_select", {"dim": axis}, _all(read))
    return Told("take", {"dim": axis}, _all(read))


@rule("GatherElements")
def _gather_elements(read: Read) -> Told:
    return Told(
        "gather", {"dim": _axis(read.attrs.get("axis", 0), len(_shape(read, 0)))}, _all(read)
    )


@rule("Cast", "CastLike")
def _cast(read: Read) -> Told:
    return Told("cast", {}, _first(read))


@rule("Pad")
def _pad(read: Read) -> Told:
    pads = read.known.get(1, read.attrs.get("pads"))
    rank = len(_shape(read, 0))
    if pads is None or 3 in read.known or len(pads) != 2 * rank:
        return Told("pad", {}, _first(read))
    flat = [one for axis in reversed(range(rank)) for one in (pads[axis], pads[rank + axis])]
    while len(flat) > 2 and flat[-2:] == [0, 0]:
        flat = flat[:-2]
    return Told("constant_pad_nd", {"pad": flat}, _first(read))


@rule("Tile")
def _tile(read: Read) -> Told:
    return Told("repeat", {"repeats": read.known[1]} if 1 in read.known else {}, _first(read))


@rule("CumSum")
def _cumsum(read: Read) -> Told:
    axis = read.known.get(1, 0)
    return Told(
        "cumsum",
        {"dim": _axis(axis[0] if isinstance(axis, list) else axis, len(_shape(read, 0)))},
        _first(read),
    )


@rule("Trilu")
def _trilu(read: Read) -> Told:
    return Told("triu" if read.attrs.get("upper", 1) else "tril", {}, _first(read))
