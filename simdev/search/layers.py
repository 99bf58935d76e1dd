"""The layers of a step: what OptCNN and FlexFlow configure, and what follows each of them.

A layer is a forward op that computes by itself (products, convolutions, pooling, cells, embeddings,
softmax, and what joins several layers), at all of its steps where it was unrolled ("lstm@3").
Elementwise ops, normalisation and ops that only move one tensor belong to the layer that they read
first; backward ops to that of their forward op.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

from ..ground.errors import InputError
from ..lowering.partition.problem import SplitProblem
from ..nouns.cluster import Cluster
from ..nouns.graph import Graph
from ..nouns.semantics import Split
from ..nouns.strategy import Configuration, Strategy
from ..nouns.structure import is_layer, layers_by_kind, layers_read, mates, op_splits, unrolled
from .space import workers

Degrees = tuple[tuple[str, int], ...]
"""Degrees by axis, above 1, in the order of the op's axes."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One decision: the forward ops that are configured alike, those that follow them, and their
    backward ops.

    Positions in the graph, ascending. ``axes`` are those along which all of ``ops`` can be split.
    """

    name: str
    ops: tuple[int, ...]
    followers: tuple[int, ...]
    backward: tuple[int, ...]
    axes: tuple[Split, ...]

    @property
    def members(self) -> tuple[int, ...]:
        """All of its ops: forward, then backward."""
        return (*sorted((*self.ops, *self.followers)), *self.backward)


@dataclass(frozen=True)
class Layers:
    """The layers of a graph on a cluster, in program order."""

    graph: Graph
    cluster: Cluster

    def __getstate__(self) -> dict[str, object]:
        """What follows from the two is worked out anew, and cannot all be pickled."""
        return {"graph": self.graph, "cluster": self.cluster}

    @cached_property
    def dataflow(self) -> SplitProblem:
        """How the graph's ops read and make."""
        return SplitProblem(self.graph, self.cluster, Strategy())

    @cached_property
    def devices(self) -> tuple[int, ...]:
        """The devices over which layers are split."""
        return workers(self.cluster)

    @cached_property
    def layer_of(self) -> tuple[int, ...]:
        """The layer of every op that is not there on demand, -1 for those; an update's is that of
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
        """Backward and update ops of no layer that read nothing, so that there is nothing to
        follow.
        """
        dataflow = self.dataflow
        return tuple(
            i
            for i, layer in enumerate(self.layer_of)
            if layer < 0 and i not in dataflow.on_demand and not dataflow.read[i]
        )

    def _alone(self, i: int) -> bool:
        """Whether an op follows nothing, because nobody knows how it reads."""
        return self.dataflow.readings[i].semantics is None

    def is_own(self, i: int) -> bool:
        """Whether an op is a layer, or part of one, by itself."""
        read = layers_read(self.dataflow.touched[i], self.layer_of)
        return self._alone(i) or is_layer(self.graph, i, read)

    @cached_property
    def leads(self) -> tuple[tuple[int, ...], ...]:
        """The operands that each op may follow, in order: forward tensors first where it goes
        back.
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
        """The axes that SOAP splits: those of the output, of one size at all steps."""
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
        """The ways to cut a layer into as many parts as divide the number of devices, fewest parts
        first.

        A degree divides its axis.
        """
        count, names = len(self.devices), [axis.axis for axis in layer.axes]
        choices = [
            [d for d in range(1, count + 1) if axis.size % d == 0 and count % d == 0]
            for axis in layer.axes
        ]
        ways = [degrees for degrees in product(*choices) if count % prod(degrees) == 0]
        # Of as many parts the first axis is cut most: that of the samples.
        ways.sort(key=lambda degrees: (prod(degrees), [-degree for degree in degrees]))
        return tuple(
            tuple((name, d) for name, d in zip(names, degrees, strict=True) if d > 1)
            for degrees in ways
        )

    def configuration(self, degrees: Degrees, first: int = 0) -> Configuration:
        """So many parts on as many devices, the ``first``-th of those that run ops and the ones
        that follow it.
        """
        parts = prod(degree for _, degree in degrees)
        names = [self.cluster.devices[d].name for d in self.devices[first : first + parts]]
        return Configuration(dict(degrees), tuple(names))

    def configurations(self, layer: Layer) -> tuple[Configuration, ...]:
        """All on aligned, contiguous devices: k parts begin at a multiple of k (FlexFlow's code of
        2021).
        """
        return tuple(
            self.configuration(degrees, first)
            for degrees in self.degrees(layer)
            for first in range(0, len(self.devices), prod(degree for _, degree in degrees))
        )
