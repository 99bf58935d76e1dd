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

from ...nouns.structure import before_of, components, topological
from .problem import MaxLoadProblem


def latency(problem: MaxLoadProblem, devices: Sequence[int]) -> float:
    """The ms until the last op ends; inf where devices wait for each other or an op cannot run.

    ``devices`` by op.
    """
    # A unit is an accelerator with all its ops, or an op on a CPU (the number below 0).
    unit = [-1 - op if device in problem.cpus else device for op, device in enumerate(devices)]
    length, before = dict.fromkeys(unit, 0.0), {key: set[int]() for key in unit}
    for op, device in enumerate(devices):
        on_cpu = device in problem.cpus
        length[unit[op]] += (problem.on_cpu if on_cpu else problem.on_accelerator)[op]
        others = {unit[reader] for reader in problem.readers[op]} - {unit[op]}
        for end in {*others, unit[op]} if others else ():
            if end >= 0:
                length[end] += problem.cost[op]
        for other in others:
            before[other].add(unit[op])
    number = {key: at for at, key in enumerate(length)}
    return _longest(
        list(length.values()), [[number[other] for other in before[key]] for key in length]
    )


def _longest(length: Sequence[float], before: Sequence[Sequence[int]]) -> float:
    """The longest path; inf where there is a cycle."""
    order, ends = topological(before), [0.0] * len(length)
    for node in order:
        ends[node] = max((ends[other] for other in before[node]), default=0.0) + length[node]
    return inf if len(order) < len(length) else max(ends, default=0.0)


def least(problem: MaxLoadProblem) -> float:
    """What no placement can go below: the longest path, every op where it is fastest, nothing to
    send.
    """
    before: list[list[int]] = [[] for _ in problem.group]
    for op, readers in enumerate(problem.readers):
        for reader in readers:
            before[reader].append(op)
    times = zip(problem.on_accelerator, problem.on_cpu, strict=True)
    return _longest([min(*pair) if problem.cpus else pair[0] for pair in times], before)


def filled(problem: MaxLoadProblem) -> tuple[int, ...] | None:
    """The greedy baseline: accelerators are filled along an order that stays on a branch, the rest
    is for the CPU.

    What the CPU has to run closes the accelerator that came before, which may not be entered twice.
    None where something runs nowhere.
    """
    capacity = inf if problem.capacity is None else problem.capacity
    places, room, entered = list(problem.accelerators), capacity, False
    where = [-1] * len(problem.group)
    for members in _in_order(problem):
        size = sum(problem.size[op] for op in members)
        able = all(isfinite(problem.on_accelerator[op]) for op in members) and size <= capacity
        if entered and places and (not able or size > room):
            places, room, entered = places[1:], capacity, False
        if able and places:
            device, room, entered = places[0], room - size, True
        elif problem.cpus and all(isfinite(problem.on_cpu[op]) for op in members):
            device = problem.cpus[0]
        else:
            return None
        for op in members:
            where[op] = device
    return tuple(where)


def _in_order(problem: MaxLoadProblem) -> list[list[int]]:
    """The ops group by group, groups that lie on a cycle together, in an order that stays on a
    branch.
    """
    block = components(len(problem.members), problem.order)
    ops_of: list[list[int]] = [[] for _ in range(max(block, default=-1) + 1)]
    for op, group in enumerate(problem.group):
        ops_of[block[group]].append(op)
    edges = ((block[a], block[b]) for a, b in problem.order if block[a] != block[b])
    return [ops_of[number] for number in topological(before_of(len(ops_of), edges), "branch")]
