"""Tofu's coarsening (EuroSys 2019, section 5.1): units of ops that choose an axis, and tensors that
choose a dimension. ``plan.py`` uses it.

Runs of elementwise ops (optimizers included) cut all their tensors in the same way, so these
tensors are one; the steps of an unrolled op are one op. A forward op, its backward ops and the
gradients choose separately: the paper tries all combinations within a group, here elimination
solves the whole graph. Which ops are elementwise, or leaves, is a trait of their kind
(``nouns.semantics``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import prod

from ...lowering.partition.geometry import Reading
from ...lowering.partition.problem import SplitProblem
from ...nouns.cluster import Cluster
from ...nouns.graph import Graph
from ...nouns.semantics import traits_of
from ...nouns.strategy import Strategy
from ...nouns.structure import Groups, TensorOf, first_made, unrolled, updates_of

_Wires = tuple[tuple[int, int], ...]
_Alike = tuple[str, Reading, _Wires, _Wires]


@dataclass(frozen=True, slots=True)
class Unit:
    """Ops that choose one axis together.

    ``inputs`` are (operand, tensor), ``outputs`` (output, tensor).
    """

    ops: tuple[int, ...]
    reading: Reading
    inputs: tuple[tuple[int, int], ...]
    outputs: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Coarse:
    """A coarsened graph. Tensors are numbered; each has a shape and bytes per element."""

    graph: Graph
    cluster: Cluster

    @cached_property
    def dataflow(self) -> SplitProblem:
        """The tensors that the graph's ops read and make."""
        return SplitProblem(self.graph, self.cluster, Strategy())

    @cached_property
    def free(self) -> frozenset[int]:
        """Ops that are computed wherever they are read (zeros, masks, casts of weights), without
        leaves.
        """
        return frozenset(
            i for i in self.dataflow.on_demand if not traits_of(self.graph.ops[i].kind).leaf
        )

    @cached_property
    def tensor(self) -> dict[TensorOf, int]:
        """The number of every tensor that is cut. Tensors that are always cut in the same way share
        a number: those of an elementwise op, or of two steps of an unrolled op.
        """
        place: dict[TensorOf, int] = {}
        for i, op in enumerate(self.graph.ops):
            for k in range(0 if i in self.free else len(op.outputs)):
                place[i, k] = len(place)
        groups, first = Groups(len(place)), dict[object, int]()
        for i in self.folds:
            head, *others = (place[tensor] for tensor in self.of_op(i))
            groups.unite((head, other) for other in others)
        for (i, k), at in place.items():
            op = self.graph.ops[i]
            if "@" in op.name:
                key = unrolled(op.name), k, op.outputs[k].shape
                groups.unite([(first.setdefault(key, at), at)])
        roots = groups.roots()
        number = {root: at for at, root in enumerate(dict.fromkeys(roots))}
        return {tensor: number[root] for tensor, root in zip(place, roots, strict=True)}

    def of_op(self, i: int) -> list[TensorOf]:
        """The cut tensors that an op touches: first the tensors that it reads."""
        touched = self.dataflow.touched[i]
        read = [t for t in self.dataflow.read[i] if t in touched and t[0] not in self.free]
        made = ((i, k) for k in range(len(self.graph.ops[i].outputs)))
        return list(dict.fromkeys([*read, *made]))

    @cached_property
    def folds(self) -> tuple[int, ...]:
        """The elementwise ops whose tensors are all of one shape and are read as they are
        stored.
        """
        folds = []
        for i, op in enumerate(self.graph.ops):
            reading = self.dataflow.readings[i]
            if not traits_of(op.kind).pointwise or i in self.free or reading.semantics is None:
                continue
            shapes = {self.graph.ops[p].outputs[k].shape for p, k in self.of_op(i)}
            if len(shapes) == 1 and set(reading.semantics.inputs) <= shapes:
                folds.append(i)
        return tuple(folds)

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of each tensor."""
        shapes: dict[int, tuple[int, ...]] = {}
        for (i, k), number in self.tensor.items():
            shapes.setdefault(number, self.graph.ops[i].outputs[k].shape or ())
        return tuple(shapes[number] for number in range(len(shapes)))

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """The ops that choose an axis, as units of ops that choose together; leaves and folded ops
        choose nothing.
        """
        folded, units = set(self.folds), dict[_Alike, list[int]]()
        for i, op in enumerate(self.graph.ops):
            if traits_of(op.kind).leaf or i in self.free or i in folded:
                continue
            reading = self.dataflow.readings[i]
            touched = self.tensor.keys() & self.dataflow.touched[i]
            inputs = tuple(
                (operand, self.tensor[tensor])
                for operand, tensor in enumerate(self.dataflow.read[i])
                if tensor in touched
            )
            outputs = tuple((k, self.tensor[i, k]) for k in range(len(op.outputs)))
            name = unrolled(op.name)
            units.setdefault((name, reading, inputs, outputs), []).append(i)
        return tuple(Unit(tuple(ops), *key[1:]) for key, ops in units.items())

    def element_bytes(self, i: int, k: int) -> float:
        """Bytes of an element of an output."""
        tensor = self.graph.ops[i].outputs[k]
        return tensor.bytes / max(prod(tensor.shape or ()), 1)

    def share(self, i: int, k: int) -> float:
        """1, or 1 / n for one of n gradients of a weight that are added up: they are added up where
        they are made, and only the sum is sent.
        """
        return 1.0 / self._addends.get((i, k), 1)

    @cached_property
    def _addends(self) -> dict[TensorOf, int]:
        """The number of gradients in the sum that each gradient belongs to."""
        weights, addends = self.dataflow.weights, dict[TensorOf, int]()
        for update in updates_of(self.graph, weights):
            made = (first_made(self.graph, weights, tensor) for tensor in update.gradients)
            tensors = list(chain.from_iterable(made))
            addends.update(dict.fromkeys(tensors, len(tensors)))
        return addends
