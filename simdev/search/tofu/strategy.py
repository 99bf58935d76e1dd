"""From a plan of Tofu's to a strategy: every tensor and op over all workers, in the plan's
parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from time import process_time
from typing import TypeVar

from ...ground.errors import InputError
from ...nouns.semantics import is_linear, output_axes, traits_of
from ...nouns.strategy import Configuration, Strategy
from ...nouns.structure import TensorOf
from ..space import workers
from ..trial import Trial
from .coarse import Coarse
from .plan import WHOLE, TofuPlan, recursive

PLAIN = Strategy()
Name = TypeVar("Name", str, int)
SYNC = "sharded"
"""Partial results are added up on all workers alike."""


def tofu(trial: Trial) -> None:
    """Tofu (EuroSys 2019): the partition of every op and tensor over all workers that sends the
    fewest bytes, simulated once.

    The objective ``communication_bytes`` is that of the paper's model: each op fetches what it
    needs. The simulated step sends fewer where ops of one device share what was fetched.
    ``details`` tells the bytes of each step of the recursion, whether elimination was exact, and
    the seconds of the search. Raises InputError for a single device.
    """
    began, problem, best = process_time(), trial.problem, trial.best
    coarse = Coarse(problem.whole.graph, problem.whole.cluster)
    count = len(workers(problem.whole.cluster))
    if count < 2:
        raise InputError("tofu: needs two devices of one kind at least")
    plan = recursive(coarse, count)
    best.objectives["communication_bytes"] = plan.communication
    best.details |= {
        "workers": count,
        "parts": list(plan.parts),
        "bytes_by_step": list(plan.bytes),
        "tensors": len(coarse.shapes),
        "units": len(coarse.units),
        "exact": plan.exact,
        "search_s": process_time() - began,
    }
    trial.try_strategy(strategy_of(coarse, plan, problem.given))


def strategy_of(coarse: Coarse, plan: TofuPlan, like: Strategy = PLAIN) -> Strategy:
    """The strategy of a plan.

    Worker w = w1 w2 .. (one digit a step, the first counts most) is the w-th device.

    Where an op makes a tensor otherwise than it is stored, ``tensors`` says so. Gradients of a
    weight that are added up stay where they are made until their sum.
    """
    builder = _Strategy(coarse, plan)
    for number, unit in enumerate(coarse.units):
        for i in unit.ops:
            builder.configure(i, [step[number] for step in plan.axes])
    for i, op in enumerate(coarse.graph.ops):
        if traits_of(op.kind).leaf or (i in coarse.folds and not builder.passes_on(i)):
            builder.configure(i, builder.axes_of(i))
    for i in range(len(coarse.graph.ops)):
        builder.store(i)
    return Strategy(
        order=like.order, partition=builder.partition, tensors=builder.tensors, sync=SYNC
    )


class _Strategy:
    def __init__(self, coarse: Coarse, plan: TofuPlan) -> None:
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
        reading = self.coarse.dataflow.readings[i]
        tensors = self.coarse.of_op(i)
        if reading.semantics is None or not tensors:
            return ("",) * len(self.plan.parts)
        if self.graph.ops[i].outputs:
            names: Sequence[str | None] = output_axes(reading.semantics)
        else:
            names = [next(iter(sorted(axes)), None) for _, axes, _ in reading.semantics.reads[0]]
        return tuple("" if d == WHOLE else names[d] or "" for d in self.dimensions(tensors[0]))

    def configure(self, i: int, axes: Sequence[str]) -> None:
        """Parts along these axes, step by step; an op stands on worker 0 of a step in which it is
        whole.
        """
        semantics, parts = self.coarse.dataflow.readings[i].semantics, self.plan.parts
        degrees = _degrees(parts, axes, "")
        order = [] if semantics is None else [axis.name for axis in semantics.axes]
        split = {axis: degrees[axis] for axis in order if axis in degrees}
        places = [0]
        for axis in split:  # row-major
            for step in (step for step, name in enumerate(axes) if name == axis):
                stride = prod(parts[step + 1 :])
                places = [at + digit * stride for at in places for digit in range(parts[step])]
        devices = tuple(self.devices[place] for place in places)
        self.partition[self.graph.ops[i].name] = Configuration(split, devices)

    def passes_on(self, i: int) -> bool:
        """Whether an op only adds up gradients of a weight."""
        return is_linear(self.graph.ops[i]) and (i, 0) in self.coarse.dataflow.weights.gradients

    def store(self, i: int) -> None:
        """Say how the outputs of an op are stored, where that is not how they are made."""
        op, readings = self.graph.ops[i], self.coarse.dataflow.readings
        if traits_of(op.kind).leaf or i in self.coarse.free:
            return
        made, semantics = self.partition.get(op.name), readings[i].semantics
        split = {} if made is None else made.split
        for k in range(len(op.outputs)):
            if self.coarse.share(i, k) < 1:
                continue
            wanted = _degrees(self.plan.parts, self.dimensions((i, k)), WHOLE)
            names = enumerate(output_axes(semantics, k) if semantics is not None else ())
            lies = {d: split[name] for d, name in names if name and name in split}
            reduced = made is None or prod(lies.values()) < prod(split.values())
            if wanted and (lies != wanted or reduced) and (made is not None or self.passes_on(i)):
                self.tensors[f"{op.name}:{k}"] = dict(sorted(wanted.items()))


def _degrees(parts: Sequence[int], names: Sequence[Name], whole: Name) -> dict[Name, int]:
    """The degree of each axis or dimension, over the steps that cut along it."""
    degrees: dict[Name, int] = {}
    for count, name in zip(parts, names, strict=True):
        if name != whole:
            degrees[name] = degrees.get(name, 1) * count
    return degrees
