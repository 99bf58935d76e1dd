"""From an operator of a trace to rows of a profile: the call is put together again and recorded on
fake tensors.

A trace with ``record_shapes`` holds the shapes, strides and types of an operator's tensors and the
values of its other arguments, but not what it made. Run once more on tensors without data, the
recorder that captures modules writes the row that it would write for this call in a step: one
mapping for both.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ...semantics import work
from ..capture import Writer
from ..kinds import ALLOCATIONS
from ..record import Recorder, Scopes
from .events import Event, is_shape

ATEN = "aten::"
DTYPES = {
    "float": torch.float32,
    "double": torch.float64,
    "c10::Half": torch.float16,
    "c10::BFloat16": torch.bfloat16,
    "c10::Float8_e4m3fn": torch.float8_e4m3fn,
    "c10::Float8_e5m2": torch.float8_e5m2,
    "long int": torch.int64,
    "long": torch.int64,
    "int": torch.int32,
    "short int": torch.int16,
    "signed char": torch.int8,
    "unsigned char": torch.uint8,
    "bool": torch.bool,
    "c10::complex<float>": torch.complex64,
    "c10::complex<double>": torch.complex128,
}
"""How a trace writes the types of elements."""

SCALAR_TYPES = (
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32,
    torch.float64,
    torch.complex32, torch.complex64, torch.complex128, torch.bool, torch.qint8, torch.quint8,
    torch.qint32,
    torch.bfloat16,
)  # fmt: skip
"""By their numbers in PyTorch (c10/core/ScalarType.h), as arguments of type ScalarType are written.
"""

OVERWRITES = frozenset(
    {"bernoulli_", "exponential_", "fill_", "normal_", "random_", "uniform_", "zero_"}
)
"""Operators that write their first tensor without reading it."""

_ABSENT = object()


class UnknownError(Exception):
    """The call cannot be put together from what the trace tells."""


def is_composite(name: str) -> bool:
    """Whether an operator only calls others (``aten::linear``): its children are the ones that
    count.
    """
    packet = getattr(torch.ops.aten, name.removeprefix(ATEN), None)
    if packet is None:
        return False
    for overload in packet.overloads():
        full = name if overload == "default" else f"{name}.{overload}"
        try:
            if torch._C._dispatch_has_kernel_for_dispatch_key(full, "CompositeImplicitAutograd"):
                return True
        except RuntimeError:
            continue  # an overload of TorchScript alone
    return False


def rows_of(event: Event, types: Mapping[tuple[int, ...], torch.dtype]) -> list[dict[str, Any]]:
    """The parts of the keys of the rows that an operator is: none for a view, two for the backward
    of a convolution.

    ``types`` are the types of elements by shape where the trace tells but one; lists of tensors are
    told without. Raises UnknownError.
    """
    packet = getattr(torch.ops.aten, event.name.removeprefix(ATEN), None)
    if packet is None:
        raise UnknownError("not an operator of this PyTorch")
    told = list(_arguments(event))
    reasons: list[str] = []
    with FakeTensorMode() as mode:
        for name in packet.overloads():
            overload = getattr(packet, name)
            if "out" in name.split("_") or name.endswith("_out"):
                continue
            try:
                args, kwargs = _bound(overload, told, types)
            except UnknownError as error:
                reasons.append(str(error))
                continue
            return _recorded(overload, args, kwargs, _phase(event), mode, fills_new_memory(event))
    raise UnknownError(
        next((one for one in reasons if "value" in one), "its arguments fit no overload")
    )


def fills_new_memory(event: Event) -> bool:
    """Whether an operator writes what was reserved just before it (a dropout's ``empty_like``, then
    ``bernoulli_``).
    """
    if event.parent is None or event.name.removeprefix(ATEN) not in OVERWRITES:
        return False
    before = None
    for sibling in event.parent.children:
        if sibling is event:
            break
        before = sibling
    return before is not None and before.name.removeprefix(ATEN) in ALLOCATIONS


def _phase(event: Event) -> str:
    # The gradient of the loss with respect to itself is made before autograd's own spans begin.
    shapes = event.args.get("Input Dims")
    first = event.name == "aten::ones_like" and isinstance(shapes, list) and shapes[:1] == [[]]
    return "backward" if first else event.phase


def _arguments(event: Event) -> Iterator[tuple[str, Any, Any, str]]:
    """(type, shape, strides, value as text) of every argument."""
    shapes, kinds = event.args.get("Input Dims"), event.args.get("Input type")
    if not isinstance(shapes, list) or not isinstance(kinds, list) or len(shapes) != len(kinds):
        raise UnknownError("the trace tells no shapes of it")
    strides = event.args.get("Input Strides")
    values = event.args.get("Concrete Inputs")
    for i, (kind, shape) in enumerate(zip(kinds, shapes, strict=True)):
        stride = strides[i] if isinstance(strides, list) and i < len(strides) else None
        value = values[i] if isinstance(values, list) and i < len(values) else ""
        yield str(kind), shape, stride, str(value)


def _bound(
    overload: Any,
    told: Sequence[tuple[str, Any, Any, str]],
    types: Mapping[tuple[int, ...], torch.dtype],
) -> tuple[list[Any], dict[str, Any]]:
    """Arguments and keywords of an overload. Raises UnknownError where they do not fit it."""
    schema = overload._schema.arguments
    if len(told) > len(schema):
        raise UnknownError("its arguments fit no overload")
    others = {kind for kind, shape, _, _ in told if kind in DTYPES and shape}
    if (
        overload._schema.name == "aten::add_"
        and [one[0] for one in told[:2]] == ["long int"] * 2
        and not others
    ):
        # A batch norm counts its batches; nothing else of a step adds to one whole number.
        told = [told[0], ("Scalar", [], None, "1"), *told[2:]]
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for i, argument in enumerate(schema):
        value = _value(str(argument.type), told[i], others, types) if i < len(told) else _ABSENT
        if value is _ABSENT:
            if not argument.has_default_value():
                raise UnknownError(f"the trace does not tell the value of {argument.name}")
            value = argument.default_value
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    return args, kwargs


def _value(
    kind: str,
    told: tuple[str, Any, Any, str],
    others: set[str],
    types: Mapping[tuple[int, ...], torch.dtype],
) -> Any:
    """One argument of the schema's type; _ABSENT where its default has to do.

    Raises UnknownError.
    """
    written, shape, stride, text = told
    plain = (
        kind.removeprefix("Optional[").removesuffix("]") if kind.startswith("Optional[") else kind
    )
    if plain == "Tensor":
        return _tensor(written, shape, stride, others, optional=plain != kind)
    if plain in ("List[Tensor]", "List[Optional[Tensor]]"):
        return _tensors(written, shape, stride, types)
    if written in DTYPES:
        raise UnknownError("its arguments fit no overload")
    if not text or plain in ("Device", "Layout", "MemoryFormat", "Generator"):
        return None if plain != kind else _ABSENT
    if plain in ("str", "string"):
        return text.strip("\"'")
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise UnknownError("its arguments fit no overload") from None
    if plain == "ScalarType" and isinstance(value, int) and 0 <= value < len(SCALAR_TYPES):
        return SCALAR_TYPES[value]
    if isinstance(value, list) != plain.startswith("List["):
        raise UnknownError("its arguments fit no overload")
    return value


def _tensor(written: str, shape: Any, stride: Any, others: set[str], optional: bool) -> Any:
    if written == "" and optional:
        return None
    if written not in DTYPES:
        raise UnknownError("its arguments fit no overload")
    if not shape and others and written in ("double", "long int") and written not in others:
        # A number of Python's that stands where a tensor could: the kernel takes it as a number.
        if written == "double":
            return 1.0
        raise UnknownError("the trace does not tell the value of a number")
    return _empty(shape, stride, DTYPES[written])


def _tensors(
    written: str, shapes: Any, strides: Any, types: Mapping[tuple[int, ...], torch.dtype]
) -> list[torch.Tensor | None]:
    if written not in ("TensorList", "GenericList", "OptionalTensorList") or not isinstance(
        shapes, list
    ):
        raise UnknownError("its arguments fit no overload")
    if not shapes or not all(isinstance(shape, list) for shape in shapes):
        raise UnknownError("the trace does not tell the values of a list")
    found: list[torch.Tensor | None] = []
    for i, shape in enumerate(shapes):
        dtype = types.get(tuple(shape)) if is_shape(shape) else None
        if dtype is None:
            raise UnknownError("the trace does not tell the value types of a list of tensors")
        own = strides[i] if isinstance(strides, list) and i < len(strides) else None
        found.append(_empty(shape, own, dtype))
    return found


def _empty(shape: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    if not is_shape(shape):
        raise UnknownError("the trace tells a shape that is none")
    try:
        if is_shape(stride) and len(stride) == len(shape):
            return torch.empty_strided(shape, stride, dtype=dtype)
        return torch.empty(shape, dtype=dtype)
    except (RuntimeError, OverflowError):  # more elements, or bytes, than 64 bits count
        raise UnknownError("the trace tells a shape that is none") from None


def _recorded(
    overload: Any,
    args: list[Any],
    kwargs: dict[str, Any],
    phase: str,
    mode: FakeTensorMode,
    fills: bool,
) -> list[dict[str, Any]]:
    """The rows that the recorder writes of a call; ``fills``: its first tensor is reserved, not yet
    written.
    """
    recorder = Recorder(Scopes({}))
    if fills and args and isinstance(args[0], torch.Tensor):
        with mode, recorder:
            args[0] = torch.empty_strided(args[0].shape, args[0].stride(), dtype=args[0].dtype)
    for leaf in torch.utils._pytree.tree_leaves((args, kwargs)):
        if isinstance(leaf, torch.Tensor) and not (fills and leaf is args[0]):
            recorder.add_leaf("input", leaf)
    recorder.phase = phase
    try:
        with torch.no_grad(), mode, recorder:
            overload(*args, **kwargs)
    except Exception as error:
        # Any kernel may refuse what the trace tells of a call, each in its own way.
        raise UnknownError(f"cannot be run without data: {type(error).__name__}") from None
    writer = Writer(recorder, {})
    writer.write_step()
    return list(writer.captured("call").rows.values())


def shares(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Which part of an operator's time each of its rows has: by their operations, else alike."""
    done = [work(row["op"], row["attrs"], row["in"], row["out"], row["dt"]) for row in rows]
    flops = [0 if one is None else one.flops for one in done]
    total = sum(flops)
    return [one / total for one in flops] if all(flops) else [1 / len(rows)] * len(rows)
