"""The recorder of a training step: ops in the order in which they run, and the values they produce.

A verb (``ops``) takes values, records one or more ops and returns a value. Op names are paths: the
scopes entered, then the kind of the op. Views are no ops: a value may have another shape than its
op produced, and an op that reads it then has this shape in its attribute "in", as in captured
graphs.

The verbs of ``ops`` and the derivation of the backward call it. The prefixes of names that it
writes are ``PREFIXES`` of ``simdev/nouns/structure.py``, where they are read back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from ...ground.errors import InputError, refuse
from ...ground.units import MAX_BYTES
from ..graph import Op, Tensor
from ..memory import OPTIMIZERS, state_bytes
from ..semantics.dtype import PARAMETERS, bits_of, known
from ..structure import PREFIXES

Shape = tuple[int, ...]
ShapeDtype = tuple[Shape, str]

FLOATS = tuple(name for name in PARAMETERS if "float" in name)
# A mistyped size must not fill the memory before a user can stop it.
MAX_OPS = 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A tensor of the step: ``source`` is (position of the op that produced it, output index).

    ``shape`` is the shape in which it is read, which may differ from ``stored``. ``trained`` says
    whether it depends on a parameter, so that it has a gradient.
    """

    step: StepBuilder = field(repr=False)
    source: tuple[int, int]
    shape: Shape
    dtype: str
    trained: bool

    @property
    def stored(self) -> Shape:
        """The shape that its op produced."""
        return self.step.outputs[self.source][0]

    @property
    def shape_dtype(self) -> ShapeDtype:
        """Shape and dtype of an output equal to this value."""
        return self.shape, self.dtype

    def view(self, *shape: int) -> Value:
        """The elements, in order, under another shape. Raises InputError for another count."""
        if prod(shape) != prod(self.shape):
            raise InputError(
                f'"{self.step.path}": {list(self.shape)} cannot be seen as {list(shape)}'
            )
        return self if shape == self.shape else replace(self, shape=shape)

    def expand(self, *shape: int) -> Value:
        """Dimensions of extent 1 repeated to the extents of ``shape``."""
        return replace(self, shape=shape)

    def __add__(self, other: Value) -> Value:
        return record("add", self, other, shape=np.broadcast_shapes(self.shape, other.shape))

    def __mul__(self, other: Value) -> Value:
        return record("mul", self, other, shape=np.broadcast_shapes(self.shape, other.shape))


@dataclass(frozen=True, slots=True)
class Call:
    """A recorded op of the forward, as the rule of its gradient reads it."""

    kind: str
    scope: str
    attrs: Mapping[str, Any]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


