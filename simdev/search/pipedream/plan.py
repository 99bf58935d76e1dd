"""PipeDream's planner (section 3.1): stages with replicas on the levels of a cluster, by a dynamic
program over ideals of the forward ops (``search/ideals.py``). ``placer.py`` calls it.

The price of a stage's replicas is computed in two places, which must agree: where the tables are
filled (``_LevelTable``) and where the stages are read back (``_replicated``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import NamedTuple

import numpy as np

from ...ground.errors import InputError
from ...nouns.structure import before_of, components, topological, unit_of
from ...nouns.taskgraph import Bools, Floats
from ...oracle import Oracle
from ..ideals import Due, bits, ideals, leaves, nested, packed, table, unhurried
from ..space import mean_ps


@dataclass(frozen=True, slots=True)
class Profile:
    """The planner's figures of groups of ops: forward and backward seconds, bytes of the outputs of
    forward ops, bytes of parameters.

    ``order`` holds (earlier, later) pairs of groups.
    """

    seconds: tuple[float, ...]
    activations: tuple[int, ...]
    parameters: tuple[int, ...]
    order: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Level:
    """``count`` machines joined at ``bandwidth`` bytes per second; a machine is a whole level
    below.
    """

    count: int
    bandwidth: float


def profile_of(oracle: Oracle) -> Profile:
    """The layers of a graph: its colocation groups, each with all phases, in the order of their
    forward ops.

    Groups on a cycle of forward edges keep only their order among each other. Times are means over
    devices. Raises InputError where a backward op is in a group without forward ops (pair them
    first).
    """
    graph, group = oracle.graph, unit_of(oracle.graph)
    layers = [[graph.ops[i] for i in members] for members in oracle.groups]
    for ops in layers:
        if all(op.phase != "forward" for op in ops):
            raise InputError(
                f'pipedream: "{ops[0].name}" stands in no group with a forward op: use the '
                'preparation "pair", and for what it leaves the attribute "forward" of the op, '
                "which names one, or a colocation group"
            )
    mean = mean_ps(oracle.prepared.duration) / 1e12
    order = {
        (group[producer], group[consumer])
        for consumer, reads in enumerate(graph.reads)
        for producer, _ in reads
        if graph.ops[producer].phase == graph.ops[consumer].phase == "forward"
    }
    return Profile(
        tuple(float(mean[list(members)].sum()) for members in oracle.groups),
        tuple(
            sum(tensor.bytes for op in ops if op.phase == "forward" for tensor in op.made)
            for ops in layers
        ),
        tuple(sum(op.param_bytes for op in ops) for ops in layers),
        tuple(sorted(pair for pair in order if pair[0] != pair[1])),
    )


def levels_of(oracle: Oracle) -> list[Level]:
    """The devices as levels: the devices of a node, then the nodes, where all nodes have equally
    many; else all devices as one level.

    The bandwidth of a level is the least between two of its devices.
    """
    nodes, everywhere = _nodes(oracle), machines_of(oracle)
    sizes = {len(devices) for devices in nodes}
    if len(nodes) == 1 or sizes == {1} or len(sizes) > 1:
        return [Level(len(everywhere), _least(oracle, everywhere))]
    inside = min(_least(oracle, devices) for devices in nodes)
    return [Level(sizes.pop(), inside), Level(len(nodes), _least(oracle, everywhere))]


def machines_of(oracle: Oracle) -> list[int]:
    """The device (index) of each machine of ``levels_of``, node by node."""
    return [d for devices in _nodes(oracle) for d in devices]


def _nodes(oracle: Oracle) -> list[list[int]]:
    nodes: dict[int, list[int]] = {}
    for d, device in enumerate(oracle.cluster.devices):
        if device.runs_ops:
            nodes.setdefault(device.node, []).append(d)
    return list(nodes.values())


def _least(oracle: Oracle, devices: Sequence[int]) -> float:
    route = oracle.prepared.fabric.routes.route
    routes = [route(a, b) for a in devices for b in devices if a != b]
    return min((float(route.bandwidth) for route in routes if route is not None), default=inf)


MOST = 2500  # ideals; above it, some ideals of one linear order are taken
WORK = 5 * 10**9  # comparisons; above it, fewer ideals are taken
CELLS = 1 << 20  # of a table at a time


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of the pipeline: its groups of ops, its machines in the order in which minibatches
    take them, and seconds.

    ``seconds`` is the time of a minibatch, ``sync_seconds`` the time to add up the gradients of a
    round, one minibatch per machine: 4 (r - 1) W / (b r) on each level. Machines are numbered node
    by node.
    """

    groups: tuple[int, ...]
    machines: tuple[int, ...]
    seconds: float
    sync_seconds: float

    @property
    def replicas(self) -> int:
        """The number of machines that run it."""
        return len(self.machines)


@dataclass(frozen=True, slots=True)
class Partition:
    """Stages in order, the period of the pipeline in seconds, and whether every ideal was tried."""

    stages: tuple[Stage, ...]
    seconds: float
    exact: bool


