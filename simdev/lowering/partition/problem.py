"""The parts of every op and their devices: ops are configured or placed, and all others follow an
operand.

Leaves, and ops computed from leaves alone, follow no operand: they are copied to the devices that
read them (``sharding.Demand``). ``Sharding`` computes the parts of one op after another; OptCNN's
and Tofu's searches read the ``SplitProblem``. To follow samples through another view, its rule must
also be in ``nouns.semantics`` (``samples_seen``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise, product

from ...nouns.cluster import Cluster
from ...nouns.graph import Graph
from ...nouns.semantics import (
    Axis,
    BatchView,
    Index,
    Samples,
    Semantics,
    op_class,
    parted_strides,
    redescribed,
    row_strides,
    samples_seen,
    traits_of,
)
from ...nouns.semantics.description import Entry, axes_of
from ...nouns.strategy import NOWHERE, Resolved, Strategy, placed, resolve_partition
from ...nouns.structure import TensorOf, Weights, order_of, updated, weights_of
from .geometry import Part, Reading, followed_axis, part, parts, reading, with_batch
from .layout import Grid, Place

# The places of a step's samples in each of its tensors, followed from the inputs through merged
# dimensions and slices. Inputs have samples along their first dimension. An op passes them on along
# one of its axes: the axis that indexes the samples of its first operand with samples.

_CACHED = 65_536
Held = tuple[Samples, tuple[int, ...]]
"""Samples of a stored tensor, and the order of its dimensions in memory ((): row by row)."""


def followed(
    order: Sequence[int],
    read: Sequence[Sequence[TensorOf]],
    readings: Sequence[Reading],
    leaves: Sequence[int],
) -> tuple[Reading, ...]:
    """The readings of all ops, with samples followed from these leaves; ``order`` has producers
    first.
    """
    samples = dict[TensorOf, Held]()
    layouts, batched = _layouts(read, readings), list(readings)
    for i in leaves:
        shape = readings[i].made[0] if readings[i].made else ()
        if shape[:1] > (1,):
            samples[i, 0] = Samples(0, 1, shape[0], 1), ()
    for i in order:
        held = tuple([samples.get(tensor) for tensor in read[i]])
        if not any(held):
            continue
        batched[i], made = _followed(readings[i], held)
        for k, at in enumerate(made):
            if at is not None:
                samples[i, k] = at, layouts.get((i, k), ())
    return tuple(batched)


def _layouts(
    read: Sequence[Sequence[TensorOf]], readings: Sequence[Reading]
) -> Mapping[TensorOf, tuple[int, ...]]:
    """The memory order of the dimensions of tensors that are not stored row by row. It follows from
    the strides of a reader that sees the tensor's shape, or its dimensions merged.
    """
    layouts = dict[TensorOf, tuple[int, ...]]()
    for tensors, op in zip(read, readings, strict=True):
        seen = op.semantics.inputs if op.semantics is not None else ()
        for tensor, shape, stored, given in zip(tensors, seen, op.stored, op.strides, strict=False):
            strides = None if given is None else parted_strides(shape, given, stored)
            if strides is not None:
                order = tuple(sorted(range(len(stored)), key=lambda d: (-strides[d], d)))
                dense = row_strides(tuple(stored[d] for d in order))
                exchanged = any(after < before for before, after in pairwise(order))
                if exchanged and dense == tuple(strides[d] for d in order):
                    layouts[tensor] = order
    return layouts


@lru_cache(_CACHED)
def _followed(
    op: Reading, held: tuple[Held | None, ...]
) -> tuple[Reading, tuple[Samples | None, ...]]:
    """The reading of an op whose operands have samples ``held``, and the samples of its outputs."""
    if op.semantics is None:
        return op, (None,) * len(op.made)
    seen = tuple(
        None
        if of is None
        else samples_seen(of[0], op.semantics.inputs[i], op.stored[i], op.strides[i], of[1])
        for i, of in enumerate(held)
    )
    semantics, axis, at = _along(op.semantics, seen)
    inputs = semantics.description.inputs
    views = tuple(
        None if of is None else _view(access.index, axis, at, seen[i], of)
        for i, (access, of) in enumerate(zip(inputs, held, strict=True))
    )
    outputs = semantics.description.outputs
    made = tuple(None if at is None else _placed(output.index, axis, at) for output in outputs)
    return with_batch(op, semantics, views), made


def _along(
    semantics: Semantics, seen: Sequence[Samples | None]
) -> tuple[Semantics, str, Samples | None]:
    """The axis of an op along which its operands have samples, and how they are merged there: by
    the first operand whose samples are also in the first output, else by the first with samples.
    None where parts along the axis are not parts of the batch.

    A part of an op that reads slices of the batch side by side (a concatenation) reads its part of
    each slice.
    """
    description = semantics.description
    first: tuple[Axis, Samples] | None = None
    made = {name for dims in semantics.makes[:1] for _, names, _ in dims for name in names}
    for access, at in zip(description.inputs, seen, strict=True):
        axis = None if at is None else _axis_of(access.index[at.dimension])
        if axis is None or at is None:
            continue
        first = first or (axis, at)
        if axis.name in made:
            first = axis, at
            break
    if first is None:
        return semantics, "", None
    axis, at = first
    indices = [access.index for access in description.inputs]
    indices += [output.index for output in description.outputs]
    if all(entry == axis for index in indices for entry in _entries(index, axis)):
        return semantics, axis.name, at
    pairs = zip(description.inputs, seen, strict=True)
    reads = [replace(access, index=_part(access.index, axis, other)) for access, other in pairs]
    indices = [read.index for read in reads]
    parts = all(
        _axis_of(e) is None or e == axis for index in indices for e in _entries(index, axis)
    )
    if not parts or at.outer > 1 or axis.size % at.inner:
        return semantics, "", None
    at = at._replace(number=axis.size // at.inner)
    return redescribed(semantics, replace(description, inputs=tuple(reads))), axis.name, at


def _entries(index: Sequence[Entry], axis: Axis) -> list[Axis | Index]:
    """The entries of an index in which an axis occurs."""
    expressions = (entry for entry in index if isinstance(entry, Axis | Index))
    return [entry for entry in expressions if axis in axes_of(entry)]


def _axis_of(entry: Entry) -> Axis | None:
    """The axis that indexes a dimension, possibly shifted; None where there is none."""
    if isinstance(entry, Axis | Index) and [factor for _, factor in entry.terms] == [1]:
        part = entry.terms[0][0]
        return part if isinstance(part, Axis) else None
    return None


def _part(index: tuple[Entry, ...], axis: Axis, at: Samples | None) -> tuple[Entry, ...]:
    """The index of a slice of a batch: where the axis is shifted, each part of the axis reads its
    part of the slice.
    """
    if at is None or at.outer > 1 or _axis_of(index[at.dimension]) != axis:
        return index
    here = axis * (at.number * at.inner) // axis.size
    return (*index[: at.dimension], here, *index[at.dimension + 1 :])


def _placed(index: Sequence[Entry], axis: str, at: Samples) -> Samples | None:
    """The samples along an axis in a tensor of this index; None where it has none."""
    for d, entry in enumerate(index):
        if isinstance(entry, Axis) and entry.name == axis:
            return at._replace(dimension=d)
    return None


def _view(
    index: Sequence[Entry], axis: str, at: Samples | None, seen: Samples | None, held: Held
) -> BatchView | None:
    """The view through which an op sees an operand; None where samples are outermost in both."""
    here = None if at is None else _placed(index, axis, at)
    if here is None and at is not None and seen is not None and seen.outer == 1:
        here = seen
    sliced = here is not None and here == seen and here.number < held[0].number
    if not (sliced or held[1] or held[0].outer > 1 or (here is not None and here.outer > 1)):
        return None
    return BatchView(here, held[0], sliced, held[1])


@dataclass(frozen=True, slots=True)
class Placed:
    """A part of an op on its device.

    ``addend`` is the number of the partial result of its operands that it computes with (None: it
    reads values).
    """

    part: Part
    device: int
    addend: int | None = None


@dataclass(frozen=True)
class SplitProblem:
    """A graph on a cluster with a strategy, and the facts about each op's split that follow."""

    graph: Graph
    cluster: Cluster
    strategy: Strategy
    numbers: Sequence[int] = ()

    @cached_property
    def readings(self) -> tuple[Reading, ...]:
        """The reading of each op, with samples followed from the inputs."""
        ops = self.graph.ops
        inputs = [i for i, op in enumerate(ops) if traits_of(op.kind).leaf == "input"]
        plain = [reading(self.graph, i) for i in range(len(ops))]
        return followed(self.order, self.read, plain, inputs)

    @cached_property
    def read(self) -> tuple[tuple[TensorOf, ...], ...]:
        """The tensors that each op reads, in the order of its inputs."""
        return tuple(tuple(map(self.graph.resolve, op.inputs)) for op in self.graph.ops)

    @cached_property
    def weights(self) -> Weights:
        """The tensors that are weights, and those that are gradients of weights."""
        return weights_of(self.graph)

    @cached_property
    def configured(self) -> dict[int, Resolved]:
        """Configurations by op. Raises InputError."""
        return resolve_partition(self.graph, self.cluster, self.strategy.partition)

    @cached_property
    def placed(self) -> list[int]:
        """Devices by op, NOWHERE where the strategy does not place the op. Raises InputError."""
        return placed(self.graph, self.cluster, self.strategy.placement)

    @cached_property
    def free(self) -> tuple[bool, ...]:
        """Whether an op is neither configured nor placed."""
        devices = enumerate(self.placed)
        return tuple(device == NOWHERE and i not in self.configured for i, device in devices)

    @cached_property
    def order(self) -> list[int]:
        """The ops, producers first, branch by branch."""
        return order_of(self.graph, "branch")

    @cached_property
    def touched(self) -> tuple[tuple[TensorOf, ...], ...]:
        """The tensors of which each op reads more than the shape; a free op follows one of them."""
        return tuple(
            tuple(tensor for operand, tensor in enumerate(tensors) if not op.shape_only(operand))
            for op, tensors in zip(self.readings, self.read, strict=True)
        )

    @cached_property
    def goes_back(self) -> tuple[bool, ...]:
        """Whether each op is the backward of a layer without weights; the backward of a layer with
        weights follows the gradient.
        """
        gradients = self.weights.gradients
        return tuple(
            op.phase == "backward"
            and not traits_of(op.kind).weighted
            and not all((i, k) in gradients for k in range(len(op.outputs)))
            for i, op in enumerate(self.graph.ops)
        )

    @cached_property
    def on_demand(self) -> frozenset[int]:
        """Ops on demand, which run on every device that reads them: free leaves, and free ops that
        read only ops on demand.

        An op that reads only these must merely move data, or be independent of every ``input``.
        Computing it again on another device costs little; no optimizer would send its result.
        """
        on_demand, of_inputs = set[int](), set[int]()
        for i in self.order:
            op = self.graph.ops[i]
            producers = {producer for producer, _ in self.touched[i]}
            if not self.free[i] or not producers <= on_demand or op.phase == "update":
                continue
            traits = traits_of(op.kind)
            batch = traits.leaf == "input" or not producers.isdisjoint(of_inputs)
            moves = op_class(op.kind) == "data_movement" or traits.drawn
            cheap = moves or (producers and not batch)
            if traits.leaf or (cheap and self.readings[i].semantics is not None):
                on_demand.add(i)
                of_inputs |= {i} if batch else set()
        return frozenset(on_demand)

    @cached_property
    def updates(self) -> dict[int, tuple[int, int]]:
        """Free updates of a parameter that others read on demand: op -> (operand, parameter's
        op).
        """
        computes = (i for i, op in enumerate(self.graph.ops) if op.phase != "update")
        read = {producer for i in computes for producer, _ in self.read[i]}
        shared = self.on_demand & read
        first: dict[int, tuple[int, int]] = {}
        for update, parameters in updated(self.graph).items():
            for operand, (producer, _) in enumerate(self.read[update] if self.free[update] else ()):
                if producer in parameters and producer in shared:
                    first.setdefault(update, (operand, producer))
        return first


