"""Baechi's three placers (Jeon et al., SoCC 2020): m-TOPO, m-ETF, m-SCT, judged by the simulated
step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...nouns.taskgraph import Ints, Rows
from ..fitting import place_and_fit
from ..instance import Instance, held_of
from ..kernels.clock import Clock, Lists, schedule
from ..kernels.compiling import Columns
from ..trial import Trial
from .favourite import favourites, relaxed

LP_SECONDS = 60.0


def m_topo(trial: Trial) -> None:
    """m-TOPO of Baechi (SoCC 2020): in topological order, each device is filled to an even share of
    all memory, then the next.
    """
    instance = trial.problem.instance
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
    most = [share if limit < 0 else min(share, limit) for limit in limits]
    used, where, at = [0] * len(limits), np.full(len(memory), -1, np.int64), 0
    for node in np.argsort(instance.numbers, kind="stable").tolist():
        if where[node] >= 0:
            continue
        group = int(instance.group_of[node])
        members = instance.groups[group]
        size = int(memory[members].sum() + held.persistent[group])
        able = [d for d in places if instance.duration[node, d] >= 0]
        while at < len(places) - 1 and 0 < used[places[at]] > most[places[at]] - size:
            at += 1
        device = next((d for d in able if d >= places[at]), able[-1])
        where[members] = device
        used[device] += size
    return where


def m_etf(trial: Trial) -> None:
    """m-ETF of Baechi: of all ready ops and devices with room, the earliest start first."""
    _earliest_first(trial, None)


def m_sct(trial: Trial) -> None:
    """m-SCT of Baechi: m-ETF that keeps a device free for the favourite child of what it ran last
    (extra ``solvers``).

    Where the time ends before its linear program does, nobody has a favourite: then it is m-ETF.
    """
    instance, budget = trial.problem.instance, trial.budget
    program = relaxed(instance, min(LP_SECONDS, budget.seconds_left))
    child = favourites(instance, program.delayed)
    trial.best.details |= {
        "relaxed_makespan_s": program.makespan_ps / 1e12 if program.solved else None,
        "favourites": int((child >= 0).sum()),
    }
    _earliest_first(trial, child)
    if not program.solved:
        budget.require_time()  # it was too short for the program


def _earliest_first(trial: Trial, favourite: Ints | None) -> None:
    instance = trial.problem.instance
    place_and_fit(
        trial, lambda limits: earliest_first(instance, limits, favourite)[0], tighten=True
    )


def earliest_first(
    instance: Instance, limits: Sequence[int], favourite: Ints | None = None
) -> tuple[Ints, int]:
    """Devices by node, as the clock of m-ETF (with ``favourite`` children: of m-SCT) places them,
    and its last finish in ps. ``limits`` are bytes by device, -1: unlimited.
    """
    row = _lists_of(instance, limits, favourite)
    lists, clock = Columns(row), Columns(_clock_of(row))
    makespan_ps = schedule(lists.handle, clock.handle)
    # What could stand nowhere goes to the first device: the oracle says why it cannot.
    return np.maximum(clock.array("device").astype(np.int64), 0), makespan_ps


def _lists_of(instance: Instance, capacity: Sequence[int], favourite: Ints | None) -> Lists:
    """What the clock reads. ``capacity`` in bytes by device, -1: unlimited; ``favourite`` child by
    node.
    """
    nodes, routes, held = len(instance.mean), instance.routes, held_of(instance)
    rows, tensors_of = instance.tensors
    ends = np.array(instance.edges, np.int64).reshape(-1, 2)
    order = np.lexsort((ends[:, 0], ends[:, 1]))
    carried = Rows.of(tensors_of[instance.edges[e]] for e in order.tolist())
    home = np.full(len(rows), -1, np.int64)
    for (producer, _), tensors in tensors_of.items():
        home[tensors] = producer
    return Lists(
        ops=nodes,
        devices=len(instance.prepared.cluster.devices),
        duration=instance.duration.reshape(-1),
        in_ptr=_ptr(ends[:, 1], nodes),
        producer=ends[order, 0],
        out_ptr=_ptr(ends[:, 0], nodes),
        consumer=ends[:, 1].copy(),
        carried_ptr=carried.ptr,
        carried=carried.ids,
        classes=instance.sending.shape[1],
        sending=instance.sending.reshape(-1),
        lag=routes.lag,
        class_of=routes.class_of,
        held_ptr=routes.held.ptr,
        held=routes.held.ids,
        apart=int(all(queue.device >= 0 for queue in instance.prepared.fabric.queues)),
        member_ptr=instance.groups.ptr,
        member=instance.groups.ids,
        group=instance.group_of,
        made=held.made,
        size=instance.prepared.reads.bytes[list(rows)],
        at_home=held.at_home,
        home=home,
        kept=held.kept,
        persistent=held.persistent,
        reserve=held.reserve,
        capacity=np.array(capacity, np.int64),
        number=instance.numbers,
        favourite=np.full(nodes, -1, np.int64) if favourite is None else favourite,
    )


def _clock_of(lists: Lists) -> Clock:
    """What the clock writes, before it runs."""
    ops, devices = lists.ops, lists.devices

    def full(count: int, value: int) -> Ints:
        return np.full(count, value, np.int64)

    tensors = len(lists.size)
    left = np.bincount(lists.carried, minlength=tensors).astype(np.int64)
    left += lists.kept  # read once more than any edge says: never given back
    queues = int(lists.held.max(initial=-1)) + 1
    return Clock(
        device=full(ops, -1),
        end=full(ops, -1),
        missing=np.diff(lists.in_ptr),
        ready=full(ops, -1),
        data=full(ops * devices, 0),
        known_at=full(ops * devices, -1),
        touched=full(devices, 0),
        free=full(devices, 0),
        running=full(devices, -1),
        last=full(devices, -1),
        queue=full(queues, 0),
        arrival=full(tensors * devices, -1),
        left=left,
        used=full(devices, 0),
        cell=full(4, 0),
    )


def _ptr(column: Ints, count: int) -> Ints:
    """Where the entries of each number begin in a sorted column."""
    return np.concatenate(([0], np.cumsum(np.bincount(column, minlength=count)))).astype(np.int64)
