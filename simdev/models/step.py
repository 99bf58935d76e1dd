"""The recorder of a training step: what verbs write down, and the values that they hand on.

A verb (``ops``) takes values and records one op or a few; its result is a value again. Names are
paths: the scopes entered, then the kind of the op. Views are no ops: a value can be seen under
another shape, and whoever reads it then tells so by the attribute "in", as captured graphs do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from ..errors import InputError
from ..graph import Op, Tensor
from ..memory import OPTIMIZERS, state_bytes
from ..semantics import traits_of
from ..semantics.dtype import PARAMETERS, bits_of, known
from ..structure.names import PREFIXES
from ..units import MAX_BYTES

Shape = tuple[int, ...]
Spec = tuple[Shape, str]
"""Shape and dtype of an output."""

FLOATS = tuple(name for name in PARAMETERS if "float" in name)
MAX_OPS = 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A tensor of the step: ``source`` is (position of the op that makes it, output), ``shape`` how
    it is seen.

    ``trained`` tells whether a parameter is behind it, so that it has a gradient.
    """

    step: Step = field(repr=False)
    source: tuple[int, int]
    shape: Shape
    dtype: str
    trained: bool

    @property
    def stored(self) -> Shape:
        """The shape that its op made."""
        return self.step.specs[self.source][0]

    def view(self, *shape: int) -> Value:
        """The same elements in the same order under another shape.

        Raises InputError where the counts differ.
        """
        if prod(shape) != prod(self.shape):
            raise InputError(
                f'"{self.step.path}": {list(self.shape)} cannot be seen as {list(shape)}'
            )
        return self if shape == self.shape else replace(self, shape=shape)

    def expand(self, *shape: int) -> Value:
        """Dimensions of extent 1 seen as many times as ``shape`` says."""
        return replace(self, shape=shape)

    def __add__(self, other: Value) -> Value:
        return record("add", (self, other), broadcast(self.shape, other.shape))

    def __mul__(self, other: Value) -> Value:
        return record("mul", (self, other), broadcast(self.shape, other.shape))


@dataclass(frozen=True, slots=True)
class Call:
    """A recorded op of the forward, as its gradient is asked for."""

    kind: str
    scope: str
    attrs: Mapping[str, Any]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


