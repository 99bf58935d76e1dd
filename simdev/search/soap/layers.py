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

from ...cluster import Cluster
from ...errors import InputError
from ...graph import Graph
from ...lowering.partition.problem import SplitProblem
from ...semantics import Split
from ...strategy import Configuration, Strategy
from ...structure import is_layer, layers_by_kind, layers_read, mates, op_splits, unrolled
from ..space import workers

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

    @cached_property
    def question(self) -> SplitProblem:
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
        touched, mate = self.question.touched, mates(self.graph)
        found = layers_by_kind(self.graph, self._forward, touched, self._alone)
        for i, op in enumerate(self.graph.ops):
            if op.phase != "forward" and i not in self.question.on_demand and mate[i] >= 0:
                found[i] = found[mate[i]]
        return tuple(found)

    @cached_property
    def _forward(self) -> tuple[int, ...]:
        question = self.question
        return tuple(
            i
            for i in question.order
            if self.graph.ops[i].phase == "forward" and i not in question.on_demand
        )

    @cached_property
    def adrift(self) -> tuple[int, ...]:
        """Backward and update ops of no layer that read nothing, so that there is nothing to
        follow.
        """
        question = self.question
        own = (
            i for i, layer in enumerate(self.layer_of) if layer < 0 and i not in question.on_demand
        )
        return tuple(i for i in own if not question.read[i])

    def _alone(self, i: int) -> bool:
        """Whether an op follows nothing, because nobody knows how it reads."""
        return self.question.readings[i].semantics is None

    def is_own(self, i: int) -> bool:
        """Whether an op is a layer, or part of one, by itself."""
        read = layers_read(self.question.touched[i], self.layer_of)
        return self._alone(i) or is_layer(self.graph, i, read)

    @cached_property
    def leads(self) -> tuple[tuple[int, ...], ...]:
        """The operands that each op may follow, in order: forward tensors first where it goes
        back.
        """
        question, found = self.question, []
        for i, read in enumerate(question.read):
            there = [
                j
                for j, one in enumerate(read)
                if one in question.touched[i] and one[0] not in question.on_demand
            ]
            if question.goes_back[i]:
                there.sort(key=lambda j: self.graph.ops[read[j][0]].phase != "forward")
            found.append(tuple(there))
        return tuple(found)

    @cached_property
    def all(self) -> tuple[Layer, ...]:
        """The layers. Raises InputError where the graph has none."""
        count = 1 + max(self.layer_of, default=-1)
        if not count:
            raise InputError("graph: no forward op has a layer to configure")
        own: list[list[int]] = [[] for _ in range(count)]
        follow: list[list[int]] = [[] for _ in range(count)]
        backward: list[list[int]] = [[] for _ in range(count)]
        for i, layer in enumerate(self.layer_of):
            if layer < 0:
                continue
            if self.graph.ops[i].phase != "forward":
                backward[layer].append(i)
            elif own[layer] and not self.is_own(i):
                follow[layer].append(i)
            else:
                own[layer].append(i)
        return tuple(self._layer(*parts) for parts in zip(own, follow, backward, strict=True))

    def _layer(self, own: list[int], follow: list[int], backward: list[int]) -> Layer:
        name = unrolled(self.graph.ops[own[0]].name)
        return Layer(name, tuple(own), tuple(follow), tuple(backward), self._axes(own))

    def _axes(self, own: Sequence[int]) -> tuple[Split, ...]:
        """The axes that SOAP splits: those of the output, of one size at all steps."""
        every = [self._splits(i) for i in own]
        return tuple(
            one
            for one in every[0]
            if one.kind != "reduction" and all(one in other for other in every)
        )

    def _splits(self, i: int) -> tuple[Split, ...]:
        if self.question.readings[i].semantics is None or self.graph.ops[i].time is not None:
            return ()
        return op_splits(self.graph, i, self.question.weights)

    def degrees(self, layer: Layer) -> tuple[Degrees, ...]:
        """The ways to cut a layer into as many parts as divide the number of devices, fewest parts
        first.

        A degree divides its axis.
        """
        count = len(self.devices)
        choices = [
            [d for d in range(1, count + 1) if one.size % d == 0 and count % d == 0]
            for one in layer.axes
        ]
        found = [one for one in product(*choices) if count % prod(one) == 0]
        names = [one.axis for one in layer.axes]
        found.sort(key=lambda one: (prod(one), [-degree for degree in one]))
        return tuple(
            tuple((n, d) for n, d in zip(names, one, strict=True) if d > 1) for one in found
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
