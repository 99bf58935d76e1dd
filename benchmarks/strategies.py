"""How fast a change of a SOAP strategy is evaluated, building included: ``python -m
benchmarks.strategies [--json]``.

One evaluation: a session (``oracle.session``) is at data parallelism, every op with a configuration
of its own. One random forward op gets a random legal one (degrees with a product of at most the
number of GPUs that divide their axes, devices contiguous from an aligned start), its backward ops
go with it, and the step time is asked for; leaves, transfers, gradient synchronisation and updates
follow. Counted is all of it: what the change means, its tasks, the simulation of the whole step,
and going back. Each of the moves was evaluated once before, as in a search, which comes by the same
(op, configuration) again and again; that first time stands beside. Then all are evaluated in turn,
over and over (CPU time, the best pass). Answers are those of a full rebuild, which is timed for one
of the moves.

The cluster is FlexFlow's (16 nodes of 4 K80), without the capacities of its devices: the peer does
not look at memory over time either. "with memory" is the same with exact peaks.

The rows ``resnet-101`` and ``inception-v3`` are the graphs of the peer's grain: convolutions with
batch normalisation and activation folded in, parameter-server synchronisation. The rows with
``operators`` are the shipped models, every normalisation, activation and addition a task of its
own, and all-reduce.

The last columns are moves in program order: without hosts, and how many times as long with a host
thread a device (never waiting; at most AHEAD launches ahead; with ops that block).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from math import prod
from unittest import mock

import numpy as np

from benchmarks.common import figure, machine, print_table, settle
from simdev.costs import CostModel
from simdev.files import read_preset
from simdev.files.device import read_device
from simdev.nouns.cluster import Cluster, Host
from simdev.nouns.graph import Graph
from simdev.nouns.models import build
from simdev.nouns.semantics import op_semantics, traits_of
from simdev.nouns.strategy import Configuration, Order, Strategy
from simdev.nouns.structure import op_splits, weights_of
from simdev.oracle import Oracle
from simdev.oracle.session import SplitSession

BATCH, GPUS, CLUSTER, KIND = 64, (4, 16, 64), "flexflow-k80", "k80"
MODELS = {
    "resnet-101": "simdev.nouns.models.convolutional",
    "inception-v3": "simdev.nouns.models.convolutional",
}
"""With the modules of their builders."""
PEER_MS = {"resnet-101": (0.407, 3.469, 25.916), "inception-v3": (0.568, 4.131, 32.752)}
"""FlexFlow's released C++ (2021, forward, backward, transfers, star), on a 2-core AMD EPYC, by
GPUS.
"""
PEER_TASKS = {"resnet-101": (1_551, 11_510, 50_767), "inception-v3": (1_691, 11_513, 50_999)}
TARGETS = (0.2, 1.5, 10.0)
SOAP = ("sample", "attribute", "parameter")
"""Kinds of splits that the peer knows: no partial results of a forward op."""
EXTENTS = {"p": "h", "q": "w"}
"""The axes of what goes back through a window, for those of its output."""
MOVES, PASSES = 200, 5
HOST_TIME, FAR, AHEAD, BLOCKS = "8 us", 10**6, 16, 50
"""What a host takes for an op, and how many launches it may be ahead; one op of so many blocks."""
Move = dict[str, Configuration]


@dataclass(frozen=True, slots=True)
class Row:
    """One model on so many GPUs; times in ms, the peer's and the target beside.

    ``program_ms`` is the evaluation in program order, ``hosts_ratio`` that with hosts over it,
    ``ahead_ratio`` and ``blocks_ratio`` those with dispatches that wait.
    """

    model: str
    gpus: int
    tasks: int
    evaluation_ms: float
    first_ms: float
    with_memory_ms: float
    rebuild_ms: float
    target_ms: float | None
    flexflow_ms: float
    flexflow_tasks: int
    program_ms: float
    hosts_ratio: float
    ahead_ratio: float
    blocks_ratio: float


@contextmanager
def folded(module: str) -> Iterator[None]:
    """Builders without batch normalisation and activations: as part of the convolution before
    them.
    """
    with mock.patch.multiple(import_module(module), batch_norm=lambda x: x, relu=lambda x: x):
        yield


def graph_of(model: str, operators: bool) -> Graph:
    """A training step of the shipped builder, or of the peer's grain."""
    if operators:
        return build(model, batch=BATCH)
    with folded(MODELS[model]):
        return build(model, batch=BATCH)


