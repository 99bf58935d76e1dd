"""What every benchmark needs: graphs, placements, drivers, a clock, and one Kahn pass to calibrate
a machine.

A benchmark that repeats one placement is up to three times too fast, because the branch predictor
learns the run: so drivers take turns over at least PLACEMENTS different ones, or walk from one to
the next as a search does. Times are CPU seconds of this process.
"""

from __future__ import annotations

import gc
import gzip
import json
import math
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any, ParamSpec, TypeVar

import numpy as np

from simdev.costs import CostModel
from simdev.lowering import Prepared
from simdev.nouns.cluster import Cluster, Device, Link
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.taskgraph import Ints, Rows

PLACEMENTS = 32  # the least number of different placements in rotation
PEER_FILES = Path(__file__).resolve().parents[1] / "tests" / "peers"
GNMT = PEER_FILES / "baechi_gnmt" / "gnmt_v2_forward.json.gz"
# of layered graphs; the spread is the sigma of their lognormals
WIDTH, IN_DEGREE, SPREAD = 64, 2.0, 1.0
MEDIAN_SECONDS, MEDIAN_BYTES = 100e-6, 0.5e6
GROUP = 4  # devices that share the faster links

P = ParamSpec("P")
T = TypeVar("T")
Score = Callable[[Ints], float]


# Graphs on clusters.


@cache
def layered_graph(ops: int, seed: int = 0) -> Graph:
    """A random DAG in layers of 64 ops: each reads about two ops of the two layers before its
    own.
    """
    rng = np.random.default_rng(seed)
    times = (
        np.maximum(1, MEDIAN_SECONDS * 1e12 * rng.lognormal(0, SPREAD, ops))
        .astype(np.int64)
        .tolist()
    )
    sizes = (MEDIAN_BYTES * rng.lognormal(0, SPREAD, ops)).astype(np.int64).tolist()
    degrees = np.maximum(1, rng.poisson(IN_DEGREE, ops)).tolist()
    found = []
    for i in range(ops):
        layer = i // WIDTH * WIDTH
        first = max(0, layer - 2 * WIDTH)
        read = np.sort(
            rng.choice(np.arange(first, layer), min(degrees[i], layer - first), replace=False)
        ).tolist()
        inputs, outputs = tuple(f"op{p}" for p in read), (Tensor(sizes[i]),)
        found.append(Op(f"op{i}", inputs=inputs, outputs=outputs, time=Fraction(times[i], 10**12)))
    return Graph(f"layered {ops:,}", tuple(found))


def grouped_cluster(devices: int, queues: str) -> Cluster:
    """50 GB/s and 2 us between the devices of one group of four, 12 GB/s and 5 us between
    groups.
    """
    names = [f"gpu:{d}" for d in range(devices)]
    pairs = [(a, b) for a in range(devices) for b in range(a + 1, devices)]
    links = [
        Link((names[a], names[b]), "50 GB/s", "2 us") if a // GROUP == b // GROUP else
        Link((names[a], names[b]), "12 GB/s", "5 us")
        for a, b in pairs
    ]  # fmt: skip
    return Cluster(f"{devices} in groups", tuple(map(Device, names)), tuple(links), queues)


def layered(ops: int, devices: int, queues: str, seed: int = 0) -> Prepared:
    """A layered graph on a grouped cluster."""
    return Prepared(layered_graph(ops, seed), grouped_cluster(devices, queues), CostModel())


