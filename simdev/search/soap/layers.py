"""The layers of a step, and their followers: OptCNN and FlexFlow configure layers, and experts
place them (``search.expert``).

A layer is a forward op that computes by itself (products, convolutions, pooling, cells, embeddings,
softmax, and ops that join several layers), at all of its steps where it was unrolled ("lstm@3").
Elementwise ops, normalisation and ops that only move one tensor belong to the first layer that they
read; backward ops belong to the layer of their forward op.

``nouns.structure`` (``is_layer``) decides which op is a layer. How followers are cut (``spreads``)
mirrors ``lowering.partition``, which decides it for the simulated step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from ...ground.errors import InputError
from ...lowering.partition.geometry import Reading, followed_axis, stored
from ...lowering.partition.problem import SplitProblem
from ...nouns.cluster import Cluster
from ...nouns.graph import Graph
from ...nouns.semantics import (
    Interval,
    Region,
    Split,
    input_region,
    output_axes,
    parts_of,
    traits_of,
)
from ...nouns.strategy import Configuration, Strategy
from ...nouns.structure import (
    TensorOf,
    is_layer,
    layers_by_kind,
    layers_read,
    mates,
    op_splits,
    unrolled,
)
from ..space import workers

Degrees = tuple[tuple[str, int], ...]
"""Degrees by axis, above 1, in the order of the op's axes."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One decision: the forward ops of one configuration, their followers, and the backward ops of
    all of these.

    Ops are positions in the graph, ascending. ``axes`` are the axes along which all of ``ops`` can
    be split.
    """

    name: str
    ops: tuple[int, ...]
    followers: tuple[int, ...]
    backward: tuple[int, ...]
    axes: tuple[Split, ...]

    @property
    def members(self) -> tuple[int, ...]:
        """All ops of the layer: forward, then backward."""
        return (*sorted((*self.ops, *self.followers)), *self.backward)


@dataclass(frozen=True)
class Layers:
    """The layers of a graph on a cluster, in program order."""

    graph: Graph
    cluster: Cluster

    def __getstate__(self) -> dict[str, object]:
        """Only the graph and the cluster: the rest is computed anew."""
        return {"graph": self.graph, "cluster": self.cluster}

    @cached_property
    def dataflow(self) -> SplitProblem:
        """The tensors that the graph's ops read and make."""
        return SplitProblem(self.graph, self.cluster, Strategy())

    @cached_property
    def devices(self) -> tuple[int, ...]:
        """The devices over which layers are split."""
        return workers(self.cluster)

    @cached_property
    def layer_of(self) -> tuple[int, ...]:
        """The layer of every op, -1 for ops that are computed on demand; an update has the layer of
        its gradient.
        """
        graph, dataflow = self.graph, self.dataflow
        computed = [i for i in dataflow.order if i not in dataflow.on_demand]
        forward = tuple(i for i in computed if graph.ops[i].phase == "forward")
        layer_of = layers_by_kind(graph, forward, dataflow.touched, self._alone)
        mate = mates(graph)
        for i in sorted(set(computed) - set(forward)):
            if mate[i] >= 0:
                layer_of[i] = layer_of[mate[i]]
        return tuple(layer_of)

    @cached_property
    def adrift(self) -> tuple[int, ...]:
        """Backward and update ops of no layer that read nothing, so that there is no operand to
        follow.
        """
        dataflow = self.dataflow
        return tuple(
            i
            for i, layer in enumerate(self.layer_of)
            if layer < 0 and i not in dataflow.on_demand and not dataflow.read[i]
        )

    def _alone(self, i: int) -> bool:
        """Whether an op follows nothing, because its semantics are unknown."""
        return self.dataflow.readings[i].semantics is None

    def is_own(self, i: int) -> bool:
        """Whether an op is a layer, or part of a layer, by itself."""
        read = layers_read(self.dataflow.touched[i], self.layer_of)
        return self._alone(i) or is_layer(self.graph, i, read)

    @cached_property
    def leads(self) -> tuple[tuple[int, ...], ...]:
        """The operands that each op may follow, in order; for backward ops forward tensors come
        first.
        """
        dataflow, leads = self.dataflow, []
        for i, read in enumerate(dataflow.read):
            there = [
                j
                for j, tensor in enumerate(read)
                if tensor in dataflow.touched[i] and tensor[0] not in dataflow.on_demand
            ]
            if dataflow.goes_back[i]:
                there.sort(key=lambda j: self.graph.ops[read[j][0]].phase != "forward")
            leads.append(tuple(there))
        return tuple(leads)

    @cached_property
    def all(self) -> tuple[Layer, ...]:
        """The layers. Raises InputError where the graph has none."""
        count = 1 + max(self.layer_of, default=-1)
        if not count:
            raise InputError("graph: no forward op has a layer to configure")
        lead, follow, backward = ([list[int]() for _ in range(count)] for _ in range(3))
        for i, layer in enumerate(self.layer_of):
            if layer < 0:
                continue
            if self.graph.ops[i].phase != "forward":
                backward[layer].append(i)
            elif lead[layer] and not self.is_own(i):
                follow[layer].append(i)
            else:
                lead[layer].append(i)
        names = [unrolled(self.graph.ops[ops[0]].name) for ops in lead]
        return tuple(
            Layer(name, tuple(ops), tuple(after), tuple(back), self._axes(ops))
            for name, ops, after, back in zip(names, lead, follow, backward, strict=True)
        )

    def _axes(self, lead: Sequence[int]) -> tuple[Split, ...]:
        """The axes that SOAP splits: output axes that are of one size at all steps."""
        splits = [self._splits(i) for i in lead]
        return tuple(
            axis
            for axis in splits[0]
            if axis.kind != "reduction" and all(axis in those for those in splits)
        )

    def _splits(self, i: int) -> tuple[Split, ...]:
        if self.dataflow.readings[i].semantics is None or self.graph.ops[i].time is not None:
            return ()
        return op_splits(self.graph, i, self.dataflow.weights)

    def degrees(self, layer: Layer) -> tuple[Degrees, ...]:
        """The ways to cut a layer into a number of parts that divides the number of devices, fewest
        parts first.

        A degree divides its axis.
        """
        count, names = len(self.devices), [axis.axis for axis in layer.axes]
        choices = [
            [d for d in range(1, count + 1) if axis.size % d == 0 and count % d == 0]
            for axis in layer.axes
        ]
        ways = [degrees for degrees in product(*choices) if count % prod(degrees) == 0]
        # At equal numbers of parts, ways that cut the first axis (samples) most come first.
        ways.sort(key=lambda degrees: (prod(degrees), [-degree for degree in degrees]))
        return tuple(
            tuple((name, d) for name, d in zip(names, degrees, strict=True) if d > 1)
            for degrees in ways
        )

    def configuration(self, degrees: Degrees, first: int = 0) -> Configuration:
        """A layer's parts, each on a device, from the ``first``-th device on."""
        parts = prod(degree for _, degree in degrees)
        names = [self.cluster.devices[d].name for d in self.devices[first : first + parts]]
        return Configuration(dict(degrees), tuple(names))

    def configurations(self, layer: Layer) -> tuple[Configuration, ...]:
        """All configurations on aligned, contiguous devices: k parts begin at a multiple of k
        (FlexFlow's code of 2021).
        """
        return tuple(
            self.configuration(degrees, first)
            for degrees in self.degrees(layer)
            for first in range(0, len(self.devices), prod(degree for _, degree in degrees))
        )