def cluster_of(memory: bool) -> Cluster:
    """FlexFlow's cluster."""
    cluster = read_preset(CLUSTER)
    return (
        cluster
        if memory
        else replace(cluster, devices=tuple(replace(d, memory=None) for d in cluster.devices))
    )


def moves_of(
    graph: Graph, ops: list[int], gpus: tuple[str, ...], count: int, seed: int
) -> list[Move]:
    """Random changes: an op, degrees whose product is at most the number of GPUs, and contiguous
    aligned devices.
    """
    rng, weights = np.random.default_rng(seed), weights_of(graph)
    found = []
    for _ in range(count):
        i = ops[rng.integers(len(ops))]
        options: list[dict[str, int]] = [{}]
        for split in op_splits(graph, i, weights):
            if split.kind in SOAP:
                divisors = [
                    d for d in range(1, len(gpus) + 1) if len(gpus) % d == 0 and split.size % d == 0
                ]
                options = [
                    {**one, split.axis: d}
                    for one in options
                    for d in divisors
                    if d * prod(one.values()) <= len(gpus)
                ]
        degrees = options[rng.integers(len(options))]
        parts = prod(degrees.values())
        first = parts * int(rng.integers(len(gpus) // parts))
        found.append(move_of(graph, i, degrees, gpus[first : first + parts]))
    return found


def move_of(graph: Graph, i: int, degrees: dict[str, int], devices: tuple[str, ...]) -> Move:
    """An op's configuration, and those of its backward ops: what goes back through a part runs
    where it runs.
    """
    axes = (axis.name for axis in op_semantics(graph, i).axes)
    cut = {axis: degrees[axis] for axis in axes if degrees.get(axis, 1) > 1}
    found = {graph.ops[i].name: Configuration(cut, devices)}
    scope = "grad/" + graph.ops[i].name.rpartition("/")[0]
    for j, op in enumerate(graph.ops):
        if op.kind.startswith(f"{graph.ops[i].kind}_backward") and op.name.startswith(scope):
            own = {axis.name: axis.size for axis in op_semantics(graph, j).axes}
            named = {axis: axis if axis in own else EXTENTS.get(axis, "") for axis in cut}
            if all(
                own.get(named[axis], 0) % degree == 0 < own.get(named[axis], 0)
                for axis, degree in cut.items()
            ):
                split = {
                    axis: cut[back[axis]]
                    for axis in own
                    if axis in (back := {v: k for k, v in named.items()})
                }
                # Parts are in row-major order of the op's own axes: the same part, the same device.
                grid = np.array(devices, object).reshape([*cut.values()])
                order = [list(cut).index(back[axis]) for axis in split]
                found[op.name] = Configuration(
                    split, tuple(grid.transpose(order).reshape(-1).tolist())
                )
    return found


def start_of(
    oracle: Oracle, gpus: tuple[str, ...], sync: str, order: Order = Order()
) -> SplitSession:
    """Data parallelism, every op with a configuration of its own."""
    strategy = Strategy(short="data-parallel", devices=gpus, sync=sync, order=order)
    return oracle.session(strategy).pinned("forward", "backward")


def in_order(
    graph: Graph, gpus: tuple[str, ...], sync: str, moves: list[Move], passes: int
) -> list[float]:
    """CPU milliseconds of the moves in program order, without hosts, with hosts that never wait,
    with such as may be AHEAD launches ahead, and with one op of BLOCKS that blocks.
    """
    dispatched = [replace(op, host_time=HOST_TIME) for op in graph.ops]
    blocking = [replace(op, blocks_host=i % BLOCKS == 0) for i, op in enumerate(dispatched)]
    questions = (
        (dispatched, None),
        (dispatched, Host(ahead=FAR)),
        (dispatched, Host(ahead=AHEAD)),
        (blocking, Host(ahead=FAR)),
    )
    costs, sessions = CostModel(specs=(read_device(KIND),)), []
    for ops, host in questions:
        cluster = replace(cluster_of(False), host=host)
        oracle = Oracle(Graph(graph.name, tuple(ops)), cluster, costs)
        sessions.append(start_of(oracle, gpus, sync, Order("program")))
        evaluate(sessions[-1], moves)
        assert sessions[-1].tasks is not None, "went the long way"
        full_ms(oracle, sessions[-1], moves[0])
        sessions[-1].reject()
    settle()
    # In turns: what else the machine does would tell them apart.
    rounds = [[evaluate(session, moves) for session in sessions] for _ in range(passes)]
    return [min(times) for times in zip(*rounds, strict=True)]


def evaluate(session: SplitSession, moves: list[Move]) -> float:
    """Mean CPU milliseconds of a proposal, taken back again."""
    begin = time.process_time()
    for move in moves:
        session.propose(move)
        session.reject()
    return (time.process_time() - begin) / len(moves) * 1e3


def measure(model: str, operators: bool, gpus: int, count: int, passes: int) -> Row:
    """One row of the table."""
    graph, costs = graph_of(model, operators), CostModel(specs=(read_device(KIND),))
    names = tuple(device.name for device in cluster_of(False).devices if device.runs_ops)[:gpus]
    sync, found = "all-reduce" if operators else "parameter-server", []
    for memory in (False, True):
        oracle = Oracle(graph, cluster_of(memory), costs)
        session = start_of(oracle, names, sync)
        ops = [
            i
            for i, op in enumerate(graph.ops)
            if op.phase == "forward" and not traits_of(op.kind).leaf
        ]
        ops = [i for i in ops if graph.ops[i].name in session.strategy.partition]
        moves = moves_of(graph, ops, names, count, 0)
        first = evaluate(session, moves)
        settle()
        found.append((first, min(evaluate(session, moves) for _ in range(passes))))
    tasks = []
    for move in moves:
        session.propose(move)
        assert session.tasks is not None, "went the long way"
        tasks.append(session.tasks)
    rebuilt = full_ms(oracle, session, moves[0])
    program, *hosted = in_order(graph, names, sync, moves, passes)
    at, name = GPUS.index(gpus), f"{model}, operators" if operators else model
    return Row(
        name,
        gpus,
        round(sum(tasks) / len(tasks)),
        found[0][1],
        found[0][0],
        found[1][1],
        rebuilt,
        None if operators else TARGETS[at],
        PEER_MS[model][at],
        PEER_TASKS[model][at],
        program,
        *(ms / program for ms in hosted),
    )


def full_ms(oracle: Oracle, session: SplitSession, move: Move) -> float:
    """CPU milliseconds of one full rebuild, whose answer must be the same."""
    cost = session.propose(move)
    strategy = replace(session.strategy, partition={**session.strategy.partition, **move})
    begin = time.process_time()
    assert oracle.in_full(strategy).step_ps == cost.step_ps, "a move and a full rebuild differ"
    return (time.process_time() - begin) * 1e3


def run(models: list[str], gpus: list[int], count: int, passes: int) -> list[Row]:
    """Every row: the peer's grain first."""
    return [
        measure(model, operators, one, count, passes)
        for operators in (False, True)
        for model in models
        for one in gpus
    ]  # fmt: skip


def print_rows(rows: list[Row]) -> None:
    """Print a table."""
    head = [
        "model",
        "GPUs",
        "tasks",
        "ms",
        "target",
        "first time",
        "with memory",
        "full rebuild",
        "FlexFlow",
        "tasks",
        "program order",
        "hosts",
        f"{AHEAD} ahead",
        "blocking",
    ]
    lines = []
    for row in rows:
        target = "" if row.target_ms is None else figure(row.target_ms)
        times = (row.first_ms, row.with_memory_ms, row.rebuild_ms, row.flexflow_ms)
        own = [row.model, str(row.gpus), f"{row.tasks:,}", figure(row.evaluation_ms), target]
        ratios = (row.hosts_ratio, row.ahead_ratio, row.blocks_ratio)
        hosted = [figure(row.program_ms), *(f"x {figure(ratio)}" for ratio in ratios)]
        lines.append([*own, *map(figure, times), f"{row.flexflow_tasks:,}", *hosted])
    print_table(head, lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.strategies", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON list of rows in place of a table"
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--gpus", nargs="+", type=int, choices=GPUS, default=list(GPUS))
    parser.add_argument("--moves", type=int, default=MOVES, help="different moves for each row")
    parser.add_argument(
        "--passes", type=int, default=PASSES, help="passes through them; the best counts"
    )
    options = parser.parse_args()
    rows = run(options.models, options.gpus, options.moves, options.passes)
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    print(
        ", ".join(f"{name} {value}" for name, value in machine().items())
        + "; CPU ms, means of the best pass\n"
    )
    print_rows(rows)


if __name__ == "__main__":
    main()
