"""How well batches of placements fill the cores: ``python -m benchmarks.batches [--json]
[--quick]``.

GNMT's 2,494 ops on four devices, random placements that were never asked before, in three ways at
once on every core: ``oracle.batch`` on threads (kernels without the GIL, several placements in one
call); plain processes beside each other, each with an oracle of its own that is asked one by one,
which is what the machine gives when nothing is shared; and ``oracle.batch`` in one thread, for what
a core gives alone. Wall time; figures are evaluations a second, and the threads' share of what the
processes reach, pair by pair in turn.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from statistics import median
from typing import NamedTuple

import numpy as np

from benchmarks.common import gnmt
from benchmarks.figures import Figure, main
from simdev.nouns.taskgraph import Ints
from simdev.oracle import Oracle

NOTE = "wall time, medians"


class Size(NamedTuple):
    """Placements a core in each round, and rounds."""

    placements: int
    rounds: int


FULL, QUICK = Size(2_000, 9), Size(200, 3)


def fresh(queues: str) -> Oracle:
    """An oracle that remembers nothing, and has its kernels loaded."""
    prepared = gnmt(queues)
    oracle = Oracle(prepared.graph, prepared.cluster, cache=0)
    oracle.batch(rows_of(oracle, 2, 0), 1)
    return oracle


def rows_of(oracle: Oracle, count: int, seed: int) -> list[Ints]:
    """Random placements."""
    rng, devices = np.random.default_rng(seed), len(oracle.cluster.devices)
    return list(rng.integers(0, devices, (count, len(oracle.graph.ops))))


def serve(queues: str, count: int, seed: int, line: Connection) -> None:
    """One of the plain processes: answers a round whenever it is told to."""
    oracle = fresh(queues)
    rounds = iter(range(10**9))
    line.send("ready")
    while line.recv():
        rows = rows_of(oracle, count, seed + 1_000 * next(rounds))
        line.send("made")
        line.recv()
        for row in rows:
            oracle(row)
        line.send("done")


def timed(call: Callable[[], object]) -> float:
    """Wall seconds of a call."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def all_say(lines: Sequence[Connection], word: object) -> None:
    """Tell every process, and wait for each."""
    for line in lines:
        line.send(word)
    for line in lines:
        line.recv()


def beside(queues: str, cores: int, size: Size) -> list[tuple[float, float, float]]:
    """Seconds of each round: of threads, of processes, and of one thread with a core's share."""
    context, lines, workers = get_context("spawn"), [], []
    for worker in range(cores):
        line, other = context.Pipe()
        asked_for = queues, size.placements, worker, other
        workers.append(context.Process(target=serve, args=asked_for))
        lines.append(line)
    for process in workers:
        process.start()
    oracle = fresh(queues)
    for line in lines:
        line.recv()
    rounds = []
    for number in range(size.rounds):
        rows = rows_of(oracle, cores * size.placements, 7_000 + number)
        threads = timed(lambda rows=rows: oracle.batch(rows, cores))  # type: ignore[misc]
        all_say(lines, True)
        processes = timed(lambda: all_say(lines, "go"))
        alone = timed(lambda rows=rows: oracle.batch(rows[: size.placements], 1))  # type: ignore[misc]
        rounds.append((threads, processes, alone))
    for line in lines:
        line.send(False)
    for process in workers:
        process.join()
    return rounds


def run(size: Size, say: Callable[[str], None]) -> list[Figure]:
    """Both queue modes."""
    cores, figures = os.cpu_count() or 1, []
    for queues in ("half-duplex", "parallel"):
        say(f"{queues} ...")
        threads, processes, single = zip(*beside(queues, cores, size), strict=True)
        part, count = f"GNMT, 4 devices, {queues}", cores * size.placements
        shares = [b / a for a, b in zip(threads, processes, strict=True)]
        alone = size.placements / median(single)
        figures += [
            Figure(part, "one thread", alone, "/s"),
            Figure(part, f"batch on {cores} threads", count / median(threads), "/s"),
            Figure(part, f"{cores} plain processes", count / median(processes), "/s"),
            Figure(part, "threads / processes", median(shares), "x", 1.0),
            Figure(part, f"{cores} threads / one", count / median(threads) / alone, "x"),
        ]
    return figures


if __name__ == "__main__":
    main("batches", __doc__, run, FULL, QUICK, NOTE)