def partition(
    profile: Profile,
    levels: Sequence[Level],
    straight: bool = False,
    due: Due = unhurried,
) -> Partition:
    """The stages of the least period; ``straight``: one device per stage.

    ``levels`` from the innermost machine outwards.

    A stage of r replicas takes (its time + 4 (r - 1) W / (b r)) / r seconds for W bytes of
    parameters and bandwidth b; A bytes of activations between stages, and as many of gradients,
    take 2 A / (b r), with r of the later stage. The period is the longest of all these times. All
    machines are used, except where a straight pipeline is faster on fewer. Groups on a cycle stay
    together, and a group without time and parameters stays with its only neighbour.

    Where there are more than ``most_ideals`` ideals, that many ideals of one linear order are
    taken. ``due`` is called again and again, and may raise. Raises InputError for no devices.
    """
    if not levels or any(level.count < 1 for level in levels):
        raise InputError("pipedream: needs a device")
    states, exact = _states(profile, most_ideals(levels, straight), due)
    seconds, parameters, crossing = _columns(profile, states, due)
    inside = _inside(states, due)
    time = np.where(inside, seconds[None, :] - seconds[:, None], inf)
    held = np.where(inside, parameters[None, :] - parameters[:, None], 0.0)
    tables, below, width = list[_LevelTable](), time, 1
    for level in levels:
        tables.append(_LevelTable(below, held, crossing, level, width, straight))
        # On the outermost level only pipelines from the empty state are needed.
        tables[-1].fill(1 if len(tables) == len(levels) else len(states), due)
        below, width = tables[-1].best[-1], level.count
    period = tables[-1].best[:, 0, -1]
    used = int(period.argmin()) if straight else levels[-1].count - 1
    stages = [
        Stage(
            tuple(bits(states[cut.after] & ~states[cut.before])),
            cut.machines,
            float(time[cut.before, cut.after]),
            cut.sync_seconds,
        )
        for cut in _stages(tables, len(levels) - 1, 0, len(states) - 1, used)
    ]
    return Partition(tuple(stages), float(period[used]), exact)


def most_ideals(levels: Sequence[Level], straight: bool = False) -> int:
    """The number of ideals to try: MOST, or as many as WORK allows.

    On the last level the program compares each two ideals for each two numbers of machines; on the
    levels below it does so from each ideal.
    """
    *inner, last = (
        level.count - 1 if straight else level.count * (level.count - 1) // 2 for level in levels
    )
    return next(
        most
        for most in range(MOST, 1, -1)
        if most == 2 or most**2 * (last / 2 + most * sum(inner) / 3) <= WORK
    )


def _states(profile: Profile, most: int, due: Due) -> tuple[list[int], bool]:
    """The ideals of groups (bit sets) in a topological order, the empty one first; and whether
    these are all.
    """
    idle = [not any(pair) for pair in zip(profile.seconds, profile.parameters, strict=True)]
    block = components(len(profile.seconds), {*profile.order, *leaves(idle, profile.order)})
    count = max(block, default=-1) + 1
    order = {(block[a], block[b]) for a, b in profile.order if block[a] != block[b]}
    every = ideals(count, order, most, due)
    members = [0] * count
    for group, number in enumerate(block):
        members[number] |= 1 << group
    if every is not None:
        return [sum(members[number] for number in bits(ideal)) for ideal in every], True
    line = [0]
    for number in topological(before_of(count, order), "branch"):
        line.append(line[-1] | members[number])
    return _thinned(profile, line, most, due), False


def _thinned(profile: Profile, line: Sequence[int], most: int, due: Due) -> list[int]:
    """At most ``most`` of nested states: from each stretch of equal time the state with the fewest
    crossing bytes.
    """
    if len(line) <= most:
        return list(line)
    seconds, _, crossing = _columns(profile, line, due)
    inner = np.arange(1, len(line) - 1)
    stretch = np.floor(seconds[inner] / max(float(seconds[-1]), 5e-324) * (most - 2)).clip(
        0, max(most - 3, 0)
    )
    order = inner[np.lexsort((crossing[inner], stretch))]
    _, first = np.unique(np.sort(stretch), return_index=True)
    return [line[at] for at in (0, *sorted(order[first].tolist()), len(line) - 1)]


