"""The regions of tensors that a shard needs and makes, and the shapes and attributes of the op that
it runs: for one shard, or for many at once.

A shard is a box: intervals of some axes; axes that are missing are whole. Boxes of a grid name the
same axes, and an interval depends only on the axes of its own dimension: a grid of 8 by 8 has 64
boxes, but only 8 intervals along each dimension.

Partitioning and the searches over splits call it. The kernels of the oracle
(``simdev/oracle/splits``) read the regions of operands from columns, which
``simdev/lowering/partition/cuts.py`` makes by ``along``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from math import prod
from operator import itemgetter
from typing import Any, Literal, NamedTuple, TypeVar

from ...ground.errors import InputError
from .description import (
    Axis,
    Box,
    Index,
    Interval,
    Region,
    Shape,
    clipped_interval,
    interval_of,
    same_attributes,
    span_of,
)
from .registry import Dim, Semantics

_CACHED = 65_536
NONE = -1
Role = Literal["read", "made", "run"]
"""The region of an operand that is read, the region of an output that is made, or ("run") the shape
of an operand as a kernel gets it.
"""
V = TypeVar("V", bound=Hashable)


def input_regions(semantics: Semantics, box: Box) -> tuple[Region | None, ...]:
    """For every operand the smallest box that the shard reads, inside the tensor; None where it
    reads nothing.

    Halos of windows are included, padding is not. An operand whose shape alone is used counts as
    read: the shard waits for its part, as the whole op does.
    """
    return tuple(
        [input_region(semantics, operand, box) for operand in range(len(semantics.inputs))]
    )


def input_region(semantics: Semantics, operand: int, box: Box) -> Region | None:
    """The region of one operand that the shard reads (see ``input_regions``)."""
    if not _is_read(semantics, operand, box):
        return None
    shape = semantics.inputs[operand]
    region = _region(semantics.reads[operand], shape, box) if box else semantics.read[operand]
    return _unless_empty(region, shape)


def output_regions(semantics: Semantics, box: Box) -> tuple[Region | None, ...]:
    """For every output the region that the shard makes (final values or partial results); None
    where it makes nothing.
    """
    shapes, regions = semantics.outputs, semantics.made
    if box:
        pairs = zip(semantics.makes, shapes, strict=True)
        regions = tuple([_region(dims, shape, box) for dims, shape in pairs])
    return tuple(map(_unless_empty, regions, shapes))


def volume(region: Sequence[Interval]) -> int:
    """The number of elements of a region."""
    return prod([stop - start for start, stop in region])


def extents(region: Region) -> Shape:
    """The shape of a region."""
    return tuple([stop - start for start, stop in region])


def _is_read(semantics: Semantics, operand: int, box: Box) -> bool:
    """Whether some point of the box reads the operand."""
    # A slice of a stack is read only by shards whose box holds the slice's place.
    when = semantics.description.inputs[operand].when
    if when is None:
        return True
    start, stop = interval_of(when, box)
    return start <= 0 < stop


def _region(dims: Sequence[Dim], shape: Shape, box: Box) -> Region:
    return tuple([_interval(dim, extent, box) for dim, extent in zip(dims, shape, strict=True)])


def _unless_empty(region: Region, shape: Shape) -> Region | None:
    """The region, or None where it is empty though the tensor is not."""
    # A tensor without elements has an empty region, and still is an operand.
    for (start, stop), extent in zip(region, shape, strict=True):
        if start >= stop and extent:
            return None
    return region


def _interval(dim: Dim, extent: int, box: Box) -> Interval:
    index, names, full = dim
    if isinstance(index, Axis):
        return box.get(index.name, full)
    return full if index is None or names.isdisjoint(box) else clipped_interval(index, extent, box)


def _run(dim: Dim, extent: int, is_padded: bool, box: Box) -> int:
    """The extent of a dimension of an operand as the shard's kernel gets it."""
    index, names, _ = dim
    if names.isdisjoint(box):
        return extent
    # The kernel of a part runs without padding over all positions of its windows, so positions in
    # the padding count, too.
    if is_padded and isinstance(index, Index):
        return span_of(index, box)
    start, stop = _interval(dim, extent, box)
    return stop - start


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard as an op: the parts of its profile key, and the regions of the op's outputs and
    operands that it makes and needs.

    ``operands`` are the numbers of the op's operands that the shard touches, ``inputs`` their
    shapes as executed. These include the padding of windows, since the shard runs without padding.
    """

    kind: str
    attrs: Mapping[str, Any]
    operands: tuple[int, ...]
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    makes: tuple[Region | None, ...]
    needs: tuple[Region | None, ...]


def shard_of(semantics: Semantics, box: Box) -> Shard:
    """The shard of an op on a box; a box with every axis whole gives the op itself.

    Raises InputError for an axis that the op does not have and for an interval outside of its axis.
    """
    # Axes that the box names but does not cut would only cost time below.
    parts = _parts(semantics, box)
    makes, needs = output_regions(semantics, parts), input_regions(semantics, parts)
    s, every = semantics, tuple(range(len(semantics.inputs)))
    # Nothing is cut: the attributes stay the same object, padding included.
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
    """The shape of an operand as the shard's kernel gets it; None where it is not touched."""
    if not _is_read(semantics, operand, box):
        return None
    dims, shape = semantics.reads[operand], semantics.inputs[operand]
    is_padded = semantics.description.inputs[operand].padded
    pairs = zip(dims, shape, strict=True)
    runs = tuple([_run(dim, extent, is_padded, box) for dim, extent in pairs])
    return (
        None if any(not run and extent for run, extent in zip(runs, shape, strict=True)) else runs
    )


