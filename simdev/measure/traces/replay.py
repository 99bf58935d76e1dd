"""Makes the row of a profile for an operator of a trace: reconstructs the call and records it on
fake tensors.

A trace with ``record_shapes`` holds the shapes, strides and types of an operator's tensors and the
values of its other arguments, but not its outputs. So the call is run again on tensors without
data, under the recorder that captures modules: traces and captures get the same rows.

``reading`` and ``step`` call it.
"""

from __future__ import annotations

import ast
import logging
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise, product
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from ...nouns.semantics import work
from ..capture import captured
from ..kinds import ALLOCATIONS, Fields
from ..record import Recorder, Scopes
from .events import Argument, Event, is_shape

ATEN = "aten::"
Types = Mapping[tuple[int, ...], torch.dtype]
"""The element type of every shape of which the trace determines it (``reading.types_of``)."""

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
"""Element types by their names in a trace."""

_SCALAR_NAMES = (
    "uint8 int8 int16 int32 int64 float16 float32 float64 complex32 complex64 complex128 bool "
    "qint8 quint8 qint32 bfloat16"
)
SCALAR_TYPES: list[torch.dtype] = [getattr(torch, name) for name in _SCALAR_NAMES.split()]
"""Element types by their numbers in PyTorch (c10/core/ScalarType.h), which stand in arguments of
type ScalarType.
"""

OVERWRITES = frozenset(
    {"bernoulli_", "exponential_", "fill_", "normal_", "random_", "uniform_", "zero_"}
)
"""Operators that write their first tensor without reading it."""

_NO_OVERLOAD = "its arguments fit no overload"
_DEFAULT = object()


class UnknownError(Exception):
    """Raised where a call cannot be reconstructed from the trace."""


@cache
def is_composite(name: str) -> bool:
    """Whether an operator only calls others (``aten::linear``): then its children count instead."""
    packet = getattr(torch.ops.aten, name.removeprefix(ATEN), None)
    for overload in packet.overloads() if packet is not None else ():
        full = name if overload == "default" else f"{name}.{overload}"
        try:
            if torch._C._dispatch_has_kernel_for_dispatch_key(full, "CompositeImplicitAutograd"):
                return True
        except RuntimeError:
            continue  # an overload of TorchScript alone
    return False


class Replayed(NamedTuple):
    """A reconstructed call: the parts of its row's key, and its outputs in a graph's format."""

    row: Fields
    outputs: list[Fields]


def replayed(event: Event, arguments: Sequence[Argument], types: Types) -> list[Replayed]:
    """The ops of an operator called with these arguments: none for a view, two for the backward of
    a convolution.

    ``types`` gives the types of lists of tensors, which a trace writes without. Raises
    UnknownError.
    """
    packet = getattr(torch.ops.aten, event.name.removeprefix(ATEN), None)
    if packet is None:
        raise UnknownError("not an operator of this PyTorch")
    if not arguments:
        raise UnknownError("the trace tells no shapes of it")
    try:
        return _replayed(packet, arguments, types, event)
    except UnknownError:
        # Compilers call the variant that writes into a last tensor (``out``): the work is equal.
        if "out" not in packet.overloads() or arguments[-1].type not in DTYPES:
            raise
        return _replayed(packet, arguments[:-1], types, event)


def _replayed(
    packet: Any, arguments: Sequence[Argument], types: Types, event: Event
) -> list[Replayed]:
    # Without the overloads that write into a given tensor: eager code does not call those.
    overloads = [
        getattr(packet, name) for name in packet.overloads() if "out" not in name.split("_")
    ]
    reasons: list[str] = []
    with FakeTensorMode() as mode:
        # First strictly by the schema. Then leniently, with None where the trace lacks a tensor
        # that the schema requires: attention's backward gets no attn_bias, against its schema.
        for lenient, overload in product((False, True), overloads):
            try:
                args, kwargs = _bound(overload, arguments, types, lenient)
            except UnknownError as error:
                reasons.append(str(error))
                continue
            return _recorded(overload, args, kwargs, event, mode)
    # If an overload fits except for an unknown value, that is the most useful reason.
    raise UnknownError(next((reason for reason in reasons if "value" in reason), _NO_OVERLOAD))


