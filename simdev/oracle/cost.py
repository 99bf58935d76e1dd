"""Cost, the oracle's answer; which answers an oracle remembers, and what giving them took.

A cost is told by a kernel (``Cost.fitting``, ``Cost.of``) or read off a trace (``cost_of``).
Whether it fits is said here and, of a trace, in ``nouns.trace``; how searches rank costs in
``search.space``. Limits come in seconds, and kernels are handed ps (``limit_ps_of``).
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import cast

import numpy as np

from ..ground.errors import InputError
from ..nouns.cluster import Cluster
from ..nouns.taskgraph import Ints, Rows
from ..nouns.trace import Trace

# What a kernel answers in place of a step time: it does not fit the kernel's keys; the placement
# cannot be; the step takes longer than its limit.
TOO_LONG, FAULT, WORSE = -1, -2, -3
NEVER = 1 << 62  # ps that no step takes, and bytes that no placement needs


class _Deferred:
    """Room for how to compute the peaks of a Cost that was made without them."""

    __slots__ = ("_peaks_of",)
    _peaks_of: Callable[[], tuple[int, ...]] | None


@dataclass(frozen=True, slots=True)
class Cost(_Deferred):
    """The step time in seconds (finite even where the step does not fit) and whether it fits.

    Where steps follow one another, their period is the step time. ``memory_excess`` is the
    largest excess of a device over its capacity in bytes, 0 where all fit; ``step_ps`` is the exact
    step time in ps; ``peaks`` are bytes by device, which may be computed only when they are read
    (compared, printed, pickled).
    """

    seconds: float
    feasible: bool
    memory_excess: int
    step_ps: int
    peaks: tuple[int, ...]

    def exceeds(self, limit: float | None) -> bool:
        """Whether the step takes longer than ``limit`` in seconds (None: there is none)."""
        return limit is not None and self.seconds > limit

    def __getattr__(self, name: str) -> tuple[int, ...]:
        """``peaks`` as long as nobody has read them: no slot stays empty but theirs."""
        if name != "peaks":
            raise AttributeError(f"Cost has no attribute {name!r}")
        peaks_of = self._peaks_of
        if peaks_of is None:  # another thread was faster
            return object.__getattribute__(self, name)
        peaks = peaks_of()
        object.__setattr__(self, name, peaks)
        object.__setattr__(self, "_peaks_of", None)
        return peaks

    @classmethod
    def fitting(cls, step_ps: int, peaks_of: Callable[[], tuple[int, ...]] | None = None) -> Cost:
        """The cost of a step in ps that is known to fit, whose peaks nobody has asked for yet (and
        nobody will tell: empty ones).
        """
        cost = _Unfinished()
        cost.seconds, cost.step_ps = step_ps / 1e12, step_ps
        cost.feasible, cost.memory_excess = True, 0
        cost._peaks_of = peaks_of
        if peaks_of is None:
            cost.peaks = ()
        cost.__class__ = cls  # type: ignore[assignment]
        return cast(Cost, cost)

    @classmethod
    def of(
        cls, step_ps: int, peaks: Iterable[int] = (), limits: Sequence[tuple[int, int]] = ()
    ) -> Cost:
        """The cost of a step in ps, with peaks held against ``limits`` (see ``limits_of``)."""
        peaks, excess = tuple(peaks), 0
        for device, limit in limits:
            excess = max(excess, peaks[device] - limit)
        return cls(step_ps / 1e12, excess == 0, excess, step_ps, peaks)


class _Unfinished(_Deferred):
    """A Cost before it is frozen: its slots are filled in a third of the time of its setters."""

    __slots__ = ("feasible", "memory_excess", "peaks", "seconds", "step_ps")
    seconds: float
    feasible: bool
    memory_excess: int
    step_ps: int
    peaks: tuple[int, ...]


EXCEEDING = Cost(inf, False, 0, NEVER, ())
"""Stands for the cost of a step that was seen to exceed a limit."""


def check_limit(limit: float | None) -> None:
    """Raises InputError for what is no number of seconds."""
    if limit is not None and limit != limit:
        raise InputError("limit: must be a number of seconds, got NaN")


def limit_ps_of(limit: float | None) -> int:
    """Ps beyond which every step takes longer than ``limit`` seconds (some up to it may, too, by
    rounding); NEVER where there is no limit.
    """
    return NEVER if limit is None else int(min(max(limit, 0.0) * (1e12 + 1e-3), NEVER - 1)) + 1


@dataclass(frozen=True, slots=True, eq=False)
class Starts:
    """When a step begins what, in ps from its own beginning, beside its cost.

    ``op_ps`` is by op when it first runs: in the first microbatch, and of steps that follow one
    another in the first. ``group_ps`` is by group of ``Oracle.groups`` the least of its ops'.
    """

    cost: Cost
    op_ps: Ints
    group_ps: Ints


class Members:
    """The ops of each group, for the least of each group: much faster than numpy's ``reduceat``
    where most groups are single ops.
    """

    def __init__(self, groups: Sequence[Sequence[int]]) -> None:
        members = Rows.of(groups)
        self._first = members.ids[members.ptr[:-1]]
        others = np.ones(len(members.ids), np.bool_)
        others[members.ptr[:-1]] = False
        self._other, self._group = members.ids[others], members.owners()[others]

    def least(self, column: Ints) -> Ints:
        """The least of a column by op, by group."""
        least = column[self._first]
        np.minimum.at(least, self._group, column[self._other])
        return least


def limits_of(cluster: Cluster) -> list[tuple[int, int]]:
    """Index and capacity in bytes of each device that has one."""
    memories = enumerate(device.memory for device in cluster.devices)
    return [(device, int(memory)) for device, memory in memories if memory is not None]


def cost_of(trace: Trace, limit: float | None = None) -> Cost:
    """The cost that a whole trace shows; EXCEEDING, without a look at memory (a third of the way),
    where the step takes more than ``limit`` seconds.
    """
    from ..execution.period import (
        step_time_ps,  # what the compiled paths never ask need not be loaded
    )

    step_ps = step_time_ps(trace)
    if limit is not None and step_ps / 1e12 > limit:
        return EXCEEDING
    peaks = tuple(memory.peak for memory in trace.memory)
    return Cost(step_ps / 1e12, trace.feasible, trace.memory_excess, step_ps, peaks)


class Answers(OrderedDict[bytes, Cost]):
    """The costs asked for last, ``most`` of them; ``known`` and ``keep`` may be called from several
    threads.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self._lock = most, threading.Lock()

    def known(self, key: bytes) -> Cost | None:
        """The answer, if it is remembered; it is used."""
        with self._lock:
            cost = self.get(key)
            if cost is not None:
                self.move_to_end(key)
            return cost

    def keep(self, key: bytes, cost: Cost) -> None:
        """Remember an answer, and forget the one that was used longest ago where there are too
        many.
        """
        if not self.most:
            return
        with self._lock:
            self[key] = cost
            while len(self) > self.most:
                self.popitem(last=False)


