"""Tasks per second of the engines, and of two peers in the same run: ``python -m benchmarks.engine
[--json]``.

Every placement is lowered once, executed once by each engine and dropped, as a user does it who
asks many different questions; what is printed is the median. Step times are compared on the way.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.util import find_spec
from statistics import median
from typing import Any

from benchmarks.common import (
    PLACEMENTS,
    figure,
    gnmt,
    kahn_seconds,
    layered,
    machine,
    print_table,
    random_placements,
    settle,
    timed,
)
from benchmarks.peers import PEERS, problem_of
from simdev.execution.engine import simulate
from simdev.ground.units import PS_PER_SECOND
from simdev.lowering import Prepared
from simdev.lowering.build import build
from simdev.nouns.cluster import QUEUES
from simdev.nouns.taskgraph import TaskGraph

OPS, DEVICES = 10_000, 8
TARGET = 100_000  # tasks per second of the reference engine
ROUNDING = 1e-9  # relative difference of a peer's float seconds on data without ties
ENGINES = ("simpy", "compiled") if find_spec("numba") else ("simpy",)
STARTUP = """
import json, sys
from time import perf_counter as clock
from simdev.execution.engine import simulate
from simdev.lowering import Prepared, lower
from simdev import Cluster, Device, Graph, Op, Strategy
from simdev.costs import CostModel
graph, cluster = Graph("one", (Op("a", time=1),)), Cluster("one", (Device("gpu:0"),))
task_graph = lower(graph, cluster, CostModel(), Strategy({"a": "gpu:0"}))
base = clock()
import simdev.ground.jit
simdev.ground.jit.cache_folder = lambda: sys.argv[1]  # a cache of our own: the user's stays
import simdev.execution.engine.compiled
loaded = clock()
simulate(task_graph, "compiled")
first = clock()
simulate(task_graph, "compiled")
print(json.dumps({"import": loaded - base, "first": first - loaded, "second": clock() - first}))
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """One graph under one queue mode: medians over the placements, in CPU seconds, and how far
    peers were off.
    """

    graph: str
    queues: str
    placements: int
    tasks: float
    lowering: float
    engines: dict[str, float]
    kahn: dict[str, float]
    peers: dict[str, float] = field(default_factory=dict)
    # the largest, relative to simdev's step time
    differences: dict[str, float] = field(default_factory=dict)


def measure(prepared: Prepared, placements: Sequence[Any], peers: bool = False) -> Measured:
    """Lower and execute every placement. Raises AssertionError where the engines differ."""
    makespans = {name: partial(peer, problem_of(prepared)) for name, peer in PEERS.items() if peers}
    build(prepared, placements[0].tolist())  # what is prepared once is not timed
    settle()
    lowering: list[float] = []
    tasks: list[int] = []
    engines: dict[str, list[float]] = {name: [] for name in ENGINES}
    others: dict[str, list[float]] = {name: [] for name in makespans}
    differences = dict.fromkeys(others, 0.0)
    for placement in placements:
        seconds, task_graph = timed(lower_placed, prepared, placement.tolist())
        lowering.append(seconds)
        tasks.append(len(task_graph.tasks))
        steps = set()
        for name, found in engines.items():
            seconds, trace = timed(simulate, task_graph, name)
            found.append(seconds)
            steps.add(trace.end_ps)
        assert len(steps) == 1, f"the engines differ: {steps}"
        step = steps.pop() / PS_PER_SECOND
        for name, found in others.items():
            seconds, makespan = timed(makespans[name], placement.tolist())
            found.append(seconds)
            differences[name] = max(differences[name], abs(makespan / step - 1))
    graph, queues = prepared.graph.name, prepared.cluster.queues
    kahn = {name: kahn_seconds(task_graph.tasks.successors, name == "compiled") for name in ENGINES}
    medians = [
        {name: median(found) for name, found in column.items()} for column in (engines, others)
    ]
    counts = len(placements), median(tasks), median(lowering)
    return Measured(graph, queues, *counts, medians[0], kahn, medians[1], differences)


def lower_placed(prepared: Prepared, placement: list[int]) -> TaskGraph:
    """Lowering, with the counts of predecessors that both engines read: neither should pay for them
    alone.
    """
    task_graph = build(prepared, placement).task_graph
    assert len(task_graph.predecessor_count) == len(task_graph.tasks)
    return task_graph


def startup() -> dict[str, dict[str, float]]:
    """Wall seconds of loading the compiled engine and of its first call, each in a fresh
    process.
    """
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("empty cache", "warm cache"):
            command = [sys.executable, "-c", STARTUP, folder]
            result = subprocess.run(command, capture_output=True, text=True, check=True)
            found[name] = json.loads(result.stdout)
    return found