def fills_new_memory(event: Event) -> bool:
    """Whether an operator fills memory that was allocated just before it (in a dropout,
    ``empty_like`` and then ``bernoulli_``).
    """
    if event.parent is None or event.name.removeprefix(ATEN) not in OVERWRITES:
        return False
    return any(
        event is after and before.name.removeprefix(ATEN) in ALLOCATIONS
        for before, after in pairwise(event.parent.children)
    )


def _bound(
    overload: Any, arguments: Sequence[Argument], types: Types, lenient: bool
) -> tuple[list[Any], Fields]:
    """The positional and keyword arguments for an overload; where ``lenient``, any tensor may be
    None.

    Raises UnknownError where they do not fit the overload.
    """
    schema = overload._schema.arguments
    if len(arguments) > len(schema):
        raise UnknownError(_NO_OVERLOAD)
    others = {argument.type for argument in arguments if argument.type in DTYPES and argument.shape}
    numbers = _scalars(overload)
    counts_batches = [argument.type for argument in arguments[:2]] == ["long int"] * 2
    if overload._schema.name == "aten::add_" and counts_batches and not others:
        # A batch norm counts its batches; nothing else in a step adds a number to an integer.
        arguments = [arguments[0], Argument("Scalar", [], None, "1"), *arguments[2:]]
    args: list[Any] = []
    kwargs: Fields = {}
    for i, parameter in enumerate(schema):
        value = _DEFAULT
        if i < len(arguments):
            type_, argument = str(parameter.type), arguments[i]
            if type_ == "Tensor" and argument.type == "" and lenient:
                value = None
            elif parameter.name in numbers and _is_number(argument, others):
                value = _number(argument)
            else:
                value = _value(type_, argument, types)
        if value is _DEFAULT:
            if not parameter.has_default_value():
                raise UnknownError(f"the trace does not tell the value of {parameter.name}")
            value = parameter.default_value
        if parameter.kwarg_only:
            kwargs[parameter.name] = value
        else:
            args.append(value)
    return args, kwargs


def _scalars(overload: Any) -> set[str]:
    """The names of arguments that some overload takes as a number. An example is ``other`` of
    mul.Tensor; the seed of an attention is none.
    """
    packet = overload.overloadpacket
    schemas = [getattr(packet, name)._schema.arguments for name in packet.overloads()]
    return {
        parameter.name
        for schema in schemas
        for parameter in schema
        if str(parameter.type) in ("number", "Scalar")
    }


def _is_number(argument: Argument, others: set[str]) -> bool:
    """Whether an argument is a Python number in the place of a tensor. A trace writes it as a
    tensor without dimensions; its type is none of ``others``, the types of operands with a shape.
    """
    is_plain = argument.type in ("double", "long int") and argument.type not in others
    return bool(is_plain and others and not argument.shape)


def _number(argument: Argument) -> float:
    """A number for a float argument, whose value does not matter to the time. Raises UnknownError
    for an integer.
    """
    if argument.type == "double":
        return 1.0
    raise UnknownError("the trace does not tell the value of a number")


def _value(type_: str, argument: Argument, types: Types) -> Any:
    """The value of an argument of the schema's type; _DEFAULT where its default is used.

    Raises UnknownError.
    """
    optional = type_.startswith("Optional[")
    plain = type_.removeprefix("Optional[").removesuffix("]") if optional else type_
    if plain == "Tensor":
        return None if argument.type == "" and optional else _tensor(argument)
    if plain in ("List[Tensor]", "List[Optional[Tensor]]"):
        return _tensors(argument, types)
    if argument.type in DTYPES:
        raise UnknownError(_NO_OVERLOAD)
    if not argument.text or plain in ("Device", "Layout", "MemoryFormat", "Generator"):
        return None if optional else _DEFAULT
    if plain in ("str", "string"):
        return argument.text.strip("\"'")
    value = _literal(argument.text)
    if plain == "ScalarType" and isinstance(value, int) and 0 <= value < len(SCALAR_TYPES):
        return SCALAR_TYPES[value]
    if isinstance(value, list) != plain.startswith("List["):
        raise UnknownError(_NO_OVERLOAD)
    return value


