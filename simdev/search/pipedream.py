"""PipeDream's partition (Narayanan et al., SOSP 2019, section 3.1): stages with replicas, by dynamic programming."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..oracle import Oracle
from .ideals import bits, chain, components, depth_first, ideals, leaves
from .trial import Trial

MOST = 2500  # ideals; beyond it those of one linear order are taken
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of the pipeline: its groups of ops, on how many devices, and the seconds of a minibatch."""

    groups: tuple[int, ...]
    replicas: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Partition:
    """Stages in order, the period of the pipeline in seconds, and whether every ideal was looked at."""

    stages: tuple[Stage, ...]
    seconds: float
    exact: bool


@dataclass(frozen=True, slots=True)
class Profile:
    """What the planner reads of groups of ops: forward and backward seconds, bytes that forward ops make, parameters.

    ``order`` holds (earlier, later) pairs of groups.
    """

    seconds: tuple[float, ...]
    activations: tuple[int, ...]
    parameters: tuple[int, ...]
    order: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Level:
    """``count`` machines joined at ``bandwidth`` bytes per second, each made of the level below."""

    count: int
    bandwidth: float


def profile_of(oracle: Oracle) -> Profile:
    """The layers of a graph: its colocation groups, each with all phases, in the order of their forward ops.

    Groups on a cycle of forward edges keep their order among each other only. Times are means over devices. Raises
    InputError where a backward op stands in a group without forward ops (pair them first).
    """
    graph, group = oracle.graph, dict[int, int]()
    for row, members in enumerate(oracle.groups):
        group.update(dict.fromkeys(members, row))
        if all(graph.ops[i].phase != "forward" for i in members):
            name = graph.ops[members[0]].name
            raise InputError(f'pipedream: "{name}" stands in no group with a forward op: use the preparation "pair"')
    duration = oracle.prepared.duration
    mean = np.where(duration >= 0, duration, 0).sum(axis=1) / np.maximum((duration >= 0).sum(axis=1), 1) / 1e12
    order = {
        (group[producer], group[consumer])
        for consumer, reads in enumerate(graph.reads)
        for producer, _ in reads
        if graph.ops[producer].phase == graph.ops[consumer].phase == "forward"
    }
    ops = [[graph.ops[i] for i in members] for members in oracle.groups]
    return Profile(
        tuple(float(mean[list(members)].sum()) for members in oracle.groups),
        tuple(sum(t.bytes for op in one if op.phase == "forward" for t in op.made) for one in ops),
        tuple(sum(op.param_bytes for op in one) for one in ops),
        tuple(sorted(pair for pair in order if pair[0] != pair[1])),
    )


def partition(profile: Profile, levels: Sequence[Level], straight: bool = False) -> Partition:
    """The stages of the least period; ``straight``: one device a stage. ``levels`` from the innermost machine outwards.

    A stage of r replicas takes (its time + 4 (r - 1) W / (b r)) / r seconds for W bytes of parameters and bandwidth b;
    what crosses between stages, forth and back, takes 2 A / (b r), r of the later one. The period is the longest. All
    machines are used, but those that a straight pipeline does better without. Groups on a cycle stay together, and
    those of no time and no parameters with the only group they touch. Raises InputError for no devices.
    """
    if not levels or any(level.count < 1 for level in levels):
        raise InputError("pipedream: needs a device")
    states, exact = _states(profile)
    time, parameters, crossing = _tables(profile, states)
    tables = _Tables(time, parameters, crossing)
    best, splits = time[:, :, None], list[Splits]()
    for number, level in enumerate(levels):
        width = levels[number - 1].count if number else 1
        starts = range(1) if number == len(levels) - 1 else range(len(states) - 1)
        best, split = _level(tables, best[:, :, -1], level, width, straight, starts)
        splits.append(split)
    used = int(best[0, -1].argmin()) if straight else levels[-1].count - 1
    machines = [level.count for level in levels[:-1]] + [used + 1]
    found = _expanded(splits, machines, len(levels) - 1, 0, len(states) - 1, used)
    stages = [Stage(tuple(bits(states[j] & ~states[i])), r, float(time[i, j])) for i, j, r in found]
    return Partition(tuple(stages), float(best[0, -1, used]), exact)


def _states(profile: Profile) -> tuple[list[int], bool]:
    """The ideals of groups (bit sets) in a topological order, the empty one first; and whether these are all."""
    idle = [not (seconds or held) for seconds, held in zip(profile.seconds, profile.parameters, strict=True)]
    block = components(len(profile.seconds), {*profile.order, *leaves(idle, profile.order)})
    count = max(block, default=-1) + 1
    order = {(block[a], block[b]) for a, b in profile.order if block[a] != block[b]}
    found = ideals(count, order, MOST)
    chosen = chain(depth_first(count, order)) if found is None else found
    members = [0] * count
    for group, one in enumerate(block):
        members[one] |= 1 << group
    return [sum(members[one] for one in bits(ideal)) for ideal in chosen], found is not None


@dataclass(frozen=True, slots=True, eq=False)
class _Tables:
    """Between two states: seconds (inf where one does not hold the other), bytes of parameters; bytes after each."""

    time: Floats
    parameters: Floats
    crossing: Floats


