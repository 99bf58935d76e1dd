"""The optimizer sanity run: ``python -m benchmarks.anneal [--seconds 60] [--queues
half-duplex|parallel]``.

A simple annealer over ``Oracle.session``, on one core: Baechi's measured GNMT graph, its 569
co-placement groups, four devices. Hand-written C++ annealing over the same groups, half a million
evaluations, is the mark. Its sequential queues are near ``half-duplex`` but not the same
(tests/conformance/test_conformance_baechi.py), its parallel ones are ``parallel``.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from benchmarks.common import GNMT, gnmt, machine, print_table
from simdev.costs import CostModel
from simdev.execution.check import check
from simdev.execution.engine import simulate
from simdev.lowering import lower
from simdev.nouns.graph import Graph
from simdev.nouns.strategy import Strategy
from simdev.nouns.taskgraph import Ints
from simdev.oracle import Oracle
from simdev.oracle.session import PlacementSession

MARKS = {"half-duplex": 98.6, "parallel": 80.9}  # ms that hand-written C++ annealing reached
BLOCK = 64  # moves drawn at a time, under one temperature
NEAR = 0.5  # share of moves that bring a group to a device of a neighbour


@dataclass(frozen=True)
class Schedule:
    """Temperatures as fractions of the current step time, falling geometrically, and what one run
    may use.
    """

    seconds: float  # CPU seconds
    hot: float = 2e-3
    cold: float = 2e-5
    rounds: int = 3  # each begins hot again, at the best placement so far
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Search:
    """What a run found: step times in ps, and the best placement (device by op)."""

    start_ps: int
    best_ps: int
    evaluations: int
    accepted: int
    seconds: float
    placement: Ints


def grouped_gnmt(queues: str) -> Oracle:
    """GNMT with Baechi's co-placement groups."""
    prepared = gnmt(queues)
    with gzip.open(GNMT, "rt") as file:
        group = {f"op{node['id']}": node["coplace_group"] for node in json.load(file)["nodes"]}
    ops = tuple(replace(op, colocate=group[op.name]) for op in prepared.graph.ops)
    return Oracle(Graph("GNMT in groups", ops), prepared.cluster)


def best_single(oracle: Oracle) -> Ints:
    """Everything on the one device where the step is shortest."""
    devices = [d for d, device in enumerate(oracle.cluster.devices) if device.runs_ops]
    ops = len(oracle.graph.ops)
    return np.full(
        ops, min(devices, key=lambda d: oracle.step_ps(np.full(ops, d, np.int64))), np.int64
    )


def neighbours(oracle: Oracle) -> list[list[int]]:
    """For each group the groups that it sends to or reads from."""
    row = {i: at for at, members in enumerate(oracle.groups) for i in members}
    found: list[set[int]] = [set() for _ in oracle.groups]
    for consumer, reads in enumerate(oracle.graph.reads):
        for producer, _ in reads:
            found[row[consumer]].add(row[producer])
            found[row[producer]].add(row[consumer])
    return [sorted(near - {at}) for at, near in enumerate(found)]


def anneal(oracle: Oracle, start: Ints, schedule: Schedule) -> Search:
    """Rounds of annealing, each from the best placement so far. All devices must run ops."""
    rng, near = np.random.default_rng(schedule.seed), neighbours(oracle)
    first = best = oracle.step_ps(start)
    placement, evaluations, accepted, begin = start, 0, 0, time.process_time()
    for number in range(schedule.rounds):
        end = begin + schedule.seconds * (number + 1) / schedule.rounds
        session = oracle.session(placement)
        found, row, tried, taken = cool(session, near, rng, schedule, end)
        evaluations, accepted = evaluations + tried, accepted + taken
        if found < best:
            best, placement = found, row
    return Search(first, best, evaluations, accepted, time.process_time() - begin, placement)


