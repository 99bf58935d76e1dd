"""The graph of an ONNX model: operators become simdev's kinds, and views are folded away as in
captured graphs.

``formats.import_file`` calls ``model_scenario``. Every kind named here has its description in
``simdev.nouns.semantics.kinds``. ``simdev.measure.kinds`` names the same operators of PyTorch; the
names must agree, so that one profile serves both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from ..ground.errors import InputError
from ..ground.frozen import FrozenDict
from ..ground.units import MAX_NAME
from ..nouns.graph import Graph, Op, Tensor
from ..nouns.semantics import traits_of, work
from ..nouns.semantics.dtype import bits_of
from .imported import Imported, Machine, graph_scenario
from .onnx_model import Model, Shape, ValueType

# Operators of ONNX in the kinds of simdev: the kind, which inputs are data, the attributes.
# Kinds, operand order and attributes follow docs/reference/ops.md, and so PyTorch wherever it has
# the operator, so that a profile measured there applies. Operators that PyTorch would run as views
# (Reshape, Transpose, ..) do not become ops.

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
    """An operator of the model: attributes, shapes of inputs (None: left out) and of
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
        """The first ``count`` inputs (None: all), without omitted ones."""
        return [(i, shape) for i, shape in enumerate(self.inputs[:count]) if shape is not None]

    def shape(self, index: int) -> Shape:
        """The shape of an input. Raises ValueError where it is missing."""
        shape = self.inputs[index] if index < len(self.inputs) else None
        if shape is None:
            raise ValueError(f"input {index} is missing")
        return shape

    def becomes(
        self,
        kind: str,
        attrs: Mapping[str, Any] = FrozenDict(),
        count: int | None = None,
        made: Sequence[Shape] | None = None,
    ) -> Translation:
        """An op of this kind with the first ``count`` operands (None: all), unchanged."""
        return Translation(kind, self.operands(count), attrs, made)

    def axis(self, default: int) -> int:
        """The attribute ``axis``, counted from the front of input 0."""
        return _axis(self.attrs.get("axis", default), len(self.shape(0)))


@dataclass(frozen=True)
class Translation:
    """An op of simdev: its kind, operands and attributes.

    ``made`` has the shapes of its outputs where they differ from the model's; ``pad`` (amounts,
    shape) describes an op that pads operand 0 first.
    """

    kind: str
    operands: Operands
    attrs: Mapping[str, Any] = field(default_factory=dict)
    made: Sequence[Shape] | None = None
    pad: tuple[list[int], Shape] | None = None


Rule = Callable[[Operator], Translation]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """A decorator that registers a function as the translation of operators of these names."""

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
    # The bounds of a clip are numbers too, even computed ones; the second input of a cast only
    # gives a type.
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
        # An attribute in older opsets, an input in newer ones; without axes all are reduced.
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
    """The attributes of a window, and its padding before, then after, each spatial dimension."""
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
        # SAME_UPPER has the odd element after the dimension, SAME_LOWER before it.
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
    # PyTorch runs the rows of all batches together where the second operand is a matrix; else it
    # makes the batches a single dimension.
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


@rule("LayerNormalization", "RMSNormalization")
def _layer_norm(operator: Operator) -> Translation:
    attrs = {"normalized_shape": list(operator.shape(0)[operator.axis(-1) :])}
    kind = "layer_norm" if operator.kind == "LayerNormalization" else "rms_norm"
    return operator.becomes(kind, attrs, made=[operator.outputs[0]])


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
        # The axis as written, as in the keys of PyTorch's profiles.
        return operator.becomes(kind, {"dim": operator.attrs.get("axis", -1)}, 1)
    # Before opset 13 all dimensions from the axis on are one.
    shape, axis = operator.shape(0), operator.axis(1)
    flat = (prod(shape[:axis]), prod(shape[axis:]))
    return Translation(kind, [(0, flat)], {"dim": 1}, [flat])


@rule("Gather")
def _gather(operator: Operator) -> Translation:
    axis = operator.axis(0)
    if axis == 0 and len(operator.shape(0)) == 2 and 0 in operator.weights:
        return operator.becomes("embedding")
    kind = "index_select" if len(operator.shape(1)) == 1 else "take"
    return operator.becomes(kind, {"dim": axis})


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


@rule("CumSum")
def _cumsum(operator: Operator) -> Translation:
    axis = operator.known.get(1, 0)
    axis = axis[0] if isinstance(axis, list) else axis
    attrs = {"dim": _axis(axis, len(operator.shape(0)))}
    return operator.becomes("cumsum", attrs, 1)