@cache
def gnmt_graph() -> Graph:
    """Baechi's measured GNMT graph: 2,494 ops in its topological order, times in whole
    microseconds.
    """
    with gzip.open(GNMT, "rt") as file:
        record = json.load(file)
    outputs: list[dict[str, int]] = [{} for _ in record["nodes"]]
    inputs: list[list[str]] = [[] for _ in record["nodes"]]
    for edge in record["edges"]:
        of_producer = outputs[edge["src"]]
        for tensor in edge["tensors"]:
            of_producer.setdefault(tensor["name"], tensor["bytes"])
            inputs[edge["dst"]].append(f"op{edge['src']}:{list(of_producer).index(tensor['name'])}")
    order = sorted(record["nodes"], key=lambda node: node["topo_order"])
    sizes = {node["id"]: tuple(map(Tensor, outputs[node["id"]].values())) for node in order}
    ops = [
        Op(
            f"op{n['id']}",
            inputs=tuple(inputs[n["id"]]),
            outputs=sizes[n["id"]],
            time=f"{n['us']} us",
        )
        for n in order
    ]
    return Graph("GNMT", tuple(ops))


def gnmt(queues: str, devices: int = 4) -> Prepared:
    """GNMT on Baechi's cluster."""
    names = [Device(f"gpu:{d}") for d in range(devices)]
    rate = Fraction(10**6) / Fraction("0.0001754")  # 0.0001754 us a byte
    cluster = Cluster.all_to_all("baechi", names, queues, bandwidth=rate, latency="134 us")
    return Prepared(gnmt_graph(), cluster, CostModel())


def random_placements(prepared: Prepared, count: int = PLACEMENTS, seed: int = 0) -> list[Ints]:
    """Uniform random placements: for each a device by op."""
    rng = np.random.default_rng(seed)
    devices = np.array(
        [d for d, device in enumerate(prepared.cluster.devices) if device.runs_ops], np.int64
    )
    return [devices[rng.integers(0, len(devices), len(prepared.graph.ops))] for _ in range(count)]


# The clock and the drivers.


