"""How the ops of one layer lie on devices under a configuration, as far as cost tables need it.

Part p of a layer runs on the p-th device. A ``Spread`` tells of each axis of an op into how many parts it is cut, and
how many devices stand between one part and the next along it; a ``Cut`` the same of each dimension of a tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ...lowering.partition.geometry import Reading, followed_axis
from ...semantics import Interval, Region, input_regions, output_axes, parts_of, stored_region
from .layers import Degrees, Layer, Layers

Spread = tuple[tuple[str, int, int], ...]
"""(axis, degree, stride), of degrees above 1."""
Cut = tuple[tuple[int, int], ...]
"""(degree, stride) by dimension."""
TensorOf = tuple[int, int]
Boxes = NDArray[np.int64]
"""By device, dimension, start and stop; empty (0, 0) where a device holds nothing."""

_CACHED = 65_536


def spreads(layers: Layers, layer: Layer, degrees: Degrees) -> tuple[dict[int, Spread], dict[TensorOf, Cut]]:
    """The spread of every op of a layer, and the cut of every tensor that it makes.

    Followers are cut as the tensor of the layer that they follow. A gradient that comes from another layer is taken to
    be cut as the layer's output of its shape; a backward op that reads nothing to follow, as its output's like.
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


def _followed(layers: Layers, i: int, cuts: Mapping[TensorOf, Cut], by_shape: Mapping[tuple[int, ...], Cut]) -> Spread:
    question, op = layers.question, layers.question.readings[i]
    read = question.read[i]
    order = list(range(len(read)))
    if question.goes_back[i]:
        order.sort(key=lambda j: layers.graph.ops[read[j][0]].phase != "forward")
    for j in order:
        tensor = read[j]
        if tensor not in question.touched[i] or tensor[0] in question.on_demand:
            continue
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
    return tuple((axis, degree, stride) for axis, (degree, stride) in pairs if axis is not None and degree > 1)


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
    parts = 1
    for degree, _ in cut:
        parts *= degree
    found = np.zeros((devices, len(shape), 2), np.int64)
    for dimension, (degree, stride) in enumerate(cut):
        intervals = parts_of(shape[dimension], degree)
        for device in range(parts):
            found[device, dimension] = intervals[device // max(stride, 1) % degree]
    return found


@lru_cache(_CACHED)
def read_boxes(op: Reading, operand: int, spread: Spread, devices: int) -> Boxes | None:
    """The region of a stored operand that each device reads; None where the op reads nothing of it."""
    parts = 1
    for _, degree, _ in spread:
        parts *= degree
    found = np.zeros((devices, len(op.stored[operand]), 2), np.int64)
    for device in range(parts):
        region = _read(op, operand, tuple((a, n, device // stride % n) for a, n, stride in spread))
        if region is None:
            return None
        found[device] = np.array(region, np.int64).reshape(-1, 2)
    return found


def _read(op: Reading, operand: int, place: tuple[tuple[str, int, int], ...]) -> Region | None:
    """The region that one part reads: along each dimension by the axes that index it."""
    if op.semantics is None:
        return tuple((0, extent) for extent in op.stored[operand])
    region = []
    for dimension, (_, names, _) in enumerate(op.semantics.reads[operand]):
        interval = _interval(op, operand, dimension, tuple(one for one in place if one[0] in names))
        if interval is None:
            return None
        region.append(interval)
    if op.semantics.inputs[operand] == op.stored[operand]:
        return tuple(region)
    return stored_region(tuple(region), op.semantics.inputs[operand], op.stored[operand], op.strides[operand])


@lru_cache(_CACHED)
def _interval(op: Reading, operand: int, dimension: int, place: tuple[tuple[str, int, int], ...]) -> Interval | None:
    assert op.semantics is not None
    sizes = {axis.name: axis.size for axis in op.semantics.axes}
    region = input_regions(op.semantics, {a: parts_of(sizes[a], n)[at] for a, n, at in place})[operand]
    return None if region is None else region[dimension]


def first_box(op: Reading, spread: Spread) -> tuple[tuple[str, Interval], ...]:
    """The box of the part on the first device, axes in the order of the op."""
    if op.semantics is None:
        return ()
    degrees = {axis: degree for axis, degree, _ in spread}
    return tuple((a.name, parts_of(a.size, degrees[a.name])[0]) for a in op.semantics.axes if a.name in degrees)