class Step:
    """A training step while it is recorded.

    ``dtype`` is that of parameters and activations, ``optimizer`` a name of
    ``simdev.memory.OPTIMIZERS``. Raises InputError for others.
    """

    def __init__(self, name: str, dtype: str, optimizer: str) -> None:
        problems, dtype = [], known(dtype) or dtype
        if dtype not in FLOATS:
            problems.append(f'dtype: must be one of {", ".join(sorted(FLOATS))}, got "{dtype}"')
        if optimizer not in OPTIMIZERS:
            problems.append(f'optimizer: must be one of {", ".join(OPTIMIZERS)}, got "{optimizer}"')
        if not problems and OPTIMIZERS[optimizer].floats and bits_of(dtype) != 16:
            problems.append(
                f"optimizer: {optimizer} keeps masters of parameters of 2 bytes, not of {dtype}"
            )
        if problems:
            raise InputError(problems)
        self.name, self.dtype, self.optimizer = name, dtype, optimizer
        self.phase, self.path = "forward", ""
        self.ops: list[Op] = []
        self.calls: list[Call] = []
        self.specs: dict[tuple[int, int], Spec] = {}
        self.parameters: list[Value] = []
        self._names: dict[str, int] = {}
        self._tensors: dict[Spec, Tensor] = {}

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Ops recorded inside have ``name`` in their path."""
        outer = self.path
        self.path = f"{outer}/{name}" if outer else name
        yield
        self.path = outer

    @contextmanager
    def back_at(self, path: str) -> Iterator[None]:
        """Ops recorded inside belong to the backward of what is at ``path``."""
        outer = self.phase, self.path
        self.phase, self.path = "backward", path
        yield
        self.phase, self.path = outer

    def input(self, name: str, *shape: int, dtype: str | None = None) -> Value:
        """A tensor of the batch."""
        return self._leaf("input", name, (shape, dtype or self.dtype), trained=False)

    def constant(self, name: str, *shape: int, dtype: str | None = None) -> Value:
        """A tensor that is the same in every step and is not trained."""
        return self._leaf("constant", name, (shape, dtype or self.dtype), trained=False)

    def parameter(self, name: str, *shape: int) -> Value:
        """A tensor that is trained: it has a gradient, an update and the optimizer's state."""
        value = self._leaf("parameter", name, (shape, self.dtype), trained=True)
        self.parameters.append(value)
        return value

    def buffer(self, name: str, *shape: int) -> Value:
        """A tensor that stays with the parameters and is no subject of the optimizer (running
        statistics).
        """
        return self._leaf("parameter", name, (shape, "float32"), trained=False)

    def _leaf(self, kind: str, name: str, spec: Spec, trained: bool) -> Value:
        name = self._unique(f"{self.path}/{name}" if self.path else name)
        tensor = self._tensor(spec)
        op = Op(name, kind, outputs=(tensor,), time=0)
        if traits_of(kind).leaf == "parameter":
            op = replace(op, param_bytes=tensor.bytes, colocate=name)
            op = replace(op, state_bytes=state_bytes(op, self.optimizer)) if trained else op
        return self._append(op, (spec,), trained)[0]

    def record(
        self,
        kind: str,
        inputs: Sequence[Value],
        outputs: Sequence[Spec],
        attrs: Mapping[str, Any] | None = None,
    ) -> tuple[Value, ...]:
        """Writes one op in the current scope; returns its outputs."""
        attrs = attrs or {}
        path = PREFIXES[self.phase] + (f"{self.path}/{kind}" if self.path else kind)
        tensors = tuple(map(self._tensor, outputs))
        told = {**attrs, **seen(inputs)}
        op = Op(
            self._unique(path),
            kind,
            self.phase,
            tuple(map(self.reference, inputs)),
            (),
            tensors,
            told,
        )
        trained = self.phase == "forward" and any(value.trained for value in inputs)
        values = self._append(op, outputs, trained)
        if trained:
            self.calls.append(Call(kind, self.path, attrs, tuple(inputs), values))
        return values

    def reference(self, value: Value) -> str:
        """A value as an op's input is written."""
        position, output = value.source
        return f"{self.ops[position].name}:{output}" if output else self.ops[position].name

    def _append(self, op: Op, outputs: Sequence[Spec], trained: bool) -> tuple[Value, ...]:
        position = len(self.ops)
        if position >= MAX_OPS:
            raise InputError(f"the step has more than {MAX_OPS} ops")
        self.ops.append(op)
        self.specs |= {(position, k): spec for k, spec in enumerate(outputs)}
        return tuple(
            Value(self, (position, k), shape, dtype, trained)
            for k, (shape, dtype) in enumerate(outputs)
        )

    def _tensor(self, spec: Spec) -> Tensor:
        if spec not in self._tensors:
            shape, dtype = spec
            size = prod(shape) * bits_of(dtype) // 8
            if size > MAX_BYTES:
                raise InputError(
                    f'"{self.path}": a tensor of {list(shape)} has more than {MAX_BYTES} bytes'
                )
            self._tensors[spec] = Tensor(size, shape, dtype)
        return self._tensors[spec]

    def _unique(self, name: str) -> str:
        """The name, with _1, _2, .. behind it where it is taken."""
        count = self._names.get(name, 0)
        self._names[name] = count + 1
        return f"{name}_{count}" if count else name


def seen(inputs: Sequence[Value]) -> dict[str, Any]:
    """The attribute "in" of an op: the shapes of its operands, where one is not as it is stored."""
    if all(value.shape == value.stored for value in inputs):
        return {}
    return {"in": [list(value.shape) for value in inputs]}


def record(
    kind: str, inputs: Sequence[Value], shape: Shape, attrs: Mapping[str, Any] | None = None
) -> Value:
    """Writes an op with one output, of the dtype of its first input."""
    return inputs[0].step.record(kind, inputs, [(shape, inputs[0].dtype)], attrs)[0]


def record_like(
    kind: str,
    inputs: Sequence[Value],
    like: Sequence[Value],
    attrs: Mapping[str, Any] | None = None,
) -> tuple[Value, ...]:
    """Writes an op with outputs that look as other values do: the gradients of these."""
    return inputs[0].step.record(
        kind, inputs, [(value.shape, value.dtype) for value in like], attrs
    )


def broadcast(first: Shape, second: Shape) -> Shape:
    """The shape of an elementwise result: aligned at the end, an extent of 1 repeated."""
    rank = max(len(first), len(second))
    pairs = zip(
        (1,) * (rank - len(first)) + first, (1,) * (rank - len(second)) + second, strict=True
    )
    return tuple(max(pair) for pair in pairs)
