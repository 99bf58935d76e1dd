"""The shards of many boxes at once: dimension by dimension in place of box by box.

Boxes of a grid name the same axes, and an interval hangs on the axes of its own dimension alone: 64
parts of 8 by 8 have 8 intervals along each dimension, not 64.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeVar

from .description import Shape, same_attributes
from .index import Axis, Box, Index, Interval, Region, clipped_interval, span_of
from .regions import extents, shard_of
from .registry import Dims, Semantics

_CACHED = 65_536
NONE = -1
Role = Literal["read", "made"]
V = TypeVar("V", bound=Hashable)


class Shards(NamedTuple):
    """The columns of ``Shard``, one entry a box."""

    attrs: Sequence[Mapping[str, Any]]
    operands: Sequence[tuple[int, ...]]
    inputs: Sequence[tuple[Shape, ...]]
    outputs: Sequence[tuple[Shape, ...]]
    makes: Sequence[tuple[Region | None, ...]]
    needs: Sequence[tuple[Region | None, ...]]


class Along(NamedTuple):
    """One dimension of a tensor where axes of its op are cut: on which of these it hangs (NONE: on
    none), and by place along that axis its interval, and its extent as the kernel of a shard gets
    it; a single place where it hangs on none.
    """

    axis: int
    intervals: tuple[Interval, ...]
    extents: tuple[int, ...]


def along(
    semantics: Semantics, role: Role, tensor: int, cut: Mapping[str, Sequence[Interval]]
) -> tuple[Along, ...] | None:
    """The dimensions of an operand or output where the axes are cut so; None where one hangs on
    several of them, or a shard has nothing of it.
    """
    made = role == "made"
    dims = (semantics.makes if made else semantics.reads)[tensor]
    shape = (semantics.outputs if made else semantics.inputs)[tensor]
    padded = not made and semantics.description.inputs[tensor].padded
    numbers = {name: number for number, name in enumerate(cut)}
    columns = []
    for d, ((index, names, full), extent) in enumerate(zip(dims, shape, strict=True)):
        hangs_on = names & cut.keys()
        if len(hangs_on) > 1:
            return None
        if index is None or not hangs_on:
            # What is read of a whole operand may be less than its kernel gets.
            column = Along(NONE, (full,), (full[1] - full[0] if made else extent,))
        else:
            (name,) = hangs_on
            column = _along(semantics, role, tensor, d, name, cut[name], numbers[name], padded)
        if extent and any([start >= stop for start, stop in column.intervals]):
            return None
        columns.append(column)
    return tuple(columns)


def _along(
    semantics: Semantics,
    role: Role,
    tensor: int,
    d: int,
    name: str,
    intervals: Sequence[Interval],
    number: int,
    padded: bool,
) -> Along:
    """One dimension, along the one axis on which it hangs."""
    index, _, _ = (semantics.makes if role == "made" else semantics.reads)[tensor][d]
    extent = (semantics.outputs if role == "made" else semantics.inputs)[tensor][d]
    assert index is not None
    if isinstance(index, Axis):
        parts, spans = tuple(intervals), None
    else:
        boxes, names = [{name: interval} for interval in intervals], frozenset((name,))
        known = _known(semantics, role, tensor)[d]
        parts = tuple(_each(boxes, names, _clipped(index, extent), known))
        spans = None
        if padded:
            known = _known(semantics, "span", tensor)[d]
            spans = tuple(_each(boxes, names, _span(index), known))
    return Along(number, parts, spans or tuple([stop - start for start, stop in parts]))


def shards_of(semantics: Semantics, boxes: Sequence[Box]) -> Shards:
    """What ``shard_of`` gives for each box; several name the same axes, and parts of them that are
    not all. Raises InputError, as it does.
    """
    columns = _by_dimension(semantics, boxes) if len(boxes) > 1 else None
    if columns is not None:
        return columns
    shards = [shard_of(semantics, box) for box in boxes]
    names = Shards._fields
    return Shards(*([getattr(shard, name) for shard in shards] for name in names))


def _by_dimension(semantics: Semantics, boxes: Sequence[Box]) -> Shards | None:
    """The columns; None where some box leaves an operand or an output out."""
    description = semantics.description
    if any(access.when is not None for access in description.inputs):
        return None
    every, needs, shapes = len(boxes), list[Sequence[Region | None]](), list[Sequence[Shape]]()
    for i, access in enumerate(description.inputs):
        dims, shape = semantics.reads[i], semantics.inputs[i]
        regions = _regions(dims, shape, boxes, _known(semantics, "read", i))
        if regions is None:
            return None
        needs.append(regions)
        spans = _known(semantics, "span", i) if access.padded else None
        shapes.append(_executed(dims, shape, boxes, regions, spans))
    makes = []
    for k, (dims, shape) in enumerate(zip(semantics.makes, semantics.outputs, strict=True)):
        regions = _regions(dims, shape, boxes, _known(semantics, "made", k))
        if regions is None:
            return None
        makes.append(regions)
    local = description.local
    same = local is same_attributes
    return Shards(
        [semantics.attrs] * every if same else [local(semantics.attrs, box) for box in boxes],
        [tuple(range(len(shapes)))] * every,
        _rows(shapes, every),
        _rows([_sizes(regions) for regions in makes], every),
        _rows(makes, every),
        _rows(needs, every),
    )


@lru_cache(_CACHED)
def _known(semantics: Semantics, role: str, tensor: int) -> list[dict[Hashable, Any]]:
    """Intervals or lengths that were found, by dimension of a tensor and intervals of its axes:
    grids of one op share most of them.
    """
    dims = (semantics.makes if role == "made" else semantics.reads)[tensor]
    return [{} for _ in dims]


def _rows(columns: Sequence[Sequence[V]], count: int) -> list[tuple[V, ...]]:
    return list(zip(*columns, strict=True)) if columns else [()] * count


def _regions(
    dims: Dims, shape: Shape, boxes: Sequence[Box], known: Sequence[dict[Hashable, Any]]
) -> Sequence[Region] | None:
    """The region of a tensor, by box; None where one is empty though the tensor is not."""
    columns = []
    for d, ((index, names, full), extent) in enumerate(zip(dims, shape, strict=True)):
        cut = names & boxes[0].keys()
        some = [full]
        if index is None or not cut:
            column = some * len(boxes)
        elif isinstance(index, Axis):  # parts of axes are never empty
            columns.append([box[index.name] for box in boxes])
            continue
        else:
            column = some = _each(boxes, cut, _clipped(index, extent), known[d])
        if extent and any([start >= stop for start, stop in some]):
            return None
        columns.append(column)
    return _rows(columns, len(boxes))


def _clipped(index: Index, extent: int) -> Callable[[Box], Interval]:
    return lambda box: clipped_interval(index, extent, box)


def _each(
    boxes: Sequence[Box],
    names: frozenset[str],
    call: Callable[[Box], V],
    known: dict[Hashable, Any],
) -> list[V]:
    """What a call gives by box, where it hangs on these axes alone."""
    column, (first, *others) = list[V](), sorted(names)
    for box in boxes:
        key = first, box[first], *((name, box[name]) for name in others)
        if key not in known:
            known[key] = call(box)
        column.append(known[key])
    return column


def _sizes(regions: Sequence[Region]) -> list[Shape]:
    known = {region: extents(region) for region in set(regions)}
    return [known[region] for region in regions]


def _executed(
    dims: Dims,
    shape: Shape,
    boxes: Sequence[Box],
    regions: Sequence[Region],
    spans: Sequence[dict[Hashable, Any]] | None,
) -> list[Shape]:
    """The shape of an operand as the kernel of each shard gets it: see ``executed``."""
    columns = []
    for d, ((index, names, _), extent) in enumerate(zip(dims, shape, strict=True)):
        cut = names & boxes[0].keys()
        if index is None or not cut:
            columns.append([extent] * len(boxes))
        elif spans is not None and isinstance(index, Index):
            columns.append(_each(boxes, cut, _span(index), spans[d]))
        else:
            columns.append([region[d][1] - region[d][0] for region in regions])
    return _rows(columns, len(boxes))


def _span(index: Index) -> Callable[[Box], int]:
    return lambda box: span_of(index, box)
