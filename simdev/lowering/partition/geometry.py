"""The regions that shards of an op read and make, whatever the devices: cached by what the op
computes and how it is split.

Regions are those of the stored tensors, so that views folded between a tensor and its reader are
seen through. All of ``partition``, ``oracle.splits`` and the searches of splits (OptCNN, Tofu) ask
it. How a kind of op reads is told by its description in ``nouns.semantics``; cuts.py tells the same
regions axis by axis.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from math import prod
from typing import Any

from ...ground.errors import InputError
from ...nouns.graph import Graph
from ...nouns.semantics import (
    Axis,
    BatchView,
    Index,
    Interval,
    Region,
    Semantics,
    batch_region,
    boxes,
    effects_of,
    input_region,
    op_semantics,
    operand_dtypes,
    operand_shapes,
    parts_of,
    row_strides,
    shards_of,
    splits,
    stored_region,
)
from ...nouns.semantics.work import layouts

Shape = tuple[int, ...]
Shapes = tuple[Shape | None, ...]
Box = tuple[tuple[str, Interval], ...]
Strides = tuple[tuple[int, ...] | None, ...]
# Geometry costs milliseconds an op, and the thousands of ops of a model come from some dozens of
# shapes: whoever lowers many strategies of one graph lives off these caches.
_CACHED = 65_536


# Compared by identity: parts of one op that run the same share one object.
@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """The program of a shard, wherever its box lies: attributes, and the operands of the op that it
    gets, with their shapes.
    """

    attrs: Mapping[str, Any]
    operands: tuple[int, ...]
    inputs: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """One shard of an op: its box, and what it runs (None: the whole op, of an unknown kind).

    Parts of one op with one kernel make outputs of the same shapes and hold the same share, along
    the same axes. ``needs`` is the region read of each stored operand, ``makes`` that made of each
    output (None: nothing). By output, ``addends`` is the number among the partial results of one
    region, ``copies`` that among equal ones. ``share`` is the part of the op's points that it
    holds.
    """

    box: Box
    kernel: Kernel | None
    needs: tuple[Region | None, ...]
    makes: tuple[Region | None, ...]
    addends: tuple[int, ...]
    copies: tuple[int, ...]
    share: Fraction


# Compared by identity (eq=False), so that the caches below hash an object, not its semantics.
@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """How an op of a graph reads and makes tensors; equal ops share one object, a key of caches.

    ``semantics`` None: the kind has none, so the op is never split. ``stored`` are the shapes of
    the tensors read, ``strides`` of the operands as executed, ``made`` the shapes of the outputs.
    ``batch`` tells by operand how a view merges or slices the samples (None: it does neither).
    """

    semantics: Semantics | None
    stored: tuple[Shape, ...]
    strides: Strides
    made: tuple[Shape, ...]
    batch: tuple[BatchView | None, ...] = ()

    def as_stored(self, operand: int) -> bool:
        """Whether an operand is seen under the shape of its tensor, and its points as numbered
        there.
        """
        return (
            self.semantics is not None
            and self.semantics.inputs[operand] == self.stored[operand]
            and self.strides[operand] is None
            and (not self.batch or is_same(self.batch[operand]))
        )

    def shape_only(self, operand: int) -> bool:
        """Whether the op looks at the shape of an operand alone."""
        return self.semantics is not None and not self.semantics.description.inputs[operand].read

    def any_part(self, operand: int) -> bool:
        """Whether any part of the tensor will do as an operand."""
        return self.semantics is not None and self.semantics.description.inputs[operand].any_part


def reading(graph: Graph, position: int) -> Reading:
    """How an op of a graph reads and makes; a tensor of unknown shape counts as one element."""
    op = graph.ops[position]
    stored = tuple(tensor.shape or () for tensor in graph.operands[position])
    semantics: Semantics | None = None
    # An output that is a view is a part of another one, which only the whole op has.
    if len(op.made) == len(op.outputs):
        with suppress(InputError):
            semantics = op_semantics(graph, position)
    if semantics is not None and len(semantics.inputs) != len(stored):
        semantics = None  # what it reads and what it is said to execute differ: nothing is known
    strides = _strides(op.attrs.get("strides"), len(stored))
    if semantics is not None:
        strides = tuple(map(_gapless, strides, semantics.inputs, stored))
    return _reading(semantics, stored, strides, tuple(t.shape or () for t in op.outputs))


def _gapless(strides: tuple[int, ...] | None, seen: Shape, stored: Shape) -> tuple[int, ...] | None:
    """The strides of an operand; those of a part of a stack that tells none, for it has no gaps."""
    return row_strides(seen) if strides is None and len(seen) < len(stored) else strides


_reading = lru_cache(_CACHED)(Reading)


def is_same(view: BatchView | None) -> bool:
    """Whether samples are numbered in an operand as in its tensor."""
    return view is None or (view.seen == view.held and not view.sliced)


def with_batch(op: Reading, semantics: Semantics, views: tuple[BatchView | None, ...]) -> Reading:
    """The reading of an op that sees samples so."""
    if semantics is op.semantics and not any(views):
        return op
    return _reading(semantics, op.stored, op.strides, op.made, views if any(views) else ())


def _strides(given: object, count: int) -> Strides:
    """The attribute "strides" of an op, operand by operand; None where it tells no layout."""
    known = layouts(given) or ()
    if len(known) != count:
        return (None,) * count
    return tuple(
        None
        if strides is None or not all(isinstance(step, int) for step in strides)
        else (*strides,)
        for strides in known
    )


@lru_cache(_CACHED)
def parts(op: Reading, degrees: tuple[tuple[str, int], ...], even: bool = True) -> tuple[Part, ...]:
    """All shards for so many parts along each axis, in row-major order of the op's axes.

    Raises InputError.
    """
    if op.semantics is None or not degrees:
        return (part(op, ()),)
    degree_of = dict(degrees)
    every = boxes(op.semantics, degree_of, even)
    cut = [axis.name for axis in op.semantics.axes if degree_of.get(axis.name, 1) > 1]
    if not cut:
        return (part(op, ()),)
    counts = [degree_of[name] for name in cut]
    effects = list(zip(*(effects_of(op.semantics, name) for name in cut), strict=True))
    addends, copies = (
        list(zip(*(numbered(counts, [e == effect for e in each]) for each in effects), strict=True))
        or [()] * len(every)
        for effect in ("reduce", "replicate")
    )
    return tuple(_parts(op, every, addends, copies))


def numbered(counts: Sequence[int], counted: Sequence[bool]) -> list[int]:
    """A number for each part, row-major over the axes that are counted: parts that differ along
    other axes alone share one. Axis k is cut into ``counts[k]``; parts come in row-major order.
    """
    numbers = [0]
    for count, counts_here in zip(counts, counted, strict=True):
        if counts_here:
            numbers = [number * count + place for number in numbers for place in range(count)]
        else:
            numbers = [number for number in numbers for _ in range(count)]
    return numbers


@lru_cache(_CACHED)
def part(op: Reading, box: Box) -> Part:
    """The shard of one box; on the empty one the whole op, which reads its operands whole, as one
    that is placed does.
    """
    zeros = (0,) * len(op.made)
    if op.semantics is None:
        return Part((), None, _whole(op.stored), _whole(op.made), zeros, zeros, Fraction(1))
    shard = next(_parts(op, [dict(box)], [zeros], [zeros]))
    return shard if box else replace(shard, needs=_whole(op.stored))


def _parts(
    op: Reading,
    every: Sequence[Mapping[str, Interval]],
    addends: Sequence[tuple[int, ...]],
    copies: Sequence[tuple[int, ...]],
) -> Iterator[Part]:
    """The shards of boxes over the same axes, numbered so."""
    assert op.semantics is not None
    shards, names = shards_of(op.semantics, every), tuple(every[0])
    needs = _stored_columns(op, shards.needs)
    points = [prod([stop - start for start, stop in box.values()]) for box in every]
    sizes = {axis.name: axis.size for axis in op.semantics.axes}
    total = prod([sizes[name] for name in names])
    share_of = {count: Fraction(count, total) for count in set(points)}
    for at, box in enumerate(every):
        made = tuple([region is not None for region in shards.makes[at]])
        runs = Kernel(shards.attrs[at], shards.operands[at], shards.inputs[at])
        yield Part(
            tuple(box.items()),
            the_kernel(op, runs, (names, points[at], made, shards.outputs[at])),
            needs[at],
            shards.makes[at],
            addends[at],
            copies[at],
            share_of[points[at]],
        )


def the_kernel(op: Reading, runs: Kernel, beside: tuple[Any, ...]) -> Kernel:
    """The one kernel of an op that runs the same; ``beside`` are the cut axes, the points of the
    shard, and the shapes of the outputs that it makes.
    """
    # As text: lists cannot be keys, and 1 and 1.0 are two attributes.
    key = repr(runs.attrs), runs.operands, runs.inputs, beside
    return _kernels(op).setdefault(key, runs)


@lru_cache(_CACHED)
def _kernels(op: Reading) -> dict[object, Kernel]:
    """The kernels of an op that were asked for, by what tells them apart."""
    return {}


def _stored_columns(
    op: Reading, needs: Sequence[tuple[Region | None, ...]]
) -> Sequence[tuple[Region | None, ...]]:
    """The regions of the stored tensors that each shard needs."""
    assert op.semantics is not None
    if all(map(op.as_stored, range(len(op.stored)))):
        return needs
    columns = []
    for operand, regions in enumerate(zip(*needs, strict=True)):
        known = {region: stored(op, operand, region) for region in set(regions)}
        columns.append([known[region] for region in regions])
    return list(zip(*columns, strict=True))


def _whole(shapes: Iterable[Shape]) -> tuple[Region, ...]:
    """By shape the region that is all of a tensor."""
    return tuple(tuple((0, extent) for extent in shape) for shape in shapes)


def stored(op: Reading, operand: int, region: Region | None) -> Region | None:
    """The region of an operand's tensor that holds a region of it as it is seen."""
    if region is None or op.semantics is None:
        return None
    view = op.batch[operand] if op.batch else None
    lies = op.semantics.inputs[operand], op.stored[operand], op.strides[operand]
    if view is None:
        return stored_region(region, *lies)
    return region if op.as_stored(operand) else batch_region(region, *lies, view)


