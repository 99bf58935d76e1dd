"""The work of an op: floating-point operations, bytes read and bytes written, from its description.

FLOPs follow stated counts per point: a multiply-add of a product or convolution counts two (2mnk;
2NKPQCRS with its padding, as cuDNN counts), additions of a bias nothing; elsewhere each scalar
operation (exp, sqrt, tanh, a division too) counts one, as the table of kinds says. Every distinct
element that is read counts once, however often a kernel reads it; in a table of lookups only the
elements that are hit count.

The cost ladder gets the work by ``keys.load_of``; importers and captures use the shapes and dtypes
of operands. The counts stand in the descriptions in ``kinds``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Any

from ...ground.errors import InputError
from ..graph import Graph, Op, Tensor
from .description import Access, Axis, Box, Shape
from .dtype import bits_of, canonical
from .regions import input_regions, output_regions, volume
from .registry import Semantics, passing_semantics, semantics_of, traits_of


@dataclass(frozen=True, slots=True)
class Work:
    """Floating-point operations, bytes read and bytes written."""

    flops: int
    bytes_read: int
    bytes_written: int


def work(
    kind: str,
    attrs: Mapping[str, Any],
    inputs: Sequence[Shape | None],
    outputs: Sequence[Shape | None],
    in_dtypes: Sequence[str | None],
    out_dtypes: Sequence[str | None] | None = None,
) -> Work | None:
    """The work of an op as in a profile row; None for a kind without semantics or for shapes that
    do not fit it (``semantics_of`` gives the reason).

    An unknown dtype (None) counts as float32. Without ``out_dtypes`` outputs have the kind's dtype,
    else the first operand's.
    """
    try:
        semantics = passing_semantics(kind, attrs, inputs, outputs)
    except InputError:
        return None
    return shard_work(semantics, {}, in_dtypes, out_dtypes, layouts(attrs.get("strides")))


def layouts(value: Any) -> list[Sequence[int] | None] | None:
    """Strides by operand from an attribute; None for anything that is not a list of lists."""
    if not isinstance(value, list | tuple):
        return None
    return [layout if isinstance(layout, list | tuple) else None for layout in value]


def shard_work(
    semantics: Semantics,
    box: Box,
    in_dtypes: Sequence[str | None] = (),
    out_dtypes: Sequence[str | None] | None = None,
    strides: Sequence[Sequence[int] | None] | None = None,
) -> Work:
    """The work of a shard of an op; on the box ``{}`` of the whole op.

    ``strides`` of the operands are in elements; a dimension of stride 0 is a single element, read
    again and again.
    """
    description = semantics.description
    # A view or a leaf moves no byte.
    if not description.moves:
        return Work(flops(semantics, box), 0, 0)
    sizes = [bits_of(dtype) for dtype in in_dtypes] + [32] * (
        len(semantics.inputs) - len(in_dtypes)
    )
    needs = input_regions(semantics, box)
    read = written = 0
    for i, (access, region) in enumerate(zip(description.inputs, needs, strict=True)):
        if region is not None and access.read:
            layout = strides[i] if strides is not None and i < len(strides) else None
            # Elements may share a byte, so the sum is rounded up, not each element.
            read += -(-_elements(access, region, layout, box) * sizes[i] // 8)
    for i, region in enumerate(output_regions(semantics, box)):
        if region is not None:
            bits = bits_of(_out_dtype(semantics, i, in_dtypes, out_dtypes))
            written += -(-volume(region) * bits // 8)
    for i in description.updated:
        region = needs[i]
        written += -(-volume(region) * sizes[i] // 8) if region is not None else 0
    # State tensors have the parameter's shape and dtype.
    if description.states and needs[0] is not None:
        state = description.states * (-(-volume(needs[0]) * sizes[0] // 8))
        read, written = read + state, written + state
    return Work(flops(semantics, box), read, written)


def flops(semantics: Semantics, box: Box) -> int:
    """Floating-point operations of a shard (on ``{}`` of the whole op), rounded down."""
    whole, shares = 0, Fraction(0)
    for count, points in semantics.description.flops:
        size = _points(points, box)
        # In integers where possible: Fractions are ten times slower.
        if count.denominator == 1:
            whole += count.numerator * size
        else:
            shares += count * size
    return whole + int(shares)


def _points(axes: Sequence[Axis], box: Box) -> int:
    """The number of points of some axes in the box."""
    return prod(
        [box[axis.name][1] - box[axis.name][0] if axis.name in box else axis.size for axis in axes]
    )


def _elements(
    access: Access, region: Sequence[tuple[int, int]], layout: Sequence[int] | None, box: Box
) -> int:
    if layout is not None and len(layout) == len(region):
        # A dimension of stride 0 is expanded: all its indices are the same element.
        region = [interval for interval, step in zip(region, layout, strict=True) if step]
    count = volume(region)
    return count if access.at_most is None else min(count, _points(access.at_most, box))


def _out_dtype(
    semantics: Semantics,
    i: int,
    in_dtypes: Sequence[str | None],
    out_dtypes: Sequence[str | None] | None,
) -> str | None:
    if out_dtypes is not None and i < len(out_dtypes) and out_dtypes[i] is not None:
        return out_dtypes[i]
    dtype = semantics.description.outputs[i].dtype
    return dtype if dtype is not None else in_dtypes[0] if in_dtypes else None


def op_semantics(graph: Graph, position: int) -> Semantics:
    """The semantics of one op of a graph; the attribute "in" replaces the shapes of the tensors
    read.

    Raises InputError that names the op.
    """
    op, read = graph.ops[position], operand_shapes(graph, position)
    try:
        return semantics_of(op.kind, op.attrs, read, [t.shape for t in op.made])
    except InputError as error:
        raise InputError([f'op "{op.name}": {problem}' for problem in error.problems]) from None


def operand_shapes(graph: Graph, position: int) -> tuple[Shape | None, ...]:
    """The shapes of an op's operands as executed.

    Raises InputError where the attribute "in" is not a list of shapes.
    """
    shapes = graph.ops[position].attrs.get("in")
    if shapes is None:
        return tuple(tensor.shape for tensor in graph.operands[position])
    if not isinstance(shapes, list | tuple) or not all(
        shape is None or _is_shape(shape) for shape in shapes
    ):
        raise _no_list(graph.ops[position], "in", "shapes")
    return tuple([None if shape is None else tuple(shape) for shape in shapes])


def _is_shape(value: object) -> bool:
    return isinstance(value, list | tuple) and all(
        isinstance(extent, int) and extent >= 0 for extent in value
    )


def operand_dtypes(graph: Graph, position: int) -> tuple[str | None, ...]:
    """The canonical dtypes of an op's operands as executed.

    Raises InputError where the attribute "dt" is not a list of names of dtypes.
    """
    names = graph.ops[position].attrs.get("dt")
    if names is None:
        names = [tensor.dtype for tensor in graph.operands[position]]
    elif not isinstance(names, list | tuple) or not all(
        name is None or isinstance(name, str) for name in names
    ):
        raise _no_list(graph.ops[position], "dt", "dtypes")
    try:
        return tuple([canonical(name) if name is not None else None for name in names])
    except InputError as error:
        raise InputError(f'op "{graph.ops[position].name}": {error.problems[0]}') from None


def _no_list(op: Op, attribute: str, of: str) -> InputError:
    value = json.dumps(op.attrs[attribute], default=repr)
    return InputError(f'op "{op.name}": attrs.{attribute}: must be a list of {of}, got {value}')


def op_work(graph: Graph, position: int) -> Work:
    """The work of one op of a graph. Raises InputError that names the op."""
    op = graph.ops[position]
    dtypes = operand_dtypes(graph, position)
    made = [tensor.dtype for tensor in op.made]
    return shard_work(
        op_semantics(graph, position), {}, dtypes, made, layouts(op.attrs.get("strides"))
    )


def whole_bytes(graph: Graph, position: int) -> int:
    """The bytes of all operands of an op, as executed, and of all its outputs, for any kind of op.

    Raises InputError where attributes have wrong shapes or dtypes.
    """
    op, tensors = graph.ops[position], graph.operands[position]
    strides = layouts(op.attrs.get("strides")) or []
    total = sum(map(_written_bytes, op.made))
    if "in" not in op.attrs:
        return total + sum(tensor.bytes for tensor in tensors)
    dtypes = operand_dtypes(graph, position)
    for i, shape in enumerate(operand_shapes(graph, position)):
        if shape is not None:
            layout = strides[i] if i < len(strides) else None
            count = _elements(Access(()), [(0, extent) for extent in shape], layout, {})
            total += -(-count * bits_of(dtypes[i] if i < len(dtypes) else None) // 8)
        elif i < len(tensors):
            total += tensors[i].bytes
    return total


def _written_bytes(tensor: Tensor) -> int:
    """The bytes that are written to an output; an output in place has no memory but is written."""
    if tensor.bytes or tensor.shape is None:
        return tensor.bytes
    return -(-prod(tensor.shape) * bits_of(tensor.dtype) // 8)


def is_linear(op: Op) -> bool:
    """Whether partial results may pass through the op, so that a sum of its results is its result
    on the sum.
    """
    traits = traits_of(op.kind)
    if traits.linear == "scale":
        return len(op.inputs) == 1
    return traits.view or (traits.linear == "sum" and "other" not in op.attrs)
