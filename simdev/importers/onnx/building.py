"""From the nodes of an ONNX model to a graph: operators in simdev's kinds, views folded away as
captured graphs do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from ...errors import InputError
from ...graph import Graph, Op, Tensor
from ...semantics import traits_of, work
from ...semantics.dtype import bits_of
from ...units import MAX_NAME
from ..imported import Imported
from ..machine import Machine, on_first, untimed
from .kinds import Read, Told, tell
from .model import Model, Shape, Spec

VIEWS = frozenset(
    {
        "Identity",
        "Dropout",
        "Reshape",
        "Flatten",
        "Squeeze",
        "Unsqueeze",
        "Transpose",
        "Slice",
        "Split",
        "Expand",
    }
)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A value as its readers find it: the tensor behind it as it is stored, and the shape that it
    is seen under.

    ``swapped`` says that nothing but its last two dimensions changed places.
    """

    reference: str
    stored: Spec
    shape: Shape
    swapped: bool = False


def model_scenario(model: Model, machine: Machine, name: str | None = None) -> Imported:
    """The forward pass of a model on the machine that is asked for.

    Raises InputError with every problem.
    """
    build = _Builder(model)
    build.run()
    graph, cluster = Graph(name or model.name, tuple(build.ops)), machine.build()
    notes = ["an ONNX model is a forward pass: there is no backward and no update"]
    if build.unknown:
        told = ", ".join(f"{kind} ({count})" for kind, count in sorted(build.unknown.items()))
        notes.append(f"kinds that simdev cannot reckon with: {told}")
    return Imported(graph, cluster, on_first(cluster), "onnx", (*notes, *untimed(graph, cluster)))


def model_graph(model: Model, name: str | None = None) -> Graph:
    """The graph of a model's forward pass. Raises InputError with every problem."""
    build = _Builder(model)
    build.run()
    return Graph(name or model.name, tuple(build.ops))


