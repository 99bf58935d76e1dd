"""Tofu's search (EuroSys 2019, section 5.2): in each step every tensor along one dimension, every
op along one axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from ...semantics import Semantics, steps
from ...structure import unrolled
from ..elimination import Solved, Term, minimise
from .coarse import Coarse, Unit
from .costs import Cut, Side, cuts, read_step, write_step

WHOLE = -1
"""In place of a dimension: every group holds the whole tensor, for none of its dimensions can be
cut.
"""


@dataclass(frozen=True, slots=True)
class TofuPlan:
    """By step: the number of parts, and the bytes sent over all workers.

    ``dimensions`` by step and tensor (-1: whole), ``axes`` by step and unit ("": whole).
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
    """The plan of least communication, one step of the prime factors of ``workers`` after the
    other.
    """
    return planned(coarse, steps(workers), lambda level: minimise(level.sizes, level.terms))


def planned(
    coarse: Coarse, parts: Sequence[int], solve: Solver, even: bool = True, reduce: bool = True
) -> TofuPlan:
    """The plan of which ``solve`` chooses each step.

    ``even``: only into equal parts. Without ``reduce`` no forward op makes partial results that can
    be cut otherwise.
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
    """One step: what is left of the ops and tensors on one group, what can be chosen, and what each
    choice sends.

    Variables are the tensors, then the choosers: units that choose one axis together (the steps of
    an unrolled op).
    """

    def __init__(self, coarse: Coarse, even: bool = True, reduce: bool = True) -> None:
        self.coarse, self.even, self.reduce = coarse, even, reduce
        self.shapes: list[tuple[int, ...]] = list(coarse.shapes)
        self.semantics: list[Semantics | None] = [unit.reading.semantics for unit in coarse.units]
        self.inputs = [_inputs(unit) for unit in coarse.units]
        self.outputs = [_outputs(unit) for unit in coarse.units]
        self.chooser = _choosers(coarse)
        self.weights = [_weights(coarse, unit) for unit in coarse.units]
        self.parts = 1
        self.dimensions: list[list[int]] = []
        self.axes: list[list[str]] = []
        self.sizes: list[int] = []
        self.terms: list[Term] = []

    def open(self, parts: int) -> None:
        """Ask for a step of so many parts."""
        self.parts = parts
        self.dimensions = [self._dimensions(shape) for shape in self.shapes]
        self.axes = self._axes()
        self.sizes = [*map(len, self.dimensions), *map(len, self.axes)]
        self.terms = self._terms()

    def _dimensions(self, shape: tuple[int, ...]) -> list[int]:
        """The dimensions along which a tensor can be cut."""
        even = [d for d, extent in enumerate(shape) if extent % self.parts == 0 and extent]
        if even or self.even:
            return even or [WHOLE]
        return [d for d, extent in enumerate(shape) if extent >= self.parts] or [WHOLE]

    def _axes(self) -> list[list[str]]:
        """The axes of each chooser: those of all of its units."""
        axes: list[list[str] | None] = [None] * (1 + max(self.chooser, default=-1))
        for number, chooser in enumerate(self.chooser):
            names = list(self._cuts(number))
            common = axes[chooser]
            axes[chooser] = names if common is None else [axis for axis in common if axis in names]
        return [names or [""] for names in axes]

    def _cuts(self, number: int) -> dict[str, Cut]:
        semantics = self.semantics[number]
        if semantics is None:
            return {}
        ways = cuts(semantics, self.parts) or (
            () if self.even else cuts(semantics, self.parts, False)
        )
        if (
            not self.reduce
            and self.coarse.graph.ops[self.coarse.units[number].ops[0]].phase == "forward"
        ):
            ways = tuple(way for way in ways if "reduce" not in way.effects) or ways
        return {way.axis: way for way in ways}

    def _terms(self) -> list[Term]:
        """Bytes by (tensor, chooser)."""
        tables: dict[tuple[int, int], np.ndarray] = {}
        first = len(self.shapes)
        for number, unit in enumerate(self.coarse.units):
            ways = [self._cuts(number).get(axis) for axis in self.axes[self.chooser[number]]]
            read, written = self.weights[number]
            for at, (_, tensor) in enumerate(unit.inputs):
                side = self.inputs[number][at]
                table = [
                    [self._read(number, way, side, d) for d in self.dimensions[tensor]]
                    for way in ways
                ]
                _add(tables, (tensor, first + self.chooser[number]), np.array(table).T * read[at])
            for at, (_, tensor) in enumerate(unit.outputs):
                side = self.outputs[number][at]
                table = [
                    [write_step(way, side, d, self.parts).sent for d in self.dimensions[tensor]]
                    for way in ways
                ]
                _add(
                    tables, (tensor, first + self.chooser[number]), np.array(table).T * written[at]
                )
        return [Term(pair, table) for pair, table in tables.items()]

    def _read(self, number: int, way: Cut | None, side: Side, dimension: int) -> float:
        semantics = self.semantics[number]
        return (
            0.0
            if semantics is None and dimension == WHOLE
            else self._step(number, way, side, dimension)[0]
        )

    def _step(self, number: int, way: Cut | None, side: Side, dimension: int) -> tuple[float, Side]:
        return read_step(self.semantics[number], way, side, dimension, self.parts)

    def chosen_dimensions(self, values: Sequence[int]) -> tuple[int, ...]:
        """The dimension of each tensor."""
        return tuple(
            choices[value] for choices, value in zip(self.dimensions, values, strict=False)
        )

    def chosen_axes(self, values: Sequence[int]) -> tuple[str, ...]:
        """The axis of each unit."""
        first = len(self.shapes)
        return tuple(self.axes[chooser][values[first + chooser]] for chooser in self.chooser)

    def advance(self, values: Sequence[int]) -> None:
        """Go on with the first part."""
        dimensions, axes = self.chosen_dimensions(values), self.chosen_axes(values)
        for number, unit in enumerate(self.coarse.units):
            way = self._cuts(number).get(axes[number])
            self.inputs[number] = [
                self._step(number, way, side, dimensions[tensor])[1]
                for side, (_, tensor) in zip(self.inputs[number], unit.inputs, strict=True)
            ]
            self.outputs[number] = [
                write_step(way, side, dimensions[tensor], self.parts).side
                for side, (_, tensor) in zip(self.outputs[number], unit.outputs, strict=True)
            ]
            if way is not None:
                self.semantics[number] = way.following
        for tensor, dimension in enumerate(dimensions):
            if dimension != WHOLE:
                shape = list(self.shapes[tensor])
                shape[dimension] = -(-shape[dimension] // self.parts)
                self.shapes[tensor] = tuple(shape)


def _add(
    tables: dict[tuple[int, int], np.ndarray], pair: tuple[int, int], table: np.ndarray
) -> None:
    tables[pair] = tables[pair] + table if pair in tables else table


def _inputs(unit: Unit) -> list[Side]:
    reading = unit.reading
    return [
        Side(
            operand,
            reading.stored[operand],
            reading.strides[operand],
            float(prod(reading.stored[operand])),
            0.0,
        )
        for operand, _ in unit.inputs
    ]


def _outputs(unit: Unit) -> list[Side]:
    return [
        Side(k, unit.reading.made[k], None, float(prod(unit.reading.made[k])), 0.0)
        for k, _ in unit.outputs
    ]


def _choosers(coarse: Coarse) -> list[int]:
    """The chooser of each unit: one for all steps of an unrolled op."""
    number: dict[object, int] = {}
    choosers = []
    for at, unit in enumerate(coarse.units):
        name = coarse.graph.ops[unit.ops[0]].name
        choosers.append(number.setdefault(unrolled(name) if "@" in name else at, len(number)))
    return choosers


def _weights(coarse: Coarse, unit: Unit) -> tuple[list[float], list[float]]:
    """Bytes of an element of each input and output, over all ops of a unit."""
    read = coarse.dataflow.read
    inputs = [
        sum(coarse.element_bytes(*read[i][operand]) for i in unit.ops) for operand, _ in unit.inputs
    ]
    outputs = [
        sum(coarse.element_bytes(i, k) * coarse.share(i, k) for i in unit.ops)
        for k, _ in unit.outputs
    ]
    return inputs, outputs