# Of the evaluations after the first so many, one in so many is clocked, and stands for all of
# these: reading the clock twice may take as long as a small step.
CLOCKED, UNCLOCKED = 16, -1.0


class Meter:
    """Counts evaluations, and estimates their CPU seconds; from several threads at once."""

    def __init__(self, evaluations: int = 0, cpu_seconds: float = 0.0) -> None:
        self.cpu_seconds = cpu_seconds
        # Evaluations that were not among several, and the others: batches are always clocked.
        self._alone, self._others = 0, evaluations
        self._lock = threading.Lock()

    @property
    def evaluations(self) -> int:
        """How many were counted."""
        return self._alone + self._others

    def begin(self) -> float:
        """A mark to hand to ``end`` after the evaluation that begins now."""
        clocked = self._alone < CLOCKED or self._alone % CLOCKED == 0
        return time.thread_time() if clocked else UNCLOCKED

    def end(self, begun: float) -> None:
        """Count an evaluation."""
        seconds = 0.0 if begun == UNCLOCKED else time.thread_time() - begun
        with self._lock:
            self.cpu_seconds += seconds if self._alone < CLOCKED else seconds * CLOCKED
            self._alone += 1

    def end_several(self, begun: float, count: int) -> None:
        """Count evaluations that began together at a thread's time."""
        with self._lock:
            self.cpu_seconds += time.thread_time() - begun
            self._others += count
