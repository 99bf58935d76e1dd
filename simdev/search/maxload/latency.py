"""The latency problem of dnn-partitioning (Tarnawski et al., NeurIPS 2020): one inference as early
as possible.

CPUs are unlimited: an op there ends ``on_cpu`` after all that it reads. An accelerator runs all
that it is given as one unit: it starts when every producer outside has ended, then takes the costs
of what comes in, the times of its ops and the costs of what goes out; all its ops end then. What
one accelerator holds is limited by its memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite

import numpy as np

from ...errors import InputError
from ...structure import before_of, components, topological
from .problem import Problem
from .solver import GAP, Constraints, Solved, minimum

SLACK = 1e-3  # relative, of the bound on all times: a tight one troubles the solver


def latency(problem: Problem, devices: Sequence[int]) -> float:
    """The ms until the last op ends; inf where devices wait for each other or an op cannot run.

    ``devices`` by op.
    """
    unit = [
        f"op {op}" if device in problem.cpus else f"device {device}"
        for op, device in enumerate(devices)
    ]
    length: dict[str, float] = dict.fromkeys(unit, 0.0)
    before: dict[str, set[str]] = {one: set() for one in length}
    for op, device in enumerate(devices):
        length[unit[op]] += (
            problem.on_cpu[op] if device in problem.cpus else problem.on_accelerator[op]
        )
        others = {unit[reader] for reader in problem.readers[op]} - {unit[op]}
        for end in {*others, unit[op]} if others else ():
            if end.startswith("device"):
                length[end] += problem.cost[op]
        for other in others:
            before[other].add(unit[op])
    return _longest(length, before)


def _longest(length: dict[str, float], before: dict[str, set[str]]) -> float:
    """The longest path; inf where there is a cycle."""
    names = list(length)
    number = {name: i for i, name in enumerate(names)}
    order = topological([[number[other] for other in before[name]] for name in names])
    if len(order) < len(names):
        return inf
    ends: dict[str, float] = {}
    for i in order:
        ends[names[i]] = (
            max((ends[other] for other in before[names[i]]), default=0.0) + length[names[i]]
        )
    return max(ends.values(), default=0.0)


def least(problem: Problem) -> float:
    """What no placement can go below: the longest path, every op where it is fastest, nothing to
    send.
    """
    ends = [0.0] * len(problem.group)
    before: list[list[int]] = [[] for _ in ends]
    for op, readers in enumerate(problem.readers):
        for reader in readers:
            before[reader].append(op)
    for op in topological(before):
        fastest = min(problem.on_accelerator[op], problem.on_cpu[op] if problem.cpus else inf)
        ends[op] = max((ends[other] for other in before[op]), default=0.0) + fastest
    return max(ends, default=0.0)


def filled(problem: Problem) -> tuple[int, ...] | None:
    """The greedy baseline: accelerators are filled along an order that stays on a branch, the rest
    is for the CPU.

    What the CPU has to run closes the accelerator that came before, which may not be entered twice.
    None where something runs nowhere.
    """
    places, room, entered = list(problem.accelerators), _room(problem), False
    found = [-1] * len(problem.group)
    for members in _in_order(problem):
        size = sum(problem.size[op] for op in members)
        able = all(isfinite(problem.on_accelerator[op]) for op in members) and size <= _room(
            problem
        )
        if places and entered and (not able or size > room):
            places, room, entered = places[1:], _room(problem), False
        if able and places:
            device, room, entered = places[0], room - size, True
        elif problem.cpus and all(isfinite(problem.on_cpu[op]) for op in members):
            device = problem.cpus[0]
        else:
            return None
        for op in members:
            found[op] = device
    return tuple(found)


def _in_order(problem: Problem) -> list[list[int]]:
    """The ops group by group, groups that lie on a cycle together, in an order that stays on a
    branch.
    """
    block = components(len(problem.members), problem.order)
    count = max(block, default=-1) + 1
    edges = ((block[a], block[b]) for a, b in problem.order if block[a] != block[b])
    order = topological(before_of(count, edges), "branch")
    found: list[list[int]] = [[] for _ in range(count)]
    for op, group in enumerate(problem.group):
        found[block[group]].append(op)
    return [found[one] for one in order]


def _room(problem: Problem) -> float:
    return inf if problem.capacity is None else problem.capacity


def latency_program(
    problem: Problem, seconds: float, known: float = inf, gap: float = GAP
) -> Solved:
    """The placement of least latency, as far as HiGHS comes.

    ``known`` (ms) is a latency that is already reached.

    Raises InputError where no placement fits into memory, SimdevError where scipy is missing.
    """
    model = _Model(problem, known)
    integral = np.zeros(model.columns)
    integral[: model.sent] = integral[model.received : model.binary] = 1
    found = minimum(model.rows, integral, model.high, seconds, gap)
    if found.infeasible and known == inf:
        raise InputError(
            "dnn-latency: nothing runs on these devices and fits into the memory of the "
            "accelerators"
        )
    if found.columns is None:
        return Solved(None, known, known if found.infeasible else found.bound, found.failure)
    chosen = (
        found.columns[: model.groups * len(model.places)].reshape(model.groups, -1).argmax(axis=1)
    )
    devices = tuple(model.places[chosen[group]] for group in problem.group)
    return Solved(devices, latency(problem, devices), found.bound)


class _Model:
    """Columns: x by group and place (accelerators, then one for all CPUs), sent and received by op
    and accelerator.

    Then the ends of the ops, start and finish of the accelerators, the last end.
    """

    def __init__(self, problem: Problem, known: float) -> None:
        self.problem, self.ops, self.groups = problem, len(problem.group), len(problem.members)
        self.accelerators = len(problem.accelerators)
        self.places = (*problem.accelerators, *problem.cpus[:1])
        self.sent = self.groups * len(self.places)
        self.received = self.sent + self.ops * self.accelerators
        self.binary = self.received + self.ops * self.accelerators
        self.end = self.binary
        self.start = self.end + self.ops
        self.finish = self.start + self.accelerators
        self.columns = self.finish + self.accelerators + 1
        self.most = min(known, self._horizon()) * (1 + SLACK)
        self.high = np.concatenate(
            [np.ones(self.binary), np.full(self.columns - self.binary, self.most)]
        )
        self.rows = Constraints()
        self._forbid()
        self._assign()
        for place in range(self.accelerators):
            self._unit(place)
        for op in range(self.ops):
            self._follow(op)

    def _horizon(self) -> float:
        """What no sensible placement exceeds: everything one after the other, each the slower
        way.
        """
        slow = (max(t for t in (a, c, 0.0) if isfinite(t)) for a, c in self._times())
        return sum(slow) + sum(self.problem.cost) * (1 + self.accelerators)

    def _times(self) -> list[tuple[float, float]]:
        return list(zip(self.problem.on_accelerator, self.problem.on_cpu, strict=True))

    def x(self, op: int, place: int) -> int:
        return self.problem.group[op] * len(self.places) + place

    def _forbid(self) -> None:
        for op, (accelerator, cpu) in enumerate(self._times()):
            for place in range(len(self.places)):
                if not isfinite(accelerator if place < self.accelerators else cpu):
                    self.high[self.x(op, place)] = 0.0

    def _assign(self) -> None:
        """Every group somewhere; sizes within the capacity; accelerators of no use come last."""
        width = len(self.places)
        for group in range(self.groups):
            self.rows.add(range(group * width, (group + 1) * width), None, 1.0, 1.0)
        capacity = self.problem.capacity
        for place in range(self.accelerators if capacity is not None else 0):
            sizes = [
                sum(self.problem.size[op] for op in members) / max(capacity or 1, 1)
                for members in self.problem.members
            ]
            self.rows.add([group * width + place for group in range(self.groups)], sizes, -inf, 1.0)

    def _unit(self, place: int) -> None:
        """An accelerator: what comes in and goes out, when it may start, and when it ends."""
        problem, columns, values = (
            self.problem,
            [self.finish + place, self.start + place],
            [1.0, -1.0],
        )
        for op in range(self.ops):
            sent, received = (
                self.sent + op * self.accelerators + place,
                self.received + op * self.accelerators + place,
            )
            time = problem.on_accelerator[op]
            columns += [sent, received]
            values += [-problem.cost[op], -problem.cost[op]]
            self.rows.add(
                [self.x(op, place), self.end + op, self.finish + place],
                [-self.most, 1.0, -1.0],
                -self.most,
                inf,
            )
            for reader in problem.readers[op]:
                here, there = self.x(op, place), self.x(reader, place)
                self.rows.add([sent, here, there], [1.0, -1.0, 1.0], 0.0, inf)
                self.rows.add([received, there, here], [1.0, -1.0, 1.0], 0.0, inf)
            self.rows.add(
                [self.start + place, self.end + op, received],
                [1.0, -1.0, -self.most],
                -self.most,
                inf,
            )
            columns.append(self.x(op, place))
            values.append(-time if isfinite(time) else 0.0)
        self.rows.add(columns, values, 0.0, inf)

    def _follow(self, op: int) -> None:
        """An op ends after what it reads, on a CPU by its time; the last end is no earlier."""
        cpu = self.problem.on_cpu[op]
        own = [(self.x(op, self.accelerators), -cpu)] if self.problem.cpus and isfinite(cpu) else []
        self.rows.add([self.columns - 1, self.end + op], [1.0, -1.0], 0.0, inf)
        self.rows.add([self.end + op, *(c for c, _ in own)], [1.0, *(v for _, v in own)], 0.0, inf)
        for reader in self.problem.readers[op]:
            cpu = self.problem.on_cpu[reader]
            own = (
                [(self.x(reader, self.accelerators), -cpu)]
                if self.problem.cpus and isfinite(cpu)
                else []
            )
            columns = [self.end + reader, self.end + op, *(c for c, _ in own)]
            self.rows.add(columns, [1.0, -1.0, *(v for _, v in own)], 0.0, inf)