# The layout of a layer's ops on devices under a configuration, and the resulting strategy. Part p
# of a layer runs on the p-th device. A ``Spread`` has, for each axis of an op, the number of parts
# that it is cut into (degree), and the number of devices from one part to the next along it
# (stride); a ``Cut`` has the same for each dimension of a tensor.

Spread = tuple[tuple[str, int, int], ...]
"""(axis, degree, stride), of degrees above 1."""
Cut = tuple[tuple[int, int], ...]
"""(degree, stride) by dimension."""
Boxes = NDArray[np.int64]
"""Start and stop by device and dimension; empty (0, 0) where a device holds nothing."""

PLAIN = Strategy()
_CACHED = 65_536


def spreads(
    layers: Layers, layer: Layer, degrees: Degrees
) -> tuple[dict[int, Spread], dict[TensorOf, Cut]]:
    """The spread of every op of a layer, and the cut of every tensor that it makes.

    A follower is cut like the tensor that it follows. A gradient from another layer is assumed to
    be cut like the layer's output of its shape; so is the output of a backward op without an
    operand to follow.
    """
    lead, first = set(layer.ops), _strides(degrees)
    spread_of: dict[int, Spread] = {}
    cuts: dict[TensorOf, Cut] = {}
    by_shape: dict[tuple[int, ...], Cut] = {}
    for i in layer.members:
        op, backward = layers.dataflow.readings[i], layers.graph.ops[i].phase != "forward"
        if i in lead:
            spread_of[i] = first if op.semantics is not None else ()
        else:
            spread_of[i] = _followed(layers, i, cuts, by_shape if backward else {})
            if backward and not spread_of[i] and op.made:
                spread_of[i] = made_so(op, by_shape.get(op.made[0], ()))
        for k in range(len(op.made)):
            cuts[i, k] = output_cut(op, k, spread_of[i])
            if not backward:
                by_shape[op.made[k]] = cuts[i, k]
    return spread_of, cuts


