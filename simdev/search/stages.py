"""PipeDream's dynamic program (Narayanan et al., SOSP 2019, section 3.1): stages with replicas on
levels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..structure import before_of, components, topological
from .ideals import bits, ideals, leaves, nested, packed, table, unhurried

MOST = 2500  # ideals; beyond it some of those of one linear order are taken
WORK = 5 * 10**9  # comparisons; beyond it there are fewer ideals too
CELLS = 1 << 20  # of a table at a time
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of the pipeline: its groups of ops, on how many devices, and the seconds of a
    minibatch.
    """

    groups: tuple[int, ...]
    replicas: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Partition:
    """Stages in order, the period of the pipeline in seconds, and whether every ideal was looked
    at.
    """

    stages: tuple[Stage, ...]
    seconds: float
    exact: bool


@dataclass(frozen=True, slots=True)
class Profile:
    """What the planner reads of groups of ops: forward and backward seconds, bytes that forward ops
    make, parameters.

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


def partition(
    profile: Profile,
    levels: Sequence[Level],
    straight: bool = False,
    due: Callable[[], object] = unhurried,
) -> Partition:
    """The stages of the least period; ``straight``: one device a stage.

    ``levels`` from the innermost machine outwards.

    A stage of r replicas takes (its time + 4 (r - 1) W / (b r)) / r seconds for W bytes of
    parameters and bandwidth b; what crosses between stages, forth and back, takes 2 A / (b r), r of
    the later one. The period is the longest. All machines are used, but those that a straight
    pipeline does better without. Groups on a cycle stay together, and those of no time and no
    parameters with the only group they touch.

    Where there are more ideals than ``most_ideals``, as many of those of one linear order are
    taken. ``due`` is called all the time, and may raise. Raises InputError for no devices.
    """
    if not levels or any(level.count < 1 for level in levels):
        raise InputError("pipedream: needs a device")
    states, exact = _states(profile, most_ideals(levels, straight), due)
    seconds, parameters, crossing = _columns(profile, states, due)
    inside = _inside(states, due)
    time = np.where(inside, seconds[None, :] - seconds[:, None], inf)
    held = np.where(inside, parameters[None, :] - parameters[:, None], 0.0)
    filled, below = list[_Filled](), time
    for number, level in enumerate(levels):
        starts = 1 if number == len(levels) - 1 else len(states)
        width = levels[number - 1].count if number else 1
        filled.append(
            _filled(_Question(below, held, crossing, level, width, straight), starts, due)
        )
        below = filled[-1].best[-1]
    period = filled[-1].best[:, 0, -1]
    used = int(period.argmin()) if straight else levels[-1].count - 1
    found = _expanded(filled, len(levels) - 1, 0, len(states) - 1, used)
    stages = [Stage(tuple(bits(states[j] & ~states[i])), r, float(time[i, j])) for i, j, r in found]
    return Partition(tuple(stages), float(period[used]), exact)


def most_ideals(levels: Sequence[Level], straight: bool = False) -> int:
    """How many ideals are looked at: MOST, or what WORK allows.

    The program compares each two of them for each two numbers of machines of the last level; on the
    levels below it does so from each of them.
    """
    *inner, last = (
        level.count - 1 if straight else level.count * (level.count - 1) // 2 for level in levels
    )
    return next(
        most
        for most in range(MOST, 1, -1)
        if most == 2 or most**2 * (last / 2 + most * sum(inner) / 3) <= WORK
    )


def _states(profile: Profile, most: int, due: Callable[[], object]) -> tuple[list[int], bool]:
    """The ideals of groups (bit sets) in a topological order, the empty one first; and whether
    these are all.
    """
    idle = [
        not (seconds or held)
        for seconds, held in zip(profile.seconds, profile.parameters, strict=True)
    ]
    block = components(len(profile.seconds), {*profile.order, *leaves(idle, profile.order)})
    count = max(block, default=-1) + 1
    order = {(block[a], block[b]) for a, b in profile.order if block[a] != block[b]}
    found = ideals(count, order, most, due)
    members = [0] * count
    for group, one in enumerate(block):
        members[one] |= 1 << group
    if found is not None:
        return [sum(members[one] for one in bits(ideal)) for ideal in found], True
    line = [0]
    for one in topological(before_of(count, order), "branch"):
        line.append(line[-1] | members[one])
    return _thinned(profile, line, most, due), False


def _thinned(
    profile: Profile, line: Sequence[int], most: int, due: Callable[[], object]
) -> list[int]:
    """At most so many of nested states: of each stretch of equal time the one that hands on the
    fewest bytes.
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