@lru_cache(_CACHED)
def followed_axis(
    op: Reading, operand: int, dimension: int, intervals: tuple[Interval, ...]
) -> str | None:
    """The axis along which parts of the op read mostly the part of an operand that is theirs, where
    the operand is cut so along a dimension.

    "Mostly" is more than half of what they read. None where no axis does; the best one counts, then
    the first.
    """
    if op.semantics is None:
        return None
    best: int | Fraction = 0
    followed = None
    for split in splits(op.semantics):
        if split.size < len(intervals) or not _reaches(op, operand, dimension, split.axis):
            continue
        score = _matching_share(op, operand, dimension, intervals, split.axis, split.size)
        if score > best:
            best, followed = score, split.axis
    return followed


def _reaches(op: Reading, operand: int, dimension: int, axis: str) -> bool:
    """Whether an axis indexes a dimension of an operand; of one that is seen through a view it
    may.
    """
    assert op.semantics is not None
    return not op.as_stored(operand) or axis in op.semantics.reads[operand][dimension][1]


def _matching_share(
    op: Reading, operand: int, dimension: int, intervals: tuple[Interval, ...], axis: str, size: int
) -> int | Fraction:
    """The sum over all parts of the share that lies in their interval of what they read along the
    dimension; 0 where it is no half.
    """
    assert op.semantics is not None
    total: int | Fraction = 0
    for own_cut, interval in zip(intervals, parts_of(size, len(intervals)), strict=True):
        region = stored(op, operand, input_region(op.semantics, operand, {axis: interval}))
        if region is None:
            return 0
        start, stop = region[dimension]
        inside = min(stop, own_cut[1]) - max(start, own_cut[0])
        if 2 * inside <= stop - start:
            return 0
        # Whole numbers as long as parts read nothing else: Fractions are slow, and this is common.
        total += Fraction(inside, stop - start) if inside < stop - start else 1
    return total


