"""Baechi (Jeon et al., SoCC 2020): memory-constrained placers that need no learning.

methods.py names ``m_topo``, ``m_etf`` and ``m_sct``. The clock of the latter two is compiled
(``kernels/clock.py``): its columns are filled here, so a column is changed in both modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from ..nouns.taskgraph import Floats, Ints, Rows
from .fitting import place_and_fit
from .instance import Instance, held_of
from .kernels import Columns
from .kernels.clock import Clock, Lists, schedule
from .solver import Program, attended, scipy
from .trial import Trial

# The linear program of m-SCT chooses a favourite child of each op: the successor that should follow
# it at once, on the same device.

# An edge leads to a favourite child where its variable is at most this (Baechi's released setting).
THRESHOLD = 0.1
LP_SECONDS = 60.0


@dataclass(frozen=True, slots=True, eq=False)
class Relaxed:
    """The optimum of the relaxed program: ``delayed`` by edge (0: favourite child), and its
    makespan in ps.

    ``solved`` is false where the solver ran out of time: then there are no favourites.
    """

    delayed: Floats
    makespan_ps: float
    solved: bool = True


def relaxed(instance: Instance, seconds: float = LP_SECONDS) -> Relaxed:
    """Solve the relaxed program of Hanen and Munier (1995), as Baechi states it (Jeon et al., SoCC
    2020, section 3.3).

    min w over x in [0, 1] by edge and starts s >= 0: s_i + p_i + c_ij x_ij <= s_j, s_i + p_i <= w.
    Every op has at most one favourite child and is the favourite of at most one op: the x of its
    out-edges sum to at least their number - 1, likewise the x of its in-edges. Times are means over
    devices and routes, relative to their sum. Raises SimdevError where scipy is missing.
    """
    optimize, sparse = scipy("m-sct needs")
    unit = max(float(instance.mean.sum()), 1.0)
    program = _program(instance, instance.mean / unit, instance.edge_ps / unit)
    objective, matrix, _, right = program.tables(sparse)
    bounds = [(0.0, high) for high in program.high]
    options = {"time_limit": seconds}
    optimum = attended(
        lambda: optimize.linprog(
            objective, matrix, right, bounds=bounds, method="highs-ds", options=options
        ),
        seconds,
    )
    edges = len(instance.edges)
    if optimum is None or optimum.x is None:
        return Relaxed(np.ones(edges), float("nan"), False)
    return Relaxed(optimum.x[:edges], float(optimum.fun) * unit)


def _program(instance: Instance, p: Floats, c: Floats) -> Program:
    """The relaxed program, whose columns are x, s and w; ``p`` are the times of nodes, ``c`` the
    times of edges.
    """
    program, ends = Program(), np.array(instance.edges, np.int64).reshape(-1, 2)
    delayed, start = program.columns(len(ends)), program.columns(len(p), high=inf)
    (last,) = program.columns(1, high=inf)
    for x, (node, reader) in enumerate(instance.edges):
        program.add([start[node], start[reader], x], [1.0, -1.0, c[x]], -inf, -p[node])
    for side in ends.T:
        for edges in Rows.of_pairs(side, delayed, len(p)).lists():
            if len(edges) > 1:  # with one edge the bound is 0
                program.add(edges, [-1.0] * len(edges), -inf, 1.0 - len(edges))
    # Only sinks bound the makespan: other nodes end before their successors start.
    for node in np.setdiff1d(np.arange(len(p)), ends[:, 0]).tolist():
        program.add([start[node], last], [1.0, -1.0], -inf, -p[node])
    return program


def favourites(instance: Instance, delayed: Floats) -> Ints:
    """The favourite child of each node, -1: none.

    Where rounding gives an op several, the last edge wins; where two ops have the same child, the
    second op keeps it.
    """
    child = np.full(len(instance.mean), -1, np.int64)
    parent = np.full(len(instance.mean), -1, np.int64)
    for (first, second), value in zip(instance.edges, delayed.tolist(), strict=True):
        if value <= THRESHOLD:
            child[first] = second
            if parent[second] >= 0:
                child[parent[second]] = -1
            parent[second] = first
    return child


# Baechi's three placers (Jeon et al., SoCC 2020): m-TOPO, m-ETF, m-SCT, judged by the simulated
# step.


def m_topo(trial: Trial) -> None:
    """m-TOPO of Baechi (SoCC 2020): in topological order, each device is filled to an even share of
    the total memory, then the next device.
    """
    instance = trial.problem.instance
    place_and_fit(trial, lambda limits: topological_fill(instance, limits))


def topological_fill(instance: Instance, limits: Sequence[int]) -> Ints:
    """Devices by node. ``limits`` are bytes by device, -1: unlimited.

    An op's memory is its outputs and scratch; a group's also includes its persistent bytes. A
    device takes groups while they stay under the even share (total bytes / devices + the largest
    op) and under its limit; then comes the next device, and no group goes back. The last device
    takes the rest, even beyond its limit.
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
    """m-ETF of Baechi: of all pairs of a ready op and a device with room, the earliest
    start first.
    """
    _earliest_first(trial, None)


