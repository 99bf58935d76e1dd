"""The oracle beside a plain event loop in C++, pair by pair in one run: ``python -m
benchmarks.event_loop [--json] [--quick]``.

The loop (event_loop.cpp) is compiled with the compiler at hand ($CXX, c++, g++ or clang++). GNMT's
2,494 ops on four devices, in both queue modes; placements that neither has seen: random ones, and
those along two annealing walks, each one op from the one before. Ratios are the loop's CPU seconds
over the oracle's on the same placements, which all answer in blocks, in turn: above 1 the oracle
is the faster. Questions:

- step time alone: ``oracle.step_ps``;
- with feasibility: ``oracle(placement)`` where devices have so much memory (ROOM) that the totals
  of the placement prove that it fits (not before they are counted), beside the loop alone and
  beside the loop that counts the same totals;
- with peaks of memory: the exact peaks are read, too, of which the loop knows nothing;
- with an exact excess: devices have so little memory (SCARCE) that nothing is proven.

Both must give the same step times, and the same verdict. Then what a call costs beside the kernel:
the time of a graph of one op.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
import time
import timeit
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

import numpy as np

from benchmarks.common import PLACEMENTS, gnmt, settle
from benchmarks.figures import Figure, main
from simdev.costs import CostModel
from simdev.lowering import Prepared
from simdev.nouns.cluster import Cluster, Device
from simdev.nouns.graph import Graph, Op
from simdev.nouns.taskgraph import Ints
from simdev.oracle import Oracle
from simdev.oracle.cost import limits_of
from simdev.oracle.placements.judging import Totals, totals_for
from simdev.oracle.placements.problem import PlacementProblem, placement_problem, sizes_of

SOURCE = Path(__file__).with_name("event_loop.cpp")
COMPILERS = ("c++", "g++", "clang++")
MOST_DEVICES = 64  # bits of its sets of devices
ROOM, SCARCE = "4 GB", "600 MB"  # of a device; the tensors of GNMT are 3.4 GB
HOT, COLD = 0.01, 1e-4  # temperatures of the walks, of the step time
NOTE = "CPU time; ratios: median, quartiles"


class Size(NamedTuple):
    """How many blocks of PLACEMENTS placements each state gets."""

    blocks: int


FULL, QUICK = Size(60), Size(8)


def compiler() -> str | None:
    """The C++ compiler at hand."""
    names = (os.environ.get("CXX", ""), *COMPILERS)
    return next((path for name in names if name and (path := shutil.which(name))), None)


def library() -> ctypes.CDLL | None:
    """The loop, compiled; None where there is no compiler."""
    path = compiler()
    if path is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder) / "event_loop.so"
        flags = ("-O3", "-std=c++17", "-shared", "-fPIC")
        subprocess.run([path, *flags, "-o", str(built), str(SOURCE)], check=True)
        loop = ctypes.CDLL(str(built))
    loop.loop_new.restype = ctypes.c_void_p
    loop.loop_delete.restype, loop.loop_delete.argtypes = None, [ctypes.c_void_p]
    loop.loop_step.restype = ctypes.c_int64
    loop.loop_step.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    loop.loop_fit.restype, loop.loop_fit.argtypes = ctypes.c_int64, loop.loop_step.argtypes
    loop.loop_weigh.restype, loop.loop_weigh.argtypes = None, [ctypes.c_void_p] * 5
    return loop


class EventLoop:
    """The loop on one question. Raises ValueError for one that it does not cover."""

    def __init__(self, loop: ctypes.CDLL, prepared: Prepared) -> None:
        cluster, problem = prepared.cluster, placement_problem(prepared)
        if (
            problem is None
            or cluster.queues not in ("half-duplex", "parallel")
            or cluster.transfer != "once-per-device"
            or problem.round_bits
            or problem.device_gap.any()
            or problem.route_lag.any()
            or problem.route_gap.any()
            or not problem.all_routes
            or problem.devices > MOST_DEVICES
            or (problem.duration < 0).any()
        ):
            raise ValueError("the loop knows ops and transfers that take time, and no gaps")
        times = (problem.duration, lasting(problem))
        shape = (problem.waits, problem.tensor_ptr, problem.consumer_ptr, problem.consumer)
        columns = [*times, *(column.astype(np.int32) for column in shape)]
        sizes = (problem.ops, problem.devices, problem.tensors, cluster.queues == "half-duplex")
        pointers = [ctypes.c_void_p(column.ctypes.data) for column in columns]
        self._loop, self._step = loop.loop_new(*sizes, *pointers), loop.loop_step
        self._fit = loop.loop_fit
        weakref.finalize(self, loop.loop_delete, self._loop)
        totals: Totals = totals_for(problem, sizes_of(prepared), limits_of(cluster))
        weights = totals.kept, totals.running, totals.sent, totals.room
        loop.loop_weigh(self._loop, *(ctypes.c_void_p(column.ctypes.data) for column in weights))

    def step_ps(self, placement: Ints) -> int:
        """The step time of devices by op, in ps."""
        return self._step(self._loop, _address(placement))  # type: ignore[no-any-return]

    def fit(self, placement: Ints) -> int:
        """The step time, negative where totals do not prove that it fits."""
        return self._fit(self._loop, _address(placement))  # type: ignore[no-any-return]


def _address(placement: Ints) -> int:
    # five times faster than placement.ctypes.data
    return ctypes.addressof(ctypes.c_char.from_buffer(placement))


def with_memory(prepared: Prepared, memory: str | int) -> Prepared:
    """Devices of so much memory in place of those of the question."""
    devices = tuple(replace(device, memory=memory) for device in prepared.cluster.devices)
    cluster = replace(prepared.cluster, devices=devices)
    return Prepared(prepared.graph, cluster, prepared.costs)


def lasting(problem: PlacementProblem) -> Ints:
    """Ps of each transfer, by tensor and two devices, flat."""
    by_class = problem.sending.reshape(problem.tensors, problem.classes)
    # a device sends nothing to itself: any class will do
    return np.ascontiguousarray(by_class[:, problem.route_class] + problem.route_held).reshape(-1)


def random_blocks(prepared: Prepared, count: int, seed: int) -> Iterator[list[Ints]]:
    """Blocks of placements, all of them random."""
    rng, ops = np.random.default_rng(seed), len(prepared.graph.ops)
    devices = len(prepared.cluster.devices)
    for _ in range(count):
        yield [rng.integers(0, devices, ops) for _ in range(PLACEMENTS)]


def walked_blocks(oracle: Oracle, start: Ints, count: int, seed: int) -> Iterator[list[Ints]]:
    """Blocks of what an annealing walk proposes: each one op from the walk's own placement."""
    rng, devices = np.random.default_rng(seed), len(oracle.cluster.devices)
    current, current_ps = start, oracle.step_ps(start)
    for temperature in np.geomspace(HOT, COLD, count).tolist():
        block = []
        for luck in rng.exponential(temperature, PLACEMENTS).tolist():
            proposed, op = current.copy(), rng.integers(len(start))
            proposed[op] = (proposed[op] + rng.integers(1, devices)) % devices
            block.append(proposed)
            if (step_ps := oracle.step_ps(proposed)) <= current_ps * (1 + luck):
                current, current_ps = proposed, step_ps
        yield block


