"""What an op does: floating-point operations, bytes read and bytes written, from its description.

FLOPs follow stated counts per point: a multiply-add of a product or convolution counts two (2mnk;
2NKPQCRS with its padding, as cuDNN counts), additions of a bias nothing; elsewhere each scalar
operation (exp, sqrt, tanh, a division too) counts one, as the table of kinds tells. Bytes are of
unique elements: every element that is read counts once, however often a kernel reads it, and an
element that is only looked up if it is hit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Any

from ..errors import InputError
from .description import Access, Shape
from .dtype import bits_of
from .index import Axis, Box
from .regions import input_regions, output_regions, volume
from .registry import Semantics, passing_semantics


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
    """Work of an op, told as in a profile row; None for a kind without semantics or shapes that do
    not fit it.

    A dtype that is not told (None) is float32; outputs are of the first operand's dtype where
    ``out_dtypes`` is left out and the kind itself does not say. ``semantics_of`` tells why there is
    None.
    """
    try:
        semantics = passing_semantics(kind, attrs, inputs, outputs)
    except InputError:
        return None
    return shard_work(semantics, {}, in_dtypes, out_dtypes, layouts(attrs.get("strides")))


def layouts(value: Any) -> list[Sequence[int] | None] | None:
    """Strides by operand as an attribute tells them; what is no list of lists is not told."""
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
    """Work of a shard of an op; of the op itself on the box ``{}``.

    ``strides`` of the operands, in elements: a dimension of stride 0 is one element that is read
    again and again.
    """
    description = semantics.description
    if not description.moves:
        return Work(flops(semantics, box), 0, 0)
    sizes = [bits_of(dtype) for dtype in in_dtypes] + [32] * (
        len(semantics.inputs) - len(in_dtypes)
    )
    needs = input_regions(semantics, box)
    read = written = 0
    for i, (access, region) in enumerate(zip(description.inputs, needs, strict=True)):
        if region is not None:
            layout = strides[i] if strides is not None and i < len(strides) else None
            read += -(-_elements(access, region, layout, box) * sizes[i] // 8)
    for i, region in enumerate(output_regions(semantics, box)):
        if region is not None:
            bits = bits_of(_out_dtype(semantics, i, in_dtypes, out_dtypes))
            written += -(-volume(region) * bits // 8)
    for i in description.updated:
        region = needs[i]
        written += -(-volume(region) * sizes[i] // 8) if region is not None else 0
    if description.states and needs[0] is not None:
        state = description.states * (-(-volume(needs[0]) * sizes[0] // 8))
        read, written = read + state, written + state
    return Work(flops(semantics, box), read, written)


def flops(semantics: Semantics, box: Box) -> int:
    """Floating-point operations of a shard (the whole op on ``{}``), rounded down where a share is
    a fraction.
    """
    whole, shares = 0, Fraction(0)
    for count, points in semantics.description.flops:
        size = _points(points, box)
        if count.denominator == 1:  # on integers where it goes: Fractions are ten times slower
            whole += count.numerator * size
        else:
            shares += count * size
    return whole + int(shares)


def _points(axes: Sequence[Axis], box: Box) -> int:
    """How many points of some axes lie in the box."""
    return prod(
        [box[axis.name][1] - box[axis.name][0] if axis.name in box else axis.size for axis in axes]
    )


def _elements(
    access: Access, region: Sequence[tuple[int, int]], layout: Sequence[int] | None, box: Box
) -> int:
    if layout is not None and len(layout) == len(region):
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
    told = semantics.description.outputs[i].dtype
    return told if told is not None else in_dtypes[0] if in_dtypes else None
