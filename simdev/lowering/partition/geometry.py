"""The regions that the shards of an op read and make, on any devices: cached by the op's
computation and its split.

Regions are those of stored tensors, so views between a tensor and its reader are resolved. All of
``partition``, ``oracle.splits`` and the searches of splits (OptCNN, Tofu) call it. The descriptions
in ``nouns.semantics`` say how each kind of op reads; cuts.py computes the same regions axis by
axis.
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
# Geometry takes milliseconds for an op, and the thousands of ops of a model have some dozens of
# shapes: lowering many strategies of a graph depends on these caches.
_CACHED = 65_536


# Compared by identity: parts of one op that run the same share one object.
@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """The program of a shard, independent of the place of its box: attributes, and the operands of
    the op that it gets, with their shapes.
    """

    attrs: Mapping[str, Any]
    operands: tuple[int, ...]
    inputs: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """A shard of an op: its box, and its kernel (None: the whole op, of an unknown kind).

    Parts of an op with the same kernel make outputs of the same shapes and hold the same share,
    along the same axes. ``needs`` is the region that it reads of each stored operand, ``makes`` the
    region that it makes of each output (None: nothing). By output, ``addends`` is its number among
    the partial results of a region, ``copies`` its number among equal copies. ``share`` is its
    share of the op's points.
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

    ``semantics``: None for a kind without a description, whose ops are never split. ``stored`` are
    the shapes of the tensors read, ``strides`` those of the operands as executed, ``made`` the
    shapes of the outputs. ``batch`` is by operand how a view merges or slices the samples (None: it
    does neither).
    """

    semantics: Semantics | None
    stored: tuple[Shape, ...]
    strides: Strides
    made: tuple[Shape, ...]
    batch: tuple[BatchView | None, ...] = ()

    def as_stored(self, operand: int) -> bool:
        """Whether an operand has the shape of its tensor, and its points have the same order."""
        return (
            self.semantics is not None
            and self.semantics.inputs[operand] == self.stored[operand]
            and self.strides[operand] is None
            and (not self.batch or is_same(self.batch[operand]))
        )

    def shape_only(self, operand: int) -> bool:
        """Whether the op needs only the shape of an operand."""
        return self.semantics is not None and not self.semantics.description.inputs[operand].read

    def any_part(self, operand: int) -> bool:
        """Whether any part of the tensor can serve as an operand."""
        return self.semantics is not None and self.semantics.description.inputs[operand].any_part


def reading(graph: Graph, position: int) -> Reading:
    """How an op of a graph reads and makes; a tensor of unknown shape counts as one element."""
    op = graph.ops[position]
    stored = tuple(tensor.shape or () for tensor in graph.operands[position])
    semantics: Semantics | None = None
    # Ops with outputs that are views of other outputs are not split.
    if len(op.made) == len(op.outputs):
        with suppress(InputError):
            semantics = op_semantics(graph, position)
    if semantics is not None and len(semantics.inputs) != len(stored):
        semantics = None  # the inputs differ from those that the op is said to execute
    strides = _strides(op.attrs.get("strides"), len(stored))
    if semantics is not None:
        strides = tuple(map(_gapless, strides, semantics.inputs, stored))
    return _reading(semantics, stored, strides, tuple(t.shape or () for t in op.outputs))


def _gapless(strides: tuple[int, ...] | None, seen: Shape, stored: Shape) -> tuple[int, ...] | None:
    """The strides of an operand; a part of a stack without given strides is dense."""
    return row_strides(seen) if strides is None and len(seen) < len(stored) else strides


_reading = lru_cache(_CACHED)(Reading)


def is_same(view: BatchView | None) -> bool:
    """Whether the samples of an operand have the same numbers as in its tensor."""
    return view is None or (view.seen == view.held and not view.sliced)


def with_batch(op: Reading, semantics: Semantics, views: tuple[BatchView | None, ...]) -> Reading:
    """The reading of an op with these semantics and these views of samples."""
    if semantics is op.semantics and not any(views):
        return op
    return _reading(semantics, op.stored, op.strides, op.made, views if any(views) else ())


def _strides(given: object, count: int) -> Strides:
    """The attribute "strides" of an op, by operand; None where it gives no layout."""
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
    """All shards of an op cut into ``degrees`` parts along each axis, row-major over its axes.

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
    """A number for each part, row-major over the axes that are ``counted``: parts that differ only
    along other axes share a number. Axis k is cut into ``counts[k]``; parts come in row-major
    order.
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
    """The shard of a box. For the empty box this is the whole op, as where it is placed: it then
    reads its operands whole.
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
    """The shards of boxes over the same axes, with these numbers of addends and copies."""
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
    """The shared object for equal kernels of an op; ``beside`` are the cut axes, the points of the
    shard, and the shapes of the outputs that it makes.
    """
    # Attributes as text: lists cannot be keys, and 1 and 1.0 must differ.
    key = repr(runs.attrs), runs.operands, runs.inputs, beside
    return _kernels(op).setdefault(key, runs)


@lru_cache(_CACHED)
def _kernels(op: Reading) -> dict[object, Kernel]:
    """The kernels of an op so far, by their key (``the_kernel``)."""
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
    """The region that is the whole tensor, for each shape."""
    return tuple(tuple((0, extent) for extent in shape) for shape in shapes)


def stored(op: Reading, operand: int, region: Region | None) -> Region | None:
    """The region of the stored tensor that contains a region of an operand as the op sees it."""
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
    """The axis to cut an op along so that its parts follow an operand that is cut into
    ``intervals`` along a dimension: each part reads mostly its own interval.

    "Mostly" means more than half of all that it reads. The best axis is taken, on a tie the first;
    None where there is none.
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
    """Whether an axis may index a dimension of an operand: through a view, any axis may."""
    assert op.semantics is not None
    return not op.as_stored(operand) or axis in op.semantics.reads[operand][dimension][1]


def _matching_share(
    op: Reading, operand: int, dimension: int, intervals: tuple[Interval, ...], axis: str, size: int
) -> int | Fraction:
    """How well parts along an axis match the intervals: the sum over all parts of the share of
    their reads along the dimension that is in their own interval; 0 where any share is at most a
    half.
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
        # Fractions are slow, so the common case of 1 stays a whole number.
        total += Fraction(inside, stop - start) if inside < stop - start else 1
    return total


@lru_cache(_CACHED)
def made_part(op: Reading, output: int, region: Region) -> Part:
    """The smallest shard that makes a region of an output: cut along the dimensions that a single
    axis indexes.
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
    """The shapes and dtypes of the operands that a shard's kernel gets."""
    shapes, dtypes = operand_shapes(graph, position), operand_dtypes(graph, position)
    if placed.kernel is None:
        return shapes, dtypes
    kept = placed.kernel.operands
    return placed.kernel.inputs, tuple([dtypes[i] if i < len(dtypes) else None for i in kept])
