"""Cost, the oracle's answer; the cache of answers; and the meter of evaluations.

A cost comes from a kernel (``Cost.fitting``, ``Cost.of``) or from a trace (``cost_of``). Whether it
fits in memory is decided here and, for a trace, in ``nouns.trace``; ``search.space`` ranks costs.
Limits are in seconds; kernels get them in ps (``limit_ps_of``).
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

# Values that a kernel returns in place of a step time: the times do not fit the kernel's keys; the
# placement is invalid; the step takes longer than its limit.
TOO_LONG, FAULT, WORSE = -1, -2, -3
NEVER = 1 << 62  # more ps than any step takes, and more bytes than any placement needs


class _Deferred:
    """A slot for the function that computes the peaks of a Cost made without them."""

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
        """Compute ``peaks`` at their first reading: Python calls this for an empty slot only."""
        if name != "peaks":
            raise AttributeError(f"Cost has no attribute {name!r}")
        peaks_of = self._peaks_of
        if peaks_of is None:  # another thread has computed them meanwhile
            return object.__getattribute__(self, name)
        peaks = peaks_of()
        object.__setattr__(self, name, peaks)
        object.__setattr__(self, "_peaks_of", None)
        return peaks

    @classmethod
    def fitting(cls, step_ps: int, peaks_of: Callable[[], tuple[int, ...]] | None = None) -> Cost:
        """The cost of a step that is known to fit in memory; ``peaks_of`` computes the peaks when
        they are read (None: they are empty).
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
        """The cost of a step, with its peaks compared to the capacities ``limits``, which are pairs
        of device and bytes (see ``limits_of``).
        """
        peaks, excess = tuple(peaks), 0
        for device, limit in limits:
            excess = max(excess, peaks[device] - limit)
        return cls(step_ps / 1e12, excess == 0, excess, step_ps, peaks)


class _Unfinished(_Deferred):
    """A Cost before it is frozen: filling its slots takes a third of the time of ``Cost()``."""

    __slots__ = ("feasible", "memory_excess", "peaks", "seconds", "step_ps")
    seconds: float
    feasible: bool
    memory_excess: int
    step_ps: int
    peaks: tuple[int, ...]


EXCEEDING = Cost(inf, False, 0, NEVER, ())
"""The value in place of the cost of a step that was seen to exceed a limit."""


def check_limit(limit: float | None) -> None:
    """Raise InputError for NaN."""
    if limit is not None and limit != limit:
        raise InputError("limit: must be a number of seconds, got NaN")


def limit_ps_of(limit: float | None) -> int:
    """A limit in ps: every longer step takes longer than ``limit`` seconds (by rounding, some
    shorter ones may too); NEVER where there is no limit.
    """
    return NEVER if limit is None else int(min(max(limit, 0.0) * (1e12 + 1e-3), NEVER - 1)) + 1


@dataclass(frozen=True, slots=True, eq=False)
class Starts:
    """The cost of a step, and the starts of its ops in ps from the begin of the step.

    ``op_ps`` is the first start of each op: in the first microbatch, and in the first of steps that
    follow one another. ``group_ps`` is the least start among the ops of each ``Oracle.groups``.
    """

    cost: Cost
    op_ps: Ints
    group_ps: Ints


class Members:
    """The ops of each group, to compute minima by group: much faster than numpy's ``reduceat``
    where most groups are single ops.
    """

    def __init__(self, groups: Sequence[Sequence[int]]) -> None:
        members = Rows.of(groups)
        self._first = members.ids[members.ptr[:-1]]
        others = np.ones(len(members.ids), np.bool_)
        others[members.ptr[:-1]] = False
        self._other, self._group = members.ids[others], members.owners()[others]

    def least(self, column: Ints) -> Ints:
        """The minimum in each group of a column with a value for each op."""
        least = column[self._first]
        np.minimum.at(least, self._group, column[self._other])
        return least


def limits_of(cluster: Cluster) -> list[tuple[int, int]]:
    """The index and capacity in bytes of each device that has a capacity."""
    memories = enumerate(device.memory for device in cluster.devices)
    return [(device, int(memory)) for device, memory in memories if memory is not None]


def cost_of(trace: Trace, limit: float | None = None) -> Cost:
    """The cost of a trace; EXCEEDING, without computing memory (two thirds of the work), where the
    step takes more than ``limit`` seconds.
    """
    from ..execution.period import (
        step_time_ps,  # imported here because the compiled paths never need it
    )

    step_ps = step_time_ps(trace)
    if limit is not None and step_ps / 1e12 > limit:
        return EXCEEDING
    peaks = tuple(memory.peak for memory in trace.memory)
    return Cost(step_ps / 1e12, trace.feasible, trace.memory_excess, step_ps, peaks)


class Answers(OrderedDict[bytes, Cost]):
    """A cache of the ``most`` costs used last; ``known`` and ``keep`` may be called from several
    threads.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self._lock = most, threading.Lock()

    def known(self, key: bytes) -> Cost | None:
        """The remembered answer of a key, now the one used last; None where there is none."""
        with self._lock:
            cost = self.get(key)
            if cost is not None:
                self.move_to_end(key)
            return cost

    def keep(self, key: bytes, cost: Cost) -> None:
        """Remember an answer; where there are too many, forget the least recently used."""
        if not self.most:
            return
        with self._lock:
            self[key] = cost
            while len(self) > self.most:
                self.popitem(last=False)


# After the first CLOCKED evaluations only each CLOCKED-th is clocked and counts for all of them:
# reading the clock twice may take as long as a small evaluation.
CLOCKED, UNCLOCKED = 16, -1.0


class Meter:
    """Counts evaluations, and estimates their CPU seconds; from several threads at once."""

    def __init__(self, evaluations: int = 0, cpu_seconds: float = 0.0) -> None:
        self.cpu_seconds = cpu_seconds
        # Evaluations made one by one, and those made in batches, which are always clocked.
        self._alone, self._others = 0, evaluations
        self._lock = threading.Lock()

    @property
    def evaluations(self) -> int:
        """The number of evaluations counted."""
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
        """Count a batch of evaluations that began at the thread time ``begun``."""
        with self._lock:
            self.cpu_seconds += time.thread_time() - begun
            self._others += count