def _columns(profile: Profile, states: Sequence[int], due: Due) -> tuple[Floats, Floats, Floats]:
    """The seconds of each state, its bytes of parameters, and its bytes of activations that a later
    group reads.
    """
    ends = np.array(profile.order, np.int64).reshape(-1, 2)
    each = np.array([profile.seconds, profile.parameters], np.float64).T
    count = len(each)
    makers, first = np.unique(ends[:, 0], return_index=True)  # the order is sorted
    handed = np.array(profile.activations, np.float64)[makers]
    parts, step = [], max(CELLS // max(count, len(ends)), 1)
    for begin in range(0, len(states), step):
        due()
        held = table(states[begin : begin + step], count)
        waiting = np.maximum.reduceat(held[:, ends[:, 0]] & ~held[:, ends[:, 1]] & 1, first, axis=1)
        parts.append(np.column_stack([held @ each, waiting @ handed]))
    seconds, parameters, crossing = np.concatenate(parts).T
    return seconds, parameters, crossing


def _inside(states: Sequence[int], due: Due) -> Bools:
    """Whether a state (row) is contained in a larger one (column)."""
    inside = np.triu(np.ones((len(states), len(states)), np.bool_), 1)
    if not nested(states):
        words = -(-max(states).bit_length() // 64)
        for word in packed(states, 8 * words).view("<u8").T:
            due()
            inside &= (word[:, None] & ~word[None, :]) == 0
    return inside


class _LevelTable:
    """The periods on a level: ``best`` by machines - 1, state before, state after.

    ``time`` between two states on one machine of it (inf: the first is not inside the second),
    ``held`` bytes of parameters between two states, ``crossing`` bytes after each; ``width``
    machines of the level below make a machine of this one.
    """

    def __init__(
        self, time: Floats, held: Floats, crossing: Floats, level: Level, width: int, straight: bool
    ) -> None:
        self.time, self.held, self.crossing = time, held, crossing
        self.level, self.width, self.straight = level, width, straight
        self.best = np.zeros(0)

    def whole(self, machines: int, starts: slice) -> Floats:
        """Seconds of a single stage on ``machines`` machines, by the states before and after."""
        if self.straight and machines > 1:
            return np.full_like(self.time[starts], inf)
        rate = self.level.bandwidth * machines
        synced = 4 * (machines - 1) * self.held[starts] / rate / self.width
        return np.asarray((self.time[starts] + synced) / machines)

    def last(self, replicas: int, after: int) -> Floats:
        """Seconds of the last of several stages, with its transfers at both ends, by the state
        before it.
        """
        rate = self.level.bandwidth * replicas
        synced = 4 * (replicas - 1) * self.held[:after, after] / rate
        crossed = np.maximum(self.crossing[:after], self.crossing[after]) * 2 / rate
        return np.asarray(np.maximum((self.time[:after, after] + synced) / replicas, crossed))

    def fill(self, starts: int, due: Due) -> None:
        """Fill the periods from the first ``starts`` states. A state is reached from all earlier
        states, for all numbers of machines at once.
        """
        machines = self.level.count
        best = np.array([self.whole(m + 1, slice(starts)) for m in range(machines)])
        for after in range(1, len(self.crossing)):
            due()
            for replicas in range(1, min(machines, 2 if self.straight else machines)):
                last, left = self.last(replicas, after), machines - replicas
                step = max(CELLS // (left * after), 1)  # so that a table fits the cache
                for begin in range(0, min(starts, after), step):
                    rows = slice(begin, begin + step)
                    reached = np.maximum(best[:left, rows, :after], last).min(axis=2)
                    filled = best[replicas:, rows, after]
                    np.minimum(filled, reached, out=filled)
        self.best = best

    def split(self, i: int, j: int, m: int) -> tuple[int, int] | None:
        """The state before the last stage, and the replicas of that stage; None where a single
        stage is as good.
        """
        value = self.best[m, i, j]
        if value >= self.whole(m + 1, slice(i, i + 1))[0, j]:
            return None
        for replicas in range(1, m + 1):
            both = np.maximum(self.best[m - replicas, i, :j], self.last(replicas, j))
            if both.min() == value:
                return int(both.argmin()), replicas
        return None


class _Cut(NamedTuple):
    """A stage between two states; machines are numbered from 0 within its part of the cluster."""

    before: int
    after: int
    machines: tuple[int, ...]
    sync_seconds: float


def _stages(tables: Sequence[_LevelTable], level: int, i: int, j: int, m: int) -> list[_Cut]:
    """The stages between two states on m + 1 machines of a level."""
    if level < 0:
        return [_Cut(i, j, (0,), 0.0)]
    k, replicas, before = i, m + 1, list[_Cut]()
    split = tables[level].split(i, j, m)
    if split is not None:
        k, replicas = split
        before = _stages(tables, level, i, k, m - replicas)
    inside = tables[level - 1].level.count if level else 1
    inner = _stages(tables, level - 1, k, j, inside - 1)
    size = prod(table.level.count for table in tables[:level])
    return [*before, *(_replicated(cut, tables[level], size, m + 1, replicas) for cut in inner)]


def _replicated(cut: _Cut, table: _LevelTable, size: int, end: int, replicas: int) -> _Cut:
    """A stage inside a machine, replicated over the last ``replicas`` of ``end`` machines of
    ``size`` each.

    Successive minibatches go to successive machines, so that a minibatch stays in its machine from
    stage to stage.
    """
    held, rate = float(table.held[cut.before, cut.after]), table.level.bandwidth * replicas
    machines = [(end - replicas + r) * size + d for d in cut.machines for r in range(replicas)]
    synced = cut.sync_seconds + 4 * (replicas - 1) * held / rate
    return cut._replace(machines=tuple(machines), sync_seconds=synced)
