"""The extents of an op that its speed hangs on, beside its FLOPs and bytes: a product of few
columns, a norm of short rows or a convolution of three channels runs slower than its work tells.

One tuple an op class, in units of elements:

gemm       (b, m, n, k) of the product, from the sizes of both factors and of the result
conv       (positions of the result, its channels, channels summed over, points of the window);
           of a gradient those of its forward
attention  (heads of all samples, queries, keys, width of a head)
norm       (values that are normalised apart, elements of each)
softmax    (rows, elements of a row)
reduction  (results, elements summed up in each)

Other classes have none. Rows whose bytes are a multiple of 16 are read by whole vectors, which
matters to floats of 16 bits and to convolutions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

Shape = Sequence[int]
_HALF = 2  # bytes of the widest float that tensor cores are built for
_VECTOR = 4  # log2 of the bytes that a GPU's thread reads at once


class Extents(NamedTuple):
    """``sizes`` as above, ``aligned`` from 0 to 1 (whole vectors), and a ``mark`` where kernels are
    others than those of the kind: of a convolution by groups, of attention to what is before.
    """

    sizes: tuple[float, ...] = ()
    aligned: float = 1.0
    mark: str = ""


class Operands(NamedTuple):
    """An op's shapes; what is not told is left out of them."""

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
        # Kernels lie channels side by side, whatever the layout outside.
        rows = [int(sizes[1]), int(sizes[2])]
    elif op_class != "gemm":
        rows = rows[:1]
    if op_class != "conv" and element > _HALF:
        # Tensor cores want whole vectors; wider floats are computed without them.
        rows = []
    aligned = min((_alignment(row * element) for row in rows), default=1.0)
    whole = tuple(max(float(size), 1.0) for size in sizes)
    return Extents(whole, aligned, _mark(op_class, operands))


def _mark(op_class: str, operands: Operands) -> str:
    if op_class == "conv" and _groups(operands.attrs) > 1:
        return "by groups"
    return "causal" if op_class == "attention" and operands.attrs.get("is_causal") else ""


def _alignment(size: int) -> float:
    """How much of a vector divides a row of so many bytes."""
    bits = (size & -size).bit_length() - 1 if size else _VECTOR
    return min(bits, _VECTOR) / _VECTOR


def _product(op: Operands) -> tuple[float, ...]:
    """From b m n k multiplications of b m k and b k n elements to b m n."""
    if len(op.inputs) < 2 or op.flops < 2:
        return ()
    points = op.flops / 2
    left, right, made = (max(prod(shape), 1) for shape in (*op.inputs[:2], op.outputs[0]))
    batch = left * right * made / points**2
    return batch, points / right, points / left, points / made


def _convolution(op: Operands) -> tuple[float, ...]:
    """The window and the result of the forward; its gradients have them as operands."""
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
    # FlashAttention lays positions before heads.
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
