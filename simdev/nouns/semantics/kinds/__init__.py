"""The kinds of ops that simdev knows, a family a module; importing a module registers its kinds.

Describers share the helpers here: axes of a shape, broadcast reads, attributes with one value for
each dimension, and the attributes of a shard.

A new kind is registered in its family, with an example in ``tests/op_examples.py``. Kinds used by
models also need a verb and a gradient in ``simdev/nouns/models/ops.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from math import prod
from typing import Any

from ..description import (
    Access,
    Axis,
    Box,
    ByExtents,
    Call,
    Describer,
    Description,
    Entry,
    Output,
    Shape,
    per,
)
from ..registry import register

_CACHED = 4096

Local = Callable[[Mapping[str, Any], Box], Mapping[str, Any]]
"""A function from the attributes of an op and the box of a shard to the attributes of the shard."""


def register_each(names: str, describe: Describer, *settings: Any, **named: Any) -> None:
    """Register several kinds that differ only in their names; ``names`` are separated by blanks."""
    for name in names.split():
        register(name, describe, *settings, **named)


def numbered(shape: Shape, whole: Sequence[int] = ()) -> tuple[Axis, ...]:
    """The axes d0, d1, ... of a shape; axes at the positions ``whole`` cannot be split."""
    return _numbered(shape, tuple(whole))


# Equal axes are one object: a graph has thousands of ops of few shapes, and most of the time to
# describe an op goes into its axes.
@lru_cache(_CACHED)
def _numbered(shape: Shape, whole: tuple[int, ...]) -> tuple[Axis, ...]:
    return tuple(Axis(f"d{i}", extent, i not in whole) for i, extent in enumerate(shape))


def broadcast(shape: Shape, axes: Sequence[Axis]) -> tuple[Entry, ...]:
    """The index of a broadcast tensor at a point of the axes: aligned at the end, extents of 1
    repeated.

    Raises ValueError where the shape does not fit.
    """
    if len(shape) > len(axes):
        raise ValueError(f"{list(shape)} has more dimensions than {[axis.size for axis in axes]}")
    aligned = axes[len(axes) - len(shape) :]
    return tuple(
        [
            0 if extent == 1 and axis.size != 1 else axis
            for extent, axis in zip(shape, aligned, strict=True)
        ]
    )


def broadcast_reads(shapes: Sequence[Shape], axes: Sequence[Axis]) -> tuple[Access, ...]:
    """The broadcast reads of the operands of an elementwise op over these axes."""
    return tuple([Access(broadcast(shape, axes)) for shape in shapes])


def made(
    points: Sequence[Axis],
    reads: Iterable[Access | Sequence[Entry]],
    operations: int | Fraction | None = None,
    **settings: Any,
) -> Description:
    """The description of an op that makes each point of its single output from the values that it
    reads there, by this number of operations (None: it only moves). ``settings`` are further
    fields.
    """
    inputs = tuple([read if isinstance(read, Access) else Access(tuple(read)) for read in reads])
    flops = () if operations is None else (per(operations, *points),)
    return Description((Output(tuple(points)),), inputs, flops, **settings)


def pointwise(operations: int, dtype: str | None = None, later: str | None = None) -> Describer:
    """Describer of an op whose outputs have one shape, to which the operands are broadcast.

    ``operations`` counts for each element; ``dtype`` is the first output's, ``later`` the others'.
    """

    def describe(call: Call) -> Description:
        points = numbered(call.outputs[0])
        outputs = tuple(
            Output(points, dtype=later if i else dtype) for i in range(len(call.outputs))
        )
        return Description(
            outputs, broadcast_reads(call.inputs, points), (per(operations, *points),)
        )

    return describe


def dimension(value: int, rank: int) -> int:
    """A dimension counted from the front; raises ValueError outside of the rank."""
    if not -max(rank, 1) <= value < max(rank, 1):
        raise ValueError(f"no dimension {value} among {rank}")
    return value + rank if value < 0 else value


def dim_of(call: Call, rank: int) -> int:
    """The attribute ``dim`` (default 0), counted from the front."""
    return dimension(int(call.attrs.get("dim", 0)), rank)


def dimensions(value: Any, rank: int) -> tuple[int, ...]:
    """The dimensions of a reduction by its attribute ``dim``: one, several, or all where it is
    empty or left out.
    """
    if value is None or value == []:
        return tuple(range(rank))
    items = value if isinstance(value, list) else [value]
    dims = tuple(dimension(int(item), rank) for item in items)
    # A tensor without dimensions has none, though PyTorch can reduce it along 0 or -1.
    return dims if rank else ()


def each(
    attrs: Mapping[str, Any], name: str, rank: int, default: Sequence[int], least: int | None = 0
) -> tuple[int, ...]:
    """An attribute with one value for each window dimension: a list, one number for all, or left
    out (or empty).

    Raises ValueError where the number of values differs, or they are not whole numbers of at least
    ``least`` (None: of any sign).
    """
    value = attrs.get(name)
    if value is None or value == []:
        return tuple(default)
    values = value if isinstance(value, list | tuple) else [value]
    for item in values:
        # In Python, JSON's true is an int, but as a stride it is a mistake.
        is_whole = isinstance(item, int) and not isinstance(item, bool)
        if not is_whole or (least is not None and item < least):
            bound = "" if least is None else f" >= {least}"
            raise ValueError(f"{name}: must be whole numbers{bound}, got {value!r}")
    if len(values) not in (1, rank):
        raise ValueError(f"{name}: needs {rank} values, got {value}")
    return tuple(values) * (rank if len(values) == 1 else 1)


def extent(axis: Axis, box: Box) -> int:
    """The number of points of an axis inside a box."""
    start, stop = box.get(axis.name, (0, axis.size))
    return stop - start


def sized(**names: Sequence[Axis]) -> Local:
    """Shard attributes that hold extents: for each name its axes; a list is replaced by their
    extents, a number by the product.
    """

    def local(attrs: Mapping[str, Any], box: Box) -> Mapping[str, Any]:
        changed = dict(attrs)
        for name in names.keys() & attrs.keys():
            extents = [extent(axis, box) for axis in names[name]]
            changed[name] = extents if isinstance(attrs[name], list) else prod(extents)
        return changed

    return ByExtents(local)