@lru_cache(_CACHED)
def made_part(op: Reading, output: int, region: Region) -> Part:
    """The smallest shard that makes a region of an output: along dimensions that one axis indexes,
    their part.
    """
    return part(op, _box(op.semantics, op.semantics.makes[output], region) if op.semantics else ())


@lru_cache(_CACHED)
def updated_part(op: Reading, operand: int, region: Region) -> Part:
    """The shard that touches a region of an operand that is updated in place."""
    return part(op, _box(op.semantics, op.semantics.reads[operand], region) if op.semantics else ())


def _box(
    semantics: Semantics,
    dims: Sequence[tuple[Axis | Index | None, frozenset[str], Interval]],
    region: Region,
) -> Box:
    allowed = {split.axis for split in splits(semantics)}
    interval_of = {}
    for (index, names, full), interval in zip(dims, region, strict=True):
        # Only an axis by itself, neither shifted nor strided, has the interval of the dimension.
        plain = index is not None and not index.offset and [f for _, f in index.terms] == [1]
        if plain and len(names) == 1 and names <= allowed and interval != full:
            interval_of[next(iter(names))] = interval
    names_in_order = (axis.name for axis in semantics.axes)
    return tuple((name, interval_of[name]) for name in names_in_order if name in interval_of)


def executed(graph: Graph, position: int, placed: Part) -> tuple[Shapes, tuple[str | None, ...]]:
    """Shapes and dtypes of a shard's operands as its kernel gets them."""
    shapes, dtypes = operand_shapes(graph, position), operand_dtypes(graph, position)
    if placed.kernel is None:
        return shapes, dtypes
    kept = placed.kernel.operands
    return placed.kernel.inputs, tuple([dtypes[i] if i < len(dtypes) else None for i in kept])