def _tables(profile: Profile, states: Sequence[int]) -> tuple[Floats, Floats, Floats]:
    """The columns of ``_Tables``. What a state hands on are the activations of its groups that a later group reads."""
    after = [0] * len(profile.seconds)
    for first, second in profile.order:
        after[first] |= 1 << second
    members = [bits(state) for state in states]
    seconds, parameters = (
        np.array([sum(column[group] for group in one) for one in members], np.float64)
        for column in (profile.seconds, profile.parameters)
    )
    crossing = [
        float(sum(profile.activations[group] for group in one if after[group] & ~state))
        for one, state in zip(members, states, strict=True)
    ]
    inside = np.array([[small & ~large == 0 and small != large for large in states] for small in states])
    time = np.where(inside, seconds[None, :] - seconds[:, None], inf)
    return time, np.where(inside, parameters[None, :] - parameters[:, None], 0.0), np.array(crossing)


Splits = dict[tuple[int, int, int], tuple[int, int]]
"""By (state before, state after, devices - 1): the state before the last stage, and its replicas."""


def _level(
    tables: _Tables, time: Floats, level: Level, width: int, straight: bool, starts: Sequence[int]
) -> tuple[Floats, Splits]:
    """The least period between two states on 1, 2, ... machines of this level (last axis), and the splits.

    ``time`` is that of the level below on one machine; ``width`` how many machines make one of this level.
    """
    count, machines, parameters, crossing = len(time), level.count, tables.parameters, tables.crossing
    best = np.full((count, count, machines), inf)
    for m in range(1 if straight else machines):
        best[:, :, m] = (time + 4 * m * parameters / (level.bandwidth * (m + 1)) / width) / (m + 1)
    splits: Splits = {}
    for m in range(1, machines):
        for replicas in range(1, 2 if straight else m + 1):
            rate = level.bandwidth * replicas
            stage = (time + 4 * (replicas - 1) * parameters / rate) / replicas
            stage = np.maximum(stage, np.maximum(crossing[:, None], crossing[None, :]) * 2 / rate)
            for i in starts:
                both = np.maximum(best[i, :, m - replicas][:, None], stage)
                k = both.argmin(axis=0)
                value = both[k, np.arange(count)]
                for j in np.flatnonzero(value < best[i, :, m]).tolist():
                    best[i, j, m] = value[j]
                    splits[i, j, m] = int(k[j]), replicas
    return best, splits


def _expanded(
    splits: Sequence[Splits], machines: Sequence[int], level: int, i: int, j: int, m: int
) -> list[tuple[int, int, int]]:
    """The stages between two states on m + 1 machines of a level: (state before, state after, devices)."""
    if level < 0:
        return [(i, j, 1)]
    k, replicas, before = i, m + 1, list[tuple[int, int, int]]()
    if (i, j, m) in splits[level]:
        k, replicas = splits[level][i, j, m]
        before = _expanded(splits, machines, level, i, k, m - replicas)
    inner = _expanded(splits, machines, level - 1, k, j, machines[level - 1] - 1 if level else 0)
    return [*before, *((a, b, r * replicas) for a, b, r in inner)]


def levels_of(oracle: Oracle) -> list[Level]:
    """The devices as levels: those of a node, then the nodes, where all nodes have as many; else all as one level.

    The bandwidth of a level is the least between two devices of it.
    """
    cluster = oracle.cluster
    nodes: dict[int, list[int]] = {}
    for d, device in enumerate(cluster.devices):
        if device.runs_ops:
            nodes.setdefault(device.node, []).append(d)
    sizes = {len(one) for one in nodes.values()}
    everywhere = [d for one in nodes.values() for d in one]
    if len(nodes) == 1 or sizes == {1} or len(sizes) > 1:
        return [Level(len(everywhere), _least(oracle, everywhere))]
    inside = min(_least(oracle, one) for one in nodes.values())
    return [Level(sizes.pop(), inside), Level(len(nodes), _least(oracle, everywhere))]


def _least(oracle: Oracle, devices: Sequence[int]) -> float:
    routes = [oracle.cluster.route(a, b) for a in devices for b in devices if a != b]
    return min((float(route.bandwidth) for route in routes if route is not None), default=inf)


def pipedream(trial: Trial) -> None:
    """PipeDream's plan; what is placed, and scored, is its best pipeline without replicas, one device a stage.

    A minibatch passes such a pipeline one stage after another, so the step time is that of a single minibatch; the
    objective is the period in steady state (``period_s`` of the plan with replicas, in ``details`` of the placed one).
    """
    oracle, profile = trial.oracle, profile_of(trial.oracle)
    devices = [d for d in range(len(oracle.cluster.devices)) if all(d in one for one in trial.choices)]
    if len(devices) < sum(device.runs_ops for device in oracle.cluster.devices):
        raise InputError("pipedream: every device must be able to run every op")
    levels = levels_of(oracle)
    plan = partition(profile, levels)
    straight = partition(profile, [Level(len(devices), levels[-1].bandwidth)], straight=True)
    trial.objectives["period_s"] = plan.seconds
    trial.details |= {
        "exact": plan.exact,
        "stages": [_told(oracle, stage) for stage in plan.stages],
        "placed_stages": [_told(oracle, stage) for stage in straight.stages],
        "placed_period_s": straight.seconds,
    }
    placement = np.zeros(len(oracle.groups), np.int64)
    for device, stage in zip(devices, straight.stages, strict=False):
        placement[list(stage.groups)] = device
    trial.score(placement)


def _told(oracle: Oracle, stage: Stage) -> dict[str, object]:
    first = [oracle.graph.ops[oracle.groups[group][0]].name for group in stage.groups]
    return {"ops": first, "replicas": stage.replicas, "seconds": stage.seconds}
