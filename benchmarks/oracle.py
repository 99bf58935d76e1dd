"""How fast the oracle answers, pair by pair in one run: ``python -m benchmarks.oracle [--json]
[--quick]``.

Every figure stands beside its target, where it has one. Times are CPU seconds and medians, except
what several cores do and what a fresh process needs: those are wall time. Ratios compare calls that
took turns.
"""

from __future__ import annotations

import gc
import json
import resource
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterable
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from benchmarks.anneal import grouped_gnmt
from benchmarks.common import (
    PLACEMENTS,
    anneal,
    gnmt,
    gnmt_graph,
    in_turns,
    kahn_seconds,
    layered,
    op_successors,
    random_placements,
    rotate,
    settle,
    timed,
)
from benchmarks.figures import Figure, main
from benchmarks.oracle_hosts import hosts
from benchmarks.peers import PEERS, problem_of
from simdev.execution.engine import simulate
from simdev.lowering import Prepared
from simdev.lowering.build import build
from simdev.nouns.cluster import QUEUES
from simdev.nouns.taskgraph import Ints, TaskGraph
from simdev.oracle import Oracle
from simdev.oracle.cost import limits_of
from simdev.oracle.placements.judging import bounds_for, totals_for
from simdev.oracle.placements.problem import placement_problem, record_for, sizes_of, work_for
from simdev.oracle.session import PlacementSession

DEVICES = 8  # of the layered graphs that grow
COUNTS = (4, 8, 64)  # devices of the layered graph in each queue mode
ROUNDING = 1e-2  # how far a peer's float seconds may be off on data with ties
STARTUP = """
import json, sys
from time import perf_counter as clock
begin = clock()
from simdev import Cluster, Device, Graph, Op, Oracle
import simdev.ground.jit
simdev.ground.jit.cache_folder = lambda: sys.argv[1]  # a cache of our own: the user's stays
oracle = Oracle(Graph("one", (Op("a", time=1),)), Cluster("one", (Device("gpu:0"),)))
ready = clock()
oracle.step_ps([0])
first = clock()
oracle([0])
memory = clock()
oracle.session([0]).propose("a", 0)
moves = clock()
oracle.step_ps([0])
again = clock() - moves
print(json.dumps({"import": ready - begin, "first step_ps": first - ready,
                  "first call": memory - first,
                  "first move": moves - memory, "second step_ps": again}))
"""

SPIN = """
from time import perf_counter as clock
begin = clock()
sum(i for i in range(10_000_000))
print(clock() - begin)
"""


class Size(NamedTuple):
    """How much is measured."""

    walk: int
    moves: int
    descent: int
    passes: int
    slow: int  # placements that slow peers and engines get
    batch: int
    ops: tuple[int, ...]
    mode_ops: int


# 1,000 to a million tasks
FULL = Size(20_000, 1_000, 100_000, 5, 8, 2_048, (380, 3_800, 38_000, 380_000), 10_000)
QUICK = Size(5_000, 200, 10_000, 3, 2, 256, (380, 3_800), 2_000)


# What takes turns.


def each(call: Callable[[Any], object], items: Iterable[Any]) -> list[float]:
    """CPU seconds of every single call."""
    found = []
    for item in items:
        begin = time.process_time()
        call(item)
        found.append(time.process_time() - begin)
    return found


# GNMT.


def speeds(prepared: Prepared, size: Size) -> list[Figure]:
    """A walk, placements in rotation, memory and the full record, and a Kahn pass over the same
    ops.
    """
    oracle, placements = (
        Oracle(prepared.graph, prepared.cluster, cache=0),
        random_placements(prepared),
    )
    short, targets = oracle.evaluator("fifo"), prepared.cluster.queues == "half-duplex"
    assert short is not None
    for column in placements[:4]:
        record = short.starts(column)
        assert record is not None
        assert int(record[1].max()) == oracle(column).step_ps == oracle.step_ps(column)
    settle()
    walk = anneal(oracle.step_ps, placements[0], len(prepared.cluster.devices), size.walk)
    rate = rotate(oracle.step_ps, placements, size.passes)
    bare, whole, memory, record_, trace = in_turns(
        (
            oracle.step_ps,
            oracle,
            lambda column: oracle(column).peaks,
            short.starts,
            lambda column: oracle.trace(column).start,
        ),
        placements,
        size.passes,
    )
    kahn = kahn_seconds(op_successors(prepared.graph), compiled=True)
    part = f"GNMT, 4 devices, {prepared.cluster.queues}"
    return [
        Figure(part, "annealing walk, step time only", walk.rate.per_second, "/s", 10_000
        if targets else None),
        Figure(part, f"{len(placements)} random in rotation", rate.per_second, "/s", 7_500
        if targets else None),
        Figure(part, "rotation / compiled Kahn pass over the ops", rate.seconds / kahn, "x"),
        Figure(part, "oracle() / step time only", whole / bare, "x", 1.2, False),
        Figure(part, "oracle(): with peaks of memory / step time only", memory / bare, "x", 1.6,
        False),
        Figure(part, "with the record of all starts / step time only", record_ / bare, "x", 1.6,
        False),
        Figure(part, "oracle.trace (lower + simulate) / step time only", trace / bare, "x"),
    ]  # fmt: skip


