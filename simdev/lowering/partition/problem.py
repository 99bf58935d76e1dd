"""Which parts every op has and where they run: those configured, those placed, and all others,
which follow.

Leaves, and what is computed from them alone, follow nothing: they are there where they are read
(demand.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from ...nouns.cluster import Cluster
from ...nouns.graph import Graph
from ...nouns.semantics import op_class, traits_of
from ...nouns.strategy import NOWHERE, Resolved, Strategy, placed, resolve_partition
from ...nouns.structure import TensorOf, Weights, order_of, updated, weights_of
from .batch import followed
from .geometry import Part, Reading, followed_axis, part, parts, reading
from .layout import Grid, Place


@dataclass(frozen=True, slots=True)
class Placed:
    """One part of an op on its device.

    ``addend`` is which partial result of its operands it goes on with.
    """

    part: Part
    device: int
    addend: int | None = None


@dataclass(frozen=True)
class SplitProblem:
    """A graph on a cluster and a strategy, with what follows from them for the split of each op."""

    graph: Graph
    cluster: Cluster
    strategy: Strategy
    numbers: Sequence[int] = ()

    @cached_property
    def readings(self) -> tuple[Reading, ...]:
        """How each op reads and makes, samples followed from the inputs."""
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
        """Which tensors are weights and gradients of weights."""
        return weights_of(self.graph)

    @cached_property
    def configured(self) -> dict[int, Resolved]:
        """Configurations by op. Raises InputError."""
        return resolve_partition(self.graph, self.cluster, self.strategy.partition)

    @cached_property
    def placed(self) -> list[int]:
        """Devices by op, NOWHERE where nothing is said. Raises InputError."""
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
        """The tensors that each op reads more than the shape of: a free op follows one of these."""
        return tuple(
            tuple(tensor for operand, tensor in enumerate(tensors) if not op.shape_only(operand))
            for op, tensors in zip(self.readings, self.read, strict=True)
        )

    @cached_property
    def goes_back(self) -> tuple[bool, ...]:
        """Whether an op is the backward of a layer without weights: those with weights follow the
        gradient.
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
        """Ops that are there where they are read: free leaves, and free ops that read nothing else.

        Of the latter those that only move data, and those that do not depend on an ``input``:
        computing them again elsewhere costs little, and no optimizer would send their results.
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
    """Parts that follow a tensor: cut as it is, where there is an axis along which they read the
    piece of it that is theirs.
    """
    axes = followed_axes(op, operand, grid)
    return [Placed(each, grid.device(place)) for each, place in _parts_at(op, grid, axes)]


def partial_parts(op: Reading, operand: int, grid: Grid) -> list[Placed] | None:
    """Parts that follow a tensor in partial results, one for each of these; None where the op does
    not follow every cut.
    """
    axes = followed_axes(op, operand, grid)
    # A part goes on with what stands at one place of the grid: it has to follow every cut.
    if len(axes) < sum(len(intervals) > 1 for intervals in grid.dims):
        return None
    return [
        Placed(each, copies[0].device, addend)
        for each, place in _parts_at(op, grid, axes)
        for addend, copies in enumerate(grid.cells[place])
    ]


def alike(grid: Grid, other: Grid) -> bool:
    """Whether two tensors lie in partial sums over the same parts, dimensions that are not cut
    aside.
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
    """Axis -> the dimension of the operand that it follows."""
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
    # Not evenly: a follower takes the cuts of what it follows, though its axis be longer.
    shards: Sequence[Part] = parts(op, degrees, False) if degrees else (part(op, ()),)
    points = product(*(range(len(grid.dims[d])) for d in cut))
    for each, point in zip(shards, points, strict=True):
        place = dict(zip(cut, point, strict=True))
        yield each, tuple(place.get(d, 0) for d in range(len(grid.dims)))
