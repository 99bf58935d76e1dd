"""What the shards of an op read and make, whatever the devices: cached by what the op computes and
how it is split.

Regions are those of the stored tensors, so that views folded between a tensor and its reader are
seen through.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import prod
from typing import TypeGuard

from ...errors import InputError
from ...graph import Graph
from ...semantics import (
    Axis,
    Index,
    Interval,
    Region,
    Semantics,
    Shard,
    boxes,
    effects_of,
    input_region,
    op_semantics,
    operand_dtypes,
    operand_shapes,
    parts_of,
    row_strides,
    shard_of,
    splits,
    stored_region,
)

Shape = tuple[int, ...]
Shapes = tuple[Shape | None, ...]
Box = tuple[tuple[str, Interval], ...]
Strides = tuple[tuple[int, ...] | None, ...]
_CACHED = 65_536


@dataclass(frozen=True, slots=True)
class Part:
    """One shard of an op: its box, the shard as an op of its own (None: the whole op, of an unknown
    kind).

    ``needs`` is the region read of each stored operand, ``makes`` that made of each output (None:
    nothing). By output, ``addends`` is the number among the partial results of one region,
    ``copies`` that among equal ones. ``share`` is the part of the op's points that it holds.
    """

    box: Box
    shard: Shard | None
    needs: tuple[Region | None, ...]
    makes: tuple[Region | None, ...]
    addends: tuple[int, ...]
    copies: tuple[int, ...]
    share: Fraction


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """What geometry asks of one op of a graph; equal ops share one object, so it serves as a key.

    ``semantics`` None: the kind has none, so the op is never split. ``stored`` are the shapes of
    the tensors read, ``strides`` of the operands as executed, ``made`` the shapes of the outputs.
    """

    semantics: Semantics | None
    stored: tuple[Shape, ...]
    strides: Strides
    made: tuple[Shape, ...]


def reading(graph: Graph, position: int) -> Reading:
    """How an op of a graph reads and makes; a tensor whose shape is not known counts as one
    element.
    """
    op = graph.ops[position]
    stored = tuple(tensor.shape or () for tensor in graph.operands[position])
    semantics: Semantics | None
    try:
        semantics = op_semantics(graph, position)
    except InputError:
        semantics = None
    if semantics is not None and len(semantics.inputs) != len(stored):
        semantics = None  # what it reads and what it is said to execute differ: nothing is known
    if len(op.made) < len(op.outputs):
        semantics = None  # its views are parts of outputs that only the whole op has
    strides = _strides(op.attrs.get("strides"), len(stored))
    if semantics is not None:
        strides = tuple(map(_gapless, strides, semantics.inputs, stored))
    return _reading(semantics, stored, strides, _shapes(graph, position))


def _gapless(strides: tuple[int, ...] | None, seen: Shape, stored: Shape) -> tuple[int, ...] | None:
    """The strides of an operand: where none are told of one part of a stack, those of a part that
    lies without gaps.
    """
    return row_strides(seen) if strides is None and len(seen) < len(stored) else strides


@lru_cache(_CACHED)
def _reading(
    semantics: Semantics | None,
    stored: tuple[Shape, ...],
    strides: Strides,
    made: tuple[Shape, ...],
) -> Reading:
    return Reading(semantics, stored, strides, made)


def _shapes(graph: Graph, position: int) -> tuple[Shape, ...]:
    return tuple(tensor.shape or () for tensor in graph.ops[position].outputs)


def _strides(told: object, count: int) -> Strides:
    if not isinstance(told, list | tuple) or len(told) != count:
        return (None,) * count
    return tuple(tuple(one) if _is_layout(one) else None for one in told)


def _is_layout(told: object) -> TypeGuard[Sequence[int]]:
    return isinstance(told, list | tuple) and all(isinstance(step, int) for step in told)


def whole(shape: Shape) -> Region:
    """The region that is all of a tensor."""
    return tuple((0, extent) for extent in shape)


@lru_cache(_CACHED)
def parts(op: Reading, degrees: tuple[tuple[str, int], ...], even: bool = True) -> tuple[Part, ...]:
    """All shards for so many parts along each axis, in row-major order of the op's axes.

    Raises InputError.
    """
    if op.semantics is None or not degrees:
        return (part(op, ()),)
    cut = [axis.name for axis in op.semantics.axes if dict(degrees).get(axis.name, 1) > 1]
    counts = [dict(degrees)[name] for name in cut]
    effects = {name: effects_of(op.semantics, name) for name in cut}
    found = []
    for number, box in enumerate(boxes(op.semantics, dict(degrees), even)):
        point = _point(number, counts)
        one = part(op, tuple(box.items()))
        numbers = [_number(point, cut, counts, effects, k) for k in range(len(op.made))]
        addends, copies = tuple(a for a, _ in numbers), tuple(c for _, c in numbers)
        found.append(Part(one.box, one.shard, one.needs, one.makes, addends, copies, one.share))
    return tuple(found)


def _point(number: int, counts: Sequence[int]) -> list[int]:
    """The place of a part along each axis that is cut, the last running fastest."""
    found: list[int] = []
    for count in reversed(counts):
        number, place = divmod(number, count)
        found.append(place)
    return found[::-1]


def _number(
    point: Sequence[int],
    cut: Sequence[str],
    counts: Sequence[int],
    effects: Mapping[str, Sequence[str]],
    output: int,
) -> tuple[int, int]:
    """(addend, copy) of a part of an output: row-major over the axes that reduce it and those that
    replicate it.
    """
    addend = copy = 0
    for place, name, count in zip(point, cut, counts, strict=True):
        match effects[name][output]:
            case "reduce":
                addend = addend * count + place
            case "replicate":
                copy = copy * count + place
    return addend, copy


@lru_cache(_CACHED)
def part(op: Reading, box: Box) -> Part:
    """The shard of one box; the whole op on the empty one."""
    zeros = (0,) * len(op.made)
    if op.semantics is None:
        needs = tuple(whole(shape) for shape in op.stored)
        return Part(
            (), None, needs, tuple(whole(shape) for shape in op.made), zeros, zeros, Fraction(1)
        )
    shard = shard_of(op.semantics, dict(box))
    found = [_stored(op, operand, region) for operand, region in enumerate(shard.needs)]
    sizes = {axis.name: axis.size for axis in op.semantics.axes}
    share = Fraction(
        prod(stop - start for _, (start, stop) in box), prod(sizes[name] for name, _ in box)
    )
    return Part(box, shard, tuple(found), shard.makes, zeros, zeros, share)


def _stored(op: Reading, operand: int, region: Region | None) -> Region | None:
    if region is None or op.semantics is None:
        return None
    return stored_region(
        region, op.semantics.inputs[operand], op.stored[operand], op.strides[operand]
    )


@lru_cache(_CACHED)
def followed_axis(
    op: Reading, operand: int, dimension: int, intervals: tuple[Interval, ...]
) -> str | None:
    """The axis along which parts of the op read mostly their own part of an operand that is cut so
    along a dimension.

    "Mostly" is more than half of what they read. None where no axis does; the best one counts, then
    the first.
    """
    if op.semantics is None:
        return None
    best: int | Fraction = 0
    found = None
    for split in splits(op.semantics):
        if split.size < len(intervals) or not _reaches(op, operand, dimension, split.axis):
            continue
        score = _own_share(op, operand, dimension, intervals, split.axis, split.size)
        if score > best:
            best, found = score, split.axis
    return found


def _reaches(op: Reading, operand: int, dimension: int, axis: str) -> bool:
    """Whether an axis indexes a dimension of an operand; of one that is seen through a view it
    may.
    """
    assert op.semantics is not None
    seen_so = op.semantics.inputs[operand] == op.stored[operand] and op.strides[operand] is None
    return not seen_so or axis in op.semantics.reads[operand][dimension][1]


def _own_share(
    op: Reading, operand: int, dimension: int, intervals: tuple[Interval, ...], axis: str, size: int
) -> int | Fraction:
    """The sum over all parts of what is their own among what they read along the dimension; 0 where
    it is no half.
    """
    assert op.semantics is not None
    total: int | Fraction = 0
    for own, interval in zip(intervals, parts_of(size, len(intervals)), strict=True):
        region = _stored(op, operand, input_region(op.semantics, operand, {axis: interval}))
        if region is None:
            return 0
        start, stop = region[dimension]
        inside = min(stop, own[1]) - max(start, own[0])
        if 2 * inside <= stop - start:
            return 0
        total += Fraction(inside, stop - start) if inside < stop - start else 1
    return total


def box_of(op: Reading, output: int, region: Region) -> Box:
    """The smallest box whose shard makes a region of an output: along dimensions that one axis
    indexes, their part.
    """
    if op.semantics is None:
        return ()
    return _box(op.semantics, op.semantics.makes[output], region)


def updated_box(op: Reading, operand: int, region: Region) -> Box:
    """The box that touches a region of an operand that is updated in place."""
    if op.semantics is None:
        return ()
    return _box(op.semantics, op.semantics.reads[operand], region)


def _box(
    semantics: Semantics,
    dims: Sequence[tuple[Axis | Index | None, frozenset[str], Interval]],
    region: Region,
) -> Box:
    allowed = {split.axis for split in splits(semantics)}
    found = {}
    for (index, names, full), interval in zip(dims, region, strict=True):
        sum_of = index.as_index() if index is not None else None
        plain = (
            sum_of is not None
            and not sum_of.offset
            and [factor for _, factor in sum_of.terms] == [1]
        )
        if plain and len(names) == 1 and names <= allowed and interval != full:
            found[next(iter(names))] = interval
    return tuple((axis.name, found[axis.name]) for axis in semantics.axes if axis.name in found)


def executed(graph: Graph, position: int, one: Part) -> tuple[Shapes, tuple[str | None, ...]]:
    """Shapes and dtypes of a shard's operands as its kernel gets them."""
    shapes, dtypes = operand_shapes(graph, position), operand_dtypes(graph, position)
    if one.shard is None:
        return shapes, dtypes
    kept = one.shard.operands
    return one.shard.inputs, tuple([dtypes[i] if i < len(dtypes) else None for i in kept])
