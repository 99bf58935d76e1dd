"""Replays of moves end as soon as nothing that is to come differs, or a limit is exceeded; not
before.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks import common
from simdev import Oracle
from simdev.nouns.cluster import QUEUES, TRANSFERS, Device
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.oracle.placements.moves import TAKEN_UP, Moves
from worlds.clusters import joined
from worlds.graphs import op
from worlds.scenarios import World, column, oracle_of

PLAIN = [queues for queues in QUEUES if queues != "fair"]


def moves_of(oracle: Oracle, base: np.ndarray) -> Moves:
    short = oracle.evaluator("fifo")
    moves = short.moves() if short else None
    assert moves is not None
    assert moves.rebase(base) == oracle.step_ps(base)
    return moves


@pytest.mark.parametrize("transfer", TRANSFERS)
@pytest.mark.parametrize("queues", PLAIN)
def test_a_move_that_only_shifts_the_rest_is_not_simulated_to_its_end(
    queues: str, transfer: str
) -> None:
    """An op is moved on which all of a busy graph waits: what follows is later by the difference of
    its times, with ops that wait, transfers in line, and queues that are busy or idle.
    """
    first = Op("first", outputs=(Tensor(0),), time={"a": "1 us", "b": "2 us"})
    rest = [
        one if one.inputs else replace(one, inputs=("first",))
        for one in common.layered_graph(120, seed=5).ops
    ]
    devices = [Device(f"g{d}", kind="b" if d == 4 else "a") for d in range(5)]
    cluster = replace(joined(devices, queues, bandwidth=5 * 10**10), transfer=transfer)
    oracle = Oracle(Graph("shifted", (first, *rest)), cluster, cache=0)
    base = np.concatenate(([3], np.random.default_rng(2).integers(0, 3, len(rest))))
    moves, moved = moves_of(oracle, base), base.copy()
    moved[0] = 4
    assert moves.step_ps(base, np.array([0]), 4) == oracle.step_ps(moved)
    # The ops of the first layer are ready at one instant, in whose rounds transfers still differ.
    assert moves.base.columns.rows[TAKEN_UP] <= common.WIDTH + 2 * moves.base.columns.stride


@pytest.mark.parametrize("queues", ["device", "parallel"])
def test_bounds_of_a_move_hold_before_the_moved_op_is_done(queues: str) -> None:
    """A chain on one device, of which one op stands on another one: what leads there takes less
    time once it has moved back, and that is known exactly.
    """
    ops = [op(f"o{i}", 1, *[f"o{i - 1}"] * (i > 0), size=50) for i in range(96)]
    oracle = oracle_of(World.of(ops, joined(2, queues), [0] * 96), cache=0)
    near = oracle.step_ps([0] * 96)
    for at in range(1, 96, 5):
        base = np.zeros(96, np.int64)
        base[at] = 1
        assert moves_of(oracle, base).step_ps(base, np.array([at]), 0, near) == near


def test_a_move_starts_before_any_of_its_producers_has_sent() -> None:
    """ "m" reads early and late ops of a chain. Others on a third device stand in line all the
    while, which tells nothing about these.
    """
    ops = [op(f"o{i}", 1, *[f"o{i - 1}"] * (i > 0), size=2) for i in range(24)]
    line = [op(f"l{i}", 50, size=2) for i in range(22)]
    ends = op("m", 5000, "o4", "o10", "o16", "o23"), op("end", 1, *(one.name for one in line))
    world = World.of([*ops, *ends, *line], joined(3, "device"), [0] * 24 + [1, 0] + [2] * 22)
    oracle, base = oracle_of(world, cache=0), np.array(column(world))
    for device in (0, 2):
        moved = base.copy()
        moved[24] = device
        assert moves_of(oracle, base).step_ps(base, np.array([24]), device) == oracle.step_ps(moved)


def test_a_move_to_where_an_op_has_no_time_is_left_to_lowering() -> None:
    only = replace(op("x", 0), time={"a": "3 ps"})
    kinds = [Device("g0", kind="a"), Device("g1", kind="b")]
    base = np.zeros(2, np.int64)
    moves = moves_of(oracle_of(World.of([only, op("y", 0)], joined(kinds), [0, 0]), cache=0), base)
    assert moves.step_ps(base, np.array([0]), 1) is None