def configured_parts(op: Reading, resolved: Resolved) -> list[Placed]:
    """The parts of a configuration."""
    return list(map(Placed, parts(op, tuple(resolved.degrees.items())), resolved.devices))


def followed_parts(op: Reading, operand: int, grid: Grid) -> list[Placed]:
    """The parts of an op that follows a tensor: cut like the tensor along each dimension for which
    there is an axis along which parts read their own piece.
    """
    axes = followed_axes(op, operand, grid)
    return [Placed(each, grid.device(place)) for each, place in _parts_at(op, grid, axes)]


def partial_parts(op: Reading, operand: int, grid: Grid) -> list[Placed] | None:
    """The parts of an op that follows a tensor in partial results, one for each partial result;
    None where the op does not follow every cut.
    """
    axes = followed_axes(op, operand, grid)
    # A part computes with the partial results at one place of the grid: it must follow every cut.
    if len(axes) < sum(len(intervals) > 1 for intervals in grid.dims):
        return None
    return [
        Placed(each, copies[0].device, addend)
        for each, place in _parts_at(op, grid, axes)
        for addend, copies in enumerate(grid.cells[place])
    ]


def alike(grid: Grid, other: Grid) -> bool:
    """Whether two tensors are in partial sums with equal places and devices; dimensions that are
    not cut do not count.
    """
    return {grid.reducer, other.reducer} == {"sum"} and _holders(grid) == _holders(other)