def cool(
    session: PlacementSession,
    near: Sequence[Sequence[int]],
    rng: np.random.Generator,
    schedule: Schedule,
    end: float,
) -> tuple[int, Ints, int, int]:
    """Metropolis over moves of one group, half of them to where a neighbour stands, until the CPU
    clock says ``end``.

    Returns the best step time in ps and its placement, the moves tried and the moves accepted.
    """
    placement, devices = session.placement, len(session.cluster.devices)
    where = [int(placement[members[0]]) for members in session.groups]
    current = best = session.cost.step_ps
    tried, taken, begin = 0, 0, time.process_time()
    while (now := time.process_time()) < end:
        temperature = schedule.hot * (schedule.cold / schedule.hot) ** (
            (now - begin) / (end - begin)
        )
        lucks, groups = (
            rng.exponential(temperature, BLOCK).tolist(),
            rng.integers(0, len(where), BLOCK).tolist(),
        )
        for group, luck, place in zip(groups, lucks, rng.random(BLOCK).tolist(), strict=True):
            device = draw(place, near[group], where, devices)
            if device == where[group]:
                continue
            found, tried = session.propose(group, device).step_ps, tried + 1
            if found > current * (1 + luck):
                session.reject()
                continue
            session.accept()
            where[group], current, taken = device, found, taken + 1
            if found < best:
                best, placement = found, session.placement
    return best, placement, tried, taken


def draw(luck: float, near: Sequence[int], where: Sequence[int], devices: int) -> int:
    """A device: that of a random neighbour, or any; ``luck`` is uniform in [0, 1)."""
    if luck < NEAR and near:
        return where[near[int(luck / NEAR * len(near))]]
    return int(luck / NEAR * devices) if luck < NEAR else int((luck - NEAR) / (1 - NEAR) * devices)


def confirm(oracle: Oracle, found: Search) -> None:
    """Ask the reference engine and the checker.

    Raises AssertionError where they see it otherwise.
    """
    task_graph = lower(
        oracle.graph, oracle.cluster, CostModel(), Strategy(oracle.named(found.placement))
    )
    trace = simulate(task_graph, "simpy")
    faults = check(task_graph, trace)
    assert not faults, faults
    assert trace.end_ps == found.best_ps == oracle.step_ps(found.placement), (
        trace.end_ps,
        found.best_ps,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.anneal", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--seconds", type=float, default=60, help="CPU seconds of each run")
    parser.add_argument("--queues", choices=list(MARKS), help="one mode alone")
    parser.add_argument(
        "--hot", type=float, default=Schedule.hot, help="first temperature, a fraction of the step"
    )
    parser.add_argument("--cold", type=float, default=Schedule.cold, help="last temperature")
    parser.add_argument(
        "--rounds", type=int, default=Schedule.rounds, help="how often it begins hot again"
    )
    parser.add_argument("--seed", type=int, default=Schedule.seed)
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object in place of a table"
    )
    options = parser.parse_args()
    schedule = Schedule(options.seconds, options.hot, options.cold, options.rounds, options.seed)
    found: dict[str, Search] = {}
    for queues in [options.queues] if options.queues else MARKS:
        oracle = grouped_gnmt(queues)
        found[queues] = anneal(oracle, best_single(oracle), schedule)
        confirm(oracle, found[queues])
    if options.json:
        runs = {
            queues: asdict(one) | {"placement": one.placement.tolist()}
            for queues, one in found.items()
        }
        print(
            json.dumps({"machine": machine(), "schedule": asdict(schedule), "runs": runs}, indent=1)
        )
        return
    print(
        ", ".join(f"{name} {value}" for name, value in machine().items()) + "; CPU time, one core"
    )
    temperatures = f"temperature {schedule.hot:g} to {schedule.cold:g} of the step time"
    print(f"{temperatures}, {schedule.rounds} rounds, seed {schedule.seed}\n")
    head = [
        "GNMT, 569 groups",
        "confirmed by",
        "seconds",
        "evaluations/s",
        "accepted",
        "start ms",
        "best ms",
        "C++ ms",
    ]
    rows = []
    for queues, one in found.items():
        row = [
            queues,
            "simpy, checker",
            f"{one.seconds:.1f}",
            f"{one.evaluations / one.seconds:,.0f}",
        ]
        row += [
            f"{one.accepted / one.evaluations:.1%}",
            f"{one.start_ps / 1e9:.2f}",
            f"{one.best_ps / 1e9:.2f}",
        ]
        rows.append([*row, f"{MARKS[queues]}"])
    print_table(head, rows)


if __name__ == "__main__":
    main()
