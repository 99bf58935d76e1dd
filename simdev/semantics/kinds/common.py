"""What describers share: broadcast reads, attributes one a dimension, attributes of a shard."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any

from ..description import Access, Entry, Shape
from ..index import Axis, Box

_CACHED = 4096


def numbered(shape: Shape, whole: Sequence[int] = ()) -> tuple[Axis, ...]:
    """Axes d0, d1, ... of a shape; those at the positions ``whole`` cannot be split."""
    return _numbered(shape, tuple(whole))


@lru_cache(_CACHED)
def _numbered(shape: Shape, whole: tuple[int, ...]) -> tuple[Axis, ...]:
    return tuple(Axis(f"d{i}", extent, i not in whole) for i, extent in enumerate(shape))


def broadcast(shape: Shape, axes: Sequence[Axis]) -> tuple[Entry, ...]:
    """How a tensor of this shape is read at a point of the axes: aligned at the end, an extent of 1
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


def broadcast_read(shape: Shape, axes: Sequence[Axis]) -> Access:
    """The operand of an elementwise op."""
    return Access(broadcast(shape, axes))


def dimension(value: int, rank: int) -> int:
    """A dimension counted from the front; raises ValueError where there is none."""
    if not -max(rank, 1) <= value < max(rank, 1):
        raise ValueError(f"no dimension {value} among {rank}")
    return value + rank if value < 0 else value


def dimensions(value: Any, rank: int) -> tuple[int, ...]:
    """The attribute ``dim``: one dimension, several, or all where it is left out or empty."""
    if value is None or value == []:
        return tuple(range(rank))
    return tuple(
        dimension(int(item), rank) for item in (value if isinstance(value, list) else [value])
    )


def each(
    attrs: Mapping[str, Any], name: str, rank: int, default: Sequence[int], least: int | None = 0
) -> tuple[int, ...]:
    """An attribute with one value a window dimension: a list, one number for all, or left out (or
    empty).

    Raises ValueError where they are not as many, or no whole numbers of at least ``least`` (None:
    of any sign).
    """
    value = attrs.get(name)
    if value is None or value == []:
        return tuple(default)
    found = value if isinstance(value, list | tuple) else [value]
    for item in found:
        if (
            isinstance(item, bool)
            or not isinstance(item, int)
            or (least is not None and item < least)
        ):
            raise ValueError(
                f"{name}: must be whole numbers{'' if least is None else f' >= {least}'}, "
                f"got {value!r}"
            )
    if len(found) not in (1, rank):
        raise ValueError(f"{name}: needs {rank} values, got {value}")
    return tuple(found) * (rank if len(found) == 1 else 1)


def extent(axis: Axis, box: Box) -> int:
    """Points of an axis inside a box."""
    start, stop = box.get(axis.name, (0, axis.size))
    return stop - start


def sized(**names: Sequence[Axis]) -> Callable[[Mapping[str, Any], Box], Mapping[str, Any]]:
    """Attributes of a shard where some tell extents: a list becomes those of these axes, a number
    their product.
    """

    def local(attrs: Mapping[str, Any], box: Box) -> Mapping[str, Any]:
        found = dict(attrs)
        for name, axes in names.items():
            if name in found:
                extents = [extent(axis, box) for axis in axes]
                found[name] = extents if isinstance(found[name], list) else prod(extents)
        return found

    return local
