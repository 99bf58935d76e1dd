"""What a move costs beside a whole evaluation: ``python -m benchmarks.moves [--json] [--quick]``.

One op to another device, in ``oracle.session``, by graph (GNMT's forward step, the training step of
Inception-V3, a layered graph of 10,000 ops), queue mode and state: from a random placement, and
from where a descent over many moves has led. All on four devices without capacities. Times are of
single calls, each kind in a loop of its own over the same proposals (right after its twin either
would find the branch predictor prepared); ratios are whole over move, so above 1 the move is the
faster: of the medians, of the 90th percentiles, and of all time together. A move is asked for its
step time, and within the limit of the current step, as a walk that only goes down asks.

The profile tells why a move cannot cost less: the share of ops that start at other times after it,
the share of those that remain where all that is only shifted from some instant on is taken off, and
the share of the ops that come up before anything can differ.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import median, quantiles
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import GROUP, gnmt, layered, settle
from benchmarks.figures import Figure, main
from benchmarks.learners import SCENARIOS
from simdev.execution.scenario import load_scenario
from simdev.lowering import Prepared
from simdev.nouns.taskgraph import Ints
from simdev.oracle import Oracle
from simdev.oracle.session import PlacementSession

NOTE = "CPU time of single calls, median of 3; ratios: whole evaluation over move"


class Size(NamedTuple):
    """How many moves are timed, and how many the descent to a converged placement tries."""

    moves: int
    descent: int


FULL, QUICK = Size(300, 20_000), Size(60, 1_500)


def inception(queues: str) -> Prepared:
    """The training step of Inception-V3 on four processors, without capacities."""
    scenario = load_scenario(SCENARIOS / "inception-v3-4x-cpu.json")
    devices = tuple(replace(device, memory=None) for device in scenario.cluster.devices)
    cluster = replace(scenario.cluster, devices=devices, queues=queues)
    return Prepared(scenario.graph, cluster, scenario.costs)


GRAPHS: dict[str, Callable[[str], Prepared]] = {
    "GNMT": gnmt,
    "Inception-V3, training": inception,
    "layered, 10,000 ops": lambda queues: layered(10_000, GROUP, queues),
}


def descended(oracle: Oracle, start: Ints, tries: int) -> Ints:
    """Where random moves lead that make the step no longer."""
    rng, session, placement = np.random.default_rng(0), oracle.session(start), start.copy()
    for group, shift in zip(
        rng.integers(0, len(session.groups), tries).tolist(),
        rng.integers(1, len(oracle.cluster.devices), tries).tolist(),
        strict=True,
    ):
        members = list(oracle.groups[group])
        device = (int(placement[members[0]]) + shift) % GROUP
        if session.propose(group, device, limit=session.cost.seconds) is not None:
            session.accept()
            placement[members] = device
    return placement


def each(call: Callable[[Any], object], items: Sequence[Any]) -> list[float]:
    """Seconds of each call: the median of three passes."""
    call(items[0])
    settle()
    passes: list[list[float]] = []
    for _ in range(3):
        seconds = []
        for item in items:
            begin = time.thread_time()
            call(item)
            seconds.append(time.thread_time() - begin)
        passes.append(seconds)
    return list(map(median, zip(*passes, strict=True)))


def proposals(oracle: Oracle, placement: Ints, count: int) -> list[tuple[int, int, Ints]]:
    """Random moves: a unit, its new device, and the placement that results."""
    rng, drawn = np.random.default_rng(1), []
    for group in rng.integers(0, len(oracle.groups), count).tolist():
        members, moved = list(oracle.groups[group]), placement.copy()
        device = int(placement[members[0]] + rng.integers(1, GROUP)) % GROUP
        moved[members] = device
        drawn.append((group, device, moved))
    return drawn


def ratios(part: str, name: str, whole: Sequence[float], move: Sequence[float]) -> Iterator[Figure]:
    """Ratios of the medians, the 90th percentiles, and the sums."""
    target = 3.0 if "converged" in part else None
    yield Figure(part, f"{name}: medians", median(whole) / median(move), "x", target)
    tails = quantiles(whole, n=10)[-1] / quantiles(move, n=10)[-1]
    yield Figure(part, f"{name}: 90th percentiles", tails, "x")
    yield Figure(part, f"{name}: all time", sum(whole) / sum(move), "x")
    yield Figure(part, f"{name}: median", median(move) * 1e6, "us")
    yield Figure(part, f"{name}: 90th percentile", quantiles(move, n=10)[-1] * 1e6, "us")


def profile(oracle: Oracle, placement: Ints, moved: Sequence[Ints]) -> tuple[float, float, float]:
    """Of the ops, on average over moves: the share that starts at other times, the share of those
    that more than a shift tells apart, and the share that comes up before anything differs.
    """
    compiled = oracle.evaluator("fifo")
    assert compiled is not None
    base, rows = compiled.starts(placement), []
    assert base is not None
    order = np.argsort(base[0], kind="stable")
    for column in moved:
        starts = compiled.starts(column)
        assert starts is not None
        shift = (starts[0] - base[0])[order]
        differs = np.flatnonzero(shift)
        first = differs[0] if len(differs) else len(order)
        rest = np.flatnonzero(shift != shift[-1])
        end = max(rest[-1] + 1 if len(rest) else 0, first)
        rows.append((len(differs), end - first, first))
    return tuple((np.mean(rows, axis=0) / len(order)).tolist())  # type: ignore[return-value]


def state(part: str, oracle: Oracle, placement: Ints, size: Size) -> list[Figure]:
    """The figures of moves from one placement. Raises AssertionError where answers differ."""
    tries = proposals(oracle, placement, size.moves)
    columns = [moved for *_, moved in tries]
    session: PlacementSession = oracle.session(placement)
    limit = session.cost.seconds
    answers = [oracle.step_ps(column) for column in columns]
    assert answers == [session.propose(group, device).step_ps for group, device, _ in tries]
    for (group, device, _), step_ps in zip(tries, answers, strict=True):
        cost = session.propose(group, device, limit)
        assert (cost is None) == (step_ps / 1e12 > limit), "a limit and a whole evaluation differ"
    whole = each(oracle.step_ps, columns)
    moves = each(lambda one: session.propose(one[0], one[1]), tries)
    within = each(lambda one: session.propose(one[0], one[1], limit), tries)
    shares = profile(oracle, placement, columns)
    names = "other times", "more than shifted", "before anything differs"
    return [
        Figure(part, "whole evaluation: median", median(whole) * 1e6, "us"),
        *ratios(part, "move", whole, moves),
        *ratios(part, "move within the limit", whole, within),
        *(
            Figure(part, f"ops, {name}", share * 100, "%")
            for name, share in zip(names, shares, strict=True)
        ),
    ]


def run(size: Size, say: Callable[[str], None]) -> list[Figure]:
    """Everything."""
    figures: list[Figure] = []
    for name, prepared_for in GRAPHS.items():
        for queues in ("half-duplex", "parallel"):
            say(f"{name}, {queues} ...")
            prepared = prepared_for(queues)
            oracle = Oracle(prepared.graph, prepared.cluster, prepared.costs, cache=0)
            ops = len(prepared.graph.ops)
            start = np.random.default_rng(0).integers(0, GROUP, ops)
            for group in oracle.groups:
                start[list(group)] = start[group[0]]
            for kind, placement in (
                ("random", start),
                ("converged", descended(oracle, start, size.descent)),
            ):
                part = f"{name}, {ops:,} ops, {queues}, {kind}"
                figures += state(part, oracle, placement, size)
    return figures


if __name__ == "__main__":
    main("moves", __doc__, run, FULL, QUICK, NOTE)