def timed(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> tuple[float, T]:
    """CPU seconds of one call, and what it returned; the garbage of earlier calls is collected
    before.
    """
    gc.collect()
    begin = time.process_time()
    result = call(*args, **kwargs)
    return time.process_time() - begin, result


@dataclass(frozen=True, slots=True)
class Rate:
    """How fast something was called: median CPU seconds a call, and what that rests on."""

    seconds: float
    calls: int
    passes: int

    @property
    def per_second(self) -> float:
        return 1 / self.seconds


def settle() -> None:
    """Let the garbage collector ignore what lives by now: else the data of one benchmark would slow
    the next.
    """
    gc.collect()
    gc.freeze()


def rotate(
    call: Callable[[T], object], items: Sequence[T], passes: int = 5, least_seconds: float = 0.5
) -> Rate:
    """Call with every item in turn, pass by pass, until both limits are reached: the median pass.

    One warm-up call.
    """
    if len(items) < PLACEMENTS:
        raise ValueError(f"at least {PLACEMENTS} different items in rotation, got {len(items)}")

    call(items[0])
    gc.collect()
    found: list[float] = []
    while len(found) < passes or sum(found) < least_seconds:
        begin = time.process_time()
        for item in items:
            call(item)
        found.append(time.process_time() - begin)
    return Rate(median(found) / len(items), len(found) * len(items), len(found))


def in_turns(
    calls: Sequence[Callable[[Any], object]], items: Sequence[Any], passes: int
) -> list[float]:
    """Median CPU seconds a call of each, over passes through the items in which the calls take
    turns.
    """
    found: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call(items[0])
    settle()
    for _ in range(passes):
        for seconds, call in zip(found, calls, strict=True):
            begin = time.process_time()
            for item in items:
                call(item)
            seconds.append((time.process_time() - begin) / len(items))
    return [median(seconds) for seconds in found]


@dataclass(frozen=True, slots=True)
class Walk:
    """An annealing walk: its rate, how many moves it accepted, and the scores where it began, ended
    and was best.
    """

    rate: Rate
    accepted: int
    start: float
    end: float
    best: float


def anneal(
    score: Score,
    start: Ints,
    devices: int,
    evaluations: int,
    seed: int = 0,
    temperature: float = 0.01,
) -> Walk:
    """Simulated annealing by moves of one op, from ``start``: evaluations a second over the walk.

    ``score`` gets the walk's own array, changed in place from call to call. The temperature is a
    fraction of the start's score and falls to zero in a straight line. Moves are drawn before the
    clock starts, and the start is scored before it too.
    """
    rng = np.random.default_rng(seed)
    ops = rng.integers(0, len(start), evaluations).tolist()
    shifts = rng.integers(1, devices, evaluations).tolist()
    # A move that is worse by less than luck * temperature is accepted: Metropolis' rule, drawn
    # beforehand.
    lucks = (rng.exponential(1.0, evaluations) * np.linspace(temperature, 0, evaluations)).tolist()
    placement = start.copy()
    first = score(placement)

    def walk() -> tuple[int, float, float]:
        accepted, current, best = 0, first, first
        for op, shift, luck in zip(ops, shifts, lucks, strict=True):
            before = placement[op]
            placement[op] = (before + shift) % devices
            found = score(placement)
            if found <= current + luck * first:
                accepted, current, best = accepted + 1, found, min(best, found)
            else:
                placement[op] = before
        return accepted, current, best

    seconds, (accepted, end, best) = timed(walk)
    return Walk(Rate(seconds / evaluations, evaluations, 1), accepted, first, end, best)


# Calibration: how long this machine needs to visit every edge once.


def kahn(ptr: Sequence[int], ids: Sequence[int], missing: Any, order: Any) -> int:
    """One topological pass over successors in CSR form: how many rows it reached."""
    found = 0
    for row in range(len(missing)):
        if missing[row] == 0:
            order[found] = row
            found += 1
    at = 0
    while at < found:
        for e in range(ptr[order[at]], ptr[order[at] + 1]):
            missing[ids[e]] -= 1
            if missing[ids[e]] == 0:
                order[found] = ids[e]
                found += 1
        at += 1
    return found


@cache
def compiled_kahn() -> Callable[..., int]:
    """The same pass, compiled."""
    import numba

    return numba.njit(kahn)  # type: ignore[no-any-return]


def kahn_seconds(successors: Rows, compiled: bool, repeats: int = 9) -> float:
    """Median CPU seconds of a Kahn pass: over arrays where ``compiled``, else over lists in plain
    Python.
    """
    count = len(successors)
    ptr, ids = successors.ptr, successors.ids
    missing, order = np.bincount(ids, minlength=count), np.zeros(count, np.int64)
    if compiled:
        compiled_kahn()(ptr, ids, missing.copy(), order)
        runs = [timed(compiled_kahn(), ptr, ids, missing.copy(), order) for _ in range(repeats)]
    else:
        lists = ptr.tolist(), ids.tolist()
        runs = [timed(kahn, *lists, missing.tolist(), order.tolist()) for _ in range(repeats)]
    if any(reached != count for _, reached in runs):
        raise ValueError("the successors have a cycle")
    return median(seconds for seconds, _ in runs)


def op_successors(graph: Graph) -> Rows:
    """The DAG of the ops themselves, each edge once: what an oracle's speed is compared with."""
    found: list[list[int]] = [[] for _ in graph.ops]
    for consumer, reads in enumerate(graph.reads):
        for producer in sorted({producer for producer, _ in reads}):
            found[producer].append(consumer)
    return Rows.of(found)


# What is printed.


def machine() -> dict[str, str]:
    """The processor and the versions that decide the speed."""
    found = {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
    }
    for package in ("simpy", "numpy", "numba"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "none"
    return found


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as they must be: the first two to the left, the others to the right."""
    table = [head, *rows]
    widths = [max(len(row[c]) for row in table) for c in range(len(head))]
    for row in table:
        cells = [
            cell.ljust(w) if c < 2 else cell.rjust(w)
            for c, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def figure(value: float) -> str:
    """Three digits that mean something: 1,230 or 12.3 or 0.0123."""
    if not math.isfinite(value) or value == 0:
        return str(value)
    digits = 2 - math.floor(math.log10(abs(value)))
    return f"{round(value, digits):,.{max(digits, 0)}f}"
