"""Which parts every op has and where they run: those configured, those placed, and all others,
which follow.

Leaves, and what is computed from them alone, are no parts of a plan: they are there where they are
read (demand.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ...cluster import Cluster
from ...errors import InputError
from ...graph import Graph
from ...semantics import op_class, traits_of
from ...strategy import NOWHERE, Resolved, Strategy, placed, resolve_partition
from ...structure import TensorOf, Weights, order_of, updated, weights_of
from .geometry import Part, Reading, followed_axis, part, parts, reading
from .layout import Grid


@dataclass(frozen=True, slots=True)
class Placed:
    """One part of an op on its device.

    ``addend`` is which partial result of its operands it goes on with.
    """

    part: Part
    device: int
    addend: int | None = None


@dataclass(frozen=True)
class Question:
    """A graph on a cluster and a strategy, with what is asked of it again and again."""

    graph: Graph
    cluster: Cluster
    strategy: Strategy

    @cached_property
    def readings(self) -> tuple[Reading, ...]:
        """How each op reads and makes."""
        return tuple(reading(self.graph, i) for i in range(len(self.graph.ops)))

    @cached_property
    def read(self) -> tuple[tuple[TensorOf, ...], ...]:
        """The tensors that each op reads, in the order of its inputs."""
        return tuple(tuple(self.graph.resolve(text) for text in op.inputs) for op in self.graph.ops)

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
        return tuple(
            i not in self.configured and self.placed[i] == NOWHERE
            for i in range(len(self.graph.ops))
        )

    @cached_property
    def order(self) -> list[int]:
        """The ops, producers first."""
        return order_of(self.graph, "branch")

    @cached_property
    def touched(self) -> tuple[tuple[TensorOf, ...], ...]:
        """The tensors of which each op needs more than the shape."""
        found = []
        for op, tensors in zip(self.readings, self.read, strict=True):
            if op.semantics is not None:
                pairs = zip(tensors, op.semantics.description.inputs, strict=True)
                tensors = tuple(tensor for tensor, access in pairs if access.read)
            found.append(tensors)
        return tuple(found)

    @cached_property
    def goes_back(self) -> tuple[bool, ...]:
        """Whether an op is the backward of a layer without weights: those with weights follow the
        gradient.
        """
        found = []
        for i, op in enumerate(self.graph.ops):
            own = [(i, k) in self.weights.gradients for k in range(len(op.outputs))]
            found.append(
                op.phase == "backward" and not traits_of(op.kind).weighted and not all(own)
            )
        return tuple(found)

    @cached_property
    def on_demand(self) -> frozenset[int]:
        """Ops that are there where they are read: free leaves, and free ops that read nothing else.

        Of the latter those that only move data, and those that do not depend on an ``input``:
        computing them again elsewhere costs little, and no optimizer would send their results.
        """
        found: set[int] = set()
        of_inputs: set[int] = set()
        for i in self.order:
            op = self.graph.ops[i]
            producers = {producer for producer, _ in self.touched[i]}
            if not self.free[i] or not producers <= found or op.phase == "update":
                continue
            traits = traits_of(op.kind)
            batch = traits.leaf == "input" or not producers.isdisjoint(of_inputs)
            cheap = (
                op_class(op.kind) == "data_movement" or traits.drawn or (producers and not batch)
            )
            if traits.leaf or (cheap and self.readings[i].semantics is not None):
                found.add(i)
                of_inputs |= {i} if batch else set()
        return frozenset(found)

    @cached_property
    def updates(self) -> dict[int, tuple[int, int]]:
        """Free updates of a parameter that others read on demand: op -> (operand, parameter's
        op).
        """
        computes = (i for i, op in enumerate(self.graph.ops) if op.phase != "update")
        shared = self.on_demand.intersection(
            producer for i in computes for producer, _ in self.read[i]
        )
        first: dict[int, tuple[int, int]] = {}
        for update, parameters in updated(self.graph).items():
            for operand, (producer, _) in enumerate(self.read[update] if self.free[update] else ()):
                if producer in parameters and producer in shared:
                    first.setdefault(update, (operand, producer))
        return first


def configured_parts(op: Reading, resolved: Resolved) -> list[Placed]:
    """The parts of a configuration."""
    found = parts(op, tuple(resolved.degrees.items()))
    return [Placed(one, device) for one, device in zip(found, resolved.devices, strict=True)]


def followed_parts(op: Reading, operand: int, grid: Grid) -> list[Placed]:
    """Parts that follow a tensor: cut as it is, where there is an axis along which they read their
    own part.
    """
    axes = followed_axes(op, operand, grid)
    found = []
    for one, place in zip(_parts(op, grid, axes), _places(op, grid, axes), strict=True):
        found.append(Placed(one, grid.device(place)))
    return found


def partial_parts(op: Reading, operand: int, grid: Grid) -> list[Placed] | None:
    """The same with a part for each partial result; None where the op does not follow every cut."""
    axes = followed_axes(op, operand, grid)
    if len(axes) < sum(len(intervals) > 1 for intervals in grid.dims):
        return None
    found = []
    for one, place in zip(_parts(op, grid, axes), _places(op, grid, axes), strict=True):
        found += [
            Placed(one, copies[0].device, addend) for addend, copies in enumerate(grid.cells[place])
        ]
    return found


def alike(one: Grid, other: Grid) -> bool:
    """Whether two tensors lie in partial sums over the same parts, dimensions that are not cut
    aside.
    """
    return {one.reducer, other.reducer} == {"sum"} and _holders(one) == _holders(other)


def _holders(grid: Grid) -> dict[tuple[int, ...], list[int]]:
    """The devices of the partial results, by the place along the dimensions that are cut."""
    cut = [d for d, intervals in enumerate(grid.dims) if len(intervals) > 1]
    return {
        tuple(place[d] for d in cut): [copies[0].device for copies in cell]
        for place, cell in grid.cells.items()
    }


def followed_axes(op: Reading, operand: int, grid: Grid) -> dict[str, int]:
    """Axis -> the dimension of the operand that it follows."""
    found: dict[str, int] = {}
    for dimension, intervals in enumerate(grid.dims):
        if len(intervals) > 1:
            axis = followed_axis(op, operand, dimension, intervals)
            if axis is not None and axis not in found:
                found[axis] = dimension
    return found


def _parts(op: Reading, grid: Grid, axes: Mapping[str, int]) -> Sequence[Part]:
    degrees = tuple((axis, len(grid.dims[dimension])) for axis, dimension in axes.items())
    return parts(op, degrees, False) if degrees else (part(op, ()),)


def _places(op: Reading, grid: Grid, axes: Mapping[str, int]) -> Iterator[tuple[int, ...]]:
    """The place in the grid of each part, the parts in row-major order of the op's axes."""
    cut = (
        [axis.name for axis in op.semantics.axes if axis.name in axes]
        if op.semantics is not None
        else []
    )
    places = [[0] * len(grid.dims)]
    for axis in cut:
        dimension = axes[axis]
        places = [
            [*place[:dimension], at, *place[dimension + 1 :]]
            for place in places
            for at in range(len(grid.dims[dimension]))
        ]
    yield from map(tuple, places)


def require(problems: Sequence[str]) -> None:
    """Raise InputError where there are problems."""
    if problems:
        raise InputError(problems)