def _columns(
    profile: Profile, states: Sequence[int], due: Callable[[], object]
) -> tuple[Floats, Floats, Floats]:
    """Of each state: seconds, bytes of parameters, and of activations of its groups that a later
    group reads.
    """
    ends = np.array(profile.order, np.int64).reshape(-1, 2)
    each, count = (
        np.array([profile.seconds, profile.parameters], np.float64).T,
        len(profile.seconds),
    )
    makers, first = np.unique(ends[:, 0], return_index=True)  # the order is sorted
    handed = np.array(profile.activations, np.float64)[makers]
    found, step = [], max(CELLS // max(count, len(ends)), 1)
    for begin in range(0, len(states), step):
        due()
        held = table(states[begin : begin + step], count)
        waiting = np.maximum.reduceat(held[:, ends[:, 0]] & ~held[:, ends[:, 1]] & 1, first, axis=1)
        found.append(np.column_stack([held @ each, waiting @ handed]))
    seconds, parameters, crossing = np.concatenate(found).T
    return seconds, parameters, crossing


def _inside(states: Sequence[int], due: Callable[[], object]) -> NDArray[np.bool_]:
    """Whether a state (row) lies in a larger one (column)."""
    found = np.triu(np.ones((len(states), len(states)), np.bool_), 1)
    if not nested(states):
        words = -(-max(states).bit_length() // 64)
        for word in packed(states, 8 * words).view("<u8").T:
            due()
            found &= (word[:, None] & ~word[None, :]) == 0
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Question:
    """A level to fill: ``time`` between two states on one machine of it (inf: the first is not
    inside the second).

    ``held`` bytes of parameters between two states, ``crossing`` bytes after each; ``width``
    machines of the level below make one of this.
    """

    time: Floats
    held: Floats
    crossing: Floats
    level: Level
    width: int
    straight: bool

    def whole(self, machines: int, starts: slice) -> Floats:
        """Seconds of one stage on so many machines, by the states before and after."""
        if self.straight and machines > 1:
            return np.full_like(self.time[starts], inf)
        synced = (
            4 * (machines - 1) * self.held[starts] / (self.level.bandwidth * machines) / self.width
        )
        found: Floats = (self.time[starts] + synced) / machines
        return found

    def last(self, replicas: int, after: int) -> Floats:
        """Seconds of the last stage of several, with what crosses at its ends, by the state before
        it.
        """
        rate = self.level.bandwidth * replicas
        stage = (
            self.time[:after, after] + 4 * (replicas - 1) * self.held[:after, after] / rate
        ) / replicas
        found: Floats = np.maximum(
            stage, np.maximum(self.crossing[:after], self.crossing[after]) * 2 / rate
        )
        return found


@dataclass(frozen=True, slots=True, eq=False)
class _Filled:
    """``best`` by machines - 1, state before, state after: the least period."""

    question: _Question
    best: Floats

    def split(self, i: int, j: int, m: int) -> tuple[int, int] | None:
        """The state before the last stage, and its replicas; None where one stage is as good."""
        value = self.best[m, i, j]
        if value >= self.question.whole(m + 1, slice(i, i + 1))[0, j]:
            return None
        for replicas in range(1, m + 1):
            both = np.maximum(self.best[m - replicas, i, :j], self.question.last(replicas, j))
            if both.min() == value:
                return int(both.argmin()), replicas
        return None


def _filled(question: _Question, starts: int, due: Callable[[], object]) -> _Filled:
    """The periods from the first ``starts`` states.

    A state is reached from those before it, all machines at once.
    """
    machines, count = question.level.count, len(question.crossing)
    best = np.array([question.whole(m + 1, slice(starts)) for m in range(machines)])
    for after in range(1, count):
        due()
        for replicas in range(1, min(machines, 2 if question.straight else machines)):
            last, left = question.last(replicas, after), machines - replicas
            step = max(CELLS // (left * after), 1)
            for begin in range(0, min(starts, after), step):
                rows = slice(begin, begin + step)
                reached = np.maximum(best[:left, rows, :after], last).min(axis=2)
                np.minimum(best[replicas:, rows, after], reached, out=best[replicas:, rows, after])
    return _Filled(question, best)


def _expanded(
    filled: Sequence[_Filled], level: int, i: int, j: int, m: int
) -> list[tuple[int, int, int]]:
    """The stages between two states on m + 1 machines of a level: (state before, state after,
    devices).
    """
    if level < 0:
        return [(i, j, 1)]
    k, replicas, before = i, m + 1, list[tuple[int, int, int]]()
    split = filled[level].split(i, j, m)
    if split is not None:
        k, replicas = split
        before = _expanded(filled, level, i, k, m - replicas)
    inner = _expanded(
        filled, level - 1, k, j, filled[level - 1].question.level.count - 1 if level else 0
    )
    return [*before, *((a, b, r * replicas) for a, b, r in inner)]