def bytes_of(spec: Spec) -> int:
    """Bytes of the elements of a value."""
    return -(-prod(spec.shape) * bits_of(spec.dtype) // 8)


class _Builder:
    """Writes the ops one after another."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.ops: list[Op] = []
        self.unknown: Counter[str] = Counter()
        self._seen: dict[str, _Seen] = {}
        self._taken: set[str] = set()

    def run(self) -> None:
        """Writes all ops. Raises InputError with every problem."""
        problems = []
        for name in self.model.inputs:
            if name in self.model.specs:
                self._leaf(name, "input")
        for node in self.model.nodes:
            try:
                self._node(node)
            except (InputError, ValueError, KeyError, IndexError, TypeError) as error:
                # The attributes are the file's: what does not fit the operator is told with its
                # node.
                reason = f"{error.args[0]}: missing" if isinstance(error, KeyError) else str(error)
                problems.append(f"node {node.name or node.output[0]} ({node.op_type}): {reason}")
                break
        if problems:
            raise InputError(problems)

    def _node(self, node: Any) -> None:
        specs = self.model.specs
        if node.op_type in ("Constant", "ConstantOfShape"):
            self._leaf(node.output[0], "constant")
            return
        if node.op_type in VIEWS or self._selects(node):
            seen = self._value(node.input[0])
            for name in filter(None, node.output):
                if name in specs:
                    self._seen[name] = replace(
                        seen,
                        shape=specs[name].shape,
                        swapped=self._swaps(node, seen, specs[name].shape),
                    )
            return
        told = tell(self._read(node))
        operands = [self._value(node.input[index]) for index, _ in told.operands]
        if told.pad is not None:
            operands[0] = self._padded(node, operands[0], told.pad)
        self._op(node, told, operands)

    def _selects(self, node: Any) -> bool:
        """Whether a Gather takes one place of an axis, which PyTorch does by a view."""
        known = self.model.known
        return (
            node.op_type == "Gather" and node.input[1] in known and known[node.input[1]].ndim == 0
        )

    def _swaps(self, node: Any, seen: _Seen, shape: Shape) -> bool:
        if node.op_type != "Transpose":
            return seen.swapped and shape == seen.shape
        rank = len(shape)
        order = next(
            (list(one.ints) for one in node.attribute if one.name == "perm"),
            list(range(rank))[::-1],
        )
        last_two = [*range(rank - 2), rank - 1, rank - 2]
        return rank >= 2 and order == last_two and not seen.swapped

    def _shape(self, name: str) -> Shape | None:
        """The shape that a value is seen under; None of one that is left out."""
        seen, spec = self._seen.get(name), self.model.specs.get(name)
        return seen.shape if seen else spec.shape if spec else None

    def _read(self, node: Any) -> Read:
        from onnx import helper

        attrs = {}
        for one in node.attribute:
            value = helper.get_attribute_value(one)
            attrs[one.name] = (
                value.decode("utf-8", "replace") if isinstance(value, bytes) else value
            )
            if not isinstance(attrs[one.name], (int, float, str)):
                attrs[one.name] = list(value) if one.ints or one.floats else None
        attrs = {name: value for name, value in attrs.items() if value is not None}
        known = {
            i: self.model.known[name].tolist()
            for i, name in enumerate(node.input)
            if name in self.model.known
        }
        outputs = [self.model.specs[name].shape for name in node.output if name in self.model.specs]
        shapes = [self._shape(name) for name in node.input]
        weights = frozenset(i for i, name in enumerate(node.input) if name in self.model.weights)
        return Read(node.op_type, attrs, shapes, outputs, known, self.model.opset, weights)

    def _value(self, name: str) -> _Seen:
        """A value that is read; a weight or a constant becomes an op where it is read first."""
        if name not in self._seen:
            if name not in self.model.specs:
                raise InputError(f"reads {name}, which nothing makes")
            self._leaf(name, "parameter" if name in self.model.weights else "constant")
        return self._seen[name]

    def _leaf(self, name: str, kind: str) -> None:
        spec = self.model.specs[name]
        size = bytes_of(spec)
        op = Op(self._unique(name), kind, outputs=(Tensor(size, spec.shape, spec.dtype),), time=0)
        self.ops.append(
            replace(op, param_bytes=size) if traits_of(kind).leaf == "parameter" else op
        )
        self._seen[name] = _Seen(op.name, spec, spec.shape)

    def _padded(self, node: Any, seen: _Seen, pad: tuple[list[int], Shape]) -> _Seen:
        """What an op of its own pads before a window that is not padded alike on both sides."""
        flat, shape = pad
        spec = Spec(shape, seen.stored.dtype)
        attrs = {
            "pad": flat,
            **({} if seen.shape == seen.stored.shape else {"in": [list(seen.shape)]}),
        }
        outputs = (Tensor(bytes_of(spec), shape, spec.dtype),)
        name = self._unique(f"{node.name or node.output[0]}/constant_pad_nd")
        self.ops.append(
            Op(name, "constant_pad_nd", inputs=(seen.reference,), outputs=outputs, attrs=attrs)
        )
        return _Seen(name, spec, shape)

    def _op(self, node: Any, told: Told, operands: Sequence[_Seen]) -> None:
        attrs, shapes = dict(told.attrs), [shape for _, shape in told.operands]
        for i, (seen, flag) in enumerate(
            zip(operands, traits_of(told.kind).transposes, strict=False)
        ):
            if seen.swapped:
                shapes[i] = (*shapes[i][:-2], shapes[i][-1], shapes[i][-2])
                attrs = {key: v for key, v in attrs.items() if key != flag} | (
                    {} if attrs.get(flag) else {flag: True}
                )
        specs = [self.model.specs[name] for name in node.output if name in self.model.specs]
        if told.made is not None:
            specs = [Spec(shape, spec.dtype) for shape, spec in zip(told.made, specs, strict=False)]
        made = [spec.shape for spec in specs]
        if work(told.kind, attrs, shapes, made, [seen.stored.dtype for seen in operands]) is None:
            self.unknown[told.kind] += 1
        if shapes != [seen.stored.shape for seen in operands]:
            attrs["in"] = [list(shape) for shape in shapes]
        op = Op(
            self._unique(node.name or f"{told.kind}/{node.output[0]}"),
            told.kind,
            inputs=tuple(seen.reference for seen in operands),
            outputs=tuple(Tensor(bytes_of(spec), spec.shape, spec.dtype) for spec in specs),
            attrs=attrs,
        )
        self.ops.append(op)
        names = [name for name in node.output if name in self.model.specs]
        for i, (name, spec) in enumerate(zip(names, specs, strict=False)):
            reference = f"{op.name}:{i}" if i else op.name
            self._seen[name] = _Seen(reference, spec, self.model.specs[name].shape)

    def _unique(self, name: str) -> str:
        """A name that an op can have, with _1, _2, .. behind it where it is taken."""
        plain = (
            "".join(c if c.isprintable() else "_" for c in name.replace(":", "_")).lstrip("/^")
            or "op"
        )
        found, count = plain[: MAX_NAME - 8], 0
        while found in self._taken:
            count += 1
            found = f"{plain[: MAX_NAME - 8]}_{count}"
        self._taken.add(found)
        return found