def starts(queues: str, size: Size) -> list[Figure]:
    """What all starts cost beside an evaluation, of single ops and in Baechi's groups;
    nothing is remembered, so that every call evaluates.
    """
    found = []
    for oracle in (Oracle(gnmt_graph(), gnmt(queues).cluster), grouped_gnmt(queues)):
        oracle = oracle.on(oracle.graph, cache=0)
        rng, count = np.random.default_rng(0), len(oracle.groups)
        devices = len(oracle.cluster.devices)
        placements = [rng.integers(0, devices, count) for _ in range(PLACEMENTS)]
        for column in placements[:2]:
            whole = oracle.trace(column).start[: len(oracle.graph.ops)]
            assert oracle.starts(column).op_ps.tolist() == whole.tolist()
        evaluation, with_starts = in_turns((oracle, oracle.starts), placements, 3 * size.passes)
        part = f"GNMT, {count:,} units, {devices} devices, {queues}"
        name = "oracle.starts(): starts of ops and groups / oracle()"
        found.append(Figure(part, name, with_starts / evaluation, "x", 1.2, False))
    return found


def batches(prepared: Prepared, size: Size) -> list[Figure]:
    """Wall time of a batch on one core and on two, in turns; the best of each, since the machine is
    shared.
    """
    oracle = Oracle(prepared.graph, prepared.cluster, cache=0)
    placements = random_placements(prepared, size.batch)
    walls: dict[int, list[float]] = {1: [], 2: []}
    answers = []
    oracle.batch(placements[:32], 2)
    settle()
    for _ in range(max(size.passes, 5)):
        for jobs, found in walls.items():
            begin = time.perf_counter()
            answers.append(oracle.batch(placements, jobs))
            found.append(time.perf_counter() - begin)
    assert all(answer == answers[0] for answer in answers)
    part, ratio = f"GNMT, 4 devices, {prepared.cluster.queues}", min(walls[1]) / min(walls[2])
    granted = both_cores()
    return [
        Figure(part, "batch on two cores / one core (wall)", ratio, "x", 1.8),
        Figure(part, "batch on two cores, with memory (wall)", size.batch / min(walls[2]), "/s"),
        Figure(
            part,
            "control: two plain processes / one (wall): cores that the machine gives now",
            granted,
            "x",
        ),
    ]


def both_cores(repeats: int = 3) -> float:
    """How much two processes of plain Python get done beside each other, over one alone: 2 where
    both cores are free.

    Where it is less, the machine is busy, and no batch can show what it would do on two free cores.
    """
    walls: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(repeats):
        for count, found in walls.items():
            running = [
                subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE)
                for _ in range(count)
            ]
            found.append(max(float(one.communicate()[0]) for one in running))
    return 2 * min(walls[1]) / min(walls[2])


def descend(session: PlacementSession, evaluations: int, seed: int = 0) -> None:
    """Converge: single-op moves that make it no worse are accepted."""
    rng, devices = np.random.default_rng(seed), len(session.cluster.devices)
    groups = rng.integers(0, len(session.groups), evaluations).tolist()
    for group, device in zip(groups, rng.integers(0, devices, evaluations).tolist(), strict=True):
        before = session.cost.step_ps
        if session.propose(group, device).step_ps <= before:
            session.accept()
        else:
            session.reject()


def move_ratios(
    oracle: Oracle, session: PlacementSession, count: int, seed: int = 1
) -> list[float]:
    """Full simulation over a move, for random single-op moves.

    Raises AssertionError where an answer differs.

    All moves run in one loop and all full simulations in another: right after its twin either would
    find the branch predictor prepared.
    """
    placement, rng = session.placement, np.random.default_rng(seed)
    devices = len(oracle.cluster.devices)
    ops = rng.integers(0, len(placement), count).tolist()
    shifts = rng.integers(1, devices, count).tolist()
    places = [int(placement[op] + shift) % devices for op, shift in zip(ops, shifts, strict=True)]
    moved = [placement.copy() for _ in ops]
    for column, op, place in zip(moved, ops, places, strict=True):
        column[op] = place
    answers = [session.propose(op, place).step_ps for op, place in zip(ops, places, strict=True)]
    assert answers == [oracle.step_ps(column) for column in moved], (
        "a move and a full simulation differ"
    )
    settle()
    full, by_move = [], []
    for _ in range(3):
        full.append(each(oracle.step_ps, moved))
        by_move.append(
            each(lambda move: session.propose(*move), list(zip(ops, places, strict=True)))
        )
    return [
        median(a) / median(b)
        for a, b in zip(zip(*full, strict=True), zip(*by_move, strict=True), strict=True)
    ]