def _strides(degrees: Degrees) -> Spread:
    """Degrees with their strides: row-major over the axes, the last varying fastest."""
    inner = [prod(degree for _, degree in degrees[at + 1 :]) for at in range(len(degrees))]
    return tuple((*pair, stride) for pair, stride in zip(degrees, inner, strict=True))


def _followed(
    layers: Layers, i: int, cuts: Mapping[TensorOf, Cut], by_shape: Mapping[tuple[int, ...], Cut]
) -> Spread:
    op, read = layers.dataflow.readings[i], layers.dataflow.read[i]
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
    """The spread of an op that follows an operand with this cut."""
    strides_of: dict[str, tuple[int, int]] = {}
    for dimension, (degree, stride) in enumerate(cut):
        if degree > 1:
            intervals = parts_of(op.stored[operand][dimension], degree)
            axis = followed_axis(op, operand, dimension, intervals)
            if axis is not None:
                strides_of.setdefault(axis, (degree, stride))
    return tuple((axis, degree, stride) for axis, (degree, stride) in strides_of.items())


@lru_cache(_CACHED)
def made_so(op: Reading, cut: Cut) -> Spread:
    """The spread of an op whose first output has this cut."""
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
    """The cut of an output of an op with this spread."""
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
    regions = [tuple([ends[p // stride % degree] for ends, degree, stride in dims]) for p in parts]
    return _boxes(regions, devices)


@lru_cache(_CACHED)
def read_boxes(op: Reading, operand: int, spread: Spread, devices: int) -> Boxes | None:
    """The region of a stored operand that each device reads; None where a part reads
    nothing of it.
    """
    semantics, shape = op.semantics, op.stored[operand]
    seen = None if semantics is None else semantics.inputs[operand]
    parts = prod(degree for _, degree, _ in spread)
    if semantics is None or seen is None:
        return _boxes([tuple((0, extent) for extent in shape)] * parts, devices)
    columns = []
    for dimension, (_, names, _) in enumerate(semantics.reads[operand]):
        along = tuple([cut for cut in spread if cut[0] in names])
        columns.append(_intervals(op, operand, dimension, along, parts))
    regions: list[Region] = []
    for region in zip(*columns, strict=True) if columns else [()] * parts:
        if None in region:
            return None
        held = region if seen == shape and not op.batch else stored(op, operand, region)
        assert held is not None
        regions.append(held)
    return _boxes(regions, devices)


def _boxes(regions: Sequence[Region], devices: int) -> Boxes:
    boxes = np.zeros((devices, len(regions[0]), 2), np.int64)
    if regions[0]:
        boxes[: len(regions)] = regions
    return boxes


@lru_cache(_CACHED)
def _intervals(
    op: Reading, operand: int, dimension: int, spread: Spread, parts: int
) -> tuple[Interval | None, ...]:
    """The interval that each part reads along one dimension, by the axes that index it; None where
    a part reads nothing.
    """
    assert op.semantics is not None
    sizes = {axis.name: axis.size for axis in op.semantics.axes}
    ends = [
        (axis, parts_of(sizes[axis], degree), degree, stride) for axis, degree, stride in spread
    ]
    known: dict[tuple[int, ...], Interval | None] = {}
    read = []
    for part in range(parts):
        place = tuple([part // stride % degree for _, _, degree, stride in ends])
        if place not in known:
            pairs = zip(ends, place, strict=True)
            box = {axis: intervals[at] for (axis, intervals, _, _), at in pairs}
            region = input_region(op.semantics, operand, box)
            known[place] = None if region is None else region[dimension]
        read.append(known[place])
    return tuple(read)


def first_box(op: Reading, spread: Spread) -> tuple[tuple[str, Interval], ...]:
    """The box of the part on the first device, axes in the order of the op."""
    if op.semantics is None:
        return ()
    degrees = {axis: degree for axis, degree, _ in spread}
    axes = [axis for axis in op.semantics.axes if axis.name in degrees]
    return tuple([(axis.name, parts_of(axis.size, degrees[axis.name])[0]) for axis in axes])


def strategy_of(
    layers: Layers, configurations: Sequence[Configuration], like: Strategy = PLAIN
) -> Strategy:
    """The strategy of a configuration for each layer; order, synchronisation and collectives come
    from ``like``.
    """
    alone = Configuration(devices=(layers.cluster.devices[layers.devices[0]].name,))
    partition = {layers.graph.ops[i].name: alone for i in layers.adrift}
    for layer, configuration in zip(layers.all, configurations, strict=True):
        partition |= entries(layers, layer, configuration)
    return Strategy(
        order=like.order, partition=partition, sync=like.sync, collectives=like.collectives
    )


def entries(layers: Layers, layer: Layer, configuration: Configuration) -> dict[str, Configuration]:
    """The entries of a strategy's partition for the ops of a layer with this configuration.

    Backward ops of products, convolutions and embeddings would follow their incoming gradient, as
    the next layer cuts it, and the gradient of the loss follows nothing; here these ops are cut
    like their own layer. All other ops follow by themselves.
    """
    graph, devices = layers.graph, configuration.devices
    configured = {graph.ops[i].name: configuration for i in layer.ops}
    led = [i for i in layer.backward if _is_led(layers, i)]
    if led:
        split = [(axis.axis, configuration.split.get(axis.axis, 1)) for axis in layer.axes]
        degrees = tuple((axis, degree) for axis, degree in split if degree > 1)
        spread_of, _ = spreads(layers, layer, degrees)
        for i in led:
            entry = _entry(layers, i, spread_of[i], devices)
            if entry is not None:
                configured[graph.ops[i].name] = entry
    for i in layer.backward:
        if not layers.dataflow.read[i]:  # it has nothing to follow
            configured.setdefault(graph.ops[i].name, Configuration(devices=devices[:1]))
    return configured


def changes(
    layers: Layers, layer: Layer, configuration: Configuration
) -> dict[str, Configuration | None]:
    """The changes that a session needs: ``entries``, and None for backward ops that the new
    configuration does not name.
    """
    unnamed: dict[str, Configuration | None] = dict.fromkeys(
        layers.graph.ops[i].name for i in layer.backward
    )
    return unnamed | entries(layers, layer, configuration)


def _is_led(layers: Layers, i: int) -> bool:
    """Whether a backward op needs an entry of its own."""
    op, dataflow = layers.graph.ops[i], layers.dataflow
    if traits_of(op.kind).weighted:
        return True
    shapes = [
        dataflow.readings[i].stored[operand]
        for operand, t in enumerate(dataflow.read[i])
        if t in dataflow.touched[i]
    ]
    return dataflow.goes_back[i] and bool(op.outputs) and op.outputs[0].shape not in shapes


def _entry(layers: Layers, i: int, spread: Spread, devices: Sequence[str]) -> Configuration | None:
    """The configuration of an op with this spread; None where there is none: too few parts, or
    uneven parts.
    """
    semantics = layers.dataflow.readings[i].semantics
    degrees: Mapping[str, int] = {axis: degree for axis, degree, _ in spread}
    if semantics is None or prod(degrees.values()) != len(devices):
        return None
    places = [0]
    for axis in semantics.axes:
        degree, stride = next(((n, s) for name, n, s in spread if name == axis.name), (1, 0))
        if axis.size % degree:
            return None
        places = [place + at * stride for place in places for at in range(degree)]
    return Configuration(dict(degrees), tuple(devices[place] for place in places))