def beside(
    calls: Sequence[Callable[[Ints], object]], blocks: Sequence[Sequence[Ints]]
) -> list[list[float]]:
    """CPU seconds of each call over each block, answered in turn by one after the other; who begins
    changes from block to block.
    """
    seconds: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call(blocks[0][0])
    settle()
    for number, block in enumerate(blocks):
        for at in range(len(calls)):
            which = (number + at) % len(calls)
            begin = time.process_time()
            for placement in block:
                calls[which](placement)
            seconds[which].append(time.process_time() - begin)
    return seconds


def never_cached(prepared: Prepared) -> Oracle:
    """The oracle of a question; it remembers nothing."""
    return Oracle(prepared.graph, prepared.cluster, cache=0)


def ratios(loop: ctypes.CDLL, queues: str, size: Size) -> list[Figure]:
    """The loop's seconds over the oracle's, by state and question. Raises AssertionError where two
    answers differ.
    """
    free, count = gnmt(queues), size.blocks
    roomy = with_memory(free, ROOM)
    alone, judged, scarce = map(never_cached, (free, roomy, with_memory(free, SCARCE)))
    whole, peer = never_cached(roomy), EventLoop(loop, roomy)
    calls = peer.step_ps, peer.fit, alone.step_ps, judged, lambda one: whole(one).peaks, scarce
    anywhere = next(random_blocks(free, 1, seed=1))[0]
    states = {
        "random": random_blocks(free, count, seed=0),
        "walk from a random placement": walked_blocks(alone, anywhere, count, seed=2),
        "walk from one device": walked_blocks(alone, anywhere * 0, count, seed=3),
    }
    figures, part = [], f"GNMT, {len(anywhere):,} ops, 4 devices, {queues}"
    for state, generated in states.items():
        blocks = list(generated)
        for placement in (block[0] for block in blocks):
            assert peer.fit(placement) == peer.step_ps(placement) == alone.step_ps(placement)
            assert judged(placement) == whole(placement)
        steps, fits, *ours = beside(calls, blocks)
        for name, loops, seconds, target in (
            ("step time alone", steps, ours[0], 1.0),
            ("with feasibility", steps, ours[1], 0.8),
            ("with feasibility, both", fits, ours[1], None),
            ("with peaks of memory", steps, ours[2], None),
            ("with an exact excess", steps, ours[3], None),
        ):
            shares = [a / b for a, b in zip(loops, seconds, strict=True)]
            low, middle, high = quantiles(shares, n=4)
            head = f"{state}: C++ loop / oracle, {name}"
            figures.append(Figure(part, head, middle, "x", target))
            figures.append(Figure(part, f"{head}: lower quartile", low, "x"))
            figures.append(Figure(part, f"{head}: upper quartile", high, "x"))
    return figures


