"""From a plan of Tofu's to a strategy: every tensor and op over all workers, in the plan's
parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TypeVar

from ...lowering.partition.geometry import Reading
from ...semantics import is_linear, output_axes, traits_of
from ...strategy import Configuration, Strategy
from ...structure import TensorOf
from ..space import workers
from .coarse import Coarse
from .plan import WHOLE, Plan

PLAIN = Strategy()
Name = TypeVar("Name", str, int)
SYNC = "sharded"
"""Partial results are added up on all workers alike."""


def strategy_of(coarse: Coarse, plan: Plan, like: Strategy = PLAIN) -> Strategy:
    """The strategy of a plan.

    Worker w = w1 w2 .. (one digit a step, the first counts most) is the w-th device.

    Where an op makes a tensor otherwise than it is stored, ``tensors`` says so. Gradients of a
    weight that are added up stay where they are made until their sum.
    """
    found = _Strategy(coarse, plan)
    for number, unit in enumerate(coarse.units):
        for i in unit.ops:
            found.configure(i, unit.reading, tuple(step[number] for step in plan.axes))
    for i, op in enumerate(coarse.graph.ops):
        if traits_of(op.kind).leaf or (i in coarse.folds and not found.passes_on(i)):
            found.configure(i, coarse.question.readings[i], found.axes_of(i))
    for i in range(len(coarse.graph.ops)):
        found.store(i)
    return Strategy(order=like.order, partition=found.partition, tensors=found.tensors, sync=SYNC)


class _Strategy:
    def __init__(self, coarse: Coarse, plan: Plan) -> None:
        self.coarse, self.plan, self.graph = coarse, plan, coarse.graph
        self.devices = [coarse.cluster.devices[d].name for d in workers(coarse.cluster)]
        self.partition: dict[str, Configuration] = {}
        self.tensors: dict[str, Mapping[int, int]] = {}

    def dimensions(self, tensor: TensorOf) -> tuple[int, ...]:
        """The dimension of each step along which a tensor is stored."""
        number = self.coarse.tensor[tensor]
        return tuple(step[number] for step in self.plan.dimensions)

    def axes_of(self, i: int) -> tuple[str, ...]:
        """The axes of a leaf or of an elementwise op, which lies as its tensors do."""
        reading = self.coarse.question.readings[i]
        own = self.coarse.of_op(i)
        if reading.semantics is None or not own:
            return ("",) * len(self.plan.parts)
        if self.graph.ops[i].outputs:
            names: Sequence[str | None] = output_axes(reading.semantics)
        else:
            names = [next(iter(sorted(axes)), None) for _, axes, _ in reading.semantics.reads[0]]
        return tuple("" if d == WHOLE else names[d] or "" for d in self.dimensions(own[0]))

    def configure(self, i: int, reading: Reading, axes: Sequence[str]) -> None:
        """Parts along these axes, step by step."""
        op = self.graph.ops[i]
        degrees = _degrees(self.plan.parts, axes, "")
        order = (
            [axis.name for axis in reading.semantics.axes] if reading.semantics is not None else []
        )
        split = {axis: degrees[axis] for axis in order if axis in degrees}
        places = self._places(axes, list(split))
        self.partition[op.name] = Configuration(
            split, tuple(self.devices[place] for place in places)
        )

    def _places(self, axes: Sequence[str], order: Sequence[str]) -> list[int]:
        """The worker of each part, row-major over the axes: 0 in steps in which it is whole."""
        strides = [prod(self.plan.parts[at + 1 :]) for at in range(len(axes))]
        places = [0]
        for axis in order:
            for at, one in enumerate(axes):
                if one == axis:
                    places = [
                        place + digit * strides[at]
                        for place in places
                        for digit in range(self.plan.parts[at])
                    ]
        return places

    def passes_on(self, i: int) -> bool:
        """Whether an op only adds up gradients of a weight."""
        return is_linear(self.graph.ops[i]) and (i, 0) in self.coarse.question.weights.gradients

    def store(self, i: int) -> None:
        """Say how the outputs of an op are stored, where that is not how they are made."""
        op, readings = self.graph.ops[i], self.coarse.question.readings
        if traits_of(op.kind).leaf or i in self.coarse.free:
            return
        made = self.partition.get(op.name)
        for k in range(len(op.outputs)):
            if self.coarse.share(i, k) < 1:
                continue
            wanted = _degrees(self.plan.parts, self.dimensions((i, k)), WHOLE)
            semantics, own = readings[i].semantics, {} if made is None else made.split
            names = output_axes(semantics, k) if semantics is not None else ()
            lies = {
                d: own[name] for d, name in enumerate(names) if name is not None and name in own
            }
            reduced = made is None or prod(lies.values()) < prod(own.values())
            if wanted and (lies != wanted or reduced) and (made is not None or self.passes_on(i)):
                self.tensors[f"{op.name}:{k}"] = dict(sorted(wanted.items()))


def _degrees(parts: Sequence[int], names: Sequence[Name], whole: Name) -> dict[Name, int]:
    """The degree of each axis or dimension, over the steps that cut along it."""
    found: dict[Name, int] = {}
    for count, name in zip(parts, names, strict=True):
        if name != whole:
            found[name] = found.get(name, 1) * count
    return found
