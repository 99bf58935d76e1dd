"""Baechi's three placers (Jeon et al., SoCC 2020): m-TOPO, m-ETF, m-SCT, judged by the simulated
step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...taskgraph import Ints
from ..fitting import place_and_fit
from ..instance import Instance
from ..kernels.compiling import Columns
from ..lists import clock_of, lists_of
from ..memory import held_of
from ..trial import Trial

LP_SECONDS = 60.0


def m_topo(trial: Trial) -> None:
    """m-TOPO: in topological order, each device is filled to an even share of all memory, then the
    next.
    """
    instance = trial.instance
    place_and_fit(trial, lambda limits: topological_fill(instance, limits))


def topological_fill(instance: Instance, limits: Sequence[int]) -> Ints:
    """Devices by node. ``limits`` are bytes by device, -1: unlimited.

    An op's memory is its outputs and what it needs beside them, a group's what persists too. A
    device takes groups while they stay under the sum over all devices / their number + the largest
    op, and under its limit; then comes the next, never back. The last takes what is left, where the
    limits do not allow for it.
    """
    held = held_of(instance)
    memory = held.made + held.scratch
    places = [d for d, device in enumerate(instance.prepared.cluster.devices) if device.runs_ops]
    total = int(memory.sum() + held.persistent.sum())
    share = total // len(places) + int(memory.max(initial=0))
    used, device, at = [0] * len(limits), np.full(len(memory), -1, np.int64), 0
    for node in np.argsort(instance.numbers, kind="stable").tolist():
        if device[node] >= 0:
            continue
        group = int(instance.group_of[node])
        members = instance.groups[group]
        size = int(memory[members].sum() + held.persistent[group])
        able = [d for d in places if instance.duration[node, d] >= 0]
        while (
            at < len(places) - 1
            and used[places[at]]
            and used[places[at]] + size > _cap(share, limits[places[at]])
        ):
            at += 1
        where = next((d for d in able if d >= places[at]), able[-1])
        device[members] = where
        used[where] += size
    return device


def _cap(share: int, limit: int) -> int:
    return share if limit < 0 else min(share, limit)


def m_etf(trial: Trial) -> None:
    """m-ETF: of all ready ops and devices with room, the earliest start first."""
    instance = trial.instance
    place_and_fit(trial, lambda limits: earliest_first(instance, limits), tighten=True)


def m_sct(trial: Trial) -> None:
    """m-SCT: m-ETF that keeps a device awake for the favourite child of what it ran last.

    Where the time ends before its linear program does, nobody has a favourite: then it is m-ETF.
    """
    from .favourite import favourites, relaxed

    instance = trial.instance
    found = relaxed(instance, min(LP_SECONDS, trial.seconds_left))
    child = favourites(instance, found.delayed)
    trial.details |= {
        "relaxed_makespan_s": found.makespan_ps / 1e12 if found.solved else None,
        "favourites": int((child >= 0).sum()),
    }
    place_and_fit(trial, lambda limits: earliest_first(instance, limits, child), tighten=True)
    if not found.solved:
        trial.require_time()  # it was too short for the program


def earliest_first(
    instance: Instance, limits: Sequence[int], favourite: Ints | None = None
) -> Ints:
    """Devices by node, as the clock of m-ETF (with ``favourite`` children: of m-SCT) places
    them.
    """
    from ..kernels.clock import schedule

    row = lists_of(instance, limits, favourite)
    lists, clock = Columns(row), Columns(clock_of(row))
    schedule(lists.handle, clock.handle)
    placed: Ints = clock.array("device").astype(np.int64)
    return np.maximum(placed, 0)  # what could stand nowhere: the oracle tells why