def call_overhead(size: Size) -> list[Figure]:
    """What a call takes on a graph of one op, where next to nothing is simulated."""
    cluster = Cluster.all_to_all("two", [Device("gpu:0"), Device("gpu:1")], bandwidth="1 GB/s")
    graph = Graph("one op", (Op("a", time="1 us", param_bytes=8),))
    prepared = Prepared(graph, cluster, CostModel())
    one, figures = np.zeros(1, np.int64), []
    for memory, oracle in (
        ("no capacities", never_cached(prepared)),
        ("capacities", never_cached(with_memory(prepared, "20 B"))),
    ):
        for name, call in (("oracle(placement)", oracle), ("oracle.step_ps", oracle.step_ps)):
            call(one)
            seconds = timeit.repeat(
                lambda call=call: call(one), time.process_time, repeat=20 * size.blocks, number=200
            )
            figures.append(
                Figure("a call", f"{name}, {memory}", median(seconds) / 200 * 1e6, "us", 5, False)
            )
    return figures


def run(size: Size, say: Callable[[str], None]) -> list[Figure]:
    """Everything; one line and nothing else where there is no compiler."""
    loop = library()
    if loop is None:
        say(f"skipped: no C++ compiler ($CXX, {', '.join(COMPILERS)})")
        return []
    rows = [row for queues in ("half-duplex", "parallel") for row in ratios(loop, queues, size)]
    return [*rows, *call_overhead(size)]


if __name__ == "__main__":
    main("event_loop", __doc__, run, FULL, QUICK, NOTE)
