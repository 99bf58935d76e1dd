"""From the nodes of an ONNX model to a graph: operators in simdev's kinds, views folded away as
captured graphs do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from ...ground.errors import InputError
from ...ground.units import MAX_NAME
from ...nouns.graph import Graph, Op, Tensor
from ...nouns.semantics import traits_of, work
from ...nouns.semantics.dtype import bits_of
from ..imported import Imported
from ..machine import Machine, graph_scenario
from .kinds import Operator, Translation, translate
from .model import Model, Shape, ValueType

VIEWS = frozenset(
    {
        "Identity", "Dropout", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice",
        "Split", "Expand",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Value:
    """A value as its readers see it: the tensor behind it as it is stored, and the shape that it is
    seen under.

    ``swapped`` says that nothing but its last two dimensions changed places.
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
            # The attributes are the file's: what does not fit the operator is told with its node.
            reason = f"{error.args[0]}: missing" if isinstance(error, KeyError) else str(error)
            title = f"node {node.name or node.output[0]} ({node.op_type})"
            raise InputError(f"{title}: {reason}") from None
    return Graph(name or model.name, tuple(build.ops))


def _tensor(type_: ValueType) -> Tensor:
    size = -(-prod(type_.shape) * bits_of(type_.dtype) // 8)
    return Tensor(size, type_.shape, type_.dtype)


class _Builder:
    """Writes the ops one after another."""

    def __init__(self, model: Model, unknown: Counter[str]) -> None:
        self.model, self.unknown = model, unknown
        self.ops: list[Op] = []
        self._values: dict[str, _Value] = {}
        self._names: set[str] = set()

    def node(self, node: Any) -> None:
        """Writes the op of a node, where it is one. Raises InputError, KeyError, .."""
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
            # Others, like tensors and graphs, tell nothing of the work.
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
        """A value that is read; a weight or a constant becomes an op where it is read first."""
        if name not in self._values:
            if name not in self.model.types:
                raise InputError(f"reads {name}, which nothing makes")
            self.leaf(name, "parameter" if name in self.model.weights else "constant")
        return self._values[name]

    def leaf(self, name: str, kind: str) -> None:
        """Writes the op of a value that nothing computes."""
        type_ = self.model.types[name]
        tensor = _tensor(type_)
        op = Op(self._unique(name), kind, outputs=(tensor,), time=0)
        if traits_of(kind).leaf == "parameter":
            op = replace(op, param_bytes=tensor.bytes)
        self.ops.append(op)
        self._values[name] = _Value(op.name, type_, type_.shape)

    def _padded(self, node: Any, value: _Value, pad: list[int], shape: Shape) -> _Value:
        """What a separate op pads before a window that is not padded alike on both sides."""
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
                # Two swaps are none.
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
        """A name that an op can have, with _1, _2, .. behind it where it is taken."""
        letters = [c if c.isprintable() else "_" for c in name.replace(":", "_")]
        # Shorter than a name may be, for the number.
        plain = ("".join(letters).lstrip("/^") or "op")[: MAX_NAME - 8]
        unique, count = plain, 0
        while unique in self._names:
            count += 1
            unique = f"{plain}_{count}"
        self._names.add(unique)
        return unique


def _swaps(node: Any, value: _Value, shape: Shape) -> bool:
    """Whether a view of a value is swapped in its last two dimensions and nothing else."""
    if node.op_type != "Transpose":
        return value.swapped and shape == value.shape
    rank = len(shape)
    orders = [list(attribute.ints) for attribute in node.attribute if attribute.name == "perm"]
    order = orders[0] if orders else [*reversed(range(rank))]
    return rank >= 2 and order == [*range(rank - 2), rank - 1, rank - 2] and not value.swapped