def moves(prepared: Prepared, size: Size) -> list[Figure]:
    """Single-op moves from a random placement, from one that random descent improved, and near one
    device.
    """
    oracle, (start, *_) = (
        Oracle(prepared.graph, prepared.cluster, cache=0),
        random_placements(prepared, 1),
    )
    part, found = f"moves, GNMT, {prepared.cluster.queues}", []
    starts = {"random": (start, 0), "converged from random": (start, size.descent)}
    starts["converged from one device"] = (start * 0, size.descent)
    for name, (placement, evaluations) in starts.items():
        session = oracle.session(placement)
        before = session.cost.step_ps
        seconds, _ = timed(descend, session, evaluations)
        ratios = move_ratios(oracle, session, size.moves)
        target = {"random": 1.8, "converged from random": 3.0}.get(name)
        found.append(Figure(part, f"full / move, {name}: median", median(ratios), "x", target))
        found.append(Figure(part, f"full / move, {name}: mean", sum(ratios) / len(ratios), "x"))
        if evaluations:
            found.append(Figure(part, f"{name}: moves in the descent", evaluations / seconds, "/s"))
            found.append(Figure(part, f"{name}: step time of its start", before / 1e9, "ms"))
            found.append(
                Figure(part, f"{name}: its own step time", session.cost.step_ps / 1e9, "ms")
            )
    return found


def against(prepared: Prepared, size: Size, peers: bool) -> list[Figure]:
    """How many times faster than the project's engines, and than both peers where they know the
    queues.
    """
    oracle, placements = (
        Oracle(prepared.graph, prepared.cluster, cache=0),
        random_placements(prepared),
    )
    few = placements[: size.slow]
    graphs = [build(prepared, column.tolist())[0] for column in few]
    mine = in_turns((oracle.step_ps,), placements, size.passes)[0]
    simpy = median(each(partial(simulate, engine="simpy"), graphs))
    compiled = median(each(partial(simulate, engine="compiled"), graphs))
    lowering = median(each(lambda column: build(prepared, column.tolist()), few))
    assert [simulate(g, "simpy").end_ps for g in graphs] == [
        oracle.step_ps(column) for column in few
    ]
    tasks = median(len(task_graph.tasks) for task_graph in graphs)
    part = f"GNMT, 4 devices, {prepared.cluster.queues}, {size.slow} placements for the slow ones"
    found = [
        Figure(part, "oracle / lower + SimPy engine", (lowering + simpy) / mine, "x", 100),
        Figure(part, "oracle / SimPy engine alone", simpy / mine, "x", 100),
        Figure(part, "oracle / lower + compiled engine", (lowering + compiled) / mine, "x"),
        Figure(part, "oracle / compiled engine alone", compiled / mine, "x"),
        Figure(part, "SimPy engine", tasks / simpy, "tasks/s", 100_000),
        Figure(part, "compiled engine", tasks / compiled, "tasks/s"),
    ]
    for name, peer in PEERS.items() if peers else ():
        makespan = partial(peer, problem_of(prepared))
        times = each(lambda column, makespan=makespan: makespan(column.tolist()), few)  # type: ignore[misc]
        off = max(
            abs(makespan(column.tolist()) * 1e12 / oracle.step_ps(column) - 1) for column in few[:2]
        )
        assert off < ROUNDING, f"{name} is {off:.2g} off"
        target = 1_000 if name.startswith("SimPy") else None
        found.append(Figure(part, f"oracle / {name}", median(times) / mine, "x", target))
    return found


# Layered graphs.


def sent(prepared: Prepared, placement: Ints) -> int:
    """How many transfers a placement needs, once per device: what lowering would make tasks of."""
    reads, devices = prepared.reads, len(prepared.cluster.devices)
    tensor = reads.consumers.owners()
    there, here = placement[reads.consumers.ids], placement[reads.producer[tensor]]
    return len(np.unique((tensor * devices + there)[there != here]))


def rate_of(prepared: Prepared, passes: int, most: int) -> tuple[float, bool]:
    """CPU nanoseconds per task of step_ps (over fewer placements where it goes the long way), and
    whether short.
    """
    oracle = Oracle(prepared.graph, prepared.cluster, cache=0)
    placements = random_placements(prepared)
    is_short = oracle.evaluator("fifo") is not None
    if not is_short:
        placements = placements[:most]
    tasks = len(prepared.graph.ops) + sum(sent(prepared, column) for column in placements) / len(
        placements
    )
    seconds = in_turns((oracle.step_ps,), placements, passes if is_short else 1)[0]
    return seconds / tasks * 1e9, is_short