class Shards(NamedTuple):
    """The columns of ``Shard``, one entry for each box."""

    attrs: Sequence[Mapping[str, Any]]
    operands: Sequence[tuple[int, ...]]
    inputs: Sequence[tuple[Shape, ...]]
    outputs: Sequence[tuple[Shape, ...]]
    makes: Sequence[tuple[Region | None, ...]]
    needs: Sequence[tuple[Region | None, ...]]


def shards_of(semantics: Semantics, boxes: Sequence[Box]) -> Shards:
    """The shards of many boxes (``shard_of``), all of which name the same axes and proper parts of
    them.

    Raises InputError.
    """
    columns = _by_dimension(semantics, boxes) if len(boxes) > 1 else None
    if columns is not None:
        return columns
    shards = [shard_of(semantics, box) for box in boxes]
    names = Shards._fields
    return Shards(*([getattr(shard, name) for shard in shards] for name in names))


def _by_dimension(semantics: Semantics, boxes: Sequence[Box]) -> Shards | None:
    """The columns, worked out by dimension; None where a box leaves out an operand or an output."""
    s, every = semantics, len(boxes)
    if any(access.when is not None for access in s.description.inputs):
        return None
    read = [_by_box(s, "read", operand, boxes) for operand in range(len(s.inputs))]
    made = [_by_box(s, "made", output, boxes) for output in range(len(s.outputs))]
    shaped = zip((*read, *made), (*s.inputs, *s.outputs), strict=True)
    if any(
        _unless_empty(region, shape) is None for regions, shape in shaped for region in set(regions)
    ):
        return None
    local = s.description.local
    runs = [_by_box(s, "run", tensor, boxes) for tensor in range(len(s.inputs))]
    return Shards(
        [s.attrs] * every if local is same_attributes else [local(s.attrs, box) for box in boxes],
        [tuple(range(len(s.inputs)))] * every,
        _rows(runs, every),
        _rows(list(map(_sizes, made)), every),
        _rows(made, every),
        _rows(read, every),
    )


def _by_box(semantics: Semantics, role: Role, tensor: int, boxes: Sequence[Box]) -> list[Any]:
    """The region of a tensor for each box, or its shape ("run")."""
    columns = [_each(boxes, *known) for known in _known(semantics, role, tensor)]
    return _rows(columns, len(boxes))


@lru_cache(_CACHED)
def _known(
    semantics: Semantics, role: Role, tensor: int
) -> list[tuple[Dim, Callable[[Box], Any], dict[Hashable, dict[Any, Any]]]]:
    """For each dimension of a tensor its index, the function from a box to its interval or extent,
    and the cached answers by the intervals of its axes: grids of one op share most of them.
    """
    if role == "made":
        dims, shape = semantics.makes[tensor], semantics.outputs[tensor]
    else:
        dims, shape = semantics.reads[tensor], semantics.inputs[tensor]
    pairs = list(zip(dims, shape, strict=True))
    if role != "run":
        return [(dim, partial(_interval, dim, size), {}) for dim, size in pairs]
    is_padded = semantics.description.inputs[tensor].padded
    return [(dim, partial(_run, dim, size, is_padded), {}) for dim, size in pairs]


def _each(
    boxes: Sequence[Box], dim: Dim, call: Callable[[Box], V], known: dict[Hashable, dict[Any, V]]
) -> list[V]:
    """The result of ``call`` for each box; it depends only on the axes of the dimension."""
    cut = tuple(sorted(dim[1] & boxes[0].keys()))
    if not cut:
        return [call(boxes[0])] * len(boxes)
    keys, of_cut = list(map(itemgetter(*cut), boxes)), known.setdefault(cut, {})
    for key, box in dict(zip(keys, boxes, strict=True)).items():
        if key not in of_cut:
            of_cut[key] = call(box)
    return [of_cut[key] for key in keys]


def _rows(columns: Sequence[Sequence[V]], count: int) -> list[tuple[V, ...]]:
    return list(zip(*columns, strict=True)) if columns else [()] * count


def _sizes(regions: Sequence[Region]) -> list[Shape]:
    known = {region: extents(region) for region in set(regions)}
    return [known[region] for region in regions]


class Along(NamedTuple):
    """One dimension of a tensor where axes of its op are cut.

    ``axis`` is the number of the axis that it depends on (NONE: none). ``intervals`` are its parts,
    one for each place along that axis (without an axis a single one), ``extents`` their lengths as
    the kernel of a shard gets them.
    """

    axis: int
    intervals: tuple[Interval, ...]
    extents: tuple[int, ...]


def along(
    semantics: Semantics, role: Role, tensor: int, cut: Mapping[str, Sequence[Interval]]
) -> tuple[Along, ...] | None:
    """The dimensions of an operand or output under these cuts of axes; None where a dimension
    depends on several of them, or a shard has no part of it.
    """
    known = _known(semantics, role, tensor)
    runs = _known(semantics, "run", tensor) if role == "read" else None
    shape = (semantics.outputs if role == "made" else semantics.inputs)[tensor]
    numbers, columns = {name: number for number, name in enumerate(cut)}, []
    for d, (of, extent) in enumerate(zip(known, shape, strict=True)):
        names = of[0][1] & cut.keys()
        if len(names) > 1:
            return None
        name = next(iter(names), "")
        boxes: list[Box] = [{name: interval} for interval in cut[name]] if names else [{}]
        intervals = tuple(_each(boxes, *of))
        if extent and any([start >= stop for start, stop in intervals]):
            return None
        # The kernel may get more of an operand than is read of it.
        sizes = tuple(_each(boxes, *runs[d])) if runs else extents(intervals)
        columns.append(Along(numbers.get(name, NONE), intervals, sizes))
    return tuple(columns)
