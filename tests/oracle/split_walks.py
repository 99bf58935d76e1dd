"""Random walks of sessions over splits: a start, and proposals with their outcomes."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from simdev.nouns.semantics.registry import LEAF_ROLES as LEAVES
from simdev.nouns.strategy import Configuration, Order, Strategy
from worlds.hosts import dispatched, with_hosts
from worlds.sharded import Case, covered, devices_of, split_of
from worlds.split_graphs import DEVICES
from worlds.tape import Tape


def change(tape: Tape, case: Case, divided: bool) -> dict[str, Configuration]:
    """New random configurations of one or two ops, which may be leaves or updates."""
    found = {}
    for _ in range(tape.pick(1, 1, 2)):
        i = (tape.number(256) * 256 + tape.number(256)) % len(case.graph.ops)
        op = case.graph.ops[i]
        degrees = split_of(tape, case.graph, i)
        if op.kind not in LEAVES or op.kind == "input":
            time = "divided" if divided else None
            found[op.name] = Configuration(degrees, devices_of(tape, prod(degrees.values())), time)
    return found


def make_split(tape: Tape) -> Case:
    """A random strategy that the compiled path supports, in fifo or program order, mostly on a
    cluster with hosts.
    """
    case = covered(tape)
    cluster = with_hosts(tape, case.cluster, "us")
    cluster = cluster if tape.pick(True, True, True, False) else case.cluster
    graph = dispatched(tape, case.graph, cluster, (0, 1, 2, 7), "us")
    return Case(graph, cluster, replace(case.strategy, order=Order(tape.pick("fifo", "program"))))


def turned(strategy: Strategy, by: int) -> Strategy:
    """The strategy with the index of each device increased by ``by``, modulo DEVICES."""
    names = {f"gpu:{d}": f"gpu:{(d + by) % DEVICES}" for d in range(DEVICES)}
    partition = {
        name: replace(one, devices=tuple(map(names.__getitem__, one.devices)))
        for name, one in strategy.partition.items()
    }
    placement = {name: names[device] for name, device in strategy.placement.items()}
    return replace(strategy, placement=placement, partition=partition)


def make_walk(tape: Tape) -> tuple[Case, list[tuple[dict[str, Any], int]]]:
    """A start, and proposals with their outcomes: accepted, rejected, or left open."""
    case = covered(tape)
    divided = any(one.time for one in case.strategy.partition.values())
    moves: list[tuple[dict[str, Any], int]] = []
    for _ in range(5):
        found: dict[str, Any] = change(tape, case, divided)
        if moves and moves[-1][0] and tape.number(4) == 0:
            found |= dict.fromkeys(moves[-1][0])  # None: these ops follow others again
        moves.append((found, tape.number(3)))
    return case, moves
