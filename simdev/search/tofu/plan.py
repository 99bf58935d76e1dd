"""Tofu (Wang, Huang, Li, EuroSys 2019, section 5.2): a plan of how to split every op and tensor of
a graph over all workers, and the strategy of such a plan.

Workers are divided step by step, by the prime factors of their number. In each step every tensor is
cut along one dimension and every op along one axis, so that the fewest bytes are sent. A unit
(``coarse.py``) is a set of ops that are cut alike; ``search/elimination.py`` finds the best
choices. ``search/methods.py`` names ``tofu`` as a method; ``benchmarks/placers.py`` runs
``recursive`` and ``BASELINES``, the other methods of the paper. Bytes are counted here as in the
paper; the simulated step sends the bytes of ``lowering/partition``. Guarded by
``tests/search/test_search_tofu.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from time import process_time
from typing import NamedTuple, TypeVar

import numpy as np

from ...ground.errors import InputError
from ...nouns.semantics import (
    Region,
    Semantics,
    effects_of,
    is_linear,
    output_axes,
    parts_of,
    semantics_of,
    shard_of,
    splits,
    steps,
    stored_region,
    traits_of,
)
from ...nouns.strategy import Configuration, Strategy
from ...nouns.structure import TensorOf, unrolled
from ...nouns.taskgraph import Floats
from ..elimination import Solved, Term, minimise, total
from ..space import workers
from ..trial import Trial
from .coarse import Coarse, Unit

# Bytes that one step of Tofu's recursion sends (EuroSys 2019, section 5).
# A step divides every group of workers into k parts. Before it, a group has every element of an
# operand that its op reads: some are stored there (held), the rest was sent there in earlier steps
# (fetched). After it each part stores 1/k of the held elements. So this step sends to each part the
# held elements that it needs and does not store, and fetched elements that several parts need to
# all but the first. The sum over all steps is what a worker reads less what it stores: T/2, T and
# 2 x halo in the paper's two-way steps. Outputs go from the parts that make them to the parts that
# store them; partial results are added up there.

Shape = tuple[int, ...]
_CACHED = 65_536


class Side(NamedTuple):
    """An operand or output of an op, as one group of workers has it.

    ``at`` is its place among the operands (outputs) of the op there, -1 where the op does not touch
    it. ``shape`` is the shape of the region touched, in the layout in which the tensor is stored.
    ``held`` and ``fetched`` (above) are counts of elements.
    """

    at: int
    shape: Shape
    strides: tuple[int, ...] | None
    held: float
    fetched: float


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """A way to cut an op: along one axis into k parts. ``needs`` and ``makes`` are by part the
    regions of operands and outputs, ``effects`` by output the effect of the cut. The first part
    runs the op ``following``, which the next step cuts; ``places`` are by operand its place in
    ``following``, -1: not read.
    """

    axis: str
    needs: tuple[tuple[Region | None, ...], ...]
    makes: tuple[tuple[Region | None, ...], ...]
    effects: tuple[str, ...]
    following: Semantics
    places: tuple[int, ...]


@lru_cache(_CACHED)
def cuts(semantics: Semantics, groups: int, even: bool = True) -> tuple[Cut, ...]:
    """The ways to cut an op into ``groups`` parts along one axis; only equal parts if ``even``."""
    ways = []
    for split in splits(semantics):
        if split.size < groups or (even and split.size % groups):
            continue
        shards = [shard_of(semantics, {split.axis: part}) for part in parts_of(split.size, groups)]
        first = shards[0]
        try:
            following = semantics_of(first.kind, first.attrs, first.inputs, first.outputs)
        except InputError:
            continue
        if len(first.outputs) != len(semantics.outputs):
            continue
        place = {operand: at for at, operand in enumerate(first.operands)}
        ways.append(
            Cut(
                split.axis,
                tuple(shard.needs for shard in shards),
                tuple(shard.makes for shard in shards),
                effects_of(semantics, split.axis),
                following,
                tuple(place.get(operand, -1) for operand in range(len(semantics.inputs))),
            )
        )
    return tuple(ways)


class Sent(NamedTuple):
    """The number of elements sent to all parts, and the ``Side`` of the first part afterwards."""

    sent: float
    side: Side


@lru_cache(_CACHED)
def read_step(
    semantics: Semantics, cut: Cut | None, side: Side, dimension: int, groups: int
) -> Sent:
    """The elements that a step sends for an operand. Where ``cut`` is None every part runs the
    whole op; where ``dimension`` is WHOLE every part holds the whole tensor.
    """
    if side.at < 0:
        return Sent(0.0, side)
    whole = tuple((0, extent) for extent in side.shape)
    sent, first = -side.fetched, side
    for g in range(groups):
        region = whole if cut is None else _region(semantics, side, cut.needs[g][side.at])
        share, there = _shares(side, region, dimension, g, groups)
        sent += side.held * (share - there) + side.fetched * share
        if g == 0:
            at = side.at if cut is None else cut.places[side.at]
            first = _first(side, region, share, there)._replace(at=-1 if region is None else at)
    return Sent(max(sent, 0.0), first)


def _region(semantics: Semantics, side: Side, region: Region | None) -> Region | None:
    """A region of an operand as it is stored; None where no stored element is read."""
    if region is None:
        return None
    executed = semantics.inputs[side.at]
    if executed == side.shape:
        return region
    return stored_region(region, executed, side.shape, side.strides)


def _shares(
    side: Side, region: Region | None, dimension: int, part: int, groups: int
) -> tuple[float, float]:
    """A region's share of a side, and the part of this share that lies in one part of a dimension
    (-1: every part holds the whole).
    """
    if region is None:
        return 0.0, 0.0
    share = prod(b - a for a, b in region) / max(prod(side.shape), 1)
    if dimension < 0:
        return share, share
    (low, high), (first, last) = parts_of(side.shape[dimension], groups)[part], region[dimension]
    return share, share * (max(min(high, last) - max(low, first), 0) / max(last - first, 1))


def _first(side: Side, region: Region | None, share: float, there: float) -> Side:
    """The side on the first part, which needs a region of it."""
    shape = side.shape if region is None else tuple(b - a for a, b in region)
    fetched = side.fetched * share + side.held * (share - there)
    return Side(side.at, shape, side.strides, side.held * there, fetched)


@lru_cache(_CACHED)
def write_step(cut: Cut | None, side: Side, dimension: int, groups: int) -> Sent:
    """The elements that a step sends for an output, which sums partial results where it
    is stored.
    """
    keep = 1.0 if dimension < 0 else 1.0 / groups
    if cut is None or cut.effects[side.at] == "replicate":
        return Sent(0.0, side._replace(held=side.held * keep, fetched=side.fetched * keep))
    if cut.effects[side.at] == "reduce":
        # The sums go back to where partial results were, if every part holds the whole.
        gathered = groups - 1 if dimension < 0 else 0
        sent = (groups - 1) * (side.held + side.fetched) + gathered * side.held
        fetched = side.fetched + side.held * (1 - keep)
        return Sent(sent, side._replace(held=side.held * keep, fetched=fetched))
    sent, first = 0.0, side
    for g in range(groups):
        region = cut.makes[g][side.at]
        share, there = _shares(side, region, dimension, g, groups)
        sent += side.held * ((1.0 if dimension < 0 else share) - there)
        if g == 0 and region is not None:
            first = _first(side, region, share, there)
    return Sent(sent, first)


WHOLE = -1
"""The entry in place of a dimension where every group holds the whole tensor: no dimension can be
cut.
"""


@dataclass(frozen=True, slots=True)
class TofuPlan:
    """A plan, by step: the number of parts, and the bytes sent over all workers. ``exact``: every
    step was solved to its optimum. ``dimensions`` by step and tensor (-1: whole), ``axes`` by step
    and unit ("": whole).
    """

    parts: tuple[int, ...]
    dimensions: tuple[tuple[int, ...], ...]
    axes: tuple[tuple[str, ...], ...]
    bytes: tuple[float, ...]
    exact: bool

    @property
    def communication(self) -> float:
        """Bytes over all steps."""
        return float(sum(self.bytes))


Solver = Callable[["Level"], Solved]


def recursive(coarse: Coarse, workers: int) -> TofuPlan:
    """The plan of least communication, a step for each prime factor of ``workers`` in turn."""
    return planned(coarse, steps(workers))


def least_bytes(level: Level) -> Solved:
    """The best of all choices of a step."""
    return minimise(level.sizes, level.terms)


def planned(
    coarse: Coarse,
    parts: Sequence[int],
    solve: Solver = least_bytes,
    even: bool = True,
    reduce: bool = True,
) -> TofuPlan:
    """The plan in which ``solve`` chooses each step: by default the best of all choices.

    ``even``: only into equal parts. Without ``reduce`` a forward op is cut along an axis that it
    sums over only where it has no other axis.
    """
    level = Level(coarse, even, reduce)
    dimensions, axes, sent, exact, groups = [], [], [], True, 1
    for count in parts:
        level.open(count)
        solved = solve(level)
        exact &= solved.exact
        dimensions.append(level.chosen_dimensions(solved.values))
        axes.append(level.chosen_axes(solved.values))
        sent.append(solved.cost * groups)
        level.advance(solved.values)
        groups *= count
    return TofuPlan(tuple(parts), tuple(dimensions), tuple(axes), tuple(sent), exact)


class Level:
    """The step of the recursion under way: the ops and tensors as one group of workers has them,
    the choices for each, and the bytes that these send. ``open`` sets up the next step.
    ``minimise`` decides a variable for each tensor (its dimension), then for each *chooser* (its
    axis): a unit, or all time steps of an unrolled op, which are cut alike.
    """

    def __init__(self, coarse: Coarse, even: bool = True, reduce: bool = True) -> None:
        self.coarse, self.even, self.reduce, self.parts = coarse, even, reduce, 1
        self.shapes: list[tuple[int, ...]] = list(coarse.shapes)
        self.semantics: list[Semantics | None] = [unit.reading.semantics for unit in coarse.units]
        self.touches = [_touches(coarse, unit) for unit in coarse.units]
        first: dict[object, int] = {}
        names = [coarse.graph.ops[unit.ops[0]].name for unit in coarse.units]
        self.chooser = [
            first.setdefault(unrolled(name) if "@" in name else number, len(first))
            for number, name in enumerate(names)
        ]
        self.dimensions: list[list[int]] = []
        self.axes: list[list[str]] = []
        self.sizes: list[int] = []
        self.terms: list[Term] = []

    def open(self, parts: int) -> None:
        """Set up a step that divides each group into ``parts``."""
        self.parts = parts
        self.dimensions = [self._dimensions(shape) for shape in self.shapes]
        self.axes = self._axes()
        self.sizes = [*map(len, self.dimensions), *map(len, self.axes)]
        self.terms = self._terms()

    def _dimensions(self, shape: tuple[int, ...]) -> list[int]:
        """The dimensions along which a tensor can be cut."""
        dimensions = [d for d, extent in enumerate(shape) if extent % self.parts == 0 and extent]
        if not (dimensions or self.even):
            dimensions = [d for d, extent in enumerate(shape) if extent >= self.parts]
        return dimensions or [WHOLE]

    def _axes(self) -> list[list[str]]:
        """The axes of each chooser: the axes that all its units have."""
        axes: dict[int, list[str]] = {}
        for number, chooser in enumerate(self.chooser):
            ways = self._ways(number)
            axes[chooser] = [axis for axis in axes.get(chooser, ways) if axis in ways]
        return [axes[chooser] or [""] for chooser in sorted(axes)]

    def _ways(self, number: int) -> dict[str, Cut]:
        """The ways to cut a unit, by axis."""
        semantics, unit = self.semantics[number], self.coarse.units[number]
        if semantics is None:
            return {}
        ways = cuts(semantics, self.parts)
        if not (ways or self.even):
            ways = cuts(semantics, self.parts, False)
        if not self.reduce and self.coarse.graph.ops[unit.ops[0]].phase == "forward":
            ways = tuple(way for way in ways if "reduce" not in way.effects) or ways
        return {way.axis: way for way in ways}

    def _terms(self) -> list[Term]:
        """Tables of bytes by (tensor, chooser)."""
        tables: dict[tuple[int, int], Floats] = {}
        for number, chooser in enumerate(self.chooser):
            by_axis = self._ways(number)
            ways = [by_axis.get(axis) for axis in self.axes[chooser]]
            for touch in self.touches[number]:
                dimensions = self.dimensions[touch.tensor]
                table = [[self._sent(number, touch, way, d) for d in dimensions] for way in ways]
                pair = touch.tensor, len(self.shapes) + chooser
                tables[pair] = tables.get(pair, 0.0) + np.array(table).T * touch.bytes
        return [Term(pair, table) for pair, table in tables.items()]

    def _sent(self, number: int, touch: _Touch, way: Cut | None, dimension: int) -> float:
        # An op without semantics is assumed to read whole tensors, and here each part has them all.
        if self.semantics[number] is None and dimension == WHOLE and not touch.written:
            return 0.0
        return self._step(number, touch, way, dimension).sent

    def _step(self, number: int, touch: _Touch, way: Cut | None, dimension: int) -> Sent:
        if touch.written:
            return write_step(way, touch.side, dimension, self.parts)
        return read_step(self.semantics[number], way, touch.side, dimension, self.parts)

    def chosen_dimensions(self, values: Sequence[int]) -> tuple[int, ...]:
        """The dimension of each tensor."""
        return tuple(known[at] for known, at in zip(self.dimensions, values, strict=False))

    def chosen_axes(self, values: Sequence[int]) -> tuple[str, ...]:
        """The axis of each unit."""
        chosen = values[len(self.shapes) :]
        return tuple(self.axes[chooser][chosen[chooser]] for chooser in self.chooser)

    def advance(self, values: Sequence[int]) -> None:
        """Replace every op and tensor by its first part under the chosen cuts, for the next
        step.
        """
        dimensions = self.chosen_dimensions(values)
        for number, axis in enumerate(self.chosen_axes(values)):
            way = self._ways(number).get(axis)
            for touch in self.touches[number]:
                touch.side = self._step(number, touch, way, dimensions[touch.tensor]).side
            if way is not None:
                self.semantics[number] = way.following
        for tensor, dimension in enumerate(dimensions):
            if dimension != WHOLE:
                shape = list(self.shapes[tensor])
                shape[dimension] = -(-shape[dimension] // self.parts)
                self.shapes[tensor] = tuple(shape)


@dataclass(slots=True)
class _Touch:
    """A tensor that a unit reads or writes, and the ``bytes`` of an element of it, over all ops of
    the unit.
    """

    tensor: int
    side: Side
    bytes: float
    written: bool


def _touches(coarse: Coarse, unit: Unit) -> list[_Touch]:
    """The tensors that a unit touches: first the tensors that it reads."""
    reading, touches = unit.reading, list[_Touch]()
    for operand, tensor in unit.inputs:
        shape, strides = reading.stored[operand], reading.strides[operand]
        tensors = [coarse.dataflow.read[i][operand] for i in unit.ops]
        size = sum(coarse.element_bytes(*output) for output in tensors)
        touches.append(
            _Touch(tensor, Side(operand, shape, strides, float(prod(shape)), 0.0), size, False)
        )
    for k, tensor in unit.outputs:
        shape = reading.made[k]
        size = sum(coarse.element_bytes(i, k) * coarse.share(i, k) for i in unit.ops)
        touches.append(_Touch(tensor, Side(k, shape, None, float(prod(shape)), 0.0), size, True))
    return touches


def _along_first(level: Level) -> Solved:
    """Every tensor along the first dimension that it may take, then each chooser its best axis."""
    return _best_axes(level, [0] * len(level.dimensions))


# The methods that the paper compares Tofu with (section 7.3), as far as it describes them, in its
# cost model. Where n divides no dimension of a tensor, it is cut unevenly along a dimension of at
# least n elements: that is enough to count bytes, but no strategy can be made of it.

BASELINES: Mapping[str, Callable[[Coarse, int], TofuPlan]] = {
    "allrow-greedy": lambda coarse, n: planned(coarse, (n,), _along_first, even=False),
    "spartan": lambda coarse, n: planned(coarse, (n,), _largest_first, even=False),
    "equal-chop": lambda coarse, n: planned(coarse, (n,), even=False),
    "icml18": lambda coarse, n: planned(coarse, steps(n), reduce=False),
}
"""By name, from a graph and a number of workers:

- ``allrow-greedy``: every tensor is cut along its first dimension among all workers, then every op
  takes its best axis.
- ``spartan``: tensors are decided one after the other, the largest first, each along the dimension
  that is best for the ops around it (Huang et al., Spartan, ATC 2015).
- ``equal-chop``: like Tofu, but in one step: every tensor along one dimension among all workers.
- ``icml18``: like OptCNN, which cuts no forward op along an axis that it reduces, where it has
  another. The paper decides all steps at once; that takes longer and finds the same.
"""


def communication(coarse: Coarse, workers: int) -> dict[str, float]:
    """Bytes sent over all workers by method: each of ``BASELINES``, and ``tofu``."""
    sent = {name: plan(coarse, workers).communication for name, plan in BASELINES.items()}
    return sent | {"tofu": recursive(coarse, workers).communication}


def _by_chooser(level: Level) -> dict[int, list[tuple[int, Floats]]]:
    """The tensors around each chooser, with the bytes by dimension and axis."""
    around: dict[int, list[tuple[int, Floats]]] = {}
    for term in level.terms:
        tensor, chooser = term.variables
        around.setdefault(chooser, []).append((tensor, term.table))
    return around


def _best_axes(level: Level, dimensions: list[int]) -> Solved:
    """The best axis of each chooser; ``dimensions`` index each tensor's possible dimensions."""
    axes = [0] * (len(level.sizes) - len(dimensions))
    for chooser, around in _by_chooser(level).items():
        sums = np.sum([table[dimensions[tensor]] for tensor, table in around], axis=0)
        axes[chooser - len(dimensions)] = int(sums.argmin())
    values = (*dimensions, *axes)
    return Solved(values, total(level.terms, values), 0, False)


