"""Names the kind of an ATen call, and selects the arguments that affect its time.

The table KINDS renames calls whose ATen name reads badly; any other call keeps its ATen name
without overload, leading underscore and in-place mark. Arguments that do not change the time (scale
factors, epsilons, where the tensor lives) are left out, so that equal work has one key.

Recording and the trace readers use it. ``simdev.nouns.semantics.kinds`` describes what a kind does
and costs; the ONNX reader (``simdev.formats.onnx_graph``) uses the same names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..nouns.meetings import RECEIVE, SEND

Fields = dict[str, Any]
"""Names and values of a JSON object, such as a row of a profile."""

KINDS = {
    "mm": "matmul",
    "bmm": "batch_matmul",
    "addmm": "linear",
    "_scaled_mm": "matmul",
    "native_batch_norm": "batch_norm",
    "native_batch_norm_backward": "batch_norm_backward",
    "cudnn_batch_norm": "batch_norm",
    "cudnn_batch_norm_backward": "batch_norm_backward",
    "native_layer_norm": "layer_norm",
    "native_layer_norm_backward": "layer_norm_backward",
    "native_group_norm": "group_norm",
    "native_group_norm_backward": "group_norm_backward",
    "native_dropout": "dropout",
    "native_dropout_backward": "dropout_backward",
    "threshold_backward": "relu_backward",
    "max_pool2d_with_indices": "max_pool2d",
    "max_pool2d_with_indices_backward": "max_pool2d_backward",
    "_adaptive_avg_pool2d": "adaptive_avg_pool2d",
    "_adaptive_avg_pool2d_backward": "adaptive_avg_pool2d_backward",
    "_softmax_backward_data": "softmax_backward",
    "_log_softmax_backward_data": "log_softmax_backward",
    "nll_loss_forward": "nll_loss",
    "embedding_dense_backward": "embedding_backward",
    "cat": "concat",
    "_to_copy": "cast",
    "new_zeros": "zeros",
    "new_full": "full",
    "linalg_vector_norm": "norm",
}
"""ATen name without overload -> kind, where the name alone would read badly."""

CALLS = {
    "all_reduce": ("allreduce", "allreduce_coalesced", "all_reduce_coalesced", "barrier"),
    "all_gather": (
        "allgather", "allgather_base", "allgather_coalesced", "allgather_into_tensor_coalesced",
        "all_gather_into_tensor", "all_gather_into_tensor_out", "all_gather_into_tensor_coalesced",
    ),
    "reduce_scatter": (
        "reduce_scatter_base", "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced",
    ),
    "all_to_all": (
        "all_to_allv", "alltoall", "alltoall_base", "all_to_all_single", "shard_dim_alltoall",
    ),
    "broadcast": ("broadcast_oop",),
    "reduce": ("reduce_oop",),
    SEND: (),
    RECEIVE: ("recv_any_source",),
}  # fmt: skip
"""Kind of a communication -> its other names in process groups, NCCL's records and functional
collectives, without leading and trailing underscores.
"""
_CALLED = {name: kind for kind, names in CALLS.items() for name in (kind, *names)}

ALLOCATIONS = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})
"""Calls that only reserve memory: their time belongs to the op that fills it."""

VALUES_TO_HOST = frozenset({"_local_scalar_dense", "is_nonzero", "equal"})
"""Calls that make no tensor and bring a value to the host, which waits for it (``.item()``)."""

SIZES_TO_HOST = frozenset(
    {"nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive"}
)
"""Calls whose outputs' sizes depend on values: the host waits to learn them."""

OPERAND_ORDER = {"addmm": (1, 2, 0), "_scaled_mm": (0, 1)}
"""ATen name -> operands in the order of the graph, as indices of the call's tensors. (addmm takes
its bias first; the scales of a float8 product are no operands.)
"""