def m_sct(trial: Trial) -> None:
    """m-SCT of Baechi: m-ETF that keeps a device free for the favourite child of the op that it ran
    last (extra ``solvers``).

    Where the time ends before its linear program does, there are no favourites, and it is m-ETF.
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
        budget.require_time()  # the time was too short for the program


def _earliest_first(trial: Trial, favourite: Ints | None) -> None:
    instance = trial.problem.instance
    place_and_fit(
        trial, lambda limits: earliest_first(instance, limits, favourite)[0], tighten=True
    )


def earliest_first(
    instance: Instance, limits: Sequence[int], favourite: Ints | None = None
) -> tuple[Ints, int]:
    """Devices by node, as the clock of m-ETF (with ``favourite`` children: of m-SCT) places them,
    and the last finish in ps. ``limits`` are bytes by device, -1: unlimited.
    """
    row = _lists_of(instance, limits, favourite)
    lists, clock = Columns(row), Columns(_clock_of(row))
    makespan_ps = schedule(lists.handle, clock.handle)
    # An op without a possible device goes to the first: the oracle then raises the reason.
    return np.maximum(clock.array("device").astype(np.int64), 0), makespan_ps


def _lists_of(instance: Instance, capacity: Sequence[int], favourite: Ints | None) -> Lists:
    """The columns that the clock reads. ``capacity`` in bytes by device, -1: unlimited;
    ``favourite`` child by node.
    """
    nodes, routes, held = len(instance.mean), instance.routes, held_of(instance)
    (rows, tensors_of), reads = instance.tensors, instance.prepared.reads
    producer, consumer = np.array(instance.edges, np.int64).reshape(-1, 2).T
    read_from = Rows.of_pairs(consumer, producer, nodes)
    read_by = Rows.of_pairs(producer, consumer, nodes)
    edges = zip(read_from.ids.tolist(), read_from.owners().tolist(), strict=True)
    carried = Rows.of([tensors_of[edge] for edge in edges])
    return Lists(
        ops=nodes,
        devices=len(instance.prepared.cluster.devices),
        duration=instance.duration.reshape(-1),
        in_ptr=read_from.ptr,
        producer=read_from.ids,
        out_ptr=read_by.ptr,
        consumer=read_by.ids,
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
        size=reads.bytes[list(rows)],
        at_home=held.at_home,
        home=instance.run_by[reads.producer[list(rows)]],
        kept=held.kept,
        persistent=held.persistent,
        reserve=held.reserve,
        capacity=np.array(capacity, np.int64),
        number=instance.numbers,
        favourite=np.full(nodes, -1, np.int64) if favourite is None else favourite,
    )


def _clock_of(lists: Lists) -> Clock:
    """The columns that the clock writes, before it runs."""
    ops, devices = lists.ops, lists.devices

    def full(count: int, value: int) -> Ints:
        return np.full(count, value, np.int64)

    tensors = len(lists.size)
    left = np.bincount(lists.carried, minlength=tensors).astype(np.int64)
    left += lists.kept  # one reader more than there are edges, so it is never freed
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
