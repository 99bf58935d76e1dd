"""Answers of the compiled kernels themselves, which an oracle would else get from lowering."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks import common
from simdev import Oracle
from simdev.ground.errors import InputError
from simdev.nouns.cluster import Cluster, Device, Host, Link
from simdev.nouns.graph import Graph
from simdev.nouns.strategy import Configuration, Strategy
from simdev.oracle import cost_of
from simdev.oracle.cost import WORSE
from simdev.oracle.splits.evaluator import SplitEvaluator
from worlds.clusters import UNIT, devices, joined
from worlds.costs import COSTS
from worlds.graphs import op
from worlds.scenarios import World, oracle_of
from worlds.split_graphs import cluster, convolutions


def in_line() -> World:
    """Five ops, one behind the other, on three devices."""
    sizes = enumerate((2, 1, 2, 2, 0))
    ops = [op(f"o{i}", i + 1, *[f"o{i - 1}"] * (i > 0), size=size) for i, size in sizes]
    return World.of(ops, joined(3, "device"), [0] * 5)


def test_whatever_is_joined_takes_the_short_path():
    """Bytes go up alone: nobody else is refused for that."""
    links = [Link((f"g{d}", f"g{d + 1}"), 1, duplex="simplex") for d in range(2)]
    world = in_line().but(cluster=Cluster("up", tuple(devices(3)), tuple(links)))
    answers_as_in_full(world, [0, 1, 1, 2, 2], [0, 0, 0, 2, 2], [2, 2, 2, 2, 2])


def answers_as_in_full(world: World, *forms: list[int]) -> None:
    oracle = oracle_of(world)
    short = oracle.evaluator("fifo")
    assert short is not None
    for form in forms:
        assert short.cost(np.array(form)) == oracle.in_full(oracle.strategy(form))


@pytest.mark.parametrize("near", [(), (("g0", "g2"), ("g1", "g3"))])
def test_a_route_may_hold_more_than_two_links(near: tuple[tuple[str, str], ...]) -> None:
    """g0 and g2 stand at one switch, g1 and g3 at another: both transfers cross the link between
    the switches, one after the other, also where all other routes are of one link.
    """
    ends = [("g0", "s0"), ("g2", "s0"), ("s0", "s1"), ("s1", "g1"), ("s1", "g3"), *near]
    links = tuple(Link(pair, UNIT) for pair in ends)
    switches = Device("s0", "switch"), Device("s1", "switch")
    ops = [op("a", 1, size=4), op("b", 1, size=4), op("c", 1, "a"), op("d", 1, "b")]
    far = Cluster("far", (*devices(4), *switches), links, "link")
    world = World.of(ops, far, [0, 2, 1, 3])
    assert world.step == 1 + 4 + 4 + 1
    answers_as_in_full(world, [0, 2, 1, 3], [0, 1, 1, 0], [0, 0, 1, 2], [3, 1, 0, 2])


@pytest.mark.parametrize("times", [(1, 0, 0, 0, 0), (0, 0, 0, 0, 0), (0, 1, 0, 1, 0)])
def test_ops_of_no_length_have_rounds_of_their_own(times):
    ops = [op(f"o{i}", time, *[f"o{i - 1}"] * (i > 0), size=0) for i, time in enumerate(times)]
    answers_as_in_full(World.of(ops, joined(2, "device"), [0] * 5), [0] * 5, [0, 1, 0, 1, 0])


def test_a_peak_may_lie_inside_a_slot():
    """b and c fill 30 bytes for a picosecond of a long step, between ends of its 512 slots."""
    times, sizes = (10**6, 1, 1, 1, 10**6), (0, 10, 20, 0, 0)
    steps = enumerate(zip(times, sizes, strict=True))
    ops = [op(f"o{i}", ps, *[f"o{i - 1}"] * (i > 0), size=size) for i, (ps, size) in steps]
    world = World.of(ops, joined(1, memory=30), [0] * 5)
    assert [memory.peak for memory in world.trace.memory] == [30]
    answers_as_in_full(world, [0] * 5)


def test_a_group_that_is_split_is_refused_where_ops_run_anywhere():
    world = in_line().with_ops(lambda one: replace(one, colocate="x" if one.name < "o2" else None))
    with pytest.raises(InputError, match='group "x" is split over g0, g1'):
        oracle_of(world)([0, 1, 1, 1, 1])


def test_peaks_may_be_looked_at_in_any_order():
    """An evaluation soon after peaks were looked at notes when everything happened. Peaks of an
    earlier answer write other notes there, which must not pass for its own.
    """
    prepared, rng = common.layered(96, 3, "device"), np.random.default_rng(5)
    oracle = Oracle(prepared.graph, prepared.cluster, cache=0)
    forms = rng.integers(0, 3, (3, 96))
    answers = [oracle(form) for form in forms]
    peaks = [oracle.in_full(oracle.strategy(form)).peaks for form in forms]
    assert answers[0].peaks == peaks[0]
    noted = oracle(forms[1])
    assert answers[2].peaks == peaks[2]
    assert noted.peaks == peaks[1]


def test_what_takes_no_time_keeps_any_limit():
    oracle = oracle_of(World.of([op("a", 0), op("b", 0)], joined(2), [0, 0]))
    short, base = oracle.evaluator("fifo"), np.array([0, 0])
    moves = short.moves() if short else None
    assert moves is not None
    assert moves.rebase(base) == 0
    assert moves.step_ps(base, np.array([1]), 1, 0) == 0


def test_an_op_may_take_no_time_where_it_stands_and_some_elsewhere() -> None:
    """A bound for every placement takes the least of an op's times, which is none."""
    ops = [replace(op(name, 0), time={"a": "0 ps", "b": "9 ps"}) for name in ("x", "y")]
    kinds = [Device("g0", kind="a"), Device("g1", kind="b")]
    short = oracle_of(World.of(ops, joined(kinds), [0, 0])).evaluator("fifo")
    assert short is not None
    cost = short.cost(np.array([0, 0]), 0)
    assert cost is not None
    assert cost.step_ps == 0