# Arguments such as the device, the layout or the wanted outputs: they do not change the time, or
# the shapes show them already.
_SILENT = frozenset(
    {
        "device",
        "layout",
        "pin_memory",
        "generator",
        "memory_format",
        "bias_sizes",
        "output_mask",
        "threshold",
        "ignore_index",
        "out_dtype",
    }
)
# Usual values of arguments that layers always pass, and for which the schema has no default.
_TRIVIAL: Mapping[str, Any] = {"groups": 1, "alpha": 1, "beta": 1}
# x ** 2.0 is a product, x ** 2.5 a transcendental function.
_FLOAT_MATTERS = frozenset({"pow"})


@dataclass(frozen=True, slots=True)
class Schema:
    """The schema of an operator: its ``name`` without namespace and overload, the ``names`` and
    ``defaults`` of its arguments, and the names of those that are keyword-only, that are written,
    and that are only written (``outs``: ``out=``).
    """

    name: str
    names: tuple[str, ...]
    defaults: Mapping[str, Any]
    keywords: frozenset[str]
    written: frozenset[str]
    outs: frozenset[str]


@cache
def schema_of(func: Any) -> Schema:
    """The schema of an operator. Cached: PyTorch builds new schema objects at each access."""
    every = func._schema.arguments
    return Schema(
        str(func._schema.name).split("::")[-1],
        tuple(argument.name for argument in every),
        {argument.name: argument.default_value for argument in every},
        frozenset(argument.name for argument in every if argument.kwarg_only),
        frozenset(a.name for a in every if a.alias_info is not None and a.alias_info.is_write),
        frozenset(argument.name for argument in every if argument.is_out),
    )


def aten_name(func: Any) -> str:
    """The name of an operator without namespace and overload: ``aten.add_.Tensor`` -> ``add_``."""
    return schema_of(func).name


def kind_of(func: Any, arguments: Mapping[str, Any]) -> str:
    """The kind of an ATen call; ``arguments`` are by their names in the schema."""
    name = aten_name(func)
    if name in ("convolution", "convolution_backward"):
        prefix = "conv_transpose" if arguments["transposed"] else "conv"
        return f"{prefix}{len(arguments['stride'])}d" + (
            "_backward" if name.endswith("backward") else ""
        )
    return KINDS.get(name) or name.strip("_")


def communication_kind(name: object) -> str | None:
    """The kind of a communication (SEND or RECEIVE for a message) by its name in a process group;
    None for any other name.
    """
    return _CALLED.get(str(name).strip("_"))


def named_arguments(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Fields:
    """The arguments of a call by name, in the order of the schema; arguments that the call leaves
    at their defaults are left out.
    """
    names = schema_of(func).names
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    return {name: given[name] for name in names if name in given}


def attributes(func: Any, arguments: Mapping[str, Any]) -> Fields:
    """The non-tensor arguments that affect the time, as plain JSON values."""
    defaults = schema_of(func).defaults
    keep_floats = aten_name(func) in _FLOAT_MATTERS
    kept = {}
    for name, value in arguments.items():
        plain = _plain(value, keep_floats)
        trivial = plain is None or plain is False or name in _SILENT or plain == _TRIVIAL.get(name)
        unpadded = name == "output_padding" and not any(value)
        if not trivial and not unpadded and not (name in defaults and value == defaults[name]):
            kept[name] = plain
    return kept


def dtype_name(dtype: object) -> str:
    """The name of a PyTorch dtype in files: ``float32``."""
    return str(dtype).removeprefix("torch.")


def _plain(value: Any, keep_floats: bool) -> Any:
    """The argument as JSON; None for a tensor and for values that do not affect the time."""
    if isinstance(value, bool | int | str) or (keep_floats and isinstance(value, float)):
        return value
    if isinstance(value, list | tuple):
        items = [_plain(item, keep_floats) for item in value]
        return None if any(item is None for item in items) else items
    return dtype_name(value) if type(value).__name__ == "dtype" else None
