"""How the ops of one layer lie on devices under a configuration, as far as cost tables need it.

Part p of a layer runs on the p-th device. A ``Spread`` tells of each axis of an op into how many
parts it is cut, and how many devices stand between one part and the next along it; a ``Cut`` the
same of each dimension of a tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from ...lowering.partition.geometry import Reading, followed_axis
from ...semantics import Interval, Region, input_region, output_axes, parts_of, stored_region
from ...structure import TensorOf
from .layers import Degrees, Layer, Layers

Spread = tuple[tuple[str, int, int], ...]
"""(axis, degree, stride), of degrees above 1."""
Cut = tuple[tuple[int, int], ...]
"""(degree, stride) by dimension."""
Boxes = NDArray[np.int64]
"""By device, dimension, start and stop; empty (0, 0) where a device holds nothing."""

_CACHED = 65_536


def spreads(
    layers: Layers, layer: Layer, degrees: Degrees
) -> tuple[dict[int, Spread], dict[TensorOf, Cut]]:
    """The spread of every op of a layer, and the cut of every tensor that it makes.

    Followers are cut as the tensor of the layer that they follow. A gradient that comes from
    another layer is taken to be cut as the layer's output of its shape; a backward op that reads
    nothing to follow, as its output's like.
    """
    question = layers.question
    own, first = set(layer.ops), _spread(degrees)
    found: dict[int, Spread] = {}
    cuts: dict[TensorOf, Cut] = {}
    by_shape: dict[tuple[int, ...], Cut] = {}
    for i in layer.members:
        op = question.readings[i]
        if i in own:
            found[i] = first if op.semantics is not None else ()
        else:
            backward = layers.graph.ops[i].phase != "forward"
            found[i] = _followed(layers, i, cuts, by_shape if backward else {})
            if backward and not found[i] and op.made:
                found[i] = made_so(op, by_shape.get(op.made[0], ()))
        for k in range(len(op.made)):
            cuts[i, k] = output_cut(op, k, found[i])
            if layers.graph.ops[i].phase == "forward":
                by_shape[op.made[k]] = cuts[i, k]
    return found, cuts


def _spread(degrees: Degrees) -> Spread:
    """Row-major over the axes, the last running fastest."""
    found, stride = [], 1
    for axis, degree in reversed(degrees):
        found.append((axis, degree, stride))
        stride *= degree
    return tuple(reversed(found))


def _followed(
    layers: Layers, i: int, cuts: Mapping[TensorOf, Cut], by_shape: Mapping[tuple[int, ...], Cut]
) -> Spread:
    op, read = layers.question.readings[i], layers.question.read[i]
    for j in layers.leads[i]:
        tensor = read[j]
        cut = cuts.get(tensor)
        if cut is None and layers.graph.ops[tensor[0]].phase != "forward":
            cut = by_shape.get(op.stored[j])
        axes = followed(op, j, cut) if cut is not None else ()
        if axes:
            return axes
    return ()


@lru_cache(_CACHED)
def followed(op: Reading, operand: int, cut: Cut) -> Spread:
    """The spread of an op that follows an operand that is cut so."""
    found: dict[str, tuple[int, int]] = {}
    for dimension, (degree, stride) in enumerate(cut):
        if degree > 1:
            intervals = parts_of(op.stored[operand][dimension], degree)
            axis = followed_axis(op, operand, dimension, intervals)
            if axis is not None:
                found.setdefault(axis, (degree, stride))
    return tuple((axis, degree, stride) for axis, (degree, stride) in found.items())


@lru_cache(_CACHED)
def made_so(op: Reading, cut: Cut) -> Spread:
    """The spread of an op whose first output is cut so."""
    if op.semantics is None:
        return ()
    pairs = zip(output_axes(op.semantics), cut, strict=False)
    return tuple(
        (axis, degree, stride)
        for axis, (degree, stride) in pairs
        if axis is not None and degree > 1
    )


@lru_cache(_CACHED)
def output_cut(op: Reading, output: int, spread: Spread) -> Cut:
    """The cut of an output."""
    if op.semantics is None or not spread:
        return ((1, 0),) * len(op.made[output])
    by_axis = {axis: (degree, stride) for axis, degree, stride in spread}
    return tuple(by_axis.get(axis or "", (1, 0)) for axis in output_axes(op.semantics, output))


@lru_cache(_CACHED)
def made_boxes(shape: tuple[int, ...], cut: Cut, devices: int) -> Boxes:
    """The region of a tensor that each device makes."""
    dims = [
        (parts_of(size, degree), degree, max(stride, 1))
        for size, (degree, stride) in zip(shape, cut, strict=True)
    ]
    parts = range(prod(degree for degree, _ in cut))
    return _boxes(
        [tuple([ends[p // stride % degree] for ends, degree, stride in dims]) for p in parts],
        devices,
    )


@lru_cache(_CACHED)
def read_boxes(op: Reading, operand: int, spread: Spread, devices: int) -> Boxes | None:
    """The region of a stored operand that each device reads; None where the op reads nothing of
    it.
    """
    seen, stored = (
        op.semantics.inputs[operand] if op.semantics is not None else None,
        op.stored[operand],
    )
    parts = prod(degree for _, degree, _ in spread)
    if op.semantics is None or seen is None:
        return _boxes([tuple((0, extent) for extent in stored)] * parts, devices)
    columns = []
    for dimension, (_, names, _) in enumerate(op.semantics.reads[operand]):
        own = tuple([one for one in spread if one[0] in names])
        columns.append(_intervals(op, operand, dimension, own, parts))
    regions: list[Region] = []
    for region in zip(*columns, strict=True) if columns else [()] * parts:
        if None in region:
            return None
        regions.append(
            region if seen == stored else stored_region(region, seen, stored, op.strides[operand])
        )
    return _boxes(regions, devices)


def _boxes(regions: Sequence[Region], devices: int) -> Boxes:
    found = np.zeros((devices, len(regions[0]), 2), np.int64)
    if regions[0]:
        found[: len(regions)] = regions
    return found


@lru_cache(_CACHED)
def _intervals(
    op: Reading, operand: int, dimension: int, spread: Spread, parts: int
) -> tuple[Interval | None, ...]:
    """What each part reads along one dimension, by the axes that index it; None where it reads
    nothing.
    """
    assert op.semantics is not None
    sizes = {axis.name: axis.size for axis in op.semantics.axes}
    ends = [
        (axis, parts_of(sizes[axis], degree), degree, stride) for axis, degree, stride in spread
    ]
    known: dict[tuple[int, ...], Interval | None] = {}
    found = []
    for part in range(parts):
        place = tuple([part // stride % degree for _, _, degree, stride in ends])
        if place not in known:
            box = {axis: own[at] for (axis, own, _, _), at in zip(ends, place, strict=True)}
            region = input_region(op.semantics, operand, box)
            known[place] = None if region is None else region[dimension]
        found.append(known[place])
    return tuple(found)


def first_box(op: Reading, spread: Spread) -> tuple[tuple[str, Interval], ...]:
    """The box of the part on the first device, axes in the order of the op."""
    if op.semantics is None:
        return ()
    degrees = {axis: degree for axis, degree, _ in spread}
    return tuple(
        [
            (a.name, parts_of(a.size, degrees[a.name])[0])
            for a in op.semantics.axes
            if a.name in degrees
        ]
    )