def _holders(grid: Grid) -> dict[Place, list[int]]:
    """The devices of the partial results, by the place along the dimensions that are cut."""
    cut = [d for d, intervals in enumerate(grid.dims) if len(intervals) > 1]
    return {
        tuple(place[d] for d in cut): [copies[0].device for copies in cell]
        for place, cell in grid.cells.items()
    }


def followed_axes(op: Reading, operand: int, grid: Grid) -> dict[str, int]:
    """By axis, the dimension of the operand that the axis follows."""
    dimension_of: dict[str, int] = {}
    for dimension, intervals in enumerate(grid.dims):
        if len(intervals) > 1:
            axis = followed_axis(op, operand, dimension, intervals)
            if axis is not None:
                dimension_of.setdefault(axis, dimension)
    return dimension_of


def _parts_at(
    op: Reading, grid: Grid, dimension_of: Mapping[str, int]
) -> Iterator[tuple[Part, Place]]:
    """The parts of an op cut along these axes, in row-major order of them, each with its place in
    the grid.
    """
    axes = op.semantics.axes if op.semantics is not None else ()
    cut = [dimension_of[axis.name] for axis in axes if axis.name in dimension_of]
    degrees = tuple((axis, len(grid.dims[d])) for axis, d in dimension_of.items())
    # Cuts may be uneven: a follower takes the cuts of its operand, even where its axis is longer.
    shards: Sequence[Part] = parts(op, degrees, False) if degrees else (part(op, ()),)
    points = product(*(range(len(grid.dims[d])) for d in cut))
    for each, point in zip(shards, points, strict=True):
        place = dict(zip(cut, point, strict=True))
        yield each, tuple(place.get(d, 0) for d in range(len(grid.dims)))