@pytest.mark.parametrize("queues", ["device", "link", "parallel"])
def test_moves_stop_at_a_limit_and_not_before(queues: str) -> None:
    """A move that keeps its limit is told exactly, however early its end is known."""
    prepared, rng = common.layered(96, 3, queues, seed=3), np.random.default_rng(4)
    oracle = Oracle(prepared.graph, prepared.cluster, cache=0)
    short, base = oracle.evaluator("fifo"), rng.integers(0, 3, 96)
    moves = short.moves() if short else None
    assert moves is not None
    assert moves.rebase(base) == oracle.step_ps(base)
    for _ in range(50):
        row, device = rng.integers(96, size=1), int(rng.integers(3))
        moved, before = base.copy(), int(base[row[0]])
        moved[row] = device
        step = oracle.step_ps(moved)
        for limit in (step, step + 1, 2 * step):
            assert moves.step_ps(base, row, device, limit) == step
        assert moves.step_ps(base, row, device, step - 1) in (WORSE, step)
        if rng.random() < 0.3:
            assert moves.rebase(moved, row, before) == step
            base = moved


def test_placements_whose_transfers_may_last_too_long_are_left_to_lowering() -> None:
    """20 days of latency and as many of bytes: more than 2**61 ps, which is 26 days."""
    long = 20 * 24 * 3600
    ops = [op("a", 1, size=long), op("b", 1, "a")]
    for latency, known in ((0, True), (long, False)):
        far = joined(2, "device", bandwidth=1, latency=f"{latency} s")
        assert (oracle_of(World.of(ops, far, [0, 0])).evaluator("fifo") is not None) == known


LAUNCH = Host("graph", launch="5 s")
LONG = {
    "a launch": replace(
        cluster("device"), devices=(*devices(3, "gpu:"), Device("gpu:3", host=LAUNCH))
    ),
    "a fraction of a rate": cluster("device", bandwidth=10**13 + 1),
    "a latency": cluster("device", latency="5 s"),
}


@pytest.mark.parametrize("case", LONG)
def test_what_lasts_for_seconds_is_left_to_lowering(case: str) -> None:
    """Times of 2**42 ps and more do not fit the columns of split ops."""
    rows = Configuration({"d0": 2}, ("gpu:0", "gpu:3"))
    strategy = Strategy({"x": "gpu:0"}, partition={"relu1": rows})
    prepared = Oracle(convolutions(), LONG[case], COSTS).prepared
    assert SplitEvaluator(prepared).start(strategy) is None
    near = Oracle(convolutions(), cluster("device"), COSTS).prepared
    assert SplitEvaluator(near).start(strategy) is not None


@pytest.mark.parametrize("host", [None, Host(ahead=2, threads="node"), Host()])
def test_parts_keep_the_order_of_their_devices_however_they_are_listed(host: Host | None):
    """One thread for all: which part is dispatched first is seen in the step time."""
    ops = (replace(op, host_time=f"{5 + i} us") for i, op in enumerate(convolutions().ops))
    oracle = Oracle(Graph("net", tuple(ops)), replace(cluster("device"), host=host), COSTS)
    there = "gpu:1", "gpu:0"
    batch, rows = Configuration({"n": 2}, there), Configuration({"d0": 2}, there)
    strategy = Strategy({"x": "gpu:0"}, partition={"conv1": batch, "relu1": rows, "conv2": batch})
    split = SplitEvaluator(oracle.prepared).start(strategy)
    assert split is not None
    assert split.cost() == cost_of(oracle.trace(strategy))
