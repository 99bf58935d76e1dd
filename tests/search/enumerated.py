"""Optimal answers for planners by exhaustive enumeration, and the problems to solve."""

from __future__ import annotations

from itertools import permutations, product
from math import inf

from simdev.nouns.structure import before_of, topological
from simdev.search.maxload.contiguous import Blocks, Split, blocks_of, splits
from simdev.search.maxload.problem import MaxLoadProblem, latency
from simdev.search.pipedream.plan import Level, Profile
from worlds.tape import Tape

WORKLOADS = {
    "LayerGraphs/bert24_inference": 17.78990625,
    "LayerGraphs/gnmt_training": 107.0044140625,
    "OperatorGraphs/bert_l-3_training": 65.303149122,
    "OperatorGraphs/bert_l-6_inference": 29.579505806,
}
"""The least possible maximum load of workloads of dnn-partitioning, in ms."""


def problem(tape: Tape) -> MaxLoadProblem:
    """A random problem of up to 6 nodes in some groups, on up to 3 accelerators and a CPU; no edge
    leads from a backward to a forward node.
    """
    count = 1 + tape.number(6)
    backward = tuple(bool(tape.pick(0, 0, 1)) for _ in range(count))
    readers: list[tuple[int, ...]] = []
    for i in range(count):
        later = [
            j
            for j in range(i + 1, count)
            if tape.number(2) and not (backward[i] and not backward[j])
        ]
        readers.append(tuple(later))
    group = [tape.number(3) if tape.number(2) else 3 + i for i in range(count)]
    known = {name: number for number, name in enumerate(dict.fromkeys(group))}
    times = tuple(float(tape.pick(1, 2, 5, 0)) for _ in range(count))
    machines = 1 + tape.number(3)
    return MaxLoadProblem(
        on_accelerator=tuple(inf if tape.number(9) == 8 else one for one in times),
        on_cpu=tuple(3 * one for one in times),
        cost=tuple(float(tape.pick(0, 1, 2)) for _ in range(count)),
        size=tuple(tape.pick(1, 0, 3) for _ in range(count)),
        readers=tuple(readers),
        backward=backward,
        group=tuple(known[one] for one in group),
        accelerators=tuple(range(machines)),
        cpus=(machines,) if tape.number(3) else (),
        capacity=tape.pick(None, None, 6, 4),
    )


def best_split(blocks: Blocks, *most: int) -> Split:
    """The best split: the last that ``splits`` yields."""
    return list(splits(blocks, *most))[-1]


def best_load(one: MaxLoadProblem, ordered: bool) -> float:
    """The least maximum load over all assignments of groups; with ``ordered``, over those whose
    devices can be put in an order.
    """
    places, best = (*one.accelerators, *one.cpus), inf
    for chosen in product(places, repeat=len(one.members)):
        devices = [chosen[group] for group in one.group]
        if one.fits(devices) and (not ordered or in_a_row(one, chosen)):
            best = min(best, max(one.loads(devices).values()))
    return best


def in_a_row(one: MaxLoadProblem, chosen: tuple[int, ...]) -> bool:
    for order in permutations(sorted(set(chosen))):
        rank = {device: at for at, device in enumerate(order)}
        if all(rank[chosen[a]] <= rank[chosen[b]] for a, b in one.order):
            return True
    return False


def best_chain(profile: Profile, level: Level) -> float:
    """The least time over all cuts of a chain and all shares of the machines."""

    def stage(first: int, last: int, replicas: int) -> float:
        held = sum(profile.parameters[first:last])
        return (
            sum(profile.seconds[first:last])
            + 4 * (replicas - 1) * held / (level.bandwidth * replicas)
        ) / replicas

    def best(end: int, machines: int) -> float:
        found = stage(0, end, machines)
        for cut in range(1, end):
            for replicas in range(1, machines):
                moved = 2 / (level.bandwidth * replicas)
                out = profile.activations[end - 1] * moved if end < len(profile.seconds) else 0.0
                last = max(stage(cut, end, replicas), profile.activations[cut - 1] * moved, out)
                found = min(found, max(best(cut, machines - replicas), last))
        return found

    return best(len(profile.seconds), level.count)


def best_latency(one: MaxLoadProblem) -> float:
    """The least latency over all placements of the groups."""
    found = inf
    for chosen in product((*one.accelerators, *one.cpus), repeat=len(one.members)):
        devices = [chosen[group] for group in one.group]
        if one.fits(devices):
            found = min(found, latency(one, devices))
    return found


def best_in_line(one: MaxLoadProblem) -> float:
    """The least maximum load over all cuts of the linear order, with one run for each device."""
    blocks, best = blocks_of(one), inf
    order = topological(before_of(len(blocks.size), blocks.order), "branch")
    for chosen in product((*one.accelerators, *one.cpus), repeat=len(order)):
        runs = [device for at, device in enumerate(chosen) if not at or chosen[at - 1] != device]
        devices = blocks.devices([device for _, device in sorted(zip(order, chosen, strict=True))])
        if len(runs) == len(set(runs)) and one.fits(devices):
            best = min(best, max(one.loads(devices).values()))
    return best


def best_layered(profile: Profile, levels: list[Level]) -> float:
    """The least time over all cuts of a chain and all shares of the machines, on every level."""
    groups = len(profile.seconds)

    def handed(state: int) -> int:
        return profile.activations[state - 1] if 0 < state < groups else 0

    def one(level: int, i: int, j: int) -> float:
        return (
            best(level - 1, i, j, levels[level - 1].count) if level else sum(profile.seconds[i:j])
        )

    def best(level: int, i: int, j: int, machines: int) -> float:
        bandwidth, width = levels[level].bandwidth, levels[level - 1].count if level else 1
        held = sum(profile.parameters[i:j])
        found = (
            one(level, i, j) + 4 * (machines - 1) * held / (bandwidth * machines) / width
        ) / machines
        for k in range(i + 1, j):
            for r in range(1, machines):
                synced = 4 * (r - 1) * sum(profile.parameters[k:j]) / (bandwidth * r)
                last = (one(level, k, j) + synced) / r
                crossed = max(handed(k), handed(j)) * 2 / (bandwidth * r)
                found = min(found, max(best(level, i, k, machines - r), last, crossed))
        return found

    return best(len(levels) - 1, 0, groups, levels[-1].count)
