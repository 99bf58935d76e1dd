"""Changes of a SOAP strategy never asked for before, and known ones, beside FlexFlow's C++:
``python -m benchmarks.split_moves [--json]``.

The moves, the clusters and the peer's figures are those of ``benchmarks.strategies`` (its grain,
parameter server, no memory over time). Here each row has a process of its own, so that nothing is
known of the model but what the start (data parallelism, every op configured) has built, and each
move is timed by itself: median and 90th percentile over moves, in CPU ms, building, simulating and
going back included. "first" is the first time, "known" the best of some passes later; "limit" asks
again for those with the limit that FlexFlow's walk would draw (how many exceed it is told).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from benchmarks.common import figure, machine, print_table, settle
from benchmarks.strategies import (
    GPUS,
    KIND,
    MODELS,
    PEER_MS,
    PEER_TASKS,
    Move,
    cluster_of,
    graph_of,
    moves_of,
    start_of,
)
from simdev.costs import CostModel
from simdev.files.device import read_device
from simdev.nouns.graph import Graph
from simdev.nouns.semantics import traits_of
from simdev.oracle import Cost, Oracle
from simdev.oracle.session import SplitSession
from simdev.search.soap.flexflow import TEMPERATURE

MOVES, PASSES, SYNC = 200, 5, "parameter-server"
Times = tuple[float, float]
"""Median and 90th percentile, ms."""


@dataclass(frozen=True, slots=True)
class Row:
    """One model on so many GPUs; ``exceeding`` is the share of moves that exceed their limit."""

    model: str
    gpus: int
    tasks: int
    first_ms: Times
    known_ms: Times
    limit_ms: Times
    exceeding: float
    flexflow_ms: float
    flexflow_tasks: int


def times(
    session: SplitSession, moves: Sequence[Move], limits: Sequence[float | None]
) -> list[float]:
    """CPU ms of each proposal, taken back again."""
    spent = []
    for move, limit in zip(moves, limits, strict=True):
        begin = time.process_time()
        cost = session.propose(move, limit=limit)
        if cost is not None:
            session.reject()
        spent.append((time.process_time() - begin) * 1e3)
    return spent


def summary(spent: Sequence[float]) -> Times:
    """Median and 90th percentile."""
    return float(np.median(spent)), float(np.percentile(spent, 90))


def best_of(passes: int, call: Callable[[], list[float]]) -> Times:
    """Of each move its best time."""
    return summary(np.min([call() for _ in range(passes)], axis=0).tolist())


def configured(graph: Graph, session: SplitSession) -> list[int]:
    """The forward ops that moves may change."""
    partition = session.strategy.partition
    return [
        i
        for i, op in enumerate(graph.ops)
        if op.phase == "forward" and not traits_of(op.kind).leaf and op.name in partition
    ]


def measure(model: str, gpus: int, count: int, passes: int) -> Row:
    """One row; in a process that has measured nothing before."""
    graph, costs = graph_of(model, operators=False), CostModel(specs=(read_device(KIND),))
    names = tuple(d.name for d in cluster_of(False).devices if d.runs_ops)[:gpus]
    session = start_of(Oracle(graph, cluster_of(False), costs), names, SYNC)
    compiled, *moves = moves_of(graph, configured(graph, session), names, count + 1, 0)
    times(session, [compiled], [None])
    settle()
    free: list[float | None] = [None] * count
    first = summary(times(session, moves, free))
    known = best_of(passes, lambda: times(session, moves, free))
    answers, tasks = list[Cost](), list[int]()
    for move in moves:
        answers.append(session.propose(move))
        assert session.tasks is not None, "went the long way"
        tasks.append(session.tasks)
    session.reject()
    draws = np.random.default_rng(0).exponential(TEMPERATURE, count)
    limits = [session.cost.seconds * (1 + float(draw)) for draw in draws]
    limited = best_of(passes, lambda: times(session, moves, limits))
    exceeding = [cost.exceeds(limit) for cost, limit in zip(answers, limits, strict=True)]
    at = GPUS.index(gpus)
    peer = PEER_MS[model][at], PEER_TASKS[model][at]
    share = sum(exceeding) / count
    return Row(model, gpus, round(np.mean(tasks)), first, known, limited, share, *peer)


def measured_apart(model: str, gpus: int, count: int, passes: int) -> Row:
    """``measure`` in a process of its own."""
    options = ["--models", model, "--gpus", str(gpus), "--moves", str(count)]
    command = [sys.executable, "-m", "benchmarks.split_moves", *options, "--passes", str(passes)]
    done = subprocess.run([*command, "--here"], check=True, capture_output=True, text=True)
    row = json.loads(done.stdout)
    return Row(**{name: tuple(v) if isinstance(v, list) else v for name, v in row.items()})


def print_rows(rows: Sequence[Row]) -> None:
    """Print a table."""
    head = ["model", "GPUs", "tasks", "known", "90 %", "first", "90 %", "ratio", "limit", "90 %"]
    head += ["exceed it", "FlexFlow", "tasks"]
    lines = []
    for row in rows:
        ratio = row.first_ms[0] / row.known_ms[0]
        cells = [row.model, str(row.gpus), f"{row.tasks:,}", *map(figure, row.known_ms)]
        cells += [*map(figure, row.first_ms), figure(ratio), *map(figure, row.limit_ms)]
        peer = [f"{row.exceeding:.0%}", figure(row.flexflow_ms), f"{row.flexflow_tasks:,}"]
        lines.append([*cells, *peer])
    print_table(head, lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.split_moves", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--json", action="store_true", help="print one JSON list of rows")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--gpus", nargs="+", type=int, choices=GPUS, default=list(GPUS))
    parser.add_argument("--moves", type=int, default=MOVES, help="different moves for each row")
    parser.add_argument("--passes", type=int, default=PASSES, help="passes through known moves")
    parser.add_argument("--here", action="store_true", help="one row, in this process, as JSON")
    options = parser.parse_args()
    cases = [(model, gpus) for model in options.models for gpus in options.gpus]
    if options.here:
        print(json.dumps(asdict(measure(*cases[0], options.moves, options.passes))))
        return
    rows = [measured_apart(*case, options.moves, options.passes) for case in cases]
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    print(", ".join(f"{name} {value}" for name, value in machine().items()) + "; CPU ms\n")
    print_rows(rows)


if __name__ == "__main__":
    main()