def _literal(text: str) -> Any:
    """The value of a text in a trace. Raises UnknownError."""
    # C++ writes these without quotes, and Python has no literals for them.
    if text.strip() in ("inf", "-inf", "nan", "-nan"):
        return float(text)
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise UnknownError(_NO_OVERLOAD) from None


def _tensor(argument: Argument) -> Tensor:
    if argument.type not in DTYPES:
        raise UnknownError(_NO_OVERLOAD)
    return _empty(argument.shape, argument.stride, DTYPES[argument.type])


def _tensors(argument: Argument, types: Types) -> list[Tensor]:
    shapes, strides = argument.shape, argument.stride
    listed = argument.type in ("TensorList", "GenericList", "OptionalTensorList")
    if not listed or not isinstance(shapes, list):
        raise UnknownError(_NO_OVERLOAD)
    if not shapes or not all(isinstance(shape, list) for shape in shapes):
        raise UnknownError("the trace does not tell the values of a list")
    tensors = []
    for i, shape in enumerate(shapes):
        dtype = types.get(tuple(shape)) if is_shape(shape) else None
        if dtype is None:
            raise UnknownError("the trace does not tell the value types of a list of tensors")
        stride = strides[i] if isinstance(strides, list) and i < len(strides) else None
        tensors.append(_empty(shape, stride, dtype))
    return tensors


def _empty(shape: Any, stride: Any, dtype: torch.dtype) -> Tensor:
    if not is_shape(shape):
        raise UnknownError("the trace tells a shape that is none")
    try:
        if is_shape(stride) and len(stride) == len(shape):
            return torch.empty_strided(shape, stride, dtype=dtype)
        return torch.empty(shape, dtype=dtype)
    except (RuntimeError, OverflowError):  # more elements, or bytes, than 64 bits can count
        raise UnknownError("the trace tells a shape that is none") from None


def _recorded(
    overload: Any, args: list[Any], kwargs: Fields, event: Event, mode: FakeTensorMode
) -> list[Replayed]:
    """The ops that the recorder makes of a call."""
    recorder = Recorder(Scopes({}))
    fills = fills_new_memory(event) and isinstance(args[0], Tensor)
    if fills:
        # Allocated under the recorder, so that it knows that the memory is not yet written.
        with mode, recorder:
            args[0] = torch.empty_strided(args[0].shape, args[0].stride(), dtype=args[0].dtype)
    for leaf in tree_leaves((args, kwargs)):
        if isinstance(leaf, Tensor) and not (fills and leaf is args[0]):
            recorder.add_leaf("input", leaf)
    recorder.phase = event.phase
    log = logging.getLogger(FakeTensorMode.__module__)
    quiet, log.disabled = log.disabled, True  # else it logs a traceback for each refused call
    try:
        # Below autograd, so that operators with a fused kernel on GPUs (RMS norm) stay whole, and
        # are not decomposed as on a CPU.
        with torch.no_grad(), torch._C._AutoDispatchBelowAutograd(), mode, recorder:
            overload(*args, **kwargs)
    except Exception as error:
        # Any kernel may refuse the reconstructed arguments, with any exception.
        raise UnknownError(f"cannot be run without data: {type(error).__name__}") from None
    finally:
        log.disabled = quiet
    made = captured(recorder, {}, event.name)
    outputs = {
        (op["kind"], str([tensor["shape"] for tensor in op["outputs"]])): op["outputs"]
        for op in made.graph["ops"]
    }
    return [Replayed(row, outputs[row["op"], str(row["out"])]) for row in made.rows.values()]


def shares(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """The share of an operator's time for each of its rows: by their FLOPs where all are known,
    else equal.
    """
    amounts = [work(row["op"], row["attrs"], row["in"], row["out"], row["dt"]) for row in rows]
    flops = [0 if amount is None else amount.flops for amount in amounts]
    total = sum(flops)
    return [count / total for count in flops] if all(flops) else [1 / len(rows)] * len(rows)
