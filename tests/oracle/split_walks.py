"""Walks of sessions over splits: a start, and proposals with what becomes of them."""

from __future__ import annotations

from math import prod
from typing import Any

from simdev.nouns.semantics.registry import LEAF_ROLES as LEAVES
from simdev.nouns.strategy import Configuration
from worlds.sharded import Case, covered, devices_of, split_of
from worlds.tape import Tape


def change(tape: Tape, case: Case, divided: bool) -> dict[str, Configuration]:
    """Another configuration of one op or two; leaves and updates too."""
    found = {}
    for _ in range(tape.pick(1, 1, 2)):
        i = (tape.number(256) * 256 + tape.number(256)) % len(case.graph.ops)
        op = case.graph.ops[i]
        degrees = split_of(tape, case.graph, i)
        if op.kind not in LEAVES or op.kind == "input":
            time = "divided" if divided else None
            found[op.name] = Configuration(degrees, devices_of(tape, prod(degrees.values())), time)
    return found


def make_walk(tape: Tape) -> tuple[Case, list[tuple[dict[str, Any], int]]]:
    """A start, and proposals with what becomes of them: accepted, rejected, left open."""
    case = covered(tape)
    divided = any(one.time for one in case.strategy.partition.values())
    moves: list[tuple[dict[str, Any], int]] = []
    for _ in range(5):
        found: dict[str, Any] = change(tape, case, divided)
        if moves and moves[-1][0] and tape.number(4) == 0:
            found |= dict.fromkeys(moves[-1][0])  # follow again
        moves.append((found, tape.number(3)))
    return case, moves