def nbytes(columns: Iterable[object]) -> int:
    """Bytes of all arrays."""
    return sum(column.nbytes for column in columns if isinstance(column, np.ndarray))


def bytes_of(prepared: Prepared, placement: Ints) -> tuple[float, float, TaskGraph]:
    """Bytes per task: of the prepared question with the room for one evaluation (peaks, where they
    are read, take more), and of the task graph with names.
    """
    problem, sizes = placement_problem(prepared), sizes_of(prepared)
    assert problem is not None
    totals = totals_for(problem, sizes, limits_of(prepared.cluster))
    room = work_for(problem), record_for(problem), bounds_for(problem)
    prepared_bytes = nbytes({id(c): c for t in (problem, sizes, totals, *room) for c in t}.values())
    # what is prepared once is not counted; there it is nothing, and takes long
    if len(prepared.graph.ops) < 10**6:
        build(prepared, placement.tolist())
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    task_graph = build(prepared, placement.tolist()).task_graph
    gc.collect()
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return prepared_bytes / len(task_graph.tasks), held / len(task_graph.tasks), task_graph


def growth(size: Size, say: Callable[[str], None]) -> list[Figure]:
    """Time and memory per task as layered graphs grow."""
    found, times, sizes = [], [], []
    for ops in size.ops:  # each op has about 1.64 transfers
        say(f"layered, {ops:,} ops ...")
        prepared = layered(ops, DEVICES, "half-duplex")
        nanoseconds, is_short = rate_of(prepared, size.passes if ops < 10**5 else 1, size.slow)
        assert is_short
        question, held, task_graph = bytes_of(prepared, random_placements(prepared, 1)[0])
        assert len(task_graph.tasks) == ops + sent(prepared, random_placements(prepared, 1)[0])
        part = (
            f"layered {ops:,} ops, {len(task_graph.tasks):,} tasks, {DEVICES} devices, half-duplex"
        )
        times.append(nanoseconds)
        sizes.append(question)
        found.append(Figure(part, "time per task", nanoseconds, "ns"))
        found.append(
            Figure(part, "prepared question and its room, per task", question, "bytes", 600, False)
        )
        found.append(
            Figure(
                part, "task graph, per task (lowering, not the oracle)", held, "bytes", 600, False
            )
        )
        del prepared, task_graph
        gc.unfreeze()
    part = f"layered {size.ops[0]:,} to {size.ops[-1]:,} ops"
    found.append(
        Figure(part, "time per task, slowest / fastest", max(times) / min(times), "x", 3, False)
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found.append(Figure(part, "peak memory of this process", peak, "MiB"))
    return found


def modes(size: Size, say: Callable[[str], None]) -> list[Figure]:
    """Every queue mode on few and many devices."""
    found = []
    for queues in QUEUES:
        say(f"layered, {queues} ...")
        for devices in COUNTS:
            prepared = layered(size.mode_ops, devices, queues)
            nanoseconds, is_short = rate_of(prepared, 3, 2)
            name = f"time per task, {devices} devices" + (
                "" if is_short else " (the long way: lower + simulate)"
            )
            found.append(
                Figure(f"layered {size.mode_ops:,} ops, {queues}", name, nanoseconds, "ns")
            )
    return found


def startup() -> list[Figure]:
    """Wall seconds of the first calls, each in a fresh process, with an empty and with a warm cache
    of kernels.
    """
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for cache in ("empty cache", "warm cache"):
            result = subprocess.run(
                [sys.executable, "-c", STARTUP, folder], capture_output=True, text=True, check=True
            )
            for name, seconds in json.loads(result.stdout).items():
                found.append(Figure(f"fresh process, {cache} (wall)", name, seconds * 1e3, "ms"))
    return found


def run(size: Size, say: Callable[[str], None]) -> list[Figure]:
    """Everything. Raises AssertionError where two answers differ."""
    found = []
    for queues in ("half-duplex", "parallel"):
        say(f"GNMT, {queues} ...")
        prepared = gnmt(queues)
        found += speeds(prepared, size) + starts(queues, size)
        found += batches(prepared, size) + moves(prepared, size)
        found += against(prepared, size, peers=queues == "parallel")
        found += hosts(prepared, 5 * size.passes)
    return found + growth(size, say) + modes(size, say) + startup()


if __name__ == "__main__":
    main("oracle", __doc__, run, FULL, QUICK, "CPU time, medians")
