"""Which region of every tensor a shard needs and makes, and the shapes and attributes of the op
that it runs.

A shard is a box: intervals of some axes; the axes that it does not name are whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from ...ground.errors import InputError
from .description import Shape
from .index import Axis, Box, Index, Interval, Region, clipped_interval, interval_of, span_of
from .registry import Dims, Semantics


def input_regions(semantics: Semantics, box: Box) -> tuple[Region | None, ...]:
    """For every operand the smallest box of it that the shard reads, inside the tensor; None where
    it reads nothing.

    Halos of windows are included; what lies in the padding is not. Of an operand that tells its
    shape alone a shard reads its part, too: it waits for it, as the whole op does.
    """
    return tuple(
        [input_region(semantics, operand, box) for operand in range(len(semantics.inputs))]
    )


def input_region(semantics: Semantics, operand: int, box: Box) -> Region | None:
    """That of one operand."""
    access = semantics.description.inputs[operand]
    # A slice of a stack is read by the shards whose box holds its place, and by no other.
    if access.when is not None and not _holds_zero(interval_of(access.when, box)):
        return None
    region = (
        _region(semantics.reads[operand], semantics.inputs[operand], box)
        if box
        else semantics.read[operand]
    )
    return _unless_empty(region, semantics.inputs[operand])


def output_regions(semantics: Semantics, box: Box) -> tuple[Region | None, ...]:
    """For every output the region that the shard makes (whole or as a partial result); None where
    it makes nothing.
    """
    regions: Iterable[Region] = semantics.made
    if box:
        regions = [
            _region(dims, shape, box)
            for dims, shape in zip(semantics.makes, semantics.outputs, strict=True)
        ]
    return tuple(
        [
            _unless_empty(region, shape)
            for region, shape in zip(regions, semantics.outputs, strict=True)
        ]
    )


def volume(region: Sequence[Interval]) -> int:
    """Elements of a region."""
    return prod([stop - start for start, stop in region])


def extents(region: Region) -> Shape:
    """The shape of a region."""
    return tuple([stop - start for start, stop in region])


def _holds_zero(interval: Interval) -> bool:
    return interval[0] <= 0 < interval[1]


def _region(dims: Dims, shape: Shape, box: Box) -> Region:
    return tuple([_interval(*dim, extent, box) for dim, extent in zip(dims, shape, strict=True)])


def _unless_empty(region: Region, shape: Shape) -> Region | None:
    """The region of one tensor, or None where it is empty though the tensor is not."""
    # A tensor without elements has an empty region, and is an operand all the same.
    for (start, stop), extent in zip(region, shape, strict=True):
        if start >= stop and extent:
            return None
    return region


def _interval(
    index: Axis | Index | None, names: frozenset[str], full: Interval, extent: int, box: Box
) -> Interval:
    if isinstance(index, Axis):
        return box.get(index.name, full)
    return full if index is None or names.isdisjoint(box) else clipped_interval(index, extent, box)


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard as an op of its own: its profile key's parts, and the regions that it makes and
    needs of the op's outputs and operands.

    ``inputs`` are the operand shapes as executed, ``operands`` which operands of the op they are:
    what lies in the padding of a window is counted in (the shard runs unpadded there), an operand
    that is not touched is left out.
    """

    kind: str
    attrs: Mapping[str, Any]
    operands: tuple[int, ...]
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    makes: tuple[Region | None, ...]
    needs: tuple[Region | None, ...]


def shard_of(semantics: Semantics, box: Box) -> Shard:
    """The shard of an op on a box; a box that holds every axis whole gives the op itself.

    Raises InputError for an axis that the op does not have and for an interval that is no part of
    it.
    """
    # Axes that the box names but does not cut would only cost time below.
    parts = _parts(semantics, box)
    makes, needs = output_regions(semantics, parts), input_regions(semantics, parts)
    s, every = semantics, tuple(range(len(semantics.inputs)))
    # Nothing is cut: the attributes stay the object that they are, padding and all.
    if not parts:
        return Shard(s.kind, s.attrs, every, s.inputs, s.outputs, makes, needs)
    run = [(i, shape) for i in every if (shape := _executed(s, i, parts)) is not None]
    return Shard(
        s.kind,
        s.description.local(s.attrs, parts),
        tuple([i for i, _ in run]),
        tuple([shape for _, shape in run]),
        tuple([extents(region) for region in makes if region is not None]),
        makes,
        needs,
    )


def _parts(semantics: Semantics, box: Box) -> dict[str, Interval]:
    """The intervals that are proper parts of their axes."""
    sizes = {axis.name: axis.size for axis in semantics.axes}
    parts = {}
    for name, (start, stop) in box.items():
        if name not in sizes:
            raise InputError(
                f'kind "{semantics.kind}" has no axis "{name}"; it has {", ".join(sizes)}'
            )
        if not 0 <= start < stop <= sizes[name]:
            raise InputError(f'axis "{name}": [{start}, {stop}) is no part of [0, {sizes[name]})')
        if (start, stop) != (0, sizes[name]):
            parts[name] = (start, stop)
    return parts


def _executed(semantics: Semantics, operand: int, box: Box) -> Shape | None:
    """Shape of an operand as the shard's kernel gets it; None where it is not touched."""
    access, shape, dims = (
        semantics.description.inputs[operand],
        semantics.inputs[operand],
        semantics.reads[operand],
    )
    if access.when is not None and not _holds_zero(interval_of(access.when, box)):
        return None
    executed = []
    for (index, names, _), extent in zip(dims, shape, strict=True):
        if index is None or names.isdisjoint(box):
            executed.append(extent)
        # The kernel of a part runs unpadded over all that its windows span: positions in the
        # padding are computed with, though they are no elements of the tensor.
        elif access.padded and isinstance(index, Index):
            executed.append(span_of(index, box))
        else:
            start, stop = (
                box[index.name] if isinstance(index, Axis) else clipped_interval(index, extent, box)
            )
            if start >= stop and extent:
                return None
            executed.append(stop - start)
    return tuple(executed)