RULES |= {
    "BatchNormalization": lambda op: op.becomes(
        "batch_norm",
        {"training": True} if op.attrs.get("training_mode") else {},
        made=[op.outputs[0]],
    ),
    "Concat": lambda op: op.becomes("concat", {"dim": _axis(op.attrs["axis"], len(op.outputs[0]))}),
    "Einsum": lambda op: op.becomes(
        "einsum", {"equation": str(op.attrs["equation"]).replace(" ", "")}
    ),
    "GatherElements": lambda op: op.becomes("gather", {"dim": op.axis(0)}),
    "Tile": lambda op: op.becomes("repeat", {"repeats": op.known[1]} if 1 in op.known else {}, 1),
    "Trilu": lambda op: op.becomes("triu" if op.attrs.get("upper", 1) else "tril", count=1),
}

VIEWS = frozenset(
    {
        "Identity", "Dropout", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice",
        "Split", "Expand",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Value:
    """A value, perhaps a view: the stored tensor behind it, and the shape that its readers see.

    ``swapped``: the view only swaps the last two dimensions.
    """

    reference: str
    stored: ValueType
    shape: Shape
    swapped: bool = False


def model_scenario(model: Model, machine: Machine, name: str | None = None) -> Imported:
    """The forward pass of a model on a machine. Raises InputError with every problem."""
    notes = ["an ONNX model is a forward pass: there is no backward and no update"]
    unknown: Counter[str] = Counter()
    graph = model_graph(model, name, unknown)
    if unknown:
        kinds = ", ".join(f"{kind} ({count})" for kind, count in sorted(unknown.items()))
        notes.append(f"kinds that simdev cannot reckon with: {kinds}")
    return graph_scenario(graph, machine, "onnx", notes)


def model_graph(
    model: Model, name: str | None = None, unknown: Counter[str] | None = None
) -> Graph:
    """The graph of a model's forward pass; counts in ``unknown`` the kinds without a roofline.

    Raises InputError.
    """
    build = _Builder(model, Counter() if unknown is None else unknown)
    for value in model.inputs:
        if value in model.types:
            build.leaf(value, "input")
    for node in model.nodes:
        try:
            build.node(node)
        except (InputError, ValueError, KeyError, IndexError, TypeError) as error:
            # Attributes come from the file: where they do not fit, the message names the node.
            reason = f"{error.args[0]}: missing" if isinstance(error, KeyError) else str(error)
            if isinstance(error, (IndexError, TypeError)):
                reason = "has too few inputs or shapes, or an attribute of another type"
            title = f"node {node.name or node.output[0]} ({node.op_type})"
            raise InputError(f"{title}: {reason}") from None
    return Graph(name or model.name, tuple(build.ops))


def _tensor(type_: ValueType) -> Tensor:
    size = -(-prod(type_.shape) * bits_of(type_.dtype) // 8)
    return Tensor(size, type_.shape, type_.dtype)


class _Builder:
    """A builder of the graph, op after op."""

    def __init__(self, model: Model, unknown: Counter[str]) -> None:
        self.model, self.unknown = model, unknown
        self.ops: list[Op] = []
        self._values: dict[str, _Value] = {}
        self._names: set[str] = set()

    def node(self, node: Any) -> None:
        """Adds the op of a node, unless it is a view. Raises InputError, KeyError, .."""
        types = self.model.types
        if node.op_type in ("Constant", "ConstantOfShape"):
            self.leaf(node.output[0], "constant")
            return
        if node.op_type in VIEWS or self._selects(node):
            value = self._value(node.input[0])
            for name in node.output:
                if name in types:
                    shape = types[name].shape
                    swapped = _swaps(node, value, shape)
                    self._values[name] = replace(value, shape=shape, swapped=swapped)
            return
        translation = translate(self._operator(node))
        operands = [self._value(node.input[index]) for index, _ in translation.operands]
        if translation.pad is not None:
            operands[0] = self._padded(node, operands[0], *translation.pad)
        self._op(node, translation, operands)

    def _selects(self, node: Any) -> bool:
        """Whether a Gather takes one place of an axis, which PyTorch does by a view."""
        known = self.model.known
        return (
            node.op_type == "Gather" and node.input[1] in known and known[node.input[1]].ndim == 0
        )

    def _operator(self, node: Any) -> Operator:
        from onnx import helper

        attrs: dict[str, Any] = {}
        for attribute in node.attribute:
            value = helper.get_attribute_value(attribute)
            if isinstance(value, bytes):
                value = value.decode("utf-8", "replace")
            # Other attributes, like tensors and graphs, do not affect the work.
            if attribute.ints or attribute.floats:
                attrs[attribute.name] = list(value)
            elif isinstance(value, (int, float, str)):
                attrs[attribute.name] = value
        model, inputs = self.model, list(enumerate(node.input))
        seen = [self._values.get(name) or model.types.get(name) for name in node.input]
        return Operator(
            node.op_type,
            attrs,
            [value.shape if value else None for value in seen],
            [model.types[name].shape for name in node.output if name in model.types],
            {i: model.known[name].tolist() for i, name in inputs if name in model.known},
            model.opset,
            frozenset(i for i, name in inputs if name in model.weights),
        )

    def _value(self, name: str) -> _Value:
        """A value that a node reads; a weight or a constant becomes an op when first read."""
        if name not in self._values:
            if name not in self.model.types:
                raise InputError(f"reads {name}, which nothing makes")
            self.leaf(name, "parameter" if name in self.model.weights else "constant")
        return self._values[name]

    def leaf(self, name: str, kind: str) -> None:
        """Adds the op of a value that nothing computes."""
        type_ = self.model.types[name]
        tensor = _tensor(type_)
        op = Op(self._unique(name), kind, outputs=(tensor,), time=0)
        if traits_of(kind).leaf == "parameter":
            op = replace(op, param_bytes=tensor.bytes)
        self.ops.append(op)
        self._values[name] = _Value(op.name, type_, type_.shape)

    def _padded(self, node: Any, value: _Value, pad: list[int], shape: Shape) -> _Value:
        """A value padded by a separate op, for a window whose padding differs between sides."""
        padded = ValueType(shape, value.stored.dtype)
        attrs: dict[str, Any] = {"pad": pad}
        if value.shape != value.stored.shape:
            attrs["in"] = [list(value.shape)]
        name = self._unique(f"{node.name or node.output[0]}/constant_pad_nd")
        self.ops.append(
            Op(
                name,
                "constant_pad_nd",
                inputs=(value.reference,),
                outputs=(_tensor(padded),),
                attrs=attrs,
            )
        )
        return _Value(name, padded, shape)

    def _op(self, node: Any, translation: Translation, operands: Sequence[_Value]) -> None:
        kind, attrs = translation.kind, dict(translation.attrs)
        shapes = [shape for _, shape in translation.operands]
        flags = traits_of(kind).transposes
        for i, (value, flag) in enumerate(zip(operands, flags, strict=False)):
            if value.swapped:
                shapes[i] = (*shapes[i][:-2], shapes[i][-1], shapes[i][-2])
                # Two swaps cancel.
                if not attrs.pop(flag, False):
                    attrs[flag] = True
        names = [name for name in node.output if name in self.model.types]
        seen = [self.model.types[name] for name in names]
        stored = seen
        if translation.made is not None:
            pairs = zip(translation.made, seen, strict=False)
            stored = [ValueType(shape, type_.dtype) for shape, type_ in pairs]
        dtypes = [value.stored.dtype for value in operands]
        if work(kind, attrs, shapes, [type_.shape for type_ in stored], dtypes) is None:
            self.unknown[kind] += 1
        if shapes != [value.stored.shape for value in operands]:
            attrs["in"] = [list(shape) for shape in shapes]
        op = Op(
            self._unique(node.name or f"{kind}/{node.output[0]}"),
            kind,
            inputs=tuple(value.reference for value in operands),
            outputs=tuple(map(_tensor, stored)),
            attrs=attrs,
        )
        self.ops.append(op)
        for i, (name, type_) in enumerate(zip(names, stored, strict=False)):
            reference = f"{op.name}:{i}" if i else op.name
            self._values[name] = _Value(reference, type_, seen[i].shape)

    def _unique(self, name: str) -> str:
        """A valid and unique name of an op, with _1, _2, .. appended where it is taken."""
        letters = [c if c.isprintable() else "_" for c in name.replace(":", "_")]
        # Cut to leave room for the number.
        plain = ("".join(letters).lstrip("/^") or "op")[: MAX_NAME - 8]
        unique, count = plain, 0
        while unique in self._names:
            count += 1
            unique = f"{plain}_{count}"
        self._names.add(unique)
        return unique


def _swaps(node: Any, value: _Value, shape: Shape) -> bool:
    """Whether a view of a value only swaps the last two dimensions."""
    if node.op_type != "Transpose":
        return value.swapped and shape == value.shape
    rank = len(shape)
    orders = [list(attribute.ints) for attribute in node.attribute if attribute.name == "perm"]
    order = orders[0] if orders else [*reversed(range(rank))]
    return rank >= 2 and order == [*range(rank - 2), rank - 1, rank - 2] and not value.swapped
