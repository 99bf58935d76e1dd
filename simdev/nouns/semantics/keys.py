"""The key of an op (everything that distinguishes measured operators), and its load on a device:
FLOPs and bytes. A row of a profile and an op of a graph with equal keys have equal loads.

Rows of profiles are written and looked up by these keys (``simdev/files/profile.py``,
``simdev/costs``), and estimates compare loads (``simdev/costs/ladder.py``,
``simdev/costs/surface.py``). A change to ``profile_key`` orphans the rows of profiles that were
measured before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import prod
from typing import Any, NamedTuple

from ...ground.errors import InputError
from ..graph import Graph
from . import backward_of, op_class, operand_dtypes, operand_shapes, semantics_of, traits_of, work
from .dtype import bits_of, canonical

# The extents of an op, on which its speed depends beside its FLOPs and bytes: a product of few
# columns, a norm of short rows or a convolution of three channels runs slower than by its work.
#
# One tuple an op class, in units of elements:
#
#     gemm       (b, m, n, k) of the product, from the sizes of both factors and of the result
#     conv       (positions of the result, its channels, channels summed over, points of the
#                window); of a gradient those of its forward
#     attention  (heads of all samples, queries, keys, width of a head)
#     norm       (values that are normalised apart, elements of each)
#     softmax    (rows, elements of a row)
#     reduction  (results, elements summed up in each)
#
# Other classes have none. Rows whose bytes are a multiple of 16 are read by whole vectors, which
# matters to floats of 16 bits and to convolutions.

Shape = Sequence[int]
_HALF = 2  # bytes of the widest float that tensor cores are built for
_VECTOR = 4  # log2 of the bytes that a GPU's thread reads at once
CAUSAL = "causal"
"""The mark of attention that sees only earlier positions."""


class Extents(NamedTuple):
    """The extents of an op: ``sizes`` as above, ``aligned`` from 0 to 1 (whole vectors), and a
    ``mark`` where its kernels differ from the kind's: groups of a convolution, causal attention.
    """

    sizes: tuple[float, ...] = ()
    aligned: float = 1.0
    mark: str = ""


class Operands(NamedTuple):
    """The shapes of an op; unknown shapes are left out."""

    kind: str
    attrs: Mapping[str, Any]
    inputs: Sequence[Shape]
    outputs: Sequence[Shape]
    flops: int


def extents_of(op_class: str, operands: Operands, element: int) -> Extents:
    """The extents of an op; ``element`` is the bytes of one of its elements (at least 1)."""
    count = _COUNTS.get(op_class)
    sizes = count(operands) if count is not None and operands.inputs and operands.outputs else ()
    if not sizes:
        return Extents()
    rows = [shape[-1] for shape in (*operands.inputs[:2], operands.outputs[0]) if len(shape)]
    if op_class == "conv":
        # Kernels have channels side by side, whatever the tensor's layout.
        rows = [int(sizes[1]), int(sizes[2])]
    elif op_class != "gemm":
        rows = rows[:1]
    if op_class != "conv" and element > _HALF:
        # Tensor cores need whole vectors; wider floats do not use tensor cores.
        rows = []
    aligned = min((_alignment(row * element) for row in rows), default=1.0)
    whole = tuple(max(float(size), 1.0) for size in sizes)
    return Extents(whole, aligned, _mark(op_class, operands))


def _mark(op_class: str, operands: Operands) -> str:
    if op_class == "conv" and _groups(operands.attrs) > 1:
        return "by groups"
    return CAUSAL if op_class == "attention" and operands.attrs.get("is_causal") else ""


def _alignment(size: int) -> float:
    """The share of a vector that divides a row of this many bytes."""
    bits = (size & -size).bit_length() - 1 if size else _VECTOR
    return min(bits, _VECTOR) / _VECTOR


def _product(op: Operands) -> tuple[float, ...]:
    """The extents (b, m, n, k) from b m n k multiplications, factors of b m k and b k n elements,
    and a result of b m n.
    """
    if len(op.inputs) < 2 or op.flops < 2:
        return ()
    points = op.flops / 2
    left, right, made = (max(prod(shape), 1) for shape in (*op.inputs[:2], op.outputs[0]))
    batch = left * right * made / points**2
    return batch, points / right, points / left, points / made


def _convolution(op: Operands) -> tuple[float, ...]:
    """The window and the result of the forward; gradients have them as operands."""
    if len(op.inputs) < 2:
        return ()
    first, second, made = op.inputs[0], op.inputs[1], op.outputs[0]
    weight, result = second, made
    if op.kind.endswith("_backward_input"):
        result = first
    elif op.kind.endswith("_backward_weight"):
        weight, result = made, first
    if min(len(weight), len(result)) < 2:
        return ()
    groups = _groups(op.attrs)
    positions, channels = prod(result) / max(result[1], 1), weight[0] / groups
    return positions, channels, weight[1], prod(weight[2:])


def _groups(attrs: Mapping[str, Any]) -> int:
    groups = attrs.get("groups", 1)
    return groups if isinstance(groups, int) and groups > 0 else 1


def _attention(op: Operands) -> tuple[float, ...]:
    query, key = op.inputs[1:3] if op.kind.endswith("_backward") else op.inputs[:2]
    if min(len(query), len(key)) < 4:
        return ()
    # FlashAttention has positions before heads.
    heads, positions = (2, 1) if op.kind.startswith("flash") else (1, 2)
    return query[0] * query[heads], query[positions], key[positions], query[3]


def _norm(op: Operands) -> tuple[float, ...]:
    shape = op.inputs[0]
    size = prod(shape)
    if op.kind.startswith(("batch", "group")):
        apart = shape[1] if len(shape) > 1 else 1
        if op.kind.startswith("group"):
            apart = shape[0] * int(op.attrs.get("group", 1))
    else:
        count = len(op.attrs.get("normalized_shape", (0,)))
        apart = prod(shape[: len(shape) - count])
    return apart, size / max(apart, 1)


def _softmax(op: Operands) -> tuple[float, ...]:
    shape, dim = op.inputs[0], op.attrs.get("dim", -1)
    if not isinstance(dim, int) or not -len(shape) <= dim < len(shape):
        return ()
    return prod(shape) / max(shape[dim], 1), shape[dim]


def _reduction(op: Operands) -> tuple[float, ...]:
    made = max(prod(op.outputs[0]), 1)
    return made, max(prod(op.inputs[0]) / made, 1)


_COUNTS: Mapping[str, Callable[[Operands], tuple[float, ...]]] = {
    "gemm": _product,
    "conv": _convolution,
    "attention": _attention,
    "norm": _norm,
    "softmax": _softmax,
    "reduction": _reduction,
}


PHASE_CODES = {"forward": "fwd", "backward": "bwd", "update": "opt"}
_KEY = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=str)
_VARIANT = json.JSONEncoder(sort_keys=True)
_TELLING = ("stride", "dilation", "dim")  # attributes whose numbers choose a kernel


def profile_key(
    kind: str,
    attrs: Mapping[str, Any],
    operands: Sequence[Sequence[int] | None],
    dtypes: Sequence[str | None],
    outputs: Sequence[Sequence[int] | None],
    phase: str,
    device: str,
) -> str:
    """The profile key: canonical JSON of everything that distinguishes measured operators.

    Operands and outputs without elements and attributes at their defaults are left out: cuDNN's
    batch norm has an empty reserve that other backends lack. Raises InputError for an unknown
    dtype.
    """
    names = [canonical(name) if name else name for name in dtypes]
    attributes, defaults = dict(attrs), traits_of(kind).defaults
    if defaults:
        attributes = {
            name: value for name, value in attributes.items() if defaults.get(name) != value
        }
    if any(map(_is_empty, operands)):
        # An operand without elements is dropped with its dtype; there may be dtypes without shapes.
        names = [
            name
            for name, shape in zip_longest(names, operands[: len(names)])
            if not _is_empty(shape)
        ]
        operands = [shape for shape in operands if not _is_empty(shape)]
    outputs = [shape for shape in outputs if not _is_empty(shape)]
    return _KEY.encode([device, kind, phase, attributes, [*operands], names, outputs])


def _is_empty(shape: Sequence[int] | None) -> bool:
    return shape is not None and 0 in shape


def op_key(graph: Graph, position: int, device_kind: str) -> str:
    """The key of an op of a graph on a kind of device.

    Where views were folded away, the attributes "in" and "dt" (operand shapes and dtypes as
    executed) replace the shapes and dtypes of the tensors read.
    """
    op = graph.ops[position]
    attrs = {name: value for name, value in op.attrs.items() if name not in ("in", "dt")}
    shapes, dtypes = operand_shapes(graph, position), operand_dtypes(graph, position)
    outputs = [tensor.shape for tensor in op.made]
    return profile_key(op.kind, attrs, shapes, dtypes, outputs, PHASE_CODES[op.phase], device_kind)


@dataclass(frozen=True, slots=True)
class Load:
    """The load of an op on a device: FLOPs, bytes read and written, and marks of its variant.

    Causal attention has half of the FLOPs in its load, though all in its work: its kernels skip the
    tiles in which every pair is masked (Dao, "FlashAttention-2", 2023, section 3.1.1). ``dtype`` is
    the dtype of the arithmetic. ``variant`` holds attributes and ranks, which distinguish ops of
    equal sizes (a stride, a transposition). ``extents``, ``aligned`` and ``mark`` are from
    ``extents_of``.
    """

    kind: str
    op_class: str
    dtype: str
    flops: int
    read: int
    written: int
    variant: str
    extents: tuple[float, ...] = ()
    aligned: float = 1.0
    mark: str = ""

    @property
    def family(self) -> str:
        """The kind with its mark: ops with the same kernels."""
        return f"{self.kind} {self.mark}".rstrip()

    @property
    def forward(self) -> str:
        """The family of the forward op: an op and its gradients launch similar grids of blocks."""
        return f"{backward_of(self.kind) or self.kind} {self.mark}".rstrip()

    @property
    def is_free(self) -> bool:
        """Whether the op computes nothing and moves no byte, like a view."""
        return not (self.flops or self.read or self.written)


def load_of(key: str) -> Load | None:
    """The load of the op of a profile key; None where its work is unknown.

    ``dtype`` is the first float operand's, else the first operand's, else float32. The load depends
    on the key alone, so that rows of profiles and ops of graphs agree. Raises InputError for an
    unknown dtype.
    """
    _, kind, _, attrs, shapes, dtypes, outputs = json.loads(key)
    amount = work(kind, attrs, shapes, outputs, dtypes)
    if amount is None:
        return None
    ranks = [len(shape) if shape is not None else None for shape in shapes]
    # Whether an operand has strides (is not contiguous) is kept; their values are sizes, as are
    # those of most attributes.
    marks = {
        name: value if isinstance(value, bool | str) or name in _TELLING else name
        for name, value in attrs.items()
    }
    names = [canonical(name) for name in dtypes if name]
    # An index or a mask beside floats (a lookup, a dropout) does not set the arithmetic's dtype.
    dtype = next((name for name in names if "float" in name), names[0] if names else "float32")
    flops, read, written = map(int, (amount.flops, amount.bytes_read, amount.bytes_written))
    variant = _VARIANT.encode([marks, ranks])
    called, extents = op_class(kind), Extents()
    if None not in (*shapes[:3], *outputs[:1]):
        element = max(1, bits_of(dtype) // 8)
        extents = extents_of(called, Operands(kind, attrs, shapes, outputs, flops), element)
    if extents.mark == CAUSAL:
        flops //= 2
    return Load(kind, called, dtype, flops, read, written, variant, *extents)


def work_problem(key: str) -> str:
    """The reason why the work of an op is unknown; "" where it is known."""
    _, kind, _, attrs, shapes, _, outputs = json.loads(key)
    try:
        semantics_of(kind, attrs, shapes, outputs)
    except InputError as error:
        return error.problems[0]
    return ""