class StepBuilder:
    """A training step while it is recorded.

    ``dtype`` is the dtype of parameters and activations, ``optimizer`` a name of
    ``simdev.nouns.memory.OPTIMIZERS``. Raises InputError for others.
    """

    def __init__(self, name: str, dtype: str, optimizer: str) -> None:
        # An unknown dtype keeps its spelling for the message.
        problems, dtype = [], known(dtype) or dtype
        if dtype not in FLOATS:
            problems.append(f'dtype: must be one of {", ".join(sorted(FLOATS))}, got "{dtype}"')
        if optimizer not in OPTIMIZERS:
            problems.append(f'optimizer: must be one of {", ".join(OPTIMIZERS)}, got "{optimizer}"')
        if not problems and OPTIMIZERS[optimizer].floats and bits_of(dtype) != 16:
            problems.append(
                f"optimizer: {optimizer} keeps masters of parameters of 2 bytes, not of {dtype}"
            )
        refuse(problems)
        self.name, self.dtype, self.optimizer = name, dtype, optimizer
        self.phase, self.path = "forward", ""
        self.ops: list[Op] = []
        self.calls: list[Call] = []
        self.outputs: dict[tuple[int, int], ShapeDtype] = {}
        self.parameters: list[Value] = []
        self._taken: dict[str, int] = {}
        # Steps have thousands of tensors of few shapes, so equal tensors are one object.
        self._tensors: dict[ShapeDtype, Tensor] = {}

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Ops recorded inside have ``name`` in their path."""
        outer = self.path
        self.path = f"{outer}/{name}" if outer else name
        yield
        self.path = outer

    @contextmanager
    def back_at(self, path: str) -> Iterator[None]:
        """Ops recorded inside belong to the backward of the ops at ``path``."""
        outer = self.phase, self.path
        self.phase, self.path = "backward", path
        yield
        self.phase, self.path = outer

    def input(self, name: str, *shape: int, dtype: str | None = None) -> Value:
        """A tensor of the batch, an input of the step."""
        return self._leaf("input", name, (shape, dtype or self.dtype))

    def constant(self, name: str, *shape: int, dtype: str | None = None) -> Value:
        """A tensor that is the same in every step and is not trained."""
        return self._leaf("constant", name, (shape, dtype or self.dtype))

    def parameter(self, name: str, *shape: int) -> Value:
        """A trained tensor: it has a gradient, an update and the optimizer's state."""
        value = self._leaf("parameter", name, (shape, self.dtype), trained=True)
        self.parameters.append(value)
        return value

    def buffer(self, name: str, *shape: int) -> Value:
        """A tensor kept beside the parameters that no optimizer updates (running statistics)."""
        # Running statistics stay float32 in 16-bit models, as under PyTorch's autocast.
        return self._leaf("parameter", name, (shape, "float32"))

    def _leaf(self, kind: str, name: str, output: ShapeDtype, trained: bool = False) -> Value:
        name, tensor = self._path_of(name), self._tensor(output)
        # Leaves take no time: they exist when the step begins.
        op = Op(name, kind, outputs=(tensor,), time=0)
        if kind == "parameter":
            op = replace(op, param_bytes=tensor.bytes, colocate=name)
        if trained:
            op = replace(op, state_bytes=state_bytes(op, self.optimizer))
        return self._append(op, [output], trained)[0]

    def record(
        self, kind: str, inputs: Sequence[Value], outputs: Sequence[ShapeDtype], **attrs: Any
    ) -> tuple[Value, ...]:
        """Record one op in the current scope; returns its outputs."""
        op = Op(
            self._path_of(kind),
            kind,
            self.phase,
            tuple(map(self.reference, inputs)),
            outputs=tuple(map(self._tensor, outputs)),
            attrs={**attrs, **read_shapes(inputs)},
        )
        # Only the forward is remembered, since nothing differentiates a gradient.
        trained = self.phase == "forward" and any(value.trained for value in inputs)
        values = self._append(op, outputs, trained)
        if trained:
            self.calls.append(Call(kind, self.path, attrs, tuple(inputs), values))
        return values

    def reference(self, value: Value) -> str:
        """The text of a value as an op's input."""
        position, output = value.source
        return f"{self.ops[position].name}:{output}" if output else self.ops[position].name

    def _append(self, op: Op, outputs: Sequence[ShapeDtype], trained: bool) -> tuple[Value, ...]:
        position = len(self.ops)
        if position >= MAX_OPS:
            raise InputError(f"the step has more than {MAX_OPS} ops")
        self.ops.append(op)
        self.outputs |= {(position, k): output for k, output in enumerate(outputs)}
        return tuple(
            Value(self, (position, k), *output, trained) for k, output in enumerate(outputs)
        )

    def _tensor(self, output: ShapeDtype) -> Tensor:
        if output not in self._tensors:
            shape, dtype = output
            size = prod(shape) * bits_of(dtype) // 8
            if size > MAX_BYTES:
                raise InputError(
                    f'"{self.path}": a tensor of {list(shape)} has more than {MAX_BYTES} bytes'
                )
            self._tensors[output] = Tensor(size, shape, dtype)
        return self._tensors[output]

    def _path_of(self, name: str) -> str:
        """The name after its phase and scopes, with _1, _2, .. appended where it is taken."""
        path = PREFIXES[self.phase] + (f"{self.path}/{name}" if self.path else name)
        count = self._taken.get(path, 0)
        self._taken[path] = count + 1
        return f"{path}_{count}" if count else path


def read_shapes(inputs: Sequence[Value]) -> dict[str, Any]:
    """The attribute "in" of an op: the shapes of its operands, if one is not read as stored."""
    # Left out where all are as stored, as in captured graphs: keys of profiles must be equal.
    if all(value.shape == value.stored for value in inputs):
        return {}
    return {"in": [list(value.shape) for value in inputs]}


def record(kind: str, *operands: Value, shape: Shape | None = None, **attrs: Any) -> Value:
    """Record an op with one output, by default with its first operand's dtype and shape."""
    first = operands[0]
    output = first.shape if shape is None else shape, first.dtype
    return first.step.record(kind, operands, [output], **attrs)[0]
