"""The max-load split as an integer program, solved by HiGHS."""

from __future__ import annotations

from math import inf, isfinite

import numpy as np

from ...errors import InputError
from .blocks import Net, nets_of
from .problem import Problem
from .solver import GAP, Constraints, Floats, Solved, minimum


def integer_program(
    problem: Problem, seconds: float, known: float = inf, gap: float = GAP
) -> Solved:
    """The best split of all, contiguous or not.

    ``known`` (ms) is a largest load that is already reached.

    x by group and device, y by net and accelerator: y >= |x_a - x_b| for the op's block a and each
    reader's b. Raises InputError where no split fits into memory, SimdevError where scipy is
    missing.
    """
    model = _Model(problem)
    integral = np.zeros(model.columns)
    integral[: model.groups * len(model.places)] = 1
    found = minimum(model.rows(), integral, model.high(known), seconds, gap)
    if found.infeasible and known == inf:
        raise InputError(
            "max-load: no split runs on these devices and fits into the memory of the accelerators"
        )
    if found.columns is None:
        return Solved(None, known, known if found.infeasible else found.bound, found.failure)
    chosen = (
        found.columns[: model.groups * len(model.places)].reshape(model.groups, -1).argmax(axis=1)
    )
    devices = tuple(model.places[chosen[group]] for group in problem.group)
    return Solved(devices, max(problem.loads(devices).values()), found.bound)


class _Model:
    """Columns: x by group and place, y by net and accelerator, the largest load."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.groups = len(problem.members)
        self.places = (*problem.accelerators, *problem.cpus)
        self.nets: tuple[tuple[int, tuple[int, ...], float], ...] = _sourced(problem)
        self.columns = (
            self.groups * len(self.places) + len(self.nets) * len(problem.accelerators) + 1
        )
        self._rows = Constraints()

    def x(self, group: int, place: int) -> int:
        return group * len(self.places) + place

    def y(self, net: int, place: int) -> int:
        return self.groups * len(self.places) + net * len(self.problem.accelerators) + place

    def high(self, known: float) -> Floats:
        """The most of each column; ``known`` is that of the largest load."""
        high = np.ones(self.columns)
        high[-1] = known
        for group, ops in enumerate(self.problem.members):
            for place in range(len(self.places)):
                if not isfinite(sum(self._time(op, place) for op in ops)):
                    high[self.x(group, place)] = 0
        # Accelerators are alike: the heaviest group is on the first, or on a CPU.
        heaviest = max(range(self.groups), key=lambda g: (self._weight(g), -g), default=0)
        for place in range(1, len(self.problem.accelerators)):
            high[self.x(heaviest, place)] = 0
        return high

    def _time(self, op: int, place: int) -> float:
        on_accelerator = place < len(self.problem.accelerators)
        return self.problem.on_accelerator[op] if on_accelerator else self.problem.on_cpu[op]

    def _weight(self, group: int) -> float:
        total = sum(self.problem.on_accelerator[op] for op in self.problem.members[group])
        return total if isfinite(total) else -1.0

    def rows(self) -> Constraints:
        """All constraints."""
        for group in range(self.groups):
            self._rows.add(
                [self.x(group, place) for place in range(len(self.places))], None, 1.0, 1.0
            )
        for place in range(len(self.places)):
            self._add_load(place)
        for net, (source, readers, _) in enumerate(self.nets):
            for place in range(len(self.problem.accelerators)):
                for reader in readers:
                    a, b, y = self.x(source, place), self.x(reader, place), self.y(net, place)
                    self._rows.add([a, b, y], [1.0, -1.0, -1.0], -inf, 0.0)
                    self._rows.add([b, a, y], [1.0, -1.0, -1.0], -inf, 0.0)
        return self._rows

    def _add_load(self, place: int) -> None:
        """The load of a place is at most the largest; sizes stay within the capacity."""
        problem, cols = self.problem, [self.x(group, place) for group in range(self.groups)]
        times = [sum(self._time(op, place) for op in ops) for ops in problem.members]
        values = [time if isfinite(time) else 0.0 for time in times]
        if place < len(problem.accelerators):
            more = [self.y(net, place) for net in range(len(self.nets))]
            self._rows.add(
                [*cols, *more, self.columns - 1],
                [*values, *(cost for *_, cost in self.nets), -1.0],
                -inf,
                0.0,
            )
            if problem.capacity is not None:
                sizes = [float(sum(problem.size[op] for op in ops)) for ops in problem.members]
                self._rows.add(cols, [size / max(problem.capacity, 1) for size in sizes], -inf, 1.0)
        else:
            self._rows.add([*cols, self.columns - 1], [*values, -1.0], -inf, 0.0)


def _sourced(problem: Problem) -> tuple[tuple[int, tuple[int, ...], float], ...]:
    """(group, groups of readers, cost): nets of the same groups as one, told from any of them."""
    nets: tuple[Net, ...] = nets_of(problem, range(len(problem.members)))
    return tuple((pins[0], pins[1:], cost) for pins, cost in nets)