def run(placements: int, ops: int, say: Callable[[str], None]) -> list[Measured]:
    """Every queue mode on a layered graph, and GNMT. Raises AssertionError where a peer is off."""
    found = []
    if "compiled" in ENGINES:
        tiny = layered(8, 2, "parallel")
        simulate(build(tiny, [0] * 8)[0], "compiled")  # load the kernels
    for queues in QUEUES:
        say(f"layered, {queues} ...")
        prepared = layered(ops, DEVICES, queues)
        one = measure(prepared, random_placements(prepared, placements), peers=queues == "parallel")
        for name, difference in one.differences.items():
            assert difference < ROUNDING, f"{name} is {difference:.2g} off on data without ties"
        found.append(one)
    for queues in ("parallel", "half-duplex"):
        say(f"GNMT, {queues} ...")
        prepared_gnmt = gnmt(queues)
        found.append(
            measure(
                prepared_gnmt, random_placements(prepared_gnmt, placements), queues == "parallel"
            )
        )
    return found


def print_engines(found: Sequence[Measured]) -> None:
    """Lowering and engines, with the ratio to a Kahn pass over the same tasks (compiled, or plain
    Python).
    """
    head = ["graph", "queues", "placements", "tasks", "lowering ms"]
    for name in ENGINES:
        head += [f"{name} ms", f"{name} tasks/s", f"{name} / Kahn"]
    rows = []
    for one in found:
        row = [
            one.graph,
            one.queues,
            str(one.placements),
            f"{one.tasks:,.0f}",
            figure(one.lowering * 1e3),
        ]
        for name, seconds in one.engines.items():
            row += [
                figure(seconds * 1e3),
                f"{one.tasks / seconds:,.0f}",
                figure(seconds / one.kahn[name]),
            ]
        rows.append(row)
    print_table(head, rows)
    slow = [
        f"{one.graph} {one.queues}" for one in found if one.tasks / one.engines["simpy"] < TARGET
    ]
    print(
        f"target: {TARGET:,} tasks/s of the simpy engine: "
        f"{'missed by ' + ', '.join(slow) if slow else 'reached'}\n"
    )


def print_peers(found: Sequence[Measured]) -> None:
    """How many times faster than each peer: the engine alone, and with lowering, which the peers do
    too.
    """
    head, rows = ["graph", "peer", "peer ms", "peer tasks/s"], []
    for name in ENGINES:
        head += [f"{name} alone", f"{name} + lowering"]
    head.append("largest difference")
    for one in found:
        for peer, seconds in one.peers.items():
            row = [one.graph, peer, figure(seconds * 1e3), f"{one.tasks / seconds:,.0f}"]
            for engine in one.engines.values():
                row += [
                    figure(seconds / engine) + "x",
                    figure(seconds / (engine + one.lowering)) + "x",
                ]
            off = one.differences[peer]
            rows.append([*row, "rounding" if off < ROUNDING else f"{off:.2%} (ties)"])
    print(
        "Times faster than the peers: queues parallel, peers from placement to makespan, "
        "transfers counted as tasks"
    )
    print_table(head, rows)


def print_startup(found: dict[str, dict[str, float]]) -> None:
    """Import, first call and second call of the compiled engine."""
    rows = [
        [name, "", *(figure(one[key] * 1e3) for key in ("import", "first", "second"))]
        for name, one in found.items()
    ]
    print("\nCompiled engine in a fresh process, one task (wall time)")
    print_table(["kernels", "", "import ms", "first call ms", "second call ms"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engine", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object in place of tables"
    )
    parser.add_argument(
        "--placements", type=int, default=PLACEMENTS, help="different placements for each row"
    )
    parser.add_argument("--ops", type=int, default=OPS, help="ops of the layered graph")
    options = parser.parse_args()
    found = run(options.placements, options.ops, lambda text: print(text, file=sys.stderr))
    starts = startup() if "compiled" in ENGINES else {}
    if options.json:
        record = {
            "machine": machine(),
            "unit": "CPU seconds (median)",
            "measured": [asdict(one) for one in found],
        }
        print(json.dumps(record | {"startup wall seconds": starts}, indent=1))
        return
    print(
        ", ".join(f"{name} {value}" for name, value in machine().items()) + "; CPU time, medians\n"
    )
    print_engines(found)
    print_peers(found)
    if starts:
        print_startup(starts)


if __name__ == "__main__":
    main()