def _largest_first(level: Level) -> Solved:
    """Tensors one after the other, the largest first, each along its best dimension."""
    around: dict[int, list[tuple[int, Floats]]] = {}
    for chooser, tables in _by_chooser(level).items():
        for tensor, table in tables:
            around.setdefault(tensor, []).append((chooser, table))
    known = {at: np.zeros(size) for at, size in enumerate(level.sizes)}
    sizes = [prod(shape) for shape in level.shapes]
    dimensions = [0] * len(level.dimensions)
    for tensor in sorted(range(len(dimensions)), key=lambda tensor: (-sizes[tensor], tensor)):
        near = around.get(tensor, [])
        costs = np.sum(
            [(known[chooser] + table).min(axis=1) for chooser, table in near] or [[0.0]], axis=0
        )
        dimensions[tensor] = int(costs.argmin())
        for chooser, table in near:
            known[chooser] = known[chooser] + table[dimensions[tensor]]
    return _best_axes(level, dimensions)


# The method, and the strategy of a plan: every tensor and op over all workers, in its parts.

Name = TypeVar("Name", str, int)
SYNC = "sharded"  # each worker adds up an equal share of the partial results


def tofu(trial: Trial) -> None:
    """Tofu (EuroSys 2019): the partition of every op and tensor over all workers that sends the
    fewest bytes, simulated once.

    The objective ``communication_bytes`` follows the paper's model: each op fetches everything that
    it needs. The simulated step sends fewer bytes where ops of one device share fetched data.
    ``details`` has the bytes of each step of the recursion, whether elimination was exact, and the
    seconds of the search. Raises InputError for a single device.
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


def strategy_of(coarse: Coarse, plan: TofuPlan, like: Strategy) -> Strategy:
    """The strategy of a plan.

    Worker w = w1 w2 .. (one digit per step, the first counts most) is the w-th device. Where a
    tensor is stored in other parts than its op makes, ``tensors`` says so. Of several gradients of
    a weight only their sum is stored as planned; the gradients stay where they are made.
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
        """The dimension along which a tensor is cut in each step."""
        number = self.coarse.tensor[tensor]
        return tuple(step[number] for step in self.plan.dimensions)

    def axes_of(self, i: int) -> tuple[str, ...]:
        """The axes of a leaf or of an elementwise op, which is cut like its tensors."""
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
        """Cut an op along these axes, by step; in a step that leaves it whole it is on worker 0."""
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
        """Set how the outputs of an op are stored, where that differs from how they are made."""
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
    """The degree of each axis or dimension over all steps."""
    degrees: dict[Name, int] = {}
    for count, name in zip(parts, names, strict=True):
        if name != whole:
            degrees[name] = degrees.get(name, 1) * count
    return degrees
